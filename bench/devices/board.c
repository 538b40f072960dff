/* Starts a program on an emulated Cortex-M, and ends the emulation with what `main` returns. `used_stack` gives
 * how many bytes of the stack were touched so far, `say` prints a number in hexadecimal digits, and what `keep` is
 * given is not left out. With -DFILES and the library rdimon a program has files of this machine, and arguments.
 */
#include "board.h"

enum { PAINT = 0x5AFEC0DE, WRITE = 4, COMMAND_LINE = 0x15, EXIT = 0x20, MOST = 8 };
extern unsigned stack_floor[], stack_top[];
#ifdef FILES
int main(int count, char **words);
void initialise_monitor_handles(void); /* opens standard streams */
void exit(int code);
#else
int main(void);
#endif

static int semihosting(int operation, const void *argument)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void stop(unsigned code)
{
    const unsigned block[2] = {0x20026, code};
    semihosting(EXIT, block);
    for (;;) {}
}

static void fault(void)
{
    stop(99);
}

unsigned used_stack(void)
{
    const unsigned *at = stack_floor;
    while (*at == PAINT)
        at++;
    return (unsigned)((const char *)stack_top - (const char *)at);
}

void say(const char *name, unsigned number)
{
    char text[11] = " ........\n";
    for (unsigned digit = 0; digit < 8; digit++) /* as many instructions for each number */
        text[8 - digit] = "0123456789abcdef"[number >> 4 * digit & 15];
    semihosting(WRITE, name);
    semihosting(WRITE, text);
}

void keep(const void *data)
{
    __asm__ volatile("" ::"r"(data));
}

#ifdef FILES
static void run(void)
{
    static char text[256], *words[MOST];
    const struct {
        char *text;
        unsigned size;
    } block = {text, sizeof text};
    int count = 0;
    if (semihosting(COMMAND_LINE, &block)) fault();
    for (char *at = text; *at && count < MOST;) {
        words[count++] = at;
        while (*at && *at != ' ')
            at++;
        if (*at) *at++ = 0;
    }
    initialise_monitor_handles();
    exit(main(count, words));
}
#else
static void run(void)
{
    stop((unsigned)main());
}
#endif

void board_start(void)
{
    volatile unsigned *end;
#if __ARM_ARCH_PROFILE == 'M' && __ARM_ARCH >= 7
    *(volatile unsigned *)0xE000ED88 |= 0xFU << 20; /* the floating-point unit, and Helium */
    __asm__ volatile("dsb\n isb");
#endif
    __asm__ volatile("mov %0, sp" : "=r"(end));
    for (volatile unsigned *at = stack_floor; at < end; at++)
        *at = PAINT;
    run();
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, board_start, fault, fault, fault, fault, fault};
