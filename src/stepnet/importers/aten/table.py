"""The ATen operations that a step or a module may use: a table from the name of each to its entry
(`AtenOperation`).

    tanh.default    elementwise("tanh")             an operator of the table in `importers/pointwise.py`
    clamp.Tensor    pointwise(rules.clamp)          a rule on features, for arguments that only PyTorch has
    cumsum.default  AtenOperation(on_axes=along(cumulate))    an operator of `importers` on values with axes

The functions that make entries handle PyTorch's rules for dtypes: integers with floats give float32, where
NumPy gives float64. To add an operation, add an entry here, and a rule in `rules` or `places` if there is no
operator.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stepnet.importers import reductions
from stepnet.importers.aten import axis_rules, channels, module_sequences, over_steps, places, rules, windows
from stepnet.importers.aten.replay import Rule
from stepnet.importers.aten.rows import AtenOperation
from stepnet.importers.aten.rules import InferredResult, as_bool, to
from stepnet.importers.pointwise import OPERATORS

Function = Callable[..., Any]


def promoted(function: Function, folded: bool = False, steps: Function | None = None) -> AtenOperation:
    """Makes the `ATEN` table entry (how to compute an operation of PyTorch) of one whose operands are first
    cast to the dtype of the result.

    function: computes it. folded: whether it is elementwise. steps: computes it along the steps of each
    sequence; None if that is refused.
    """

    def rule(result: InferredResult, *values: Any, **options: Any) -> Any:
        """Casts the operands to the dtype of the result, and calls the function."""
        return function(*to(result.dtype, values), **options)

    return AtenOperation(rule, folded, steps)


def pointwise(function: Function) -> AtenOperation:
    """Makes the `ATEN` table entry (how to compute an operation of PyTorch) of an elementwise operation.
    function: computes it from operands that are cast to the dtype of the result.
    """
    return promoted(function, folded=True)


def elementwise(operator: str) -> AtenOperation:
    """Makes the `ATEN` table entry (how to compute an operation of PyTorch) of an elementwise operator.
    operator: its name in the table `OPERATORS`, such as "tanh". Operands are cast to the dtype of the result.
    """
    return pointwise(OPERATORS[operator].function)


def comparison(operator: str) -> AtenOperation:
    """Makes the `ATEN` table entry (how to compute an operation of PyTorch) of an elementwise comparison.

    operator: its name in the table `OPERATORS`, such as "less". Operands are cast to their common dtype.
    """

    def rule(result: InferredResult, *values: Any) -> Any:
        """Casts the operands to their common dtype, and compares them."""
        return OPERATORS[operator].function(*to(result.common, values))

    return AtenOperation(rule, folded=True)


def logical(operator: str) -> AtenOperation:
    """Makes the `ATEN` table entry (how to compute an operation of PyTorch) of a logical operation.

    operator: its name in the table `OPERATORS`, such as "logical_and". Operands are converted to booleans.
    """

    def rule(_: InferredResult, *values: Any) -> Any:
        """Converts the operands to booleans, and computes the operation."""
        return OPERATORS[operator].function(*map(as_bool, values))

    return AtenOperation(rule, folded=True)


def uncast(function: Function, folded: bool = False, on_axes: Rule | None = None) -> AtenOperation:
    """Makes the `ATEN` table entry (how to compute an operation of PyTorch) of one whose operands are not
    cast.

    function: computes it. folded: whether it is elementwise. on_axes: computes it from operands with named
    axes; where it returns None, `function` is called.
    """

    def rule(_: InferredResult, *values: Any, **options: Any) -> Any:
        """Calls the function without the inferred result, which it does not need."""
        return function(*values, **options)

    return AtenOperation(rule, folded, on_axes=on_axes)


ATEN: Mapping[str, AtenOperation] = {
    # pointwise
    "add.Tensor": pointwise(rules.add),
    "add.Scalar": pointwise(rules.add),
    "sub.Tensor": pointwise(rules.subtract),
    "mul.Tensor": elementwise("multiply"),
    "mul.Scalar": elementwise("multiply"),
    "div.Tensor": pointwise(rules.divide),
    "div.Tensor_mode": pointwise(rules.divide),
    "remainder.Tensor": elementwise("remainder"),
    "remainder.Scalar": elementwise("remainder"),
    "remainder.Scalar_Tensor": elementwise("remainder"),
    "fmod.Tensor": pointwise(np.fmod),
    "fmod.Scalar": pointwise(np.fmod),
    "hypot.default": pointwise(np.hypot),
    "neg.default": elementwise("negative"),
    "abs.default": elementwise("absolute"),
    "sign.default": pointwise(rules.sign),
    "floor.default": pointwise(rules.rounding(np.floor)),
    "ceil.default": pointwise(rules.rounding(np.ceil)),
    "round.default": pointwise(rules.rounding(np.rint)),
    "trunc.default": pointwise(rules.rounding(rules.truncate)),
    "exp.default": elementwise("exp"),
    "exp2.default": elementwise("exp2"),
    "expm1.default": elementwise("expm1"),
    "log.default": elementwise("log"),
    "log1p.default": elementwise("log1p"),
    "log2.default": pointwise(rules.logarithm(2)),
    "log10.default": pointwise(rules.logarithm(10)),
    "sqrt.default": elementwise("sqrt"),
    "rsqrt.default": elementwise("rsqrt"),
    "reciprocal.default": elementwise("reciprocal"),
    "pow.Tensor_Scalar": pointwise(rules.power),
    "pow.Scalar": pointwise(rules.power_of),
    "pow.Tensor_Tensor": pointwise(np.power),
    "sin.default": elementwise("sin"),
    "cos.default": elementwise("cos"),
    "tan.default": elementwise("tan"),
    "asin.default": elementwise("arcsin"),
    "acos.default": elementwise("arccos"),
    "atan.default": elementwise("arctan"),
    "atan2.default": elementwise("arctan2"),
    "asinh.default": elementwise("arcsinh"),
    "acosh.default": elementwise("arccosh"),
    "atanh.default": elementwise("arctanh"),
    "sinh.default": elementwise("sinh"),
    "cosh.default": elementwise("cosh"),
    "tanh.default": elementwise("tanh"),
    "sigmoid.default": elementwise("sigmoid"),
    "erf.default": elementwise("erf"),
    "relu.default": elementwise("relu"),
    "leaky_relu.default": elementwise("leaky_relu"),
    "elu.default": pointwise(rules.elu),
    "gelu.default": pointwise(rules.gelu),
    "hardtanh.default": pointwise(rules.hardtanh),
    "minimum.default": elementwise("minimum"),
    "maximum.default": elementwise("maximum"),
    "clamp.default": pointwise(rules.clamp),
    "clamp.Tensor": pointwise(rules.clamp),
    "where.self": AtenOperation(rules.chosen, True),
    "eq.Tensor": comparison("equal"),
    "eq.Scalar": comparison("equal"),
    "ne.Tensor": comparison("not_equal"),
    "ne.Scalar": comparison("not_equal"),
    "lt.Tensor": comparison("less"),
    "lt.Scalar": comparison("less"),
    "le.Tensor": comparison("less_equal"),
    "le.Scalar": comparison("less_equal"),
    "gt.Tensor": comparison("greater"),
    "gt.Scalar": comparison("greater"),
    "ge.Tensor": comparison("greater_equal"),
    "ge.Scalar": comparison("greater_equal"),
    "isnan.default": uncast(np.isnan, folded=True),
    "isinf.default": uncast(rules.is_infinite, folded=True),
    "logical_and.default": logical("logical_and"),
    "logical_or.default": logical("logical_or"),
    "logical_xor.default": logical("logical_xor"),
    "logical_not.default": logical("logical_not"),
    "bitwise_and.Tensor": pointwise(np.bitwise_and),
    "bitwise_and.Scalar": pointwise(np.bitwise_and),
    "bitwise_or.Tensor": pointwise(np.bitwise_or),
    "bitwise_or.Scalar": pointwise(np.bitwise_or),
    "bitwise_xor.Tensor": pointwise(np.bitwise_xor),
    "bitwise_xor.Scalar": pointwise(np.bitwise_xor),
    "bitwise_not.default": pointwise(np.invert),
    "_to_copy.default": AtenOperation(rules.cast, True, on_axes=axis_rules.unchanged_order),
    "copy.default": AtenOperation(places.copied),
    "clone.default": uncast(rules.itself, folded=True, on_axes=axis_rules.unchanged_order),
    "detach.default": uncast(rules.detached, folded=True),
    "alias.default": uncast(rules.itself, folded=True, on_axes=axis_rules.aliased),
    "lift_fresh_copy.default": uncast(rules.itself, folded=True),
    # along features
    "max.dim": promoted(rules.largest_and_index, steps=over_steps.without_index("max")),
    "min.dim": promoted(rules.smallest_and_index, steps=over_steps.without_index("min")),
    "prod.dim_int": promoted(rules.product_along),
    "cumprod.default": promoted(rules.along(np.cumprod)),
    "argmax.default": uncast(rules.index_of_largest),
    "argmin.default": uncast(rules.index_of_smallest),
    "var.correction": promoted(rules.variance, steps=over_steps.variance),
    "var_mean.correction": promoted(rules.variance_and_mean, steps=over_steps.variance_and_mean),
    "linalg_vector_norm.default": promoted(rules.norm, steps=over_steps.norm),
    "native_layer_norm.default": promoted(rules.layer_norm),
    # that move or split features
    "select.int": uncast(places.along, on_axes=axis_rules.selected),
    "slice.Tensor": uncast(places.sliced, on_axes=axis_rules.sliced),
    "split_with_sizes.default": uncast(places.split_by_sizes),
    "flip.default": uncast(places.flipped),
    "roll.default": uncast(places.rolled),
    "slice_scatter.default": uncast(places.slice_replaced, on_axes=axis_rules.replaced),
    # that index by integers
    "embedding.default": uncast(places.embedded),
    "index.Tensor": AtenOperation(places.indexed, on_axes=axis_rules.indexed),
    "index_select.default": AtenOperation(places.index_selected, on_axes=axis_rules.index_selected),
    "gather.default": AtenOperation(places.gathered, on_axes=axis_rules.gathered),
    # that make new values
    "empty.memory_format": AtenOperation(places.undefined),
    "empty_permuted.default": AtenOperation(places.undefined),
    "full.default": AtenOperation(places.filled, on_axes=axis_rules.filled_with_steps),
    "full_like.default": AtenOperation(places.filled, on_axes=axis_rules.filled_with_steps),
    "scalar_tensor.default": AtenOperation(places.number),
    "eye.default": AtenOperation(places.identity),
    "eye.m": AtenOperation(places.identity),
    "arange.start_step": AtenOperation(places.arange, on_axes=axis_rules.arange),
    # on named axes
    "view.default": AtenOperation(on_axes=axis_rules.viewed),
    "_unsafe_view.default": AtenOperation(on_axes=axis_rules.viewed),
    "unsqueeze.default": AtenOperation(on_axes=axis_rules.viewed),
    "squeeze.dims": AtenOperation(on_axes=axis_rules.squeezed),
    "permute.default": AtenOperation(on_axes=axis_rules.permuted),
    "expand.default": AtenOperation(on_axes=axis_rules.expanded),
    "repeat.default": AtenOperation(on_axes=axis_rules.repeated),
    "cat.default": AtenOperation(on_axes=axis_rules.concatenated),
    "sum.dim_IntList": AtenOperation(on_axes=axis_rules.reduced("sum")),
    "mean.default": AtenOperation(on_axes=axis_rules.reduced("mean")),
    "mean.dim": AtenOperation(on_axes=axis_rules.reduced("mean")),
    "amax.default": AtenOperation(on_axes=axis_rules.reduced("max")),
    "max.default": AtenOperation(on_axes=axis_rules.reduced("max")),
    "amin.default": AtenOperation(on_axes=axis_rules.reduced("min")),
    "min.default": AtenOperation(on_axes=axis_rules.reduced("min")),
    "any.default": AtenOperation(on_axes=axis_rules.any_true),
    "any.dim": AtenOperation(on_axes=axis_rules.any_true),
    "any.dims": AtenOperation(on_axes=axis_rules.any_true),
    "cumsum.default": AtenOperation(on_axes=axis_rules.along(reductions.cumulate)),
    "_softmax.default": AtenOperation(on_axes=axis_rules.along(reductions.softmax)),
    "_log_softmax.default": AtenOperation(on_axes=axis_rules.along(reductions.log_softmax)),
    "scatter.src": AtenOperation(on_axes=module_sequences.scattered),
    "mm.default": AtenOperation(on_axes=axis_rules.multiplied),
    "mv.default": AtenOperation(on_axes=axis_rules.multiplied),
    "bmm.default": AtenOperation(on_axes=axis_rules.multiplied),
    "addmm.default": AtenOperation(on_axes=axis_rules.scaled_sum),
    "stepnet.layer.default": AtenOperation(on_axes=module_sequences.layer),
    "stepnet.packed.default": AtenOperation(on_axes=module_sequences.packed),
    "stepnet.padded.default": AtenOperation(on_axes=module_sequences.padded),
    "stepnet.convolved.default": AtenOperation(on_axes=windows.convolved),
    "stepnet.convolved_transposed.default": AtenOperation(on_axes=windows.convolved_transposed),
    "stepnet.cut.default": AtenOperation(on_axes=windows.cut_off),
    "stepnet.repeated.default": AtenOperation(on_axes=windows.repeated_steps),
    "stepnet.extended.default": AtenOperation(on_axes=windows.extended_steps),
    "stepnet.pooled.default": AtenOperation(on_axes=windows.pooled),
    "stepnet.group_normed.default": AtenOperation(on_axes=channels.group_norm),
    "stepnet.attended.default": AtenOperation(on_axes=axis_rules.attention),
    "stepnet.sorted.default": AtenOperation(on_axes=module_sequences.sorted_rows),
}
"""The entry of each operation, by name."""
