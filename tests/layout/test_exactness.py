"""Each class of difference between layouts: what is bit-exact, what is rounded once and by how much, and what
is refused, with which words.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings
from tolerance import assert_close

from stepnet.errors import ConversionError, LayoutError
from stepnet.layout import Conversion, Record, Semantics, Sizes, convert, record
from stepnet.layout.find import nearest
from tests.layout.layout_cases import DTYPES, Arrays, outputs, rounded, same_bits, views, weights

SIZES = Sizes(inputs=2, hidden=3)
PROJECTED = Sizes(inputs=2, hidden=3, projected=3)
BEFORE: dict[str, Any] = {"reset": "before"}


def drawn(name: str, sizes: Sizes = SIZES) -> Arrays:
    return weights(record(name), sizes)


def said(done: Conversion) -> list[str]:
    """The steps, in words."""
    return [str(step) for step in done.report.steps]


def assert_same_function(done: Conversion, arrays: Arrays, source: Any, dtype: Any = np.float64):
    """Asserts that both sides compute the same in float64, up to roundings of a dtype."""
    report = done.report
    right = outputs(record(source), report.source_semantics, report.sizes, arrays)
    found = outputs(report.layout, report.target_semantics, report.target_sizes, done.arrays)
    assert_close(found, right, 3, 3, dtype)


# ---- A: another place --------------------------------------------------------------------------------------


def test_gates_in_another_order_and_transposed():
    arrays = drawn("torch.gru")
    done = convert(arrays, "torch.gru", "keras.gru", exact=True)
    for theirs, ours in (("kernel", "weight_ih_l0"), ("recurrent_kernel", "weight_hh_l0")):
        r, z, n = arrays[ours].reshape(3, 3, -1)
        assert same_bits(done.arrays[theirs], np.concatenate([z.T, r.T, n.T], 1))
    both = [arrays[name].reshape(3, 3)[[1, 0, 2]].ravel() for name in ("bias_ih_l0", "bias_hh_l0")]
    assert same_bits(done.arrays["bias"], np.stack(both))
    assert said(done) == ["W_rzn, R_rzn, b_rzn, d_rzn: moved: bit-exact"]


def test_gates_interleaved():
    """Chainer has the four gates of one unit, a i f o, beside one another."""
    arrays = drawn("equinox.lstm")
    done = convert(arrays, "equinox.lstm", "chainer.lstm", exact=True)
    i, f, g, o = arrays["weight_ih"].reshape(4, 3, 2)
    assert same_bits(done.arrays["upward/W"], np.stack([g, i, f, o], 1).reshape(12, 2))
    i, f, g, o = arrays["bias"].reshape(4, 3)
    assert same_bits(done.arrays["upward/b"], np.stack([g, i, f, o], 1).ravel())


def test_one_array_for_each_gate_and_one_for_all():
    arrays = drawn("keras1.lstm")
    done = convert(
        arrays, "keras1.lstm", "tf1.cudnn_compatible_lstm", semantics={"gate_activation": "sigmoid"}
    )
    x, h = (np.concatenate([arrays[f"{name}_{gate}"] for gate in "icfo"], 1) for name in "WU")
    assert same_bits(done.arrays["kernel"], np.concatenate([x, h], 0))
    assert done.report.exact


# ---- B: z turned round -------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["sigmoid", "hard_sigmoid", "hard_sigmoid_fifth"])
def test_z_that_keeps_becomes_z_that_writes(activation: str):
    """1 - s(a) = s(-a): the row of z changes its sign, and no other number changes."""
    known = {"reset": "before", "gate_activation": activation}
    parts = {"w": "W[x (g:rzn h)]", "u": "R[k (g:rzn h)]", "b": "b[(g:rzn h)]"}
    keeps, writes = (
        Record(f"mine.{way}", "gru", parts, {**known, "update": way}) for way in ("keep", "write")
    )
    arrays = weights(keeps, SIZES)
    done = convert(arrays, keeps, writes, exact=True)
    sign = np.repeat(np.array([1, -1, 1], "float32"), 3)
    assert all(same_bits(done.arrays[name], array * sign) for name, array in arrays.items())
    why = "1 - s(a) = s(-a) inverts the sense of the update gate"
    assert said(done) == [
        "W_rn, R_rn, b_rn: moved: bit-exact",
        f"W_z, R_z, b_z: negated, as {why}: bit-exact",
    ]
    assert_same_function(done, arrays, keeps)
    assert all(same_bits(convert(done.arrays, writes, keeps).arrays[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
def test_z_is_turned_round_only_by_what_is_symmetric(activation: str):
    fields = {"update": "keep", "gate_activation": activation}
    same = convert(drawn("paddle.fusion_gru"), "paddle.fusion_gru", "paddle.dynamic_gru", semantics=fields)
    assert same.report.exact
    why = f"signs invert the sense of z only if s.-a. = 1 - s.a., which fails for {activation}"
    with pytest.raises(ConversionError, match=why):
        convert(
            drawn("paddle.fusion_gru"),
            "paddle.fusion_gru",
            "paddle.dynamic_gru",
            semantics={**fields, "target": {"update": "write"}},
        )


def test_the_gate_of_an_mgu_is_not_turned_round():
    """It resets as well: with other signs that would be turned round too."""
    parts = {"w": "W[x (g:fn h)]", "u": "R[k (g:fn h)]"}
    keeps = Record("mine.mgu", "mgu", parts, {"reset": "before", "update": "keep"})
    why = "the update gate also resets, and negating its weights would invert both"
    with pytest.raises(ConversionError, match=why):
        convert(weights(keeps, SIZES), keeps, "stepnet.minimal_gated_unit")


# ---- C: one bias becomes two -------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "lone", "zero"), [("torch.lstm", "b", "d"), ("cudnn.lstm", "d", "b")])
def test_one_bias_becomes_itself_and_zeros(target: str, lone: str, zero: str):
    """TensorFlow gives cuDNN the recurrent one; all others take it for the inputs'."""
    arrays = drawn("keras.lstm")
    done = convert(arrays, "keras.lstm", target, exact=True)
    vector = [*done.arrays.values()]
    b, d = vector[-2:] if len(vector) > 1 else np.split(vector[0][-24:], 2)
    found = {"b": b, "d": d}
    assert same_bits(found[lone], arrays["bias"])
    assert same_bits(found[zero], np.zeros(12, "float32"))
    assert f"{zero}_ifgo: filled with 0: bit-exact" in said(done)


