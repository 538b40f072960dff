"""A table of Paddle's operators, each expressed by operators of ONNX.

elementwise_add X Y axis=-1   -->   Add X Y
mul X Y x_num_col_dims=2      -->   Reshape X, MatMul X Y
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.errors import ModelError
from stepnet.importers import shaping
from stepnet.importers.axes import AxesError, symbols_in
from stepnet.importers.placed import Placed, applied, constant
from stepnet.importers.products import multiplied, product
from stepnet.importers.sizes import is_number
from stepnet.importers.sizes import product as joint
from stepnet.paddle import constants, sequences
from stepnet.paddle.call import PaddleCall
from stepnet.paddle.constants import dtype
from stepnet.paddle.recurrent import SEQUENCE_OPERATORS

Rule = Callable[[PaddleCall], Any]


def unary(operator: str, **defaults: float) -> Rule:
    """The rule of an operator of X; defaults: the attributes, named as in ONNX, with their defaults."""

    def rule(call: PaddleCall) -> Placed:
        attributes = {name: call.attribute(name, usual) for name, usual in defaults.items()}
        return call.meaning(operator, [call.operand()], **attributes)

    return rule


def elementwise(operator: str) -> Rule:
    """The rule of an operator of X and Y. Y is broadcast from the attribute `axis` of X on."""

    def rule(call: PaddleCall) -> Placed:
        x, y = call.operand(), call.operand("Y")
        axis, behind = call.attribute("axis", -1), 0
        if axis >= 0 and len(y.axes) < len(x.axes):
            behind = len(x.axes) - axis - len(y.axes)
        if behind > 0:
            rank = len(y.axes)
            y = call.meaning("Unsqueeze", [y], axes=list(range(rank, rank + behind)))
        return call.meaning(operator, [x, y])

    return rule


def transpose(call: PaddleCall) -> Placed:
    """transpose2: the axes in another order."""
    return call.meaning("Transpose", [call.operand()], perm=call.wholes("axis"))


# ---- products ----------------------------------------------------------------------------------------------


def matmul(call: PaddleCall) -> Placed:
    """matmul_v2, and the older matmul, which has a factor alpha."""
    x, y = call.operand(), call.operand("Y")
    names = ("trans_x", "transpose_X"), ("trans_y", "transpose_Y")
    x, y = (
        shaping.swapped(value) if any(call.attribute(name, False) for name in flag_names) else value
        for value, flag_names in zip((x, y), names, strict=True)
    )
    result, factor = product(x, y, multiplied), call.attribute("alpha", 1.0)
    return result if factor == 1 else applied(np.multiply, result, constant(np.float32(factor)))


def flat_product(x: Placed, y: Placed, columns: int, rows: int = 1) -> Placed:
    """The product of x and y as matrices: of x the axes from `columns` on are joined to one, of y those
    before `rows`.
    """
    x = shaping.reshape(x, [*x.sizes[:columns], joint(x.sizes[columns:])])
    return product(x, shaping.reshape(y, [joint(y.sizes[:rows]), joint(y.sizes[rows:])]), multiplied)


def mul(call: PaddleCall) -> Placed:
    """mul: the product of two matrices, to which the axes of X and Y are joined."""
    columns, rows = call.attribute("x_num_col_dims", 1), call.attribute("y_num_col_dims", 1)
    return flat_product(call.operand(), call.operand("Y"), columns, rows)


def fc(call: PaddleCall) -> Placed:
    """fc: a product, a bias and an activation."""
    result = flat_product(call.operand("Input"), call.operand("W"), call.attribute("in_num_col_dims", 1))
    bias = call.optional("Bias")
    if bias is not None:
        result = applied(np.add, result, constant(bias.array.ravel()))
    name = call.attribute("activation_type", "")
    if name not in ("", "relu"):
        raise ModelError(f"its activation {name!r} is not supported: relu is")
    return call.meaning("Relu", [result]) if name else result


# ---- pointwise ---------------------------------------------------------------------------------------------


def scale(call: PaddleCall) -> Placed:
    """scale: a factor, and a number added before or after it."""
    x, factor, shift = (
        call.operand(),
        (call.numbers("scale", "ScaleTensor") or [1.0])[0],
        call.attribute("bias", 0.0),
    )
    dtype = np.dtype(x.value.dtype)

    def literal(number: Any) -> Placed:
        return constant(np.asarray(number, None if dtype.kind == "O" else dtype))

    if shift and not call.attribute("bias_after_scale", True):
        x, shift = applied(np.add, x, literal(shift)), 0.0
    whole = int(factor) if dtype.kind in "iuO" else factor
    result = applied(np.multiply, x, literal(whole)) if whole != 1 else x
    return applied(np.add, result, literal(shift)) if shift else result


def cast(call: PaddleCall) -> Placed:
    """cast: the operand in another dtype."""
    stated = call.operation.attributes.get("out_dtype", call.operation.attributes.get("dtype"))
    if np.dtype(call.operand().value.dtype).kind == "O":  # sizes, which are whole numbers
        return call.operand()
    return call.operand().with_value(call.operand().value.astype(dtype(stated)))


def single(function: Callable[[Any], Any], **fixed: float) -> Rule:
    """The rule of an elementwise function; fixed: attributes that must have their default values."""

    def rule(call: PaddleCall) -> Placed:
        for name, usual in fixed.items():
            if call.attribute(name, usual) != usual:
                raise ModelError(f"its {name} is {call.attribute(name, usual)}: only {usual} is supported")
        return applied(function, call.operand())

    return rule


def pair(operator: str) -> Rule:
    """The rule of an operator of X and Y."""
    return lambda call: call.meaning(operator, [call.operand(), call.operand("Y")])


def relu6(x: Any) -> Any:
    """x clipped to [0, 6]."""
    return np.minimum(np.maximum(x, 0), 6)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return 1 / np.sqrt(x)


def square(x: Any) -> Any:
    """x * x."""
    return x * x


def gelu(call: PaddleCall) -> Placed:
    """gelu, exact or approximated by tanh."""
    approximate = "tanh" if call.attribute("approximate", False) else "none"
    return call.meaning("Gelu", [call.operand()], approximate=approximate)


def hard_sigmoid(call: PaddleCall) -> Placed:
    """hard_sigmoid: clip(slope x + offset, 0, 1)."""
    slope, offset = call.attribute("slope", 0.2), call.attribute("offset", 0.5)
    return call.meaning("HardSigmoid", [call.operand()], alpha=slope, beta=offset)


def clip(call: PaddleCall) -> Placed:
    """clip: the operand between two bounds."""
    bounds = [call.numbers(name, name.title()) for name in ("min", "max")]
    return call.meaning(
        "Clip", [call.operand(), *(constant(bound[0]) if bound else None for bound in bounds)]
    )


def power(call: PaddleCall) -> Placed:
    """pow: the operand to a constant power."""
    factors = call.numbers("factor", "FactorTensor")
    if not factors:
        raise ModelError("its factor is missing")
    exponent = np.asarray(factors[0], call.operand().value.dtype)
    return call.meaning("Pow", [call.operand(), constant(exponent)])


def where(call: PaddleCall) -> Placed:
    """where: a choice between two operands by a condition."""
    return call.meaning("Where", [call.operand(slot) for slot in ("Condition", "X", "Y")])


def dropout(call: PaddleCall) -> Placed:
    """dropout in inference: the identity, or a constant factor."""
    if not call.attribute("is_test", False):
        raise ModelError("its dropout is on: save the program for inference")
    kind = call.attribute("dropout_implementation", call.attribute("mode", "downgrade_in_infer"))
    if kind == "upscale_in_train":
        return call.operand()
    probability = call.numbers("dropout_prob", "P")
    if not probability:
        raise ModelError("its probability is missing")
    keep_probability = 1 - probability[0]
    return applied(np.multiply, call.operand(), constant(np.float32(keep_probability)))


def layer_norm(call: PaddleCall) -> dict[str, Placed]:
    """layer_norm over all axes from `begin_norm_axis` on."""
    x, begin = call.operand(), call.operand().axis(call.attribute("begin_norm_axis", 1))
    sizes = x.sizes[begin:]
    if symbols_in(x.axes[begin:]):
        raise AxesError("it normalises over sequences or steps, and stepnet normalises over features")
    factor, shift = (call.optional(slot) for slot in ("Scale", "Bias"))
    factors = np.ones(sizes, np.float32) if factor is None else factor.array.reshape(sizes)
    shifts = None if shift is None else constant(shift.array.reshape(sizes))
    epsilon = call.attribute("epsilon", 1e-5)
    operands = [x, constant(factors), shifts]
    return {"Y": call.meaning("LayerNormalization", operands, axis=begin, epsilon=epsilon)}


# ---- over axes ---------------------------------------------------------------------------------------------


def reduction(operator: str) -> Rule:
    """The rule of a reduction."""

    def rule(call: PaddleCall) -> Placed:
        axes = call.wholes("dim", "DimTensor")
        keepdims = int(bool(call.attribute("keep_dim", False)))
        if not axes or call.attribute("reduce_all", False):
            axes = list(range(len(call.operand().axes)))
        return call.meaning(operator, [call.operand()], axes=axes, keepdims=keepdims)

    return rule


def arg_max(call: PaddleCall) -> Placed:
    """arg_max: the index of the largest number along an axis."""
    axis, keepdims = call.whole("axis", "AxisTensor", -1), int(bool(call.attribute("keepdims", False)))
    if call.attribute("flatten", False):
        raise ModelError("it reduces over all axes: stepnet reduces over one")
    return call.meaning("ArgMax", [call.operand()], axis=axis, keepdims=keepdims)


def concat(call: PaddleCall) -> Placed:
    """concat: operands joined along an axis."""
    return call.meaning("Concat", call.operands_of("X"), axis=call.whole("axis", "AxisTensor", 0))


def stack(call: PaddleCall) -> dict[str, Placed]:
    """stack: operands joined along a new axis."""
    axis = int(call.attribute("axis", 0))
    values = [call.meaning("Unsqueeze", [value], axes=[axis]) for value in call.operands_of("X")]
    return {"Y": call.meaning("Concat", values, axis=axis)}


def split(call: PaddleCall) -> dict[str, Any]:
    """split: parts of the operand along an axis."""
    axis = call.operand().axis(call.whole("axis", "AxisTensor", 0))
    sections = call.wholes("sections", "SectionsTensor", "SectionsTensorList")
    if not sections:
        size, count = call.operand().sizes[axis], max(call.attribute("num", 1), 1)
        sections = [size // count] * count
    if -1 in sections:
        rest = call.operand().sizes[axis] - sum(size for size in sections if size != -1)
        sections = [rest if size == -1 else size for size in sections]
    return {"Out": call.meaning("Split", [call.operand()], axis=axis, split=sections)}


def slice_(call: PaddleCall) -> Placed:
    """slice, which may drop axes of length 1 (decrease_axis)."""
    starts = call.numbers("starts", "StartsTensor", "StartsTensorList") or []
    ends = call.numbers("ends", "EndsTensor", "EndsTensorList") or []
    axes, dropped = call.wholes("axes"), call.wholes("decrease_axis")
    if not len(starts) == len(ends) == len(axes):
        raise ModelError(f"it has {len(axes)} axes, {len(starts)} starts and {len(ends)} ends")
    result = call.meaning("Slice", [call.operand("Input")], starts=starts, ends=ends, axes=axes)
    return call.meaning("Squeeze", [result], axes=dropped) if dropped else result


def reshape(call: PaddleCall) -> Placed:
    """reshape2: the operand in another shape."""
    target = call.numbers("shape", "Shape", "ShapeTensor") or []
    return call.meaning("Reshape", [call.operand()], shape=target)


def flatten(call: PaddleCall) -> Placed:
    """flatten_contiguous_range: neighbouring axes joined to one."""
    x = call.operand()
    first, last = (x.axis(call.attribute(name, usual)) for name, usual in FLATTENED)
    return shaping.reshape(x, [*x.sizes[:first], joint(x.sizes[first : last + 1]), *x.sizes[last + 1 :]])


FLATTENED = (("start_axis", 1), ("stop_axis", -1))


def axes_of(operator: str) -> Rule:
    """The rule of squeeze2 and unsqueeze2."""

    def rule(call: PaddleCall) -> Placed:
        axes = call.wholes("axes", "AxesTensor", "AxesTensorList")
        return call.meaning(operator, [call.operand()], **({"axes": axes} if axes else {}))

    return rule


def expand_v2(call: PaddleCall) -> Placed:
    """expand_v2: -1 keeps a size."""
    target = call.numbers("shape", "Shape", "expand_shapes_tensor") or []
    return shaping.expand(call.operand(), [1 if is_number(size, -1) else size for size in target])


def same(call: PaddleCall) -> Placed:
    """The identity: X."""
    return call.operand()


RULES: Mapping[str, Rule] = {
    **SEQUENCE_OPERATORS,
    **{f"elementwise_{name}": elementwise(operator) for name, operator in {
        "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min", "pow": "Pow",
    }.items()},
    **{name: unary(operator) for name, operator in {
        "abs": "Abs", "ceil": "Ceil", "cos": "Cos", "erf": "Erf", "exp": "Exp", "floor": "Floor",
        "log": "Log", "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round", "sigmoid": "Sigmoid",
        "sin": "Sin", "softsign": "Softsign", "sqrt": "Sqrt", "tanh": "Tanh",
    }.items()},
    **{f"reduce_{name}": reduction(f"Reduce{name.title()}") for name in ("sum", "mean", "max", "min")},
    **{name: pair(operator) for name, operator in {
        "bmm": "MatMul", "equal": "Equal", "greater_equal": "GreaterOrEqual", "greater_than": "Greater",
        "less_equal": "LessOrEqual", "less_than": "Less", "logical_and": "And", "logical_or": "Or",
    }.items()},
    "arg_max": arg_max,
    "assign": same,
    "assign_value": constants.assign_value,
    "cast": cast,
    "clip": clip,
    "concat": concat,
    "dropout": dropout,
    "elu": unary("Elu", alpha=1.0),
    "expand_v2": expand_v2,
    "fc": fc,
    "fill_constant": constants.fill_constant,
    "fill_constant_batch_size_like": constants.fill_like_batch,
    "flatten": flatten,
    "flatten_contiguous_range": flatten,
    "full_int_array": constants.full_int_array,
    "gelu": gelu,
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": unary("HardSwish"),
    "layer_norm": layer_norm,
    "leaky_relu": unary("LeakyRelu", alpha=0.02),
    "log_softmax": unary("LogSoftmax", axis=-1),
    "lookup_table": sequences.lookup_of_old,
    "lookup_table_v2": sequences.lookup,
    "matmul": matmul,
    "matmul_v2": matmul,
    "mul": mul,
    "pow": power,
    "relu6": single(relu6),
    "reshape2": reshape,
    "rsqrt": single(rsqrt),
    "scale": scale,
    "sequence_expand": sequences.sequence_expand,
    "sequence_pool": sequences.sequence_pool,
    "sequence_softmax": sequences.sequence_softmax,
    "shape": constants.shape,
    "silu": single(functions.silu),
    "slice": slice_,
    "softmax": unary("Softmax", axis=-1),
    "softplus": single(functions.softplus, beta=1.0),
    "split": split,
    "squeeze2": axes_of("Squeeze"),
    "square": single(square),
    "stack": stack,
    "swish": single(functions.silu, beta=1.0),
    "transpose2": transpose,
    "unsqueeze2": axes_of("Unsqueeze"),
    "where": where,
}  # fmt: skip
"""The rule of each operator: its result, or its results by slot."""
