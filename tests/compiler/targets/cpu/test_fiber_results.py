"""Other readers of memories that lie fiber by fiber: results that show them, lanes that take the place of
others, and concatenations.
"""

from time import process_time
from typing import Any

import numpy as np
import pytest
from planned import plan
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import Net
from stepnet.compiler.targets.cpu import host_processor
from stepnet.compiler.targets.cpu.lower.program import lowered
from tests.compiler.targets.cpu.test_fibers import Case, heads, loop, vectors

pytestmark = pytest.mark.usefixtures("small_calls_are_shared")


def written(x: Any, S: Any) -> Any:
    """The next matrix, for which the present one is summed."""
    return 0.5 * S + x["k"][:, :, None] * (x["v"] - (S * x["k"][:, :, None]).sum(1))[:, None, :]


def shows_turned(x: Any, memory: Any, params: Any) -> Any:
    """The output is the present matrix, transposed."""
    return memory["S"].swapaxes(1, 2), {"S": written(x, memory["S"])}


def shows_part(x: Any, memory: Any, params: Any) -> Any:
    """The output is a row of the present matrix."""
    return memory["S"][:, 1], {"S": written(x, memory["S"])}


def hands_on(x: Any, memory: Any, params: Any) -> Any:
    """The present matrix is the next value of another memory."""
    return x["v"], {"S": written(x, memory["S"]), "P": memory["S"]}


RESULTS = {
    "turned": Case(shows_turned, vectors(5, 24), {"S": (5, 24)}),
    "part": Case(shows_part, vectors(5, 24), {"S": (5, 24)}),
    "handed on": Case(hands_on, vectors(5, 24), {"S": (5, 24), "P": (5, 24)}),
}


@pytest.mark.parametrize("case", RESULTS.values(), ids=RESULTS.keys())
def test_a_result_shows_the_memory_of_before_the_step(case: Case) -> None:
    assert case.plan().fibers
    lengths = [4, 0, 1, 7]
    values, initial = case.values(lengths), case.begin(len(lengths))
    outputs, final = case.rnn()(values, initial=initial)
    right, last = loop(case, values, initial)
    assert_close(outputs.values, right, max(lengths), 24)
    for name, array in last.items():
        assert_close(final[name], array, max(lengths), 24)


def reads(x: Any, memory: Any, params: Any) -> Any:
    """The next matrix is put in the place of the present one: nothing reads that in an earlier phase."""
    scale = np.tanh(memory["n"].sum(1))[:, None, None]
    S = 0.5 * memory["S"] + scale * x["k"][:, :, None] * x["v"][:, None, :]
    y = np.concatenate([(S * x["q"][:, :, None]).sum(1), x["g"][:, None]], axis=1)
    return y, {"S": S, "n": np.tanh(memory["n"] + x["v"])}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.usefixtures("same_threads")
def test_a_lane_that_takes_the_place_of_another_keeps_its_matrix(threads: int) -> None:
    """Sequences of many lengths end early, so that the last lane at work moves again and again."""
    case = Case(reads, vectors(5, 24, q=(5,), g=()), {"S": (5, 24), "n": (24,)})
    inputs = {name: sn.Spec(shape, "float32") for name, shape in case.inputs.items()}
    rnn = sn.RNN(reads, memory=case.memory, inputs=inputs, until=lambda output, memory: output[:, -1] > 0.5)
    values, initial = case.values([40] * 60), case.begin(60)
    whole = values["g"].values.reshape(60, 40) > 0.5
    steps = np.where(whole.any(1), whole.argmax(1) + 1, 40)
    assert len(np.unique(steps)) > 5
    kept = (np.arange(40) < steps[:, None]).ravel()
    offsets = np.cumsum([0, *steps])
    taken = {name: sn.Ragged(x.values[kept], (offsets,)) for name, x in values.items()}
    sn.set_threads(threads)
    outputs, final = rnn(values, initial=initial)
    right, last = loop(case, taken, initial)
    np.testing.assert_array_equal(outputs.offsets[0], offsets)
    assert_close(outputs.values, right, 40, 24)
    assert_close(final["S"], last["S"], 40, 24)


def joined(x: Any, memory: Any, params: Any) -> Any:
    """Vectors of float64 are of 8 numbers or fewer; 64 of float32 begin behind 8 others."""
    S = 0.5 * memory["S"] + x["k"][:, :, None] * x["v"][:, None, :]
    n = np.tanh(x["a"] + memory["n"])
    z = np.concatenate([n, np.tanh((S * x["k"][:, :, None]).sum(1))], axis=1)
    return z, {"S": S, "n": n, "z": z, "t": memory["t"] + x["d"]}


def test_several_vectors_are_stored_into_a_part_of_a_concatenation() -> None:
    shapes = vectors(4, 64, a=(8,), d=())
    case = Case(joined, shapes, {"S": (4, 64), "n": (8,), "z": (72,), "t": ()})
    inputs = {name: sn.Spec(shape, "float64" if name == "d" else "float32") for name, shape in shapes.items()}
    memory = {
        name: sn.Spec(shape, "float64" if name == "t" else "float32") for name, shape in case.memory.items()
    }
    values, initial = case.values([3, 5]), case.begin(2)
    values["d"] = values["d"].with_values(values["d"].values.astype("float64"))
    initial["t"] = initial["t"].astype("float64")
    outputs, final = sn.RNN(joined, memory=memory, inputs=inputs)(values, initial=initial)
    right, last = loop(case, values, initial)
    assert_close(outputs.values, right, 5, 4)
    for name, array in last.items():
        assert_close(final[name], array, 5, 4)


def test_large_matrices_are_planned_soon() -> None:
    """The planner looks up where numbers lie many times, here among a quarter of a million."""
    times = list[float]()
    for size in (32, 128):
        shapes = {"q": (16, size), "k": (16, size), "v": (16, size), "g": (16,), "b": (16,)}
        net = Case(heads, shapes, {"S": (16, size, size)}).rnn().net
        times.append(min(seconds(net) for _ in range(3)))
    assert times[1] < 64 * times[0]  # of 16 times as many numbers; were it quadratic, 256 times


def seconds(net: Net) -> float:
    """The seconds that planning and lowering take."""
    begin = process_time()
    lowered(plan(net), host_processor())
    return process_time() - begin
