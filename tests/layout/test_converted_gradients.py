"""Gradients and moments along with the weights: those of the target's own equations, by torch's autograd; and
the memory that a conversion takes.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from memory import memory
from tolerance import assert_close
from torch import Tensor, nn

from stepnet.errors import ConversionError, LayoutError
from stepnet.layout import Sizes, convert, record
from tests.layout.layout_cases import same_bits, weights

Parameters = dict[str, Tensor]
Equations = Callable[[Parameters, Tensor], Tensor]

INPUTS, HIDDEN, STEPS, ROWS = 2, 3, 5, 4
SIZES = Sizes(INPUTS, HIDDEN)


def unrolled(x: Tensor, step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """The outputs h of a step from (x, h, c) to (h, c), from zeros on."""
    h = c = torch.zeros(ROWS, HIDDEN, dtype=x.dtype)
    rows: list[Tensor] = []
    for at in x:
        h, c = step(at, h, c)
        rows.append(h)
    return torch.stack(rows)


# ---- the frameworks' definitions, in their own arrays ------------------------------------------------------


def of_torch(module: type[nn.Module]) -> Equations:
    """PyTorch's own layer."""

    def equations(p: Parameters, x: Tensor) -> Tensor:
        layer: Any = module(INPUTS, HIDDEN, dtype=x.dtype)
        return torch.func.functional_call(layer, p, (x,))[0]

    return equations


def keras_gru(p: Parameters, x: Tensor) -> Tensor:
    """reset_after=True: z r h, the biases of inputs and of the memory."""

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        x_z, x_r, x_h = (x @ p["kernel"] + p["bias"][0]).split(HIDDEN, 1)
        h_z, h_r, h_h = (h @ p["recurrent_kernel"] + p["bias"][1]).split(HIDDEN, 1)
        z, r = torch.sigmoid(x_z + h_z), torch.sigmoid(x_r + h_r)
        return z * h + (1 - z) * torch.tanh(x_h + r * h_h), c

    return unrolled(x, step)


def keras_gru_reset_before(p: Parameters, x: Tensor) -> Tensor:
    """reset_after=False: one bias."""

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        x_z, x_r, x_h = (x @ p["kernel"] + p["bias"]).split(HIDDEN, 1)
        u_z, u_r, u_h = p["recurrent_kernel"].split(HIDDEN, 1)
        z, r = torch.sigmoid(x_z + h @ u_z), torch.sigmoid(x_r + h @ u_r)
        return z * h + (1 - z) * torch.tanh(x_h + (r * h) @ u_h), c

    return unrolled(x, step)


