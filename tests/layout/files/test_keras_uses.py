"""Uses of recurrent layers by a Keras model: those that a new file cannot express are refused or noted."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from command_line import refusal, stepnet
from tolerance import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
import h5py
import keras

import stepnet as sn
from stepnet.errors import FileError, LayoutError
from stepnet.layout.files import Module, read, write
from stepnet.layout.files.account import check_stack
from stepnet.layout.files.keras.config import layers_of
from stepnet.layout.files.store import Store

layers = keras.layers
INPUTS = HIDDEN = 3
TIME = 5
X = np.random.default_rng(0).normal(size=(2, TIME, INPUTS)).astype(np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")


def lstm(name: str, **options: Any) -> Any:
    return layers.LSTM(HIDDEN, name=name, **{"return_sequences": True, **options})


def converted(*arguments: object) -> dict[str, Any]:
    """The text of a conversion."""
    code, stdout, stderr = stepnet("convert", *arguments, "--json")
    assert (code, stderr) == (0, "")
    return json.loads(stdout)


def saved(folder: Path, made: Callable[[Any], Any], ending: str = ".keras") -> Path:
    """A file of the functional model that is made of an input."""
    entrance = keras.Input((TIME, INPUTS), name="entrance")
    path = folder / f"model{ending}"
    keras.Model(entrance, made(entrance)).save(path)
    return path


def outputs_of(path: Path, x: Any) -> Any:
    """The results of Keras for inputs, with a file."""
    loaded: Any = keras.saving.load_model(path)
    return keras.ops.convert_to_numpy(loaded(x))


def shared(x: Any) -> Any:
    layer = lstm("shared")
    return layer(layer(x))


def shared_around(x: Any) -> Any:
    layer = lstm("shared")
    return layer(layers.ReLU()(layer(x)))


def shared_model(x: Any) -> Any:
    entrance = keras.Input((TIME, INPUTS))
    inner = keras.Model(entrance, lstm("above")(lstm("shared")(entrance)), name="inner")
    return inner(inner(x))


def test_a_state_that_is_kept_between_calls_is_told_and_not_written(tmp_path: Path):
    """Keras wants a batch of one size for it, which the caller of the new file may not have."""
    entrance = keras.Input(batch_shape=(2, TIME, INPUTS))
    model: Any = keras.Model(entrance, lstm("kept", stateful=True)(entrance))
    model.save(tmp_path / "model.keras")
    expected = keras.ops.convert_to_numpy(model(X))
    out = tmp_path / "new.keras"
    said = converted(tmp_path / "model.keras", "--to", "keras", "-o", out, "--verify")
    kept = "it keeps its state from one call to the next (stateful): here every call starts from zeros, and "
    kept += "a stream keeps it"
    assert said["notes"] == {"kept": [kept]}
    for _ in range(2):
        assert_close(outputs_of(out, X), expected, length=TIME, width=INPUTS + HIDDEN)


SHARED = {
    "over itself": (shared, "shared"),
    "with a layer between": (shared_around, "shared"),
    "in a model": (shared_model, "inner/shared"),
}


@pytest.mark.parametrize("ending", [".keras", ".h5"])
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.filterwarnings("ignore")  # .h5 is called legacy
def test_a_layer_that_is_called_twice_is_no_layer_of_a_row(tmp_path: Path, name: str, ending: str):
    made, layer = SHARED[name]
    source = saved(tmp_path, made, ending)
    said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "out.keras", "--stack")
    assert f"would run {layer} as an ordinary layer, and it is called 2 times in its model" in said
    stated = converted(source, "--to", "torch", "-o", tmp_path / "out.npz")
    assert "it is called 2 times in its model, which the new file does not say" in stated["notes"][layer]


def from_states(x: Any) -> Any:
    outputs, *states = lstm("below", return_state=True)(x)
    return lstm("above")(outputs, initial_state=states)


def positional_states(x: Any) -> Any:
    outputs, *states = lstm("below", return_state=True)(x)
    return lstm("above")(outputs, states)


def dense_states(x: Any) -> Any:
    first = layers.Flatten()(x)
    return lstm("above")(x, initial_state=[layers.Dense(HIDDEN, name=name)(first) for name in ("h", "c")])


STATES = {"of a layer": from_states, "by place": positional_states, "of dense layers": dense_states}


@pytest.mark.parametrize("name", STATES)
def test_states_that_other_layers_compute_are_not_lost(tmp_path: Path, name: str):
    source, out = saved(tmp_path, STATES[name]), tmp_path / "out.keras"
    others = "h, c" if STATES[name] is dense_states else "below"
    said = refusal("convert", source, "--to", "keras", "-o", out, "--stack")
    assert (
        f"would run above as an ordinary layer, and it starts from what other layers compute ({others})"
        in said
    )
    stated = converted(source, "--to", "keras", "-o", out, "--module", "above")
    note = f"it starts from what other layers compute ({others}), which the new file does not say"
    assert stated["notes"]["above"] == [note]


def test_states_that_are_given_are_noted(tmp_path: Path):
    inputs = [keras.Input((TIME, INPUTS)), keras.Input((HIDDEN,)), keras.Input((HIDDEN,))]
    source = tmp_path / "given.keras"
    keras.Model(inputs, lstm("rnn")(inputs[0], initial_state=inputs[1:])).save(source)
    stated = converted(source, "--to", "onnx", "-o", tmp_path / "out.onnx", "--verify")
    assert stated["notes"] == {"rnn": ["its initial state is given when the model runs"]}
    (module,) = read(source).modules
    assert module.follows == ""


def test_what_the_file_says_is_not_overruled(tmp_path: Path):
    inputs = [keras.Input((TIME, INPUTS)), keras.Input((HIDDEN,)), keras.Input((HIDDEN,))]
    source, out = tmp_path / "given.keras", tmp_path / "out.onnx"
    above = lstm("above")(lstm("below")(inputs[0]), initial_state=inputs[1:])
    keras.Model(inputs, above).save(source)
    said = refusal("convert", source, "--to", "onnx", "-o", out, "--stack")
    assert f"{out} would run above over the outputs of below; the file says that it takes something" in said
    around = [Module(name, ("keras.gru",), {}, follows=other) for name, other in (("a", "b"), ("b", "a"))]
    with pytest.raises(LayoutError, match=r"a takes the outputs of b, which out\.onnx would run after it"):
        check_stack(tuple(around), "out.onnx", assumed=True)


def dropped(x: Any) -> Any:
    return lstm("above")(layers.Dropout(0.5, name="drop")(lstm("below")(x), training=True))


def dropped_in_a_model(x: Any) -> Any:
    entrance = keras.Input((TIME, INPUTS))
    inner = keras.Model(entrance, layers.Dropout(0.5, name="drop")(entrance), name="inner")
    return lstm("above")(inner(lstm("below")(x), training=True))


DROPPED = {
    "drop": dropped,
    "inner/drop": dropped_in_a_model,
}


@pytest.mark.parametrize("name", DROPPED)
def test_a_dropout_that_is_active_is_not_looked_through(tmp_path: Path, name: str):
    source = saved(tmp_path, DROPPED[name])
    said = refusal("convert", source, "--to", "onnx", "-o", tmp_path / "out.onnx", "--stack")
    assert f"it takes {name} instead: " in said
    assert converted(source, "--to", "torch", "-o", tmp_path / "o.npz")["account"]["layers"][-1].endswith(
        "drop (Dropout)"
    )


@pytest.mark.parametrize(("options", "noted"), [({"dropout": 0.3}, True), ({}, False)])
def test_a_layer_that_drops_out_when_it_runs_is_noted(tmp_path: Path, options: Any, noted: bool):
    source = saved(tmp_path, lambda x: lstm("rnn", **options)(x, training=True))
    stated = converted(source, "--to", "keras", "-o", tmp_path / "out.keras")
    note = "it drops out as in training whenever the model runs (training=True)"
    assert (note in stated["notes"]["rnn"]) == noted


def last_alone(x: Any) -> Any:
    return lstm("above", return_sequences=False)(lstm("below")(x))


def states_too(x: Any) -> Any:
    return lstm("above", return_state=True)(lstm("below")(x))[0]


def both_outputs(x: Any) -> Any:
    below = lstm("below")(x)
    return [below, lstm("above")(below)]


GIVEN = {
    "returns only its last output": (last_alone, ["above"]),
    "also returns its final states": (states_too, ["above"]),
    "gives one of its model's 2 outputs": (both_outputs, ["below", "above"]),
}


# What the new files say.
WRITTEN = {
    ".keras": ("returns only its last output",),
    ".onnx": ("returns only its last output", "also returns its final states"),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("ending", [".keras", ".onnx", ".tflite", ".npz"])
@pytest.mark.parametrize("what", GIVEN)
def test_what_a_layer_gives_is_said(tmp_path: Path, what: str, ending: str):
    made, noted = GIVEN[what]
    target = {".onnx": "onnx", ".tflite": "tflite"}.get(ending, "keras")
    stated = converted(saved(tmp_path, made), "--to", target, "-o", tmp_path / f"out{ending}")
    note = f"it {what}, which the new file does not say"
    written = what in WRITTEN.get(ending, ())
    assert [name for name, notes in stated["notes"].items() if note in notes] == ([] if written else noted)


def test_layers_with_a_last_output_are_still_layers_of_one(tmp_path: Path):
    source = saved(tmp_path, last_alone)
    stated = converted(source, "--to", "torch", "-o", tmp_path / "out.npz", "--verify")
    assert stated["notes"] == {
        "below + above": ["it returns only its last output, which the new file does not say"]
    }


def test_a_masked_row_is_a_row_and_its_mask_is_noted(tmp_path: Path):
    source, out = tmp_path / "masked.keras", tmp_path / "out.keras"
    entrance = keras.Input((TIME,))
    steps = layers.Embedding(7, INPUTS, mask_zero=True, name="table")(entrance)
    made = keras.Model(entrance, lstm("above")(lstm("below")(steps)))
    made.save(source)
    stated = converted(source, "--to", "keras", "-o", out, "--verify")
    note = "its mask is given when the model runs, which the new file does not say"
    assert stated["notes"] == {"below": [note], "above": [note]}
    tokens = np.array([[1, 2, 3, 4, 5], [6, 5, 4, 3, 2]])  # none of them masked
    steps = keras.ops.convert_to_numpy(made.get_layer("table")(tokens))
    found = outputs_of(out, steps)
    assert_close(found, keras.ops.convert_to_numpy(made(tokens)), length=2 * TIME, width=INPUTS + HIDDEN)


def test_dropouts_that_are_called_twice_pass_on_what_each_call_gets(tmp_path: Path):
    def made(x: Any) -> Any:
        drop = layers.Dropout(0.5)
        return lstm("above")(drop(lstm("below")(drop(x))))

    modules = read(saved(tmp_path, made)).modules
    assert [(module.name, module.follows) for module in modules] == [
        ("below", "entrance"),
        ("above", "below"),
    ]


def test_verification_has_outputs_in_the_order_of_keras(tmp_path: Path):
    source, out = saved(tmp_path, lambda x: lstm("rnn", go_backwards=True)(x)), tmp_path / "out.keras"
    assert stepnet("convert", source, "--to", "keras", "-o", out, "--verify")[0] == 0
    assert np.array_equal(outputs_of(source, X), outputs_of(out, X))


def test_calls_of_keras_2_are_read_too():
    inner = {"class_name": "LSTM", "config": {"name": "rnn"}}
    entrance = {"class_name": "InputLayer", "name": "x", "config": {"name": "x"}, "inbound_nodes": []}
    calls = [[["x", 0, 0, {"training": True}]], [["rnn", 0, 0, {"mask": ["any", 0, 0]}], ["h", 0, 0, {}]]]
    node = {**inner, "name": "rnn", "inbound_nodes": calls}
    config = {"layers": [entrance, node], "input_layers": [["x", 0, 0]], "output_layers": [["rnn", 1, 0]]}
    use = layers_of({"class_name": "Functional", "config": config}, Store(None, 1 << 20))[-1].use
    assert (use.calls, use.more, use.besides, use.masked, use.training) == (2, True, ("h",), True, True)


def edited(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> Path:
    """A file with changed configurations of its model's layers, and the weights that it had."""
    new = path.with_name("edited.keras")
    with ZipFile(path) as old, ZipFile(new, "w") as made:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json":
                whole = json.loads(data)
                change([layer["config"] for layer in whole["config"]["layers"]])
                data = json.dumps(whole).encode()
            made.writestr(name, data)
    return new


