"""Cells in all that Keras has around them, in every kind of file that Keras and TensorFlow save.

What is found computes what Keras did, and what the files do not tell is asked for.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import refusal, stepnet
from containers import unpacked
from saved_arrays import saved_arrays
from tolerance import assert_close
from turns import in_turns

from stepnet.errors import FileError, LayoutError
from stepnet.layout.files import FileContents, LayoutChoice, Module, read, weights
from stepnet.layout.files.account import check_merges

DATA = Path(__file__).parent / "data"
Array = np.ndarray[Any, np.dtype[Any]]
USUAL = {"activation": "tanh", "recurrent_activation": "sigmoid"}

# The files that say what their layers are, and those that have arrays by name alone, by version of Keras.
TOLD = [("2", "model.keras"), ("2", "model.h5"), ("2", "saved"), ("3", "model.keras"), ("3", "model.h5")]
ALONE = [
    *(("2", file) for file in ("weights.h5", "model.weights.h5", "checkpoint.index")),
    *(("3", file) for file in ("model.weights.h5", "saved", "exported", "checkpoint.index")),
]
keras_runs = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of what a version of Keras saved."""
    folder = tmp_path_factory.mktemp("cells")
    for version in "23":
        unpacked(DATA / f"keras_cells_{version}.tar.xz", folder / version)
    return lambda version: folder / version


def numbers(folder: Path) -> Mapping[str, Array]:
    return saved_arrays(folder / "outputs.npz")


def run(module: Module, x: Array) -> Array:
    """The results of stepnet for a module, each output at its own step unless the module reverses them."""
    found = weights(module).layers()(x)[0]
    return found[:, ::-1] if module.flipped else found


def in_a_row(modules: Iterable[Module], x: Array) -> Array:
    for module in modules:
        x = run(module, x)
    return x


def close(found: Array, wanted: Array) -> None:
    assert_close(found, wanted, length=15, width=8, dtype=np.float32)


# ---- files that say what their layers are


ROWS = {
    "rnn": ["runs"],
    "simple": ["runs"],
    "bare": ["gru"],
    "stack": ["stack/cells/0", "stack/cells/1", "stack/cells/2", "last"],
    "grus": ["grus/cells/0", "grus/cells/1"],
    "both": ["both"],
    "bothgru": ["both"],
    "mine": ["both"],
    "nested": ["inside/LSTM", "inside/gru", "both"],
}
CELLS = {
    "rnn": ["gru"],
    "simple": ["rnn"],
    "bare": ["gru_reset_before"],
    "stack": ["lstm", "gru_reset_before", "lstm", "gru"],
    "grus": ["gru", "gru"],
    "both": ["lstm"],
    "bothgru": ["gru"],
    "mine": ["lstm"],
    "nested": ["lstm", "gru", "gru"],
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("version", "file"), TOLD)
def test_layers_in_a_row_compute_what_keras_did(
    made: Callable[[str], Path], version: str, file: str, name: str
):
    folder = made(version)
    model, given = read(folder / name / file), numbers(folder)
    framework = "keras2" if version == "2" else "keras"
    assert [module.layout for module in model.modules] == [f"{framework}.{cell}" for cell in CELLS[name]]
    if name != "nested":
        assert [module.name for module in model.modules] == ROWS[name]
    names = [module.name for module in model.modules]
    assert [module.follows for module in model.modules[1:]] == names[:-1]
    found, wanted = in_a_row(model.modules, given[f"{name}:inputs"]), given[f"{name}:outputs"]
    close(found[:, 0] if name == "simple" else found, wanted)
    assert not model.rest
    dropped = ["(Dropout, which changes nothing in use)"] if name == "nested" else []
    assert [layer.partition(" ")[2] for layer in model.layers] == dropped


