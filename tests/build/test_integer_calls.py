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
from stepnet.errors import InputError, StepError
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
    assert "x: int16" not in small.explain()
    assert "output y_y int16[8]" in small.explain()


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