@pytest.mark.parametrize("wrap", [lambda layer: layer, layers.Bidirectional], ids=["one way", "both"])
def test_an_input_of_other_features_than_the_weights_take(tmp_path: Path, wrap: Callable[[Any], Any]):
    path = saved(tmp_path, lambda x: wrap(lstm("inner"))(x))

    def widen(configs: list[dict[str, Any]]) -> None:
        configs[0]["batch_shape"] = [None, TIME, 7]

    for command in ("show", "explain"):
        said = refusal(command, edited(path, widen))
        assert "takes entrance, which has 7 features, as the configuration says, and has a kernel" in said


MERGED = {"one way": 3, "concat": 6, "sum": 3}


@pytest.mark.filterwarnings("ignore")  # .h5 is called legacy
@pytest.mark.parametrize("merge", MERGED)
def test_a_layer_of_other_features_than_the_layer_below_gives(tmp_path: Path, merge: str):
    def made(x: Any) -> Any:
        below = lstm("below")
        return lstm("above")((below if merge == "one way" else layers.Bidirectional(below, merge))(x))

    path = saved(tmp_path, made, ".h5")
    assert "above" in list(converted(path, "--to", "torch", "-o", tmp_path / "whole.npz")["modules"])[-1]
    with h5py.File(path, "r+") as file:
        names = list[str]()
        file.visit(names.append)
        (name,) = [name for name in names if "above" in name and name.endswith("cell/kernel")]
        array: Any = file[name]
        narrow = array[:2]
        del file[name]
        file[name] = narrow
    for command in ("show", "convert", "explain"):
        more = ("--to", "torch", "-o", tmp_path / "out.npz") if command == "convert" else ()
        said = refusal(command, path, *more)
        assert "'above' takes b" in said
        assert f"which has {MERGED[merge]} features, as the configuration says, and has a kernel" in said
    assert not (tmp_path / "out.npz").exists()


