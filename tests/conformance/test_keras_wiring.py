"""A Keras file runs as Keras runs it, or is refused by name: wiring, classes, dtypes, settings, damage.

Each model is made by Keras, saved as .keras and .h5, and loaded by Keras again: what stepnet computes from
the file is compared with that, where stepnet accepts the file.
"""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from tolerance import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
import h5py
import keras
from command_line import refusal

import stepnet as sn
from stepnet import arrow
from stepnet.errors import FileError, LayoutError, ModelError
from stepnet.model.file import read_model

layers = keras.layers
INPUTS, HIDDEN, TIME = 3, 4, 6
X = np.random.default_rng(0).normal(size=(1, TIME, INPUTS)).astype("float32")
ENDINGS = (".keras", ".h5")
pytestmark = pytest.mark.filterwarnings("ignore")  # .h5 is called legacy
registered = keras.saving.register_keras_serializable("my")


def entrance(width: int = INPUTS, **options: Any) -> Any:
    return keras.Input((None, width), **options)


def gru(name: str, **options: Any) -> Any:
    return layers.GRU(HIDDEN, name=name, **{"return_sequences": True, **options})


def lstm(name: str, **options: Any) -> Any:
    return layers.LSTM(HIDDEN, name=name, **{"return_sequences": True, **options})


def model(made: Callable[[Any], Any], width: int = INPUTS, kind: Any = keras.Model, **options: Any) -> Any:
    """The functional model that is made of an input."""
    x = entrance(width)
    return kind(inputs=x, outputs=made(x), **options)


def row(*made: Any) -> Any:
    return keras.Sequential([entrance(), *made])


def saved(made: Any, path: Path) -> Path:
    """A file of a model with random weights."""
    rng = np.random.default_rng(1)
    made.set_weights([rng.normal(0, 0.5, array.shape).astype(array.dtype) for array in made.get_weights()])
    made.save(path)
    return path


def found_in(path: Path) -> np.ndarray:
    """The results of stepnet for a file."""
    table = pa.table({"x": pa.array(X.tolist(), pa.list_(pa.list_(pa.float32())))})
    batches = arrow.predict(table, path, column="x", result="outputs").read_all()
    return np.array(batches["outputs"].to_pylist(), "float32")


def wanted_of(path: Path) -> np.ndarray:
    """The results of Keras for a file."""
    loaded: Any = keras.models.load_model(path, compile=False)
    return loaded.predict(X, verbose=0)


def both_outputs(x: Any) -> Any:
    lower = gru("lower")(x)
    return [lower, gru("upper")(lower)]


def by_name(x: Any) -> Any:
    lower, upper = both_outputs(x)
    return {"b": lower, "a": upper}  # Keras numbers them by their sorted names: a is 0, b is 1


def two_inputs(key: str) -> Any:
    """A model of two inputs, of which it uses one."""
    inputs = {name: entrance(HIDDEN, name=name) for name in "ba"}
    return keras.Model(inputs, gru("top")(inputs[key]), name="inner")


def fed(key: str, twisted: bool) -> Any:
    """A row of `low`, `middle` and `top`, or of `low` and `top` alone, by what is given for `key`."""
    low, middle = gru("low"), gru("middle")

    def made(x: Any) -> Any:
        below = low(x)
        first, second = (below, middle(below)) if twisted else (middle(below), below)
        return two_inputs(key)({"a": first, "b": second})

    return model(made)


def deep(inner: Any, depth: int) -> Any:
    if not depth:
        return inner
    around = model(lambda x: layers.Dropout(0.5)(inner(layers.Identity()(x))), name=f"depth_{depth}")
    return deep(around, depth - 1)


def through_identity(layer: Any, place: int, passing: Any = layers.Identity) -> Any:
    return model(lambda x: passing()(layer(x)[place]))


