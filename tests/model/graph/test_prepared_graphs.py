"""Prepared calls of graphs, of which some parts run between the machine code of others."""

from typing import Any

import numpy as np
import pytest
from same_bits import assert_same_bits
from zoo import rnn_of, uniform

import stepnet as sn

CALLS = 4
"""The number of calls, of which the last ones are prepared."""


def reduced(how: str) -> Any:
    return lambda x, p: sn.reduce(x, how) @ p


MODELS: dict[str, Any] = {
    "sum": reduced("sum"),
    "mean": reduced("mean"),
    "max": reduced("max"),
    "first": reduced("first"),
    "last": reduced("last"),
    "softmax": lambda x, p: sn.softmax_over_steps(x) @ p,
    "repeated": lambda x, p: sn.expand(sn.reduce(x, "sum"), x) @ p + x @ p,
}


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_parts_between_machine_code_read_arrays_of_any_axes(name: str, rows: int, time_major: bool):
    graph, p = sn.Graph(MODELS[name], uniform(4, 3)), uniform(4, 3)
    for seed in range(CALLS):
        x = uniform(5, rows, 4, seed=seed) if time_major else uniform(rows, 5, 4, seed=seed)
        right = sn.Graph(MODELS[name], p)(x, time_major=time_major)
        assert_same_bits(graph(x, time_major=time_major), right)


def test_results_of_a_recurrence_that_nobody_reads():
    layer = rnn_of("gru", 3, 4)

    def model(x: Any, params: Any) -> Any:
        y, _ = layer(x)
        total = sn.reduce(sn.softmax_over_steps(y[:, :1]) * y, "sum")
        return total, sn.expand(total, y) + y

    graph, expected = sn.Graph(model, {}), list[Any]()
    for seed in range(CALLS):
        x = uniform(2, 5, 3, seed=seed)
        expected.append(sn.Graph(model, {})(x))
        assert_same_bits(graph(x), expected[-1])


@pytest.mark.parametrize("engine", ["llvm", "interpret"])
def test_results_are_arrays_of_their_own(engine: str):
    graph = sn.Graph(lambda x, p: (x, x, x[:, :2], x + p), np.float32(1))
    x = uniform(2, 5, 3)
    for _ in range(CALLS):
        results = graph(x, engine=engine)
        for place, one in enumerate(results):
            assert one.flags.writeable
            assert not any(np.shares_memory(one, other) for other in (x, *results[:place]))
