"""Schedules with inner and static sequences as one block of machine code, from the second call of some
lengths on: nets with loops whose steps are schedules, their gradients, and nets without.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from constants import Constants
from entered import entered
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import InputError

Array = np.ndarray
HIDDEN = 4


def uniform(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("f4")


def ragged(lengths: list[int], width: int, seed: int = 0) -> sn.Ragged:
    values = uniform(sum(lengths), width, seed=seed)
    return sn.Ragged(values, (np.cumsum([0, *lengths]),))


def documents(*sizes: list[int]) -> sn.Ragged:
    """Documents of sentences of words, by the number of words of each sentence."""
    return ragged([words for document in sizes for words in document], 3).group([len(each) for each in sizes])


words = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=3, hidden=HIDDEN))


def attending(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
    """Attention over keys that each row has."""
    scores = np.exp(np.tanh(statics + sn.expand(h @ p["query"], statics)) @ p["scores"])
    context = sn.reduce(scores * statics, "sum") / (1 + sn.reduce(scores, "sum"))
    h = np.tanh(x @ p["inputs"] + context @ p["context"] + h)
    return h, h


def weighing(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """Attention over the outputs of a recurrence over words, which begins with the outer memory."""
    outputs, last = words(x, initial=h)
    weights = np.exp(np.tanh(outputs @ p["scores"]))
    h = np.tanh(sn.reduce(weights * outputs, "sum") @ p["context"] + last)
    return h, h


def marking(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """A step that gives words back, so that it is a schedule."""
    marked = np.tanh(x @ p["inputs"] + sn.expand(h, x))
    h = words(x, initial=h)[1] + sn.reduce(marked, "max")
    return marked, h


def averaging(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """A recurrence over words that no outer memory enters: it runs once, over the words of all sentences."""
    h = np.tanh(sn.reduce(words(x, initial="zeros")[0], "mean") @ p + h)
    return h, h


PARAMS = {
    "query": uniform(HIDDEN, 2, seed=1),
    "scores": uniform(2, 1, seed=2),
    "inputs": uniform(3, HIDDEN, seed=3),
    "context": uniform(2, HIDDEN, seed=4),
}
OF_WORDS = {"scores": uniform(HIDDEN, 1, seed=5), "context": uniform(HIDDEN, HIDDEN, seed=6)}
TEXTS = documents([3, 0, 2], [], [1], [2, 5, 0, 1])


def gradient(step: Any, params: Any, x: sn.Ragged, statics: Any = None) -> Callable[[str], list[Array]]:
    """The gradients of a recurrence, as a function of an engine."""
    run = sn.vjp(sn.RNN(step, params, memory=HIDDEN))

    def call(engine: str) -> list[Array]:
        (outputs, final), backward = run(x, engine=engine, statics=statics)
        made = backward(outputs, final)
        return arrays([made.params, made.inputs, made.initial, made.statics])

    return call


def forward(model: Any, x: sn.Ragged, **others: Any) -> Callable[[str], list[Array]]:
    """The results of a model, as a function of an engine."""
    return lambda engine: arrays(model(x, engine=engine, **others))


def arrays(values: Any) -> list[Array]:
    """All arrays of a structure."""
    if isinstance(values, dict):
        return [array for name in sorted(values) for array in arrays(values[name])]
    if isinstance(values, list | tuple):
        return [array for value in values for array in arrays(value)]
    return [] if values is None else [np.array(values.values if isinstance(values, sn.Ragged) else values)]


KEYS = ragged([3, 1, 0, 5], 2, seed=7)
MARKED = sn.RNN(marking, {"inputs": PARAMS["inputs"]}, memory=HIDDEN)
APART = sn.RNN(averaging, uniform(HIDDEN, HIDDEN, seed=9), memory=HIDDEN)
CALLS = {
    "loop": forward(MARKED, TEXTS),
    "loop from a memory": forward(MARKED, TEXTS, initial=uniform(4, HIDDEN, seed=8)),
    "loop in reverse": forward(sn.RNN(marking, MARKED.params, memory=HIDDEN, reverse=True), TEXTS),
    "gradient of attention": gradient(attending, PARAMS, ragged([4, 2, 0, 5], 3), KEYS),
    "gradient of an inner recurrence": gradient(weighing, OF_WORDS, TEXTS),
    "without a loop": forward(APART, TEXTS),
    "gradient without a loop": gradient(averaging, APART.params, TEXTS),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_calls_of_the_same_lengths_are_one_block(name: str, threads: int):
    """With the bits of the first call, which runs part by part, and the numbers of the interpreter."""
    call, right = CALLS[name], CALLS[name]("interpret")
    sn.set_threads(threads)
    first = call("llvm")
    for _ in range(3):
        again = call("llvm")
        assert [array.tobytes() for array in again] == [array.tobytes() for array in first]
    _, names = entered(call, "llvm")
    assert names.isdisjoint({"part_execution.py", "loop_buffers.py"})
    for ours, theirs in zip(first, right, strict=True):
        assert_close(ours, theirs, 40, HIDDEN)


def test_other_lengths_and_values_run_beside_a_block():
    model = sn.RNN(marking, MARKED.params, memory=HIDDEN)
    for seed in range(2):
        for sizes in ([[3, 1], [2]], [[1], [4, 2]], [[3, 1], [2]], [[3, 1], [2]]):
            x = documents(*sizes)
            x = x.with_values(uniform(*x.values.shape, seed=seed))
            for ours, theirs in zip(arrays(model(x)), arrays(model(x, engine="interpret")), strict=True):
                assert_close(ours, theirs, 10, HIDDEN)


def beginning(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """A step whose inner recurrence begins with a parameter, and that gives words back."""
    outputs, last = words(x, initial=sn.expand(p["begin"], h))
    return outputs, np.tanh(last + h)


READING = {
    "in kernels": (attending, PARAMS, ragged([4, 2, 0, 5], 3), KEYS),
    "between kernels": (beginning, {"begin": uniform(HIDDEN)}, TEXTS, None),
}


@pytest.mark.parametrize("name", READING)
def test_a_block_reads_new_parameters(name: str):
    step, like, x, statics = READING[name]
    run, given = sn.vjp(sn.RNN(step, like, memory=HIDDEN)), uniform(4, HIDDEN, seed=9)
    for seed in range(4):
        params = {name: uniform(*array.shape, seed=seed) for name, array in like.items()}
        ours, right = (
            arrays(run(x, params=params, engine=engine, statics=statics)[1](None, given).params)
            for engine in ("llvm", "interpret")
        )
        for one, other in zip(ours, right, strict=True):
            assert_close(one, other, 20, HIDDEN)


@pytest.mark.usefixtures("small_calls_are_shared")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_block_goes_on_after_pauses_and_reports_its_progress(threads: int, constants: Constants):
    """Machine code pauses after every block of steps; on two threads, both have tasks of a kernel."""
    constants("stepnet.compiler.targets.cpu.running.prepared_chain", SLICE=1e-9)
    model, seen = sn.RNN(marking, MARKED.params, memory=HIDDEN), list[sn.Progress]()
    x = documents([70, 60], [40], [50, 80, 90])
    sn.set_threads(1)
    expected = arrays(model(x))
    sn.set_threads(threads)
    for _ in range(3):
        seen.clear()
        with sn.progress(seen.append):
            made = arrays(model(x))
        assert [array.tobytes() for array in made] == [array.tobytes() for array in expected]
    assert len(seen) > 1
    assert [one.steps for one in seen] == sorted(one.steps for one in seen)
    assert {one.all_steps for one in seen} == {6}
    assert (seen[-1].is_done, seen[-1].sequences) == (True, 3)


def test_a_block_refuses_an_index_outside_its_table():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        marked = p[x[:, 0].astype(int)] + sn.expand(h, x)
        return marked, h + sn.reduce(marked, "sum")

    model = sn.RNN(step, uniform(5, HIDDEN), memory=HIDDEN)
    x = ragged([3, 1, 2], 1).with_values(np.array([[0], [1], [2], [3], [4], [4]], "f4")).group([2, 1])
    expected = arrays(model(x))
    for _ in range(3):
        with pytest.raises(InputError, match="outside the rows of the parameter"):
            model(x.with_values(x.values + 1))
        for one, right in zip(arrays(model(x)), expected, strict=True):
            np.testing.assert_array_equal(one, right)
