"""Writes the exchanges of a kernel: how all warps of a group see the values of all units."""

from collections.abc import Callable, Sequence

from llvmlite import ir

from bench.gpu.addresses import Addresses, Elements, Value
from bench.gpu.device_functions import FOUR, QUAD, VOID
from bench.gpu.inputs import COUNTER_BYTES
from bench.gpu.shape import UNITS
from stepnet.compiler.targets.cpu.writing.code import I1, I32

AT_ONCE = 8
"""The pieces of 16 bytes that a thread reads from the second cache before it writes them to shared memory."""


class Exchanges(Addresses):
    """Writer of exchanges: through shared memory, the second cache, or the shared memory of a cluster."""

    def publish(self, values: dict[int, Elements], parity_of: Callable[[int], Value], turn: Value) -> None:
        """Writes the exchange that makes values of all units visible to all warps of the group.

        parity_of: for a left operand, which of its two places they go to. turn: the exchanges before this
        one.
        """
        if not values:  # a step without products needs no barrier
            return
        code = self.code
        if self.schedule.exchange == "tagged":
            for left, value in values.items():
                self.tag(left, value, parity_of(left), turn)
            for left in values:
                self.fetch_tagged(left, parity_of(left), turn)
            self.call("barrier", VOID)
            return
        for left, value in values.items():
            for e in range(self.shape.elements):
                offset = self.state_offset(left, parity_of(left), self.units[e], self.rows[e])
                grid = self.schedule.exchange == "grid"
                code.write(value[e], self.exchanged(offset) if grid else code.at(self.shared, offset), 4)
        if self.schedule.without != "barrier":
            self.call("barrier", VOID)
        if self.schedule.exchange == "cluster":
            for left in values:
                self.spread(left, parity_of(left))
            self.call("arrive", VOID)
        if self.schedule.exchange == "grid":
            if self.schedule.without != "barrier":
                self.wait_for_group(turn)
            for left in values:
                self.fetch(left, parity_of(left))
            self.call("barrier", VOID)

    def wait_for_group(self, turn: Value) -> None:
        """Writes a barrier of all blocks of the group: each counts itself, and waits until all have."""
        code = self.code
        counter = code.at(self.arrays["counters"], code.mul(self.group, code.number(COUNTER_BYTES)))
        goal = code.trunc(code.mul(code.add(turn, code.number(1)), code.number(self.schedule.blocks)), I32)
        with code.when(code.icmp_signed("==", self.thread, code.number(0))):
            self.call("release", VOID, counter)
            with code.loop_while(lambda: code.icmp_signed("<", self.call("acquire", I32, counter), goal)):
                pass
        self.call("barrier", VOID)

    def fetch(self, left: int, parity: Value) -> None:
        """Writes the copy of a left operand from the memory of the group to shared memory."""
        first = self.state_offset(left, parity, self.code.number(0), self.code.number(0))

        def copy(pieces: list[Value]) -> None:
            """Writes the copy of some pieces of 16 bytes, all of which are read first."""
            offsets = [self.code.add(first, self.code.mul(piece, self.code.number(16))) for piece in pieces]
            read = [self.call("from_cache", FOUR, self.exchanged(offset)) for offset in offsets]
            for offset, four in zip(offsets, read, strict=True):
                self.code.write(four, self.code.at(self.shared, offset), 16)

        self.by_pieces(self.shape.state_floats // 4, copy)

    def by_pieces(self, count: int, write: Callable[[list[Value]], None]) -> None:
        """Writes the code for a thread's pieces out of `count`, several at a time."""
        code, threads = self.code, self.shape.threads
        mine = [code.add(self.thread, code.number(threads * i)) for i in range(count // threads)]
        for begin in range(0, len(mine), AT_ONCE):
            write(mine[begin : begin + AT_ONCE])
        if count % threads:
            with code.when(code.icmp_signed("<", self.thread, code.number(count % threads))):
                write([code.add(self.thread, code.number(threads * len(mine)))])

    def tag(self, left: int, value: Elements, parity: Value, turn: Value) -> None:
        """Writes values to the memory of the group, each with the number of its exchange beside it."""
        mark = self.code.trunc(self.code.add(turn, self.code.number(1)), I32)
        for e in range(self.shape.elements):
            offset = self.state_offset(left, parity, self.units[e], self.rows[e])
            self.call("write_tagged", VOID, self.exchanged(offset), value[e], mark)

    def fetch_tagged(self, left: int, parity: Value, turn: Value) -> None:
        """Writes the copy of a left operand to shared memory, of values whose tags say they are there."""
        code = self.code
        mark = code.trunc(code.add(turn, code.number(1)), I32)
        first = self.state_offset(left, parity, code.number(0), code.number(0))

        def copy(pieces: list[Value]) -> None:
            """Writes the copy of some pairs of values, which are read again until all of them have come."""
            offsets = [code.add(first, code.mul(piece, code.number(8))) for piece in pieces]
            read, again, after = (code.append_basic_block(name) for name in ("read", "again", "come"))
            code.branch(read)
            code.position_at_end(read)
            pairs = [self.call("read_tagged", QUAD, self.exchanged(offset)) for offset in offsets]
            come: Value = ir.Constant(I1, 1)
            for pair in pairs:
                for place in (1, 3):
                    tag = code.bitcast(code.extract_value(pair, place), I32)
                    come = code.and_(come, code.icmp_signed("==", tag, mark))
            code.cbranch(come, after, again)
            code.position_at_end(again)
            self.call("pause", VOID)
            code.branch(read)
            code.position_at_end(after)
            for offset, pair in zip(offsets, pairs, strict=True):
                for place in (0, 1):
                    value = code.extract_value(pair, 2 * place)
                    code.write(value, code.at(self.shared, code.add(offset, code.number(4 * place))), 4)

        self.by_pieces(self.shape.state_floats // 2, copy)

    def spread(self, left: int, parity: Value) -> None:
        """Writes the copy of the block's own share of a left operand to the shared memory of the other
        blocks.
        """
        code, number = self.code, self.code.number
        pieces = self.shape.state_floats // 4 // self.schedule.blocks
        share = self.state_offset(
            left, parity, code.mul(self.share, number(self.shape.tiles * UNITS)), number(0)
        )
        with code.loop(self.thread, number(pieces * (self.schedule.blocks - 1)), self.shape.threads) as i:
            piece, other = code.srem(i, number(pieces)), code.sdiv(i, number(pieces))
            rank = code.srem(code.add(self.share, code.add(other, number(1))), number(self.schedule.blocks))
            offset = code.add(share, code.mul(piece, number(16)))
            four = code.read(FOUR, code.at(self.shared, offset), 16)
            self.call("write_to", VOID, code.trunc(rank, I32), code.trunc(offset, I32), four)

    def wait_for_cluster(self, lefts: Sequence[int]) -> None:
        """Writes the wait for what all blocks of the cluster have written, if there is a cluster."""
        if self.schedule.exchange == "cluster" and lefts:
            self.call("wait", VOID)
