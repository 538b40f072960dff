"""Products of a block of a group: the columns of its units, for all rows, of weights that stay in shared
memory.

    left side      main memory -> shared memory [rows][k], at each step, 16 bytes at a time
    weights        main memory -> shared memory [k / 4][columns of the block][4], once, where there is room

Each sum is one chain of fused multiply-adds over k, as `columns.py` has it, so its bits are the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.entries.columns import ABREAST, MOST_SUMS, ColumnWriter, Port, Vector
from stepnet.compiler.targets.cuda.entries.elements import ElementWriter, RowOfThread, RowShare, zero
from stepnet.compiler.targets.cuda.entries.places import Place
from stepnet.compiler.targets.cuda.entries.statements import Statement
from stepnet.compiler.targets.cuda.functions import FOUR
from stepnet.compiler.targets.cuda.grid.share import GridShare
from stepnet.compiler.values.records import dataclass

Value = ir.Value
AT_ONCE = 16
"""The loads of a left side that a thread has under way."""
PIECE = 4
"""The numbers of a load of 16 bytes."""


def vectors_of_thread(vectors: int, columns: int, results: int) -> int:
    """Returns the number of vectors that a thread multiplies with a column of each result of a product.

    vectors: the number of all rows. columns: the number of the block's columns.
    """
    return next(
        count
        for count in ABREAST
        if vectors % count == 0
        and results * count <= MOST_SUMS
        and count <= 4
        and (count == 1 or vectors // count * columns >= 64)
    )


@dataclass(frozen=True)
class Areas:
    """The places in shared memory of left sides, by node, and of the block's columns of weights, by node.
    A matrix that is not among them is read from main memory at each step.
    """

    lefts: Mapping[int, int]
    weights: Mapping[int, int]


class GridColumnWriter(ColumnWriter):
    """Writer of the products of the columns of a block.

    grid: how blocks share the units. areas: the arrays in shared memory. first: the first unit of the block.
    """

    def __init__(
        self,
        writer: ElementWriter,
        share: RowShare,
        row: RowOfThread,
        grid: GridShare,
        areas: Areas,
        first: Value,
    ) -> None:
        """Takes the writer of the entry, the row of the thread, and the share of the block."""
        super().__init__(writer, share, {}, row)
        self.grid, self.areas, self.first = grid, areas, first

    def stride(self, length: int) -> int:
        """Returns the numbers from a vector of a left side to the next one, in shared memory."""
        return length

    def copy_left(self, left: int) -> None:
        """Writes the copy of a left side of all rows to shared memory."""
        code, type_, area = self.code, self.net.type_of(left), self.areas.lefts[left]
        length, slot, threads = type_.shape[-1], self.writer.slots.get(left), self.share.threads
        count, stride = self.share.rows * type_.size, self.stride(length)
        if slot is not None and (count if stride == length else length) % PIECE == 0:
            pieces = count // PIECE
            for begin in range(0, pieces, threads * AT_ONCE):
                starts = range(begin, min(pieces, begin + threads * AT_ONCE), threads)
                wholes = [s for s in starts if s + threads <= pieces]
                self.copy_pieces(slot.pointer, left, wholes)
                for start in starts:
                    if start not in wholes:
                        with code.when(code.icmp_signed("<", code.thread, integer(pieces - start))):
                            self.copy_pieces(slot.pointer, left, [start])
            return
        with code.loop(code.thread, integer(count), threads) as index:
            place, flat = code.divided(index, type_.size)
            own = replace(self.row, place=place)
            self.writer.begin()
            value = self.writer.element(left, Place(code, type_.shape, flat), own)
            at = index
            if stride != length:
                vector, k = code.divided(index, length)
                at = code.summed(code.multiplied(vector, stride), k)
            code.write_element(type_.dtype, value, code.shared(area), at)
        self.writer.begin()

    def copy_pieces(self, source: Value, left: int, starts: list[int]) -> None:
        """Writes the copy of the thread's pieces behind some places, all of which are read first."""
        code, length = self.code, self.net.type_of(left).shape[-1]
        apart, area = self.stride(length) - length, code.shared(self.areas.lefts[left])
        indices = [code.summed(code.thread, integer(start)) for start in starts]
        offsets = [code.multiplied(index, 4 * PIECE) for index in indices]
        read = [code.function_call("from_cache", FOUR, [code.at(source, offset)]) for offset in offsets]
        for index, offset, four in zip(indices, offsets, read, strict=True):
            if apart:
                vector, _ = code.divided(index, length // PIECE)
                offset = code.summed(offset, code.multiplied(vector, 4 * apart))
            code.write(four, code.at(area, offset), 16)

    def column_of(self, index: Value, columns: int) -> tuple[Value, Value]:
        """Writes the matrix column that is a column of the block, and whether both the matrix has this column
        and the block its unit. columns: the number of columns of the matrix.
        """
        code = self.code
        part, place = code.divided(index, self.grid.own)
        unit = code.summed(self.first, place)
        column = code.summed(code.multiplied(part, self.grid.units), unit)
        is_there = code.icmp_signed("<", unit, integer(self.grid.units))
        if columns % self.grid.units:
            is_there = code.and_(is_there, code.icmp_signed("<", column, integer(columns)))
        return column, is_there

    def keep_weights(self) -> None:
        """Writes the copies of the block's columns of matrices to shared memory, as far as there is room."""
        for right in self.areas.weights:
            self.keep(right)

    def keep(self, right: int) -> None:
        """Writes the copy of the block's columns of a matrix to shared memory."""
        code = self.code
        length, columns = self.net.type_of(right).shape
        own, area = self.grid.own_columns(columns), self.areas.weights[right]
        with code.loop(code.thread, integer(length * own), self.share.threads) as index:
            k, mine = code.divided(index, own)
            column, is_there = self.column_of(mine, columns)
            quotient, rest = code.divided(k, PIECE)
            with code.when(is_there):
                self.writer.begin()
                value = self.of_matrix(right, k, column, "float32")
                at = code.summed(
                    code.multiplied(code.summed(code.multiplied(quotient, own), mine), PIECE), rest
                )
                code.write_element("float32", value, code.shared(area), at)
        self.writer.begin()

    def write(self, together: list[Statement]) -> None:
        """Writes the sums of products of some results of a node, which have one size."""
        code, net = self.code, self.net
        nodes = [net.nodes[statement.number] for statement in together]
        product = net.nodes[nodes[0].inputs[0]] if nodes[0].operation == "result" else nodes[0]
        lefts, rights = product.sides
        count = len(lefts)
        ports = [
            Port(rights[of * count : (of + 1) * count], self.writer.slots[statement.number])
            for statement, node in zip(together, nodes, strict=True)
            for of in [node.attributes.get("of", 0)]
        ]
        shape = nodes[0].type.shape
        columns, lead = shape[-1], prod(shape[:-1])
        own, vectors = self.grid.own_columns(columns), self.share.rows * lead
        abreast = vectors_of_thread(vectors, own, len(ports))
        with code.loop(code.thread, integer(vectors // abreast * own), self.share.threads) as index:
            chunk, mine = code.divided(index, own)
            column, is_there = self.column_of(mine, columns)
            with code.when(is_there):
                numbers = [
                    code.summed(code.multiplied(chunk, abreast), integer(place)) for place in range(abreast)
                ]
                chosen = [Vector(*code.divided(number, lead)) for number in numbers]
                sums: list[Value] = [zero("float32")] * (abreast * len(ports))
                for place, left in enumerate(lefts):
                    matrices = [port.rights[place] for port in ports]
                    sums = self.chain(left, matrices, chosen, column, mine, own, sums)
                for at, port in enumerate(ports):
                    for vector, total in zip(chosen, sums[at * abreast :], strict=False):
                        flat = code.summed(code.multiplied(vector.place, columns), column)
                        self.writer.write_slot(total, port.slot, vector.row, flat)

    def chain(
        self,
        left: int,
        rights: list[int],
        vectors: list[Vector],
        column: Value,
        mine: Value,
        own: int,
        sums: list[Value],
    ) -> list[Value]:
        """Writes the products of one left side with a column of some matrices, added to the sums of each."""
        code, type_ = self.code, self.net.type_of(left)
        length = type_.shape[-1]
        area = code.shared(self.areas.lefts[left])

        def piece(k: Value, width: int) -> tuple[list[list[Value]], list[list[Value]]]:
            """Writes some elements of the vectors, and of the columns."""
            self.writer.begin()
            elements, matrix = list[list[Value]](), list[list[Value]]()
            for vector in vectors:
                ahead = code.summed(
                    code.multiplied(vector.row, type_.size), code.multiplied(vector.place, length)
                )
                index = code.summed(ahead, k)
                elements.append(
                    self.numbers(code.at(area, code.multiplied(index, 4)), width, length % PIECE == 0)
                )
            for right in rights:
                if right in self.areas.weights:
                    quotient, rest = code.divided(k, PIECE)
                    at = code.summed(
                        code.multiplied(code.summed(code.multiplied(quotient, own), mine), PIECE), rest
                    )
                    place = code.at(code.shared(self.areas.weights[right]), code.multiplied(at, 4))
                    matrix.append(self.numbers(place, width, True))
                else:
                    steps = [code.summed(k, integer(step)) for step in range(width)]
                    matrix.append([self.of_matrix(right, each, column, "float32") for each in steps])
            return elements, matrix

        def pieces(k: Value) -> list[Value]:
            """Writes the elements of one turn: of the vectors and then of the columns, for each k."""
            both = piece(k, PIECE), piece(code.summed(k, integer(PIECE)), PIECE)
            return [number for half in both for side in half for each in side for number in each]

        def multiplied(read: list[Value], width: int, totals: list[Value]) -> list[Value]:
            """Writes the sums with some elements more."""
            each = [read[at : at + width] for at in range(0, len(read), width)]
            elements, matrix = each[: len(vectors)], each[len(vectors) :]
            for step in range(width):
                pairs = [(element[step], weight[step]) for weight in matrix for element in elements]
                totals = [code.fused(*p, total) for p, total in zip(pairs, totals, strict=True)]
            return totals

        whole = length - length % (2 * PIECE)

        def turn(k: Value, carried: list[Value]) -> list[Value]:
            """Writes the reads for the next turn, and the products of the values of the last turn."""
            after = code.summed(k, integer(2 * PIECE))
            is_last = code.icmp_signed(">=", after, integer(whole))
            ahead = pieces(code.select(is_last, integer(0), after))
            totals, read = carried[: len(sums)], carried[len(sums) :]
            half = len(read) // 2
            for part in (read[:half], read[half:]):
                totals = multiplied(part, PIECE, totals)
            return [*totals, *ahead]

        totals = sums
        if whole:
            carried = code.carry(0, whole, [*sums, *pieces(integer(0))], turn, step=2 * PIECE)
            totals = carried[: len(sums)]
        for k in range(whole, length):
            elements, matrix = piece(integer(k), 1)
            totals = multiplied([each[0] for each in (*elements, *matrix)], 1, totals)
        self.writer.begin()
        return totals

    def numbers(self, pointer: Value, width: int, is_aligned: bool) -> list[Value]:
        """Writes a load of some numbers that lie side by side in shared memory."""
        code = self.code
        if width != PIECE or not is_aligned:
            return [code.read_element("float32", pointer, integer(step)) for step in range(width)]
        four = code.read(FOUR, pointer, 16)
        return [code.extract_element(four, ir.Constant(ir.IntType(32), step)) for step in range(PIECE)]
