"""Fibers: the threads of a kernel in emulation, each with a stack of its own, and the scheduler that runs
them in turn. All of it is machine code.

    scheduler   switch_stack ->  fiber: kernel, ..., barrier   switch_stack ->  scheduler: the next fiber

A slot of `SLOT` bytes of memory, aligned to as many, is the stack of a fiber; above the stack, in the same
slot, is its record. So a device function finds the record from the stack pointer, and several threads of the
process may emulate at once. Where the record is in its slot depends on the slot: otherwise all records and
stacks would map to the same sets of the caches.
"""

import platform
import re
import sys

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER, Code
from stepnet.compiler.targets.cuda.writer import SCALAR, VOID
from stepnet.compiler.values.records import dataclass
from stepnet.errors import LibraryError

SLOT = 65536
RECORD_AT, COLOURS, RECORD = 49152, 128, 128
"""The offset of the first possible place of a record in its slot; the number of places; the bytes of each."""
DONE = -1
"""The value of `waits_for` of a fiber whose kernel has returned."""
WAITS = {
    1: "at a barrier of the block",
    2: "for the other threads of their warps",
    3: "at a barrier of the cluster",
    4: "for a counter of another block",
    5: "for a number of another block",
}
"""The places where a thread gives way, by the values of `waits_for`."""
FINISHED, DEADLOCK = 0, 1
"""The results of the scheduler."""
SLOW = 512
"""The turns of 1024 that a slow warp takes."""

STATE = (
    ("scheduler", I64),  # the stack pointer of the scheduler
    ("start", POINTER),  # the function that a fiber runs
    ("words", POINTER),  # its argument: those of the kernel
    ("threads", I64),  # of a block
    ("blocks", I64),  # of the launch
    ("group", I64),  # the blocks that work together
    ("first", I64),  # the first block that runs now
    ("running", I64),  # the blocks that run now
    ("count", I64),  # the fibers: `running` times `threads`
    ("shared", POINTER),  # the shared memory of the blocks that run now
    ("apart", I64),  # the bytes from that of one block to that of the next
    ("barriers", POINTER),  # {i32 arrived, i32 generation} of each block, warp and group; an i32 per block
    ("meetings", POINTER),  # what the lanes of each warp hand to each other
    ("stacks", POINTER),  # the first slot
    ("order", POINTER),  # i32 for each fiber: those that are not done, in the order of their turns
    ("waiting", I64),  # the number of these
    ("progress", I64),  # grows whenever a fiber that waits may go on
    ("random", I64),  # the state of the generator of random numbers
    ("unequal", I64),  # 1 if some warps are slow
    ("misaligned", I64),  # the bits of addresses that are not as aligned as instructions need them
    ("arena", POINTER),  # main memory, if blocks have views of it (`views.py`)
    ("arena_bytes", I64),  # its bytes, a multiple of 8; 0 without views
    ("views", POINTER),  # the views of the blocks that run now
)
"""The fields of a launch, in the order in which the emulator gives them: 8 bytes each."""
FIBER = {
    "state": (0, POINTER),
    "stack": (8, I64),  # the stack pointer while another one runs
    "thread": (16, I32),  # of its block
    "block": (20, I32),  # of the launch
    "local": (24, I32),  # of the blocks that run now
    "fiber": (28, I32),
    "wait_at": (32, POINTER),  # what it waits for: that the number here is no longer `wait_value`
    "wait_value": (40, I32),
    "waits_for": (44, I32),
    "turn": (48, I32),  # which of two buffers the next meeting of the warp uses
    "slow": (52, I32),
}
"""The offset and the type of each field of a fiber's record."""


@dataclass(frozen=True)
class Switch:
    """A change of stacks on a processor.

    text: assembly of a function that saves the registers that a function must keep, stores the stack pointer
        at its first argument, and continues with the stack pointer that is its second argument.
    frame: the bytes that it pushes for this, and a new stack begins with. entry: the offset in these of the
        address at which the fiber goes on.
    """

    text: tuple[str, ...]
    frame: int
    entry: int