# ---- D, E, G: two biases become one ------------------------------------------------------------------------


@pytest.mark.long(examples=80)
@given(
    st.sampled_from(list(DTYPES)),
    st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=3, max_size=3),
    st.sampled_from([0.0, 1.0, -1.0, 0.1, 3.0]),
)
@example("bfloat16", [(2.0**-8, 2.0**-40)] * 3, 1.0)  # a tie in float32, and none in truth
@example("float16", [(2.0**-11, 2.0**-24)] * 3, 1.0)
@example("float32", [(2.0**-24, 2.0**-80)] * 3, 1.0)  # a tie in float64, and none in truth
@example("float32", [(-(2.0**-24), -(2.0**-80))] * 3, -1.0)
@example("float64", [(2.0**-53, 2.0**-80)] * 3, 1.0)
@example("float64", [(1.0, 2.0**-53)] * 3, 2.0**-80)
@settings(max_examples=300)
def test_sums_are_rounded_once_to_the_nearest(
    name: str, pairs: list[tuple[float, float]], forget_bias: float
):
    """b + d, and for f the forget bias, exactly, and then the nearest number of the dtype; the report has the
    largest distance from what is exact.
    """
    dtype = DTYPES[name]
    parts = {"w": "W[(g:ifgo h) x]", "u": "R[(g:ifgo h) k]", "b": "b[(g:ifgo h)]", "d": "d[(g:ifgo h)]"}
    biased = Record("mine.lstm", "lstm", parts, {"forget_bias": forget_bias})
    arrays = {one: array.astype(dtype) for one, array in weights(biased, SIZES).items()}
    arrays["b"], arrays["d"] = (np.array([pair[side] for pair in pairs] * 4).astype(dtype) for side in (0, 1))
    done = convert(arrays, biased, "equinox.lstm")
    constants = [0, forget_bias, 0, 0]
    exactly = [
        Fraction(float(arrays["b"][place]))
        + Fraction(float(arrays["d"][place]))
        + Fraction(constants[place // 3])
        for place in range(12)
    ]
    found = done.arrays["bias"]
    assert [float(number) for number in found] == [float(rounded(one, dtype)) for one in exactly]
    errors = [abs(Fraction(float(number)) - one) for number, one in zip(found, exactly, strict=True)]
    assert done.report.rounding == pytest.approx(float(max(errors)), rel=1e-14, abs=0)
    assert done.report.exact == (max(errors) == 0)
    assert same_bits(done.arrays["weight_ih"], arrays["w"])


def test_two_biases_become_one_and_exact_refuses():
    arrays = drawn("torch.lstm")
    done = convert(arrays, "torch.lstm", "keras.lstm")
    b, d = (arrays[name].astype(np.float64) for name in ("bias_ih_l0", "bias_hh_l0"))
    assert same_bits(done.arrays["bias"], (b + d).astype("float32"))
    largest = np.abs((b + d) - done.arrays["bias"]).max()
    assert 0 < done.report.rounding == largest
    step = (
        f"b_ifgo: summed (b_i + d_i, b_f + d_f, b_g + d_g, b_o + d_o): rounded once, by {largest:.3g} at most"
    )
    assert said(done) == ["W_ifgo, R_ifgo: moved: bit-exact", step]
    assert_same_function(done, arrays, "torch.lstm", np.float32)
    with pytest.raises(ConversionError) as caught:
        convert(arrays, "torch.lstm", "keras.lstm", exact=True)
    assert (
        str(caught.value)
        == f"torch.lstm cannot become keras.lstm: {step}, which --exact (Python: exact=True) refuses"
    )


def test_exact_takes_sums_that_happen_to_be():
    arrays = drawn("torch.lstm")
    arrays["bias_ih_l0"], arrays["bias_hh_l0"] = np.full((2, 12), [[0.5], [0.25]], "float32")
    done = convert(arrays, "torch.lstm", "keras.lstm", exact=True)
    assert same_bits(done.arrays["bias"], np.full(12, 0.75, "float32"))
    assert done.report.exact


@pytest.mark.parametrize(
    ("dtype", "bits"), [("bfloat16", 0x7FA0), ("float16", 0x7D00), ("float32", 0x7FA00000)]
)
def test_a_signaling_nan_is_not_diagonal(dtype: str, bits: int):
    """It is compared without NumPy's warning, which is an error here."""
    arrays = {name: array.astype(dtype) for name, array in drawn("torch.gru").items()}
    held = arrays["weight_hh_l0"]
    held.view(f"u{held.itemsize}")[:] = bits
    with pytest.raises(ConversionError, match="R_n must be diagonal, and it is not"):
        convert(arrays, "torch.gru", "keras.gru_reset_before")


def test_a_sum_past_the_largest_number_is_refused():
    arrays = {name: array.astype("float16") for name, array in drawn("torch.lstm").items()}
    arrays["bias_ih_l0"][4] = arrays["bias_hh_l0"][4] = 6e4
    with pytest.raises(ConversionError) as caught:
        convert(arrays, "torch.lstm", "keras.lstm")
    assert str(caught.value) == (
        "torch.lstm cannot become keras.lstm: bias[4] (b_f) would exceed the largest float16, 65504: "
        "say --dtype float32 (Python: dtype='float32') or a wider one"
    )
    wide = convert(arrays, "torch.lstm", "keras.lstm", dtype="float32").arrays["bias"]
    assert wide[4] == 120000
    largest = {name: np.full_like(array, 1e308, np.float64) for name, array in arrays.items()}
    with pytest.raises(ConversionError, match=r"bias\[0\] \(b_i\) would exceed the largest float64"):
        convert(largest, "torch.lstm", "keras.lstm")


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "float64"])
def test_another_dtype_is_rounded_to_once(source: str, target: str):
    """Moved numbers are the nearest of the dtype; the report says whether any was rounded, and how far."""
    arrays = {name: array.astype(source) for name, array in drawn("torch.gru").items()}
    done = convert(arrays, "torch.gru", "keras.gru", dtype=target)
    assert {array.dtype.name for array in done.arrays.values()} == {target}
    wide = {name: array.astype("float64") for name, array in arrays.items()}
    exactly = convert(wide, "torch.gru", "keras.gru").arrays
    rounding = 0.0
    for name, array in done.arrays.items():
        assert same_bits(array, exactly[name].astype(target))
        rounding = max(rounding, np.abs(array.astype("float64") - exactly[name]).max())
    assert done.report.rounding == rounding
    assert done.report.exact == (rounding == 0)
    if rounding:
        with pytest.raises(ConversionError, match="Python: exact=True"):
            convert(arrays, "torch.gru", "keras.gru", dtype=target, exact=True)


