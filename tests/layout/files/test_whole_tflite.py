"""TFLite models that are read whole: each operator as TensorFlow's interpreter computes it, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import unpacked
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import LayoutError
from stepnet.layout.files import read
from tests.layout.files.tables import rows

DATA = Path(__file__).parent / "data"
LENGTHS, WIDTH = (7, 3, 1), 9


Found = tuple[dict[str, Any], Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what data/make_tflite_operators.py made."""
    folder = tmp_path_factory.mktemp("operators")
    unpacked(DATA / "tflite_operators.tar.xz", folder)
    return folder


@pytest.fixture(scope="module")
def outputs(folder: Path) -> Found:
    """Results of stepnet for each sequence, by the name of the output; and the arrays of TensorFlow."""
    arrays = np.load(folder / "operators.npz")
    graph: Any = sn.load(folder / "operators.tflite")
    return graph(sequences(arrays)), arrays


def sequences(arrays: Any) -> sn.Ragged:
    return sn.Ragged.from_list([arrays[f"{length}/frames"][0] for length in LENGTHS])


def names() -> list[str]:
    """The outputs of the model, as the script lists them."""
    text = (DATA / "make_tflite_operators.py").read_text("utf-8").partition("] = {\n")[2].partition("\n}")[0]
    return [line.split('"')[1].replace(" ", "_") for line in text.splitlines() if line.startswith('    "')]


def operators(path: Path) -> set[str]:
    """The operators of a model that are neither a recurrence nor a part of one."""
    return {text.rpartition("(")[2].removesuffix(")") for text in read(path).layers}


WHOLE = {"BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "TRANSPOSE_CONV"}
"""Operators of models with a fixed number of steps, which tests/conformance/whole has."""
OF_BATCHES = {"SQUEEZE"}
"""Operators of models of any number of sequences, which test_pools.py has."""
COPIES = {"MIRROR_PAD"}
"""Operators that read more than one step, which test_copies.py has."""


def test_every_row_of_the_table_is_in_a_model(folder: Path):
    recurrent = {"UNIDIRECTIONAL_SEQUENCE_LSTM", "DEQUANTIZE"}
    assert operators(folder / "operators.tflite") == rows("tflite") - recurrent - WHOLE - OF_BATCHES - COPIES


def check(found: Any, right: Any, name: str) -> None:
    """Asserts that the outputs of all sequences are TensorFlow's."""
    each = found.to_list() if isinstance(found, sn.Ragged) else list(found)
    for length, actual in zip(LENGTHS, each, strict=True):
        assert_close(actual, as_sequence(right[f"{length}/{name}"], np.shape(actual)), length, WIDTH)


@pytest.mark.parametrize("name", names())
def test_an_operator_computes_what_tensorflow_computes(outputs: Found, name: str):
    found, arrays = outputs
    check(found[str(arrays[f"name/{name}"])], arrays, name)


def test_weights_of_half_precision_are_read(folder: Path):
    arrays, graph = np.load(folder / "operators.npz"), sn.load(folder / "DEQUANTIZE.tflite")
    check(graph(sequences(arrays)), arrays, "DEQUANTIZE")


def as_sequence(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array of one sequence, with its steps as the first axis."""
    turned = (np.moveaxis(array[0], axis, 0) for axis in range(array.ndim - 1))
    return next((each for each in turned if each.shape == shape), array[0])


def test_a_model_for_some_steps_runs_over_others(folder: Path):
    arrays, graph = np.load(folder / "operators.npz"), sn.load(folder / "RESHAPE fixed.tflite")
    x = arrays["7/frames"]
    assert_close(graph(x), arrays["7/RESHAPE_fixed"], 7, WIDTH)
    assert graph(x[:, :4]).shape[1] == 4


def test_a_model_with_another_operator_is_refused_as_before(folder: Path):
    with pytest.raises(LayoutError, match=r"it has \S+ \(FLOOR_MOD\), which stepnet does not run"):
        sn.load(folder / "FLOOR_MOD.tflite")
