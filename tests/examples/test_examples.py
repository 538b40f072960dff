"""The examples of training: each runs in a short form, and learns as it does with torch's own layers."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from constants import Constants
from examples_as_modules import example
from tolerance import assert_close

from bench.delta_rules import looped


@pytest.fixture
def in_doubles() -> Any:
    """Everything in float64, in which two ways to the same number stay near over many steps."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_same_curve(found: list[float], right: list[float], length: int, width: int) -> None:
    """Loss curves agree: each number is a sum over all steps of all trainings so far."""
    assert_close(np.array(found), np.array(right), length * len(right), width)


# ---- from the same seed, ours and theirs ------------------------------------------------------------------


@pytest.mark.usefixtures("in_doubles")
def test_the_classifier_learns_as_with_torchs_layer():
    module = example("speaker_classifier")
    read = module.read

    def some(split: str) -> tuple[list[torch.Tensor], torch.Tensor]:
        utterances, speakers = read(split)
        return [one.double() for one in utterances[::3]], speakers[::3]

    module.read = some  # the module is this test's own
    (_, losses, right), (_, others, theirs) = module.train(epochs=2), module.train(torch.nn, epochs=2)
    assert_same_curve(losses, others, 29 * 30, module.HIDDEN)
    assert right == theirs
    assert losses[1] < losses[0]


