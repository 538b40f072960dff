"""Kernels that run in one go: calls of any length, and both directions of a layer at the same time."""

from typing import Any

import numpy as np
import pytest
from callers import on_threads
from constants import Constants
from same_bits import assert_same_bits
from zoo import rnn_of, sequences

import stepnet as sn
from stepnet.compiler.targets.cpu.running import prepared_chain
from stepnet.compiler.targets.part_execution import PartRun
from stepnet.errors import InputError

Array = np.ndarray
pytestmark = [
    pytest.mark.alone,  # threads that wait for one another, on all processors
    pytest.mark.usefixtures("same_threads", "small_calls_are_shared"),
]


def layer(inputs: int, hidden: int, seed: int, kind: str = "gru", reverse: bool = False) -> sn.RNN:
    return rnn_of(kind, inputs, hidden, seed=seed, reverse=reverse)


def both(inputs: int, hidden: int, seed: int, kind: str = "gru") -> sn.Bidirectional:
    ahead, back = layer(inputs, hidden, seed, kind), layer(inputs, hidden, seed + 1, kind, reverse=True)
    return sn.Bidirectional(ahead, back)


def tagger() -> sn.Graph:
    """Words to tags: two layers of both directions, then a classifier."""
    first, second = both(8, 16, 0), both(32, 24, 2, "lstm")

    def model(words: Any, params: Any) -> Any:
        h, _ = second(first(params["table"][words])[0])
        return sn.softmax(h @ params["W"])

    random = np.random.default_rng(0)
    params = {"table": random.normal(size=(50, 8)), "W": random.normal(size=(48, 5))}
    return sn.Graph(model, {name: array.astype("f4") for name, array in params.items()})


MODELS: dict[str, Any] = {
    "directions": lambda: both(8, 16, 0),
    "layers of directions": lambda: sn.Stack([both(8, 16, 0), both(32, 8, 2, "lstm")]),
    "layers": lambda: sn.Stack([layer(8, 16, 0), layer(16, 16, 1, "lstm"), layer(16, 8, 2)]),
}
LENGTHS = [[1], [7], [33], [200], [5, 1, 9], [40, 3], [0, 4, 0], [0], [17] * 40, [], [*range(70)]]


def words(lengths: list[int], seed: int) -> sn.Ragged:
    return sequences(lengths, 8, seed=seed).with_values(
        np.random.default_rng(seed).integers(0, 50, sum(lengths))
    )


def one_by_one(monkeypatch: pytest.MonkeyPatch, run: Any, inputs: list[Any]) -> list[Any]:
    """The results with parts one after the other, by one thread."""
    with monkeypatch.context() as patch:
        patch.setattr(PartRun, "fits", lambda *_: False)
        sn.set_threads(1)
        return [run(x) for x in inputs]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_parts_in_one_go_give_the_bits_of_parts_one_by_one(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
):
    model = MODELS[name]()
    inputs = [sequences(lengths, 8, seed=seed) for seed, lengths in enumerate(LENGTHS)]
    inputs += [
        np.random.default_rng(rows).normal(size=(rows, 9, 8)).astype("f4") for rows in (1, 1, 1, 6, 6, 6)
    ]
    expected = one_by_one(monkeypatch, model, inputs)
    sn.set_threads(count)
    for _ in range(2):
        for x, right in zip(inputs, expected, strict=True):
            assert_same_bits(model(x), right)


def test_a_graph_in_one_go_gives_the_bits_of_its_parts(monkeypatch: pytest.MonkeyPatch):
    graph, inputs = tagger(), [words(lengths, seed) for seed, lengths in enumerate(LENGTHS) if lengths]
    padded = np.random.default_rng(9).integers(0, 50, (4, 12))
    calls = [lambda x=x: graph(x) for x in inputs]
    calls += [lambda n=n: graph(padded, lengths=np.array(n)) for n in ([12, 3, 7, 1], [12, 12, 12, 12])]
    expected = one_by_one(monkeypatch, lambda call: call(), calls)
    for count in (1, 2, 4):
        sn.set_threads(count)
        for call, right in zip(calls, expected, strict=True):
            assert_same_bits(call(), right)