WHOLE: dict[str, Callable[[], Any]] = {
    "an inner model": lambda: model(model(lambda x: gru("lower")(x))),
    "the last of an inner model's outputs": lambda: model(lambda x: model(both_outputs)(x)[1]),
    "the last, by name": lambda: model(lambda x: model(by_name)(x)["a"]),
    "an inner model's input among its outputs": lambda: model(
        lambda x: gru("upper")(model(lambda x: [gru("lower")(x), x])(x)[0])
    ),
    "models in models": lambda: deep(
        model(lambda x: gru("upper")(layers.GaussianNoise(0.1)(gru("lower")(x)))), 3
    ),
    "inputs by name": lambda: fed("a", twisted=False),
    "inputs by name, the other one": lambda: fed("b", twisted=True),
    "outputs after a state is dropped": lambda: model(
        lambda x: layers.Identity()(lstm("l", return_state=True)(x))[0]
    ),
    "a Sequential's outputs, not its states": lambda: model(lambda x: row(gru("g", return_state=True))(x)[0]),
    "an Identity of several": lambda: model(lambda x: layers.Identity()(both_outputs(x))[1]),
    "a last output": lambda: row(gru("lower"), layers.Identity(), layers.Bidirectional(layers.GRU(2))),
    "inputs by keyword": lambda: model(lambda x: gru("upper")(sequences=model(gru("lower"))(inputs=x))),
    "one output in a table": lambda: model(lambda x: {"only": gru("lower")(x)}),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_row_of_layers_is_run_however_it_is_wired(tmp_path: Path, name: str, ending: str):
    path = saved(WHOLE[name](), tmp_path / f"model{ending}")
    wanted: Any = wanted_of(path)
    assert_close(
        found_in(path), wanted["only"] if isinstance(wanted, dict) else wanted, 3 * TIME, INPUTS + HIDDEN
    )


@registered
class Double(keras.Model):
    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return super().call(inputs) * 2


@registered
class DoubleRow(keras.Sequential):
    def call(self, inputs: Any, training: Any = None, mask: Any = None, **others: Any) -> Any:
        return super().call(inputs) * 2


@registered
class RNN(layers.RNN):
    def call(
        self, sequences: Any, initial_state: Any = None, mask: Any = None, training: bool = False
    ) -> Any:
        return super().call(sequences) * 2  # type: ignore[operator]


@registered
class Bidirectional(layers.Bidirectional):
    def call(self, sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = None) -> Any:
        return super().call(sequences) * 2  # type: ignore[operator]


@registered
class TimeDistributed(layers.Wrapper):
    def call(self, x: Any) -> Any:
        return self.layer(x) * 2


@registered
class Dropout(layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2


@registered
class Identity(layers.Layer):
    def call(self, x: Any) -> Any:
        return keras.ops.flip(x, 1)


@registered
class SpatialDropout1D(Dropout):
    pass


LOST = "no output of its model is computed from it"
STATES = "its outputs are not outputs of its model"
AROUND = "it has "
TWO = "it gives one of its model's 2 outputs"
MIXED = {"dtype": "mixed_bfloat16"}

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an inner model's first output": (
        lambda: model(lambda x: model(both_outputs, name="in")(x)[0]),
        f"in/upper: {LOST}",
    ),
    "the first, by name": (lambda: model(lambda x: model(by_name, name="in")(x)["b"]), f"in/upper: {LOST}"),
    "an Identity of several, the first": (
        lambda: model(lambda x: layers.Identity()(both_outputs(x))[0]),
        f"upper: {LOST}",
    ),
    "inputs by name": (lambda: fed("b", twisted=False), f"middle: {LOST}"),
    "inputs by name, the other one": (lambda: fed("a", twisted=True), f"middle: {LOST}"),
    "c through Identity": (
        lambda: through_identity(lstm("l", return_state=True, return_sequences=False), 2),
        f"l: {STATES}",
    ),
    "c through Dropout": (
        lambda: through_identity(lstm("l", return_state=True), 2, lambda: layers.Dropout(0.5)),
        f"l: {STATES}",
    ),
    "a state through noise": (
        lambda: through_identity(gru("g", return_state=True), 1, lambda: layers.GaussianNoise(0.5)),
        f"g: {STATES}",
    ),
    "a state of both directions": (
        lambda: through_identity(layers.Bidirectional(gru("g", return_state=True), name="both"), 1),
        f"both: {STATES}",
    ),
    "a state of stacked cells": (
        lambda: through_identity(
            layers.RNN([layers.GRUCell(4), layers.GRUCell(4)], return_state=True, name="r"), 1
        ),
        f"r/cells/1: {STATES}",
    ),
    "a state among a nested model's outputs": (
        lambda: model(lambda x: model(lambda x: gru("g", return_state=True)(x), name="in")(x)[1]),
        f"in/g: {STATES}",
    ),
    "c as a nested model's output": (
        lambda: model(model(lambda x: lstm("l", return_state=True, return_sequences=False)(x)[2], name="in")),
        f"in/l: {STATES}",
    ),
    "a nested Sequential's state": (
        lambda: model(
            lambda x: layers.Identity()(
                keras.Sequential([entrance(), gru("g", return_state=True)], name="in")(x)[1]
            )
        ),
        f"in/g: {STATES}",
    ),
    "a model of a class of the user's": (
        lambda: model(model(lambda x: gru("g")(x), kind=Double, name="inner")),
        f"{AROUND}inner (my>Double), which stepnet does not run;",
    ),
    "a model of that class without layers": (
        lambda: model(lambda x: gru("g")(model(lambda x: x, kind=Double, name="inner")(x))),
        f"{AROUND}inner (my>Double), which stepnet does not run;",
    ),
    "a Sequential of a class of the user's": (
        lambda: row(DoubleRow([gru("g")], name="inner")),
        f"{AROUND}inner (my>DoubleRow), which stepnet does not run;",
    ),
    "an RNN of the user's": (
        lambda: row(RNN(layers.GRUCell(4), return_sequences=True, name="r")),
        f"{AROUND}r (my>RNN), which stepnet does not run;",
    ),
    "a Bidirectional of the user's": (
        lambda: row(Bidirectional(gru("g"), name="b")),
        f"{AROUND}b (my>Bidirectional), which stepnet does not run;",
    ),
    "a Bidirectional around an RNN of the user's": (
        lambda: row(layers.Bidirectional(RNN(layers.GRUCell(4), return_sequences=True), name="b")),
        "not only recurrent layers: it has b/forward (my>RNN), b/backward (my>RNN);",
    ),
    "a TimeDistributed of the user's": (
        lambda: row(TimeDistributed(gru("g"), name="t")),
        f"{AROUND}t (my>TimeDistributed), which stepnet does not run;",
    ),
    "a Dropout of the user's": (
        lambda: row(Dropout(name="d"), gru("g")),
        f"{AROUND}d (my>Dropout), which stepnet does not run;",
    ),
    "an Identity of the user's": (
        lambda: row(Identity(name="d"), gru("g")),
        f"{AROUND}d (my>Identity), which stepnet does not run;",
    ),
    "a SpatialDropout1D of the user's": (
        lambda: row(SpatialDropout1D(name="d"), gru("g")),
        f"{AROUND}d (my>SpatialDropout1D), which stepnet does not run;",
    ),
    "mixed numbers": (
        lambda: row(gru("g", **MIXED)),
        "g: it computes in the dtypes of the policy mixed_bfloat16",
    ),
    "half numbers": (
        lambda: row(lstm("l", dtype="mixed_float16")),
        "l: it computes in the dtypes of the policy mixed_float16",
    ),
    "mixed numbers of a wrapper": (
        lambda: row(layers.Bidirectional(gru("g"), name="b", **MIXED)),
        "b: it computes in the dtypes of the policy mixed_bfloat16",
    ),
    "mixed numbers of a Dropout": (
        lambda: row(layers.Dropout(0.5, name="d", **MIXED), gru("g")),
        f"{AROUND}d (Dropout, dtype mixed_bfloat16), which stepnet does not run;",
    ),
    "an input of half numbers": (
        lambda: keras.Sequential([entrance(dtype="bfloat16", name="x"), gru("g")]),
        f"{AROUND}x (InputLayer, dtype bfloat16), which stepnet does not run;",
    ),
    "an output twice": (lambda: model(lambda x: [(y := gru("g")(x)), y]), f"g: {TWO}"),
    "an output twice, once through Identity": (
        lambda: model(lambda x: [(y := gru("g")(x)), layers.Identity()(y)]),
        f"g: {TWO}",
    ),
    "a Sequential's outputs and states": (
        lambda: row(gru("g", return_state=True)),
        "g: its final states are outputs of the model",
    ),
}

