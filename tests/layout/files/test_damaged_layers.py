"""A recurrent layer that lacks an array, or has one with a wrong name or shape, is an error that names it.

Every array of a layer beside another one is removed, misspelled and given another shape in turn, in the names
of every record: no layer is lost without a word.
"""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from command_line import refusal, stepnet

os.environ["KERAS_BACKEND"] = "torch"
import keras

from stepnet.errors import LayoutError
from stepnet.layout import Record, Sizes, from_torch, record, records
from stepnet.layout.files import FileContents, LayoutChoice, read
from stepnet.layout.files.model import among

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
SIZES = Sizes(3, 4, layers=3, directions=2)
X = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")


def arrays_of(name: str, prefix: str, sizes: Sizes) -> Arrays:
    """Arrays of a record behind a prefix."""
    shapes = record(name).shapes(sizes)
    return {prefix + name: np.ones(shape, "float32") for name, shape in shapes.items()}


def without(arrays: Arrays, *names: str) -> Arrays:
    assert arrays.keys() >= set(names)
    return {name: array for name, array in arrays.items() if name not in names}


def renamed(arrays: Arrays, old: str, new: str) -> Arrays:
    return {new if name == old else name: array for name, array in arrays.items()}


def reshaped(arrays: Arrays, name: str, shape: tuple[int, ...]) -> Arrays:
    return {**arrays, name: np.ones(shape, "float32")}


# ---- what is said, at every door


ENCODER = arrays_of("torch.lstm", "encoder.", SIZES)
DECODER = arrays_of("torch.gru", "decoder.", Sizes(3, 4))
LOST = "encoder.weight_hh_l1_reverse"
REMEDY = "say --module NAME (Python: module=NAME) to take another layer by itself, or --drop NAME"


def saved(path: Path, arrays: Arrays) -> Path:
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    return path


