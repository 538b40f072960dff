"""Kernels of matrix products: out[rows, columns] = the sum over terms of left @ right.

    tile        of the result, for a block: both sides of some k at a time lie in shared memory, and those of
                the next k are on their way from main memory meanwhile
    part        `PART` k of a term: a sum of its own; the result is the sum of all parts, in order
    split       the parts of a tile by different blocks, which `joined` adds up in the same order; else a
                block adds one after the other to the result, which then has the dtype of sums

So the bits of a number depend on its row, its column and k, but not on how many rows there are, nor on the
tile and whether the parts are split, which are chosen by the number of rows.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I1, POINTER
from stepnet.compiler.targets.cuda.arrays.memory import THREADS
from stepnet.compiler.targets.cuda.arrays.numbers_code import KernelNumbers
from stepnet.compiler.targets.cuda.arrays.product_form import DEPTH, PADDING, PART, ProductForm
from stepnet.compiler.targets.cuda.arrays.product_shares import (
    PlainShare,
    TensorShare,
    ThreadShare,
    has_small,
    size_of,
    split,
)
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.writer import KernelWriter
from stepnet.compiler.values.records import dataclass

Place = tuple[ir.Value, ir.Value]
"""A value for each side: a row and a column, or where both lie."""


def side_words(terms: int) -> list[str]:
    """Returns the arguments of each term: its sides, its k, and the number of its first part."""
    return [f"{name}{term}" for term in range(terms) for name in ("left", "right", "depth", "part")]


def product(form: ProductForm) -> DeviceCode:
    """Writes the kernel of a product: `target`, `rows`, `columns`, `parts`, and the `side_words`."""
    arguments = ["target", "rows", "columns", "parts", *side_words(form.terms)]
    writer = KernelWriter(f"product of {form.left} and {form.right}, {form.way}", arguments)
    return ProductWriter(form, writer, KernelNumbers(writer, form.dtype)).finished()


@dataclass(frozen=True)
class ProductPart:
    """A part of a term, for a kernel: where the sides lie, how many k there are, and which are the part's."""

    left: ir.Value
    right: ir.Value
    depth: ir.Value
    begin: ir.Value
    end: ir.Value


