"""Views of main memory in emulation: what a block sees of it, which is not always what others have written.

    main memory       h 3        block 0 reads it     view of block 0    h 3
    block 1 writes    h 4        in its own view      main memory        h 3
    block 1 releases             written back         main memory        h 4
    block 0 reads it again       still in its view    view of block 0    h 3
    block 0 acquires             no longer there: the next read is of main memory

So a kernel whose blocks exchange values without an order of memory, as a GPU's first caches and queues of
stores allow, has wrong results: what a block never releases is written back when the launch ends.

All memory of such a device lies in one arena. A view has a byte for each of its bytes, and another one for
its mark: 0 for none, the number of the acquire since which it is there, or `WRITTEN`. What the functions of
the device read and write themselves, such as numbers with tags, is main memory.
"""

import re

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I8, I32, I64, POINTER
from stepnet.compiler.targets.cuda.emulation.fibers import SchedulerCode
from stepnet.compiler.targets.cuda.writer import VOID

WRITTEN = 255
"""The mark of a byte that other blocks do not see yet."""
COUNTS = 16
"""The bytes behind the marks of a view: i32 number of the present acquire, i32 bytes that are written."""
ACCESS = re.compile(
    r"^ *(?:(?P<load>%\S+ = load (?P<read>[^,]*?), )|(?P<store>store (?P<written><[^>]*>|\S+) .*, ))"
    r"ptr (?P<at>%\S+)(?P<rest>, align \d+)$",
    re.MULTILINE,
)
"""A load or a store of a kernel."""
SIZES = {
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "half": 2,
    "bfloat": 2,
    "i32": 4,
    "float": 4,
    "i64": 8,
    "double": 8,
    "ptr": 8,
}


def size_of(type_: str) -> int:
    """Returns the bytes of a value of a type in LLVM's text.

    >>> size_of("float"), size_of("<4 x float>"), size_of("<2 x i16>")
    (4, 16, 4)
    """
    count, _, element = type_.strip(" <>").rpartition(" x ")
    return int(count or 1) * SIZES[element]


def through_views(text: str) -> str:
    """Returns the text of a kernel whose loads and stores go through the view of its block."""
    count = iter(range(len(text)))

    def replaced(found: re.Match[str]) -> str:
        """Returns the access at the address in the view."""
        at = f"%view{next(count)}"
        size, writes = size_of(found["read"] or found["written"]), int(found["store"] is not None)
        access = found["load"] or found["store"]
        call = f"{at} = call ptr @seen(ptr {found['at']}, i64 {size}, i32 {writes})"
        return f"  {call}\n  {access}ptr {at}{found['rest']}"

    return ACCESS.sub(replaced, text) + "\ndeclare ptr @seen(ptr, i64, i32)\n"


class ViewCode(SchedulerCode):
    """Writer of a function on the view of the block of the fiber that runs it.

    state: the launch. arena, count: where main memory begins, and its bytes. view: where the view begins.
    """

    def __init__(self, module: ir.Module, name: str, result: ir.Type, arguments: list[ir.Type]) -> None:
        """Begins a function of a module."""
        super().__init__(module, name, result, arguments)
        record = self.function_call("record", POINTER, [])
        self.state = self.read(POINTER, record, 8)
        self.arena, self.count = self.get(self.state, "arena"), self.get(self.state, "arena_bytes")
        of_view = self.add(self.mul(self.count, self.number(2)), self.number(COUNTS))
        local = self.zext(self.get(record, "fiber local"), I64)
        self.view = self.at(self.get(self.state, "views"), self.mul(local, of_view))
        self.counts = self.at(self.view, self.mul(self.count, self.number(2)))

    def leave_when(self, condition: ir.Value) -> None:
        """Writes code that leaves the function, which returns nothing, if a condition is true."""
        leave, stay = self.append_basic_block("leave"), self.append_basic_block("stay")
        self.cbranch(condition, leave, stay)
        self.position_at_end(leave)
        self.ret_void()
        self.position_at_end(stay)

    def mark_at(self, place: ir.Value) -> ir.Value:
        """Writes the address of the mark of a byte."""
        return self.at(self.at(self.view, self.count), place)

    def byte(self, at: ir.Value) -> ir.Value:
        """Reads a byte."""
        return self.read(I8, at, 1)


