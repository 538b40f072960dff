"""The ATen operations that a step may use: a table from the name of each to its rule.

The functions that make rows handle PyTorch's rules for dtypes: integers with floats give float32, where NumPy
gives float64. To add an operation, add a row here, and a rule in `rules` or `places` if NumPy has no
function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.traced import refuse
from stepnet.torch import over_steps, places, rules
from stepnet.torch.rules import InferredResult, as_bool, to

Function = Callable[..., Any]


@dataclass(frozen=True)
class AtenOperation:
    """Row of the table of ATen operations that a step may use.

    rule: computes the result from the `InferredResult` that PyTorch infers and the operation's arguments.
    folded: whether the operation accepts values whose first axis is rows and positions joined. steps:
    computes the operation along the steps of sequences, in a model; None if it has no such meaning.
    """

    rule: Function
    folded: bool = False
    steps: Function | None = None


def promoted(function: Function, folded: bool = False, steps: Function | None = None) -> AtenOperation:
    """Makes the row of an operation that `function` computes after all operands are cast to the result's
    dtype.
    """

    def rule(result: InferredResult, *values: Any, **options: Any) -> Any:
        return function(*to(result.dtype, values), **options)

    return AtenOperation(rule, folded, steps)


def pointwise(function: Function) -> AtenOperation:
    """Makes the row of an elementwise operation whose operands are first cast to the dtype of the result."""
    return promoted(function, folded=True)


def compared(function: Function) -> AtenOperation:
    """Makes the row of an elementwise comparison whose operands are first cast to their common dtype."""

    def rule(result: InferredResult, *values: Any) -> Any:
        return function(*to(result.common, values))

    return AtenOperation(rule, folded=True)


def of_bits(function: Function) -> AtenOperation:
    """Makes the row of a bitwise operation, which accepts booleans only: steps have no integer bits."""

    def rule(result: InferredResult, *values: Any) -> Any:
        if result.dtype != "bool":
            raise refuse("&, |, ^ and ~ are for booleans in a step: integers have no bits here")
        return function(*values)

    return AtenOperation(rule, folded=True)


def truths(function: Function) -> AtenOperation:
    """Makes the row of an elementwise logical operation: operands become booleans, true where they are not
    zero.
    """

    def rule(_: InferredResult, *values: Any) -> Any:
        return function(*map(as_bool, values))

    return AtenOperation(rule, folded=True)


def plain(function: Function, folded: bool = False, steps: Function | None = None) -> AtenOperation:
    """Makes the row of an operation that `function` computes from its operands as they are, without casts."""

    def rule(_: InferredResult, *values: Any, **options: Any) -> Any:
        return function(*values, **options)

    return AtenOperation(rule, folded, steps)


TABLE: dict[str, AtenOperation] = {
    # pointwise
    "add.Tensor": pointwise(rules.add),
    "add.Scalar": pointwise(rules.add),
    "sub.Tensor": pointwise(rules.subtract),
    "mul.Tensor": pointwise(np.multiply),
    "mul.Scalar": pointwise(np.multiply),
    "div.Tensor": pointwise(rules.divide),
    "div.Tensor_mode": pointwise(rules.divide),
    "remainder.Tensor": pointwise(np.remainder),
    "remainder.Scalar": pointwise(np.remainder),
    "remainder.Scalar_Tensor": pointwise(np.remainder),
    "neg.default": pointwise(np.negative),
    "abs.default": pointwise(np.absolute),
    "sign.default": pointwise(rules.sign),
    "floor.default": pointwise(rules.rounding(np.floor)),
    "ceil.default": pointwise(rules.rounding(np.ceil)),
    "round.default": pointwise(rules.rounding(np.rint)),
    "trunc.default": pointwise(rules.rounding(rules.truncate)),
    "exp.default": pointwise(np.exp),
    "expm1.default": pointwise(np.expm1),
    "log.default": pointwise(np.log),
    "log1p.default": pointwise(np.log1p),
    "log2.default": pointwise(rules.logarithm(2)),
    "log10.default": pointwise(rules.logarithm(10)),
    "sqrt.default": pointwise(np.sqrt),
    "rsqrt.default": pointwise(rules.inverse_root),
    "reciprocal.default": pointwise(np.reciprocal),
    "pow.Tensor_Scalar": pointwise(rules.power),
    "pow.Scalar": pointwise(rules.power_of),
    "sin.default": pointwise(np.sin),
    "cos.default": pointwise(np.cos),
    "tan.default": pointwise(np.tan),
    "atan.default": pointwise(np.arctan),
    "sinh.default": pointwise(np.sinh),
    "cosh.default": pointwise(np.cosh),
    "tanh.default": pointwise(np.tanh),
    "sigmoid.default": pointwise(functions.sigmoid),
    "erf.default": pointwise(functions.erf),
    "relu.default": pointwise(functions.relu),
    "leaky_relu.default": pointwise(functions.leaky_relu),
    "elu.default": pointwise(rules.elu),
    "gelu.default": pointwise(rules.gelu),
    "hardtanh.default": pointwise(rules.hardtanh),
    "minimum.default": pointwise(np.minimum),
    "maximum.default": pointwise(np.maximum),
    "clamp.default": pointwise(rules.clamp),
    "clamp.Tensor": pointwise(rules.clamp),
    "where.self": AtenOperation(rules.chosen, True),
    "eq.Tensor": compared(np.equal),
    "eq.Scalar": compared(np.equal),
    "ne.Tensor": compared(np.not_equal),
    "ne.Scalar": compared(np.not_equal),
    "lt.Tensor": compared(np.less),
    "lt.Scalar": compared(np.less),
    "le.Tensor": compared(np.less_equal),
    "le.Scalar": compared(np.less_equal),
    "gt.Tensor": compared(np.greater),
    "gt.Scalar": compared(np.greater),
    "ge.Tensor": compared(np.greater_equal),
    "ge.Scalar": compared(np.greater_equal),
    "isnan.default": plain(np.isnan, folded=True),
    "isinf.default": plain(rules.is_infinite, folded=True),
    "logical_and.default": truths(np.logical_and),
    "logical_or.default": truths(np.logical_or),
    "logical_xor.default": truths(np.logical_xor),
    "logical_not.default": truths(np.logical_not),
    "bitwise_and.Tensor": of_bits(np.logical_and),
    "bitwise_and.Scalar": of_bits(np.logical_and),
    "bitwise_or.Tensor": of_bits(np.logical_or),
    "bitwise_or.Scalar": of_bits(np.logical_or),
    "bitwise_xor.Tensor": of_bits(np.logical_xor),
    "bitwise_xor.Scalar": of_bits(np.logical_xor),
    "bitwise_not.default": of_bits(np.logical_not),
    "_to_copy.default": AtenOperation(rules.cast, True),
    "copy.default": AtenOperation(places.copied),
    "clone.default": plain(rules.itself, folded=True),
    "detach.default": plain(rules.detached, folded=True),
    "alias.default": plain(rules.itself, folded=True),
    "lift_fresh_copy.default": plain(rules.itself, folded=True),
    # over features
    "max.dim": promoted(rules.largest_and_place, steps=over_steps.without_place("max")),
    "min.dim": promoted(rules.smallest_and_place, steps=over_steps.without_place("min")),
    "cumprod.default": promoted(rules.along(np.cumprod)),
    "argmax.default": plain(rules.place_of_largest),
    "argmin.default": plain(rules.place_of_smallest),
    "var.correction": promoted(rules.variance, steps=over_steps.variance),
    "var_mean.correction": promoted(rules.variance_and_mean, steps=over_steps.variance_and_mean),
    "linalg_vector_norm.default": promoted(rules.norm, steps=over_steps.norm),
    "native_layer_norm.default": promoted(rules.layer_norm),
    # features moved
    "select.int": plain(places.along),
    "slice.Tensor": plain(places.sliced),
    "split_with_sizes.default": plain(places.split_by_sizes),
    "flip.default": plain(places.flipped),
    "roll.default": plain(places.rolled),
    "slice_scatter.default": plain(places.slice_replaced),
    # at integers
    "embedding.default": plain(places.embedded),
    "index.Tensor": AtenOperation(places.indexed),
    "index_select.default": AtenOperation(places.picked),
    "gather.default": AtenOperation(places.gathered),
    # new values
    "empty.memory_format": AtenOperation(places.undefined),
    "empty_permuted.default": AtenOperation(places.undefined),
    "full.default": AtenOperation(places.filled),
    "full_like.default": AtenOperation(places.filled),
    "scalar_tensor.default": AtenOperation(places.number),
    "eye.default": AtenOperation(places.identity),
    "eye.m": AtenOperation(places.identity),
    "arange.start_step": AtenOperation(places.counted),
}

ADVICE: dict[str, str] = {
    "_local_scalar_dense": "a step cannot read a value as a number: every row may differ; use torch.where",
    "_native_batch_norm_legit": "it takes means over rows: call .eval() on the module, or use a LayerNorm",
    "index_put": "use torch.where, or x[:, a:b] = y with a and b numbers",
    "pow": "for a base above 0 write torch.exp(b * torch.log(a))",
}
"""Advice for refused operations, by their names; of those that draw random numbers it is `draws.ADVICE`."""
