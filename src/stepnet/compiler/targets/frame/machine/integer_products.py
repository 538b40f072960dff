"""Products of integers by the instructions that a processor has for them, whose sums are exact in any order.

    columns   mul and add, for cores with eight registers, which hold the sums of two columns
    dsp       smlad: two products of 16 bits and a sum of 32; sxtb16 makes two numbers of 16 bits of a word
    helium    vmladav: the products of two vectors, all added to a sum in a register of the core

The names are those of the layouts of weights (`weight_layouts.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I1, I8, I16, I32, splat, vector_of, width_of
from stepnet.compiler.targets.frame.machine.instructions import FrameCode
from stepnet.compiler.targets.frame.machine.loops import FrameLoopCode
from stepnet.compiler.targets.frame.machine.pairs import pair_of
from stepnet.compiler.targets.frame.program import ProductLoop, StridedView
from stepnet.compiler.targets.frame.weight_layouts import COLUMNS, LANES, bytes_of_column, is_joined

Sums = list[ir.Value]
UNROLLED = 2
"""The words of a vector that a turn of a loop takes."""


def integer_product(loops: FrameLoopCode, loop: ProductLoop, layout: str) -> None:
    """Writes a product of integers: the columns in groups, for one row of vectors after the other.

    layout: that of the weights, which is a key of `SUMS`.
    """
    code, write, zero = loops.code, SUMS[layout], ir.Constant(I32, 0)
    size = bytes_of_column(loops.program, loop, layout)

    def group(number: ir.Value, _: Sums, row: ir.Value, first: int, width: int) -> Sums:
        """Writes the products of a vector with a group of columns, of the groups from `first` on."""
        column = code.add(code.number(first), code.mul(number, code.number(width)))
        places = [code.add(column, code.number(at)) for at in range(width)]
        base = code.at(loops.bases[loop.weights], code.mul(column, code.number(size)))
        begins = [zero if loop.start is None else loops.read(loop.start, (row, place)) for place in places]
        for value, place in zip(write(loops, loop, row, base, begins), places, strict=True):
            loops.write(value, loop.result, (row, place))
        return []

    def of_row(indices: Sequence[ir.Value], _: Sums) -> Sums:
        """Writes the products of one vector with all columns."""
        first = 0
        for width in (*COLUMNS[layout], 1):
            count = (loop.outputs - first) // width
            code.carry(0, count, [], partial(group, row=indices[0], first=first, width=width))
            first += count * width
        return []

    loops.nest((loop.rows,), [], of_row)


def product_key(loops: FrameLoopCode, loop: ProductLoop) -> tuple[object, ...]:
    """Returns the facts on which the code of a product depends, besides the places of its arrays."""
    views = [loop.left, loop.result, *([] if loop.start is None else [loop.start])]
    dtype, joined = loops.program.by_name[loop.left.buffer].dtype, is_joined(loops.program, loop)
    return loop.rows, loop.inputs, loop.outputs, dtype, joined, *(view.strides for view in views)


def product_function(
    loops: FrameLoopCode, loop: ProductLoop, layout: str, name: str, begun: Callable[[ir.Function], FrameCode]
) -> ir.Function:
    """Writes the function of a product that a frame has several times; returns it. begun: begins its body.
    Its arguments are the addresses of `arrays_of`.
    """
    arrays = arrays_of(loop)
    type_ = ir.FunctionType(ir.VoidType(), [loops.bases[view.buffer].type for view in arrays])
    function = ir.Function(loops.code.module, type_, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    code = begun(function)
    names = [view.buffer for view in arrays]
    bases: dict[str, ir.Value] = dict(zip(names, function.args, strict=True))
    own = FrameLoopCode(code, loops.program, loops.platform, bases, loops.outside)
    start = None if loop.start is None else at_begin(loop.start)
    moved = replace(loop, left=at_begin(loop.left), result=at_begin(loop.result), start=start)
    integer_product(own, moved, layout)
    code.ret_void()
    return function


def at_begin(view: StridedView) -> StridedView:
    """Returns a view from the first element of its array on."""
    return StridedView(view.buffer, 0, view.strides)


def arrays_of(loop: ProductLoop) -> list[StridedView]:
    """Lists the arrays of a product: the vectors, the result, the weights, and what it begins with."""
    views = [loop.left, loop.result, StridedView(loop.weights, 0, ())]
    return views if loop.start is None else [*views, loop.start]


def product_call(loops: FrameLoopCode, loop: ProductLoop, function: ir.Function) -> None:
    """Writes the call of the function of a product."""
    at = [loops.address(StridedView(view.buffer, view.offset, ()), ()) for view in arrays_of(loop)]
    loops.code.call(function, at)


# ---- one product at a time


def sums_of_columns(
    loops: FrameLoopCode, loop: ProductLoop, row: ir.Value, base: ir.Value, begins: Sums
) -> Sums:
    """Writes the sums of a group of columns that lie one after the other; returns them.

    row: the number of the vector. base: the address of the weights. begins: the first values of the sums.
    """
    code, size, count = loops.code, loop.inputs, len(begins)
    is_wide = loops.program.by_name[loop.left.buffer].dtype == "int16"
    places = [code.at(base, at if is_wide else at * size) for at in range(count)]

    def term(k: ir.Value, values: Sums) -> Sums:
        """Writes the sums after an element of the vector."""
        x = code.sext(loops.read(loop.left, (row, k)), I32)
        offset = code.mul(k, code.number(count)) if is_wide else k
        weights = [code.sext(code.read(I8, code.at(place, offset), 1), I32) for place in places]
        return [code.add(value, code.mul(w, x)) for value, w in zip(values, weights, strict=True)]

    return code.carry(0, size, begins, term)


# ---- two pairs of 16 bits


def sums_of_words(
    loops: FrameLoopCode, loop: ProductLoop, row: ir.Value, base: ir.Value, begins: Sums
) -> Sums:
    """Writes the sums of a group of columns with weights in words, as `sums_of_columns` does."""
    code, dtype = loops.code, loops.program.by_name[loop.left.buffer].dtype
    joined, together = is_joined(loops.program, loop), 4 if dtype == "int8" else 2
    words = (len(begins) + 1) // 2
    sums = [*begins, *([ir.Constant(I32, 0)] * (len(begins) % 2))]
    if joined:
        sums[1::2] = sums[::2]

    def added(vectors: Sums, address: ir.Value, values: Sums) -> Sums:
        """Writes the sums after some words of each pair of columns. vectors: pairs of 16 bits."""
        for place, x in enumerate(vectors):
            values = after_words(code, x, code.at(address, 4 * place * words), values, joined)
        return values

    def step(k: ir.Value, values: Sums, count: int) -> Sums:
        """Writes the sums after some times four elements of int8, or two of int16."""
        given, base_k = loops.address(loop.left, (row, k)), code.at(base, code.mul(k, code.number(2 * words)))
        for at in range(count):
            word = code.read(I32, code.at(given, 4 * at), 1 if dtype == "int8" else 2)
            vectors = [unpacked(code, word), unpacked(code, word, 8)] if dtype == "int8" else [word]
            values = added(vectors, code.at(base_k, 2 * words * together * at), values)
        return values

    whole = 0
    for count in (UNROLLED, 1) if loop.inputs >= 2 * UNROLLED * together else (1,):
        first, whole = whole, loop.inputs - loop.inputs % (count * together)
        sums = code.carry(first, whole, sums, partial(step, count=count), step=count * together)
    rest = [loops.read(loop.left, (row, code.number(k))) for k in range(whole, loop.inputs)]
    if rest:
        rest += [ir.Constant(rest[0].type, 0)] * (len(rest) % 2)
        vectors = [pair_of(code, *rest[at : at + 2]) for at in range(0, len(rest), 2)]
        sums = added(vectors, code.at(base, 2 * words * whole), sums)
    if joined:
        for at in range(1, len(begins), 2):
            high = code.ashr(code.sub(sums[at], sums[at - 1]), ir.Constant(I32, 8))
            sums[at] = code.add(begins[at], high)
    return sums[: len(begins)]


def after_words(code: FrameCode, x: ir.Value, address: ir.Value, values: Sums, joined: bool) -> Sums:
    """Writes the sums of pairs of columns after a word of each. x: a pair of 16 bits. address: that of the
    words. joined: as `is_joined` says.
    """
    made = [*values]
    for at in range(0, len(made), 2):
        word = code.read(I32, code.at(address, 2 * at), 4)
        made[at] = multiplied(code, x, unpacked(code, word), made[at])
        made[at + 1] = multiplied(code, x, word if joined else unpacked(code, word, 8), made[at + 1])
    return made


def unpacked(code: FrameCode, word: ir.Value, turn: int = 0) -> ir.Value:
    """Writes two numbers of 16 bits: bytes 0 and 2 of a word that is turned to the right by some bits."""
    if turn:
        low, high = code.lshr(word, ir.Constant(I32, turn)), code.shl(word, ir.Constant(I32, 32 - turn))
        word = code.or_(low, high)
    return code.function_call("llvm.arm.sxtb16", I32, [word])


def multiplied(code: FrameCode, x: ir.Value, w: ir.Value, total: ir.Value) -> ir.Value:
    """Writes a sum plus the products of two pairs of 16 bits."""
    return code.function_call("llvm.arm.smlad", I32, [x, w, total])


# ---- vectors of Helium


def sums_of_vectors(
    loops: FrameLoopCode, loop: ProductLoop, row: ir.Value, base: ir.Value, begins: Sums
) -> Sums:
    """Writes the sums of a group of columns with weights in vectors, as `sums_of_columns` does."""
    code, dtype = loops.code, loops.program.by_name[loop.left.buffer].dtype
    lanes, element = LANES[dtype], I8 if dtype == "int8" else I16
    type_, width = vector_of(element, lanes), len(begins)

    def added(k: ir.Value, values: Sums, count: int) -> Sums:
        """Writes the sums after some elements of the vector."""
        read = partial(elements, code, lanes=lanes, count=count)
        x = read(loops.address(loop.left, (row, k)), element)
        address = code.at(base, code.mul(k, code.number(width)))
        weights = [read(code.at(address, at * count), I8) for at in range(width)]
        return after_vectors(code, x, [w if element is I8 else code.sext(w, type_) for w in weights], values)

    rest = loop.inputs % lanes
    whole = loop.inputs - rest
    sums = code.carry(0, whole, begins, partial(added, count=lanes), step=lanes)
    return added(code.number(whole), sums, rest) if rest else sums


def after_vectors(code: FrameCode, x: ir.Value, weights: Sums, values: Sums) -> Sums:
    """Writes sums after the products of a vector with the vector of weights of each."""
    lanes = width_of(x)
    name = f"llvm.arm.mve.vmldava.v{lanes}i{128 // lanes}"
    plain = [ir.Constant(I32, 0)] * 3
    return [
        code.function_call(name, I32, [*plain, total, x, w]) for total, w in zip(values, weights, strict=True)
    ]


def elements(code: FrameCode, address: ir.Value, element: ir.IntType, lanes: int, count: int) -> ir.Value:
    """Writes a load of some elements into a vector, whose other lanes are zeros."""
    type_, align = vector_of(element, lanes), element.width // 8
    if count == lanes:
        return code.read(type_, address, align)
    mask = ir.Constant(vector_of(I1, lanes), [lane < count for lane in range(lanes)])
    name = f"llvm.masked.load.v{lanes}i{element.width}.p0"
    pointer = code.function_call  # the alignment is an argument
    return pointer(name, type_, [address, ir.Constant(I32, align), mask, splat(type_, 0)])


SUMS: Mapping[str, Callable[[FrameLoopCode, ProductLoop, ir.Value, ir.Value, Sums], Sums]] = {
    "columns": sums_of_columns,
    "dsp": sums_of_words,
    "helium": sums_of_vectors,
}
"""The functions that write the sums of a group of columns, for each layout of weights."""
