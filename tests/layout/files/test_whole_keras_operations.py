"""Operations of keras.ops in models that are read whole, each as Keras computes it; and that each class has a
model in a test.
"""

# pyright: reportOptionalOperand=false, reportOptionalSubscript=false, reportOptionalIterable=false
# Keras says that its functions may return None.

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers, ops

import stepnet as sn
from stepnet.errors import ModelError
from tests.layout.files.test_whole_keras import EVERY, ROWS, check, over_gru, saved
from tests.layout.files.test_whole_keras_windows import WINDOWS

pytestmark = pytest.mark.filterwarnings("ignore")
MASKS = (
    *(
        "Masking",
        "ops.Any",
        "ops.ConvertToTensor",
        "ops.ExpandDims",
        "ops.LogicalOr",
        "ops.NotEqual",
        "ops.OnesLike",
    ),
    "ops.ZerosLike",
)
"""The classes of masks, which test_whole_keras_masks.py has models of."""


def chosen(condition: Any, y: Any) -> Any:
    return ops.where(condition, y, 0.5)


OPERATIONS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "activations": {
        "Celu": ops.celu,
        "Erf": ops.erf,
        "Glu": lambda y: ops.glu(ops.concatenate([y, y], -1)),
        "HardShrink": ops.hard_shrink,
        "HardSigmoid": ops.hard_sigmoid,
        "HardSilu": ops.hard_silu,
        "HardTanh": lambda y: ops.hard_tanh(3 * y),
        "LogSigmoid": ops.log_sigmoid,
        "Relu6": lambda y: ops.relu6(9 * y),
        "SoftShrink": ops.soft_shrink,
        "Softsign": ops.softsign,
        "Sparsemax": ops.sparsemax,
        "SparsePlus": ops.sparse_plus,
        "SparseSigmoid": ops.sparse_sigmoid,
        "Squareplus": ops.squareplus,
        "TanhShrink": ops.tanh_shrink,
    },
    "numbers": {
        "Abs": ops.abs,
        "Arctan": ops.arctan,
        "Cast": lambda y: ops.cast(ops.cast(3 * y, "int32"), "float32"),
        "Cosh": ops.cosh,
        "Log10": lambda y: ops.log10(ops.exp(y)),
        "Log2": lambda y: ops.log2(ops.exp(y)),
        "Power": lambda y: y**2 + ops.exp(y) ** 1.5,
        "Reciprocal": lambda y: ops.reciprocal(ops.exp(y)),
        "Round": lambda y: ops.round(4 * y),
        "Sinh": ops.sinh,
        "StopGradient": lambda y: ops.stop_gradient(y) + 1.0,
        "Tan": ops.tan,
    },
    "truths": {
        "Equal": lambda y: chosen(ops.equal(ops.floor(4 * y), 0.0), y),
        "Greater": lambda y: chosen(y > 0.1, y),
        "GreaterEqual": lambda y: chosen(y >= 0.1, y),
        "Less": lambda y: chosen(y < 0.1, y),
        "LessEqual": lambda y: chosen(y <= 0.1, y),
        "LogicalAnd": lambda y: chosen(ops.logical_and(y > 0, y < 0.2), y),
        "LogicalNot": lambda y: chosen(ops.logical_not(y > 0), y),
        "LogicalXor": lambda y: chosen(ops.logical_xor(y > 0, y < 0.2), y),
        "Where": lambda y: ops.where(y > 0, y, -2.0 * y),
    },
    "features": {
        "Matmul": lambda y: ops.matmul(ops.reshape(y[:, 0], (-1, 2, 2)), ops.reshape(y[:, -1], (-1, 2, 2))),
        "Moveaxis": lambda y: ops.moveaxis(ops.reshape(y[:, 0], (-1, 2, 2, 1)), 1, 3),
        "Repeat": lambda y: ops.repeat(y, 2, axis=1) * ops.repeat(y[:, :1, :2], 2, axis=2),
        "Split": lambda y: ops.multiply(*ops.split(y, 2, axis=-1)) + ops.split(y, [1, 3], axis=-1)[1],
        "Stack": lambda y: ops.stack([y, ops.tanh(y)], axis=2),
        "Swapaxes": lambda y: ops.swapaxes(ops.reshape(y[:, 0], (-1, 2, 2, 1)), 1, 3),
        "Unstack": lambda y: ops.multiply(*ops.unstack(y, 4, axis=-1)[:2]),
    },
    "reductions": {
        "Cumsum": lambda y: ops.cumsum(y, axis=1) + ops.cumsum(y, axis=2),
        "Logsumexp": lambda y: ops.logsumexp(y, axis=1) + ops.logsumexp(y, axis=[1, 2], keepdims=True)[:, 0],
        "Std": lambda y: ops.std(y, axis=1),
        "Var": lambda y: ops.var(y, axis=[1, 2], keepdims=True),
    },
}
"""Models that give the results of several operations of a GRU's outputs."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_compute_what_keras_computes(tmp_path: Path, name: str):
    several = OPERATIONS[name].values()
    check(over_gru(lambda y: [function(y) for function in several]), tmp_path / "m.keras")


INDICES: dict[str, Callable[[Any], Any]] = {
    "all but the first steps": lambda y: y[:, 2:],
    "all but the last steps": lambda y: y[:, :-3, 1:],
    "each second of the steps between": lambda y: y[:, 1:-1:2],
    "differences of steps": lambda y: y[:, 1:] - y[:, :-1],
    "an ellipsis": lambda y: y[..., 0] + y[..., 1:][..., -1],
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_selects_what_keras_selects(tmp_path: Path, name: str):
    check(over_gru(INDICES[name]), tmp_path / "m.keras")


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the last steps": (
        lambda y: y[:, -2:],
        "of steps all, the first or the last, or all but some at the ends",
    ),
    "the first steps": (
        lambda y: y[:, :2],
        "of steps all, the first or the last, or all but some at the ends",
    ),
    "decimals": (lambda y: ops.round(y, 2), "its decimals is 2"),
    "steps shifted by one": (
        lambda y: ops.concatenate([y[:, :1], y[:, :-1]], axis=1),
        "it puts entries ahead of steps of which some were left out",
    ),
    "unequal parts": (lambda y: ops.split(y, [1], axis=1)[0], "is not a feature"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_that_is_not_supported_is_refused(tmp_path: Path, name: str):
    made, words = REFUSED[name]
    with pytest.raises(ModelError, match=words):
        sn.load(saved(over_gru(made), tmp_path / "m.keras"))


def rows() -> set[str]:
    """The names of the rows of the tables, as their files list them."""
    folder, names = Path(sn.__file__).parent / "layout" / "files" / "keras", set[str]()
    for file, table in (
        ("operators", "KERAS"),
        ("operations", "OPERATIONS"),
        ("activations", "ACTIVATION_LAYERS"),
    ):
        text = (
            (folder / f"{file}.py").read_text("utf-8").partition(f"\n{table}: Mapping[str, Rule] = {{\n")[2]
        )
        names |= set(re.findall(r"^    \"([\w.]+)\": ", text.partition("\n}")[0], flags=re.MULTILINE))
    return names | {*re.findall(r"\"(ops\.\w+)\": ", (folder / "operations.py").read_text("utf-8"))}


def test_every_row_of_the_tables_has_a_model():
    operations = {f"ops.{name}" for several in OPERATIONS.values() for name in several}
    known = {*" ".join([*ROWS, *WINDOWS]).split(), *MASKS, *operations, "Embedding"}
    assert rows() <= known
    assert len(rows()) > 150


# ---- recurrent layers at each step -------------------------------------------------------------------------


INNER: dict[str, Callable[[], Any]] = {
    "last": lambda: layers.GRU(3),
    "all": lambda: layers.LSTM(3, **EVERY),
    "backwards": lambda: layers.SimpleRNN(3, go_backwards=True, **EVERY),
    "both": lambda: layers.Bidirectional(layers.GRU(2, **EVERY)),
    "both ends": lambda: layers.Bidirectional(layers.LSTM(2), merge_mode="sum"),
    "cells": lambda: layers.RNN([layers.GRUCell(3), layers.LSTMCell(2)]),
}


@pytest.mark.parametrize("name", INNER)
def test_a_recurrent_layer_runs_over_a_feature_of_each_step(tmp_path: Path, name: str):
    x = keras.Input((None, 3))
    y = layers.Reshape((-1, 3, 2))(layers.Dense(6)(x))
    y = layers.Flatten()(layers.TimeDistributed(INNER[name]())(y)[:, 0])
    check(keras.Model(x, layers.Dense(2)(y)), tmp_path / "m.keras")


def test_a_recurrent_layer_over_many_entries_of_each_step_is_refused(tmp_path: Path):
    x = keras.Input((None, 65, 2))
    path = saved(keras.Model(x, layers.TimeDistributed(layers.GRU(3, name="g"))(x)), tmp_path / "m.keras")
    with pytest.raises(ModelError, match=r"it runs over 65 entries: 1 to 64 are supported"):
        sn.load(path)


def test_cells_in_both_directions_give_their_last_outputs(tmp_path: Path):
    cells: Any = layers.RNN([layers.GRUCell(3), layers.LSTMCell(2)])
    made = keras.Sequential([keras.Input((None, 3)), layers.Bidirectional(cells), layers.Dense(2)])
    check(made, tmp_path / "m.keras")
