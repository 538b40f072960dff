"""Graphs of TensorFlow whose variables were made constants (make_frozen.py and make_frozen_loops.py)."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refusal, stepnet
from containers import unpacked
from saved_arrays import saved_arrays
from tolerance import assert_close

from stepnet.errors import FileError
from stepnet.layout.files import read, weights

DATA = Path(__file__).parent / "data"
CELL = "bidirectional_rnn/{}/gru_cell/"


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(DATA / "frozen.tar.xz", tmp_path_factory.mktemp("frozen"))


# By graph and output: the layer, what it was made with, and whether it runs from the end.
MADE: dict[tuple[str, str], tuple[str, str, dict[str, Any], bool]] = {
    ("dynamic", "outputs"): ("rnn/basic_lstm_cell/", "tf1.basic_lstm", {"forget_bias": 0.5}, False),
    ("unrolled", "forward"): (CELL.format("fw"), "tf1.gru", {}, False),
    ("unrolled", "backward"): (CELL.format("bw"), "tf1.gru", {}, True),
    ("block", "outputs"): ("lstm_cell/", "tf1.lstm_block", {"forget_bias": 1.0}, False),
}


@pytest.mark.parametrize(("graph", "output"), MADE)
def test_cells_compute_what_the_graph_did(frozen: Path, graph: str, output: str):
    name, layout, semantics, reverse = MADE[graph, output]
    (module,) = (one for one in read(frozen / f"{graph}.pb", layout).modules if one.name == name)
    numbers = saved_arrays(frozen / "outputs.npz")
    found = weights(replace(module, semantics=semantics, reverse=reverse)).layers()(
        numbers[f"{graph}:inputs"]
    )
    assert_close(found[0], numbers[f"{graph}:{output}"], length=5, width=5, dtype=np.float32)


def test_what_the_graph_computes_is_listed_and_asked_for(frozen: Path, tmp_path: Path):
    source, out = frozen / "dynamic.pb", tmp_path / "out.pt"
    said = refusal("convert", source, "--to", "torch", "-o", out, "--from", "tf1.basic_lstm")
    assert "the arrays do not determine forget_bias" in said
    model = read(source)
    assert {*model.rest} == {"dense"}
    assert "head/MatMul (MatMul)" in model.layers or "MatMul (MatMul)" in model.layers
    code, text, _ = stepnet(
        *("convert", source, "--to", "torch", "-o", out, "--from", "tf1.basic_lstm"),
        *("--semantics", "forget_bias=0.5", "--verify"),
    )
    assert code == 0
    assert "left: arrays: dense" in text


def test_where_names_tell_nothing_the_graph_does(frozen: Path):
    """TensorFlow 2 calls the constants after the operators that read the variables."""
    numbers = saved_arrays(frozen / "outputs.npz")
    lstm, gru = read(frozen / "keras.pb").modules
    assert (lstm.name, lstm.layout, gru.name, gru.layout) == (
        *("sequential/lstm", "keras.lstm"),
        *("sequential/gru", "keras.gru"),
    )
    middle = weights(lstm).layers()(numbers["keras:inputs"])[0]
    found = weights(gru).layers()(middle, last_only=True)[0]
    assert_close(found, numbers["keras:outputs"], length=5, width=5, dtype=np.float32)


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(DATA / "frozen_loops.tar.xz", tmp_path_factory.mktemp("loops"))


@pytest.mark.parametrize("lowered", [True, False])
def test_each_matrix_is_known_by_what_is_done_with_it(loops: Path, lowered: bool):
    """As many inputs as units: only the graph tells the kernel from the recurrent one."""
    numbers = saved_arrays(loops / "outputs.npz")
    found = {module.name: module for module in read(loops / f"keras{'' if lowered else '_loops'}.pb").modules}
    assert {name.split("/")[1] for name in found} == {"lstm_1", "gru_1", "rnn_1"}
    for name, module in found.items():
        layer = name.split("/")[1].removesuffix("_1")
        given = {key.partition("/")[2]: numbers[key] for key in numbers if key.startswith(f"keras:{layer}/")}
        assert module.layout == f"keras.{layer}"
        assert module.arrays.keys() == given.keys()
        assert all(np.array_equal(module.arrays[own], array) for own, array in given.items())
    assert module_of(found, "rnn").semantics["candidate_activation"] == "relu"


def module_of(found: dict[str, Any], layer: str) -> Any:
    return next(module for name, module in found.items() if name.split("/")[1].startswith(layer))


@pytest.mark.parametrize("file", ["backward", "backward_loops"])
def test_a_loop_over_reversed_items_runs_backward(loops: Path, file: str, tmp_path: Path):
    numbers = saved_arrays(loops / "outputs.npz")
    (module,) = read(loops / f"{file}.pb").modules
    found = weights(module).layers()(numbers["backward:inputs"])[0]
    assert_close(found[:, ::-1], numbers["backward:outputs"], length=5, width=6, dtype=np.float32)
    said = refusal("convert", loops / f"{file}.pb", "--to", "onnx", "-o", tmp_path / "x.onnx")
    assert "runs from the last step, and the order in which its outputs are taken is not read" in said


def test_a_cell_of_a_program_that_computes_as_keras_does(loops: Path):
    numbers = saved_arrays(loops / "outputs.npz")
    (module,) = read(loops / "own.pb").modules
    found = weights(module).layers()(numbers["own:inputs"])[0]
    assert_close(found, numbers["own:outputs"], length=5, width=6, dtype=np.float32)


GRUS = {
    "before": {"before": "keras.gru_reset_before"},
    "no_bias": {"no_bias": "keras.gru_reset_before"},
    "functions": {"relu": "keras.gru_reset_before", "after": "keras.gru"},
}


@pytest.mark.long(every=5)
@pytest.mark.parametrize("lowered", ["", "_loops"])
@pytest.mark.parametrize("version", ["", "legacy_"])
@pytest.mark.parametrize("graph", GRUS)
def test_a_gru_is_known_by_where_it_resets(
    loops: Path, tmp_path: Path, version: str, graph: str, lowered: str
):
    """In Keras 3, and in tf_keras, which writes the same in other operators."""
    numbers, title = saved_arrays(loops / "outputs.npz"), f"{version}{graph}"
    source = loops / f"{title}{lowered}.pb"
    known = {module.name.split("/")[1].removesuffix("_1"): module for module in read(source).modules}
    assert {name: module.layout for name, module in known.items()} == GRUS[graph]
    y = numbers[f"{title}:inputs"]
    for name in GRUS[graph]:  # in a row
        y, _ = weights(known[name]).layers()(y)
    assert_close(y, numbers[f"{title}:outputs"], length=5, width=6, dtype=np.float32)
    out = tmp_path / "x.npz"
    assert stepnet("convert", source, "--to", "keras", "-o", out, "--verify")[0] == 0


def test_what_the_graph_does_not_make_clear_is_asked_for(loops: Path, tmp_path: Path):
    """The gates of `other` are in no order of Keras'."""
    source, out = loops / "other.pb", tmp_path / "x.npz"
    said = refusal("convert", source, "--to", "keras", "-o", out)
    assert "its graph does not show of which kind: say --from while=LAYOUT" in said
    (module,) = read(source, None, {"while": "keras.lstm"}).modules
    assert module.layout == "keras.lstm"
    assert stepnet("convert", source, "--to", "keras", "-o", out, "--from", "while=keras.lstm")[0] == 0


