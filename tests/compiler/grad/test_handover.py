"""The values that the forward half of a gradient saves: as few bytes as the backward one needs."""

from typing import Any

import numpy as np
import pytest
from gradcheck import assert_gradient, segments_of

import stepnet as sn
from stepnet.cells import CELLS
from stepnet.compiler.grad import Halves, halves, vjp
from stepnet.compiler.net import STEPS

H = 8


def of_cell(name: str) -> Halves:
    net = sn.cells.rnn(name, CELLS[name].parameters(3, H)).net
    return halves(vjp(net), len(net.inputs), len(net.results))


def saved(parts: Halves) -> list[int]:
    """The sizes of the saved values of each step."""
    net = parts.forward
    types = [net.type_of(number) for number in net.results[len(net.results) - parts.saved :]]
    return [type_.size for type_ in types if type_.extent == STEPS]


# A GRU: the memory, both gates, the candidate, and the product that the reset gate is multiplied with, of
# all products with the memory the third. An LSTM: both memories, four gates and tanh of the cell.
@pytest.mark.parametrize(("name", "count"), [("gru", 5), ("lstm", 7), ("minimal_gated_unit", 3)])
def test_cells_save_as_many_values_as_their_equations_need(name: str, count: int) -> None:
    assert saved(of_cell(name)) == [H] * count


def test_cotangents_of_joined_gates_stay_together() -> None:
    backward = of_cell("lstm").backward
    contracts = [node for node in backward.nodes if node.operation == "contract"]
    assert sorted(node.type.shape for node in contracts) == [(3, 4 * H), (H, 4 * H)]


def test_part_of_a_product_is_saved_and_not_all_of_it() -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        wide = h @ p["R"]
        h = np.tanh(x + wide[:, :2] * wide[:, 2:4] + wide[:, 4:6])
        return h, h

    net = sn.RNN(step, {"R": np.ones((2, 6), "float32")}, memory=2, inputs=2).net
    parts = halves(vjp(net), len(net.inputs), len(net.results))
    # h, tanh, and four of the six numbers of the product
    assert sum(saved(parts)) == 2 + 2 + 4


def test_a_recurrence_is_handed_parts_of_what_two_others_give() -> None:
    """The transposed lower layer reads half of its forward product, and a third of the upper layer's
    cotangents.
    """

    def lower(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        wide = h @ p["R"]
        h = np.tanh(x + wide[:, :2] * wide[:, 2:4] + wide[:, 4:6])
        return np.concatenate([h, np.ones_like(h), np.ones_like(h)], axis=-1), h

    def upper(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(x @ p["W"] + h @ p["R"])
        return h, h

    random = np.random.default_rng(0)
    weights = {name: random.normal(size=shape) for name, shape in {"W": (6, 2), "R": (2, 2)}.items()}
    layers = [
        sn.RNN(lower, {"R": random.normal(size=(2, 6))}, memory=2, inputs=2),
        sn.RNN(upper, weights, memory=2, inputs=6),
    ]
    gradient = assert_gradient(sn.Stack(layers).net, segments_of())
    *_, transposed = (node for node in gradient.nodes if node.operation == "recur")
    sequences = transposed.recur.operands_by_kind(transposed.inputs).sequences
    assert [gradient.type_of(number).size for number in sequences] == [2] * 4