def test_directions_of_one_sequence_run_at_the_same_time_where_there_are_threads(
    tasks_of_waves: list[int],
):
    model, x = both(64, 128, 0), np.zeros((1, 40, 64), "f4")
    for count, tasks in ((1, [1, 1, 1]), (2, [2, 1])):
        sn.set_threads(count)
        model(x)
        assert tasks_of_waves[: len(tasks)] == tasks
        model(x)  # which is frozen, and so prepared and run
        tasks_of_waves.clear()
        model(x)
        assert tasks_of_waves == tasks
        tasks_of_waves.clear()


def test_directions_of_lengths_never_seen_run_at_the_same_time(tasks_of_waves: list[int]):
    """In one block, whose first task lays out the sequences."""
    model = both(64, 128, 0)
    for count, tasks in ((1, [1] * 6), (2, [1, 2, 1, 1, 1])):
        sn.set_threads(count)
        for length in (40, 38, 41):
            model(sequences([length], 64))
        for length in (42, 30):
            tasks_of_waves.clear()
            model(sequences([length], 64))
            assert tasks_of_waves == tasks


def test_memory_is_prepared_once_for_all_lengths(monkeypatch: pytest.MonkeyPatch):
    graph, made = tagger(), list[Any]()
    sn.set_threads(2)
    for length in (40, 42):  # the second call is prepared for all lengths of one sequence
        graph(words([length], 0))
    make = prepared_chain.PreparedChain.__init__
    monkeypatch.setattr(
        prepared_chain.PreparedChain, "__init__", lambda *given: (made.append(given), make(*given))[1]
    )
    for length in (41, 60, 39, 61, 50):
        graph(words([length], length))
    assert made == []
    graph(words([40, 50], 0))
    assert len(made) == 1


def test_calls_that_pause_between_all_their_blocks_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    model = MODELS["layers of directions"]()
    inputs = [sequences(lengths, 8) for lengths in ([2000], [900, 40], [300] * 5)]
    expected = one_by_one(monkeypatch, model, inputs)
    constants(prepared_chain, SLICE=1e-9)
    for count in (1, 2, 4):
        sn.set_threads(count)
        for x, right in zip(inputs, expected, strict=True):
            assert_same_bits(model(x), right)


def test_calls_from_many_threads(monkeypatch: pytest.MonkeyPatch):
    graph = tagger()
    inputs = [words([length], length) for length in range(3, 30)]
    expected = one_by_one(monkeypatch, graph, inputs)
    sn.set_threads(2)

    def work(seed: int) -> None:
        for place in np.random.default_rng(seed).integers(0, len(inputs), 150):
            np.testing.assert_array_equal(graph(inputs[place]).values, expected[place].values)

    on_threads(5, work)


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_index_outside_a_table_in_one_of_the_directions(wrong: int):
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(p["E"][x] + h @ p["R"])
        return h, h

    def direction(rows: int, reverse: bool) -> sn.RNN:
        params = {"E": np.ones((rows, 64), "f4"), "R": np.zeros((64, 64), "f4")}
        return sn.RNN(step, params, memory=64, reverse=reverse)

    rows = [10, 10]
    rows[wrong] = 3
    model = sn.Bidirectional(direction(rows[0], False), direction(rows[1], True))
    sn.set_threads(2)
    right = np.tanh(np.ones((1, 4, 128)))
    for _ in range(5):
        with pytest.raises(InputError, match="an integer is outside the rows"):
            model(np.array([[1, 2, 3, 0]]))
        np.testing.assert_allclose(model(np.array([[1, 2, 0, 2]]))[0], right, rtol=1e-6)


def test_other_parameters_reach_what_runs_in_one_go():
    def model(x: Any, params: Any) -> Any:
        h = sn.RNN(lambda x, h, p: (np.tanh(x + h @ p), np.tanh(x + h @ p)), params["R"], memory=4)
        back = sn.RNN(
            lambda x, h, p: (np.tanh(x + h @ p), np.tanh(x + h @ p)), params["S"], memory=4, reverse=True
        )
        return h(x)[0] + back(x)[0]

    x = np.random.default_rng(0).normal(size=(1, 6, 4)).astype("f4")
    params = [{"R": np.full((4, 4), f, "f4"), "S": np.full((4, 4), f + 1, "f4")} for f in (0.1, 0.5)]
    sn.set_threads(2)
    graph = sn.Graph(model, params[0])
    graph(x)
    other = graph.with_params(params[1])
    assert_same_bits(other(x), sn.Graph(model, params[1])(x))