SEVERAL = ("an Identity of several, the first", "inputs by name", "inputs by name, the other one")
"""The models that the graph refuses too: they call a layer on several tensors, or have inputs by name."""
READ = [
    name
    for name, (_, words) in REFUSED.items()
    if any(text in words for text in (LOST, STATES, TWO, "its final states")) and name not in SEVERAL
]
"""The models that are no stack, and are read whole."""


@pytest.mark.long(each=True)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", READ)
def test_what_is_no_stack_is_read_whole(tmp_path: Path, name: str, ending: str):
    made = REFUSED[name][0]()
    found: Any = cast(Any, sn.load(saved(made, tmp_path / f"model{ending}")))(X)
    right: Any = made.predict(X, verbose=0)
    pairs = zip(found.values(), right, strict=True) if isinstance(found, dict) else [(found, right)]
    for own, theirs in pairs:
        assert_close(own, theirs, TIME, INPUTS + HIDDEN)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", [name for name in REFUSED if name not in READ])
def test_what_is_no_row_is_refused_by_name(tmp_path: Path, name: str, ending: str):
    made, words = REFUSED[name]
    path = saved(made(), tmp_path / f"model{ending}")
    with pytest.raises(LayoutError) as raised:
        sn.load(path)
    assert words in str(raised.value)


