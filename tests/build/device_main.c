/* Runs the frames of frames.h without a C library, under an emulator: half of them one by one, then, in another
 * context with the saved memories, the rest as a block. Writes the outputs: on Cortex-M as hexadecimal digits.
 */
#include "m.h"
#include "frames.h"

#if defined(__arm__) && __ARM_ARCH_PROFILE == 'M'

extern unsigned stack_top;
int start(void);
static int semihosting(int operation, const void *argument)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}
static void put(const void *data, unsigned count)
{
    static char text[3];
    for (unsigned i = 0; i < count; i++) {
        unsigned byte = ((const unsigned char *)data)[i];
        text[0] = "0123456789abcdef"[byte >> 4];
        text[1] = "0123456789abcdef"[byte & 15];
        semihosting(4, text);
    }
}
static void stop(int code)
{
    semihosting(0x18, (const void *)(code ? 0x20023 : 0x20026));
    for (;;) {}
}
void _start(void)
{
    *(volatile unsigned *)0xE000ED88 |= 0xFU << 20; /* the floating-point unit, and Helium */
    __asm__ volatile("dsb\n isb");
    start();
}
static void fault(void)
{
    stop(9);
}
__attribute__((section(".vectors"), used)) static const void *vectors[16] = {
    &stack_top, _start, fault, fault, fault, fault, fault};

#elif defined(_WIN32)

int _fltused; /* what the code of floats asks of a C library */
__declspec(dllimport) void *GetStdHandle(unsigned);
__declspec(dllimport) int WriteFile(void *, const void *, unsigned, unsigned *, void *);
__declspec(dllimport) void ExitProcess(unsigned);
static void put(const void *data, unsigned count)
{
    WriteFile(GetStdHandle(-11U), data, count, &count, 0);
}
static void stop(int code)
{
    ExitProcess((unsigned)code);
}
int start(void);
void _start(void)
{
    start();
}

#else

#if defined(__arm__)
enum { WRITE = 4, EXIT = 1 };
static long call(long number, long a, long b, long c)
{
    register long r0 __asm__("r0") = a, r1 __asm__("r1") = b, r2 __asm__("r2") = c;
    __asm__ volatile("push {r7}\n mov r7, %1\n svc 0\n pop {r7}" : "+r"(r0) : "r"(number), "r"(r1), "r"(r2) : "memory");
    return r0;
}
#elif defined(__x86_64__)
enum { WRITE = 1, EXIT = 60 };
static long call(long number, long a, long b, long c)
{
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return number;
}
#elif defined(__aarch64__)
enum { WRITE = 64, EXIT = 93 };
static long call(long number, long a, long b, long c)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
#else
enum { WRITE = 64, EXIT = 93 };
static long call(long number, long a, long b, long c)
{
    register long a7 __asm__("a7") = number, a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2) : "memory");
    return a0;
}
#endif
static void put(const void *data, unsigned count)
{
    call(WRITE, 1, (long)data, (long)count);
}
static void stop(int code)
{
    call(EXIT, code, 0, 0);
}
int start(void);
#if defined(__x86_64__)
__attribute__((force_align_arg_pointer)) /* nobody has called this function */
#endif
void _start(void)
{
    start();
}

#endif

static m_context one, other;
static uint8_t saved[M_SAVED_BYTES];

int start(void)
{
    int wrong = m_step(&one, PLACES(0)) != M_NOT_RESET || m_reset(0) != M_NULL || m_reset(&one) != M_OK;
    for (unsigned at = 0; at < HALF; at++)
        wrong |= m_step(&one, PLACES(at));
    wrong |= m_save(&one, saved) | m_restore(&other, saved) | m_block(&other, COUNT - HALF, PLACES(HALF));
    saved[M_SAVED_BYTES - 1] ^= 4;
    wrong |= m_restore(&other, saved) != M_DAMAGED;
    saved[0] ^= 1;
    wrong |= m_restore(&other, saved) != M_OTHER_MODEL;
    PUT_ALL
    stop(wrong);
    return 0;
}
