"""Products with matrices in blocks as LLVM code, whose sums stay in registers.

A layout of blocks takes some columns of a block at a time, and for them some blocks (`sparse_layouts.py`);
without one all columns are a vector, and blocks are taken one by one.
"""

from collections.abc import Callable, Mapping

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I8, I16, I32, splat, vector_of, width_of
from stepnet.compiler.targets.frame.machine.instructions import convert, type_of
from stepnet.compiler.targets.frame.machine.integer_products import Sums, after_vectors, after_words
from stepnet.compiler.targets.frame.machine.loops import FrameLoopCode
from stepnet.compiler.targets.frame.machine.pairs import pair_of
from stepnet.compiler.targets.frame.product_loops import ProductLoop, SparseProductLoop
from stepnet.compiler.targets.frame.sparse_layouts import SPARSE_LAYOUTS, layout_of

PLACE_BYTES = 2
"""The bytes of the number of a row."""
GATHERED = 8
"""The elements of a vector of 16 bits."""


def sparse_product(loops: FrameLoopCode, sparse: SparseProductLoop) -> None:
    """Writes a product: some columns of a block at a time, for one row of vectors after the other."""
    code, loop, width, by_name = loops.code, sparse.product, sparse.width, loops.program.by_name
    layout = layout_of(loops.program, sparse, loops.platform.layout)
    most, together = SPARSE_LAYOUTS[layout][:2] if layout else (width, 1)
    columns = min(most, width)
    lanes, size = 1 if layout else width, by_name[loop.weights].itemsize * columns * together
    zeros = splat(type_of(by_name[loop.result.buffer].dtype, lanes), 0)

    def row(indices: list[ir.Value], _: Sums) -> Sums:
        """Writes the products of one vector with all columns."""

        def term(_: ir.Value, values: Sums) -> Sums:
            """Writes the sums after some blocks; carries the addresses of their places and weights, too."""
            *sums, place, block = values
            made = AFTER[layout](loops, loop, indices[0], place, block, sums)
            return [*made, code.at(place, PLACE_BYTES * together), code.at(block, size)]

        def group(number: ir.Value, now: Sums) -> Sums:
            """Writes the products of a block's columns; carries the addresses of its places and weights."""
            place, block = now
            count, first = place_of(loops, place), code.at(place, PLACE_BYTES)
            for at in range(0, width, columns):
                column = code.mul(number, code.number(width))
                own = [code.add(column, code.number(each)) for each in range(at, at + columns, lanes)]
                views = [(indices[0], each) for each in own]
                begins = [
                    zeros if loop.start is None else loops.read(loop.start, each, lanes) for each in views
                ]
                *sums, place, block = code.carry(0, count, [*begins, first, block], term, step=together)
                for value, each in zip(sums, views, strict=True):
                    loops.write(value, loop.result, each)
            return [place, block]

        begins = [loops.bases[sparse.places], loops.bases[loop.weights]]
        code.carry(0, loop.outputs // width, begins, group)
        return []

    loops.nest((loop.rows,), [], row)


def place_of(loops: FrameLoopCode, address: ir.Value) -> ir.Value:
    """Writes a load of a number of `places`."""
    return loops.code.zext(loops.code.read(I16, address, PLACE_BYTES), loops.code.index)


def after_block(
    loops: FrameLoopCode, loop: ProductLoop, row: ir.Value, place: ir.Value, block: ir.Value, sums: Sums
) -> Sums:
    """Writes the sums, a vector, after one element of the vector of a row times a block.

    place, block: the addresses of the number of the element, and of the weights.
    """
    by_name, width = loops.program.by_name, width_of(sums[0])
    stored, dtype = by_name[loop.weights].dtype, by_name[loop.result.buffer].dtype
    x = loops.read(loop.left, (row, place_of(loops, place)))
    x = loops.code.spread(convert(loops.code, by_name[loop.left.buffer].dtype, dtype, x), width)
    weights = convert(loops.code, stored, dtype, loops.load(stored, width, block))
    return [loops.multiply_add(x, weights, sums[0])]


def after_pairs(
    loops: FrameLoopCode, loop: ProductLoop, row: ir.Value, place: ir.Value, block: ir.Value, sums: Sums
) -> Sums:
    """Writes the sums of columns after two blocks. Takes what `after_block` takes."""
    places = [place_of(loops, loops.code.at(place, at * PLACE_BYTES)) for at in range(2)]
    x = pair_of(loops.code, *(loops.read(loop.left, (row, each)) for each in places))
    return after_words(loops.code, x, block, sums, joined=False)


def after_gathered(
    loops: FrameLoopCode, loop: ProductLoop, row: ir.Value, place: ir.Value, block: ir.Value, sums: Sums
) -> Sums:
    """Writes the sums of columns after eight blocks. Takes what `after_block` takes."""
    code, is_wide = loops.code, loops.program.by_name[loop.left.buffer].dtype == "int16"
    type_ = vector_of(I16, GATHERED)
    places, base = code.read(type_, place, PLACE_BYTES), loops.address(loop.left, (row, code.number(0)))
    facts = [ir.Constant(I32, each) for each in ((16, 1, 0) if is_wide else (8, 0, 0))]  # bits, shift, signed
    name = "llvm.arm.mve.vldr.gather.offset.v8i16.p0.v8i16"
    x = code.function_call(name, type_, [base, places, *facts])
    weights = [
        code.read(vector_of(I8, GATHERED), code.at(block, at * GATHERED), 1) for at in range(len(sums))
    ]
    return after_vectors(code, x, [code.sext(each, type_) for each in weights], sums)


AFTER: Mapping[
    str,
    Callable[[FrameLoopCode, ProductLoop, ir.Value, ir.Value, ir.Value, Sums], Sums],
] = {"": after_block, "dsp": after_pairs, "helium": after_gathered}
"""The functions that write sums after some blocks, for each layout."""
