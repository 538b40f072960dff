"""The machine code of reductions over features.

Over the last axis, a vector of partial results runs along the numbers and is folded at the end, halves onto
halves: one fixed tree, whatever else is computed. Over the first axis, whole vectors are reduced one after
the other.
"""

from collections.abc import Callable

from llvmlite import ir

from stepnet.engines.llvm.emit.stage import StageCode
from stepnet.engines.llvm.lower.loops import FoldLoop, ReduceLoop, ScanLoop
from stepnet.engines.llvm.writing.code import (
    I1,
    I32,
    Code,
    element_type,
    is_float,
    load_vector,
    register_type,
    store_vector,
)
from stepnet.engines.llvm.writing.pointwise import converted, pointwise
from stepnet.net.ir import Node
from stepnet.net.types import ROWS, Type

COMBINE = {"sum": "add", "max": "maximum", "min": "minimum", "cumsum": "add", "cumprod": "multiply"}


def emit_reduction(stage: StageCode, loop: ReduceLoop) -> None:
    """A reduction of every row."""
    with stage.own_rows() as row:
        of_row(stage, loop, row)


def of_row(stage: StageCode, loop: ReduceLoop, row: ir.Value) -> None:
    """One row's reduction."""
    code = stage.code
    source = code.at(
        stage.rows.at(code, loop.source.record, row), loop.source.offset + loop.start * loop.source.itemsize
    )
    if loop.operation == "argmax":
        argmax(stage, loop, row, source)
    elif loop.leading:
        leading(stage, loop, row, source)
    else:
        trailing(stage, loop, row, source)


