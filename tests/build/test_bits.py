"""A library gives the bits that the llvm engine gives in Python, whatever the model and the batch."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_steps import random_steps, sequences_for
from same_bits import assert_same_bits
from zoo import rnn_of, sequences

import stepnet as sn
from stepnet.build import build, load
from stepnet.errors import InputError, RefusedError
from tests.build.libraries import LENGTHS, assert_as_in_python, library_of
from tests.model.test_random_steps import SLOW

RANDOM = np.random.default_rng(5)
W = RANDOM.normal(size=(16, 3)).astype("float32")


def both(merge: str | None = "concat", inputs: int = 8, dtype: str = "float32") -> sn.Bidirectional:
    """A recurrence in two directions."""
    one, other = (rnn_of("gru", inputs, 8, dtype=dtype, reverse=reverse) for reverse in (False, True))
    return sn.Bidirectional(one, other, merge=merge)


def pooled(x: Any, params: Any) -> Any:
    """All that lies between recurrences: sums in either order, values repeated, one that is two results."""
    h, _ = both()(x)
    mean, top = sn.reduce(h, "mean"), sn.reduce(h, "max")
    one = sn.reduce(h[..., :1], "sum")
    y = sn.softmax(h @ params + sn.expand((mean + top) @ params * one, h))
    return {"y": y, "mean": mean, "again": mean, "last": sn.reduce(h, "last"), "x": x}


KERNELS = {"below": RANDOM.normal(size=(8, 4, 3)), "above": RANDOM.normal(size=(3, 8, 2))}


def convolved(x: Any, params: Any) -> Any:
    """Convolutions on both sides of a recurrence."""
    y = sn.conv1d(x, params["below"], groups=2, padding="same")
    return sn.conv1d(rnn_of("gru", 8, 8, dtype="float64")(y)[0], params["above"], dilation=3)


STRIDED = {
    "below": RANDOM.normal(size=(16, 8, 3)).astype("float32"),
    "above": RANDOM.normal(size=(16, 3, 4)).astype("float32"),
}


def strided(x: Any, params: Any) -> Any:
    """Convolutions and pooling with strides below a recurrence, and a transposed convolution above it."""
    y = sn.max_pool1d(np.tanh(sn.conv1d(x, params["below"], stride=2, padding="same")), 3, stride=2)
    h, final = both(inputs=16)(y)
    more = sn.conv_transpose1d(h, params["above"], stride=8)
    mean = sn.reduce(sn.avg_pool1d(more, 2, padding=1), "mean")
    return {"h": h, "more": more, "x": x, "mean": mean, "far": sn.expand(mean, h), "final": final["forward"]}


def padded(x: Any, params: Any) -> Any:
    """Copies of steps at the ends of sequences, by reflection of fewer steps and by replication."""
    y = sn.conv1d(sn.pad_steps(x, (2, 1)), params["below"], stride=2, padding="valid")
    h = sn.conv1d(sn.pad_steps(both(inputs=16)(np.tanh(y))[0], (0, 2)), params["next"], padding="valid")
    return {"h": h, "ends": sn.pad_steps(h, (9, 1), mode="replicate"), "once": sn.reduce(h, "mean")}


PADDED = {
    "below": RANDOM.normal(size=(16, 8, 3)).astype("float32"),
    "next": RANDOM.normal(size=(4, 16, 3)).astype("float32"),
}


def repeated(x: Any, params: Any) -> Any:
    """Constants repeated for the steps and for each sequence, beside a recurrence."""
    h, _ = both()(x)
    mean = sn.reduce(h, "mean")
    y = sn.softmax(h @ params + sn.expand(mean @ params, h))
    return {"y": y, "of x": sn.expand(params[0] * 3, x), "of rows": sn.expand(params[1] + 3, mean)}


MODELS = {
    "gru float32": (rnn_of("gru", 8, 16), "float32"),
    "lstm_peephole float64": (rnn_of("lstm_peephole", 8, 5, dtype="float64", reverse=True), "float64"),
    "stack of both": (sn.Stack([both(), rnn_of("lstm", 16, 12)]), "float32"),
    "pooled": (sn.Graph(pooled, W), "float32"),
    "repeated": (sn.Graph(repeated, W), "float32"),
    "convolved": (sn.Graph(convolved, KERNELS), "float64"),
    "strided": (sn.Graph(strided, STRIDED), "float32"),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_libraries_give_the_bits_of_python(name: str, tmp_path: Path):
    model, dtype = MODELS[name]
    library = library_of(model, tmp_path, inputs=sn.Spec(8, dtype))
    for lengths in LENGTHS:
        x = sequences(lengths, 8, dtype=dtype, seed=len(lengths))
        assert_as_in_python(library, model(x, engine="llvm"), x)


def test_libraries_pad_by_reflection(tmp_path: Path):
    """They refuse sequences that are shorter than the padding, of the inputs or of a later convolution."""
    model = sn.Graph(padded, PADDED)
    made = build(model, tmp_path, inputs=8)
    library, text = load(made.shared, trust=True), " ".join(made.header.read_text().split())
    assert "A sequence has at least 4 steps, or none: the model's padding by reflection" in text
    assert "Two sequences, of 6 steps and of 4: y_h has model_y_h_steps(6) + model_y_h_steps(4) = 7" in text
    for lengths in ([9, 5, 0, 4], [7], [0], [], [9, 0, 70, 4, *[6] * 80]):
        x = sequences(lengths, 8, seed=len(lengths))
        assert_as_in_python(library, model(x, engine="llvm"), x)
    for lengths in ([9, 3], [2], [0, 1]):
        x = sequences(lengths, 8)
        with pytest.raises(InputError, match="has fewer steps than the model's padding by reflection reads"):
            library({"x": x})
        with pytest.raises(InputError, match="padding by reflection reads 2 steps besides the first or"):
            model(x)
    x = sequences([4, 8], 8)
    assert_as_in_python(library, model(x, engine="llvm"), x)


def test_results_may_be_left_out(tmp_path: Path):
    made = build(sn.Graph(pooled, W), tmp_path, name="pooled", inputs=8)
    x, functions = sequences(LENGTHS[0], 8), ctypes.CDLL(str(made.shared))
    arrays = [each for each in load(made.shared, trust=True).about.arrays if each.kind == "output"]
    context = ctypes.c_void_p()
    assert functions.pooled_new(ctypes.byref(context)) == 0

    def run(left_out: int | None) -> list[np.ndarray]:
        """The results of a call, one of which is left out, and zeros for that one."""
        results = [np.zeros((len(x) if a.by_row else len(x.values), *a.shape), a.dtype) for a in arrays]
        pointers = [None if n == left_out else each.ctypes for n, each in enumerate(results)]
        given = (x.offsets[0].ctypes, x.values.ctypes, *pointers)
        arguments = [None if each is None else ctypes.c_void_p(each.data) for each in given]
        assert functions.pooled_run(context, ctypes.c_int64(len(x)), *arguments) == 0
        return results

    whole = run(None)
    for left_out in range(len(whole)):
        results = run(left_out)
        assert not results.pop(left_out).any()
        assert_same_bits(results, whole[:left_out] + whole[left_out + 1 :])
    functions.pooled_free(context)


def test_numbers_of_steps_of_outputs(tmp_path: Path):
    """Functions of a library give those that outputs have in Python, and -1 where one would be too long."""
    graph = sn.Graph(strided, STRIDED)
    made = build(graph, tmp_path, inputs=8)
    functions, arrays = ctypes.CDLL(str(made.shared)), load(made.shared, trust=True).about.arrays
    assert [each.name for each in arrays if each.is_counted] == ["y_h", "y_more", "y_far"]
    results, lengths = graph(sequences(range(60), 8), engine="llvm"), range(60)
    for name in ("h", "more", "far"):
        steps = functions[f"model_y_{name}_steps"]
        steps.restype, steps.argtypes = ctypes.c_int64, [ctypes.c_int64]
        assert [steps(length) for length in lengths] == results[name].lengths.tolist()
        assert [steps(count) for count in (-1, -(2**63), 2**31, 2**63 - 1)] == [-1] * 4
    assert functions.model_y_more_steps(2**31 - 1) == -1
    context = ctypes.c_void_p()
    functions.model_error.restype = ctypes.c_char_p
    assert functions.model_new(ctypes.byref(context)) == 0
    for offsets in ([0, 2**31], [0, 1, 2 + 2**40], [0, 2**63 - 1]):
        given, nothing = (ctypes.c_int64 * len(offsets))(*offsets), [None] * len(arrays)
        code = functions.model_run(context, ctypes.c_int64(len(offsets) - 1), given, *nothing)
        assert functions.model_error(code) == b"there are more sequences or steps than memory can hold"
    functions.model_free(context)


def test_a_model_without_weights(tmp_path: Path):
    model = sn.RNN(lambda x, total, _: (total + x, total + x), memory=8)
    library = library_of(model, tmp_path, inputs=8)
    x = sequences(LENGTHS[0], 8)
    assert_as_in_python(library, model(x, engine="llvm"), x)


def test_initial_memories_of_layers(tmp_path: Path):
    model = sn.Stack([both(), rnn_of("lstm", 16, 12)])
    library = library_of(model, tmp_path, inputs=8)
    for lengths in LENGTHS:
        x = sequences(lengths, 8)
        h, h2, c2 = (RANDOM.normal(size=(len(x), size)).astype("float32") for size in (8, 12, 12))
        initial = ({"forward": h, "backward": -h}, {"h": h2, "c": c2})
        assert_as_in_python(library, model(x, initial, engine="llvm"), x, initial)


def test_one_context_runs_calls_of_any_size(tmp_path: Path):
    """Memory of earlier calls, and what they left in it, changes nothing."""
    model = rnn_of("gru", 8, 16)
    library = library_of(model, tmp_path, inputs=8)
    for count in (1, 300, 2, 65, 64, 0, 1):
        lengths = [n * 7 % 13 for n in range(count)]
        x = sequences(lengths, 8, seed=count)
        assert_as_in_python(library, model(x, engine="llvm"), x)


def test_long_sums_add_in_numpys_order(tmp_path: Path):
    """Its sums are of 8 numbers side by side, and of more than 128 in halves: at every length about these."""
    model = sn.Graph(
        lambda x, p: (sn.reduce(x, "sum"), sn.reduce(x, "mean") * p, x * p), np.ones(3, "float32")
    )
    library = library_of(model, tmp_path, inputs=3)
    x = sequences([*range(20), *range(126, 148), 255, 256, 257, 264, 265, 1000], 3)
    x.values[:7] = -0.0
    assert_as_in_python(library, model(x, engine="llvm"), x)


def test_tables_statics_and_indices(tmp_path: Path):
    params = {"table": RANDOM.normal(size=(11, 16)).astype("float32"), "W": W}

    def step(x: Any, h: Any, params: Any, statics: Any, index: Any) -> Any:
        h = np.tanh(
            params["table"][x] + 0.5 * h + statics["s"] + np.float32(0.01) * index[:, None].astype("float32")
        )
        return {"y": h @ params["W"], "far": h > 0.5}, h

    model = sn.RNN(step, params, memory=16, inputs=sn.Spec((), "int64"), statics={"s": 16})
    library = library_of(model, tmp_path)
    for lengths in LENGTHS:
        x = sequences(lengths, 1)
        x = x.with_values(RANDOM.integers(-11, 11, len(x.values)))
        statics = {"s": RANDOM.normal(size=(len(x), 16)).astype("float32")}
        assert_as_in_python(library, model(x, statics=statics, engine="llvm"), x, statics=statics)
    x, statics = sequences([2], 1).with_values(np.array([3, 11])), {"s": np.zeros((1, 16), "float32")}
    with pytest.raises(
        InputError, match="outside the rows of the parameter that it indexes: `x` has integers from "
    ):
        library({"x": x, "s": statics["s"]})
    x = x.with_values(np.array([3, 10]))
    assert_as_in_python(library, model(x, statics=statics, engine="llvm"), x, statics=statics)


def test_weights_in_fewer_bits(tmp_path: Path):
    x = sequences([5, 3, 0, 70], 8)
    model = sn.quantize(rnn_of("gru", 8, 16), [x], dtype="int8")
    library = library_of(model, tmp_path, inputs=8)
    assert_as_in_python(library, model(x, engine="llvm"), x)


@settings(max_examples=2, suppress_health_check=SLOW)
@given(st.data())
def test_random_steps(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    dtype, reverse = data.draw(st.sampled_from(["float32", "float64"])), data.draw(st.booleans())
    step = data.draw(random_steps())
    batch = data.draw(sequences_for(step, dtype))
    model = step.rnn(dtype, reverse)
    library = library_of(model, tmp_path_factory.mktemp("library"))
    expected = model(batch.inputs, batch.initial, batch.statics, engine="llvm")
    assert_as_in_python(library, expected, batch.inputs, batch.initial, batch.statics)


# ---- what is refused ---------------------------------------------------------------------------------------


def nested(enters: bool) -> sn.RNN:
    """Sequences of sequences. enters: whether the outer memory is where the inner one begins."""
    words = rnn_of("gru", 3, 4)

    def step(x: Any, h: Any, p: Any) -> Any:
        return h, np.tanh(words(x, initial=h if enters else "zeros")[1] + h)

    return sn.RNN(step, memory=4, inputs=sn.Spec(3, levels=1))


@pytest.mark.parametrize("enters", [False, True])
def test_models_that_numpy_takes_part_in_are_refused(enters: bool, tmp_path: Path):
    with pytest.raises(
        RefusedError,
        match=r"a library takes flat sequences; the model has values at rows/steps/"
        r".* Build the layers without it",
    ):
        build(nested(enters), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_do_not_fit(tmp_path: Path):
    model = rnn_of("gru", 8, 16)
    with pytest.raises(
        InputError, match="a library is built of an RNN, a Stack, a Bidirectional or a Graph, not 3"
    ):
        build(3, tmp_path)
    with pytest.raises(
        InputError,
        match=r"the model was made without inputs=: give their features with build\(\.\.\., inputs=\)",
    ):
        build(sn.RNN(lambda x, h, p: (x, h), memory=1), tmp_path)
    names = "native, generic, x86-64-v3, x86-64-v4, aarch64"
    with pytest.raises(InputError, match=f"target is one of {names}, c, wasm32, .*, not 'arm'"):
        build(model, tmp_path, inputs=8, target="arm")
    with pytest.raises(InputError, match="not 'arm64': did you mean aarch64"):
        build(model, tmp_path, inputs=8, target="arm64")
    with pytest.raises(InputError, match="weights is 'inside' or 'beside', not 'out'"):
        build(model, tmp_path, inputs=8, weights="out")
    for name in ("2nd", "a-b", "", "double", "x" * 61, 3):
        with pytest.raises(InputError, match="name is what the library's functions begin with"):
            build(model, tmp_path, inputs=8, name=name)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"name 'time' would hide the header time\.h of C"):
        build(model, tmp_path, inputs=8, name="time")
    ends = sn.RNN(lambda x, h, p: (x, h), memory=1, inputs=1, until=lambda y, h: y[:, 0] > 0)
    with pytest.raises(InputError, match=r"sequences that end early \(until=\) are not built"):
        build(ends, tmp_path)
    statics = sn.Spec(3, axis="keys")
    with pytest.raises(InputError, match="statics that are sequences are not built"):
        build(sn.RNN(lambda x, h, p, statics: (x, h), memory=1, inputs=1, statics=statics), tmp_path)
    assert list(tmp_path.iterdir()) == []