def test_loops_that_are_cut_off(loops: Path, tmp_path: Path):
    cut_off(loops / "before_loops.pb", 397, None, tmp_path / "cut.pb")


def cut_off(source: Path, step: int, layout: str | None, path: Path) -> None:
    """Cuts a graph off at each step and behind each of its nodes. Inside a node that is an error. Behind one
    the file is a smaller graph: an error if it has no weights yet, else with arrays of the whole graph alone.
    """
    data, ends = source.read_bytes(), ends_of_fields(source.read_bytes())
    outcomes = dict[int, str | set[Any]]()
    for end in sorted({*range(1, len(data), step), *ends}):
        path.write_bytes(data[:end])
        outcomes[end] = outcome(path, layout)
    inside = [said for end, said in outcomes.items() if end not in ends]
    assert inside
    assert all(re.search("cut off$|does not end$", str(said)) for said in inside)
    messages = [said for end in ends if isinstance(said := outcomes[end], str)]
    allowed = "is not a graph of TensorFlow|no constants that could be"
    assert all(re.search(allowed, said) for said in messages)
    smaller = [found for end in ends if isinstance(found := outcomes[end], set)]
    assert [*messages, *smaller] == [outcomes[end] for end in ends]
    assert smaller
    assert all(found and found <= smaller[-1] for found in smaller)


def outcome(path: Path, layout: str | None) -> str | set[Any]:
    """The arrays of a file by their bits, whatever their names; or why it is none."""
    try:
        model = read(path, layout)
    except FileError as error:
        return str(error)
    arrays = [array for module in model.modules for array in module.arrays.values()]
    return {(each.shape, each.tobytes()) for each in map(np.asarray, [*arrays, *model.rest.values()])}


def ends_of_fields(data: bytes) -> list[int]:
    """Where the fields of a message of bytes alone end, and where it begins."""
    ends = [0]
    while (at := ends[-1]) < len(data):
        assert data[at] & 7 == 2
        at, shift, size = at + 1, 0, data[at + 1] & 127
        while data[at] & 128:
            at, shift = at + 1, shift + 7
            size |= (data[at] & 127) << shift
        ends.append(at + 1 + size)
    return ends


def test_a_saved_model_without_variables(frozen: Path, tmp_path: Path):
    """A SavedModel is a version and graphs; the one of TensorFlow is around a graph of its own."""
    graph = (frozen / "block.pb").read_bytes()
    around = field(2, field(2, graph))
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01" + around)
    (module,) = read(tmp_path, "tf1.lstm_block").modules
    assert module.name == "lstm_cell/"


def field(number: int, data: bytes) -> bytes:
    """A field of a message of Protocol Buffers that is bytes."""
    length, size = b"", len(data)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


SHAPE = field(2, b"".join(field(2, b"\x08\x80\x80\x80\x80\x01") for _ in range(2)))  # 2**28 by 2**28
SPOILT = {
    "nothing": (b"", "this is not a graph of TensorFlow"),
    "no names": (field(1, field(2, b"Const")), "this is not a graph of TensorFlow"),
    "no message": (b"\x0f\xff", "a message in it"),
    "no weights": (field(1, field(1, b"x") + field(2, b"NoOp")), "no constants that could be weights"),
    "huge": (
        field(1, field(1, b"x") + field(2, b"Const")
              + field(5, field(1, b"value") + field(2, field(8, b"\x08\x01" + SHAPE)))),
        "cannot have",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_no_graph(tmp_path: Path, name: str):
    data, said = SPOILT[name]
    path = tmp_path / "graph.pb"
    path.write_bytes(data)
    with pytest.raises(FileError, match=said):
        read(path)


def test_graphs_that_are_cut_off(frozen: Path, tmp_path: Path):
    cut_off(frozen / "block.pb", 37, "tf1.lstm_block", tmp_path / "cut.pb")
