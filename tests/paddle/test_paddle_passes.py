"""The effect of Paddle's passes fc_gru, mul_gru, fc_lstm and mul_lstm: a projection ahead of a recurrence
whose inputs are projected becomes the W of a known cell, with its bias.
"""

from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import LevelSizes, Net, Node, interpret
from stepnet.compiler.plan.passes.absorb import absorb
from stepnet.compiler.plan.recognise import Recognised, recognise
from stepnet.paddle.steps import GruStep, LstmStep

Array = np.ndarray
INPUTS, HIDDEN = 3, 4
GATES = {"gru": 3, "lstm": 4}
ORDER = {"gru": (1, 0, 2), "lstm": (1, 2, 0, 3)}
"""The places of Paddle's gates in the order of stepnet's cells, r z n and i f g o."""
STEPS: dict[str, Any] = {
    "gru write": GruStep("sigmoid", "tanh", keeps=False),
    "gru keep": GruStep("sigmoid", "tanh", keeps=True),
    "lstm": LstmStep("sigmoid", "tanh", "tanh"),
}
CASES = [(name, way) for name in STEPS for way in ("fc", "mul")]


def weights(cell: str) -> dict[str, Array]:
    random, wide = np.random.default_rng(0), GATES[cell] * HIDDEN
    shapes = {"W": (INPUTS, wide), "c": (wide,), "b": (wide,), "R": (HIDDEN, wide), "p": (3, HIDDEN)}
    return {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def recurrence(name: str, arrays: dict[str, Array], reverse: bool = False) -> sn.RNN:
    """Paddle's recurrence over projected inputs."""
    R, p = arrays["R"], tuple(arrays["p"])
    if name == "lstm":
        params: dict[str, Any] = {"R": R, "b": arrays["b"], "p": p}
        memory: Any = {"h": HIDDEN, "c": HIDDEN}
    else:
        params = {"R": R[:, : 2 * HIDDEN], "R_c": R[:, 2 * HIDDEN :], "b": arrays["b"]}
        memory = HIDDEN
    return sn.RNN(STEPS[name], params, memory=memory, reverse=reverse)


def absorbed(graph: sn.Graph) -> tuple[Net, Node, Recognised]:
    """The net of a graph, its only recurrence, and the cell that this is."""
    net = absorb(graph.net)
    (node,) = (node for node in net.nodes if node.operation == "recur")
    known = recognise(node)
    assert isinstance(known, Recognised), str(known)
    return net, node, known


def cell_arrays(graph: sn.Graph, net: Net, node: Node, known: Recognised) -> dict[str, Array]:
    """The arrays of the recognised cell, by name."""
    program = graph.program
    values = dict(zip(net.inputs[-len(program.params) :], program.params, strict=True))
    others = [values[number] for number in node.recur.operands_by_kind(node.inputs).others]
    made = interpret(known.weights, others, LevelSizes(0))
    return dict(zip(known.names, made, strict=True))


def in_order(array: Array, cell: str) -> Array:
    """An array [..., gates * hidden] of Paddle's in the order of stepnet's cells."""
    parts = np.split(array, GATES[cell], axis=-1)
    return np.concatenate([parts[place] for place in ORDER[cell]], axis=-1)


@pytest.mark.parametrize(("name", "way"), CASES, ids=lambda value: value)
def test_a_projection_becomes_the_input_weights_of_a_known_cell(name: str, way: str) -> None:
    cell = name.split()[0]
    arrays = weights(cell)
    layer = recurrence(name, arrays)

    def model(x: Any, params: Any, statics: Any) -> Any:
        made = x @ params["W"] + params["c"] if way == "fc" else x @ params["W"]
        begin = {"h": statics, "c": statics} if cell == "lstm" else statics
        outputs, _ = layer(made, initial=begin)
        return outputs["h"] if cell == "lstm" else outputs

    params = {name: arrays[name] for name in (("W", "c") if way == "fc" else ("W",))}
    graph = sn.Graph(model, params, inputs=INPUTS, statics=HIDDEN)
    net, node, known = absorbed(graph)
    assert (known.cell, known.inputs, known.projected) == (cell, INPUTS, None)
    if cell == "gru":
        assert (known.semantics.reset, known.semantics.update) == ("before", name.split()[1])
    (memory, *_) = node.recur.operands_by_kind(node.inputs).memories
    assert net.nodes[memory].name == "static", "the memory begins with h0"
    made = cell_arrays(graph, net, node, known)
    bias = arrays["b"] + arrays["c"] if way == "fc" else arrays["b"]
    assert_close(made["W"], in_order(arrays["W"], cell), 1, INPUTS)
    assert_close(made["b"], in_order(bias, cell), 1, INPUTS)


@pytest.mark.parametrize("name", STEPS)
def test_a_bias_that_something_else_reads_is_not_modified(name: str) -> None:
    cell = name.split()[0]
    arrays = weights(cell)
    layer = recurrence(name, arrays, reverse=True)

    def model(x: Any, params: Any) -> Any:
        outputs, _ = layer(x @ params["W"] + params["c"])
        return (outputs["h"] if cell == "lstm" else outputs), sn.reduce(x, "sum") @ params["W"] + params["c"]

    params = {name: arrays[name] for name in ("W", "c")}
    graph = sn.Graph(model, params, inputs=INPUTS)
    _, node, known = absorbed(graph)
    assert node.recur.reverse
    assert known.projected is None
    x = np.random.default_rng(1).normal(size=(2, 5, INPUTS)).astype("float32")
    h, shared = graph(x)
    assert_close(shared, x.sum(1) @ arrays["W"] + arrays["c"], 5, INPUTS)
    right = graph(x, engine="interpret")[0]
    assert_close(h, right, 5, 8)
    np.testing.assert_array_equal(graph.params["c"], arrays["c"])