KEPT_BY_X86 = "rbp", "rbx", "r12", "r13", "r14", "r15"
KEPT_BY_ARM = [(f"x{n}", f"x{n + 1}") for n in range(19, 30, 2)] + [
    (f"d{n}", f"d{n + 1}") for n in (8, 10, 12, 14)
]
SWITCHES = {
    "x86_64": Switch(
        (
            *(f"pushq %{name}" for name in KEPT_BY_X86),
            "movq %rsp, (%rdi)",
            "movq %rsi, %rsp",
            *(f"popq %{name}" for name in reversed(KEPT_BY_X86)),
            "retq",
        ),
        frame=64,  # with one word more: a function finds its stack pointer 8 bytes below a multiple of 16
        entry=48,
    ),
    "aarch64": Switch(
        (
            "sub sp, sp, #160",
            *(f"stp {a}, {b}, [sp, #{16 * place}]" for place, (a, b) in enumerate(KEPT_BY_ARM)),
            "mov x9, sp",
            "str x9, [x0]",
            "mov sp, x1",
            *(f"ldp {a}, {b}, [sp, #{16 * place}]" for place, (a, b) in enumerate(KEPT_BY_ARM)),
            "add sp, sp, #160",
            "ret",
        ),
        frame=160,
        entry=88,
    ),
}
"""The change of stacks by the name of the processor."""
SAME = {"amd64": "x86_64", "arm64": "aarch64"}
"""Other names of the processors."""


def switch_here(system: str = sys.platform, machine: str = "") -> Switch:
    """Returns the change of stacks for this process. system, machine: the names of the system and of the
    processor, by default those of this process. Raises `LibraryError` if there is none.
    """
    machine = (machine or platform.machine()).lower()
    found = SWITCHES.get(SAME.get(machine, machine))
    if found is None or system == "win32":
        raise LibraryError(
            f"the emulation of a GPU runs on x86-64 and 64-bit Arm, under Linux and macOS, not on {machine} "
            f"under {system}"
        )
    return found


def in_order(names: tuple[tuple[str, ir.Type], ...]) -> dict[str, tuple[int, ir.Type]]:
    """Returns the offset and the type of each field of 8 bytes, by its name."""
    return {name: (8 * place, type_) for place, (name, type_) in enumerate(names)}


FIELDS = {**in_order(STATE), **{f"fiber {name}": field for name, field in FIBER.items()}}


class SchedulerCode(Code):
    """Writer of a function of the scheduler, which reads and writes the fields of launches and fibers."""

    def __init__(self, module: ir.Module, name: str, result: ir.Type, arguments: list[ir.Type]) -> None:
        """Begins a function of a module."""
        self.made = ir.Function(module, ir.FunctionType(result, arguments), name)
        super().__init__(self.made.append_basic_block("entry"), SCALAR)

    def get(self, pointer: ir.Value, name: str) -> ir.Value:
        """Reads a field of a launch, or one of a fiber, whose name begins with "fiber"."""
        offset, type_ = FIELDS[name]
        return self.read(type_, self.at(pointer, offset), 4 if type_ is I32 else 8)

    def set(self, pointer: ir.Value, name: str, value: ir.Value) -> None:
        """Writes a field of a launch or of a fiber."""
        self.write(value, self.at(pointer, FIELDS[name][0]), 4 if FIELDS[name][1] is I32 else 8)

    def below(self, state: ir.Value, limit: ir.Value) -> ir.Value:
        """Writes code for a random number from 0 on, below a limit of at most 32 bits."""
        high = self.lshr(self.function_call("random", I64, [state]), self.number(32))
        return self.lshr(super().mul(high, limit), self.number(32))

    def record(self, state: ir.Value, fiber: ir.Value) -> ir.Value:
        """Writes code for the address of the record of a fiber, by its number."""
        slot = super().add(
            self.ptrtoint(self.get(state, "stacks"), I64), super().mul(fiber, self.number(SLOT))
        )
        return self.function_call("record_in", POINTER, [slot])