@keras_runs
@pytest.mark.long(every=len(TOLD))
@pytest.mark.parametrize(
    ("name", "told"), in_turns([name for name in ROWS if name != "simple"], TOLD), ids=str
)
def test_what_is_written_runs_in_keras(
    made: Callable[[str], Path], tmp_path: Path, told: tuple[str, str], name: str
):
    version, file = told
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras: Any = pytest.importorskip("keras")
    folder, out = made(version), tmp_path / "out.keras"
    code, text, errors = stepnet("convert", folder / name / file, "--to", "keras", "-o", out, "--verify")
    assert (code, errors) == (0, "")
    assert "assumed" not in text
    given = numbers(folder)
    found = keras.saving.load_model(out).predict(given[f"{name}:inputs"], verbose=0)
    close(found, given[f"{name}:outputs"])


@pytest.mark.parametrize(("version", "file"), TOLD)
def test_a_layer_in_a_timedistributed_is_no_ordinary_one(
    made: Callable[[str], Path], tmp_path: Path, version: str, file: str
):
    folder = made(version)
    source, given = folder / "timed" / file, numbers(folder)
    (module,) = read(source).modules
    assert module.name == "timed/lstm"
    x, wanted = given["timed:inputs"], given["timed:outputs"]
    found = run(module, x.reshape(-1, *x.shape[2:]))[:, -1]
    close(found.reshape(wanted.shape), wanted)
    said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "out.keras")
    assert (
        "would run timed/lstm as an ordinary layer, and it is run once for each step of timed (Time" in said
    )
    code, text, _ = stepnet("convert", source, "--to", "torch", "-o", tmp_path / "out.pt")
    assert code == 0
    assert "note: it is run once for each step of timed (TimeDistributed), which the new file does" in text
    assert "left: layers: timed (TimeDistributed)\n" in text


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", ["mixed", "stacks"])
@pytest.mark.parametrize(("version", "file"), TOLD)
def test_directions_that_differ_are_modules_of_their_own(
    made: Callable[[str], Path], tmp_path: Path, version: str, file: str, name: str
):
    folder = made(version)
    source, given = folder / name / file, numbers(folder)
    modules = read(source).modules
    ways = [[one for one in modules if one.name.startswith(f"both/{way}")] for way in ("forward", "backward")]
    assert [one.reverse for one in modules] == [False] * len(ways[0]) + [True] * len(ways[1])
    sides = [in_a_row(side, given[f"{name}:inputs"]) for side in ways]
    close(np.concatenate(sides, axis=-1), given[f"{name}:outputs"])
    said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "out.keras")
    assert "it is one direction of a Bidirectional, which merges both by concat" in said
    assert "ake one by itself, say --module NAME (Python: module=NAME)" in said


@pytest.mark.long(each=True)
@pytest.mark.parametrize("target", ["tf1", "openvino"])
@pytest.mark.parametrize("name", ["grus", "mixed", "stacks"])
def test_cells_and_directions_of_their_own_stay_so_in_files_of_arrays(
    made: Callable[[str], Path], tmp_path: Path, name: str, target: str
):
    """stack/cells/0 and both/forward are no layer and no direction of something."""
    source, out = made("3") / name / "model.keras", tmp_path / "out.npz"
    assert stepnet("convert", source, "--to", target, "-o", out, "--verify")[0] == 0
    names = {module.name.strip("/") for module in read(out, target).modules}
    assert names == NAMED[name]


NAMED = {
    "grus": {"grus/cells_0", "grus/cells_1"},
    "mixed": {"both/forward_layer", "both/backward_layer"},
    "stacks": {f"both/{way}/cells_{place}" for way in ("forward", "backward") for place in (0, 1)},
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("version", "file"), [*TOLD, *ALONE])
def test_layers_of_the_programs_own_hold_layers(made: Callable[[str], Path], version: str, file: str):
    folder = made(version)
    model, given = read(folder / "custom" / file), numbers(folder)
    assert len(model.modules) == 2
    close(run(read_of(model, "lstm"), given["custom:inputs"]), given["custom:first"])
    both = read_of(model, "gru")
    told = (version, file) == ("2", "saved")
    assert both.merge == ("sum" if told else None)
    close(run(replace(both, merge="sum"), given["custom:first"]), given["custom:both"])
    assert {array.ndim for name, array in model.rest.items() if "seed" not in name} == {1, 2}  # of the head


