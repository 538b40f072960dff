"""Calls and files of models in integers alone: the integers of frames, and nothing else."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import stepnet

import stepnet as sn
from stepnet.build import build
from stepnet.compiler.targets.frame import FrameRun, codes_of
from stepnet.errors import InputError, RefusedError, StepError
from stepnet.onnx import save as save_onnx
from tests.build.integer_models import FRAMES, gru, many


def with_speaker(x: Any, params: Any, statics: Any) -> Any:
    """A model with a static, an output of each step and one of each sequence."""
    y = gru()(x)[0] + sn.expand(statics @ params, x)
    return {"y": y, "last": sn.reduce(y, "last")}


@pytest.fixture(scope="module")
def spoken() -> Any:
    """A calibrated model with statics, and statics for two sequences."""
    random = np.random.default_rng(8)
    statics = random.normal(size=(2, 3)).astype("f4")
    graph = sn.Graph(with_speaker, random.normal(size=(3, 8)).astype("f4"), inputs=4, statics=3)
    return sn.quantize(graph, [FRAMES], "int8", statics=[statics], activations="int16"), statics


def test_sequences_of_all_forms_have_the_integers_of_frames(spoken: Any):
    small, statics = spoken
    whole, lengths = small(FRAMES, statics=statics), [11, 25]
    run, scales = FrameRun(small.frame), [each.scale or 0 for each in small.frame.of("output")]
    x, speaker = (
        codes_of(each, array)
        for each, array in zip(small.frame.of("input"), (FRAMES[0], statics[0]), strict=True)
    )
    frames = [run.step(frame, speaker) for frame in x]
    np.testing.assert_array_equal(whole["y"][0], np.float32(np.stack([y for y, _ in frames]) * scales[0]))
    np.testing.assert_array_equal(whole["last"][0], whole["y"][0, -1])
    padded = small(FRAMES, statics=statics, lengths=lengths)
    np.testing.assert_array_equal(padded["y"][0, :11], whole["y"][0, :11])
    assert not padded["y"][0, 11:].any()
    np.testing.assert_array_equal(padded["last"], [whole["y"][0, 10], whole["y"][1, 24]])
    turned = small(np.swapaxes(FRAMES, 0, 1), statics=statics, lengths=lengths, time_major=True)
    np.testing.assert_array_equal(np.swapaxes(turned["y"], 0, 1), padded["y"])
    ragged = sn.Ragged.from_list([each[:n] for each, n in zip(FRAMES, lengths, strict=True)])
    made = small(ragged, statics=statics, engine="interpret")
    np.testing.assert_array_equal(made["y"].values, np.concatenate([whole["y"][0, :11], whole["y"][1]]))
    ends = small(ragged, statics=statics, last_only=True)
    np.testing.assert_array_equal(ends["y"], ends["last"])
    again = pickle.loads(pickle.dumps(small))
    np.testing.assert_array_equal(again(FRAMES, statics=statics)["y"], whole["y"])


REFUSED: dict[str, tuple[Any, str]] = {
    "engine": (
        lambda small, x: small(x, engine="llvm"),
        "engine='auto' and 'interpret' compute, and not 'llvm'",
    ),
    "engines": (lambda small, x: small(x, engine=("onednn", "auto")), "and not \\('onednn', 'auto'\\)"),
    "initial": (lambda small, x: small(x, initial=np.ones((2, 8), "f4")), "anew, so initial= is not"),
    "mask": (lambda small, x: small(x, mask=np.ones((2, 25), bool)), "anew, so mask= is not"),
    "begun": (lambda small, x: small(x, begun=3), "anew, so begun= is not"),
    "stream": (lambda small, x: small.stream(), "has no stream in Python"),
    "chunks": (lambda small, x: small.stream_chunks(), "has no stream in Python"),
    "to": (lambda small, x: small.to("cuda-emulated"), "does not move to a device of Python"),
    "params": (lambda small, x: small.with_params(None), "has the scales of its parameters"),
    "gradient": (lambda small, x: sn.vjp(small)(x), "has no gradient"),
    "trace": (lambda small, x: small.trace_steps(x), "are not traced"),
    "library": (lambda small, x: build(small, "unwritten"), "one frame at a time: give target='c'"),
    "onnx": (lambda small, x: save_onnx(small, "unwritten.onnx"), "not written to an .onnx file"),
    "again": (lambda small, x: sn.quantize(small, [x], "int8"), "that is not quantized"),
    "features": (lambda small, x: small(x[..., :3]), "has features"),
    "nan": (lambda small, x: small(x * np.nan), "the input `x` has NaN, which is no int8"),
}


@pytest.fixture(scope="module")
def small() -> Any:
    """A calibrated layer."""
    return sn.quantize(gru(), [FRAMES], "int8", activations="int8")


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_compute_with_floats_is_refused_by_name(name: str, small: Any):
    call, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        call(small, FRAMES)


def test_a_model_in_integers_is_no_part_of_another(small: Any):
    with pytest.raises(StepError, match="a model in integers alone is no part of a model"):
        sn.Graph(lambda x, params: small(x))(FRAMES)


def test_other_parameters_or_ranges_have_another_digest(small: Any):
    wide = sn.quantize(gru(), [FRAMES * 2], "int8", activations="int8")
    digests = [each.digest(small.inputs, False, "auto") for each in (small, wide)]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("make", [gru, lambda: many(gru()), lambda: sn.Stack([gru()])])
def test_a_file_gives_the_same_source(make: Any, tmp_path: Path):
    small = sn.quantize(make(), [FRAMES], "int8", activations="int8")
    small.save(tmp_path / "m.stepnet")
    texts = list[bytes]()
    for name, each in (("a", small), ("b", sn.load(tmp_path / "m.stepnet"))):
        made = build(each, tmp_path / name, name="m", target="c")
        assert made.source is not None
        texts.append(made.source.read_bytes())
    given = ("build", tmp_path / "m.stepnet", "-o", tmp_path / "c", "--target", "c", "--name", "m")
    assert stepnet(*given)[0] == 0
    assert texts[0] == texts[1] == (tmp_path / "c" / "m.c").read_bytes()


# ---- models without a recurrence, and numbers that saturate


def convolved(x: Any, params: Any) -> Any:
    """A model without a recurrence."""
    return np.tanh(sn.conv1d(x, params["w"], padding="causal") + params["b"]) @ params["d"]


@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_models_without_a_recurrence_are_near_those_of_float32(activations: str, tmp_path: Path):
    random = np.random.default_rng(14)
    shapes = {"w": (5, 4, 3), "b": (5,), "d": (5, 6)}
    params = {name: random.normal(size=size).astype("f4") for name, size in shapes.items()}
    model = sn.Graph(convolved, params, inputs=4)
    small = sn.quantize(model, [FRAMES], "int8", activations=activations)
    away = np.abs(small(FRAMES) - model(FRAMES))
    (error,) = small.report.outputs
    assert error.largest == pytest.approx(away.max(), rel=1e-5)
    assert error.relative < (0.02 if activations == "int8" else 0.01)
    assert small.report.recurrences == ()
    small.save(tmp_path / "m.stepnet")
    np.testing.assert_array_equal(sn.load(tmp_path / "m.stepnet")(FRAMES), small(FRAMES))
    message = r"in integers the output: at most .* more than within=0.0001: give activations='int16'"
    with pytest.raises(RefusedError, match=message):
        sn.quantize(model, [FRAMES], "int8", activations=activations, within=1e-4)


def test_what_saturates_is_counted(small: Any):
    assert small.saturation(FRAMES) == ()
    large = FRAMES.copy()
    large[0, 3:7, 1], large[1, 2, 0] = 1e30, -np.inf
    found = {each.name: each for each in small.saturation(large)}
    assert (found["x"].count, found["x"].numbers) == (5, 200)
    assert [*found] == ["x", "copies"]  # the memory as int8, which has no margin
    (end,), run = small.frame.of("input"), FrameRun(small.frame)
    (codes,) = [each for each in small.frame.of("scratch") if each.dtype == "int8"]
    at_ends = 0
    for sequence in large:
        run.reset()
        for frame in codes_of(end, sequence):
            run.step(frame)
            at_ends += int(np.isin(run.buffers[codes.name], (-128, 127)).sum())
    assert 0 < found["copies"].count <= at_ends
    assert found["copies"].numbers == 2 * 25 * 8
    assert str(found["x"]) == "x: 5 of 200 numbers saturate (2.5%)"


def test_samples_that_integers_do_not_hold_are_refused_by_name():
    far, few = FRAMES.copy(), FRAMES.copy()
    far[0, 3, 1], few[1, 2, 0] = 1e30, 1e6
    with pytest.raises(InputError, match=r"the input `x` has 1e\+30 in sample 1, and integers stand for at"):
        sn.quantize(gru(), [FRAMES, far], "int8", activations="int16")
    message = (
        r"`x` has 1e\+06 in sample 0, for which 199 of 200 numbers would be 0 in int8, in steps of 7.87e"
    )
    with pytest.raises(InputError, match=message):
        sn.quantize(gru(), [few], "int8", activations="int8")
    model = sn.Graph(lambda x, params: np.exp(np.abs(x) * 20 + params), np.array([9.0], "f4"), inputs=4)
    with pytest.raises(RefusedError, match=r"`exp` is up to .*\(at .*test_integer_calls.py.*scale it down"):
        sn.quantize(model, [FRAMES], "int8", activations="int16")


def test_texts_show_the_integers(small: Any, tmp_path: Path):
    text = str(small)
    assert text.startswith("RNN(gru, memory=array), in integers alone\n")
    assert "memory  memory_h  int16[8]  step 2^-14, up to 2\n" in text
    largest = [np.abs(gru().params[name]).max(0) / 127 for name in ("W", "R")]
    for name, scales in zip("WR", largest, strict=True):
        line = f"@ gru.{name}, int8 with a step for each column: {scales.min():.3g} to {scales.max():.3g}"
        assert line in " ".join(text.split())
    assert small.explain() == small.draw() == text.partition("\n")[2]
    with pytest.raises(InputError, match="is drawn as text alone"):
        small.draw(tmp_path / "m.svg")