USED = {
    "called twice": (shared, "a plain stack would run shared as an ordinary layer, and it is called 2 times"),
    "over another": (
        lambda x: lstm("above")(layers.ReLU(name="relu")(lstm("below")(x))),
        "a plain stack would run above over the outputs of below; it takes relu instead",
    ),
    "turned": (
        lambda x: lstm("above")(lstm("below", go_backwards=True)(x)),
        "below returns its outputs last step first, and above takes them in this order, which a plain stack ",
    ),
}


@pytest.mark.parametrize("name", USED)
def test_a_refusal_of_recurrent_layers_alone_names_the_file_once(tmp_path: Path, name: str):
    made, words = USED[name]
    path = saved(tmp_path, made)
    said = refusal("explain", path, "--recurrent-only")
    assert said.startswith(f"{path}: {words}")
    assert said.count(path.name) == 1


@pytest.mark.filterwarnings("ignore")  # .h5 is called legacy
@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_a_model_whose_only_recurrent_layer_has_no_layout_is_refused_by_its_class(
    tmp_path: Path, ending: str
):
    entrance = keras.Input((TIME, 3, 3, 3, INPUTS))
    path = tmp_path / f"model{ending}"
    keras.Model(
        entrance, layers.ConvLSTM3D(2, 3, name="waves")(layers.Dense(3, name="dense")(entrance))
    ).save(path)
    no_layout = "no recurrent layer of a known layout is here: the file has dense (Dense), waves (ConvLSTM3D)"
    said = {"explain": "it has waves (ConvLSTM3D), which stepnet does not run", "show": no_layout}
    for command, words in said.items():
        assert refusal(command, path).startswith(f"{path}: {words}")


def test_a_layer_over_a_last_output_is_no_layer_of_a_stack(tmp_path: Path):
    path = saved(tmp_path, lambda x: lstm("upper")(lstm("lower")(x)))

    def last(configs: list[dict[str, Any]]) -> None:
        configs[1]["return_sequences"] = False

    with pytest.raises(LayoutError, match="lower returns only its last output"):
        sn.load(edited(path, last))


def test_directions_that_are_merged_in_an_unknown_way_are_not_written(tmp_path: Path):
    path = saved(tmp_path, lambda x: layers.Bidirectional(lstm("both"), "sum", name="around")(x))
    (module,) = read(path).modules
    out = tmp_path / "out.keras"
    with pytest.raises(
        FileError, match=f"^{out}: how 'around' merges the outputs of its directions is not known"
    ):
        write(out, (replace(module, merge=None),))
    assert not out.exists()