def keras_lstm(p: Parameters, x: Tensor) -> Tensor:
    """i f c o."""

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (x @ p["kernel"] + h @ p["recurrent_kernel"] + p["bias"]).split(HIDDEN, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    return unrolled(x, step)


def tf1_basic_lstm(p: Parameters, x: Tensor) -> Tensor:
    """i j f o of [x, h], and forget_bias=1."""

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, j, f, o = (torch.cat([x, h], 1) @ p["kernel"] + p["bias"]).split(HIDDEN, 1)
        c = c * torch.sigmoid(f + 1.0) + torch.sigmoid(i) * torch.tanh(j)
        return torch.tanh(c) * torch.sigmoid(o), c

    return unrolled(x, step)


def cudnn_lstm(p: Parameters, x: Tensor) -> Tensor:
    """The eight matrices of linLayerID 0 to 7, and then the eight biases."""
    sizes = [HIDDEN * INPUTS] * 4 + [HIDDEN * HIDDEN] * 4 + [HIDDEN] * 8
    parts = p["weight_space"].split(sizes)
    W = [part.view(HIDDEN, INPUTS) for part in parts[:4]]
    R = [part.view(HIDDEN, HIDDEN) for part in parts[4:8]]

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (
            x @ W[k].T + h @ R[k].T + b + d
            for k, (b, d) in enumerate(zip(parts[8:12], parts[12:], strict=True))
        )
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    return unrolled(x, step)


def onnx_gru(p: Parameters, x: Tensor) -> Tensor:
    """linear_before_reset=1: W[zrh], R[zrh], and B of both, one direction."""
    w, r, b = (p[name][0] for name in "WRB")

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        x_z, x_r, x_h = (x @ w.T + b[: 3 * HIDDEN]).split(HIDDEN, 1)
        h_z, h_r, h_h = (h @ r.T + b[3 * HIDDEN :]).split(HIDDEN, 1)
        z, reset = torch.sigmoid(x_z + h_z), torch.sigmoid(x_r + h_r)
        return (1 - z) * torch.tanh(x_h + reset * h_h) + z * h, c

    return unrolled(x, step)


def openvino_gru(p: Parameters, x: Tensor) -> Tensor:
    """linear_before_reset=true: four biases, the last inside the reset."""
    w, r, b = (p[name][0] for name in "WRB")

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        w_z, w_r, w_h = (x @ w.T).split(HIDDEN, 1)
        r_z, r_r, r_h = (h @ r.T).split(HIDDEN, 1)
        b_z, b_r, b_h, b_inner = b.split(HIDDEN)
        z, reset = torch.sigmoid(w_z + r_z + b_z), torch.sigmoid(w_r + r_r + b_r)
        return (1 - z) * torch.tanh(w_h + reset * (r_h + b_inner) + b_h) + z * h, c

    return unrolled(x, step)


def haiku_gru(p: Parameters, x: Tensor) -> Tensor:
    """z r a, and z writes."""

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        x_z, x_r, x_a = (x @ p["w_i"] + p["b"]).split(HIDDEN, 1)
        w_z, w_r, w_a = p["w_h"].split(HIDDEN, 1)
        z, r = torch.sigmoid(x_z + h @ w_z), torch.sigmoid(x_r + h @ w_r)
        return (1 - z) * h + z * torch.tanh(x_a + (r * h) @ w_a), c

    return unrolled(x, step)


EQUATIONS: dict[str, Equations] = {
    "torch.gru": of_torch(nn.GRU),
    "torch.lstm": of_torch(nn.LSTM),
    "keras.gru": keras_gru,
    "keras.gru_reset_before": keras_gru_reset_before,
    "keras.lstm": keras_lstm,
    "tf1.basic_lstm": tf1_basic_lstm,
    "cudnn.lstm": cudnn_lstm,
    "onnx.gru": onnx_gru,
    "openvino.gru": openvino_gru,
    "haiku.gru": haiku_gru,
}
OPEN: dict[str, dict[str, Any]] = {"tf1.basic_lstm": {"forget_bias": 1.0}, "onnx.gru": {"reset": "after"}}
PAIRS = [
    ("torch.gru", "keras.gru"),
    ("torch.gru", "onnx.gru"),
    ("torch.gru", "openvino.gru"),  # b and d of r and z become one
    ("onnx.gru", "torch.gru"),
    ("openvino.gru", "keras.gru"),  # one becomes two
    ("torch.lstm", "cudnn.lstm"),
    ("cudnn.lstm", "torch.lstm"),
    ("torch.lstm", "keras.lstm"),
    ("keras.lstm", "torch.lstm"),
    ("tf1.basic_lstm", "cudnn.lstm"),  # the forget bias becomes a number of d
    ("cudnn.lstm", "tf1.basic_lstm"),
    ("keras.gru_reset_before", "haiku.gru"),  # z turns round
    ("haiku.gru", "keras.gru_reset_before"),
]


def gradients(name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of a loss of the outputs, with respect to every array."""
    random = torch.Generator().manual_seed(7)
    x, wanted = (
        torch.randn(STEPS, ROWS, size, generator=random, dtype=torch.float64) for size in (INPUTS, HIDDEN)
    )
    p = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    loss = ((EQUATIONS[name](p, x) - wanted) ** 2).sum()
    found = torch.autograd.grad(loss, list(p.values()))
    return {name: gradient.numpy() for name, gradient in zip(p, found, strict=True)}


def options(source: str, target: str) -> dict[str, Any]:
    open_fields = OPEN.get(source, {}) | {"target": OPEN.get(target, {})}
    return {"sizes": {"inputs": INPUTS, "hidden": HIDDEN}, "semantics": open_fields}


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_gradients_are_the_targets(source: str, target: str):
    """The gradient converted is the gradient with respect to the weights converted."""
    given = weights(record(source), SIZES, np.float64, seed=3)
    made = convert(given, source, target, **options(source, target)).arrays
    right = gradients(target, made)
    done = convert(gradients(source, given), source, target, kind="gradient", **options(source, target))
    assert done.arrays.keys() == right.keys()
    for name, gradient in right.items():
        assert np.abs(gradient).min() > 0
        assert_close(done.arrays[name], gradient, STEPS, ROWS)
    assert done.report.kind == "gradient"
    assert done.report.exact


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_second_moments_are_squares(source: str, target: str):
    """The second moments of Adam have no sign to change."""
    given = gradients(source, weights(record(source), SIZES, np.float64, seed=3))
    right = convert(given, source, target, kind="gradient", **options(source, target)).arrays
    squares = {name: gradient**2 for name, gradient in given.items()}
    found = convert(squares, source, target, kind="second_moment", **options(source, target)).arrays
    assert all(same_bits(found[name], gradient**2) for name, gradient in right.items())


# ---- what is refused ---------------------------------------------------------------------------------------


def drawn(name: str) -> dict[str, np.ndarray]:
    return weights(record(name), SIZES, np.float64)


def equal_biases(name: str) -> dict[str, np.ndarray]:
    arrays = drawn(name)
    return arrays | {"bias_hh_l0": arrays["bias_ih_l0"]}


def test_gradients_of_two_biases_that_are_not_those_of_one_sum():
    arrays = drawn("torch.lstm")
    said = (
        "both biases add to one sum, so their gradients are equal, so d_i = b_i, d_f = b_f, d_g = b_g and "
        "d_o = b_o must hold, and they do not"
    )
    with pytest.raises(ConversionError, match=f"torch.lstm cannot become keras.lstm .gradient.: {said}"):
        convert(arrays, "torch.lstm", "keras.lstm", kind="gradient")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_gradients_of_two_biases_that_were_added_up_in_two_orders(dtype: str):
    """They differ by rounding, as PyTorch's own do; exact=True takes none but those that are equal."""
    arrays = {name: array.astype(dtype) for name, array in equal_biases("torch.lstm").items()}
    done = convert(arrays, "torch.lstm", "keras.lstm", kind="gradient", exact=True)
    assert same_bits(done.arrays["bias"], arrays["bias_ih_l0"])
    arrays["bias_hh_l0"] = np.nextafter(arrays["bias_ih_l0"], np.array(np.inf, dtype))
    done = convert(arrays, "torch.lstm", "keras.lstm", kind="gradient")
    assert same_bits(done.arrays["bias"], arrays["bias_ih_l0"])
    with pytest.raises(ConversionError, match="so d_i = b_i, d_f = b_f, d_g = b_g and d_o = b_o must hold"):
        convert(arrays, "torch.lstm", "keras.lstm", kind="gradient", exact=True)
    arrays["bias_hh_l0"] = arrays["bias_ih_l0"] + np.array(0.1, dtype)
    with pytest.raises(ConversionError, match="so d_i = b_i, d_f = b_f, d_g = b_g and d_o = b_o must hold"):
        convert(arrays, "torch.lstm", "keras.lstm", kind="gradient")


REFUSED = [
    ("nnx.gru", "torch.gru", "the source has no gradient of d_n, which the target has"),
    ("keras.lstm", "stepnet.lstm_peephole", "the source has no gradient of p_i, which the target has"),
    ("stepnet.lstm_peephole", "keras.lstm", "the target has no place for p_i, p_f and p_o, so p_i"),
    ("torch.gru", "nnx.gru", "the target has no place for d_n, so d_n must be 0"),
    ("torch.lstm", "tflite.lstm_coupled", "the gradient of i and f cannot be told apart where i is 1 - f"),
    ("tflite.lstm_coupled", "torch.lstm", "the gradient of i and f cannot be told apart where i is 1 - f"),
    ("keras.gru", "haiku.gru", "the gradient of R_n is another where the reset is before it"),
]


@pytest.mark.parametrize(("source", "target", "said"), REFUSED)
def test_gradients_that_mean_nothing(source: str, target: str, said: str):
    arrays = equal_biases(source) if source.startswith("torch") else drawn(source)
    with pytest.raises(ConversionError, match=said):
        convert(arrays, source, target, kind="gradient")


def test_a_gradient_of_a_projection_has_no_place_though_it_is_the_identity():
    sizes = Sizes(INPUTS, HIDDEN, projected=HIDDEN)
    arrays = weights(record("torch.lstm_projection"), sizes) | {"weight_hr_l0": np.eye(3, dtype="float32")}
    arrays["bias_hh_l0"] = arrays["bias_ih_l0"]
    said = "the target has no place for P, so P must be 0, and it is not"
    with pytest.raises(ConversionError, match=said):
        convert(arrays, "torch.lstm_projection", "keras.lstm", kind="gradient")


def test_kinds_there_are_not():
    with pytest.raises(LayoutError, match="kind is one of weights, gradient, second_moment, not 'moment'"):
        convert(drawn("torch.gru"), "torch.gru", "keras.gru", kind="moment")


# ---- memory ------------------------------------------------------------------------------------------------

WIDE, TALL, SQUARE = Sizes(2700, 900), Sizes(500, 2000), Sizes(1400, 1400)
LARGE = [
    ("torch.gru", "keras.gru", SQUARE),
    ("torch.gru", "keras.gru", WIDE),
    ("keras.gru", "keras.cudnn_gru", WIDE),
    ("keras.gru", "keras.cudnn_gru", TALL),
    ("keras.cudnn_gru", "torch.gru", WIDE),
    ("keras.cudnn_gru", "keras.gru", SQUARE),
    ("keras.cudnn_gru", "keras.cudnn_gru", TALL),
    ("keras.gru_reset_before", "chainer.gru", TALL),  # negated
    ("cudnn.lstm", "keras.lstm", WIDE),
    ("keras.lstm", "chainer.lstm", TALL),
    ("haiku.gru", "paddle.fusion_gru", WIDE),
]


def counted(name: str, sizes: Sizes) -> dict[str, np.ndarray]:
    """Every number another one, as far as float32 can count."""
    found: dict[str, np.ndarray] = {}
    start = 1
    for array, shape in record(name).shapes(sizes).items():
        found[array] = np.arange(start, start + prod(shape), dtype="float32").reshape(shape)
        start += prod(shape)
    return found


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("source", "target", "sizes"), LARGE)
def test_memory_beside_the_source_is_the_target(source: str, target: str, sizes: Sizes):
    """Some 50 MB, and no more than a tenth above what the result holds; in pieces it is right as well."""
    arrays = counted(source, sizes)
    if source == "cudnn.lstm":
        arrays["weight_space"][-8 * sizes.hidden : -4 * sizes.hidden] = 0  # so that sums are exact
    with memory() as most:
        done = convert(arrays, source, target, sizes=sizes)
        peak = most()
    held = sum(array.nbytes for array in done.arrays.values())
    assert 30e6 < held <= peak <= 1.1 * held
    given = done.report.open_fields
    back = convert(done.arrays, target, source, sizes=done.report.target_sizes, semantics=given).arrays
    assert all(same_bits(back[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("sizes", [Sizes(700, 300), Sizes(301, 523), Sizes(300, 300)])
def test_buffers_in_the_place_of_matrices_are_right_in_pieces(sizes: Sizes):
    """CuDNNGRU's kernel holds in the place of each gate's [inputs, hidden] the buffer of [hidden, inputs]."""
    arrays = counted("torch.gru", sizes)
    kernels = convert(arrays, "torch.gru", "keras.cudnn_gru").arrays
    for name, theirs in (("weight_ih_l0", "kernel"), ("weight_hh_l0", "recurrent_kernel")):
        r, z, n = np.split(arrays[name], 3)
        right = np.concatenate([block.reshape(block.shape[::-1]) for block in (z, r, n)], 1)
        assert np.array_equal(kernels[theirs], right)
    back = convert(kernels, "keras.cudnn_gru", "torch.gru").arrays
    assert all(same_bits(back[name], array) for name, array in arrays.items())