def test_a_class_that_is_not_registered_is_not_keras_own(tmp_path: Path):
    class Dropout(layers.Dropout):
        __module__ = "__main__"  # which Keras does not write

    path = saved(row(gru("g"), Dropout(0.5, name="d")), tmp_path / "model.keras")
    with pytest.raises(LayoutError, match=r"it has d \(unregistered>Dropout\)"):
        sn.load(path)


def test_a_model_of_two_inputs_of_which_one_is_not_read(tmp_path: Path):
    first, second = entrance(name="first"), entrance(name="second")
    made: Any = keras.Model([first, second], gru("g")(first))
    graph: Any = sn.load(saved(made, tmp_path / "model.keras"))
    assert_close(graph({"first": X, "second": X}), made.predict([X, X], verbose=0), TIME, INPUTS + HIDDEN)


def test_recurrent_layers_alone_say_that_keras_rounds(tmp_path: Path):
    path = saved(row(gru("g", **MIXED)), tmp_path / "model.keras")
    notes = read_model(path, recurrent_only=True).notes["g"]
    assert notes == ("it computes in the dtypes of the policy mixed_bfloat16",)


# ---- configurations that were changed by hand --------------------------------------------------------------


def edited(path: Path, change: Callable[[list[Any]], object]) -> Path:
    """A copy of a .keras file in which the layers of the configuration are changed."""
    with zipfile.ZipFile(path) as source:
        members = {name: source.read(name) for name in source.namelist()}
    config = json.loads(members["config.json"])
    change(config["config"]["layers"])
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(target := path.with_name("edited.keras"), "w") as out:
        for name, data in members.items():
            out.writestr(name, data)
    return target


def setting(**values: Any) -> Callable[[list[Any]], object]:
    return lambda nodes: nodes[1]["config"].update(values)


def left_out(name: str) -> Callable[[list[Any]], object]:
    return lambda nodes: nodes[1]["config"].pop(name)