def constant(number: int, type_: ir.Type = I8) -> ir.Constant:
    """Returns a number of a type."""
    return ir.Constant(type_, number)


def view_functions() -> str:
    """Returns the functions of views as LLVM code: `seen`, `publish` and `renew`."""
    module = ir.Module()
    write_seen(ViewCode(module, "seen", POINTER, [POINTER, I64, I32]))
    write_publish(ViewCode(module, "publish", VOID, []))
    write_renew(ViewCode(module, "renew", VOID, []))
    return str(module)


def write_seen(code: ViewCode) -> None:
    """Writes the function that returns where some bytes at an address are in the view, to be read or written;
    an address that is not in main memory is returned as it is.
    """
    pointer, size, writes = code.made.args
    place = code.sub(code.ptrtoint(pointer, I64), code.ptrtoint(code.arena, I64))
    code.return_when(code.icmp_unsigned(">=", place, code.count), pointer)
    acquires = code.trunc(code.read(I32, code.counts, 4), I8)
    with code.loop(code.number(0), size) as n:
        at = code.add(place, n)
        mark = code.byte(code.mark_at(at))
        is_old = code.and_(
            code.icmp_unsigned("!=", mark, acquires), code.icmp_unsigned("!=", mark, constant(WRITTEN))
        )
        with code.when(is_old):
            code.write(code.byte(code.at(code.arena, at)), code.at(code.view, at), 1)
            code.write(acquires, code.mark_at(at), 1)
        with code.when(code.icmp_unsigned("!=", writes, constant(0, I32))):
            written = code.at(code.counts, 4)
            code.write(code.add(code.read(I32, written, 4), constant(1, I32)), written, 4)
            code.write(constant(WRITTEN), code.mark_at(at), 1)
    code.ret(code.at(code.view, place))


def write_publish(code: ViewCode) -> None:
    """Writes the function that writes back to main memory what the block has written."""
    code.leave_when(code.icmp_unsigned("==", code.count, code.number(0)))
    written = code.at(code.counts, 4)
    code.leave_when(code.icmp_unsigned("==", code.read(I32, written, 4), constant(0, I32)))
    code.write(constant(0, I32), written, 4)
    acquires = code.trunc(code.read(I32, code.counts, 4), I8)
    with code.loop(code.number(0), code.count) as at:
        is_written = code.icmp_unsigned("==", code.byte(code.mark_at(at)), constant(WRITTEN))
        with code.when(is_written):
            code.write(code.byte(code.at(code.view, at)), code.at(code.arena, at), 1)
            code.write(acquires, code.mark_at(at), 1)
    code.ret_void()


def write_renew(code: ViewCode) -> None:
    """Writes the function that takes out of the view what the block has not written itself."""
    code.leave_when(code.icmp_unsigned("==", code.count, code.number(0)))
    following = code.add(code.read(I32, code.counts, 4), constant(1, I32))
    is_last = code.icmp_unsigned(">=", following, constant(WRITTEN, I32))
    code.write(code.select(is_last, constant(1, I32), following), code.counts, 4)
    with code.when(is_last), code.loop(code.number(0), code.count) as at:
        is_written = code.icmp_unsigned("==", code.byte(code.mark_at(at)), constant(WRITTEN))
        kept = code.select(is_written, constant(WRITTEN), constant(0))
        code.write(kept, code.mark_at(at), 1)
    code.ret_void()


class Views:
    """The views of some blocks of a launch."""

    def __init__(self, arena: np.ndarray, blocks: int) -> None:
        """Makes views in which nothing is. arena: main memory."""
        self.arena = arena
        self.bytes = np.zeros((blocks, 2 * arena.size + COUNTS), np.uint8)
        self.bytes[:, 2 * arena.size] = 1

    def publish(self) -> None:
        """Writes back to main memory what blocks have written and not released."""
        for view in self.bytes:
            is_written = view[self.arena.size : -COUNTS] == WRITTEN
            self.arena[is_written] = view[: self.arena.size][is_written]
