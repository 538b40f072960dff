"""Writes the exchanges of a loop on tensor cores, by which all warps of a group see all units' values."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I1, I32
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.functions import F32, FOUR, QUAD
from stepnet.compiler.targets.cuda.tensor.places import Elements, PlacesWriter, elements
from stepnet.compiler.targets.cuda.tensor.shape import SUMMED
from stepnet.compiler.targets.cuda.writer import VOID, Value

LOWER = ir.Constant(I32, 0xFFFF)
"""The bits of the number of an exchange that stand beside a value of 16 bits. That they begin anew does no
harm: a value that is replaced has the number of an exchange shortly before.
"""
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
            with self.by_owners():
                for left, value in shown.items():
                    with self.by_publishers(left):
                        self.tag(left, value, parity_of(left), turn)
            for left in shown:
                self.fetch_tagged(left, parity_of(left), turn)
            self.barrier()
            return
        grid = self.schedule.exchange == "grid"
        size = 2 if self.shape.is_packed else 4
        with self.by_owners():
            for left, value in shown.items():
                with self.by_publishers(left):
                    for e in range(self.shape.elements):
                        place = left, parity_of(left), self.published_unit(left, e), self.columns[e]
                        there = self.exchanged(self.state_offset(*place)) if grid else self.state(*place)
                        self.write(value[e], there, size)
        if self.schedule.without != "barrier":
            self.barrier()
        if self.schedule.exchange == "cluster":
            for left in shown:
                self.push(left, parity_of(left))
            self.function_call("arrive", VOID, [])
        if grid:
            if self.schedule.without != "barrier":
                self.wait_for_group(turn)
            staged = [left for left in shown if left in self.shape.staged]
            for left in staged:
                self.fetch(left, parity_of(left))
            if staged:
                self.barrier()

    def shown(self, left: int, value: Elements) -> Elements:
        """Writes a value as it is exchanged, with zeros in padded units, or sums of its units. As float32 NaN
        becomes one that rounding to tf32 keeps, where tensor cores multiply: a GPU's own has all bits set, to
        which one more cannot be added.
        """
        found, size = list[Value](), self.step.size(left)
        for unit, each in zip(self.units, value, strict=True):
            each, is_unit = converted(self, each, self.step.dtype(left), "float32"), self.is_unit(size, unit)
            each = each if is_unit is None else self.select(is_unit, each, ir.Constant(F32, 0.0))
            if left in self.shape.summed:
                for lanes in (16, 8, 4):  # lanes with the same remainder by 4 have the same sequence
                    other = self.function_call("shuffle_down_float32", F32, [each, ir.Constant(I32, lanes)])
                    each = self.fadd(each, other)
            if not self.shape.is_plain:
                is_nan = self.fcmp_unordered("!=", each, each)
                each = self.select(is_nan, ir.Constant(F32, float("nan")), each)
            found.append(converted(self, each, "float32", self.schedule.states))
        return found

    @contextmanager
    def by_publishers(self, left: int) -> Generator[None]:
        """Context in which code is written for the lanes that publish a left operand."""
        if left in self.shape.summed:
            with self.when(self.icmp_signed("==", self.quad, self.number(0))):
                yield
        else:
            yield

    def published_unit(self, left: int, element: int) -> Value:
        """Writes the unit, or the number of the sum of units, that an element is published as."""
        unit = self.units[element]
        return self.sdiv(unit, self.number(SUMMED)) if left in self.shape.summed else unit

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
        own = self.shared_offset(left, parity, self.number(0), self.number(0))

        def copy(pieces: list[Value]) -> None:
            """Writes the copy of some pieces of 16 bytes, all of which are read first."""
            offsets = [self.mul(piece, self.number(16)) for piece in pieces]
            there = [self.exchanged(self.add(first, offset)) for offset in offsets]
            read = [self.function_call("from_cache", FOUR, [place]) for place in there]
            for offset, four in zip(offsets, read, strict=True):
                self.write(four, self.shared(self.add(own, offset)), 16)

        self.by_pieces(self.shape.published_bytes(left) // 16, copy)

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
            unit = self.published_unit(left, e)
            place = self.exchanged(self.state_offset(left, parity, unit, self.columns[e]))
            if self.shape.is_packed:  # a word has a number, and the lower half of the mark
                number = self.shl(self.zext(value[e], I32), ir.Constant(I32, 16))
                word = self.or_(number, self.and_(mark, LOWER))
                self.function_call("write_word", VOID, [place, word])
            else:
                self.function_call("write_tagged", VOID, [place, value[e], mark])

    def fetch_tagged(self, left: int, parity: Value, turn: Value) -> None:
        """Writes the copy of a left operand to shared memory, of values whose tags say they are there."""
        mark = self.low(self.add(turn, self.number(1)))
        first = self.state_offset(left, parity, self.number(0), self.number(0))
        own = self.shared_offset(left, parity, self.number(0), self.number(0))

        def copy(pieces: list[Value]) -> None:
            """Writes the copy of some pieces of 16 bytes, which are read again until all have come."""
            offsets = [self.mul(piece, self.number(8)) for piece in pieces]
            come = self.come([self.add(first, offset) for offset in offsets], mark)
            for offset, words in zip(offsets, come, strict=True):
                for place, word in enumerate(words):
                    at = self.add(self.add(own, offset), self.number(4 * place))
                    self.write(word, self.shared(at), 4)

        self.by_pieces(self.shape.published_bytes(left) // 8, copy)

    def come(self, offsets: Sequence[Value], mark: Value) -> list[Elements]:
        """Writes reads of 16 bytes of tagged values at offsets among the states in the memory of the group,
        again and again until the tags of all are the mark; returns the two words of values of each.
        """
        read, again, after = (self.append_basic_block(name) for name in ("read", "again", "come"))
        self.branch(read)
        self.position_at_end(read)
        tagged = [self.tagged_piece(self.exchanged(offset), mark) for offset in offsets]
        come: Value = ir.Constant(I1, 1)
        for _, has_come in tagged:
            come = self.and_(come, has_come)
        self.cbranch(come, after, again)
        self.position_at_end(again)
        self.function_call("pause", VOID, [])
        self.branch(read)
        self.position_at_end(after)
        return [words for words, _ in tagged]

    def read_direct(self, left: int, parity: Value, operands: Sequence[Value]) -> list[Elements]:
        """Writes reads of the thread's numbers of left operands from the second cache, where other blocks
        have published them.
        """
        found = list[Elements]()
        for operand in operands:
            numbers = list[Value]()
            for place in range(0, self.shape.abreast * self.shape.fragment(left) // 4, 4):
                offset = self.read_offset(left, parity, operand, self.number(place), self.lane)
                four = self.function_call("from_cache", FOUR, [self.exchanged(offset)])
                numbers += [self.extract_element(four, ir.Constant(I32, n)) for n in range(4)]
            found.append(numbers)
        return found

    def tagged_piece(self, address: Value, mark: Value) -> tuple[Elements, Value]:
        """Writes a read of 16 tagged bytes; returns two words of values, and whether their tags match."""
        if self.shape.is_packed:
            four = self.function_call("from_cache", FOUR, [address])
            found = [self.extract_element(four, ir.Constant(I32, n)) for n in range(4)]
            tags = [self.and_(self.bitcast(word, I32), LOWER) for word in found]
            words = elements(self.function_call("pack_cut", F32, found[n : n + 2]) for n in (0, 2))
            mark = self.and_(mark, LOWER)
        else:
            pair = self.function_call("read_tagged", QUAD, [address])
            words = elements(self.extract_value(pair, n) for n in (0, 2))
            tags = [self.bitcast(self.extract_value(pair, n), I32) for n in (1, 3)]
        come: Value = ir.Constant(I1, 1)
        for tag in tags:
            come = self.and_(come, self.icmp_signed("==", tag, mark))
        return words, come

    def push(self, left: int, parity: Value) -> None:
        """Writes the copy of the block's share of a left operand to the shared memory of other blocks."""
        number, blocks = self.number, self.schedule.blocks
        pieces = self.shape.published_bytes(left) // 16 // blocks
        own = self.mul(self.share, number(self.shape.published(left) // blocks))
        share = self.shared_offset(left, parity, own, number(0))
        with self.loop(self.thread, number(pieces * (blocks - 1)), self.shape.threads) as i:
            piece, other = self.srem(i, number(pieces)), self.sdiv(i, number(pieces))
            rank = self.srem(self.add(self.share, self.add(other, number(1))), number(blocks))
            offset = self.add(share, self.mul(piece, number(16)))
            four = self.read(FOUR, self.shared(offset), 16)
            self.function_call("write_to", VOID, [self.low(rank), self.low(offset), four])

    def wait_for_cluster(self, lefts: Sequence[int]) -> None:
        """Writes the wait for the writes of all blocks of the cluster, if there is a cluster."""
        if self.schedule.exchange == "cluster" and lefts:
            self.function_call("wait", VOID, [])
