"""ONNX models: what recurrent nodes start from, and all other nodes, are kept or said; onnxruntime judges."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from command_line import refusal, stepnet
from zoo import normal

from stepnet.errors import LayoutError
from stepnet.layout.files import LayoutChoice, convert_file
from stepnet.layout.files.onnx.file import contents, read

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
helper, numpy_helper, Tensor = onnx.helper, onnx.numpy_helper, onnx.TensorProto

X = np.random.default_rng(0).standard_normal((5, 1, 3)).astype(np.float32)


ARRAYS = {
    "aW": normal(1, 16, 3),
    "aR": normal(1, 16, 4),
    "aB": normal(1, 32),
    "bW": 3 * normal(1, 16, 4),
    "bR": normal(1, 16, 4),
    "bB": normal(1, 32),
    "axis": np.array([1]),
    "h0": normal(1, 1, 4),
    "c0": normal(1, 1, 4) + 1,
    "gain": normal(4),
    "half": np.array(0.5, "f4"),
    "yes": np.array(True),
    "no": np.array(False),
    "steps": np.array([2], "i4"),
    "whole": np.array([5], "i4"),
    "one": np.array([1, 1, 1]),
}


def lstm(name: str, x: str, *more: str, final: bool = False) -> Any:
    outputs = [f"{name}Y", f"{name}H", f"{name}C"][: 3 if final else 1]
    inputs = [x, *(f"{name}{slot}" for slot in "WRB"), *more]
    return helper.make_node("LSTM", inputs, outputs, name, hidden_size=4)


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], output, **attributes)


def saved(path: Path, nodes: list[Any], output: str, *more: Any) -> Path:
    asked = {name for node in nodes for name in node.input}
    held = [numpy_helper.from_array(array, name) for name, array in ARRAYS.items() if name in asked]
    x = helper.make_tensor_value_info("x", Tensor.FLOAT, [5, "n", 3])
    y = helper.make_tensor_value_info(output, Tensor.FLOAT, None)
    graph = helper.make_graph(nodes, "model", [x, *more], [y], held)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def outputs(path: Path, by_batch: bool = False) -> np.ndarray:
    """The results of onnxruntime for X, [steps, hidden]."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = X.swapaxes(0, 1) if by_batch else X
    return session.run(None, {session.get_inputs()[0].name: x})[0].reshape(5, 4)


def written(source: Path, **options: Any) -> Any:
    return convert_file(source, "onnx", source.parent / "out.onnx", force=True, check=True, **options)


def difference(source: Path) -> float:
    """Of the old model and the new one, as onnxruntime runs both."""
    new = outputs(source.parent / "out.onnx", by_batch=True)
    return float(np.abs(outputs(source) - new).max())


EXPANDED = [node("Expand", "h0 one", "h"), node("Transpose", "h", "turned", perm=[0, 1, 2])]
TILED = [node("Tile", "h0 one", "turned")]


@pytest.mark.parametrize(("moves", "state"), [([], "h0"), (EXPANDED, "turned"), (TILED, "turned")])
def test_a_constant_initial_state_is_a_part_of_its_layer(tmp_path: Path, moves: list[Any], state: str):
    source = saved(tmp_path / "in.onnx", [*moves, lstm("a", "x", "", state, "c0")], "aY")
    with pytest.raises(LayoutError, match=r"a has h0, c0, which onnx.lstm does not have: .*--drop NAME"):
        written(source)
    with pytest.raises(LayoutError, match=r"a has c0, which"):
        written(source, choice=LayoutChoice(drop=["h0"]))
    done = written(source, choice=LayoutChoice(drop=["h0", "c0"]))
    assert done.account.left == ("h0", "c0")
    told = "is a constant in the file, which is left out"
    assert done.notes["a"] == (f"initial_h {told}", f"initial_c {told}")
    assert difference(source) > 0.1  # which is why
    out = tmp_path / "out.safetensors"
    copied = convert_file(source, "torch", out, rest="copy", choice=LayoutChoice(drop=["h0", "c0"]))
    assert copied.account.copied == ("h0", "c0")


@pytest.mark.parametrize("command", ["verify", "run"])
def test_what_runs_a_model_does_not_forget_its_learned_states(tmp_path: Path, command: str):
    source = saved(tmp_path / "in.onnx", [lstm("a", "x", "", "h0", "c0")], "aY")
    parquet.write_table(pa.table({"x": X.swapaxes(0, 1).tolist()}), tmp_path / "x.parquet")
    arguments: dict[str, tuple[Any, ...]] = {
        "verify": (source, "torch.lstm"),
        "run": ("--recurrent-only", source, "--input", tmp_path / "x.parquet", "-o", tmp_path / "y.parquet"),
    }
    said = refusal(command, *arguments[command])
    assert said == refusal("convert", source, "--to", "torch", "-o", tmp_path / "out.npz")
    assert "a has h0, c0, which onnx.lstm does not have" in said
    code, text, _ = stepnet(command, *arguments[command], "--drop", "h0", "--drop", "c0")
    assert code == 0
    if command == "run":
        assert "note: a: initial_h is a constant in the file, which is left out" in text


def test_run_says_which_states_its_model_is_given(tmp_path: Path):
    h, c = (helper.make_tensor_value_info(name, Tensor.FLOAT, [1, "n", 4]) for name in ("h", "c"))
    source = saved(tmp_path / "in.onnx", [lstm("a", "x", "", "h", "c")], "aY", h, c)
    parquet.write_table(pa.table({"x": X.swapaxes(0, 1).tolist()}), tmp_path / "x.parquet")
    run = ("run", "--recurrent-only", source, "--input", tmp_path / "x.parquet", "-o", tmp_path / "y.parquet")
    assert "note: a: initial_h is given when the model runs\n" in stepnet(*run)[1]
    found = json.loads(stepnet(*run, "--json", "--force")[1])["notes"]
    assert found == {"a": [f"initial_{state} is given when the model runs" for state in "hc"]}