def combine(code: Code, operation: str, dtype: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """Two partial results of a reduction as one."""
    node = Node(COMBINE[operation], (), (Type(ROWS, (), dtype),))
    return pointwise(code, node, [a, b], [dtype, dtype])


def loaded(code: Code, loop: ReduceLoop | ScanLoop, pointer: ir.Value, width: int) -> ir.Value:
    """Numbers of the source in the dtype of the result (a sum of booleans counts)."""
    value = load_vector(code, loop.source.dtype, width, pointer, loop.source.itemsize)
    return converted(code, value, loop.source.dtype, loop.targets[0].dtype)


def neutral(code: Code, operation: str, type_: ir.Type) -> ir.Value:
    """What changes no result of a reduction: 0, or the far end of the dtype."""
    element = element_type(type_)
    if operation == "sum":
        number: float = 0
    elif isinstance(element, ir.IntType):
        largest = 2 ** (element.width - 1) - 1 if element.width > 1 else 1
        number = (-largest - 1 if element.width > 1 else 0) if operation == "max" else largest
    else:
        number = float("-inf") if operation == "max" else float("inf")
    return code.splat(type_, number)


def in_order(
    code: Code,
    loop: ReduceLoop | FoldLoop,
    type_: ir.Type,
    count: int,
    value: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """`count` registers of a type as one: value(0), value(1), ... each combined with those before it."""

    def combined(index: ir.Value, partial: list[ir.Value]) -> list[ir.Value]:
        return [combine(code, loop.operation, loop.targets[0].dtype, partial[0], value(index))]

    return code.carry(0, count, [neutral(code, loop.operation, type_)], combined)[0]


def in_vectors(
    code: Code,
    loop: ReduceLoop | FoldLoop,
    type_: ir.Type,
    size: int,
    width: int,
    value: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """Partial results of `size` numbers in vectors of `width`: value(0), value(1), ... combined in order.

    Of the last vector only those elements count that lie within `size`. A register may be several vectors
    side by side, each of which is reduced by itself.
    """
    whole, rest = divmod(size, width)
    total = in_order(code, loop, type_, whole, value)
    if rest:
        last = value(code.number(whole))
        total = combine(
            code,
            loop.operation,
            loop.targets[0].dtype,
            total,
            code.keep_first(last, rest, width, neutral(code, loop.operation, type_)),
        )
    return total


def vectors(
    code: Code, loop: ReduceLoop, base: ir.Value, stride: int, width: int
) -> Callable[[ir.Value], ir.Value]:
    """What reads vector 0, 1, ... of the source, which lie `stride` bytes apart."""
    return lambda index: loaded(code, loop, code.at(base, code.mul(index, code.number(stride))), width)


def trailing(stage: StageCode, loop: ReduceLoop, row: ir.Value, source: ir.Value) -> None:
    """Over the last axis: vectors along the numbers, then a tree over the elements of the vector."""
    code, width = stage.code, stage.width
    outer, inner = loop.shape
    size = loop.source.itemsize
    type_ = register_type(loop.targets[0].dtype, width)
    with code.loop(code.number(0), code.number(outer)) as place:
        base = code.at(source, code.mul(place, code.number(inner * size)))
        value = vectors(code, loop, base, width * size, width)
        total = in_vectors(code, loop, type_, inner, width, value)
        store_number(stage, loop, row, place, folded(code, loop, total))


def folded(code: Code, loop: ReduceLoop | FoldLoop, value: ir.Value) -> ir.Value:
    """The elements of a vector reduced to one number: halves onto halves."""
    while isinstance(value.type, ir.VectorType):
        half = value.type.count // 2
        if half == 0:
            return code.extract_element(value, ir.Constant(I32, 0))
        low, high = code.part(value, 0, half), code.part(value, half, half)
        value = combine(code, loop.operation, loop.targets[0].dtype, low, high)
        if half == 1:
            return code.extract_element(value, ir.Constant(I32, 0))
    return value


def leading(stage: StageCode, loop: ReduceLoop, row: ir.Value, source: ir.Value) -> None:
    """Over the first axis: vectors on top of each other."""
    code, width = stage.code, stage.width
    outer, inner = loop.shape
    size = loop.source.itemsize
    type_ = register_type(loop.targets[0].dtype, width)
    with code.loop(code.number(0), code.number(-(-inner // width))) as block:
        base = code.at(source, code.mul(block, code.number(width * size)))
        total = in_order(code, loop, type_, outer, vectors(code, loop, base, inner * size, width))
        for target in loop.targets:
            pointer = code.at(stage.rows.at(code, target.record, row), target.offset)
            pointer = code.at(pointer, code.mul(block, code.number(width * target.itemsize)))
            store_vector(code, target.dtype, total, pointer, target.itemsize)


def argmax(stage: StageCode, loop: ReduceLoop, row: ir.Value, source: ir.Value) -> None:
    """The first place of the largest along an axis, number by number; a NaN is larger than all."""
    code = stage.code
    outer, inner = loop.shape
    size = loop.source.itemsize
    results, along = (inner, outer) if loop.leading else (outer, inner)
    to_result, to_next = (size, inner * size) if loop.leading else (inner * size, size)
    with code.loop(code.number(0), code.number(results)) as place:
        base = code.at(source, code.mul(place, code.number(to_result)))
        first = load_vector(code, loop.source.dtype, 1, base, size)

        def turn(index: ir.Value, best: list[ir.Value]) -> list[ir.Value]:
            there = code.at(base, code.mul(index, code.number(to_next)))
            value = load_vector(code, loop.source.dtype, 1, there, size)
            replaces = larger(code, value, best[0])
            return [code.select(replaces, *pair) for pair in zip((value, index), best, strict=True)]

        _, where = code.carry(0, along, [first, code.number(0)], turn)
        store_number(stage, loop, row, place, where)


def larger(code: Code, value: ir.Value, best: ir.Value) -> ir.Value:
    """Whether a number replaces the best one so far: it is larger, or the first NaN."""
    if not is_float(value):
        signed = code.icmp_unsigned if value.type == I1 else code.icmp_signed
        return signed(">", value, best)
    known = code.fcmp_ordered("==", best, best)
    return code.and_(known, code.fcmp_unordered(">", value, best))


def store_number(stage: StageCode, loop: ReduceLoop, row: ir.Value, place: ir.Value, value: ir.Value) -> None:
    """Stores one number of the result, at a place of its fields."""
    code = stage.code
    for target in loop.targets:
        pointer = code.at(stage.rows.at(code, target.record, row), target.offset)
        pointer = code.at(pointer, code.mul(place, code.number(target.itemsize)))
        store_vector(code, target.dtype, value, pointer, target.itemsize)
