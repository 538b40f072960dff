"""Writes the operations of nets as ONNX's operators: a table with one row per operation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import Type
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.onnx.scope import OnnxValue, Scope

Array = np.ndarray
LEAST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class WrittenOperation:
    """Operation of a net that is being written as ONNX.

    scope: the graph to which nodes are added. node: the node of the net. operands: the names of its operands
    in ONNX.
    """

    scope: Scope
    node: Node
    operands: tuple[OnnxValue, ...]

    @property
    def x(self) -> OnnxValue:
        """First operand of the operation that is written as ONNX."""
        return self.operands[0]

    @property
    def type(self) -> Type:
        """Type of the result of the operation that is written as ONNX."""
        return self.node.type

    def attribute(self, name: str) -> Any:
        """Returns an attribute, by name, of the operation that is written as ONNX."""
        return self.node.attributes[name]

    def result(self, op: str, *inputs: OnnxValue | str | Array, **attributes: Any) -> OnnxValue:
        """Adds a node of an ONNX operator, whose output is the operation's result; returns this output."""
        return self.scope.apply(op, self.type, *inputs, **attributes)

    def axis(self, axis: int) -> int:
        """Returns ONNX's axis of a feature of the first operand. axis: negative, counted from the end."""
        return axis + self.x.lead + self.x.rank

    def joint(self, dtype: str, operands: Sequence[OnnxValue] | None = None) -> list[OnnxValue]:
        """Casts operands (None: the operation's own) to a dtype, and adds axes of size one ahead of their
        features, so that all have as many and ONNX broadcasts them rightly.
        """
        chosen = self.operands if operands is None else operands
        rank = len(self.type.shape)
        return [self.scope.with_rank(self.scope.typed(value, dtype), rank) for value in chosen]


Rule = Callable[[WrittenOperation], OnnxValue]


# ---- elementwise -------------------------------------------------------------------------------------------


def arithmetic(op: str) -> Rule:
    """Makes the function that writes an operation of a net as the ONNX operator `op`, in the dtype of its
    result. Booleans are computed as 0 and 1.
    """

    def rule(call: WrittenOperation) -> OnnxValue:
        """Writes an operation of a net as the ONNX operator `op`; booleans are cast to int32 and back."""
        dtype = "int32" if call.type.dtype == "bool" else call.type.dtype
        result = call.scope.apply(op, replace(call.type, dtype=dtype), *call.joint(dtype))
        return call.scope.typed(result, call.type.dtype)

    return rule


def but_float64(op: str) -> Rule:
    """Makes the function that writes an operation as the ONNX operator `op`, which onnxruntime does not have
    for float64: it would not load the file. Writing an operation of float64 therefore raises `ModelError`.
    """
    write = arithmetic(op)

    def rule(call: WrittenOperation) -> OnnxValue:
        """Writes an operation as the ONNX operator `op`, in its result's dtype; `ModelError` for float64."""
        if call.type.dtype == "float64":
            raise ModelError(f"onnxruntime has no {op} of float64: compute it of x.astype(np.float32)")
        return write(call)

    return rule


def comparison(op: str, negated: bool = False) -> Rule:
    """Makes the function that writes a comparison as the ONNX operator `op`, then a Not if `negated`."""

    def rule(call: WrittenOperation) -> OnnxValue:
        """Writes a comparison as ONNX's `op` in the operands' common dtype, and a Not if negated."""
        dtype = np.result_type(*(value.type.dtype for value in call.operands)).name
        result = call.result(op, *call.joint("int32" if dtype == "bool" else dtype))
        return call.result("Not", result) if negated else result

    return rule


def logical(op: str) -> Rule:
    """Makes the rule that writes an operation on booleans as the ONNX operator `op`."""
    return lambda call: call.result(op, *call.joint("bool"))


def where(call: WrittenOperation) -> OnnxValue:
    """Writes a choice between two values as ONNX's Where, with equally many feature axes for all three."""
    condition, *values = call.operands
    (chosen,) = call.joint("bool", [condition])
    result = call.scope.chosen(chosen, *call.joint(call.type.dtype, values))
    return replace(result, type=call.type)


def composed(function: Callable[..., str]) -> Rule:
    """Makes the function that writes an operation of a net as several ONNX operators.

    function: called as function(op, number, *operands), where op adds an operator and number makes a
    constant, both in the result's dtype.
    """

    def rule(call: WrittenOperation) -> OnnxValue:
        """Writes an operation of a net as several ONNX operators, in the dtype of its result."""

        def number(value: float) -> Array:
            """Makes a constant in the dtype of the result."""
            return np.asarray(value, call.type.dtype)

        return OnnxValue(call.type, function(call.scope.node, number, *call.joint(call.type.dtype)))

    return rule


