"""The table of operations: for each its NumPy meaning and its type rule.

A `meaning` takes arrays whose leading axis (if any) is the rows and whose trailing axes are the features, so
feature axes are always counted from the end. The result type of most operations is found by applying the
meaning to arrays of zero rows; only operations that cross extents have type rules of their own.

To add an operation: one row here, and one row in each consumer's own table (the machine code of the llvm
engine, an ONNX name, an ATen name).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.net import meanings, type_rules
from stepnet.compiler.net.type_rules import TypeRule
from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class Operation:
    """Row of the table of operations: name, kind, meaning in NumPy, type rule, and flops per element.

    Kinds: `pointwise` (elementwise), `view` (features rearranged, nothing computed), `reduce` (over feature
    axes), `scan` (prefix sums and products along a feature axis), `matmul`, `gather`, `source` (without
    operands), `extent` (crosses extents, so it needs sequence lengths) and `total` (a sum over all rows).
    """

    name: str
    kind: str
    meaning: Callable[..., Any]
    types: TypeRule
    flops: int = 0


def _pointwise(name: str, meaning: Callable[..., Array], flops: int = 1) -> Operation:
    """Makes the table entry of an elementwise operation: its NumPy function, and flops per element."""
    rule = type_rules.computing(type_rules.pointwise_types(meaning))
    return Operation(name, "pointwise", meaning, rule, flops)


def _view(name: str, meaning: Callable[..., Array]) -> Operation:
    """Makes the table entry of an operation whose NumPy function `meaning` only rearranges features."""
    return Operation(name, "view", meaning, type_rules.element_types(meaning))


def _reduce(name: str, meaning: Callable[..., Array]) -> Operation:
    """Makes the table entry of a reduction over feature axes: its NumPy function, one flop per element."""
    return Operation(name, "reduce", meaning, type_rules.computing(type_rules.element_types(meaning)), 1)


def _scan(name: str, meaning: Callable[..., Array]) -> Operation:
    """Makes the table entry of a prefix sum or product along a feature axis, by NumPy's `meaning`."""
    return Operation(name, "scan", meaning, type_rules.computing(type_rules.element_types(meaning)), 1)


def _extent(name: str, types: TypeRule) -> Operation:
    """Makes the table entry of an operation that needs sequence lengths: the interpreter computes it."""
    return Operation(name, "extent", meanings.run_by_interpreter, types)


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
        _pointwise("bitwise_and", np.bitwise_and),
        _pointwise("bitwise_or", np.bitwise_or),
        _pointwise("bitwise_xor", np.bitwise_xor),
        _pointwise("invert", np.invert),
        _pointwise("left_shift", np.left_shift),
        _pointwise("right_shift", np.right_shift),
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
        _pointwise("sigmoid", meanings.sigmoid, 15),
        _pointwise("erf", meanings.erf, 30),
        _pointwise("power", meanings.power, 30),
        Operation("cast", "pointwise", meanings.cast, type_rules.cast_types),
        _pointwise("detach", np.positive, 0),
        _view("slice", meanings.slice_features),
        _view("reshape", meanings.reshape),
        _view("transpose", meanings.transpose),
        _view("broadcast", meanings.broadcast),
        _view("take", meanings.take),
        _view("concatenate", meanings.concatenate),
        _reduce("sum", meanings.over_axes(np.sum)),
        _reduce("max", meanings.over_axes(np.max)),
        _reduce("min", meanings.over_axes(np.min)),
        _reduce("argmax", meanings.argmax),
        _scan("cumsum", np.cumsum),
        _scan("cumprod", np.cumprod),
        Operation("matmul", "matmul", meanings.matmul, type_rules.computing(type_rules.matmul_types)),
        Operation("products", "matmul", meanings.products, type_rules.computing(type_rules.products_types)),
        Operation("gather", "gather", meanings.gather, type_rules.gather_types),
        Operation("scatter", "total", meanings.scatter, type_rules.scatter_types),
        Operation("input", "source", meanings.run_by_interpreter, type_rules.input_types),
        Operation("constant", "source", meanings.constant, type_rules.constant_types),
        Operation("index", "source", meanings.run_by_interpreter, type_rules.index_types),
        _extent("result", type_rules.result_types),
        _extent("expand", type_rules.expand_types),
        _extent("reduce", type_rules.reduce_types),
        _extent("windows", type_rules.computing(type_rules.windows_types)),
        _extent("overlap", type_rules.computing(type_rules.overlap_types)),
        _extent("scores", type_rules.computing(type_rules.scores_types)),
        _extent("mix", type_rules.computing(type_rules.mix_types)),
        _extent("arrange", type_rules.arrange_types),
        _extent("extend", type_rules.computing(type_rules.extend_types)),
        _extent("matrix_gradients", type_rules.matrix_gradients_types),
        Operation("contract", "total", meanings.run_by_interpreter, type_rules.contract_types),
        _extent("recur", type_rules.recur_types),
    )
}