@pytest.mark.usefixtures("in_doubles")
def test_the_character_model_learns_as_with_torchs_layer(
    monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    module = example("character_model")
    whole = module.text()
    monkeypatch.setattr(module, "text", lambda: whole[:20_000])
    constants(module, ROWS=8)
    (_, _, losses), (_, _, others) = module.train(steps=8), module.train(torch.nn, steps=8)
    assert_same_curve(losses, others, module.PIECE * module.ROWS, module.HIDDEN)
    assert losses[-1] < losses[0] - 1


@pytest.mark.usefixtures("in_doubles")
def test_the_tagger_learns_as_with_torchs_layer(constants: Constants):
    module = example("tagger")
    constants(module, ROWS=6)
    (_, losses), (_, others) = module.train(steps=4), module.train(torch.nn, steps=4)
    assert_same_curve(losses, others, 150 * module.ROWS, module.HIDDEN)
    assert losses[-1] < losses[0]


@pytest.mark.usefixtures("in_doubles")
def test_the_custom_cell_learns_as_in_a_loop(constants: Constants):
    module = example("custom_cell")
    constants(module, TIME=20)
    losses, others = module.train(count=4), module.train(looped=True, count=4)
    assert_same_curve(losses, others, module.TIME * module.ROWS, module.HIDDEN)
    assert losses[-1] < losses[0]


def test_the_classifier_of_text_learns_as_with_keras_layer():
    module, losses = example("keras_text"), list[list[float]]()
    (x, y), _ = module.read()
    for layers in (module.stepnet.keras, module.keras.layers):
        module.keras.utils.set_random_seed(0)
        model = module.model(layers, units=8)
        rows = [slice(first, first + 4) for first in (0, 4, 8)]
        losses.append([float(model.train_on_batch(x[row, :20], y[row])[0]) for row in rows])
    assert_close(np.array(losses[0], "float32"), np.array(losses[1]), 20 * 3, 8)


def test_the_cell_in_keras_learns_as_with_keras_layer():
    module = example("keras_cell")
    (_, losses), (_, others) = (
        module.train(layers, 2) for layers in (module.stepnet.keras, module.keras.layers)
    )
    assert_close(np.array(losses, "float32"), np.array(others), module.TIME * 2, module.HIDDEN)


# ---- what they print ---------------------------------------------------------------------------------------

PRINTED = pytest.mark.long(every=2, of="printed")
"""Examples that train for seconds until they tell what they should: `make test` has every second one."""


def printed(name: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The text that an example prints after its progress bar."""
    example(name).main(list(arguments))
    return [line for line in capsys.readouterr().out.splitlines() if "━" not in line]


@PRINTED
def test_the_classifier_tells_speakers(capsys: pytest.CaptureFixture[str]):
    (line,) = printed("speaker_classifier", capsys, "--epochs", "12")
    share, said = line.split("%", 1)
    assert float(share) >= 95
    assert said == " of 370 test utterances right after 12 epochs"


def test_the_learning_curve_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing, which draws the learning curve")
    example("speaker_classifier").plot([2.0, 1.0], [0.5, 0.75], tmp_path / "curve.svg")
    assert "<svg" in (tmp_path / "curve.svg").read_text("utf-8")


@PRINTED
def test_the_character_model_writes(capsys: pytest.CaptureFixture[str]):
    lines = printed("character_model", capsys, "--steps", "30", "--write", "50")
    first, last = (float(one.split()[0]) for one in lines[0].split(" at first, "))
    assert last < first - 1.5
    assert "\n".join(lines[2:]).startswith("The ")
    assert len("\n".join(lines[2:])) >= 50


def test_the_cell_of_the_character_model_is_its_layer():
    """The generator's cell goes on as the model itself would."""
    module = example("character_model")
    torch.manual_seed(0)
    letters = "".join(sorted(set(module.text())))
    model = module.CharacterModel(len(letters))
    written = module.write(model, letters, "The ", 12)
    torch.manual_seed(0)
    again = "The "
    for _ in range(12):
        with torch.inference_mode():
            logits, _ = model(torch.tensor([[letters.index(one)] for one in again]), None)
            again += letters[int(torch.multinomial((logits[-1, 0] / 0.6).softmax(-1), 1))]
    assert written == again


@PRINTED
def test_the_custom_cell_adds(capsys: pytest.CaptureFixture[str]):
    (line,) = printed("custom_cell", capsys, "--steps", "40")
    first, last = (
        float(one) for one in line.removeprefix("wrong by ").split(" at last")[0].split(" at first, ")
    )
    assert last < first / 2


@PRINTED
def test_the_tagger_tells_capitals(capsys: pytest.CaptureFixture[str]):
    lines = printed("tagger", capsys, "--steps", "60")
    assert re.fullmatch(
        r"\d+ other sentences: [\d.]+% of the capitals told are ones, [\d.]+% are told", lines[0]
    )
    assert any(letter.isupper() for line in lines[2:] for letter in line)


def test_capitals_are_counted():
    module = example("tagger")
    assert module.scores(["Ab C"], ["Ab c"]) == (0.5, 1.0)
    assert module.scores(["ab c"], ["Ab C"]) == (0.0, 0.0)


def test_nothing_is_padded():
    module = example("tagger")
    batch = ["One. ", "A longer one"]
    characters, capital = module.packed(batch)
    assert len(characters.data) == len(capital) == sum(map(len, batch))
    assert capital.sum() == 2


@PRINTED
def test_the_classifier_of_text_tells_paragraphs(capsys: pytest.CaptureFixture[str]):
    line, report = printed("keras_text", capsys, "--epochs", "1", "--units", "16")
    assert float(line.split("%")[0]) > 60
    assert report.endswith(": compiled, LSTMCell")


@PRINTED
def test_the_cell_in_keras_adds(capsys: pytest.CaptureFixture[str]):
    line, *reports = printed("keras_cell", capsys, "--steps", "40")
    first, last = (
        float(one) for one in line.removeprefix("wrong by ").split(" at last")[0].split(" at first, ")
    )
    assert last < first / 2
    assert [one.split(": ")[1] for one in reports] == ["compiled, IndRNNCell"] * 2


def test_a_file_of_keras_is_served(capsys: pytest.CaptureFixture[str], constants: Constants):
    module = example("keras_serve")
    constants(module, UNITS=16, ROUNDS=2)
    module.main(["--epochs", "1"])
    times, differ, right = capsys.readouterr().out.splitlines()
    theirs, ours = (float(part.split()[-2]) for part in times.split(" by ")[:2])
    assert ours < theirs
    assert float(differ.split()[4]) < 1e-5
    assert float(right.split("%")[0]) > 30


# ---- the delta network -------------------------------------------------------------------------------------


@pytest.fixture
def small_delta(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> Any:
    """The example with a small model and little text."""
    module = example("delta_characters")
    constants(module, KEY=4, WIDTH=16, ROWS=4, PIECE=16, LEARNING_RATE=2e-2)
    whole = module.text()[:8000]
    monkeypatch.setattr(module, "text", lambda: whole)
    return module


@pytest.mark.usefixtures("in_doubles")
def test_the_delta_network_learns_as_in_a_loop(small_delta: Any):
    corpus = small_delta.Corpus.of(small_delta.text())
    ours, theirs = (
        small_delta.Training(corpus, 8, rule) for rule in (small_delta.delta_rule, lambda: looped)
    )
    losses, others = ([training.step() for _ in range(6)] for training in (ours, theirs))
    assert_same_curve(losses, others, small_delta.PIECE * small_delta.ROWS, small_delta.WIDTH)
    assert losses[-1] < losses[0] - 0.5


def test_the_delta_network_tells_what_it_learns(
    small_delta: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    pytest.importorskip("matplotlib", reason="matplotlib is missing, which draws the learning curve")
    small_delta.main(["--quick", "--write", "30", "--plot", str(tmp_path / "curve.svg")])
    _, first, second, _, *written = capsys.readouterr().out.splitlines()
    (step, *losses), (last, *others) = (line.split()[:3] for line in (first, second))
    assert (int(step), int(last)) == (6, 12)
    assert float(others[0]) < float(losses[0]) - 0.5
    assert float(others[1]) < float(losses[1])
    assert "  The " in first
    assert len("\n".join(written)) == 34
    assert "<svg" in (tmp_path / "curve.svg").read_text("utf-8")


def test_the_delta_network_writes_what_it_would_after_all_it_wrote(small_delta: Any):
    """One character at a time with the memories passed on, and the whole text read again for each."""
    corpus = small_delta.Corpus.of(small_delta.text())
    model = small_delta.Training(corpus, 1).model
    random, again = torch.Generator().manual_seed(0), "The "
    for _ in range(12):
        with torch.no_grad():
            logits, _ = model(corpus.numbers(again))
        chances = (logits[0, -1] / 0.5).softmax(-1)
        again += corpus.letters[int(torch.multinomial(chances, 1, generator=random))]
    assert small_delta.write(model, corpus, "The ", 12) == again
