/* A plugin of QEMU that counts how often the instruction at each address is executed, and writes the counts to a
 * file when the emulation ends: a line for each address, `address count`, both in hexadecimal digits.
 *
 * The declarations below are those of QEMU's interface for plugins, whose header is in few packages.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { NO_REGISTERS = 0 };
typedef void (*translated)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*executed)(unsigned, void *);
typedef void (*ended)(qemu_plugin_id_t, void *);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, translated);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, executed, int, void *);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, ended, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);

__attribute__((visibility("default"))) int qemu_plugin_version = PLUGIN_VERSION;

enum { SLOTS = 1 << 18 };
static struct {
    uint64_t address, count;
} table[SLOTS]; /* a hash table; a slot of an instruction has its address plus 1 */
static const char *path;

static void *slot_of(uint64_t address)
{
    uint64_t at = (address * UINT64_C(0x9E3779B97F4A7C15)) >> 46;
    for (unsigned tried = 0; tried < SLOTS; tried++, at = (at + 1) % SLOTS) {
        if (table[at].address == 0)
            table[at].address = address + 1;
        if (table[at].address == address + 1)
            return &table[at].count;
    }
    fprintf(stderr, "counting: the program has more than %d instructions\n", SLOTS);
    exit(1);
}

static void count(unsigned cpu, void *slot)
{
    (void)cpu;
    ++*(uint64_t *)slot;
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    for (size_t index = 0; index < qemu_plugin_tb_n_insns(block); index++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, index);
        qemu_plugin_register_vcpu_insn_exec_cb(
            instruction, count, NO_REGISTERS, slot_of(qemu_plugin_insn_vaddr(instruction)));
    }
}

static void on_end(qemu_plugin_id_t id, void *nothing)
{
    (void)id;
    (void)nothing;
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    for (size_t at = 0; at < SLOTS; at++)
        if (table[at].count)
            fprintf(file, "%" PRIx64 " %" PRIx64 "\n", table[at].address - 1, table[at].count);
    fclose(file);
}

__attribute__((visibility("default"))) int qemu_plugin_install(
    qemu_plugin_id_t id, const void *machine, int count_of_arguments, char **arguments)
{
    (void)machine;
    if (count_of_arguments != 1 || strncmp(arguments[0], "into=", 5) != 0)
        return -1;
    path = strdup(arguments[0] + 5);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_atexit_cb(id, on_end, NULL);
    return 0;
}