DOORS = {
    "convert": ("convert", "{file}", "--to", "keras", "-o", "{out}.npz"),
    "show": ("show", "{file}"),
    "run": ("run", "{file}", "--input", "{x}", "-o", "{out}.parquet"),
    "explain": ("explain", "{file}"),
    "verify": ("verify", "{file}", "{file}"),
    "verify a layout": ("verify", "{file}", "keras.gru"),
    "build": ("build", "{file}", "-o", "{out}.so"),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_layer_without_an_array_is_an_error_at_every_door(tmp_path: Path, door: str):
    parquet.write_table(pa.table({"x": X.tolist()}), tmp_path / "x.parquet")
    file = saved(tmp_path / "model.pt", without(ENCODER, LOST) | DECODER)
    places = {"file": file, "x": tmp_path / "x.parquet", "out": tmp_path / "out"}
    said = refusal(*[part.format(**places) for part in DOORS[door]])
    assert f"encoder looks like torch.lstm, but {LOST} is missing, of shape (16, 4): {REMEDY}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "x.parquet"]


@pytest.mark.parametrize(
    ("encoder", "reason"),
    [
        (without(ENCODER, "encoder.weight_ih_l0"), "encoder.weight_ih_l0 is missing, of shape (16, 3): "),
        (
            renamed(ENCODER, LOST, LOST[:-1]),
            f"{LOST} is missing, of shape (16, 4) ({LOST[:-1]} is there): ",
        ),
        (
            reshaped(ENCODER, LOST, (16, 5)),
            f"{LOST} has shape (16, 5) where (16, 4) is expected of 3 inputs, 4 hidden, 3 layers, both ",
        ),
        (
            without(ENCODER, *(name for name in ENCODER if "_l1" in name)),
            "encoder.weight_ih_l1 is missing, of shape (16, 8); encoder.weight_hh_l1 is missing, of shape "
            "(16, 4); encoder.weight_ih_l1_reverse is missing, of shape (16, 8); 1 more are wrong: ",
        ),
        (
            without(ENCODER, "encoder.bias_ih_l2"),
            "bias_ih_l2 is missing, and bias_ih_l0 is there: ",
        ),
    ],
)
def test_what_is_wrong_with_a_layer_is_said(tmp_path: Path, encoder: Arrays, reason: str):
    file = saved(tmp_path / "model.pt", encoder | DECODER)
    assert f"encoder looks like torch.lstm, but {reason}" in refusal("show", file)


def test_two_damaged_layers_are_both_named(tmp_path: Path):
    encoder = without(ENCODER, LOST) | arrays_of("torch.gru", "middle.", Sizes(3, 4))
    file = saved(tmp_path / "model.pt", encoder | without(DECODER, "decoder.weight_ih_l0"))
    said = refusal("show", file)
    assert f"encoder looks like torch.lstm, but {LOST} is missing" in said
    assert "decoder looks like torch.gru, but decoder.weight_ih_l0 is missing: " in said


def test_another_layer_is_taken_by_itself(tmp_path: Path):
    file = saved(tmp_path / "model.pt", without(ENCODER, LOST) | DECODER)
    for door in ("convert", "verify a layout"):
        arguments = [part.format(file=file, out=tmp_path / "out") for part in DOORS[door]]
        code, _, stderr = stepnet(*arguments, "--module", "decoder")
        assert (code, stderr) == (0, "")
    said = refusal("show", file, "--module", "encoder")
    assert f"encoder looks like torch.lstm, but {LOST} is missing" in said


def test_a_damaged_layer_is_left_out_by_the_names_of_all_its_arrays(tmp_path: Path):
    encoder = without(arrays_of("torch.gru", "encoder.", Sizes(3, 4)), "encoder.weight_hh_l0")
    file, convert = saved(tmp_path / "model.pt", encoder | DECODER), ("convert", "--to", "keras", "-o")
    drop = [part for name in encoder for part in ("--drop", name)]
    some = refusal(*convert, tmp_path / "out.npz", file, *drop[:-2])
    assert "encoder looks like torch.gru, but encoder.weight_hh_l0 is missing" in some
    code, _, stderr = stepnet(*convert, tmp_path / "out.npz", file, *drop)
    assert (code, stderr) == (0, "")


def test_a_state_dict_of_torch_is_refused_unless_a_layer_is_named():
    state = without(ENCODER, LOST) | DECODER
    with pytest.raises(LayoutError) as error:
        from_torch(state)
    assert str(error.value) == (
        f"encoder looks like torch.lstm, but {LOST} is missing, of shape (16, 4): "
        "choose another layer by prefix='decoder.'"
    )
    assert repr(from_torch(state, "decoder")).startswith("RNN(gru")


# ---- every array of every record


FRAMEWORKS = {  # of the files that they are usually in, with the separator in names
    **dict.fromkeys(
        ("torch", "equinox", "burn", "candle", "mlx", "mlx_early"), (("torch", "candle", "mlx"), ".")
    ),
    **dict.fromkeys(("flax", "nnx", "haiku"), (("flax", "nnx"), "/")),
    **dict.fromkeys(("tf1", "keras2"), (("tf1", "keras2"), "/")),
    "paddle": (("paddle",), "."),
    "mxnet": (("mxnet",), "_"),
}
OTHERS = ("stepnet", "torch", "keras", "haste", "chainer"), "/"
Damage = Callable[[Arrays, str], Arrays]
DAMAGES: dict[str, Damage] = {
    "gone": lambda arrays, name: without(arrays, name),
    "misspelled": lambda arrays, name: renamed(arrays, name, misspelled(name)),
    "another shape": lambda arrays, name: reshaped(
        arrays, name, tuple(length + 1 for length in arrays[name].shape)
    ),
}


def misspelled(name: str) -> str:
    """A name without the second letter of its last word, or with one more if there are no two."""
    front = max(map(name.rfind, "./_")) + 1
    last = name[front:]
    return name[:front] + (last[0] + last[2:] if len(last) > 2 else f"{last}x")


def title(one: Record) -> str:
    """The usual name of a layer."""
    if one.name.startswith("tf1."):
        return {"lstm": "basic_lstm_cell"}.get(one.cell, f"{one.cell}_cell")
    return one.cell


def lost(model: FileContents, layout: str | None, expected: int) -> bool:
    """True if a model is read without an error and has fewer layers than expected."""
    try:
        return len(LayoutChoice(layout).checked_modules(model, copied=False)) < expected
    except LayoutError:
        return False


# Nothing is left of a layer of one array that is gone.
SEVERAL = [name for name, one in records().items() if len(one.arrays) > 1]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", SEVERAL)
def test_no_layer_is_lost_for_an_array(name: str, damage: str, pytestconfig: pytest.Config):
    """Of the arrays every third without --long, from another one on for each damage."""
    one = record(name)
    frameworks, sign = FRAMEWORKS.get(name.partition(".")[0], OTHERS)
    fronts = [f"{model}{sign}{title(one)}{sign}" for model in ("encoder", "decoder")]
    sizes = Sizes(5, 4, 3 if one.projection else None, directions=one.ways or 1)
    first, second = (arrays_of(name, front, sizes) for front in fronts)
    whole = among("model", first | second, frameworks, name)
    assert (len(whole.modules), whole.damaged) == (2, ())
    start = list(DAMAGES).index(damage) % len(second)
    for array in second if pytestconfig.option.long else list(second)[start :: len(DAMAGES)]:
        damaged = among("model", first | DAMAGES[damage](second, array), frameworks, name)
        assert not lost(damaged, name, 2), array


# ---- what is no layer


def test_other_layers_are_no_damaged_ones(tmp_path: Path):
    """Arrays of layers that are not recurrent, and of cells with names of their own."""
    dense = {f"lstm_head/{name}": np.ones(shape) for name, shape in (("kernel", (4, 2)), ("bias", (2,)))}
    others = {
        "block.attention.in_proj_weight": (12, 4),
        "block.attention.in_proj_bias": (12,),
        "block.norm.weight": (4,),
        "cell.i2h.weight": (4, 7),
        "cell.h2h.weight": (4, 4),
        "mine.W_z": (3, 4),
        "mine.U_z": (4, 4),
        "lstm.bias": (16,),
        "lstm.W": (3, 16),
        "lstm.U": (4, 16),
        "conv_lstm/kernel": (3, 3, 1, 16),
        "conv_lstm/recurrent_kernel": (3, 3, 4, 16),
        "conv_lstm/bias": (16,),
        "decoder/projection/kernel": (4, 4),
        "embedding/embeddings": (9, 4),
    }
    arrays = dense | {name: np.ones(shape) for name, shape in others.items()}
    for frameworks, _ in (*FRAMEWORKS.values(), OTHERS):
        for layout, front in (("torch.gru", "rnn."), ("keras.gru", "rnn/")):
            model = among("model", arrays | arrays_of(layout, front, Sizes(3, 4)), frameworks)
            assert (len(model.modules), model.damaged) == (1, ()), frameworks


# ---- Keras


def edited(file: bytes, edit: Callable[[str], str | None]) -> bytes:
    """An HDF5 file whose arrays are renamed, or left out for None."""
    new = io.BytesIO()
    with h5py.File(io.BytesIO(file)) as old, h5py.File(new, "w") as target:

        def copy(name: str, held: Any) -> None:
            if isinstance(held, h5py.Group):
                target.require_group(name).attrs.update(held.attrs)
            elif (other := edit(name)) is not None:
                target[other] = held[()]

        target.attrs.update(old.attrs)
        old.visititems(copy)
    return new.getvalue()


def edit(file: Path, change: Callable[[str], str | None]) -> None:
    """Edits the arrays of a file of Keras."""
    if file.suffix == ".h5":
        file.write_bytes(edited(file.read_bytes(), change))
        return
    with zipfile.ZipFile(file) as old:
        members = {name: old.read(name) for name in old.namelist()}
    members["model.weights.h5"] = edited(members["model.weights.h5"], change)
    with zipfile.ZipFile(file, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)


def keras_file(path: Path) -> Path:
    """A file of a model with layers of several classes."""
    keras.utils.clear_session()  # which counts the layers that it names
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((5, 3)),
            layers.Dense(4),
            layers.LSTM(3, return_sequences=True),
            layers.LayerNormalization(center=False, scale=False),
            layers.BatchNormalization(),
            layers.Dropout(0.1),
            layers.Bidirectional(layers.GRU(3, return_sequences=True)),
            layers.LSTM(2, name="second"),
        ]
    )
    model.save_weights(path) if path.name.endswith(".weights.h5") else model.save(path)
    return path


