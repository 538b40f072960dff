"""The table of docs/folders.md says what is run of each kind of model file, as it is found in the corpus."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepnet.layout.files import FORMATS
from stepnet.layout.files.formats import Format
from tests.conformance.corpus import MODELS, Model
from tests.conformance.test_corpus_of_models import RECURRENT, REFUSED, VERDICT, WEIGHTS, WHOLE

PAGE = Path(__file__).parents[2] / "docs" / "folders.md"
PROGRAM, SAVED = "PaddlePaddle program", "saved model"
VERDICTS = {
    "whole": {WHOLE, REFUSED},
    "whole, if all layers are supported": {WHOLE, RECURRENT, REFUSED},
    "recurrent layers alone": {RECURRENT, REFUSED},
    "refused as code": {REFUSED},
    "no architecture": {WEIGHTS},
}
"""The verdicts that models of the corpus may have, by the last column of their row."""

ROWS = {
    "CoreML": "Core ML",
    "OpenVINO": "OpenVINO",
    "Orbax": "Orbax",
    "msgpack": "Flax",
    "keras": "Keras: models",
    "keras of Keras 2": "Keras: models",
    "h5": "Keras: models",
    "h5 of Keras 2": "Keras: models",
    "weights.h5": "Keras: weights",
    "weights.h5 of Keras 2": "Keras: weights",
    "onnx": "ONNX",
    "Paddle program": PROGRAM,
    "pdparams": "PaddlePaddle",
    "SavedModel": "TensorFlow SavedModel: saved by Keras 2",
    "TFLite": "TFLite",
    "TensorFlow checkpoint": "TensorFlow checkpoint",
    "checkpoint": "PyTorch: state dicts, checkpoints",
    "state": "PyTorch: state dicts, checkpoints",
    "pickled": "PyTorch: pickled modules, TorchScript",
    "scripted": "PyTorch: pickled modules, TorchScript",
    "traced": "PyTorch: pickled modules, TorchScript",
    "pt2": "PyTorch export",
    "safetensors": "safetensors",
}
"""The rows of the kinds in the manifests of the corpus."""


@dataclass(frozen=True)
class Row:
    """A row of the table: a kind and its variant, the endings of its files, and what is run of them."""

    kind: str
    files: str
    run: str

    @property
    def title(self) -> str:
        """The title of its `Format`."""
        return self.kind.partition(":")[0]

    @property
    def endings(self) -> set[str]:
        return set(re.findall(r"`([^`]+)`", self.files))


def table() -> list[Row]:
    """The rows of the table, without its head."""
    section = PAGE.read_text("utf-8").partition("\n## Model files\n")[2].partition("\n## ")[0]
    first = section.partition("\n| kind | files | what is run |")[2].partition("\n\n")[0]
    lines = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", first, flags=re.MULTILINE)
    return [Row(*cells) for cells in lines]


def test_every_kind_of_file_has_a_row():
    assert {row.title for row in table()} == {PROGRAM, SAVED, *(form.title for form in FORMATS)}
    kinds = [row.kind for row in table()]
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.title)
def test_the_rows_of_a_kind_have_its_endings(form: Format):
    listed = {ending for row in table() if row.title == form.title for ending in row.endings}
    assert listed >= set(form.endings)


def test_every_row_has_a_known_verdict():
    assert {row.run for row in table()} == set(VERDICTS)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.title)
def test_no_model_of_the_corpus_contradicts_its_row(model: Model):
    (row,) = (row for row in table() if row.kind == ROWS[model.kind])
    assert VERDICT[model.title] in VERDICTS[row.run], f"{model.file}, and the row {row}"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.title)
def test_a_row_lists_the_endings_of_its_models(model: Model):
    (row,) = (row for row in table() if row.kind == ROWS[model.kind])
    name = Path(model.file).name
    assert "." not in name or name.endswith(tuple(row.endings))