BIAS = r"reset_after={} .*, and a bias of shape \({}\)"
FOREIGN = "say --from g=LAYOUT"
WRONG: dict[str, tuple[dict[str, Any], Callable[[list[Any]], object], str]] = {
    "reset_after=False": ({}, setting(reset_after=False), BIAS.format(False, "2, 12")),
    "reset_after=True": ({"reset_after": False}, setting(reset_after=True), BIAS.format(True, "12,")),
    "no reset_after": ({"reset_after": False}, left_out("reset_after"), BIAS.format(True, "12,")),
    "no units": ({}, left_out("units"), "'g' has units=None in its configuration"),
    "units in a text": ({}, setting(units="4"), "'g' has units='4' in its configuration"),
    "a layer twice": ({}, lambda nodes: nodes.append(nodes[1]), "two layers called 'g'"),
    "a module": ({}, lambda nodes: nodes[1].update(module="mypkg"), f"mypkg>GRU: {FOREIGN}"),
    "a name": ({}, lambda nodes: nodes[1].update(registered_name="my>GRU"), f"my>GRU: {FOREIGN}"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_keras_refuses_does_not_run(tmp_path: Path, name: str):
    options, change, words = WRONG[name]
    path = edited(saved(row(gru("g", **options)), tmp_path / "model.keras"), change)
    with pytest.raises((ValueError, TypeError, KeyError)):
        keras.models.load_model(path, compile=False)
    with pytest.raises((FileError, LayoutError), match=words):
        sn.load(path)


@pytest.mark.parametrize("name", ["reset_after=False", "reset_after=True", "no units", "a layer twice"])
def test_a_file_that_contradicts_itself_is_not_converted(tmp_path: Path, name: str):
    options, change, words = WRONG[name]
    path = edited(saved(row(gru("g", **options)), tmp_path / "model.keras"), change)
    said = refusal("convert", path, "--to", "torch", "-o", tmp_path / "out.npz")
    assert words.partition(" .*")[0] in said


def test_directions_that_give_different_things_are_not_joined(tmp_path: Path):
    source = saved(row(layers.Bidirectional(gru("g"), name="both")), tmp_path / "model.keras")
    path = edited(source, lambda nodes: nodes[1]["config"]["layer"]["config"].update(return_sequences=False))
    with pytest.raises(ModelError, match=r"(?s)of both directions do not fit.*at both \(Bidirectional\)"):
        sn.load(path)


@pytest.mark.parametrize("name", ["return_sequences", "go_backwards", "reset_after", "use_bias"])
def test_a_setting_that_is_left_out_has_the_value_of_keras(tmp_path: Path, name: str):
    path = edited(saved(row(gru("g")), tmp_path / "model.keras"), left_out(name))
    assert_close(found_in(path), wanted_of(path), TIME, INPUTS + HIDDEN)


def test_one_counts_as_true(tmp_path: Path):
    made = keras.Sequential([keras.Input(batch_shape=(1, None, INPUTS)), gru("g", stateful=True)])
    path = edited(saved(made, tmp_path / "model.keras"), setting(stateful=1))
    assert "it keeps its state from one call to the next" in read_model(path).notes["g"][0]


def test_zero_counts_as_false(tmp_path: Path):
    path = edited(saved(row(gru("g")), tmp_path / "model.keras"), setting(return_sequences=0))
    assert_close(found_in(path), wanted_of(path), TIME, INPUTS + HIDDEN)


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("recurrent_only", [False, True])
def test_a_damaged_direction_is_named(tmp_path: Path, way: str, recurrent_only: bool):
    path = saved(row(layers.Bidirectional(gru("g"), name="both")), tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        names = list[str]()
        file.visit(names.append)
        (name,) = [name for name in names if f"{way}_g/" in name and name.endswith("cell/kernel")]
        array: Any = file[name]
        wide = np.concatenate([array[()], array[()]], -1)
        del file[name]
        file[name] = wide
    with pytest.raises(LayoutError, match=f"both/{way}: recurrent_kernel has shape") as raised:
        sn.load(path, recurrent_only=recurrent_only)
    assert "not only recurrent layers" not in str(raised.value)
