"""Paddle's operators: a map from their names to the operators of `importers`, one row per operator.

    elementwise_add X Y axis=-1   -->   add
    leaky_relu X alpha=0.02       -->   leaky_relu, with the attribute as its slope
    mul X Y x_num_col_dims=2      -->   a reshape and a product

A row of an elementwise operator names a row of the table in `importers/pointwise.py`. Any other row has a
rule that reads the slots and attributes of an operation, and calls functions of `importers`, which know no
format.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting, shaping
from stepnet.importers.axes import symbols_in
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.importers.sizes import is_number
from stepnet.importers.sizes import product as joint
from stepnet.paddle import constants, sequences
from stepnet.paddle.call import PaddleCall
from stepnet.paddle.constants import dtype
from stepnet.paddle.convolving import CONVOLVING
from stepnet.paddle.recurrent import SEQUENCE_OPERATORS

Rule = Callable[[PaddleCall], Any]


def unary(operator: str, **attributes: float) -> Rule:
    """Makes the function that computes a Paddle operator which is elementwise in its operand X.

    operator: its name in `importers.pointwise`. attributes: Paddle's attributes with their defaults, in the
    order of the function's parameters.
    """

    def rule(call: PaddleCall) -> Placed:
        """Computes the elementwise `operator` of X, with Paddle's attributes or their defaults."""
        numbers = [call.attribute(name, usual) for name, usual in attributes.items()]
        return pointwise.elementwise(operator, call.operand(), numbers=numbers)

    return rule


def fixed(operator: str, **attributes: float) -> Rule:
    """Makes the function that computes a Paddle operator which is elementwise in its operand X, and of which
    only one setting is supported.

    operator: its name in `importers.pointwise`. attributes: the attributes that must have these values.
    """

    def rule(call: PaddleCall) -> Placed:
        """Computes a Paddle operation, the elementwise `operator` of X; raises `ModelError` if an attribute
        has another than the supported value.
        """
        for name, usual in attributes.items():
            if call.attribute(name, usual) != usual:
                raise ModelError(f"its {name} is {call.attribute(name, usual)}: only {usual} is supported")
        return pointwise.elementwise(operator, call.operand())

    return rule


def pair(operator: str) -> Rule:
    """Makes the rule of a Paddle operator on X and Y that is the elementwise `operator` of `importers`."""
    return lambda call: pointwise.elementwise(operator, call.operand(), call.operand("Y"))


def operands_along(call: PaddleCall) -> tuple[Placed, Placed]:
    """Returns (X, Y) of an operator that broadcasts Y from the attribute `axis` of X on; for that, axes of
    size 1 are added at the end of Y.
    """
    x, y = call.operand(), call.operand("Y")
    axis, ones, rank = call.attribute("axis", -1), 0, len(y.axes)
    if axis >= 0 and rank < len(x.axes):
        ones = max(0, len(x.axes) - axis - rank)
    return x, shaping.unsqueeze(y, range(rank, rank + ones)) if ones else y


def along(operator: str) -> Rule:
    """Makes the rule of a Paddle operator that is elementwise in X and Y; Y is broadcast from an axis on."""
    return lambda call: pointwise.elementwise(operator, *operands_along(call))


# ---- products ----------------------------------------------------------------------------------------------


