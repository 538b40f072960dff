"""The scripts of the gallery: their results are judged by other ways to the same numbers."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from examples_as_modules import example
from linux_alone import skip_elsewhere

import stepnet as sn

GALLERY = (
    "mackey_glass",
    "parquet_folder",
    "model_in_c",
    "custom_cell",
    "speaker_classifier",
    "delta_characters",
)


def test_the_series_solves_the_equation():
    """The differences of neighbours are those of the equation, with a step of 1."""
    x = example("mackey_glass").series(400, seed=3)[:, 0].astype(float)
    delayed = x[:-18]
    slope = 0.2 * delayed / (1 + delayed**10) - 0.1 * x[17:-1]
    assert np.abs(np.diff(x)[17:] - slope).max() < 0.06  # the second derivative is at most about 0.1
    assert x.std() > 0.1


def test_the_forecast_is_that_of_the_step_on_arrays():
    module = example("mackey_glass")
    params = {name: 3 * array for name, array in module.parameters().items()}
    rnn = module.sn.RNN(module.step, params, memory=module.HIDDEN)
    known = module.series(30, seed=1)
    found = module.forecast(rnn, known, 5)
    h, value = np.zeros((1, module.HIDDEN)), known[:1]
    exact = {name: array.astype(float) for name, array in params.items()}
    for x in known:
        change, h = module.step(x[None].astype(float), h, exact)
        value = x[None] + change
    for one in found:
        np.testing.assert_allclose(one, value[0], atol=1e-5)
        change, h = module.step(value, h, exact)
        value = value + change


def test_training_forecasts_better_than_repeating(capsys: pytest.CaptureFixture[str]):
    example("mackey_glass").main(["--epochs", "60"])
    one, ahead = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("one", "80"))]
    assert float(one.split()[5]) < 0.02
    wrong, repeated = map(float, re.findall(r"wrong by ([\d.]+\d)", ahead))
    assert wrong < repeated


def test_the_folder_is_resumed_and_told_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    module = example("parquet_folder")
    module.main(["--folder", str(tmp_path)])
    counts = module.confusion(tmp_path / "scores")
    table = parquet.read_table(module.DATA / "japanese_vowels.parquet", filters=[("split", "==", "test")])
    utterances, model = sn.Ragged.from_arrow(table["frames"]).to_list(), module.classifier()
    alone = [model(one[None])["scores"].argmax() for one in utterances]
    expected = np.zeros_like(counts)
    np.add.at(expected, (table["speaker"].to_numpy() - 1, alone), 1)
    assert np.array_equal(counts, expected)
    assert "364 of 370 utterances right (98.4%)" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is missing, a C compiler")
def test_the_program_in_c_gives_the_bits_of_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    skip_elsewhere()
    example("model_in_c").main(["--folder", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert "the same in pieces: yes" in lines
    assert lines[-1] == "bitwise identical to Python: True"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mackey_glass", (np.ones((280, 1)), np.ones((80, 1)))),
        ("parquet_folder", (np.eye(9, dtype=int),)),
        ("model_in_c", (np.ones((13, 64)),)),
        ("custom_cell", ([0.5, 0.1],)),
    ],
)
def test_a_picture_is_drawn(name: str, values: tuple[Any, ...], tmp_path: Path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing, which draws pictures")
    example(name).plot(*values, tmp_path / "picture.svg")
    assert "<svg" in (tmp_path / "picture.svg").read_text("utf-8")


@pytest.mark.parametrize("name", GALLERY)
def test_the_page_shows_each_script_with_its_picture(name: str):
    root = Path(__file__).parents[2]
    page = (root / "docs" / "gallery.md").read_text("utf-8")
    assert f"examples/{name}.py" in page
    assert f"pictures/{name}.svg" in page
    assert (root / "docs" / "pictures" / f"{name}.svg").exists()
