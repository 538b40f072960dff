"""Sequences that a condition ends early, and generation, in one launch of the emulated device, compared with
the interpreter.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn

LENGTHS = 7, 0, 12, 1, 5, 12
WIDTH = 6


def accumulator(reverse: bool = False, limit: float = 2.0) -> sn.RNN:
    """A recurrence that adds up and ends when the first sum is over a limit."""
    random = np.random.default_rng(4)

    def step(x: Any, state: Any, p: Any) -> Any:
        total = state["total"] + np.abs(x[:, 0])
        h = np.tanh(x @ p["W"] + state["h"] @ p["R"])
        return h * total[:, None], {"total": total, "h": h}

    parameters = {
        "W": random.normal(size=(3, WIDTH)).astype("f4"),
        "R": random.normal(size=(WIDTH, WIDTH)).astype("f4"),
    }
    memory = {"total": (), "h": WIDTH}
    return sn.RNN(
        step, parameters, memory=memory, inputs=3, reverse=reverse, until=lambda y, s: s["total"] > limit
    )


def sequences() -> sn.Ragged:
    random = np.random.default_rng(1)
    return sn.Ragged.from_list([random.normal(size=(n, 3)).astype("f4") for n in LENGTHS])


def plain(x: Any, rnn: sn.RNN, limit: float) -> np.ndarray:
    """The outputs of one sequence by a loop in float64, up to the step that ends it."""
    total, h, outputs = 0.0, np.zeros(WIDTH), list[np.ndarray]()
    weights = {name: array.astype(np.float64) for name, array in rnn.params.items()}
    for now in x.astype(np.float64)[:: -1 if rnn.reverse else 1]:
        total += abs(now[0])
        h = np.tanh(now @ weights["W"] + h @ weights["R"])
        outputs.append(h * total)
        if total > limit:
            break
    return np.reshape(outputs[:: -1 if rnn.reverse else 1], (len(outputs), WIDTH))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [0.0, 2.0, 1e9])
def test_a_flag_ends_sequences_in_one_launch(reverse: bool, limit: float, done: list[str]) -> None:
    rnn, given = accumulator(reverse, limit), sequences()
    outputs, memory = rnn(given, engine="cuda-emulated")
    assert done.count("loop") == 1
    for x, ours in zip(given, outputs, strict=True):
        assert_close(ours, plain(x, rnn, limit), 12, WIDTH)
    _, expected = rnn(given, engine="interpret")
    for ours, theirs in zip(memory.values(), expected.values(), strict=True):
        assert_close(ours, theirs, 12, WIDTH)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_last_outputs_and_bits_alone(reverse: bool, done: list[str]) -> None:
    rnn, given = accumulator(reverse), sequences()
    last, _ = rnn(given, last_only=True, engine="cuda-emulated")
    whole, _ = rnn(given, engine="cuda-emulated")
    for row, (x, own) in enumerate(zip(given, whole, strict=True)):
        expected = own[0 if reverse else -1] if len(own) else np.zeros(WIDTH, "f4")
        np.testing.assert_array_equal(last[row], expected)
        alone, _ = rnn(sn.Ragged.from_list([x]), engine="cuda-emulated")
        np.testing.assert_array_equal(alone[0], own)
    assert done.count("loop") == 2 + len(LENGTHS)


def test_a_table_is_not_read_behind_the_end(done: list[str]) -> None:
    rnn = sn.RNN(
        lambda x, place, p: (p["table"][place], place + x),
        {"table": np.arange(5, dtype="f4")},
        memory=sn.Spec((), np.int64),
        inputs=sn.Spec((), np.int64),
        until=lambda y, place: place > 4,
    )
    given = sn.Ragged.from_list([np.full(9, 1), np.full(9, 0)])
    outputs, _ = rnn(given, engine="cuda-emulated")
    assert [list(own) for own in outputs] == [[0, 1, 2, 3, 4], [0] * 9]
    assert done.count("loop") == 1


WORDS = sn.RNN(lambda word, c, p: (c, np.tanh(word @ p + c)), np.eye(3, WIDTH, dtype="f4"), memory=WIDTH)


def of_inner_sequences(state: Any, x: Any, p: Any) -> Any:
    """A step that reads a sequence of its own by a mean, a maximum and a recurrence."""
    _, last = WORDS(x, "zeros")
    h = np.tanh(sn.reduce(x @ p["W"], "mean") + state["h"] @ p["R"] + last)
    total = state["total"] + abs(sn.reduce(x, "max")[:, 0])
    return h * total[:, None] + sn.reduce(x @ p["W"], "max"), {"total": total, "h": h}


def of_outputs_alone(state: Any, x: Any, p: Any) -> Any:
    """A step whose output needs no memory."""
    h = np.tanh(sn.reduce(x @ p["W"], "mean") + state["h"] @ p["R"])
    return sn.reduce(x @ p["W"], "max"), {"total": state["total"] + abs(h[:, 0]) + 0.4, "h": h}


def of_memories(state: Any, x: Any, p: Any) -> Any:
    """A step that reads a sequence of its own by its memory, which runs part by part."""
    h = np.tanh(sn.reduce(x @ p["W"] * sn.expand(state["h"] + 1, x), "mean"))
    return h, {"total": state["total"] + abs(h[:, 0]), "h": h}


@pytest.mark.parametrize(
    ("step", "reverse"),
    [
        (of_inner_sequences, False),
        (of_inner_sequences, True),
        (of_outputs_alone, False),
        (of_outputs_alone, True),
        (of_memories, False),
    ],
)
def test_inner_sequences(step: Any, reverse: bool, done: list[str]) -> None:
    random = np.random.default_rng(2)
    shapes = {"W": (3, WIDTH), "R": (WIDTH, WIDTH)}
    rnn = sn.RNN(
        lambda x, state, p: step(state, x, p),
        {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()},
        memory={"total": (), "h": WIDTH},
        reverse=reverse,
        until=lambda y, state: state["total"] > 4,
    )
    given = sn.Ragged.from_list(
        [[random.normal(size=(1 + at % 3, 3)).astype("f4") for at in range(n)] for n in (23, 1, 0, 4, 30)]
    )
    outputs, memory = rnn(given, engine="cuda-emulated")
    expected, theirs = rnn(given, engine="interpret")
    assert (expected.lengths < given.lengths).any()
    np.testing.assert_array_equal(outputs.lengths, expected.lengths)
    assert_close(outputs.values, expected.values, 30, WIDTH)
    for name, array in memory.items():
        assert_close(array, theirs[name], 30, WIDTH)
    last, _ = rnn(given, last_only=True, engine="cuda-emulated")
    np.testing.assert_array_equal(last[0], outputs[0][0 if reverse else -1])
    assert done.count("loop") == (0 if step is of_memories else 2), "one for each call"
    said = "several for each step" if step is of_memories else "one for all steps: blocks leave the loop"
    assert f"launches {said}" in " ".join(rnn.explain("cuda", rows=5, steps=30).split())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_results_do_not_depend_on_the_order_of_threads(
    shuffle_threads: Callable[[int], None], seed: int
) -> None:
    rnn, given = accumulator(), sequences()
    expected = rnn(given, engine="cuda-emulated")
    shuffle_threads(seed)
    ours = rnn(given, engine="cuda-emulated")
    np.testing.assert_array_equal(ours[0].values, expected[0].values)
    np.testing.assert_array_equal(ours[0].lengths, expected[0].lengths)


SYMBOLS = 5


def writer() -> sn.RNN:
    """A language model: an embedding, a recurrence, and scores of the symbols."""
    random = np.random.default_rng(0)
    shapes = {"E": (SYMBOLS, 3), "W": (3, WIDTH), "R": (WIDTH, WIDTH), "V": (WIDTH, SYMBOLS)}
    parameters = {name: random.normal(size=shape).astype("f4") * 1.5 for name, shape in shapes.items()}

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"])
        return h @ p["V"], h

    return sn.RNN(step, parameters, memory=WIDTH, inputs=sn.Spec((), np.int64))


def test_a_loop_is_left_when_all_sequences_have_ended() -> None:
    def seconds(most: int) -> float:
        begun = time.process_time()
        sn.generate(writer(), [0, 3, 4], stop=2, max_steps=most, engine="cuda-emulated")
        return time.process_time() - begun

    longest = max(len(own) for own in sn.generate(writer(), [0, 3, 4], stop=2, max_steps=10_000))
    assert longest < 50, "all sequences end"
    seconds(20)
    assert seconds(60_000) < 0.5 + 20 * seconds(50)
