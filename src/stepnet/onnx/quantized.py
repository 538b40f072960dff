"""Rules of ONNX's operators on quantized numbers, and of onnxruntime's operators that quantize while they
run.

    QuantizeLinear, DequantizeLinear          rounding and limits, and a product
    MatMulInteger, QLinearMatMul, ...         products of whole numbers, exact
    DynamicQuantizeLinear, ...LSTM            by the range of each sequence, as if it were alone

onnxruntime takes one range for all sequences of a batch and their padding, so its results depend on these.
For a batch of one sequence it computes what stepnet computes.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers import pointwise
from stepnet.importers.convolving import convolve
from stepnet.importers.placed import Placed, constant
from stepnet.importers.quantizing import (
    NARROW,
    Scaling,
    along_axis,
    centred,
    check_narrow,
    dequantize,
    exact_dtype,
    in_dtype,
    limited,
    one_number,
    quantize,
    quantize_each,
    quantized_product,
    whole_product,
)
from stepnet.importers.recurrent import PlacedLayer, run_layer
from stepnet.onnx.call import OnnxCall
from stepnet.onnx.convolving import kernel_of, window_of_kernel
from stepnet.onnx.recurrent import filled_attributes, steps_of

Array = np.ndarray
NUMBERS = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16"}
"""ONNX's types of quantized numbers, by number."""


def scaling_of(call: OnnxCall, index: int) -> Scaling:
    """Returns the scale and zero point of a node, its operands from `index` on."""
    return Scaling(call.operand(index), call.optional(index + 1))


def dtype_of_zero(zero: Placed | None, stated: int = 0) -> str:
    """Returns the dtype to which a node quantizes: the dtype of its zero point, else the type with ONNX's
    number `stated`, else uint8.

    Raises `ModelError` for a type that is not supported.
    """
    if zero is None:
        if stated and stated not in NUMBERS:
            raise ModelError(f"it quantizes to ONNX's type {stated}: {', '.join(NARROW)} are supported")
        return NUMBERS.get(stated, "uint8")
    dtype = pointwise.dtype_of(zero).name
    check_narrow(dtype)
    return dtype


def check_no_blocks(call: OnnxCall) -> None:
    """Raises `ModelError` for a scale per block of an axis."""
    if call.attributes.get("block_size", 0):
        raise ModelError("its block_size is not 0: a scale is of all numbers, or along an axis")


def quantize_linear(call: OnnxCall) -> Placed:
    """Computes the result of a QuantizeLinear node: integers, rounded from the numbers divided by a scale."""
    check_no_blocks(call)
    scaling = scaling_of(call, 1)
    dtype = dtype_of_zero(scaling.zero, int(call.attributes.get("output_dtype", 0)))
    return quantize(call.x, scaling.along(call.x, int(call.attributes.get("axis", 1))), dtype)


def dequantize_linear(call: OnnxCall) -> Placed:
    """Computes the result of a DequantizeLinear node: the numbers that whole numbers stand for."""
    check_no_blocks(call)
    return dequantize(call.x, scaling_of(call, 1).along(call.x, int(call.attributes.get("axis", 1))))


def dynamic_quantize_linear(call: OnnxCall) -> list[Placed]:
    """Computes DynamicQuantizeLinear by the range of each sequence: integers, scale and zero point."""
    made, scaling = quantize_each(call.x, call.padded)
    assert scaling.zero is not None
    return [made, scaling.scale, scaling.zero]


# ---- products ----------------------------------------------------------------------------------------------


def matmul_integer(call: OnnxCall) -> Placed:
    """Computes the result of a MatMulInteger node: a product of whole numbers."""
    zeros = call.optional(2), call.optional(3)
    return whole_product(call.operand(0), call.operand(1), zeros, call.padded)


def matmul_integer_to_float(call: OnnxCall) -> Placed:
    """Computes onnxruntime's MatMulIntegerToFloat: an integer product times both scales, plus a bias."""
    zeros = call.optional(4), call.optional(5)
    made = whole_product(call.operand(0), call.operand(1), zeros, call.padded)
    return scaled(made, call.operand(2), call.operand(3), call.optional(6))


def dynamic_quantize_matmul(call: OnnxCall) -> Placed:
    """Computes the result of onnxruntime's DynamicQuantizeMatMul: the first operand is quantized to integers
    of 8 bits by the range of each sequence, multiplied by a matrix of integers, and scaled back to floats.
    """
    made, scaling = quantize_each(call.x, call.padded)
    product = whole_product(made, call.operand(1), (scaling.zero, call.optional(3)), call.padded)
    return scaled(product, scaling.scale, call.operand(2), call.optional(4))


def scaled(product: Placed, left: Placed, right: Placed, bias: Placed | None) -> Placed:
    """Computes an integer product times both scales, `left` and `right`, plus a bias or None."""
    scale = pointwise.elementwise("multiply", one_number(left), right)
    made = pointwise.elementwise("multiply", in_dtype(product, "float32"), scale)
    return made if bias is None else pointwise.elementwise("add", made, bias)


def qlinear_matmul(call: OnnxCall) -> Placed:
    """Computes QLinearMatMul: an integer matrix product, scaled back to 8-bit integers."""
    b, b_scaling = call.operand(3), scaling_of(call, 4)
    made = whole_product(call.x, b, (call.optional(2), b_scaling.zero), call.padded)
    return requantized(call, made, b_scaling.scale, -1)


