"""The machine code of reductions over features.

Along the last axis, a vector of partial results is accumulated and then folded in halves to one number. This
is one fixed tree, so bits do not depend on the batch. Along the first axis, whole vectors are combined.
"""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import ROWS, Type
from stepnet.compiler.targets.cpu.emit.stage import StageCode
from stepnet.compiler.targets.cpu.lower.loops import FoldLoop, ReduceLoop, ScanLoop
from stepnet.compiler.targets.cpu.writing.code import (
    I1,
    I32,
    Code,
    element_type,
    is_float,
    load_vector,
    register_type,
    store_vector,
)
from stepnet.compiler.targets.cpu.writing.pointwise import converted, pointwise

COMBINE = {"sum": "add", "max": "maximum", "min": "minimum", "cumsum": "add", "cumprod": "multiply"}


def emit_reduction(stage: StageCode, loop: ReduceLoop) -> None:
    """Writes the reduction of a value over an axis of its features, for each of this thread's rows."""
    with stage.own_rows() as row:
        reduce_row(stage, loop, row)


def reduce_row(stage: StageCode, loop: ReduceLoop, row: ir.Value) -> None:
    """Writes the reduction of the value of one row (a sequence at one step): its argmax, or a sum, maximum or
    minimum over the first or the last of its two axes. loop: the operand, its shape, the operation, and the
    fields (places in the memory of a row) for the result.
    """
    code = stage.code
    source = code.at(
        stage.rows.at(code, loop.source.record, row), loop.source.offset + loop.start * loop.source.itemsize
    )
    if loop.operation == "argmax":
        argmax(stage, loop, row, source)
    elif loop.leading:
        reduce_first_axis(stage, loop, row, source)
    else:
        reduce_last_axis(stage, loop, row, source)


