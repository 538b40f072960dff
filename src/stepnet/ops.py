"""The operations: one table, one row per operation, with its NumPy meaning and the type it gives.

A row's `meaning` takes arrays whose leading axis (if any) is the rows and whose trailing axes are the
features, so feature axes are always counted from the end. The type that a row gives is what its meaning gives
on zero rows; only operations that cross extents say it themselves.

To add an operation: one row here, and one row in each consumer's own table (the machine code of the llvm
engine, an ONNX name, an ATen name).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.errors import NetError
from stepnet.recur import Recur
from stepnet.types import CONST, DTYPES, ROWS, Extent, Literal, Type, extent_of, is_beside, joint_extent

Array = np.ndarray
Attributes = Mapping[str, Any]
TypeRule = Callable[[Sequence[Type], Attributes], tuple[Type, ...]]


@dataclass(frozen=True)
class Operation:
    """One row: its name, its kind, what it means in NumPy (an array, or several), and the types it gives.

    Kinds: `pointwise` (each number by itself), `view` (numbers moved within an element), `reduce` (over
    feature axes), `scan` (along one, in order), `matmul`, `gather`, `source` (a value of its own) and
    `extent` (crosses extents, so the interpreter runs it).
    """

    name: str
    kind: str
    meaning: Callable[..., Any]
    types: TypeRule
    flops: int = 0


# ---- pointwise ---------------------------------------------------------------------------------------------


def pointwise_types(meaning: Callable[..., Array]) -> TypeRule:
    """The type rule of a pointwise operation: shapes broadcast, and NumPy says the dtype."""

    def types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
        try:
            shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        except ValueError:
            shapes = " and ".join(operand.element for operand in operands)
            raise NetError(f"feature shapes do not fit together: {shapes}") from None
        try:
            probe = meaning(*(np.ones(0, operand.dtype) for operand in operands), **attributes)
        except TypeError as error:  # as NumPy has no difference of booleans
            raise NetError(str(error)) from None
        if probe.dtype.name not in DTYPES:
            given = ", ".join(operand.dtype for operand in operands)
            raise NetError(f"no result of dtype {probe.dtype} is supported (from {given})")
        return (Type(joint_extent(operands), shape, probe.dtype.name),)

    return types


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, np.ones_like(small), small) / (1 + small)


def erf(x: Array) -> Array:
    """The error function, number by number."""
    values = np.array([math.erf(float(value)) for value in x.ravel()], np.float64)
    return values.reshape(x.shape).astype(x.dtype if x.dtype.kind == "f" else np.float64)


def power(x: Array, *, exponent: float) -> Array:
    """x to a constant power."""
    return np.power(x, exponent)


def cast(x: Array, *, dtype: str) -> Array:
    """x as another dtype."""
    return x.astype(dtype)


def _pointwise(name: str, meaning: Callable[..., Array], flops: int = 1) -> Operation:
    return Operation(name, "pointwise", meaning, pointwise_types(meaning), flops)


# ---- within one element ------------------------------------------------------------------------------------


def element_types(meaning: Callable[..., Array]) -> TypeRule:
    """The type rule of an operation within one element: what its meaning gives on zero rows."""

    def types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
        if any(operand.extent != operands[0].extent for operand in operands):
            raise NetError("an operation within elements takes values of one extent")
        probes = [np.empty((0, *operand.shape), operand.dtype) for operand in operands]
        try:
            result = meaning(*probes, **attributes)
        except ValueError as error:
            raise NetError(str(error)) from None
        return (Type(operands[0].extent, result.shape[1:], result.dtype.name),)

    return types


def slice_features(x: Array, *, slices: tuple[tuple[int, int, int], ...]) -> Array:
    """Part of each feature axis: one (start, stop, step) per axis; a stop of -1 is before the first."""
    index = tuple(slice(start, None if stop < 0 else stop, step) for start, stop, step in slices)
    return x[(..., *index)] if index else x


def reshape(x: Array, *, rank: int, shape: tuple[int, ...]) -> Array:
    """The `rank` feature axes laid out anew as `shape`."""
    return x.reshape(x.shape[: x.ndim - rank] + shape)


def transpose(x: Array, *, order: tuple[int, ...]) -> Array:
    """Feature axes in another order."""
    lead = x.ndim - len(order)
    return x.transpose(*range(lead), *(lead + axis for axis in order))


def broadcast(x: Array, *, rank: int, shape: tuple[int, ...]) -> Array:
    """Feature axes repeated until they have `shape`."""
    lead = x.shape[: x.ndim - rank]
    return np.broadcast_to(
        x.reshape(lead + (1,) * (len(shape) - rank) + x.shape[x.ndim - rank :]), lead + shape
    )


def take(x: Array, *, axis: int, indices: tuple[int, ...]) -> Array:
    """The features at constant `indices` of one axis."""
    return np.take(x, np.array(indices, np.int64), axis=axis)


def concatenate(*arrays: Array, axis: int) -> Array:
    """Features side by side along one axis."""
    return np.concatenate(arrays, axis=axis)


def _view(name: str, meaning: Callable[..., Array]) -> Operation:
    return Operation(name, "view", meaning, element_types(meaning))


def reduce_max(x: Array, *, axes: tuple[int, ...]) -> Array:
    """The largest over feature axes."""
    return np.max(x, axis=axes)


def reduce_min(x: Array, *, axes: tuple[int, ...]) -> Array:
    """The smallest over feature axes."""
    return np.min(x, axis=axes)


def reduce_sum(x: Array, *, axes: tuple[int, ...]) -> Array:
    """The sum over feature axes, in the dtype of the numbers where it is a floating-point one."""
    return np.sum(x, axis=axes)


def argmax(x: Array, *, axes: tuple[int, ...]) -> Array:
    """Where the largest is along one feature axis; the first of equals."""
    return np.argmax(x, axis=axes[0])


def _reduce(name: str, meaning: Callable[..., Array]) -> Operation:
    return Operation(name, "reduce", meaning, element_types(meaning), 1)


def cumsum(x: Array, *, axis: int) -> Array:
    """The sum of each number and all before it along one feature axis."""
    return np.cumsum(x, axis=axis)


def cumprod(x: Array, *, axis: int) -> Array:
    """The product of each number and all before it along one feature axis."""
    return np.cumprod(x, axis=axis)


def _scan(name: str, meaning: Callable[..., Array]) -> Operation:
    return Operation(name, "scan", meaning, element_types(meaning), 1)


# ---- with parameters ---------------------------------------------------------------------------------------


def matmul_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """[..., k] with a constant [k, n] gives [..., n]."""
    left, right = operands
    if right.extent != CONST:
        raise NetError("the right side of a matmul is a parameter")
    if not left.shape or len(right.shape) != 2 or left.shape[-1] != right.shape[0]:
        raise NetError(
            f"{left.element} @ {right.element} does not fit: "
            "the last size of the left must be the first of the right"
        )
    dtype = np.result_type(left.dtype, right.dtype).name
    return (Type(left.extent, (*left.shape[:-1], right.shape[1]), dtype),)


def matmul(left: Array, right: Array) -> Array:
    """Each vector [k] of the left with [k, n], by itself: its bits do not depend on how many there are.

    A library's product of many rows is another one than that of a single row, and rounds differently.
    """
    return np.matmul(left[..., None, :], right)[..., 0, :]


def products(left: Array, *rights: Array) -> tuple[Array, ...]:
    """One left side with several parameters."""
    return tuple(matmul(left, right) for right in rights)


def products_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """What `matmul` gives, for each of the right sides."""
    return tuple(matmul_types((operands[0], right), attributes)[0] for right in operands[1:])


def gather(table: Array, index: Array) -> Array:
    """The rows of a parameter at integer indices; negative ones count from the end."""
    return table[index]


def gather_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """A constant [n, ...] with integers [...] gives [..., ...]."""
    table, index = operands
    if table.extent != CONST or not table.shape:
        raise NetError("gather takes rows of a parameter")
    if not index.dtype.startswith("int"):
        raise NetError(f"gather wants integer indices, not {index.dtype}; cast them with .astype(np.int64)")
    return (Type(index.extent, index.shape + table.shape[1:], table.dtype),)


# ---- sources and extents -----------------------------------------------------------------------------------


def constant(*, value: Literal) -> Array:
    """The array itself."""
    return value.value


def constant_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """The type of the array itself."""
    value = attributes["value"].value
    return (Type(CONST, value.shape, value.dtype.name),)


def input_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """The declared type."""
    return (attributes["type"],)


def index_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """How many steps of its sequence came before: an integer per row."""
    return (Type(ROWS, (), "int64"),)


def result_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """One of several results of one node: here the operands are all of them."""
    of: int = attributes["of"]
    return (operands[of],)


def expand_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """The same element at each entry of a deeper extent."""
    extent, operand = attributes["extent"], operands[0]
    if extent[: len(operand.extent)] != operand.extent or extent == operand.extent:
        raise NetError(f"expand goes to a deeper extent, not from {operand} to {'/'.join(extent)}")
    return (operand.at(extent),)


def reduce_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """The same element, one per entry of the extent around it."""
    if not operands[0].extent:
        raise NetError("reduce takes a value that there is more than one of")
    if attributes["how"] not in REDUCTIONS:
        raise NetError(f"reduce is one of {', '.join(REDUCTIONS)}, not {attributes['how']}")
    if REDUCTIONS[str(attributes["how"])](np.zeros((1, 1), operands[0].dtype)).dtype != operands[0].dtype:
        raise NetError(f"the {attributes['how']} of {operands[0].dtype} is of another dtype; cast it first")
    return (operands[0].at(operands[0].extent[:-1]),)


def contract_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """[k] and [n] of one extent give a constant [k, n], summed over all elements."""
    left, right = operands
    if left.extent != right.extent or not left.extent or len(left.shape) != 1 or len(right.shape) != 1:
        raise NetError(f"contract takes two vectors of one extent, not {left} and {right}")
    return (Type(CONST, left.shape + right.shape, np.result_type(left.dtype, right.dtype).name),)


def recur_types(operands: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """The body's outputs at every step, then each memory's last value.

    What the body has one of per row there is one of per step outside; what it has as a sequence of each row
    is a sequence of each step.
    """
    recur = Recur.of(attributes)
    body, sequences = recur.body, recur.sequence_count
    if sequences < 1:
        raise NetError("a recurrence runs over at least one sequence")
    deep = recur_extent(operands, attributes)
    outputs, following = recur.gives([body.nodes[result].type for result in body.results])
    for position, operand in enumerate(operands):
        inside = body.nodes[body.inputs[position]].type
        outside = CONST if inside.extent == CONST else deep[:-1] + inside.extent[1:]
        if position < sequences:
            outside = deeper(deep, inside.extent)
        if inside.at(outside) != operand:
            raise NetError(f"operand {position} of the recurrence is {operand}, its body expects {inside}")
    for memory, after in zip(recur.given(operands).memories, following, strict=True):
        if memory.element != after.element:
            raise NetError(f"a memory enters the body as {memory.element} and leaves as {after.element}")
    for output in outputs:
        if is_beside(output.extent):
            raise NetError(f"an output is {output}, a sequence that each row has besides: reduce it")
    for what, types in (("an output", outputs), ("a memory", following)):
        for type_ in types:
            if type_.extent == CONST:
                raise NetError(f"{what} of a body is {type_}, one for all rows: expand it to rows")
    for node in body.nodes:
        if node.operation in ("contract", "reduce") and node.type.extent == CONST:
            raise NetError(f"a body mixes no rows, and {node.operation} to const does: it stands outside")
    given = (output.at(deeper(deep, output.extent)) for output in outputs)
    return (*given, *(after.at(deep[:-1]) for after in following))


def recur_extent(operands: Sequence[Type], attributes: Attributes) -> Extent:
    """The extent of the values that a recurrence has one of per step."""
    body = attributes["body"]
    inner = len(body.nodes[body.inputs[0]].type.extent) - 1
    return operands[0].extent[: len(operands[0].extent) - inner]


def deeper(deep: Extent, inside: Extent) -> Extent:
    """The extent outside of what a step has at an extent, where there is one of each row per `deep`."""
    return deep if len(inside) == 1 else extent_of(len(deep) + len(inside) - 1)


REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: x.sum(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
}


def run_by_interpreter(*arrays: Array, **attributes: object) -> Array:
    """The meaning of what crosses extents: only the interpreter knows the lengths."""
    raise NetError("this operation crosses extents; the interpreter runs it")


def _extent(name: str, types: TypeRule) -> Operation:
    return Operation(name, "extent", run_by_interpreter, types)


OPERATIONS: dict[str, Operation] = {
    row.name: row
    for row in (
        _pointwise("add", np.add),
        _pointwise("subtract", np.subtract),
        _pointwise("multiply", np.multiply),
        _pointwise("divide", np.true_divide),
        _pointwise("floor_divide", np.floor_divide),
        _pointwise("remainder", np.remainder),
        _pointwise("minimum", np.minimum),
        _pointwise("maximum", np.maximum),
        _pointwise("equal", np.equal),
        _pointwise("not_equal", np.not_equal),
        _pointwise("less", np.less),
        _pointwise("less_equal", np.less_equal),
        _pointwise("greater", np.greater),
        _pointwise("greater_equal", np.greater_equal),
        _pointwise("logical_and", np.logical_and),
        _pointwise("logical_or", np.logical_or),
        _pointwise("logical_xor", np.logical_xor),
        _pointwise("logical_not", np.logical_not),
        _pointwise("where", np.where),
        _pointwise("negative", np.negative),
        _pointwise("absolute", np.absolute),
        _pointwise("sign", np.sign),
        _pointwise("floor", np.floor),
        _pointwise("ceil", np.ceil),
        _pointwise("rint", np.rint),
        _pointwise("sqrt", np.sqrt),
        _pointwise("exp", np.exp, 10),
        _pointwise("expm1", np.expm1, 10),
        _pointwise("log", np.log, 15),
        _pointwise("log1p", np.log1p, 20),
        _pointwise("sin", np.sin, 40),
        _pointwise("cos", np.cos, 40),
        _pointwise("tan", np.tan, 50),
        _pointwise("arctan", np.arctan, 30),
        _pointwise("sinh", np.sinh, 25),
        _pointwise("cosh", np.cosh, 25),
        _pointwise("tanh", np.tanh, 15),
        _pointwise("sigmoid", sigmoid, 15),
        _pointwise("erf", erf, 30),
        _pointwise("power", power, 30),
        _pointwise("cast", cast, 0),
        _view("slice", slice_features),
        _view("reshape", reshape),
        _view("transpose", transpose),
        _view("broadcast", broadcast),
        _view("take", take),
        _view("concatenate", concatenate),
        _reduce("sum", reduce_sum),
        _reduce("max", reduce_max),
        _reduce("min", reduce_min),
        _reduce("argmax", argmax),
        _scan("cumsum", cumsum),
        _scan("cumprod", cumprod),
        Operation("matmul", "matmul", matmul, matmul_types),
        Operation("products", "matmul", products, products_types),
        Operation("gather", "gather", gather, gather_types),
        Operation("input", "source", run_by_interpreter, input_types),
        Operation("constant", "source", constant, constant_types),
        Operation("index", "source", run_by_interpreter, index_types),
        _extent("result", result_types),
        _extent("expand", expand_types),
        _extent("reduce", reduce_types),
        _extent("contract", contract_types),
        _extent("recur", recur_types),
    )
}