def test_a_number_past_the_largest_of_a_narrower_dtype_is_refused():
    arrays = drawn("torch.lstm")
    arrays["weight_ih_l0"][5, 1] = 1e6
    with pytest.raises(ConversionError, match=r"kernel\[1, 5\] \(W_f\) would exceed .* float16, 65504"):
        convert(arrays, "torch.lstm", "keras.lstm", dtype="float16")
    arrays["weight_ih_l0"][5, 1] = np.inf
    kernel = convert(arrays, "torch.lstm", "keras.lstm", dtype="float16").arrays["kernel"]
    assert np.isposinf(kernel[1, 5])


def test_a_dtype_that_is_none():
    with pytest.raises(LayoutError, match="dtype is one of float16, bfloat16, float32, float64, not 'int8'"):
        convert(drawn("torch.lstm"), "torch.lstm", "keras.lstm", dtype="int8")


def test_zeros_beside_a_bias_leave_its_bits():
    """-0.0 + 0.0 would be 0.0; so cuDNN's zeros are no term."""
    vector = convert(drawn("keras.lstm"), "keras.lstm", "cudnn.lstm").arrays["weight_space"]
    special = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1, 2, 3, 4, 5], "float32")
    vector[-12:] = special
    done = convert({"weight_space": vector}, "cudnn.lstm", "keras.lstm", sizes=SIZES, exact=True)
    assert same_bits(done.arrays["bias"], special)


def test_what_is_not_finite_stays_so_in_a_sum():
    arrays = drawn("torch.lstm")
    special = np.array([np.inf, -np.inf, np.nan], "float32")
    arrays["bias_ih_l0"][3:6] = special
    done = convert(arrays, "torch.lstm", "haiku.lstm")
    assert np.array_equal(done.arrays["linear/b"][6:9], special, equal_nan=True)
    assert 0 < done.report.rounding < 1e-6


def test_four_biases():
    """The biases of r and z are summed; b and d of n stay apart, as n is reset between them."""
    arrays = drawn("torch.gru")
    done = convert(arrays, "torch.gru", "openvino.gru")
    b, d = (arrays[name].astype(np.float64).reshape(3, 3) for name in ("bias_ih_l0", "bias_hh_l0"))
    right = np.concatenate([b[1] + d[1], b[0] + d[0], b[2], d[2]]).astype("float32")
    assert same_bits(done.arrays["B"], right[None])
    assert said(done)[0] == "W_rzn, R_rzn, b_n, d_n: moved: bit-exact"
    assert said(done)[1].startswith("b_rz: summed (b_r + d_r, b_z + d_z): rounded once, by")