def read_of(model: FileContents, cell: str) -> Module:
    """The module of a cell, its activations the usual ones where the file does not say."""
    (module,) = (one for one in model.modules if one.layouts[0].endswith(cell))
    known = {"gate_activation": "sigmoid", "candidate_activation": "tanh"}
    known |= {"output_activation": "tanh"} if cell == "lstm" else {}
    return replace(module, semantics={**known, **module.semantics})


@pytest.mark.parametrize(("version", "file"), TOLD)
def test_a_cell_of_the_programs_own_is_asked_for(
    made: Callable[[str], Path], tmp_path: Path, version: str, file: str
):
    """Its arrays look as those of a SimpleRNNCell do, and it computes a sine."""
    source = made(version) / "foreign" / file
    model = read(source)
    assert model.modules == ()
    assert len(model.rest) == 2
    said = "runs/Mine>Minimal: say --from runs=LAYOUT (Python: layouts={'runs': 'LAYOUT'}) where it computes"
    assert any(one.startswith(said) for one in model.layers)
    framework = "keras2" if version == "2" else "keras"
    code, text, _ = stepnet(
        "convert", source, "--from", f"runs={framework}.rnn", "--to", "torch", "-o", tmp_path / "out.pt"
    )
    assert code == 0
    assert f"note: it is a Mine>Minimal, taken for {framework}.rnn by its arrays' names" in text


# ---- files that have arrays alone


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("alone", "name"), in_turns(ALONE, ["both", "bothgru"]), ids=str)
def test_how_two_directions_are_merged_is_asked_for(
    made: Callable[[str], Path], tmp_path: Path, alone: tuple[str, str], name: str
):
    version, file = alone
    folder = made(version)
    source, given, out = folder / name / file, numbers(folder), tmp_path / "out.keras"
    (module,) = read(source).modules
    assert module.merge is None
    gates = ("--semantics", "recurrent_activation=sigmoid")
    said = refusal("convert", source, "--to", "keras", "-o", out, *gates)
    assert "the file does not say how their outputs are merged: say --semantics merge=VALUE" in said
    merge = "product" if name == "both" else "average"
    code, text, errors = stepnet(
        "convert", source, "--to", "keras", "-o", out, *gates, "--semantics", f"merge={merge}", "--verify"
    )
    assert (code, errors) == (0, "")
    assert "assumed as usual: activation='tanh' (--semantics, or semantics=, says otherwise)" in text
    (written,) = read(out).modules
    x, wanted = given[f"{name}:inputs"], given[f"{name}:outputs"]
    found = run(written, x)
    close(found[:, -1] if wanted.ndim == 2 else found, wanted)


@pytest.mark.parametrize(("version", "file"), ALONE)
def test_a_cell_alone_has_usual_activations_and_the_report_says_so(
    made: Callable[[str], Path], tmp_path: Path, version: str, file: str
):
    folder = made(version)
    source, given, out = folder / "rnn" / file, numbers(folder), tmp_path / "out.keras"
    options = ("--semantics", "activation=relu", "--semantics", "recurrent_activation=sigmoid")
    code, text, _ = stepnet("convert", source, "--to", "keras", "-o", out, *options)
    assert (code, "assumed" in text) == (0, False)
    close(run(read(out).modules[0], given["rnn:inputs"]), given["rnn:outputs"])
    code, text, _ = stepnet("convert", source, "--to", "keras", "-o", out, *options[2:], "--json", "--force")
    (report,) = json.loads(text)["modules"].values()
    assert (code, report["assumed"]) == (0, {"activation": "tanh"})


