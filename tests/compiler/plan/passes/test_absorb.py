"""Work of single steps inside recurrences: where it moves, where it does not, and that results stay."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from planned import schedule
from random_models import WORDS, RandomModel, random_models
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import Net
from stepnet.compiler.plan import waves_of
from stepnet.compiler.plan.passes.absorb import absorb
from stepnet.model.nets import run_net
from stepnet.model.program import NetProgram


def leaky(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
    h = np.tanh(x @ params + h)
    return h, h


def layer(inputs: int, reverse: bool = False) -> sn.RNN:
    return sn.RNN(leaky, np.full((inputs, 2), 0.1, "float32"), memory=2, reverse=reverse)


def net_of(model: Any, params: Any = None, inputs: Any = 3) -> Net:
    return sn.Graph(model, params, inputs=inputs).net


def outside(net: Net) -> list[str]:
    """The operations around the recurrences."""
    sources = ("input", "constant", "expand", "recur", "result")
    return [node.operation for node in net.nodes if node.operation not in sources]


W = np.ones((3, 3), "float32")
V = np.ones((2, 4), "float32")


@pytest.mark.long(examples=15)
@settings(max_examples=80)
@given(model=random_models())
def test_nets_compute_the_same(model: RandomModel) -> None:
    graph = sn.Graph(model, model.structure, inputs=sn.Spec((), "int64"))
    random = np.random.default_rng(0)
    lengths = [3, 0, 5]
    words = sn.Ragged(random.integers(0, WORDS, 8), (np.cumsum([0, *lengths]),))
    reading = graph.reading(words)
    arrays = [*reading.batch.arrays, *graph.program.params]
    before, after = (
        run_net(NetProgram(net), arrays, reading.call, "interpret") for net in (graph.net, absorb(graph.net))
    )
    assert len(before) == len(after)
    for left, right in zip(before, after, strict=True):
        assert_close(left, right, 6, 200, "float64")


def test_projections_and_embeddings_move_in() -> None:
    def model(words: Any, params: Any) -> Any:
        return layer(3)(params["table"][words] @ params["W"] + 1.5)[0]

    params = {"table": np.ones((9, 3), "float32"), "W": W}
    net = absorb(net_of(model, params, sn.Spec((), "int64")))
    assert outside(net) == []
    body = next(node.recur.body for node in net.nodes if node.operation == "recur")
    assert [node.operation for node in body.nodes if node.operation in ("gather", "matmul")] == [
        "gather",
        "matmul",
        "matmul",
    ]


def test_a_bias_that_is_shared_stays_as_it_is() -> None:
    def model(x: Any, b: Any) -> Any:
        return layer(3)(x + b)[0], sn.reduce(x, "sum") + b

    net = absorb(net_of(model, np.ones(3, "float32")))
    shared = next(number for number in net.inputs if net.nodes[number].name == "param")
    assert len(net.users()[shared]) == 2
    assert outside(net) == ["reduce", "add"]


def test_a_product_for_two_recurrences_is_computed_once() -> None:
    def model(x: Any, W: Any) -> Any:
        y = x @ W
        return layer(3)(y)[0], layer(3, reverse=True)(y)[0]

    assert outside(absorb(net_of(model, W))) == ["matmul"]


def test_an_embedding_for_two_directions_is_read_by_each() -> None:
    def model(words: Any, table: Any) -> Any:
        x = table[words]
        return layer(3)(x)[0], layer(3, reverse=True)(x)[0]

    assert outside(absorb(net_of(model, np.ones((9, 3), "float32"), sn.Spec((), "int64")))) == []


def test_what_a_caller_sees_stays() -> None:
    def model(x: Any, W: Any) -> Any:
        y = np.tanh(x @ W)
        return layer(3)(y)[0], y

    assert outside(absorb(net_of(model, W))) == ["matmul", "tanh"]


def test_merges_of_both_directions_stay_behind_both_so_that_neither_waits() -> None:
    both = sn.Bidirectional(layer(3), layer(3, reverse=True))

    def model(x: Any, params: Any) -> Any:
        return sn.softmax(both(x)[0] @ params)

    parts = schedule(absorb(net_of(model, np.ones((4, 5), "float32")))).parts
    assert [part.kind for part in parts] == ["recurrence", "recurrence", "plain"]
    assert waves_of(parts) == ((0, 1), (2,))


def test_classifiers_move_into_the_last_of_layers() -> None:
    def model(x: Any, params: Any) -> Any:
        below = layer(3)(x)[0]
        return sn.softmax((layer(2)(below)[0] + below) @ params)

    net = absorb(net_of(model, np.ones((2, 5), "float32")))
    assert outside(net) == []
    assert waves_of(schedule(net).parts) == ((0,), (1,))


def test_what_needs_all_steps_stays_outside() -> None:
    def model(x: Any, V: Any) -> Any:
        h = layer(3)(x)[0]
        return (h - sn.expand(sn.reduce(h, "mean"), h)) @ V

    assert outside(absorb(net_of(model, V))) == ["reduce", "subtract", "matmul"]


def test_values_of_each_sequence_come_in_as_statics() -> None:
    def model(x: Any, params: Any, statics: Any) -> Any:
        return layer(3)(x * sn.expand(statics, x))[0]

    graph = sn.Graph(model, inputs=3, statics=3)
    assert outside(absorb(graph.net)) == []
    x, scale = np.ones((2, 4, 3), "float32"), np.array([[1, 2, 3], [0, 0, 0]], "float32")
    np.testing.assert_array_equal(graph(x, statics=scale)[1], np.zeros((4, 2)))
    assert_close(graph(x, statics=scale)[0], layer(3)(x[:1] * scale[0])[0][0], 4, 3)


def test_a_recurrence_over_repeated_values_alone_runs_over_one_of_them() -> None:
    def model(x: Any, params: Any, statics: Any) -> Any:
        left, right = (sn.expand(statics[name], x) for name in ("left", "right"))
        return layer(3)(np.tanh(left * right))[0]

    graph = sn.Graph(model, inputs=2, statics={"left": 3, "right": 3})
    net = absorb(graph.net)
    assert outside(net) == []
    recur = next(node.recur for node in net.nodes if node.operation == "recur")
    assert len(recur.sequences) == 1
    still = {"left": np.array([[1, 2, 3], [-1, 0, 1]], "float32"), "right": np.full((2, 3), 0.5, "float32")}
    outputs = graph(np.zeros((2, 4, 2), "float32"), statics=still)
    for row in range(2):
        h = np.zeros((1, 2))
        for step in range(4):
            _, h = leaky(np.tanh(0.5 * still["left"][row : row + 1]), h, np.full((3, 2), 0.1))
            assert_close(outputs[row, step], h[0], 4, 3)
