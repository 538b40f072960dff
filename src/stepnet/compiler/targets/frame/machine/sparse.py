"""Products with matrices in blocks as LLVM code, whose sums stay in vectors."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I16, splat
from stepnet.compiler.targets.frame.machine.instructions import convert, type_of
from stepnet.compiler.targets.frame.machine.loops import FrameLoopCode
from stepnet.compiler.targets.frame.sparse import SparseProductLoop

PLACE_BYTES = 2
"""The bytes of the number of a row."""


def sparse_product(loops: FrameLoopCode, loop: SparseProductLoop) -> None:
    """Writes a product: the columns of a block at a time, for one row of vectors after the other."""
    code, by_name, width = loops.code, loops.program.by_name, loop.width
    given, stored = by_name[loop.left.buffer].dtype, by_name[loop.weights].dtype
    dtype, size = by_name[loop.result.buffer].dtype, by_name[loop.weights].itemsize

    def place_of(address: ir.Value) -> ir.Value:
        """Writes a load of a number of `places`."""
        return code.zext(code.read(I16, address, PLACE_BYTES), code.index)

    def row(indices: list[ir.Value], _: list[ir.Value]) -> list[ir.Value]:
        """Writes the products of one vector with all columns."""

        def columns(number: ir.Value, now: list[ir.Value]) -> list[ir.Value]:
            """Writes those of the columns of a block; carries the addresses of its places and weights."""
            column = code.mul(number, code.number(width))
            if loop.start is None:
                begin = splat(type_of(dtype, width), 0)
            else:
                begin = loops.read(loop.start, (indices[0], column), width)
            places, weights = now

            def term(_: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
                """Writes the addition of one element of the vector times a block."""
                total, place, block = values
                x = convert(code, given, dtype, loops.read(loop.left, (indices[0], place_of(place))))
                factors = convert(code, stored, dtype, loops.load(stored, width, block))
                total = loops.multiply_add(code.spread(x, width), factors, total)
                return [total, code.at(place, PLACE_BYTES), code.at(block, width * size)]

            first = code.at(places, PLACE_BYTES)
            total, places, weights = code.carry(0, place_of(places), [begin, first, weights], term)
            loops.write(total, loop.result, (indices[0], column))
            return [places, weights]

        begins = [loops.bases[loop.places], loops.bases[loop.weights]]
        code.carry(0, loop.outputs // width, begins, columns)
        return []

    loops.nest((loop.rows,), [], row)