@pytest.mark.parametrize(
    ("version", "file"), [("2", "checkpoint.index"), ("2", "weights.h5"), ("3", "saved")]
)
def test_the_cells_of_a_stack_have_their_order(made: Callable[[str], Path], version: str, file: str):
    folder = made(version)
    given = numbers(folder)
    modules = read(folder / "grus" / file).modules
    assert [module.name.rpartition("/cells/")[2] for module in modules] == ["0", "1"]
    known = {"gate_activation": "sigmoid"}
    found = in_a_row((replace(one, semantics=known) for one in modules), given["grus:inputs"])
    close(found, given["grus:outputs"])
    assert modules[1].follows == modules[0].name


# ---- what cannot be


def spoilt(source: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a .h5 file whose configuration of its first layer is another."""
    path.write_bytes(source.read_bytes())
    with h5py.File(path, "r+") as file:
        text: Any = file.attrs["model_config"]
        config = json.loads(text)
        change(next(one for one in config["config"]["layers"] if one["class_name"] == "RNN"))
        del file.attrs["model_config"]
        file.attrs["model_config"] = json.dumps(config)
    return path


def cells(value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda layer: layer["config"]["cell"]["config"].update(cells=value)


def longer(layer: dict[str, Any]) -> None:
    held = layer["config"]["cell"]["config"]["cells"]
    held.append(held[0])


def deep(layer: dict[str, Any]) -> None:
    for _ in range(40):
        inner = dict(layer["config"])
        layer["config"] = {"name": "stack", "cell": {"class_name": "RNN", "config": inner}}


CONTRADICTIONS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "more cells": (
        longer,
        "'stack': its configuration has 4 cells (cells/0 (LSTMCell), cells/1 (GRUCell), cells/2 (L",
    ),
    "deep": (deep, "'stack': its configuration has layers in layers more than 30 deep"),
    "units": (
        lambda layer: layer["config"]["cell"]["config"]["cells"][0]["config"].update(units=7),
        "'stack/cells/0' has 7 units, as its configuration says, and a recurrent_kernel of shape (3, 12)",
    ),
    "bias": (
        lambda layer: layer["config"]["cell"]["config"]["cells"][2]["config"].update(use_bias=False),
        "'stack/cells/2' has no bias, and the file has one: its configuration says so",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("version", ["2", "3"])
def test_configurations_that_contradict_the_weights(
    made: Callable[[str], Path], tmp_path: Path, version: str, name: str
):
    change, problem = CONTRADICTIONS[name]
    folder = made(version)

    path = spoilt(folder / "stack" / "model.h5", tmp_path / "spoilt.h5", change)
    with pytest.raises(FileError) as caught:
        read(path)
    assert problem in str(caught.value)


@pytest.mark.parametrize("value", [[], None, 3, "cells", {}, [None], [[[]]], {"class_name": 3}])
def test_cells_that_are_no_cells(made: Callable[[str], Path], tmp_path: Path, value: Any):
    """They are as if nothing was told: arrays are found by their names or not at all, and nothing is lost."""
    path = spoilt(made("3") / "grus" / "model.h5", tmp_path / "spoilt.h5", cells(value))
    try:
        model = read(path)
    except FileError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    else:
        taken = {name for module in model.modules for name in module.names.values()}
        assert len(taken) + len(model.rest) == 6


def test_a_million_cells(made: Callable[[str], Path], tmp_path: Path):
    cell = {"class_name": "GRUCell", "config": {}}
    path = spoilt(made("3") / "grus" / "model.h5", tmp_path / "spoilt.h5", cells([cell] * 100_000))
    with pytest.raises(FileError, match=r"would fill more than|its configuration has"):
        read(path)


def test_a_merge_that_nobody_says_is_refused(made: Callable[[str], Path]):
    model = read(made("3") / "both" / "model.weights.h5")
    with pytest.raises(LayoutError, match="both runs in both directions"):
        check_merges(model.modules)
    (module,) = LayoutChoice(semantics={"merge": "sum"}).modules(model)
    assert module.merge == "sum"
