"""Noise suppression and voice activity on new speakers in new noises, in C."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from examples_as_modules import example
from tolerance import assert_close

from stepnet.compiler.targets.frame import FrameRun

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
SOME = 40
"""The frames that NumPy runs."""
COMPILER = shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="gcc is missing")
ENDS = pytest.mark.long(every=2, of="ends")
"""The examples from end to end, of which the first one always runs."""


def test_sounds_are_what_they_say():
    sounds = example("sounds")
    scenes = [sounds.scene(5, 300, noise, 5) for noise in (*sounds.KNOWN, *sounds.NEW)]
    for each in scenes:
        spoken = np.repeat(each.active, sounds.FRAME)
        np.testing.assert_array_equal(each.clean, scenes[0].clean)
        assert np.mean(each.clean[spoken] ** 2) == pytest.approx(0.01)
        assert np.mean(each.noise**2) == pytest.approx(0.01 / 10**0.5)
        assert np.abs(each.clean[~spoken]).max() < 0.1 * np.abs(each.clean).max()
    other = sounds.scene(6, 300, sounds.hum, 5)
    assert np.abs(np.corrcoef(other.clean, scenes[0].clean)[0, 1]) < 0.2


# ---- voice activity


@needs_compiler
@ENDS
def test_the_detector_in_integers_finds_new_voices_in_new_noises(tmp_path: Path):
    module = example("voice_activity")
    rnn, made, frames = module.make(tmp_path, 10, 80)
    sure, decisions = module.run(tmp_path, COMPILER, STRICT)
    (x,), (y,) = made.program.of("input"), made.program.of("output")
    codes = np.fromfile(tmp_path / "held_out.frames", x.dtype).reshape(frames.shape)
    run = FrameRun(made.program)
    numpys = np.stack([run.step(frame)[0] for frame in codes[:SOME]]).astype(y.dtype)
    np.testing.assert_array_equal(sure[:SOME], numpys[:, 0])
    np.testing.assert_array_equal(decisions, sure > int(0.5 / y.scale))
    active = np.concatenate([each.active for each in module.held_out()])
    in_floats, in_c = (
        module.judge(each, active) for each in (rnn(frames[None])[0][0, :, 0] > 0.5, decisions)
    )
    assert in_floats.right > 0.8
    assert abs(in_c.right - in_floats.right) < 0.01
    assert "float" not in (tmp_path / "voice.c").read_text()
    assert made.sizes.ram_bytes < 1_000
    assert made.sizes.constant_bytes < 8_000


def test_decisions_are_compared_with_the_truth_of_frames_before():
    module = example("voice_activity")
    active = np.arange(100) >= 50
    decisions = np.arange(100) >= 50 + module.DELAY
    assert module.judge(decisions, active) == module.Judgement(1, 0, 0)
    wrong = module.judge(~decisions, active)
    assert (wrong.right, wrong.missed, wrong.false) == (0, 1, 1)
    early = module.judge(active, active)
    assert early.missed == 0 < early.false < 0.2


# ---- noise suppression


def with_gains(module, bias: float):
    """The suppressor with gains that are all near 0 or 1."""
    params = {name: np.zeros(value.shape, "f4") for name, value in module.Gains().state_dict().items()}
    params |= {"mean": np.zeros(16, "f4"), "deviation": np.ones(16, "f4")}
    params["head.bias"] += np.float32(bias)
    return module.suppressor(params)


def test_gains_of_one_give_the_sound_a_frame_later():
    module = example("noise_suppression")
    x = module.scene(3, 20, module.NEW[0], 5).noisy.reshape(1, 20, -1)
    y, _ = with_gains(module, 30)(x)
    assert_close(y[0, 1:], x[0, :-1], 20, 128)
    assert np.abs(with_gains(module, -30)(x)[0]).max() < 1e-6


@needs_compiler
@ENDS
def test_the_suppressor_takes_new_noise_from_new_speakers(tmp_path: Path):
    module = example("noise_suppression")
    rnn, made = module.make(tmp_path, 8, 80)
    rows = module.held_out()
    frames = np.fromfile(tmp_path / "noisy.f32", "<f4").reshape(-1, module.FRAME)
    made_sounds = module.run(tmp_path, COMPILER, STRICT)
    run, stream = FrameRun(made.program), rnn.stream(rows=1)
    numpys = np.stack([run.step(frame)[0] for frame in frames[:SOME]])
    np.testing.assert_array_equal(made_sounds.reshape(frames.shape)[:SOME], numpys)
    streamed = np.concatenate([stream.step(frame[None]) for frame in frames[:SOME]])
    assert_close(numpys, streamed, SOME, 128)
    found = module.judge([each for _, _, each in rows], made_sounds.reshape(len(rows), -1))
    assert found.after - found.before > 3.5
    assert made.sizes.ram_bytes < 3_000
    assert made.sizes.constant_bytes < 110_000