def scheduler() -> str:
    """Returns the scheduler as LLVM code: `run_all` makes the fibers of a launch and runs them until all are
    done or none can go on.
    """
    module = ir.Module()
    code = SchedulerCode(module, "run_all", I32, [POINTER])
    state = code.made.args[0]
    count = code.get(state, "count")
    make_fibers(code, state, count)
    code.set(state, "waiting", count)
    kept, stuck = (code.alloca(I64) for _ in range(2))
    code.write(code.number(0), stuck, 8)
    waiting = lambda: code.icmp_signed(">", code.get(state, "waiting"), code.number(0))  # noqa: E731
    with code.loop_while(waiting):
        before, order = code.get(state, "progress"), code.get(state, "order")
        shuffle(code, state, order)
        code.write(code.number(0), kept, 8)
        with code.loop(code.number(0), code.get(state, "waiting")) as place:
            fiber = code.read(I32, code.at(order, code.mul(place, code.number(4))), 4)
            record = code.record(state, code.zext(fiber, I64))
            with code.when(may_run(code, state, record, code.read(I64, stuck, 8))):
                code.function_call("switch_stack", VOID, [state, code.get(record, "fiber stack")])
            number = code.read(I64, kept, 8)
            code.write(fiber, code.at(order, code.mul(number, code.number(4))), 4)
            lives = code.icmp_signed("!=", code.get(record, "fiber waits_for"), ir.Constant(I32, DONE))
            code.write(code.add(number, code.zext(lives, I64)), kept, 8)
        code.set(state, "waiting", code.read(I64, kept, 8))
        same = code.icmp_signed("==", code.get(state, "progress"), before)
        rounds = code.read(I64, stuck, 8)
        is_stuck = code.icmp_signed(">", rounds, code.number(1))  # so that who polls has looked again
        code.return_when(code.and_(code.and_(same, is_stuck), waiting()), ir.Constant(I32, DEADLOCK))
        code.write(code.select(same, code.add(rounds, code.number(1)), code.number(0)), stuck, 8)
    code.ret(ir.Constant(I32, FINISHED))
    return str(module)


def make_fibers(code: SchedulerCode, state: ir.Value, count: ir.Value) -> None:
    """Writes code that fills the record and the stack of each fiber, and draws which warps are slow."""
    switch, threads = switch_here(), code.get(state, "threads")
    speeds = code.alloca(I32)
    with code.loop(code.number(0), count) as fiber:
        record = code.record(state, fiber)
        lane = code.and_(fiber, code.number(31))
        with code.when(code.icmp_signed("==", lane, code.number(0))):
            drawn = code.and_(code.below(state, code.number(2)), code.get(state, "unequal"))
            code.write(code.trunc(drawn, I32), speeds, 4)
        local = code.udiv(fiber, threads)
        place = code.sub(code.ptrtoint(record, I64), code.number(switch.frame))
        start = code.address("fiber_start")
        code.write(start, code.inttoptr(code.add(place, code.number(switch.entry)), POINTER), 8)
        fields: dict[str, ir.Value] = {
            "state": state,
            "stack": place,
            "thread": code.trunc(code.urem(fiber, threads), I32),
            "block": code.trunc(code.add(local, code.get(state, "first")), I32),
            "local": code.trunc(local, I32),
            "fiber": code.trunc(fiber, I32),
            "wait_at": ir.Constant(POINTER, None),
            "wait_value": ir.Constant(I32, 0),
            "waits_for": ir.Constant(I32, 0),
            "turn": ir.Constant(I32, 0),
            "slow": code.read(I32, speeds, 4),
        }
        for name, value in fields.items():
            code.set(record, f"fiber {name}", value)
        order = code.at(code.get(state, "order"), code.mul(fiber, code.number(4)))
        code.write(code.trunc(fiber, I32), order, 4)


def shuffle(code: SchedulerCode, state: ir.Value, order: ir.Value) -> None:
    """Writes code that puts the fibers that are not done in a random order."""
    with code.loop(code.number(1), code.get(state, "waiting")) as last:
        other = code.below(state, code.add(last, code.number(1)))
        here, there = (code.at(order, code.mul(place, code.number(4))) for place in (last, other))
        first, second = code.read(I32, here, 4), code.read(I32, there, 4)
        code.write(second, here, 4)
        code.write(first, there, 4)


def may_run(code: SchedulerCode, state: ir.Value, record: ir.Value, stuck: ir.Value) -> ir.Value:
    """Writes code that tells whether a fiber takes its turn: a slow one does at times, and when nothing else
    went on; one that waits for a number to change does when it has changed.
    """
    slow = code.icmp_signed("!=", code.get(record, "fiber slow"), ir.Constant(I32, 0))
    moving = code.icmp_signed("==", stuck, code.number(0))
    rests = code.icmp_signed(">=", code.below(state, code.number(1024)), code.number(SLOW))
    rests = code.and_(rests, code.and_(slow, moving))
    wait_at = code.get(record, "fiber wait_at")
    waits = code.icmp_unsigned("!=", wait_at, ir.Constant(POINTER, None))
    safe = code.select(waits, wait_at, code.at(record, FIBER["wait_value"][0]))
    same = code.icmp_signed("==", code.read(I32, safe, 4), code.get(record, "fiber wait_value"))
    return code.not_(code.or_(rests, code.and_(waits, same)))


OFFSETS = {name.upper().replace(" ", "_"): str(place) for name, (place, _) in FIELDS.items()}