def combine(code: Code, operation: str, dtype: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """Writes the combination of two partial results `a` and `b`, of a dtype, of a reduction or a scan (prefix
    sums or products); returns it. operation: the reduction or scan, a key of `COMBINE`, such as "cumsum",
    whose results are added.
    """
    node = Node(COMBINE[operation], (), (Type(ROWS, (), dtype),))
    return pointwise(code, node, [a, b], [dtype, dtype])


def load_numbers(code: Code, loop: ReduceLoop | ScanLoop, pointer: ir.Value, width: int) -> ir.Value:
    """Writes a load of `width` numbers of a loop's operand from `pointer` on, and their conversion to the
    dtype of the result: so a sum of booleans counts those that are true.
    """
    value = load_vector(code, loop.source.dtype, width, pointer, loop.source.itemsize)
    return converted(code, value, loop.source.dtype, loop.targets[0].dtype)


def neutral(code: Code, operation: str, type_: ir.Type) -> ir.Value:
    """Returns the neutral element of a reduction, "sum", "max" or "min", in each element of a value of a
    type.

    It is 0 for sums, else the least (max) or greatest number: infinite for floats.
    """
    element = element_type(type_)
    if operation == "sum":
        number: float = 0
    elif isinstance(element, ir.IntType):
        largest = 2 ** (element.width - 1) - 1 if element.width > 1 else 1
        number = (-largest - 1 if element.width > 1 else 0) if operation == "max" else largest
    else:
        number = float("-inf") if operation == "max" else float("inf")
    return code.splat(type_, number)


def combine_in_order(
    code: Code,
    loop: ReduceLoop | FoldLoop,
    type_: ir.Type,
    count: int,
    value: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """Combines value(0), ..., value(count - 1) in this order, in a loop; gives the neutral element for none.

    value: writes the load of the vector, of type `type_`, at an index.
    """

    def combined(index: ir.Value, partial: list[ir.Value]) -> list[ir.Value]:
        """Combines the partial result with the value at one index, as an iteration of the loop."""
        return [combine(code, loop.operation, loop.targets[0].dtype, partial[0], value(index))]

    return code.carry(0, count, [neutral(code, loop.operation, type_)], combined)[0]


def combine_vectors(
    code: Code,
    loop: ReduceLoop | FoldLoop,
    type_: ir.Type,
    size: int,
    width: int,
    value: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """Reduces `size` numbers to a vector of partial results, one for each vector element, so that few
    operations depend on each other.

    type_: the type of a vector. Its register may hold several vectors of `width` numbers one after the other,
    which are reduced separately.
    value: loads the vector of `width` numbers at an index. Elements of the last one beyond `size` are masked.
    """
    vectors, remainder = divmod(size, width)
    total = combine_in_order(code, loop, type_, vectors, value)
    if remainder:
        last = value(code.number(vectors))
        total = combine(
            code,
            loop.operation,
            loop.targets[0].dtype,
            total,
            code.keep_first(last, remainder, width, neutral(code, loop.operation, type_)),
        )
    return total


def loader(
    code: Code, loop: ReduceLoop, base: ir.Value, stride: int, width: int
) -> Callable[[ir.Value], ir.Value]:
    """Makes a function that writes a load of `width` numbers, `index` times `stride` bytes after `base`."""
    return lambda index: load_numbers(code, loop, code.at(base, code.mul(index, code.number(stride))), width)


def reduce_last_axis(stage: StageCode, loop: ReduceLoop, row: ir.Value, source: ir.Value) -> None:
    """Writes a reduction of the value of a row (a sequence at one step) along the last of its two axes:
    vectors along it are combined, then the elements of the resulting vector in a tree. source: the pointer to
    the row's numbers.
    """
    code, width = stage.code, stage.width
    outer, inner = loop.shape
    size = loop.source.itemsize
    type_ = register_type(loop.targets[0].dtype, width)
    with code.loop(code.number(0), code.number(outer)) as index:
        base = code.at(source, code.mul(index, code.number(inner * size)))
        value = loader(code, loop, base, width * size, width)
        total = combine_vectors(code, loop, type_, inner, width, value)
        store_number(stage, loop, row, index, fold_vector(code, loop, total))


def fold_vector(code: Code, loop: ReduceLoop | FoldLoop, value: ir.Value) -> ir.Value:
    """Reduces the elements of a vector to one number, combining its halves repeatedly in a fixed order. loop:
    has the operation and the dtype.
    """
    while isinstance(value.type, ir.VectorType):
        half = value.type.count // 2
        if half == 0:
            return code.extract_element(value, ir.Constant(I32, 0))
        low, high = code.slice(value, 0, half), code.slice(value, half, half)
        value = combine(code, loop.operation, loop.targets[0].dtype, low, high)
        if half == 1:
            return code.extract_element(value, ir.Constant(I32, 0))
    return value


def reduce_first_axis(stage: StageCode, loop: ReduceLoop, row: ir.Value, source: ir.Value) -> None:
    """Writes a reduction of the value of a row (a sequence at one step) along the first of its two axes,
    which combines whole vectors of the last axis. source: the pointer to the row's numbers.
    """
    code, width = stage.code, stage.width
    outer, inner = loop.shape
    size = loop.source.itemsize
    type_ = register_type(loop.targets[0].dtype, width)
    with code.loop(code.number(0), code.number(-(-inner // width))) as block:
        base = code.at(source, code.mul(block, code.number(width * size)))
        total = combine_in_order(code, loop, type_, outer, loader(code, loop, base, inner * size, width))
        for target in loop.targets:
            pointer = code.at(stage.rows.at(code, target.record, row), target.offset)
            pointer = code.at(pointer, code.mul(block, code.number(width * target.itemsize)))
            store_vector(code, target.dtype, total, pointer, target.itemsize)


def argmax(stage: StageCode, loop: ReduceLoop, row: ir.Value, source: ir.Value) -> None:
    """Writes an argmax of a row's value along the first of its two axes if `loop.leading`, else along the
    last: the first index of the largest number; NaN counts as the largest. source: the pointer to the row's
    numbers.
    """
    code = stage.code
    outer, inner = loop.shape
    size = loop.source.itemsize
    results, length = (inner, outer) if loop.leading else (outer, inner)
    to_result, to_next = (size, inner * size) if loop.leading else (inner * size, size)
    with code.loop(code.number(0), code.number(results)) as position:
        base = code.at(source, code.mul(position, code.number(to_result)))
        first = load_vector(code, loop.source.dtype, 1, base, size)

        def iteration(index: ir.Value, best: list[ir.Value]) -> list[ir.Value]:
            """Writes one round of an argmax: `best`, number and index, becomes those at `index` if they are
            larger.
            """
            pointer = code.at(base, code.mul(index, code.number(to_next)))
            value = load_vector(code, loop.source.dtype, 1, pointer, size)
            replaces = larger(code, value, best[0])
            return [code.select(replaces, *pair) for pair in zip((value, index), best, strict=True)]

        _, where = code.carry(0, length, [first, code.number(0)], iteration)
        store_number(stage, loop, row, position, where)


def larger(code: Code, value: ir.Value, best: ir.Value) -> ir.Value:
    """Writes the test whether a number replaces the best of an argmax: it is larger, or the first NaN."""
    if not is_float(value):
        signed = code.icmp_unsigned if value.type == I1 else code.icmp_signed
        return signed(">", value, best)
    is_number = code.fcmp_ordered("==", best, best)
    return code.and_(is_number, code.fcmp_unordered(">", value, best))


def store_number(stage: StageCode, loop: ReduceLoop, row: ir.Value, index: ir.Value, value: ir.Value) -> None:
    """Writes stores of one number of a reduction's result for a row (a sequence at one step), as element
    `index` of each field (place in the row's memory) that gets the result.
    """
    code = stage.code
    for target in loop.targets:
        pointer = code.at(stage.rows.at(code, target.record, row), target.offset)
        pointer = code.at(pointer, code.mul(index, code.number(target.itemsize)))
        store_vector(code, target.dtype, value, pointer, target.itemsize)