LEFT_OUT = {
    "lstm": "lstm (LSTM)",
    "second": "second (LSTM)",
    "bidirectional": "bidirectional (Bidirectional)",
    "batch_normalization": "batch_normalization (BatchNormalization)",
    "dense": "dense (Dense)",
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("ending", [".keras", ".h5"])
@pytest.mark.parametrize("layer", LEFT_OUT)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_layer_that_only_the_configuration_has_is_an_error(tmp_path: Path, layer: str, ending: str):
    file = keras_file(tmp_path / f"model{ending}")
    assert [module.name for module in LayoutChoice().modules(read(file))] == [
        "lstm",
        "bidirectional",
        "second",
    ]
    if ending == ".h5":
        with h5py.File(file, "r+") as weights:
            weights[f"model_weights/{layer}"].attrs["weight_names"] = np.array([], "S1")
    group = "/lstm_1/" if layer == "second" else f"/{layer}/"
    edit(file, lambda name: None if group in f"/{name}" and ending == ".keras" else name)
    said = refusal("show", file)
    assert (
        f"{LEFT_OUT[layer]} is in the configuration, and the file has no arrays of it: say --module" in said
    )
    code, _, stderr = stepnet("show", file, "--module", "second" if layer == "lstm" else "lstm")
    assert (code, stderr) == (0, "")


def test_a_group_of_weights_that_are_not_those_of_its_class_is_an_error(tmp_path: Path):
    file = keras_file(tmp_path / "model.weights.h5")
    assert len(LayoutChoice().modules(read(file))) == 3
    edit(file, lambda name: None if name == "layers/lstm_1/cell/vars/1" else name)
    assert (
        "layers/lstm_1 has the name of a layer LSTM: kernel, recurrent_kernel and bias of one number of "
        "units are expected, and layers/lstm_1/cell/vars/0 (6, 8), layers/lstm_1/cell/vars/2 (8,) are there: "
        "say --module NAME"
    ) in refusal("show", file)
    file = keras_file(tmp_path / "again.weights.h5")
    edit(file, lambda name: None if "backward_layer" in name else name)
    said = "bidirectional has weights that run forward, and none that fit and run backward: say --module NAME"
    assert said in refusal("show", file)
