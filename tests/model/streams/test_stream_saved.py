"""Streams in files: what a file has, and what is said of files that do not fit."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from same_bits import assert_same_bits
from zoo import uniform

import stepnet as sn
from stepnet import cells
from stepnet.errors import FileError, InputError
from stepnet.layout.files import safetensors

Array = np.ndarray
RANDOM = np.random.default_rng(2)


numbers = partial(uniform, seed=RANDOM)


def step(x: Any, memory: Any, p: Any, statics: Any, index: Any) -> tuple[Any, Any]:
    h = np.tanh(memory["h"] @ p + x["a"] + x["b"] + statics[0])
    return {"h": h, "index": index}, {"h": h, "count": memory["count"] + 1}


def other_step(x: Any, memory: Any, p: Any, statics: Any, index: Any) -> tuple[Any, Any]:
    h = np.tanh(memory["h"] @ p - x["a"] + x["b"] + statics[0])
    return {"h": h, "index": index}, {"h": h, "count": memory["count"] + 1}


PARAMS = numbers(3, 3)
MEMORY = {"h": 3, "count": sn.Spec((), "int64")}
INITIAL = {"h": numbers(4, 3), "count": np.arange(4)}
STATICS = (numbers(4, 3),)


def rnn_of(step: Any = step, params: Array = PARAMS, **options: Any) -> sn.RNN:
    return sn.RNN(step, params, memory=MEMORY, **options)


def inputs(rows: int) -> dict[str, Array]:
    return {"a": numbers(rows, 3), "b": numbers(rows, 3)}


def stepped(rnn: sn.RNN) -> Any:
    stream = rnn.stream(4, INITIAL, STATICS, begun=[7, 0, 1, 2])
    stream.step(inputs(4))
    stream.step(inputs(2), rows=[3, 1])
    return stream


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of a stream."""
    path = tmp_path / "users.safetensors"
    stepped(rnn_of()).save(path)
    return path


def test_what_a_file_has(path: Path):
    arrays, metadata = safetensors.read_described(path)
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "memory.h": ("float32", (4, 3)),
        "memory.count": ("int64", (4,)),
        "first.h": ("float32", (4, 3)),
        "first.count": ("int64", (4,)),
        "statics.0": ("float32", (4, 3)),
        "begun": ("int64", (4,)),
    }
    assert arrays["begun"].tolist() == [8, 2, 2, 4]
    assert arrays["memory.count"].tolist() == [1, 3, 3, 5]
    assert metadata["format"] == "stepnet.stream"


def test_a_restored_stream_goes_on_with_the_same_bits(path: Path):
    """In a recurrence that was never called, as in another process, and in one that runs."""
    kept = stepped(rnn_of())
    kept.save(path, force=True)
    own = sn.Spec(3, "float32")
    for options in ({}, {"inputs": {"a": own, "b": own}, "statics": (own,)}):
        restored = rnn_of(**options).stream(rows=0)
        assert restored.load(path).tolist() == [0, 1, 2, 3]
        assert_same_bits(restored.state, kept.state)
        x = inputs(4)
        state = kept.state
        right = {"h": np.tanh(state["h"] @ PARAMS + x["a"] + x["b"] + STATICS[0]), "index": [8, 2, 2, 4]}
        made = restored.step(x)
        np.testing.assert_allclose(made["h"], right["h"], atol=1e-6)
        assert made["index"].tolist() == right["index"]
        restored.reset([2])
        assert_same_bits({"h": restored.state["h"][2]}, {"h": INITIAL["h"][2]})


def test_some_rows_are_parked_and_come_back(path: Path):
    stream = stepped(rnn_of())
    state, x = stream.state, inputs(4)
    stream.save(path, rows=[2, 0], force=True)
    stream.drop([0, 2])
    assert stream.load(path).tolist() == [2, 3]
    assert_same_bits(stream.state, {name: array[[1, 3, 2, 0]] for name, array in state.items()})
    order = [1, 3, 2, 0]
    outputs = stream.step({name: array[order] for name, array in x.items()})
    right, _ = rnn_of()(
        {name: array[order, None] for name, array in x.items()},
        {name: array[order] for name, array in state.items()},
        tuple(array[order] for array in STATICS),
        begun=[2, 4, 2, 8],
    )
    assert_same_bits(outputs, {name: array[:, 0] for name, array in right.items()})