def expm1(op: Any, number: Any, x: OnnxValue) -> str:
    """Writes exp(x) - 1 as tanh(x / 2) (exp(x) + 1), which loses no digits near 0. op: a function that adds
    an ONNX operator and returns the name of its result. number: a function that makes a constant.
    """
    return op("Mul", op("Tanh", op("Mul", x, number(0.5))), op("Add", op("Exp", x), number(1)))


def log1p(op: Any, number: Any, x: OnnxValue) -> str:
    """Writes log(1 + x) as log(u) x / (u - 1) with u = 1 + x, which loses no digits near 0.

    op: a function that adds an ONNX operator and returns the name of its result. number: a function that
    makes a constant.

    Source: W. Kahan; D. Goldberg, "What every computer scientist should know about floating-point
    arithmetic", ACM Computing Surveys 23 (1991), theorem 4.
    """
    u = op("Add", x, number(1))
    log = op("Log", u)
    near = op("Mul", log, op("Div", x, op("Sub", u, number(1))))
    result = op("Where", op("Less", x, number(1)), near, log)
    return op("Where", op("Equal", u, number(1)), x, result)


def remainder(op: Any, number: Any, x: OnnxValue, y: OnnxValue) -> str:
    """Writes the remainder of x / y with the sign of y: ONNX's Mod for integers; for floats its fmod, plus y
    where the signs differ.

    op: a function that adds an ONNX operator and returns the name of its result. number: a function that
    makes a constant.
    """
    if not x.type.is_float:
        return op("Mod", x, y)
    result = op("Mod", x, y, fmod=1)
    differs = op("Xor", op("Less", result, number(0)), op("Less", y, number(0)))
    wrong = op("And", differs, op("Not", op("Equal", result, number(0))))
    return op("Where", wrong, op("Add", result, y), result)


def floor_divide(op: Any, number: Any, x: OnnxValue, y: OnnxValue) -> str:
    """Writes x / y rounded down. op: adds an ONNX operator, returns its result. number: makes a constant."""
    whole = op("Div", op("Sub", x, remainder(op, number, x, y)), y)
    return op("Round", whole) if x.type.is_float else whole


def power(call: WrittenOperation) -> OnnxValue:
    """Writes the operand raised to a constant power as ONNX's Pow."""
    dtype = call.type.dtype
    return call.result("Pow", *call.joint(dtype), np.asarray(call.attribute("exponent"), dtype))


# ---- features moved ---------------------------------------------------------------------------------------


def slice_(call: WrittenOperation) -> OnnxValue:
    """Writes a slice of the features as ONNX's Slice; returns the operand itself if nothing is cut off. A
    stop of -1, in a slice with a negative step, means up to the first entry.
    """
    slices = [(axis, *part) for axis, part in enumerate(call.attribute("slices"))]
    sizes = call.x.type.shape
    parts = [part for part in slices if part[1:] != (0, sizes[part[0]], 1)]
    if not parts:
        return call.x
    axes, starts, stops, steps = np.array(parts, np.int64).T
    stops = np.where(stops < 0, LEAST, stops)
    return call.result("Slice", call.x, starts, stops, axes + call.x.lead, steps)


def transpose(call: WrittenOperation) -> OnnxValue:
    """Writes the operand with the axes of its features permuted as ONNX's Transpose."""
    lead = call.x.lead
    return call.result(
        "Transpose", call.x, perm=[*range(lead), *(lead + axis for axis in call.attribute("order"))]
    )


def broadcast(call: WrittenOperation) -> OnnxValue:
    """Writes the operand with its features broadcast to another shape as ONNX's Expand."""
    x = call.scope.with_rank(call.x, len(call.type.shape))
    if x.type.shape == call.type.shape:
        return x
    return call.result("Expand", x, np.array([1] * x.lead + [*call.type.shape], np.int64))


def take(call: WrittenOperation) -> OnnxValue:
    """Writes the selection of features at constant indices as ONNX's Gather."""
    indices = np.array(call.attribute("indices"), np.int64)
    return call.result("Gather", call.x, indices, axis=call.axis(call.attribute("axis")))


def concatenate(call: WrittenOperation) -> OnnxValue:
    """Writes a concatenation of features as ONNX's Concat."""
    values = [call.scope.typed(value, call.type.dtype) for value in call.operands]
    return call.result("Concat", *values, axis=call.axis(call.attribute("axis")))


# ---- over features -----------------------------------------------------------------------------------------