def test_reset_before_sums_the_biases_of_n_as_well():
    arrays = drawn("onnx.gru")
    done = convert(arrays, "onnx.gru", "keras.gru_reset_before", semantics=BEFORE)
    b, d = np.split(arrays["B"][0].astype(np.float64), 2)
    assert same_bits(done.arrays["bias"], (b + d).astype("float32"))
    assert_same_function(done, arrays, "onnx.gru", np.float32)


# ---- F, K: no place ----------------------------------------------------------------------------------------


def test_a_recurrent_bias_of_n_without_a_place():
    """torch has it, nnx.GRUCell has not: only zeros may be left out."""
    arrays = drawn("torch.gru")
    why = "the target has no place for d_n, so d_n must be 0, and it is not"
    with pytest.raises(ConversionError) as caught:
        convert(arrays, "torch.gru", "nnx.gru")
    assert str(caught.value) == f"torch.gru cannot become nnx.gru: {why}"
    arrays["bias_hh_l0"][:] = 0
    done = convert(arrays, "torch.gru", "nnx.gru", exact=True)
    assert same_bits(done.arrays["dense_i/bias"], arrays["bias_ih_l0"])
    arrays["bias_hh_l0"][-1] = np.nan
    with pytest.raises(ConversionError, match="the target has no place for d_n"):
        convert(arrays, "torch.gru", "nnx.gru")


def test_peepholes_without_a_place():
    arrays = drawn("stepnet.lstm_peephole")
    with pytest.raises(ConversionError) as caught:
        convert(arrays, "stepnet.lstm_peephole", "torch.lstm")
    assert str(caught.value) == (
        "stepnet.lstm_peephole cannot become torch.lstm: the target has no place for p_i, p_f and p_o, "
        "so p_i, p_f and p_o must be 0, and they are not"
    )
    arrays["p"][[0, 2]] = 0
    with pytest.raises(ConversionError) as caught:
        convert(arrays, "stepnet.lstm_peephole", "torch.lstm")
    assert "p_f must be 0" in str(caught.value)
    assert "p_i is" not in str(caught.value)
    arrays["p"][:] = 0
    assert_same_function(
        convert(arrays, "stepnet.lstm_peephole", "torch.lstm", exact=True), arrays, "stepnet.lstm_peephole"
    )


def test_peepholes_that_are_missing_are_left_out_or_zeros():
    arrays = drawn("torch.lstm")
    assert "P" not in convert(arrays, "torch.lstm", "onnx.lstm").arrays
    done = convert(arrays, "torch.lstm", "stepnet.lstm_peephole", exact=True)
    assert same_bits(done.arrays["p"], np.zeros((3, 3), "float32"))
    assert "p_ifo: filled with 0: bit-exact" in said(done)


def test_a_projection_without_a_place():
    name = "torch.lstm_projection"
    arrays = weights(record(name), PROJECTED)
    with pytest.raises(ConversionError, match="has no projection, so P must be the identity, and it is not"):
        convert(arrays, name, "torch.lstm")
    arrays["weight_hr_l0"] = np.eye(3, dtype="float32")
    assert_same_function(convert(arrays, name, "torch.lstm", exact=True), arrays, name)
    narrow = weights(record(name), Sizes(2, 3, projected=2))
    with pytest.raises(ConversionError, match=f"{name} has a projection to 2, and keras.lstm has none"):
        convert(narrow, name, "keras.lstm")
    with pytest.raises(ConversionError, match=f"{name} has a projection, and torch.lstm has none"):
        convert(drawn("torch.lstm"), "torch.lstm", name)


def test_a_clip_without_a_place():
    arrays = drawn("onnx.gru")
    fields = {"reset": "after", "clip": 5.0}
    done = convert(arrays, "onnx.gru", "openvino.gru", semantics=fields)
    assert done.report.settings["clip"] == 5.0
    assert convert(arrays, "onnx.gru", "onnx.gru", semantics=fields).report.settings["clip"] == 5.0
    # onnxruntime refuses 0, the value of a node without the attribute.
    assert "clip" not in convert(drawn("torch.gru"), "torch.gru", "onnx.gru").report.settings
    with pytest.raises(
        ConversionError, match=r"the source's clip is 5\.0, and keras\.gru has none: these are"
    ):
        convert(arrays, "onnx.gru", "keras.gru", semantics=fields)


def test_coupled_gates_become_two_and_back():
    """i = 1 - f: the input gate is the negated forget gate, in every parameter."""
    arrays = drawn("tflite.lstm_coupled")
    done = convert(arrays, "tflite.lstm_coupled", "stepnet.lstm_peephole", exact=True)
    i, f = done.arrays["W"].reshape(2, 4, 3)[:, :2].swapaxes(0, 1)
    assert same_bits(f, arrays["input_to_forget_weights"].T.copy())
    assert same_bits(i, -f)
    assert same_bits(done.arrays["p"][0], -arrays["cell_to_forget_weights"])
    why = "1 - s(a) = s(-a) turns the coupled forget gate into an input gate"
    assert f"W_i, R_i, b_i, p_i: negated, as {why}: bit-exact" in said(done)
    assert_same_function(done, arrays, "tflite.lstm_coupled")
    back = convert(done.arrays, "stepnet.lstm_peephole", "tflite.lstm_coupled", exact=True).arrays
    assert all(same_bits(back[name], array) for name, array in arrays.items())
    done.arrays["R"][1, 1] += 1
    with pytest.raises(ConversionError) as caught:
        convert(done.arrays, "stepnet.lstm_peephole", "tflite.lstm_coupled")
    why = "i is 1 - f in the target, so R_i must be -R_f, and it is not"
    assert str(caught.value) == f"stepnet.lstm_peephole cannot become tflite.lstm_coupled: {why}"