@dataclass(frozen=True)
class ProductWriter:
    """Writer of the kernel of a product."""

    form: ProductForm
    writer: KernelWriter
    numbers: KernelNumbers

    @property
    def share(self) -> ThreadShare:
        """The share of a thread in a tile."""
        if self.form.is_plain:
            return PlainShare(self.numbers, self.form.tile)
        return TensorShare(self.numbers, self.form.tile, self.form.way)

    @property
    def sizes(self) -> tuple[int, int]:
        """The bytes of both sides in shared memory, for one of the two buffers."""
        tile, size = self.form.tile, size_of(self.numbers)
        return tile.depth * (tile.rows + PADDING) * size, tile.depth * (tile.columns + PADDING) * size

    def finished(self) -> DeviceCode:
        """Writes the whole kernel: a loop over tiles, and with split parts over the parts of each."""
        writer, tile, one = self.writer, self.form.tile, self.writer.number(1)
        across, down = (
            self.tiles(name, size) for name, size in (("columns", tile.columns), ("rows", tile.rows))
        )
        parts = writer.word("parts") if self.form.is_split else one
        units = writer.mul(writer.mul(across, down), parts)
        with writer.loop(writer.block_index, units, writer.blocks) as unit:
            place = writer.sdiv(unit, parts)
            first_part = writer.sub(unit, writer.mul(place, parts))
            row = writer.sdiv(place, across)
            column = writer.mul(writer.sub(place, writer.mul(row, across)), writer.number(tile.columns))
            row = writer.mul(row, writer.number(tile.rows))
            self.keep_place(row, column)
            stop = one if self.form.is_split else writer.word("parts")

            def part(index: ir.Value, flags: list[ir.Value]) -> list[ir.Value]:
                """Writes a part, and whether a number of it or of one before is NaN."""
                sums = self.part_sums(self.term(writer.add(first_part, index)), row, column)
                place = self.kept_place()
                is_first = writer.icmp_signed("==", index, writer.number(0))
                with writer.if_else(is_first) as (then, otherwise):
                    with then:
                        self.write_tile(sums, place, first_part, is_added=False)
                    with otherwise:
                        self.write_tile(sums, place, first_part, is_added=True)
                if not has_small(self.form.way):
                    return []
                return [reduce(writer.or_, flags + [writer.fcmp_unordered("uno", x, x) for x in sums])]

            flags = writer.carry(0, stop, [ir.Constant(I1, 0)] if has_small(self.form.way) else [], part)
            for flag in flags:
                with writer.when(flag):
                    self.write_again(self.kept_place(), first_part)
        return writer.finished(self.form.threads, shared=2 * sum(self.sizes) + 16 * self.form.threads)

    def tiles(self, name: str, size: int) -> ir.Value:
        """Writes the number of tiles along an axis."""
        more = self.writer.add(self.writer.word(name), self.writer.number(size - 1))
        return self.writer.sdiv(more, self.writer.number(size))

    def term(self, part: ir.Value) -> ProductPart:
        """Writes which term a part is of, and where it begins and ends: terms come one after the other."""
        writer = self.writer
        names = "left", "right", "depth", "part"
        values = [writer.word(f"{name}0") for name in names]
        for index in range(1, self.form.terms):
            others = [writer.word(f"{name}{index}") for name in names]
            is_this = writer.icmp_signed(">=", part, others[-1])
            values = [writer.select(is_this, b, a) for a, b in zip(values, others, strict=True)]
        left, right, depth, first = values
        begin = writer.mul(writer.sub(part, first), writer.number(PART))
        end = writer.smaller(writer.add(begin, writer.number(PART)), depth)
        left, right = (writer.function_call("in_main", POINTER, [address]) for address in (left, right))
        return ProductPart(left, right, depth, begin, end)

    # ---- a part

    def part_sums(self, term: ProductPart, row: ir.Value, column: ir.Value) -> list[ir.Value]:
        """Writes the sums over the k of a part, for the numbers of a thread in the tile at a row and a
        column. The sides of the next k are loaded before the present ones are multiplied.
        """
        writer, depth, zero = self.writer, self.form.tile.depth, self.writer.number(0)
        load = self.loads(term, row, column)
        staged = load(term.begin)
        self.put_down(staged, zero)
        writer.barrier()

        def turn(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            """Writes the products of the k that lie in shared memory."""
            k = writer.add(term.begin, index)
            buffer = writer.and_(writer.lshr(index, writer.number(depth.bit_length() - 1)), writer.number(1))
            following = load(writer.add(k, writer.number(depth)))
            made = writer.carry(0, depth // DEPTH, sums, partial(self.added, self.buffers(buffer)))
            self.put_down(following, writer.sub(writer.number(1), buffer))
            writer.barrier()
            return made

        length = writer.sub(term.end, term.begin)
        initial: list[ir.Value] = [self.numbers.zero] * self.share.count
        return writer.carry(0, length, initial, turn, step=depth, runs=True)

    def added(self, sides: Place, index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Writes the sums with the products of `DEPTH` k of those in shared memory. index: its number among
        them.
        """
        writer, depth = self.writer, self.form.tile.depth
        left, right = (
            writer.at(side, writer.mul(index, writer.number(size * DEPTH // depth)))
            for side, size in zip(sides, self.sizes, strict=True)
        )
        return self.share.added(left, right, sums)

    def buffers(self, buffer: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Writes where the two sides of a buffer lie in shared memory."""
        left, right = self.sizes
        first = self.writer.shared(self.writer.mul(buffer, self.writer.number(left + right)))
        return first, self.writer.at(first, left)

    def loads(
        self, term: ProductPart, row: ir.Value, column: ir.Value
    ) -> Callable[[ir.Value], list[ir.Value]]:
        """Writes where the thread's numbers of both sides lie; returns the function that writes loads of
        those from a k on. Beyond the rows and columns it loads others, whose results are not written; beyond
        the k of the part it takes zeros.
        """
        writer, form = self.writer, self.form
        sides = [
            (form.left, term.left, form.tile.rows, row, writer.word("rows"), form.is_transposed),
            (form.right, term.right, form.tile.columns, column, writer.word("columns"), True),
        ]
        places = list[tuple[str, ir.Value, ir.Value, ir.Value, ir.Value]]()
        for dtype, pointer, width, first, count, is_by_k in sides:
            last = writer.sub(count, writer.number(1))
            for k, index in self.shared_out(width, is_by_k):
                line = writer.smaller(writer.add(first, index), last)
                stride, start = (count, line) if is_by_k else (writer.number(1), writer.mul(line, term.depth))
                places.append((dtype, pointer, k, stride, start))

        def load(begin: ir.Value) -> list[ir.Value]:
            """Writes the loads of the k from `begin` on."""
            made = list[ir.Value]()
            for dtype, pointer, k, stride, start in places:
                there = writer.add(begin, k)
                inside = writer.icmp_signed("<", there, term.end)
                there = writer.select(inside, there, term.begin)
                value = self.numbers.read(dtype, pointer, writer.add(start, writer.mul(there, stride)))
                if form.way == "rounded":
                    value = self.numbers.rounded(value)
                made.append(writer.select(inside, value, self.numbers.zero))
            return made

        return load

    def shared_out(self, width: int, is_by_k: bool) -> list[tuple[ir.Value, ir.Value]]:
        """Writes the k and the row or column of each number of a side that the thread loads.

        width: the rows or columns. is_by_k: whether neighbours in memory have the same k.
        """
        writer, made = self.writer, list[tuple[ir.Value, ir.Value]]()
        inner = width if is_by_k else self.form.tile.depth
        first, low = split(writer, writer.thread, inner)
        for number in range(width * self.form.tile.depth // self.form.threads):
            high = writer.add(first, writer.number(number * self.form.threads // inner))
            made.append((high, low) if is_by_k else (low, high))
        return made

    def put_down(self, staged: Sequence[ir.Value], buffer: ir.Value) -> None:
        """Writes stores of the loaded numbers to a buffer in shared memory."""
        writer, tile = self.writer, self.form.tile
        sides = self.buffers(buffer)
        values = iter(staged)
        for side, width, is_by_k in (
            (sides[0], tile.rows, self.form.is_transposed),
            (sides[1], tile.columns, True),
        ):
            for k, index in self.shared_out(width, is_by_k):
                place = writer.add(writer.mul(k, writer.number(width + PADDING)), index)
                self.numbers.write(self.form.dtype, next(values), side, place)

    # ---- results

    def keep_place(self, row: ir.Value, column: ir.Value) -> None:
        """Writes stores of where the tile begins, in the thread's own shared memory: what follows from it is
        then computed when results are written, and takes no registers while they are computed.
        """
        for number, value in enumerate((row, column)):
            self.writer.write_number(value, self.places, self.writer.number(number))

    def kept_place(self) -> Place:
        """Writes loads of where the tile begins."""
        row, column = (self.writer.read_number(self.places, self.writer.number(number)) for number in (0, 1))
        return row, column

    @property
    def places(self) -> ir.Value:
        """The thread's own shared memory."""
        return self.writer.shared(
            self.writer.add(
                self.writer.number(2 * sum(self.sizes)),
                self.writer.mul(self.writer.thread, self.writer.number(16)),
            )
        )

    def write_tile(self, sums: Sequence[ir.Value], corner: Place, part: ir.Value, *, is_added: bool) -> None:
        """Writes stores of the thread's numbers that lie within the result. is_added: whether they are added
        to the sums of the parts before, which lie there.
        """
        writer, pointer = self.writer, self.writer.pointer("target")
        for number, value in enumerate(sums):
            there, here, inside = self.place(writer.number(number), corner)
            with writer.when(inside):
                index, total = self.index(there, here, part), value
                if is_added:
                    total = self.numbers.sum(self.numbers.read(self.target, pointer, index), value)
                self.numbers.write(self.target, total, pointer, index)

    @property
    def target(self) -> str:
        """The dtype of the array that is filled."""
        return self.form.dtype if self.form.is_split else self.form.target

    def place(self, number: ir.Value, corner: Place) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Writes the row and the column of a number of the thread, and whether they lie within the result.
        corner: the row and the column where the tile begins.
        """
        writer, (down, across) = self.writer, self.share.place(number)
        there, here = writer.add(corner[0], down), writer.add(corner[1], across)
        inside = writer.icmp_signed("<", there, writer.word("rows"))
        return there, here, writer.and_(inside, writer.icmp_signed("<", here, writer.word("columns")))

    def index(self, row: ir.Value, column: ir.Value, part: ir.Value) -> ir.Value:
        """Writes where a number lies in the array that is filled."""
        writer = self.writer
        line = writer.add(writer.mul(part, writer.word("rows")), row) if self.form.is_split else row
        return writer.add(writer.mul(line, writer.word("columns")), column)

    def write_again(self, corner: Place, part: ir.Value) -> None:
        """Writes the thread's numbers that are NaN again, from products of the plain units. A float32 number
        is multiplied as a tf32 number plus the rest, and infinity times a rest of 0 is NaN, though the
        product is not.
        """
        writer, zero = self.writer, self.writer.number(0)
        with writer.loop(zero, writer.number(self.share.count)) as number:
            there, here, inside = self.place(number, corner)
            place = self.index(writer.select(inside, there, zero), writer.select(inside, here, zero), part)
            found = self.numbers.read(self.target, writer.pointer("target"), place)
            with writer.when(writer.and_(inside, writer.fcmp_unordered("uno", found, found))):

                def turn(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
                    """Writes the sum with a part."""
                    sum_ = self.plain_sum(self.term(writer.add(part, index)), there, here)
                    return [self.numbers.sum(totals[0], sum_)]

                stop = writer.number(1) if self.form.is_split else writer.word("parts")
                (total,) = writer.carry(0, stop, [self.numbers.nothing], turn)
                self.numbers.write(self.target, total, writer.pointer("target"), place)

    def plain_sum(self, term: ProductPart, row: ir.Value, column: ir.Value) -> ir.Value:
        """Writes a number of a part from products of the plain units, one after another."""
        writer, form = self.writer, self.form

        def turn(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            """Writes the sum with a product."""
            k = writer.add(term.begin, index)
            line, stride = (k, writer.word("rows")) if form.is_transposed else (row, term.depth)
            there = writer.add(writer.mul(line, stride), row if form.is_transposed else k)
            here = writer.add(writer.mul(k, writer.word("columns")), column)
            left = self.numbers.read(form.left, term.left, there)
            return [
                self.numbers.multiply_add(left, self.numbers.read(form.right, term.right, here), totals[0])
            ]

        return writer.carry(0, writer.sub(term.end, term.begin), [self.numbers.zero], turn)[0]


def joined(dtype: str, target: str) -> DeviceCode:
    """Writes the kernel that adds up the parts of a product, in order.

    Its arguments: `made` [count], `source` [parts, count], `parts`, `count`. dtype, target: those of the
    parts and of the result.
    """
    writer = KernelWriter(f"sums of parts of {dtype}", ["made", "source", "parts", "count"])
    numbers, count = KernelNumbers(writer, dtype), writer.word("count")
    with writer.over_all(count) as place:

        def turn(part: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            """Writes the sum with a part."""
            index = writer.add(writer.mul(part, count), place)
            return [numbers.sum(totals[0], numbers.read(dtype, writer.pointer("source"), index))]

        (total,) = writer.carry(0, writer.word("parts"), [numbers.nothing], turn)
        numbers.write(target, total, writer.pointer("made"), place)
    return writer.finished(THREADS)
