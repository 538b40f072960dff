"""Recordings, and noise suppression and voice activity on new speakers in new noises, in C."""

import re
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples_as_modules import example
from on_devices import main, run
from tolerance import assert_close

SOME = 40
"""The frames that a stream runs."""
COMPILER = "gcc"
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="gcc is missing")
ENDS = pytest.mark.long(every=2, of="ends")
"""The examples from end to end, of which the first one always runs."""


# ---- recordings


def test_mu_law_is_that_of_the_standard():
    """Table 2 of G.711: the ends of each segment, whose integers of 14 bits players scale by 4."""
    digits = example("spoken_digits")
    sizes = [0, 120, 132, 372, 396, 876, 924, 1884, 1980, 3900, 4092, 7932, 8316, 15996, 16764, 32124]
    positive = [255 - (16 * segment + step) for segment in range(8) for step in (0, 15)]
    np.testing.assert_array_equal(digits.decoded()[positive] * 2**15, sizes)
    np.testing.assert_array_equal(digits.decoded()[:128], -digits.decoded()[128:])


def test_recordings_are_read_as_they_were_written(tmp_path: Path):
    digits = example("spoken_digits")
    random = np.random.default_rng(0)
    given = [digits.Recording(n, 7 + n, random.normal(size=50 + n) / 4) for n in range(3)]
    digits.write(tmp_path / "a.au", given)
    for one, other in zip(digits.read(tmp_path / "a.au"), given, strict=True):
        assert (one.digit, one.take) == (other.digit, other.take)
        away = np.abs(digits.decoded()[:, None] - other.samples)
        np.testing.assert_allclose(np.abs(one.samples - other.samples), away.min(0), atol=1e-7)
    (tmp_path / "b.au").write_bytes((tmp_path / "a.au").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"b\.au is no whole \.au file of one channel in mu-law at 8000 Hz"):
        digits.read(tmp_path / "b.au")


HEAD, ROW = struct.Struct(">4s5I"), b"3 1 8"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b".snd", "is no whole .au file"),
        *(
            (HEAD.pack(b".snd", 24 + len(text), 8, 1, 8000, 1) + text + bytes(8), "has no annotation")
            for text in (b"", b"hello", b"3 1", ROW + b" 9", b"3 1 7", ROW + b"\n3 2 8", b"3 1 -8\n3 1 16")
        ),
    ],
    ids=["head", "none", "words", "short row", "long row", "few samples", "more samples", "negative"],
)
def test_damaged_recordings_are_refused(tmp_path: Path, data: bytes, message: str):
    (tmp_path / "c.au").write_bytes(data)
    with pytest.raises(ValueError, match=rf"c\.au {message}"):
        example("spoken_digits").read(tmp_path / "c.au")


def test_examples_refuse_no_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def begun(*given: object) -> Any:
        pytest.fail(f"the example begins with {given}")

    with pytest.raises(SystemExit):
        main("", begun, begun, 60, [str(tmp_path), "--epochs", "0"])
    assert "--epochs is 1 or more, not 0" in capsys.readouterr().err


def test_the_recordings_are_those_that_their_page_lists():
    digits = example("spoken_digits")
    page = (digits.FOLDER / "README.md").read_text("utf-8")
    assert not {*digits.TRAINING} & {*digits.TEST}
    for speaker, takes in digits.TAKES.items():
        found = digits.read(digits.FOLDER / f"{speaker}.au")
        assert [each.digit for each in found] == [n for n in range(10) for _ in range(takes)]
        seconds = sum(len(each.samples) for each in found) / digits.RATE
        role = "training" if speaker in digits.TRAINING else "test"
        assert re.search(rf"`{speaker}` \| .* \| {takes} \| {seconds:.1f} \| {role} \|", page)
        assert all(0.95 < np.abs(each.samples).max() < 1 for each in found)
    assert sum(path.stat().st_size for path in digits.FOLDER.iterdir()) < 600_000