def test_layers_and_sequences_by_name(tmp_path: Path):
    def over(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        h = np.tanh(h + x + sn.reduce(statics["keys"], "sum"))
        return h, h

    gru = cells.rnn("gru", cells.CELLS["gru"].parameters(3, 3))
    stack = sn.Stack([gru, sn.Stack([sn.RNN(over, memory=3)])])
    keys = sn.Ragged.from_list([numbers(2, 3), numbers(0, 3)])
    stream = stack.stream(2, statics=(None, ({"keys": keys},)))
    stream.step(numbers(2, 3))
    stream.save(tmp_path / "a.safetensors")
    arrays = safetensors.read(tmp_path / "a.safetensors")
    assert set(arrays) == {
        "begun",
        "layer.0.memory",
        "layer.1.layer.0.memory",
        "layer.1.layer.0.statics.keys.values",
        "layer.1.layer.0.statics.keys.offsets",
    }
    assert arrays["layer.1.layer.0.statics.keys.offsets"].tolist() == [0, 2, 2]


def test_names_that_meet_get_a_number(tmp_path: Path):
    def two(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        return x, {"a.b": memory["a"]["b"] + x, "a": {"b": memory["a.b"]}}

    rnn = sn.RNN(two, memory={"a.b": 3, "a": {"b": 3}})
    stream = rnn.stream(1)
    for _ in range(3):
        stream.step(numbers(1, 3))
    stream.save(tmp_path / "a.safetensors")
    assert {"memory.a.b", "memory.a.b#1"} < set(safetensors.read(tmp_path / "a.safetensors"))
    other = rnn.stream(0)
    other.load(tmp_path / "a.safetensors")
    assert_same_bits(other.state, stream.state)


# ---- files that do not fit ---------------------------------------------------------------------------------


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Writes a file anew. change: of its arrays, and of its metadata with the layers as objects."""
    arrays, metadata = safetensors.read_described(path)
    described: dict[str, Any] = {**metadata, "layers": json.loads(metadata["layers"])["layers"]}
    change(arrays, described)
    if not isinstance(described.get("layers"), str | None):
        described["layers"] = json.dumps({"layers": described["layers"]})
    safetensors.write(path, arrays, True, {name: own for name, own in described.items() if own is not None})


def set_layer(**fields: Any) -> Any:
    return lambda arrays, metadata: metadata["layers"][0].update(fields)


def set_array(name: str, array: Any) -> Any:
    def change(arrays: dict[str, Any], metadata: dict[str, Any]) -> None:
        arrays[name] = array
        if array is None:
            del arrays[name]

    return change


DEEP: Any = None
for _ in range(200):
    DEEP = {"tuple": [DEEP]}
LEAF = {"shape": [3], "dtype": "float32", "levels": 0, "axis": ""}
DAMAGED: list[tuple[Any, str]] = [
    (
        lambda a, m: m.update(format=None),
        "this is not a saved stream: .* no format 'stepnet.stream'",
    ),
    (lambda a, m: m.update(version="2"), "it is of version '2' of saved streams, .* reads version 1"),
    (lambda a, m: m.update(layers=None), "its description is no JSON"),
    (lambda a, m: m.update(layers="[1]"), "its description is no JSON object"),
    (lambda a, m: m.update(layers="{}"), "its description has no list of layers"),
    (lambda a, m: m.update(layers=[1]), "its description has no list of layers"),
    (lambda a, m: m["layers"].append({}), "it has the state of 2 recurrences, and this stream runs 1"),
    (
        set_layer(parameters="0"),
        "it was saved with other parameters .digest '0', here",
    ),
    (
        set_layer(step="0"),
        "it was saved from another step .digest '0', here",
    ),
    (set_layer(inputs=3), "its inputs are described by '3', which is no description"),
    (set_layer(inputs={**LEAF, "dtype": "nonsense"}), "its inputs are none: "),
    (set_layer(inputs={**LEAF, "shape": ["x"]}), "its inputs are none: "),
    (
        set_layer(inputs={"shape": [2**40], "dtype": "float32", "levels": 0, "axis": ""}),
        "its inputs are none: ",
    ),
    (set_layer(inputs={"dict": [1]}), "its inputs have an entry that is no name and value"),
    (
        set_layer(inputs={"dict": [["a", LEAF]]}),
        "another step, whose inputs this one does not take .StepError: there is no input 'b'",
    ),
    (set_layer(inputs=DEEP), "its inputs nest more than 64 deep"),
    (set_layer(inputs=False), "its inputs or statics are namedtuples, .*; take a step of the stream"),
    (set_array("begun", None), "it has no array 'begun'; there should be an int64 for each row"),
    (set_array("begun", np.zeros(4)), r"it has a float64\[4\] array 'begun'; there should be an int64"),
    (set_array("begun", np.full(4, -1)), "'begun' has counts of steps outside 0 to"),
    (set_array("begun", np.zeros(3, int)), r"'memory.h' is float32\[4, 3\]; it should be float32\[3, 3\]"),
    (set_array("memory.h", None), "it has no array 'memory.h'"),
    (set_array("memory.h", np.zeros((4, 3))), r"'memory.h' is float64\[4, 3\]; it should be float32\[4, 3\]"),
    (
        set_array("memory.x", np.zeros(3)),
        "it has an array 'memory.x', which no recurrence of this stream has",
    ),
]


@pytest.mark.long(each=True)
@pytest.mark.parametrize(("change", "words"), DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.parametrize("running", [False, True])
def test_files_that_do_not_fit(path: Path, change: Any, words: str, running: bool):
    changed(path, change)
    rnn = rnn_of()
    stream = stepped(rnn) if running else rnn.stream(rows=0)
    if running and "namedtuples" in words:
        stream.load(path)
        return
    before = stream.state if running else None
    with pytest.raises(FileError, match=f"users.safetensors: .*{words}"):
        stream.load(path)
    assert stream.rows == (4 if running else 0)
    if running:
        assert_same_bits(stream.state, before)


def test_a_model_of_another_step_or_other_parameters(path: Path):
    with pytest.raises(FileError, match="it was saved from another step"):
        rnn_of(other_step).stream(rows=0).load(path)
    with pytest.raises(FileError, match="it was saved with other parameters"):
        rnn_of(params=PARAMS + 1).stream(rows=0).load(path)
    rnn = rnn_of()
    stack = sn.Stack([rnn, rnn])
    with pytest.raises(FileError, match="it has the state of 1 recurrences, and this stream runs 2"):
        stack.stream(rows=0).load(path)


def test_a_stream_that_runs_with_another_dtype(tmp_path: Path):
    rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=())
    for dtype in ("float32", "float64"):
        stream = rnn.stream(1)
        stream.step(np.ones(1, dtype))
        stream.save(tmp_path / dtype)
    with pytest.raises(FileError, match=r"its inputs are float32\[\]; those of this stream are float64\[\]"):
        stream.load(tmp_path / "float32")


def test_truncated_and_foreign_files(path: Path):
    data = path.read_bytes()
    for end in (0, 7, 9, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(FileError, match="this is not a complete"):
            rnn_of().stream(rows=0).load(path)
    with pytest.raises(FileError, match="there is no such file"):
        rnn_of().stream(rows=0).load(path.with_name("nothing"))
    safetensors.write(path, {"memory.h": np.zeros(3)}, force=True)
    with pytest.raises(FileError, match="this is not a saved stream"):
        rnn_of().stream(rows=0).load(path)


def test_offsets_that_are_none(tmp_path: Path):
    def over(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        h = h + x + sn.reduce(statics, "sum")
        return h, h

    rnn, path = sn.RNN(over, memory=3), tmp_path / "users.safetensors"
    stream = rnn.stream(2, statics=sn.Ragged.from_list([numbers(2, 3), numbers(1, 3)]))
    stream.step(numbers(2, 3))
    stream.save(path)
    for wrong in ([0, 2, 1], [0, 2, 2], [1, 2, 3], [0, 2**62, 3]):
        changed(path, set_array("statics.offsets", np.array(wrong)))
        with pytest.raises(FileError, match=r"'statics.offsets': .*offsets"):
            rnn.stream(rows=0).load(path)


def test_every_byte_of_a_description_may_be_another(path: Path):
    """A file is refused with a message, or it is the stream that was saved: saved again, it is this file."""
    data, again = path.read_bytes(), path.with_name("again.safetensors")
    arrays, metadata = safetensors.read_described(path)
    rnn, end, read = rnn_of(), 8 + int.from_bytes(data[:8], "little"), 0
    for place in range(0, end, 5):
        wrong = bytearray(data)
        wrong[place] ^= 1 << (place % 7)
        path.write_bytes(wrong)
        stream = rnn.stream(rows=0)
        try:
            stream.load(path)
        except FileError:
            assert stream.rows == 0
            continue
        stream.save(again, force=True)
        found, said = safetensors.read_described(again)
        assert said == metadata, place
        assert_same_bits(found, arrays)
        read += 1
    assert 0 < read < end // 50


def test_nothing_is_written_over(path: Path):
    stream = stepped(rnn_of())
    before = path.read_bytes()
    with pytest.raises(FileError, match="the file is there already"):
        stream.save(path)
    assert path.read_bytes() == before
    stream.save(path, force=True)
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(FileError, match="there is no folder"):
        stream.save(path / "x" / "y")


def test_what_cannot_be_saved_yet(tmp_path: Path):
    with pytest.raises(InputError, match="nothing was stepped yet: there is no state to save"):
        rnn_of().stream(1).save(tmp_path / "a")
    with pytest.raises(InputError, match="rows has the row 1 twice"):
        stepped(rnn_of()).save(tmp_path / "a", rows=[1, 1])
    with pytest.raises(InputError, match="path is a text or a Path, not 3"):
        stepped(rnn_of()).save(3)
    with pytest.raises(InputError, match="path is a text or a Path, not 3"):
        rnn_of().stream(0).load(cast("Any", 3))
