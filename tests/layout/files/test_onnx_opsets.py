"""Recurrent nodes and Dropout of every version of ONNX's operators."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import refusal, stepnet
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tolerance import assert_close

from stepnet.layout.files import read, weights

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
INPUTS, HIDDEN, TIME = 2, 3, 5
VERSIONS = [
    (op, version)
    for op in GATES
    for version in sorted(
        {one.since_version for one in onnx.defs.get_all_schemas_with_history() if one.name == op}
    )
]
RANDOM = np.random.default_rng(7)


def model(path: Path, opset: int, ops: tuple[str, ...], *between: onnx.NodeProto, **attributes: Any) -> Path:
    """A model of nodes in a row, with others between the first and the second: `x` -> ... -> `y`."""
    nodes, constants = list[onnx.NodeProto](), list[onnx.TensorProto]()
    x, width = "X", INPUTS
    for place, op in enumerate(ops):
        shapes = {"W": (1, GATES[op] * HIDDEN, width), "R": (1, GATES[op] * HIDDEN, HIDDEN)}
        arrays = {name: RANDOM.normal(size=shape).astype("f4") for name, shape in shapes.items()}
        constants += [numpy_helper.from_array(array, f"{name}{place}") for name, array in arrays.items()]
        outputs = [f"Y{place}", f"h{place}", f"c{place}"][
            : 3 if op == "LSTM" else 2
        ]  # GRU-1 has to have both
        said = {"hidden_size": HIDDEN, **attributes}
        nodes.append(helper.make_node(op, [x, f"W{place}", f"R{place}"], outputs, f"rnn{place}", **said))
        nodes.append(helper.make_node("Squeeze", [f"Y{place}"], [f"y{place}"], axes=[1]))
        nodes += between if place == 0 else ()
        x, width = ("dropped" if between else f"y{place}"), HIDDEN
    y = f"y{len(ops) - 1}"
    entrance = helper.make_tensor_value_info("X", TensorProto.FLOAT, [TIME, 1, INPUTS])
    exit_ = helper.make_tensor_value_info(y, TensorProto.FLOAT, [TIME, 1, HIDDEN])
    graph = helper.make_graph(nodes, "g", [entrance], [exit_], constants)
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    onnx.checker.check_model(made)
    onnx.save(made, path)
    return path


@pytest.mark.parametrize(("op", "version"), [one for one in VERSIONS if one[1] < 13])
def test_a_node_of_every_version_is_read(tmp_path: Path, op: str, version: int):
    """Squeeze has its axes as an attribute until version 13; the newer ones are all other tests'."""
    said = {"output_sequence": 1} if version < 7 else {}
    path = model(tmp_path / "m.onnx", version, (op, op), **said)
    x = RANDOM.normal(size=(TIME, 1, INPUTS)).astype("f4")
    wanted = by_onnx(path, x)
    modules = read(path).modules
    assert [module.follows for module in modules[1:]] == ["rnn0"]
    found = x.swapaxes(0, 1)
    for module in modules:
        found = weights(module).layers()(found)[0]
    assert_close(found.swapaxes(0, 1), wanted, length=2 * TIME, width=INPUTS + HIDDEN, dtype=np.float32)


def by_onnx(path: Path, x: Any) -> Any:
    """The results of ONNX' own evaluator: version 7 stands for older ones, which no runtime has. Their
    equations are the same, without output_sequence (https://onnx.ai/onnx/operators/onnx__LSTM.html).
    """
    made = onnx.load(path)
    made.opset_import[0].version = max(7, made.opset_import[0].version)
    for node in made.graph.node:
        kept = [one for one in node.attribute if one.name != "output_sequence"]
        del node.attribute[:]
        node.attribute.extend(kept)
    outputs: Any = ReferenceEvaluator(made).run(None, {"X": x})
    return outputs[0]


DROPOUTS = [
    (1, {}, False),
    (6, {}, False),
    (6, {"is_test": 0}, False),
    (6, {"is_test": 1}, True),
    (7, {}, True),
]


@pytest.mark.parametrize(("opset", "said", "passes"), DROPOUTS)
def test_a_dropout_drops_by_itself_before_version_7(
    tmp_path: Path, opset: int, said: dict[str, Any], passes: bool
):
    between = helper.make_node("Dropout", ["y0"], ["dropped"], "drop", **said)
    path = model(tmp_path / "m.onnx", opset, ("LSTM", "LSTM"), between)
    if passes:
        assert stepnet("convert", path, "--to", "torch", "-o", tmp_path / "out.pt")[0] == 0
        assert read(path).modules[1].follows == "rnn0"
    else:
        refused = refusal("convert", path, "--to", "keras", "-o", tmp_path / "out.keras")
        assert "over the outputs of rnn0; the file says that it takes something else, or more" in refused