def test_scenes_are_what_they_say():
    sounds = example("sounds")
    scenes = [sounds.scene(5, 300, name, 5) for name in (*sounds.KNOWN, *sounds.NEW)]
    for each in scenes:
        spoken = np.repeat(each.active, sounds.FRAME)
        np.testing.assert_array_equal(each.clean, scenes[0].clean)
        assert np.mean(each.clean[spoken] ** 2) == pytest.approx(0.01, rel=0.1)
        assert np.mean(each.noise**2) == pytest.approx(0.01 / 10**0.5)
        assert np.mean(each.clean[~spoken] ** 2) < 0.01 * np.mean(each.clean[spoken] ** 2)
    other = sounds.scene(6, 300, "hum", 5)
    assert np.abs(np.corrcoef(other.clean, scenes[0].clean)[0, 1]) < 0.2


@pytest.mark.parametrize("training", [True, False])
def test_a_scene_has_one_speaker_and_the_babble_of_others(training: bool):
    sounds, heard = example("sounds"), list[str]()
    read = sounds.recordings

    def watched(speaker: str) -> list[np.ndarray]:
        heard.append(speaker)
        return read(speaker)

    sounds.recordings = watched  # the module is this test's own
    sounds.scene(8, 200, "babble", 5, training=training)
    speaker, babble = heard[:-5], heard[-5:]
    assert len({*speaker}) == 1
    assert not {*speaker} & {*babble}
    assert {*speaker, *babble} <= {*(sounds.TRAINING if training else sounds.TEST)}


# ---- voice activity


@needs_compiler
@ENDS
def test_the_detector_in_integers_finds_new_voices_in_new_noises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    module = example("voice_activity")
    found = module.make(tmp_path, 10, 80)
    outputs, rows, (y,) = run(found, COMPILER), module.scenes(), found.made.program.of("output")
    active = np.concatenate([each.active for each in rows])
    in_floats = module.judge(found.rnn(found.frames[None])[0][0, :, 0] > 0.5, active)
    in_c = module.judge(outputs[:, 0] > int(0.5 / y.scale), active)
    assert in_floats.right > 0.7
    assert abs(in_c.right - in_floats.right) < 0.01
    module.report(found, outputs)
    rates = f"{in_c.missed:.1%} of speech missed, {in_c.false:.1%} false alarms"
    assert f"in C: {in_c.right:.1%} of {len(active)} frames right, {rates}" in capsys.readouterr().out
    assert "float" not in found.made.source.read_text()
    assert found.made.sizes.ram_bytes < 1_000
    assert found.made.sizes.constant_bytes < 8_000


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
    network = module.Network(module.BANDS, module.HIDDEN, module.BANDS)
    params = {name: np.zeros(value.shape, "f4") for name, value in network.state_dict().items()}
    params |= {"mean": np.zeros(16, "f4"), "deviation": np.ones(16, "f4")}
    params["head.bias"] += np.float32(bias)
    return module.suppressor(params)


def test_gains_of_one_give_the_sound_a_frame_later():
    module = example("noise_suppression")
    x = example("sounds").scene(3, 20, "rain", 5).noisy.reshape(1, 20, -1)
    y, _ = with_gains(module, 30)(x)
    assert_close(y[0, 1:], x[0, :-1], 20, 128)
    assert np.abs(with_gains(module, -30)(x)[0]).max() < 1e-6


@needs_compiler
@ENDS
def test_the_suppressor_takes_new_noise_from_new_speakers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    module = example("noise_suppression")
    made = module.make(tmp_path, 8, 80)
    sounds, stream = run(made, COMPILER), made.rnn.stream(rows=1)
    streamed = np.concatenate([stream.step(frame[None]) for frame in made.codes[:SOME]])
    assert_close(sounds[:SOME], streamed, SOME, 128)
    rows = module.scenes()
    found = module.judge(rows, sounds.reshape(len(rows), -1))
    assert found.after - found.before > 1
    module.report(made, sounds)
    assert f"all: {found.after - found.before:.1f} dB better" in capsys.readouterr().out
    assert made.made.sizes.ram_bytes < 3_000
    assert made.made.sizes.constant_bytes < 110_000


def test_the_ratio_is_that_of_parts_of_a_sound_whatever_its_loudness():
    module, random = example("noise_suppression"), np.random.default_rng(0)
    clean, noise = random.normal(size=(2, 400))
    noise -= clean * (noise @ clean) / (clean @ clean)
    noise *= np.linalg.norm(clean) / np.linalg.norm(noise) / 10
    for loudness in (0.1, 1, 7):
        assert module.ratio(clean, loudness * (clean + noise)) == pytest.approx(20)