def test_coupled_gates_beside_a_forget_bias():
    """f adds 1 in Haiku, and i does not: so 1 is taken from f alone."""
    arrays = drawn("tflite.lstm_coupled")
    for name in list(arrays):
        if name.startswith("cell_to"):
            del arrays[name]
    assert_same_function(
        convert(arrays, "tflite.lstm_coupled", "haiku.lstm"), arrays, "tflite.lstm_coupled", np.float32
    )
    with pytest.raises(ConversionError) as caught:
        convert(drawn("haiku.lstm"), "haiku.lstm", "tflite.lstm_coupled")
    assert str(caught.value) == (
        "haiku.lstm cannot become tflite.lstm_coupled: i is 1 - f in the target, so W_i = -W_f, R_i = -R_f "
        "and b_i + b_f = -1 must hold, and they do not"
    )


def test_a_forget_bias_of_coupled_gates_goes_into_the_bias_of_i():
    """i = 1 - s(a + 1) = s(-a - 1)."""
    parts = {"w": "W[(g:fgo h) x]", "u": "R[(g:fgo h) k]", "b": "b[(g:fgo h)]"}
    coupled = Record("mine.lstm", "lstm", parts, {"coupled": True, "forget_bias": 1.0})
    arrays = weights(coupled, SIZES)
    for target in ("torch.lstm", "haiku.lstm", "keras.lstm"):
        assert_same_function(convert(arrays, coupled, target), arrays, coupled, np.float32)
    with pytest.raises(ConversionError, match=r"the target has no bias for i that takes -1"):
        convert(arrays, coupled, "cudnn.lstm_no_bias")


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_coupled_gates_are_two_only_of_what_is_symmetric(activation: str):
    parts = {"w": "W[(g:fgo h) x]", "u": "R[(g:fgo h) k]"}
    coupled = Record("mine.lstm", "lstm", parts, {"coupled": True, "gate_activation": activation})
    why = f"i is 1 - f on one side, and 1 - s.a. = s.-a. does not hold for {activation}"
    with pytest.raises(ConversionError, match=why):
        convert(weights(coupled, SIZES), coupled, "onnx.lstm")


def test_of_two_biases_only_the_sums_have_to_be_coupled():
    """b_i + d_i = -(b_f + d_f), whatever each of them is."""
    arrays = drawn("torch.lstm")
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        i, f, *_ = np.split(arrays[name], 4)
        i[...] = -f
    arrays["bias_ih_l0"][0] += 0.5
    with pytest.raises(ConversionError, match=r"so b_i \+ d_i \+ b_f \+ d_f must be 0, and it is not"):
        convert(arrays, "torch.lstm", "tflite.lstm_coupled")
    arrays["bias_hh_l0"][0] -= 0.5
    assert_same_function(
        convert(arrays, "torch.lstm", "tflite.lstm_coupled"), arrays, "torch.lstm", np.float32
    )


@pytest.mark.parametrize(
    ("source", "target"), [("haiku.gru", "torch.gru"), ("cudnn.gru", "keras.gru_reset_before")]
)
@pytest.mark.parametrize("hidden", [1, 3])
def test_a_reset_before_is_one_after_where_nothing_is_mixed(source: str, target: str, hidden: int):
    """With one hidden unit, or a diagonal R_n, R_n (r h) = r (R_n h)."""
    sizes = Sizes(2, hidden)
    arrays = weights(record(source), sizes)
    for block, view in views(record(source), sizes, arrays).items():
        if (block.parameter, block.gate) == ("R", "n"):
            view[...] = (view.reshape(hidden, hidden) * np.eye(hidden)).reshape(view.shape)
        if (block.parameter, block.gate) == ("d", "n"):
            view[...] = 0
    done = convert(arrays, source, target, sizes=sizes)
    right = outputs(record(source), record(source).settled({}), sizes, arrays)
    found = outputs(done.report.layout, done.report.target_semantics, done.report.target_sizes, done.arrays)
    assert_close(found, right, 3, 3, np.float64 if done.report.exact else np.float32)


# ---- H: the reset ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("keras.gru_reset_before", "cudnn.gru"),
        ("haiku.gru", "torch.gru"),
        ("cudnn.gru", "keras.gru_reset_before"),
    ],
)
def test_a_reset_before_is_not_one_after(source: str, target: str):
    biased = source == "cudnn.gru"  # behind the product, where it is reset
    lost = "; the target has no place for d_n, so d_n must be 0, and it is not"
    one, other = ("after", "before") if biased else ("before", "after")
    with pytest.raises(ConversionError) as caught:
        convert(drawn(source), source, target, sizes=SIZES)
    assert str(caught.value) == (
        f"{source} cannot become {target}: the source resets {one} the recurrent product and {target} "
        f"{other} it: R_n (r h) and r (R_n h) are equal for every r only if R_n is diagonal, so R_n "
        f"must be diagonal, and it is not; a target that resets {one} it asks for no such R_n"
        f"{lost if biased else ''}"
    )


