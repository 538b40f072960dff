"""Products of an entry: a thread computes a column of each matrix for several rows of the block.

    thread 0    rows 0, 1, 2, 3 @ column 0 of R, of Z, of N
    thread 1    rows 0, 1, 2, 3 @ column 1 of R, of Z, of N
    ...

Each sum is one chain of fused multiply-adds over k, so that its bits depend neither on the number of threads
nor on that of rows. Weights are read once for all rows of a block.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from llvmlite import ir

from stepnet.compiler.net.encodings import LARGEST, SMALLEST
from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import I1, I32, integer, is_float
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.elements import (
    ElementWriter,
    RowOfThread,
    RowShare,
    ValueSlot,
    literal_of,
    zero,
)
from stepnet.compiler.targets.cuda.entries.places import Place, PlaceWriter, over_lanes
from stepnet.compiler.targets.cuda.entries.statements import Statement, is_by_warps
from stepnet.compiler.values.records import dataclass

Value = ir.Value
MOST_SUMS = 32
"""The most sums of products that a thread has in registers."""
ABREAST = 8, 4, 2, 1
"""The numbers of rows for which a thread may compute a column at a time."""
UNROLLED = 8
"""The elements of a sum of products in one turn of the loop."""
Convert = Callable[[PlaceWriter, Value], Value]


@dataclass(frozen=True)
class Port:
    """A sum of products: its right sides, one for each left side, and the place of its value."""

    rights: tuple[int, ...]
    slot: ValueSlot


@dataclass(frozen=True)
class Vector:
    """A vector of a left side: its row of the block, and its number among the vectors of the row."""

    row: Value
    place: Value


def rounded(code: PlaceWriter, value: Value) -> Value:
    """Writes the rounding of a float to bfloat16, in its own dtype."""
    dtype = "float64" if isinstance(value.type, ir.DoubleType) else "float32"
    return converted(code, converted(code, value, dtype, "bfloat16"), "bfloat16", dtype)


def unchanged(code: PlaceWriter, value: Value) -> Value:
    """Returns a value unchanged."""
    return value


SIDES: dict[str | None, tuple[Convert, Convert]] = {
    None: (unchanged, unchanged),
    "bfloat16": (rounded, rounded),
    "stored": (unchanged, rounded),
}
"""For each encoding without scales what is done to an element of the left and of the right side."""


class ColumnWriter:
    """Writer of the products of one node for one or more of its results.

    writer: of the entry. share: how the threads share the rows of the block. scales: for each left side of
    int8 products the factors and the scales of its vectors.
    """

    def __init__(
        self, writer: ElementWriter, share: RowShare, scales: Mapping[int, list[ValueSlot]], row: RowOfThread
    ) -> None:
        """Takes the writer of the entry, and the row of the thread."""
        self.writer, self.code, self.net = writer, writer.code, writer.net
        self.share, self.scales, self.row = share, scales, row

    def write(self, together: list[Statement]) -> None:
        """Writes the sums of products of some results of a node, which have one size."""
        net, slots = self.net, self.writer.slots
        nodes = [net.nodes[statement.number] for statement in together]
        result = nodes[0]
        product = net.nodes[result.inputs[0]] if result.operation == "result" else result
        lefts, rights = product.sides
        ports = list[Port]()
        for statement, node in zip(together, nodes, strict=True):
            first = node.attributes.get("of", 0) * len(lefts)
            ports.append(Port(rights[first : first + len(lefts)], slots[statement.number]))
        if is_by_warps(net, result):
            for port in ports:
                self.by_warps(product, port, result)
        elif self.share.rows * result.type.size >= self.share.threads:
            self.by_columns(product, ports, result, 0)
        else:  # other threads for each
            for place, port in enumerate(ports):
                self.by_columns(product, [port], result, place * self.share.rows * result.type.size)

    def by_columns(self, product: Node, ports: list[Port], result: Node, before: int) -> None:
        """Writes some sums of products: a thread computes a column of each for several vectors.

        before: the columns that are computed at the same time by the threads ahead.
        """
        code, shape, dtype = self.code, result.type.shape, result.type.dtype
        columns, lead = shape[-1], prod(shape[:-1])
        vectors = self.share.rows * lead
        if not vectors * columns:
            return
        abreast = next(a for a in ABREAST if self.suits(a, vectors, columns, len(ports)))
        with code.loop(
            self.thread_behind(before), integer(vectors // abreast * columns), self.share.threads
        ) as index:
            chunk, column = code.divided(index, columns)
            chosen = [
                Vector(*code.divided(code.summed(code.multiplied(chunk, abreast), integer(place)), lead))
                for place in range(abreast)
            ]
            sums = [[zero(dtype)] * abreast for _ in ports]
            for place, left in enumerate(product.sides[0]):
                matrices = [port.rights[place] for port in ports]
                sums = self.term(product, left, matrices, chosen, column, sums, dtype)
            for port, totals in zip(ports, sums, strict=True):
                for vector, total in zip(chosen, totals, strict=True):
                    flat = code.summed(code.multiplied(vector.place, columns), column)
                    self.writer.write_slot(total, port.slot, vector.row, flat)

    def thread_behind(self, count: int) -> Value:
        """Writes this thread's number, counted from the first whole warp behind `count` threads."""
        code, threads = self.code, self.share.threads
        first = -(-count // LANES) * LANES % threads
        moved = code.add(code.thread, integer(threads - first))
        wraps = code.icmp_signed(">=", moved, integer(threads))
        return code.select(wraps, code.sub(moved, integer(threads)), moved) if first else code.thread

    def by_warps(self, product: Node, port: Port, result: Node) -> None:
        """Writes a sum of products with few results, each of which the lanes of a warp add up."""
        code, dtype = self.code, result.type.dtype
        of_left, of_right = SIDES[product.attributes.get("weights")]
        with code.warp_loop(self.share.first, result.type.size, self.share.per_row) as (lane, flat):
            place, column = code.divided(flat, result.type.shape[-1])
            vector, sums = Vector(self.row.place, place), [zero(dtype)]
            for left, right in zip(product.sides[0], port.rights, strict=True):

                def turn(k: Value, totals: list[Value], left: int = left, right: int = right) -> list[Value]:
                    """Writes one element of a lane's sum."""
                    self.writer.begin()
                    at = code.summed(k, lane)
                    element = of_left(code, self.of_vector(left, vector, at, dtype))
                    weight = of_right(code, self.of_matrix(right, at, column, dtype))
                    return [multiplied_and_added(code, element, weight, totals[0])]

                length = integer(self.net.type_of(left).shape[-1])
                sums = code.carry(0, code.sub(length, lane), sums, turn, step=LANES)
            self.writer.begin()
            (total,) = over_lanes(code, sums, lambda a, b: [added(code, a[0], b[0])])
            with code.when(code.icmp_signed("==", lane, integer(0))):
                self.writer.write_slot(total, port.slot, self.row.place, flat)

    def suits(self, abreast: int, vectors: int, columns: int, ports: int) -> bool:
        """Tells whether a thread should compute a column: all threads have work, and sums fit registers."""
        fits = vectors % abreast == 0 and ports * abreast <= MOST_SUMS
        return abreast == 1 or (fits and vectors // abreast * columns >= self.share.threads)

    def term(
        self,
        product: Node,
        left: int,
        rights: list[int],
        vectors: list[Vector],
        column: Value,
        sums: list[list[Value]],
        dtype: str,
    ) -> list[list[Value]]:
        """Writes the products of one left side with a column of some matrices, added to the sums of each."""
        weights = product.attributes.get("weights")
        if weights == "int8":
            return self.scaled_term(left, rights, vectors, column, sums, dtype)
        of_left, of_right = SIDES[weights]

        def values(k: Value) -> tuple[list[Value], list[Value]]:
            """Writes the elements k of the vectors and of the columns."""
            elements = [self.of_vector(left, vector, k, dtype) for vector in vectors]
            matrix = [self.of_matrix(right, k, column, dtype) for right in rights]
            return (
                [of_left(self.code, element) for element in elements],
                [of_right(self.code, element) for element in matrix],
            )

        return self.summed(left, values, sums, multiplied_and_added)

    def summed(
        self,
        left: int,
        values: Callable[[Value], tuple[list[Value], list[Value]]],
        sums: list[list[Value]],
        add: Callable[[PlaceWriter, Value, Value, Value], Value],
    ) -> list[list[Value]]:
        """Writes a loop over k that adds products to sums: for each matrix one for each vector.

        values: writes the elements of the vectors and of the matrices. add: writes a * b + sum.
        """
        code, length = self.code, self.net.type_of(left).shape[-1]
        abreast = len(sums[0])

        def turn(k: Value, totals: list[Value]) -> list[Value]:
            """Writes one element of the sums."""
            self.writer.begin()
            elements, weights = values(k)
            pairs = [(element, weight) for weight in weights for element in elements]
            return [add(code, *pair, total) for pair, total in zip(pairs, totals, strict=True)]

        def turns(k: Value, totals: list[Value]) -> list[Value]:
            """Writes several elements of the sums."""
            for step in range(UNROLLED):
                totals = turn(code.summed(k, integer(step)), totals)
            return totals

        whole = length - length % UNROLLED
        flat = code.carry(0, whole, [total for totals in sums for total in totals], turns, step=UNROLLED)
        for k in range(whole, length):
            flat = turn(integer(k), flat)
        self.writer.begin()
        return [flat[at : at + abreast] for at in range(0, len(flat), abreast)]

    def of_vector(self, left: int, vector: Vector, k: Value, dtype: str) -> Value:
        """Writes element k of a vector of a left side."""
        code, type_, row = self.code, self.net.type_of(left), self.row
        flat = code.summed(code.multiplied(vector.place, type_.shape[-1]), k)
        own = replace(row, place=vector.row)
        value = self.writer.element(left, Place(code, type_.shape, flat), own)
        self.writer.begin()  # the same place of another row has another value
        return converted(code, value, type_.dtype, dtype)

    def of_matrix(self, right: int, k: Value, column: Value, dtype: str) -> Value:
        """Writes element k of a column of a matrix."""
        type_ = self.net.type_of(right)
        place = Place(self.code, type_.shape, None, [k, column])
        return converted(self.code, self.writer.element(right, place, self.row), type_.dtype, dtype)

    # ---- products of integers

    def scaled_term(
        self,
        left: int,
        rights: list[int],
        vectors: list[Vector],
        column: Value,
        sums: list[list[Value]],
        dtype: str,
    ) -> list[list[Value]]:
        """Writes the products of one left side, as integers with a scale for each vector, and a column of
        some matrices, as integers with a scale for each column.
        """
        code, writer = self.code, self.writer
        factor_slot, scale_slot = self.scales[left]
        factors = [writer.read_slot(factor_slot, vector.row, vector.place) for vector in vectors]
        scales = [writer.read_slot(scale_slot, vector.row, vector.place) for vector in vectors]
        of_columns = [self.scale_of_column(right, column, dtype) for right in rights]

        def values(k: Value) -> tuple[list[Value], list[Value]]:
            """Writes the integers k of the vectors and of the columns."""
            elements = [self.of_vector(left, vector, k, dtype) for vector in vectors]
            matrix = [self.of_matrix(right, k, column, dtype) for right in rights]
            return (
                [whole_number(code, e, factor) for e, factor in zip(elements, factors, strict=True)],
                [whole_number(code, e, factor) for e, (factor, _) in zip(matrix, of_columns, strict=True)],
            )

        zeros: list[list[Value]] = [[ir.Constant(I32, 0)] * len(vectors) for _ in rights]
        counts = self.summed(left, values, zeros, multiplied_and_added)
        made = list[list[Value]]()
        for numbers, (_, of_column), totals in zip(counts, of_columns, sums, strict=True):
            scaled = [
                code.fmul(code.fmul(code.sitofp(number, of_column.type), scale), of_column)
                for number, scale in zip(numbers, scales, strict=True)
            ]
            made.append([code.fadd(total, value) for total, value in zip(totals, scaled, strict=True)])
        return made

    def scale_of_column(self, right: int, column: Value, dtype: str) -> tuple[Value, Value]:
        """Writes the factor and the scale of a column of a matrix."""

        def element(k: Value) -> Value:
            """Writes element k of the column."""
            self.writer.begin()
            return self.of_matrix(right, k, column, dtype)

        made = scale_of(self.code, element, self.net.type_of(right).shape[0], dtype)
        self.writer.begin()
        return made

    def write_scales(self, left: int) -> None:
        """Writes the factor and the scale of each vector of a left side of int8 products."""
        code, type_ = self.code, self.net.type_of(left)
        lead = prod(type_.shape[:-1])
        with code.loop(code.thread, integer(self.share.rows * lead), self.share.threads) as index:
            vector = Vector(*code.divided(index, lead))

            def element(k: Value) -> Value:
                """Writes element k of the vector."""
                return self.of_vector(left, vector, k, type_.dtype)

            pair = scale_of(code, element, type_.shape[-1], type_.dtype)
            for value, slot in zip(pair, self.scales[left], strict=True):
                self.writer.write_slot(value, slot, vector.row, vector.place)


def scale_of(
    code: PlaceWriter, element: Callable[[Value], Value], length: int, dtype: str
) -> tuple[Value, Value]:
    """Writes the factor by which the elements of a vector become integers, and its scale; both are NaN for a
    vector that is not finite. element: writes the element at an index.
    """

    def turn(k: Value, most: list[Value]) -> list[Value]:
        """Writes the largest magnitude with one more element."""
        size = code.intrinsic("fabs", most[0].type, [element(k)])
        return [code.intrinsic("maximum", size.type, [most[0], size])]

    (largest,) = code.carry(0, length, [literal_of(dtype, SMALLEST)], turn)
    is_finite = code.fcmp_ordered("<", largest, literal_of(dtype, float("inf")))
    largest = code.select(is_finite, largest, literal_of(dtype, float("nan")))
    whole = literal_of(dtype, float(LARGEST))
    return code.fdiv(whole, largest), code.fdiv(largest, whole)


def whole_number(code: PlaceWriter, value: Value, factor: Value) -> Value:
    """Writes an element times the factor of its vector, as an integer; 0 if the vector is not finite."""
    scaled = code.intrinsic("rint", value.type, [code.fmul(value, factor)])
    is_number = code.fcmp_ordered("==", factor, factor)
    safe = code.select(is_number, scaled, ir.Constant(value.type, 0.0))
    return code.fptosi(safe, I32)


def added(code: PlaceWriter, a: Value, b: Value) -> Value:
    """Writes the sum of two numbers; of bools the "or"."""
    if is_float(a):
        return code.fadd(a, b)
    return code.or_(a, b) if a.type == I1 else code.add(a, b)


def multiplied_and_added(code: PlaceWriter, a: Value, b: Value, total: Value) -> Value:
    """Writes a * b + total: for floats rounded once; for bools the "or" of the "and"."""
    if is_float(a):
        return code.fused(a, b, total)
    if a.type == I1:
        return code.or_(code.and_(a, b), total)
    return code.add(code.mul(a, b), total)
