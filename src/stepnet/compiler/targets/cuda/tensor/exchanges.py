"""Writes the exchanges of a loop on tensor cores: how all warps of a group see the values of all units."""

from collections.abc import Callable, Sequence

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I1, I32
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.functions import F32, FOUR, QUAD
from stepnet.compiler.targets.cuda.tensor.places import Elements, PlacesWriter
from stepnet.compiler.targets.cuda.tensor.shape import UNITS
from stepnet.compiler.targets.cuda.writer import VOID, Value

AT_ONCE = 8
"""The pieces of 16 bytes that a thread reads from the second cache before it writes them to shared memory."""


class ExchangeWriter(PlacesWriter):
    """Writer of exchanges: through shared memory, the second cache, or the shared memory of a cluster."""

    def publish(self, values: dict[int, Elements], parity_of: Callable[[int], Value], turn: Value) -> None:
        """Writes the exchange that makes values of all units visible to all warps of the group.

        parity_of: for a left operand, which of its two places they go to. turn: the exchanges before this
        one.
        """
        if not values:  # a step without products needs no barrier
            return
        shown = {left: self.shown(left, value) for left, value in values.items()}
        if self.schedule.exchange == "tagged":
            for left, value in shown.items():
                self.tag(left, value, parity_of(left), turn)
            for left in shown:
                self.fetch_tagged(left, parity_of(left), turn)
            self.barrier()
            return
        grid = self.schedule.exchange == "grid"
        for left, value in shown.items():
            for e in range(self.shape.elements):
                offset = self.state_offset(left, parity_of(left), self.units[e], self.columns[e])
                self.write(value[e], self.exchanged(offset) if grid else self.shared(offset), 4)
        if self.schedule.without != "barrier":
            self.barrier()
        if self.schedule.exchange == "cluster":
            for left in shown:
                self.push(left, parity_of(left))
            self.function_call("arrive", VOID, [])
        if grid:
            if self.schedule.without != "barrier":
                self.wait_for_group(turn)
            for left in shown:
                self.fetch(left, parity_of(left))
            self.barrier()

    def shown(self, left: int, value: Elements) -> Elements:
        """Writes a value as float32, with zeros in padded units. NaN becomes one that rounding to tf32 keeps:
        a GPU's own has all bits set, to which one more cannot be added.
        """
        found, size = list[Value](), self.step.size(left)
        for unit, each in zip(self.units, value, strict=True):
            each, is_unit = converted(self, each, self.step.dtype(left), "float32"), self.is_unit(size, unit)
            is_nan = self.fcmp_unordered("!=", each, each)
            each = self.select(is_nan, ir.Constant(F32, float("nan")), each)
            found.append(each if is_unit is None else self.select(is_unit, each, ir.Constant(F32, 0.0)))
        return found

    def wait_for_group(self, turn: Value) -> None:
        """Writes a barrier of all blocks of the group: each counts itself, and waits until all have."""
        counter = self.at(self.pointer("scratch"), self.mul(self.group, self.number(self.shape.scratch)))
        goal = self.low(self.mul(self.add(turn, self.number(1)), self.number(self.schedule.blocks)))
        with self.when(self.icmp_signed("==", self.thread, self.number(0))):
            self.function_call("release", VOID, [counter])
            with self.loop_while(
                lambda: self.icmp_signed("<", self.function_call("acquire", I32, [counter]), goal)
            ):
                pass
        self.barrier()

    def fetch(self, left: int, parity: Value) -> None:
        """Writes the copy of a left operand from the memory of the group to shared memory."""
        first = self.state_offset(left, parity, self.number(0), self.number(0))

        def copy(pieces: list[Value]) -> None:
            """Writes the copy of some pieces of 16 bytes, all of which are read first."""
            offsets = [self.add(first, self.mul(piece, self.number(16))) for piece in pieces]
            read = [self.function_call("from_cache", FOUR, [self.exchanged(offset)]) for offset in offsets]
            for offset, four in zip(offsets, read, strict=True):
                self.write(four, self.shared(offset), 16)

        self.by_pieces(self.shape.state_floats // 4, copy)

    def by_pieces(self, count: int, write: Callable[[list[Value]], None]) -> None:
        """Writes the code for a thread's pieces out of `count`, several at a time."""
        threads = self.shape.threads
        mine = [self.add(self.thread, self.number(threads * i)) for i in range(count // threads)]
        for begin in range(0, len(mine), AT_ONCE):
            write(mine[begin : begin + AT_ONCE])
        if count % threads:
            with self.when(self.icmp_signed("<", self.thread, self.number(count % threads))):
                write([self.add(self.thread, self.number(threads * len(mine)))])

    def tag(self, left: int, value: Elements, parity: Value, turn: Value) -> None:
        """Writes values to the memory of the group, each with the number of its exchange beside it."""
        mark = self.low(self.add(turn, self.number(1)))
        for e in range(self.shape.elements):
            offset = self.state_offset(left, parity, self.units[e], self.columns[e])
            self.function_call("write_tagged", VOID, [self.exchanged(offset), value[e], mark])

    def fetch_tagged(self, left: int, parity: Value, turn: Value) -> None:
        """Writes the copy of a left operand to shared memory, of values whose tags say they are there."""
        mark = self.low(self.add(turn, self.number(1)))
        first = self.state_offset(left, parity, self.number(0), self.number(0))

        def copy(pieces: list[Value]) -> None:
            """Writes the copy of some pairs of values, which are read again until all of them have come."""
            offsets = [self.add(first, self.mul(piece, self.number(8))) for piece in pieces]
            read, again, after = (self.append_basic_block(name) for name in ("read", "again", "come"))
            self.branch(read)
            self.position_at_end(read)
            pairs = [self.function_call("read_tagged", QUAD, [self.exchanged(offset)]) for offset in offsets]
            come: Value = ir.Constant(I1, 1)
            for pair in pairs:
                for place in (1, 3):
                    tag = self.bitcast(self.extract_value(pair, place), I32)
                    come = self.and_(come, self.icmp_signed("==", tag, mark))
            self.cbranch(come, after, again)
            self.position_at_end(again)
            self.function_call("pause", VOID, [])
            self.branch(read)
            self.position_at_end(after)
            for offset, pair in zip(offsets, pairs, strict=True):
                for place in (0, 1):
                    value = self.extract_value(pair, 2 * place)
                    self.write(value, self.shared(self.add(offset, self.number(4 * place))), 4)

        self.by_pieces(self.shape.state_floats // 2, copy)

    def push(self, left: int, parity: Value) -> None:
        """Writes the copy of the block's own share of a left operand to the shared memory of the other
        blocks.
        """
        number, blocks = self.number, self.schedule.blocks
        pieces = self.shape.state_floats // 4 // blocks
        own = self.mul(self.share, number(self.shape.tiles * UNITS))
        share = self.state_offset(left, parity, own, number(0))
        with self.loop(self.thread, number(pieces * (blocks - 1)), self.shape.threads) as i:
            piece, other = self.srem(i, number(pieces)), self.sdiv(i, number(pieces))
            rank = self.srem(self.add(self.share, self.add(other, number(1))), number(blocks))
            offset = self.add(share, self.mul(piece, number(16)))
            four = self.read(FOUR, self.shared(offset), 16)
            self.function_call("write_to", VOID, [self.low(rank), self.low(offset), four])

    def wait_for_cluster(self, lefts: Sequence[int]) -> None:
        """Writes the wait for what all blocks of the cluster have written, if there is a cluster."""
        if self.schedule.exchange == "cluster" and lefts:
            self.function_call("wait", VOID, [])