# ---- I: the forget bias ------------------------------------------------------------------------------------

TF1 = {"forget_bias": 1.0}


def test_a_forget_bias_goes_into_the_second_bias():
    arrays = drawn("tf1.basic_lstm")
    done = convert(arrays, "tf1.basic_lstm", "torch.lstm", semantics=TF1, exact=True)
    i, g, f, o = arrays["bias"].reshape(4, 3)
    assert same_bits(done.arrays["bias_ih_l0"], np.concatenate([i, f, g, o]))
    assert same_bits(done.arrays["bias_hh_l0"], np.repeat(np.array([0, 1, 0, 0], "float32"), 3))
    assert said(done)[-1] == "d_ifgo: filled with 0, 1: bit-exact"
    assert_same_function(done, arrays, "tf1.basic_lstm")
    back = convert(done.arrays, "torch.lstm", "tf1.basic_lstm", semantics={"target": TF1}, exact=True)
    assert all(same_bits(back.arrays[name], array) for name, array in arrays.items())


def test_a_forget_bias_that_the_dtype_has_not_is_rounded():
    """0.1 is no float32."""
    fields = {"forget_bias": 0.1}
    done = convert(drawn("tf1.basic_lstm"), "tf1.basic_lstm", "torch.lstm", semantics=fields)
    right = abs(Fraction(float(np.float32(0.1))) - Fraction(0.1))
    assert done.report.rounding == float(right) > 0
    with pytest.raises(
        ConversionError, match=r"d_ifgo: filled with 0, 0.1: rounded once, by 1.49e-09 at most"
    ):
        convert(drawn("tf1.basic_lstm"), "tf1.basic_lstm", "torch.lstm", semantics=fields, exact=True)


def test_a_forget_bias_is_baked_into_the_only_bias():
    arrays = drawn("haiku.lstm")
    done = convert(arrays, "haiku.lstm", "keras.lstm")
    i, g, f, o = arrays["linear/b"].reshape(4, 3)
    baked = (f.astype(np.float64) + 1).astype("float32")
    assert same_bits(done.arrays["bias"], np.concatenate([i, baked, g, o]))
    assert 0 < done.report.rounding == np.abs(baked - (f.astype(np.float64) + 1)).max()
    assert said(done)[1].startswith("b_f: summed (b_f + 1): rounded once, by")
    assert_same_function(done, arrays, "haiku.lstm", np.float32)


def test_a_forget_bias_is_taken_from_the_sum():
    arrays = drawn("torch.lstm")
    done = convert(arrays, "torch.lstm", "haiku.lstm")
    b, d = (arrays[name].astype(np.float64).reshape(4, 3) for name in ("bias_ih_l0", "bias_hh_l0"))
    right = b + d + np.array([[0], [-1], [0], [0]])
    assert same_bits(done.arrays["linear/b"], right[[0, 2, 1, 3]].ravel().astype("float32"))
    assert_same_function(done, arrays, "torch.lstm", np.float32)


def test_a_forget_bias_that_both_sides_add_stays_a_setting():
    arrays = drawn("tf1.basic_lstm")
    done = convert(arrays, "tf1.basic_lstm", "tf1.lstm_block", semantics={"forget_bias": 0.3}, exact=True)
    assert all(same_bits(done.arrays[name], array) for name, array in arrays.items())
    assert done.report.settings["forget_bias"] == 0.3
    none = {**TF1, "target": {"forget_bias": 0.0}}
    done = convert(arrays, "tf1.basic_lstm", "tf1.lstm_block", semantics=none)
    assert not done.report.exact
    assert_same_function(done, arrays, "tf1.basic_lstm", np.float32)


def test_a_forget_bias_of_a_layer_without_biases():
    """A bias is made for it, where the target has any; where it has none, all have to add up to zero."""
    arrays = {name: array for name, array in drawn("torch.lstm").items() if "bias" not in name}
    done = convert(arrays, "torch.lstm", "haiku.lstm", exact=True)
    assert same_bits(done.arrays["linear/b"], np.repeat(np.array([0, 0, -1, 0], "float32"), 3))
    bare = Record("mine.lstm", "lstm", {"w": "W[(g:ifgo h) x]", "u": "R[(g:ifgo h) k]"}, TF1)
    with pytest.raises(ConversionError, match=r"the target has no bias for f that takes \+1"):
        convert(weights(bare, SIZES), bare, "cudnn.lstm_no_bias")
    done = convert(weights(bare, SIZES), bare, "keras.lstm", exact=True)
    assert same_bits(done.arrays["bias"], np.repeat(np.array([0, 1, 0, 0], "float32"), 3))
    haiku = drawn("haiku.lstm")
    haiku["linear/b"][:] = np.repeat([0, 0, -1, 0], 3)
    assert convert(haiku, "haiku.lstm", "cudnn.lstm_no_bias").report.exact
    haiku["linear/b"][:] = 0
    with pytest.raises(ConversionError, match="so b_f must be -1, and it is not"):
        convert(haiku, "haiku.lstm", "cudnn.lstm_no_bias")


# ---- J, L: the function beside the numbers -----------------------------------------------------------------