def with_offsets(text: str) -> str:
    """Returns LLVM code with the offset of a field in the place of its name in braces."""
    return re.sub(r"<([A-Z_]+)>", lambda found: OFFSETS[found[1]], text)


FIELD_TEXT = with_offsets(f"""
declare ptr @llvm.stacksave.p0()
define ptr @record_in(i64 %slot) alwaysinline {{ %s = lshr i64 %slot, 9
  %c = and i64 %s, {(COLOURS - 1) * RECORD} %r = add i64 %slot, %c %p = add i64 %r, {RECORD_AT}
  %q = inttoptr i64 %p to ptr ret ptr %q }}
define ptr @record() alwaysinline {{ %s = call ptr @llvm.stacksave.p0() %a = ptrtoint ptr %s to i64
  %slot = and i64 %a, {-SLOT} %r = call ptr @record_in(i64 %slot) ret ptr %r }}
define i32 @of_fiber(i64 %at) alwaysinline {{ %r = call ptr @record() %p = getelementptr i8, ptr %r, i64 %at
  %v = load i32, ptr %p ret i32 %v }}
define i64 @of_launch(i64 %at) alwaysinline {{ %r = call ptr @record() %s = load ptr, ptr %r
  %p = getelementptr i8, ptr %s, i64 %at %v = load i64, ptr %p ret i64 %v }}
""")
"""Functions that read a field of the fiber that runs, and of its launch, by its offset."""

SWITCHING = with_offsets(f"""
define i64 @random(ptr %state) {{ %p = getelementptr i8, ptr %state, i64 <RANDOM>
  %a = load i64, ptr %p %b = shl i64 %a, 13 %c = xor i64 %a, %b %d = lshr i64 %c, 7 %e = xor i64 %c, %d
  %f = shl i64 %e, 17 %g = xor i64 %e, %f store i64 %g, ptr %p
  %h = mul i64 %g, 2685821657736338717 ret i64 %h }}
define void @give_way(i32 %why) {{ %r = call ptr @record() %s = load ptr, ptr %r
  %w = getelementptr i8, ptr %r, i64 <FIBER_WAITS_FOR> store i32 %why, ptr %w
  %p = getelementptr i8, ptr %r, i64 <FIBER_STACK> %to = load i64, ptr %s
  call void @switch_stack(ptr %p, i64 %to) ret void }}
define void @moved() {{ %r = call ptr @record() %s = load ptr, ptr %r
  %p = getelementptr i8, ptr %s, i64 <PROGRESS> %a = load i64, ptr %p %b = add i64 %a, 1
  store i64 %b, ptr %p ret void }}
define void @meet(i64 %which, i32 %members, i32 %why) {{
  %all = call i64 @of_launch(i64 <BARRIERS>) %place = inttoptr i64 %all to ptr
  %a = getelementptr [2 x i32], ptr %place, i64 %which %g = getelementptr i32, ptr %a, i64 1
  %old = load i32, ptr %g %n = load i32, ptr %a %m = add i32 %n, 1 call void @moved() store i32 %m, ptr %a
  %last = icmp eq i32 %m, %members br i1 %last, label %open, label %wait
open: store i32 0, ptr %a %new = add i32 %old, 1 store i32 %new, ptr %g ret void
wait: %r = call ptr @record() %p = getelementptr i8, ptr %r, i64 <FIBER_WAIT_AT> store ptr %g, ptr %p
  %v = getelementptr i8, ptr %r, i64 <FIBER_WAIT_VALUE> store i32 %old, ptr %v
  call void @give_way(i32 %why) store ptr null, ptr %p ret void }}
define void @fiber_start() {{ %s = call i64 @of_launch(i64 <START>) %f = inttoptr i64 %s to ptr
  %a = call i64 @of_launch(i64 <WORDS>) %p = inttoptr i64 %a to ptr call void %f(ptr %p) call void @moved()
  call void @give_way(i32 {DONE}) unreachable }}
""")
"""Functions of the scheduler and of fibers: random numbers, giving way, and waiting until all are there."""


def switching() -> str:
    """Returns the change of stacks of this processor as LLVM code."""
    assembly = "\\0A".join(switch_here().text)
    return f"""
define void @switch_stack(ptr %save, i64 %to) naked noinline nounwind {{
  call void asm sideeffect "{assembly}", ""() unreachable }}
"""


def record_of(slot: int) -> int:
    """Returns the address of the record of a fiber, by that of its slot, as `record_in` computes it."""
    return slot + ((slot >> 9) & ((COLOURS - 1) * RECORD)) + RECORD_AT