def test_an_initial_state_of_zeros_changes_nothing(tmp_path: Path):
    value = numpy_helper.from_array(np.zeros(1, np.float32))
    zeros = node("ConstantOfShape", "sizes", "zeros", value=value)
    sizes = [helper.make_node("Constant", [], ["sizes"], "sizes", value_ints=[1, 1, 4])]
    source = saved(tmp_path / "in.onnx", [*sizes, zeros, lstm("a", "x", "", "zeros", "zeros")], "aY")
    done = written(source)
    assert (done.account.left, done.account.layers, done.notes["a"]) == ((), (), ())
    assert difference(source) < 1e-6


def test_states_that_other_nodes_compute_make_no_row(tmp_path: Path):
    one, squeezed = lstm("a", "x", final=True), node("Squeeze", "aY axis", "s")
    source = saved(tmp_path / "in.onnx", [one, squeezed, lstm("b", "s", "", "aH", "aC")], "bY")
    for stack in (False, True):
        with pytest.raises(LayoutError, match=r"other nodes compute \(initial_h and initial_c\): .*--module"):
            written(source, choice=LayoutChoice(stack=stack))
    done = written(source, choice=LayoutChoice(module="b"))
    assert done.notes["b"] == (
        "it starts from what other nodes compute (initial_h and initial_c), which the new file does not say",
    )


def test_constant_lengths_are_a_part_of_their_layer_unless_they_are_all_steps(tmp_path: Path):
    source = saved(tmp_path / "in.onnx", [lstm("a", "x", "steps")], "aY")
    with pytest.raises(LayoutError, match=r"a has steps, which"):
        written(source)
    written(source, choice=LayoutChoice(drop=["steps"]))
    assert difference(source) > 0.1
    source = saved(tmp_path / "in.onnx", [lstm("a", "x", "whole")], "aY")
    written(source)
    assert difference(source) < 1e-6


def test_lengths_that_the_caller_gives_are_noted(tmp_path: Path):
    lengths = helper.make_tensor_value_info("lengths", Tensor.INT32, ["batch"])
    source = saved(tmp_path / "in.onnx", [lstm("a", "x", "lengths")], "aY", lengths)
    assert written(source).notes["a"][0] == "sequence_lens is given when the model runs"


BETWEEN = {
    "int64": ([node("Cast", "s", "i", to=7), node("Cast", "i", "t", to=1)], False),
    "bool": ([node("Cast", "s", "i", to=9), node("Cast", "i", "t", to=1)], False),
    "float16": ([node("Cast", "s", "i", to=10), node("Cast", "i", "t", to=1)], False),
    "bfloat16": ([node("Cast", "s", "i", to=16), node("Cast", "i", "t", to=1)], False),
    "float64": ([node("Cast", "s", "i", to=11), node("Cast", "i", "t", to=1)], True),
    "float32": ([node("Cast", "s", "t", to=1)], True),
    "dropout": ([node("Dropout", "s half", "t")], True),
    "not trained": ([node("Dropout", "s half no", "t")], True),
    "trained": ([node("Dropout", "s half yes", "t")], False),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_only_what_keeps_every_number_is_looked_through(tmp_path: Path, name: str):
    moves, kept = BETWEEN[name]
    nodes = [lstm("a", "x"), node("Squeeze", "aY axis", "s"), *moves, lstm("b", "t")]
    source = saved(tmp_path / "in.onnx", nodes, "bY")
    assert read(source)[1].after == ("a" if kept else "")
    if kept:
        assert written(source).account.layers == ()
        assert difference(source) < 1e-5
    else:
        assert contents(source).others == ("s (Squeeze)", *(f"{one.name} ({one.op_type})" for one in moves))
        for stack in (False, True):
            with pytest.raises(LayoutError, match="the file says that it takes something else, or more"):
                written(source, choice=LayoutChoice(stack=stack))


@pytest.mark.parametrize("op", ["Mul", "Cast", "Slice", "Gather", "Concat", "Expand", "Reshape"])
@pytest.mark.parametrize("behind", [True, False])
def test_every_other_node_is_listed(tmp_path: Path, op: str, behind: bool):
    more = {
        "Mul": "gain",
        "Cast": "",
        "Slice": "axis whole",
        "Gather": "steps",
        "Concat": "",
        "Expand": "one",
        "Reshape": "whole",
    }[op]
    attributes = {"Cast": {"to": 7}, "Concat": {"axis": 0}}.get(op, {})
    made = node(op, f"{'aY' if behind else 'x'} {more}", "z", **attributes)
    nodes = [lstm("a", "x"), made] if behind else [made, lstm("a", "z")]
    source = saved(tmp_path / "in.onnx", nodes, "z" if behind else "aY")
    assert contents(source).others == (f"z ({op})",)


def test_constants_that_only_others_take_are_left_with_a_word(tmp_path: Path):
    """The constants of a node that was looked at, and is none, are no part of any layer."""
    nodes = [node("Mul", "gain half", "m"), lstm("a", "x"), node("Mul", "aY m", "z")]
    done = written(saved(tmp_path / "in.onnx", nodes, "z"))
    assert done.account.left == ("gain", "half")
    assert done.account.layers == ("m (Mul)", "z (Mul)")