def test_the_hard_sigmoid_of_keras_2_is_not_that_of_keras_3():
    arrays, fifth = drawn("keras2.gru"), {"gate_activation": "hard_sigmoid_fifth"}
    with pytest.raises(ConversionError) as caught:
        convert(arrays, "keras2.gru", "keras.gru", semantics=fifth)
    assert str(caught.value) == (
        "keras2.gru cannot become keras.gru: the source's gate_activation is hard_sigmoid_fifth, and "
        "keras.gru has sigmoid: these are different functions"
    )
    done = convert(arrays, "keras2.gru", "onnx.gru", semantics=fifth)
    assert done.report.settings["activations[0]"] == "HardSigmoid"
    assert "  set there: linear_before_reset=1, activations[0]='HardSigmoid'" in str(done.report)


def test_one_setting_for_two_activations():
    said = "coreml.lstm cannot become keras.lstm: keras.lstm has one activation for relu and tanh"
    with pytest.raises(ConversionError, match=said):
        convert(drawn("coreml.lstm"), "coreml.lstm", "keras.lstm", semantics={"output_activation": "relu"})


def test_first_steps_are_in_the_notes():
    done = convert(drawn("torch.gru"), "torch.gru", "mlx.gru", sizes=SIZES)
    assert any("in the first step" in note for note in done.report.notes)
    assert "  note: MLX up to 0.31 leaves bhn out in the first step" in str(done.report)
    assert done.report.as_json()["notes"] == list(record("mlx.gru").notes)


def test_a_record_of_ones_own_has_a_report():
    """It is in no list of layouts, so the report knows it by itself."""
    mine = Record(
        "mine.gru",
        "gru",
        {"w": "W[(g:zrn h) x]", "u": "R[(g:zrn h) k]", "b?": "b[(g:zrn h)]", "d?": "d[(g:zrn h)]"},
    )
    done = convert(drawn("torch.gru"), "torch.gru", mine)
    assert (
        str(done.report)
        == "torch.gru -> mine.gru: 2 inputs, 3 hidden\n  W_rzn, R_rzn, b_rzn, d_rzn: moved: bit-exact"
    )
    assert (done.report.target_sizes, done.report.open_fields, done.report.settings) == (SIZES, {}, {})
    assert done.report.as_json()["target"] == "mine.gru"
    assert repr(done) == "Conversion(w, u, b, d; torch.gru -> mine.gru)"


# ---- bad input ---------------------------------------------------------------------------------------------