def scaled_product(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator matmul_v2, and the older matmul, which has a factor alpha."""
    x, y = call.operand(), call.operand("Y")
    names = ("trans_x", "transpose_X"), ("trans_y", "transpose_Y")
    x, y = (
        shaping.swapped(value) if any(call.attribute(name, False) for name in flag_names) else value
        for value, flag_names in zip((x, y), names, strict=True)
    )
    result, factor = matmul(x, y, call.padded), call.attribute("alpha", 1.0)
    return result if factor == 1 else scaled(result, np.float32(factor))


def scaled(x: Placed, factor: Any) -> Placed:
    """Multiplies a value by a number, in the number's dtype."""
    return pointwise.elementwise("multiply", x, constant(factor))


def flat_product(x: Placed, y: Placed, padded: bool, columns: int, rows: int = 1) -> Placed:
    """Multiplies x by y as matrices, after joining axes, for operators that flatten, as mul and fc.

    padded: whether the program has padding. columns: the axes of x from this one on are joined to one. rows:
    the number of first axes of y that are joined to the matrix's rows; the others are joined to its columns.
    """
    x = shaping.reshape(x, [*x.sizes[:columns], joint(x.sizes[columns:])])
    return matmul(x, shaping.reshape(y, [joint(y.sizes[:rows]), joint(y.sizes[rows:])]), padded)


def mul(call: PaddleCall) -> Placed:
    """Computes Paddle's mul: the product of X and Y, flattened to matrices (`x_num_col_dims`)."""
    columns, rows = call.attribute("x_num_col_dims", 1), call.attribute("y_num_col_dims", 1)
    return flat_product(call.operand(), call.operand("Y"), call.padded, columns, rows)


def fc(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator fc, a dense layer: a product, perhaps a bias and a ReLU."""
    x, columns = call.operand("Input"), call.attribute("in_num_col_dims", 1)
    result = flat_product(x, call.operand("W"), call.padded, columns)
    bias = call.optional("Bias")
    if bias is not None:
        result = pointwise.elementwise("add", result, constant(bias.array.ravel()))
    name = call.attribute("activation_type", "")
    if name not in ("", "relu"):
        raise ModelError(f"its activation {name!r} is not supported: relu is")
    return pointwise.elementwise("relu", result) if name else result


# ---- elementwise -------------------------------------------------------------------------------------------


def scale(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator scale: the operand times a factor, and a number added before
    or after that. Shapes, whose sizes may be symbols, are computed in whole numbers.
    """
    x, factor, shift = (
        call.operand(),
        (call.numbers("scale", "ScaleTensor") or [1.0])[0],
        call.attribute("bias", 0.0),
    )
    dtype = np.dtype(x.value.dtype)

    def literal(number: Any) -> Placed:
        """Makes a constant in the dtype of the operand; for a shape of symbolic sizes, in its own."""
        return constant(np.asarray(number, None if dtype.kind == "O" else dtype))

    if shift and not call.attribute("bias_after_scale", True):
        x, shift = pointwise.elementwise("add", x, literal(shift)), 0.0
    whole = int(factor) if dtype.kind in "iuO" else factor
    result = scaled(x, literal(whole).value) if whole != 1 else x
    return pointwise.elementwise("add", result, literal(shift)) if shift else result


def cast(call: PaddleCall) -> Placed:
    """Computes Paddle's cast: the operand in another dtype; symbolic sizes are unchanged."""
    stated = call.operation.attributes.get("out_dtype", call.operation.attributes.get("dtype"))
    if pointwise.dtype_of(call.operand()).kind == "O":  # sizes, which are whole numbers
        return call.operand()
    return pointwise.cast(call.operand(), dtype(stated).name)


def clip(call: PaddleCall) -> Placed:
    """Computes Paddle's clip: the operand limited to two bounds, either of which may be left out."""
    bounds = [call.numbers(name, name.title()) for name in ("min", "max")]
    return pointwise.clip(call.operand(), *(bound[0] if bound else None for bound in bounds))


def power(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator pow: the operand raised to a constant power."""
    factors = call.numbers("factor", "FactorTensor")
    if not factors:
        raise ModelError("its factor is missing")
    exponent = np.asarray(factors[0], call.operand().value.dtype)
    return pointwise.power(call.operand(), constant(exponent))


def dropout(call: PaddleCall) -> Placed:
    """Computes dropout in inference: the operand, or in the older mode times 1 - the probability."""
    if not call.attribute("is_test", False):
        raise ModelError("its dropout is on: save the program for inference")
    kind = call.attribute("dropout_implementation", call.attribute("mode", "downgrade_in_infer"))
    if kind == "upscale_in_train":
        return call.operand()
    probability = call.numbers("dropout_prob", "P")
    if not probability:
        raise ModelError("its probability is missing")
    return scaled(call.operand(), np.float32(1 - probability[0]))


def layer_norm(call: PaddleCall) -> dict[str, Placed]:
    """Computes the result of Paddle's operator layer_norm, over all axes from `begin_norm_axis` on; returns
    it under the output's name "Y". The operands Scale and Bias, vectors in the file, get the shape of these
    axes.
    """
    x, first_axis = call.operand(), call.operand().axis(call.attribute("begin_norm_axis", 1))
    factors = [call.optional(slot) for slot in ("Scale", "Bias")]
    if not symbols_in(x.axes[first_axis:]):
        factors = [value and constant(value.array.reshape(x.sizes[first_axis:])) for value in factors]
    return {"Y": reductions.layer_norm(x, first_axis, float(call.attribute("epsilon", 1e-5)), *factors)}


# ---- over axes ---------------------------------------------------------------------------------------------


def reduction(how: str) -> Rule:
    """Makes the function that computes a Paddle operator which reduces over axes. how: its name in
    `importers.reductions`, such as "mean".
    """

    def rule(call: PaddleCall) -> Placed:
        """Computes a reduction of Paddle, such as reduce_mean; without axes it is over all of them."""
        x, axes, keep = call.operand(), call.wholes("dim", "DimTensor"), call.attribute("keep_dim", False)
        if not axes or call.attribute("reduce_all", False):
            axes = list(range(len(x.axes)))
        return reductions.reduce(x, axes, how, bool(keep), padded=call.padded)

    return rule


def over_axis(function: Callable[[Placed, int, bool], Placed]) -> Rule:
    """Makes the function that computes Paddle's operator softmax or log_softmax. function: computes the
    result from (operand, axis, whether there is padding).
    """

    def rule(call: PaddleCall) -> Placed:
        """Computes a softmax operation along the axis of its attribute."""
        x = call.operand()
        return function(x, x.axis(call.attribute("axis", -1)), call.padded)

    return rule


def arg_max(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator arg_max: the index of the largest number along an axis."""
    x, axis = call.operand(), call.whole("axis", "AxisTensor", -1)
    if call.attribute("flatten", False):
        raise ModelError("it reduces over all axes: stepnet reduces over one")
    return reductions.argmax(x, x.axis(axis), bool(call.attribute("keepdims", False)))


def stack(call: PaddleCall) -> dict[str, Placed]:
    """Computes Paddle's stack: operands joined along a new axis, as the output "Y"."""
    axis = int(call.attribute("axis", 0))
    values = [shaping.unsqueeze(value, [axis]) for value in call.operands_of("X")]
    return {"Y": selecting.concatenate(values, axis)}


def split(call: PaddleCall) -> dict[str, Any]:
    """Computes the results of Paddle's operator split: parts of the operand along an axis, of stated sizes
    (-1 for the rest) or of equal ones.
    """
    axis = call.operand().axis(call.whole("axis", "AxisTensor", 0))
    sections = call.wholes("sections", "SectionsTensor", "SectionsTensorList")
    if not sections:
        size, count = call.operand().sizes[axis], max(call.attribute("num", 1), 1)
        sections = [size // count] * count
    if -1 in sections:
        rest = call.operand().sizes[axis] - sum(size for size in sections if size != -1)
        sections = [rest if size == -1 else size for size in sections]
    return {"Out": selecting.split(call.operand(), axis, sections)}


def slice_(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator slice: parts of the operand along some axes. Axes of length 1
    are dropped if decrease_axis lists them.
    """
    starts = call.numbers("starts", "StartsTensor", "StartsTensorList") or []
    ends = call.numbers("ends", "EndsTensor", "EndsTensorList") or []
    axes, dropped = call.wholes("axes"), call.wholes("decrease_axis")
    if not len(starts) == len(ends) == len(axes):
        raise ModelError(f"it has {len(axes)} axes, {len(starts)} starts and {len(ends)} ends")
    steps = [1] * len(axes)
    result = selecting.slices(call.operand("Input"), starts, ends, axes, steps, call.padded)
    return shaping.squeeze(result, dropped) if dropped else result


def reshape(call: PaddleCall) -> Placed:
    """Computes Paddle's reshape2: the operand in another shape, in which 0 keeps its size."""
    target = call.numbers("shape", "Shape", "ShapeTensor") or []
    return shaping.reshape(call.operand(), target, zero_keeps=True)


def flatten(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator flatten_contiguous_range: neighbouring axes joined to one."""
    x = shaping.with_one_step(call.operand())
    first, last = (x.axis(call.attribute(name, usual)) for name, usual in FLATTENED)
    return shaping.reshape(x, [*x.sizes[:first], joint(x.sizes[first : last + 1]), *x.sizes[last + 1 :]])


FLATTENED = (("start_axis", 1), ("stop_axis", -1))


def axes_of(call: PaddleCall) -> list[int]:
    """Returns the axes that squeeze2 or unsqueeze2 removes or adds, from an attribute or tensors."""
    return call.wholes("axes", "AxesTensor", "AxesTensorList")


def expand_v2(call: PaddleCall) -> Placed:
    """Computes Paddle's expand_v2: the operand broadcast to a shape, in which -1 keeps a size."""
    target = call.numbers("shape", "Shape", "expand_shapes_tensor") or []
    return shaping.expand(call.operand(), [1 if is_number(size, -1) else size for size in target])


PADDLE: Mapping[str, Rule] = {
    **SEQUENCE_OPERATORS,
    **CONVOLVING,
    "abs": unary("absolute"),
    "arg_max": arg_max,
    "assign": lambda call: call.operand(),
    "assign_value": constants.assign_value,
    "bmm": lambda call: matmul(call.operand(), call.operand("Y"), call.padded),
    "cast": cast,
    "ceil": unary("ceil"),
    "clip": clip,
    "concat": lambda call: selecting.concatenate(call.operands_of("X"), call.whole("axis", "AxisTensor", 0)),
    "cos": unary("cos"),
    "dropout": dropout,
    "elementwise_add": along("add"),
    "elementwise_div": along("quotient"),
    "elementwise_max": along("maximum"),
    "elementwise_min": along("minimum"),
    "elementwise_mul": along("multiply"),
    "elementwise_pow": lambda call: pointwise.power(*operands_along(call)),
    "elementwise_sub": along("subtract"),
    "elu": unary("elu", alpha=1.0),
    "equal": pair("equal"),
    "erf": unary("erf"),
    "exp": unary("exp"),
    "expand_v2": expand_v2,
    "fc": fc,
    "fill_constant": constants.fill_constant,
    "fill_constant_batch_size_like": constants.fill_like_batch,
    "flatten": flatten,
    "flatten_contiguous_range": flatten,
    "floor": unary("floor"),
    "full_int_array": lambda call: constant(np.asarray(call.wholes("value"), np.int64)),
    "gelu": lambda call: pointwise.elementwise(
        "gelu", call.operand(), numbers=[bool(call.attribute("approximate", False))]
    ),
    "greater_equal": pair("greater_equal"),
    "greater_than": pair("greater"),
    "hard_sigmoid": unary("hard_sigmoid", slope=0.2, offset=0.5),
    "hard_swish": unary("hard_swish"),
    "layer_norm": layer_norm,
    "leaky_relu": unary("leaky_relu", alpha=0.02),
    "less_equal": pair("less_equal"),
    "less_than": pair("less"),
    "log": unary("log"),
    "log_softmax": over_axis(reductions.log_softmax),
    "logical_and": pair("logical_and"),
    "logical_or": pair("logical_or"),
    "lookup_table": sequences.lookup_of_old,
    "lookup_table_v2": sequences.lookup,
    "matmul": scaled_product,
    "matmul_v2": scaled_product,
    "mul": mul,
    "pow": power,
    "reciprocal": unary("reciprocal"),
    "reduce_max": reduction("max"),
    "reduce_mean": reduction("mean"),
    "reduce_min": reduction("min"),
    "reduce_sum": reduction("sum"),
    "relu": unary("relu"),
    "relu6": unary("clip6"),
    "reshape2": reshape,
    "round": unary("rint"),
    "rsqrt": unary("rsqrt"),
    "scale": scale,
    "sequence_expand": sequences.sequence_expand,
    "sequence_pool": sequences.sequence_pool,
    "sequence_softmax": sequences.sequence_softmax,
    "shape": lambda call: shaping.shape_of_axes(call.operand("Input")),
    "sigmoid": unary("sigmoid"),
    "silu": unary("silu"),
    "sin": unary("sin"),
    "slice": slice_,
    "softmax": over_axis(reductions.softmax),
    "softplus": fixed("softplus", beta=1.0),
    "softsign": unary("softsign"),
    "split": split,
    "sqrt": unary("sqrt"),
    "square": unary("square"),
    "squeeze2": lambda call: shaping.squeeze(call.operand(), axes_of(call) or None),
    "stack": stack,
    "swish": fixed("silu", beta=1.0),
    "tanh": unary("tanh"),
    "transpose2": lambda call: shaping.transpose(call.operand(), call.wholes("axis")),
    "unsqueeze2": lambda call: shaping.unsqueeze(call.operand(), axes_of(call)),
    "where": lambda call: pointwise.where(*(call.operand(slot) for slot in ("Condition", "X", "Y"))),
}
"""The rule of each supported operator of Paddle: its result, or its results by slot."""