def requantized(call: OnnxCall, made: Placed, right: Placed, axis: int) -> Placed:
    """Quantizes sums of products of whole numbers again, by the scales of both factors (operand 1, and
    `right` along `axis` of the result) and of the result (operand 6).
    """
    scales = [one_number(call.operand(at)).array for at in (1, 6)]
    with np.errstate(all="ignore"):
        factor = constant(np.float32(scales[0] * right.array / scales[1]))
    zero = call.operand(7)
    numbers = in_dtype(made, "float32")
    product = pointwise.elementwise("multiply", numbers, along_axis(factor, numbers, axis))
    return limited(product, one_number(zero), dtype_of_zero(zero))


def conv_integer(call: OnnxCall) -> Placed:
    """Computes the result of a ConvInteger node: a convolution of whole numbers."""
    return whole_convolution(call, call.operand(1), call.optional(2), call.optional(3))


def qlinear_conv(call: OnnxCall) -> Placed:
    """Computes QLinearConv: an integer convolution, scaled back to 8-bit integers."""
    made = whole_convolution(call, call.operand(3), call.operand(2), call.operand(5))
    if (bias := call.optional(8)) is not None:
        made = pointwise.elementwise("add", made, constant(bias.array.astype("int32").reshape(-1, 1)))
    return requantized(call, made, call.operand(4), 1)


def whole_convolution(
    call: OnnxCall, weight: Placed, x_zero: Placed | None, weight_zero: Placed | None
) -> Placed:
    """Computes a convolution of whole numbers of 8 bits without their zero points, as int32. weight: the
    kernel. x_zero, weight_zero: the zero points of the input and the kernel, None for 0.
    """
    zero = None if weight_zero is None else along_axis(weight_zero, weight, 0)
    numbers = centred(kernel_of(weight), zero)
    dtype = exact_dtype(numbers.array, axis=(1, 2))
    x = in_dtype(centred(call.x, None if x_zero is None else one_number(x_zero)), dtype)
    window, groups = window_of_kernel(call, numbers.features[-1]), call.attributes.get("group", 1)
    made = convolve(x, in_dtype(numbers, dtype), None, window, groups, call.padded)
    return in_dtype(made, "int32")


# ---- recurrences -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuantizedLayer(PlacedLayer):
    """LSTM with integer weights that quantizes its inputs by the range of each sequence, and its memory by
    the range of each step.

    scales: for W and R, the scale of each direction: one for all numbers, or one for each output.
    """

    scales: Any = None

    def inputs(self, number: int, x: Placed, padded: bool) -> Traced:
        """Returns the inputs of a quantized LSTM times its weights W, for the direction with index `number`,
        after quantizing the inputs of each sequence to 8 bits. padded: whether the model has padding.
        """
        made, scaling = quantize_each(x, padded)
        weight = constant(self.arrays["W"][number].T.astype("int32"))
        product = whole_product(made, weight, (scaling.zero, None), padded)
        return scaled(product, scaling.scale, constant(self.scales["W"][number]), None).value

    def params(self, number: int) -> dict[str, Any]:
        """Returns the recurrent weights R, as whole numbers with their scale, and the biases of the direction
        with index `number`; W is left out, since `inputs` multiplies by it.
        """
        own = super().params(number)
        weight = own.pop("R")
        del own["W"]
        return own | {
            "R": {"numbers": weight.astype(exact_dtype(weight, -2)), "scale": self.scales["R"][number]}
        }


def dynamic_quantize_lstm(call: OnnxCall) -> list[Placed]:
    """Computes the results of onnxruntime's DynamicQuantizeLSTM, an LSTM whose weights are integers: [Y, Y_h,
    Y_c], the outputs of each step and the final memories h and c. Raises `ModelError` for weights, scales and
    zero points that do not fit one another.
    """
    arrays, scales = dict[str, Array](), dict[str, Array]()
    for name, at, index in (("W", 1, 8), ("R", 2, 10)):
        scale, zero = call.operand(index).array, call.optional(index + 1)
        numbers = call.operand(at).array.astype("int32")
        zeros = np.zeros_like(scale) if zero is None else zero.array
        fits = numbers.ndim == 3 and zeros.shape == scale.shape
        if not fits or scale.shape not in (numbers.shape[:1], (numbers.shape[0], numbers.shape[2])):
            raise ModelError(
                f"its {name} is of {list(numbers.shape)}, with scales of {list(scale.shape)} and zero points "
                f"of {list(zeros.shape)}: there is one of each direction, or one of each of its outputs"
            )
        wide = zeros.astype("int32").reshape(len(numbers), 1, -1)
        arrays[name] = (numbers - wide).transpose(0, 2, 1).astype("float32")
        scales[name] = scale
    arrays |= {
        name: value.array for name, at in (("B", 3), ("P", 7)) if (value := call.optional(at)) is not None
    }
    attributes = filled_attributes("LSTM", arrays, call.attributes)
    steps, reverse = steps_of("lstm", attributes)
    quantized_steps = tuple(replace(step, product=quantized_product) for step in steps)
    layer = QuantizedLayer(arrays, quantized_steps, reverse, scales)
    initial = [call.optional(5), call.optional(6)]
    return run_layer(layer, call.x, initial, call.optional(4), padded=call.padded)