GRU, VECTOR, ONNX = drawn("torch.gru"), {"weight_space": np.ones(63)}, drawn("onnx.gru")
DEEP = weights(record("torch.gru"), Sizes(2, 3, layers=2))
LINES: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: convert(GRU, "torch.grus", "keras.gru"),
        "no layout is called 'torch.grus' (did you mean torch.gru",
    ),
    (
        lambda: convert(GRU | {"bias_ih_l0": np.ones(9, "int64")}, "torch.gru", "keras.gru"),
        "bias_ih_l0 holds int64; weights are one of float16, bfloat16, float32, float64: cast them",
    ),
    (
        lambda: convert(GRU | {"bias_ih_l0": np.ones(9, "complex64")}, "torch.gru", "keras.gru"),
        "bias_ih_l0 holds complex64; weights are one of",
    ),
    (
        lambda: convert(GRU | {"bias_ih_l0": np.ones(9)}, "torch.gru", "keras.gru"),
        "the arrays have several dtypes (bias_hh_l0 is float32, bias_ih_l0 is float64): cast them to one",
    ),
    (lambda: convert({}, "torch.gru", "keras.gru"), "no arrays are given"),
    (
        lambda: convert({"weight_ih_l0": GRU["weight_ih_l0"]}, "torch.gru", "keras.gru"),
        "weight_hh_l0 is missing: torch.gru of 2 inputs, 3 hidden has weight_ih_l0, weight_hh_l0, bias_ih_l0",
    ),
    (
        lambda: convert({"kernel": np.ones((2, 9))}, "keras.gru", "torch.gru"),
        "recurrent_kernel is missing: keras.gru of 2 inputs, 3 hidden has kernel, recurrent_kernel, bias",
    ),
    (
        lambda: convert({n: a for n, a in GRU.items() if n != "bias_hh_l0"}, "torch.gru", "keras.gru"),
        "bias_hh_l0 is missing, and bias_ih_l0 is there",
    ),
    (
        lambda: convert(GRU | {"x": GRU["bias_ih_l0"]}, "torch.gru", "keras.gru"),
        "torch.gru has no array 'x'; it has weight_ih_l0, weight_hh_l0, bias_ih_l0?, bias_hh_l0?",
    ),
    (
        lambda: convert(GRU | {"bias_ih_l0": np.ones(8, "float32")}, "torch.gru", "keras.gru"),
        "bias_ih_l0 has shape (8,); torch.gru of 2 inputs, 3 hidden has (9,) there",
    ),
    (
        lambda: convert(GRU | {"weight_hh_l0": np.ones(9, "float32")}, "torch.gru", "keras.gru"),
        "weight_hh_l0 has shape (9,); the axes expected there are 2",
    ),
    (
        lambda: convert(
            {n: np.ones((10, 2)) for n in ("weight_ih_l0", "weight_hh_l0")}, "torch.gru", "keras.gru"
        ),
        "weight_ih_l0 has an axis of 10, which is not 3 hidden",
    ),
    (
        lambda: convert(GRU, "torch.gru", "keras.gru", sizes={"hidden": 4}),
        "weight_ih_l0 has shape (9, 2); torch.gru of 2 inputs, 4 hidden has (12, 2) there",
    ),
    (
        lambda: convert(GRU, "torch.gru", "keras.gru", sizes={"units": 3}),
        "no size is called 'units'; there are inputs, hidden, projected, layers, directions",
    ),
    (
        lambda: convert(GRU, "torch.gru", "keras.gru", sizes={"layers": 2}),
        "torch.gru: the names of the arrays have 1 layers, and layers=2 is stated",
    ),
    (
        lambda: convert(GRU, "torch.gru", "keras.gru", sizes={"projected": 2}),
        "projected is stated, and the layout has no projection",
    ),
    (
        lambda: convert(VECTOR, "cudnn.gru", "keras.gru"),
        "weight_space has 63 numbers, which fit several sizes of cudnn.gru (18 inputs, 1 hidden; 2 inputs, ",
    ),
    (
        lambda: convert(VECTOR, "cudnn.gru", "keras.gru", sizes={"hidden": 4}),
        "weight_space has 63 numbers, and no sizes of cudnn.gru that agree with the stated ones make that",
    ),
    (
        lambda: convert(ONNX, "onnx.gru", "keras.gru"),
        "onnx.gru: the arrays do not determine reset (its name there: linear_before_reset): "
        "say --semantics reset=VALUE (Python: semantics={'reset': 'after' or 'before'})",
    ),
    (
        lambda: convert(drawn("tf1.basic_lstm"), "tf1.basic_lstm", "keras.lstm"),
        "tf1.basic_lstm: the arrays do not determine forget_bias (its name there: forget_bias): "
        "say --semantics forget_bias=VALUE (Python: semantics={'forget_bias': a number})",
    ),
    (
        lambda: convert(ONNX, "onnx.gru", "keras.gru", semantics={"reset": "inside"}),
        "onnx.gru: reset is one of 'after', 'before', not 'inside'",
    ),
    (
        lambda: convert(ONNX, "onnx.gru", "keras.gru", semantics={"resets": "after"}),
        "onnx.gru: the cell gru has no 'resets'; it has reset, update, gate_activation",
    ),
    (
        lambda: convert(drawn("keras.lstm"), "keras.lstm", "onnx.lstm", semantics={"activation": "relu"}),
        "keras.lstm: semantics have candidate_activation and output_activation in place of activation",
    ),
    (
        lambda: convert(ONNX, "onnx.gru", "keras.gru", semantics={**BEFORE, "gate_activation": "gelu"}),
        "onnx.gru has gate_activation 'sigmoid' or 'tanh' or",
    ),
    (
        lambda: convert(GRU, "torch.gru", "keras.gru", semantics=BEFORE),
        "torch.gru has reset='after', which cannot be changed to 'before'",
    ),
    (
        lambda: convert(GRU, "torch.gru", "keras.gru", semantics={"target": {"update": "write"}}),
        "keras.gru has update='keep', which cannot be changed to 'write'",
    ),
    (
        lambda: convert(GRU, "torch.gru", "keras.gru", semantics={"target": {"updates": "write"}}),
        "keras.gru: the cell gru has no 'updates'; it has reset, update",
    ),
    (
        lambda: convert(DEEP, "torch.gru", "onednn.lbr_gru"),
        "torch.gru cannot become onednn.lbr_gru: all layers of onednn.lbr_gru have the same number "
        "of inputs, and here "
        "the first has 2 and the others 3: there the first layer is separate",
    ),
    (
        lambda: convert(GRU, "torch.gru", "keras.lstm"),
        "torch.gru cannot become keras.lstm: the cell of torch.gru is gru, and that of keras.lstm is lstm",
    ),
]


@pytest.mark.parametrize(("wrong", "line"), LINES, ids=[line[:40] for _, line in LINES])
def test_what_is_wrong_is_said(wrong: Callable[[], Any], line: str):
    with pytest.raises(LayoutError) as caught:
        wrong()
    assert str(caught.value).startswith(line)


def test_what_comes_nearest_is_said():
    shapes = {"a.kernel": (2, 9), "a.recurrent_kernel": (3, 9), "a.bias": (2, 8)}
    said = "keras.gru comes nearest, but a.bias has shape (2, 8) where (2, 9) is expected"
    assert str(nearest(shapes)).startswith(f"no recurrent layer is here: {said}")
    assert str(nearest({"head.w": (2, 9)})).startswith(
        "no recurrent layer is here: no array has a name of a layout"
    )


def test_layers_of_other_inputs_are_what_onednn_has_if_they_are_equal():
    sizes = Sizes(3, 3, layers=2)
    arrays = weights(record("torch.gru"), sizes)
    done = convert(arrays, "torch.gru", "onednn.lbr_gru")
    assert done.arrays["weights_layer"].shape == (2, 1, 3, 3, 3)
    assert_same_function(done, arrays, "torch.gru", np.float32)
    assert done.report.source_semantics == Semantics("gru")