def over_features(op: str, axes_are: str) -> Rule:
    """Makes the function that writes a reduction over features as the ONNX operator `op`.

    axes_are: how the operator takes its axes, as an "input" or an "attribute".
    """

    def rule(call: WrittenOperation) -> OnnxValue:
        """Writes a reduction as the ONNX operator `op`; booleans are computed as 0 and 1."""
        dtype = "int32" if call.type.dtype == "bool" else call.type.dtype
        x, axes = call.scope.typed(call.x, dtype), [call.axis(axis) for axis in call.attribute("axes")]
        type_ = replace(call.type, dtype=dtype)
        if axes_are == "input":
            result = call.scope.apply(op, type_, x, np.array(axes, np.int64), keepdims=0)
        else:
            result = call.scope.apply(op, type_, x, axes=axes, keepdims=0)
        return call.scope.typed(result, call.type.dtype)

    return rule


def argmax(call: WrittenOperation) -> OnnxValue:
    """Writes the index of the maximum along an axis of features as ONNX's ArgMax."""
    dtype = "int32" if call.x.type.dtype == "bool" else call.x.type.dtype
    (axis,) = call.attribute("axes")
    return call.result("ArgMax", call.scope.typed(call.x, dtype), axis=call.axis(axis), keepdims=0)


def cumsum(call: WrittenOperation) -> OnnxValue:
    """Writes the prefix sums along an axis of features as ONNX's CumSum."""
    x = call.scope.typed(call.x, call.type.dtype)
    return call.result("CumSum", x, np.array(call.axis(call.attribute("axis"))))


def cumprod(call: WrittenOperation) -> OnnxValue:
    """Writes the prefix products along an axis of features, for which ONNX has no operator: as products with
    copies shifted by 1, 2, 4, ... places.
    """
    scope, x, axis = call.scope, call.scope.typed(call.x, call.type.dtype), call.axis(call.attribute("axis"))
    name, shift = scope.name(x), 1
    while shift < x.type.shape[axis - x.lead]:
        pads = np.zeros((2, x.lead + x.rank), np.int64)
        pads[:, axis] = shift, -shift
        shifted = scope.node("Pad", name, pads.ravel(), np.ones((), call.type.dtype))
        name, shift = scope.node("Mul", name, shifted), 2 * shift
    return OnnxValue(call.type, name)


# ---- products ----------------------------------------------------------------------------------------------


OPERATORS: Mapping[str, Rule] = {
    "add": arithmetic("Add"),
    "subtract": arithmetic("Sub"),
    "multiply": arithmetic("Mul"),
    "divide": arithmetic("Div"),
    "floor_divide": composed(floor_divide),
    "remainder": composed(remainder),
    "minimum": arithmetic("Min"),
    "maximum": arithmetic("Max"),
    "equal": comparison("Equal"),
    "not_equal": comparison("Equal", negated=True),
    "less": comparison("Less"),
    "less_equal": comparison("LessOrEqual"),
    "greater": comparison("Greater"),
    "greater_equal": comparison("GreaterOrEqual"),
    "logical_and": logical("And"),
    "logical_or": logical("Or"),
    "logical_xor": logical("Xor"),
    "logical_not": logical("Not"),
    "where": where,
    "negative": arithmetic("Neg"),
    "absolute": arithmetic("Abs"),
    "sign": arithmetic("Sign"),
    "floor": arithmetic("Floor"),
    "ceil": arithmetic("Ceil"),
    "rint": arithmetic("Round"),
    "sqrt": arithmetic("Sqrt"),
    "exp": arithmetic("Exp"),
    "expm1": composed(expm1),
    "log": arithmetic("Log"),
    "log1p": composed(log1p),
    "sin": arithmetic("Sin"),
    "cos": arithmetic("Cos"),
    "tan": but_float64("Tan"),
    "arctan": but_float64("Atan"),
    "sinh": but_float64("Sinh"),
    "cosh": but_float64("Cosh"),
    "tanh": arithmetic("Tanh"),
    "sigmoid": arithmetic("Sigmoid"),
    "erf": but_float64("Erf"),
    "power": power,
    "cast": lambda call: call.scope.typed(call.x, call.type.dtype),
    "detach": lambda call: call.x,
    "slice": slice_,
    "reshape": lambda call: call.scope.shaped(call.x, call.type.shape),
    "transpose": transpose,
    "broadcast": broadcast,
    "take": take,
    "concatenate": concatenate,
    "sum": over_features("ReduceSum", "input"),
    "max": over_features("ReduceMax", "attribute"),
    "min": over_features("ReduceMin", "attribute"),
    "argmax": argmax,
    "cumsum": cumsum,
    "cumprod": cumprod,
    "matmul": lambda call: call.result(
        "MatMul", *(call.scope.typed(value, call.type.dtype) for value in call.operands)
    ),
    "gather": lambda call: call.result("Gather", *call.operands, axis=0),
}
"""The rule of each operation. Operations that change the extent of a value are in `extents.py`."""
