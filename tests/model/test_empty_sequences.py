"""Sequences without steps, and batches without sequences: their prepared calls keep memories as they are."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from constants import Constants
from same_bits import assert_same_bits
from zoo import normal, rnn_of, uniform

import stepnet as sn
from stepnet.compiler.values import leaves, transform
from stepnet.errors import InputError

Array = np.ndarray
pytestmark = pytest.mark.usefixtures("same_threads")
LENGTHS = [[3, 0, 4], [0, 2, 0], [0, 0, 0], [5], [0], [], [1, 0, 0, 9, 2, 0, 3, 0], [2] * 20 + [0] + [4] * 19]
"""With few and many sequences, and lanes that the lengths of a first call may have and these do not."""


def both(inputs: int, seed: int) -> sn.Bidirectional:
    ahead, back = rnn_of("gru", inputs, 8, seed=seed), rnn_of("lstm", inputs, 8, seed=seed, reverse=True)
    return sn.Bidirectional(ahead, back)


def reduced() -> sn.Graph:
    """Two layers, of which the second one reads what is left of the first one's mean, and all reductions."""
    first, second = rnn_of("gru", 4, 8), rnn_of("lstm", 8, 8, seed=3)

    def model(x: Any, _: Any) -> Any:
        y, h = first(x)
        z = second(y - sn.expand(sn.reduce(y, "mean"), y))[0]
        ends = {how: sn.reduce(z, how) for how in ("sum", "mean", "max", "first", "last")}
        return {"z": z, "h": h, **ends}

    return sn.Graph(model)


def carried() -> sn.Graph:
    """Two layers, of which the second one begins with a function of the first one's last memory."""
    first, second = rnn_of("gru", 4, 8), rnn_of("gru", 4, 8, seed=3)

    def model(x: Any, p: Any) -> Any:
        y, h = second(x, np.tanh(first(x)[1] @ p + 0.25))
        return {"y": y, "h": h}

    return sn.Graph(model, normal(8, 8))


MODELS: dict[str, Callable[[], Any]] = {
    "gru": lambda: rnn_of("gru", 4, 8),
    "lstm, reverse": lambda: rnn_of("lstm", 4, 8, reverse=True),
    "stack": lambda: sn.Stack([rnn_of("gru", 4, 8), rnn_of("lstm", 8, 8)]),
    "directions": lambda: sn.Stack([both(4, 0), both(16, 1)]),
    "reduced": reduced,
    "carried": carried,
}
LAYERS = ["gru", "lstm, reverse", "stack", "directions"]


def sequences(lengths: Any, seed: int = 0) -> sn.Ragged:
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    return sn.Ragged(uniform(int(offsets[-1]), 4, seed=seed), (offsets,))


def memories(lengths: Any, like: Any) -> Any:
    """Initial memories in the structure of final ones: other numbers for each sequence and place."""
    drawn = iter(range(1, 100))
    return transform(lambda each: uniform(len(lengths), *each.shape[1:], seed=next(drawn)), like)


def warm(model: Any, call: Callable[[sn.Ragged], Any]) -> None:
    """Prepares calls for about as many sequences as each of `LENGTHS` has."""
    for rows in (1, 2, 3, 8, 40):
        for longest in (3, 2, 3):
            call(sequences([longest] * rows))


def run(
    model: Any,
    x: Any,
    initial: Any = None,
    *,
    lengths: Any = None,
    last_only: bool = False,
    time_major: bool = False,
) -> Any:
    """The results of a call that is prepared."""
    _, results = model.programs.prepared(x, initial, lengths, last_only, "auto", "repeat", time_major)
    assert results is not None
    return results


def of_filled(lengths: Any, results: Any) -> Any:
    """The arrays of results, those of the sequences with steps alone."""
    filled = np.flatnonzero(lengths)
    return [each.values if isinstance(each, sn.Ragged) else each[filled] for each in leaves(results)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_other_sequences_have_the_bits_of_a_call_without_empty_ones(name: str, threads: int):
    sn.set_threads(threads)
    model, expected = MODELS[name](), list[Any]()
    inputs = [sequences(lengths, seed) for seed, lengths in enumerate(LENGTHS)]
    for lengths, x in zip(LENGTHS, inputs, strict=True):
        kept = sn.Ragged(x.values, (np.cumsum([0, *filter(None, lengths)]).astype(np.int64),))
        expected.append([np.asarray(getattr(each, "values", each)) for each in leaves(MODELS[name]()(kept))])
    warm(model, model)
    is_prepared = name not in ("carried", "reduced")  # whose parts do not run in one go
    for lengths, x, own in zip(LENGTHS, inputs, expected, strict=True):
        assert_same_bits(of_filled(lengths, run(model, x) if is_prepared else model(x)), own)


@pytest.mark.parametrize("name", LAYERS)
def test_empty_sequences_end_with_the_memories_that_they_began_with(name: str):
    model = MODELS[name]()
    final = model(sequences([2]))[1]
    warm(model, lambda x: model(x, memories(x.lengths, final)))
    for lengths in LENGTHS:
        begun, idle = memories(lengths, final), np.array(lengths, np.int64) == 0
        ended = run(model, sequences(lengths), begun)[1]
        assert_same_bits(*([each[idle] for each in leaves(kept)] for kept in (ended, begun)))
        without = run(model, sequences(lengths))[1]
        assert not any(each[idle].any() for each in leaves(without))


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_padded_arrays(name: str, time_major: bool):
    model, calls = MODELS[name](), list[Any]()
    for rows, time in ((rows, time) for rows in (1, 3, 8, 40) for time in (3, 2, 3)):
        for room in (time, min(5, time + 2)):
            shape, lengths = ((room, rows, 4) if time_major else (rows, room, 4)), np.full(rows, time)
            model(uniform(*shape), lengths=lengths, time_major=time_major)
    for lengths in LENGTHS:
        x = np.full((len(lengths), max(lengths, default=0) + 1, 4), np.nan, "f4")
        ragged = sequences(lengths)
        for row, own in enumerate(ragged.to_list()):
            x[row, : len(own)] = own
        calls.append((lengths, np.ascontiguousarray(x.swapaxes(0, 1)) if time_major else x, ragged))
    expected = [MODELS[name]()(ragged) for _, _, ragged in calls]
    for (lengths, x, _), (outputs, final) in zip(calls, expected, strict=True):
        made, ended = run(model, x, lengths=np.array(lengths, np.int64), time_major=time_major)
        assert_same_bits(ended, final)
        made = made.swapaxes(0, 1) if time_major else made
        steps = np.arange(made.shape[1]) < np.array(lengths, np.int64)[:, None]
        assert_same_bits(made[steps], outputs.values)
        assert not made[~steps].any()


@pytest.mark.parametrize("shape", [(3, 0), (0, 5), (0, 0)])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_whole_arrays_without_steps_or_sequences(name: str, time_major: bool, shape: tuple[int, int]):
    model, rows = MODELS[name](), shape[1 if time_major else 0]
    results = [model(np.zeros((*shape, 4), "f4"), time_major=time_major) for _ in range(3)]
    results.append(run(model, np.zeros((*shape, 4), "f4"), time_major=time_major))
    for outputs, final in results:
        assert outputs.shape[:2] == shape
        assert all(each.shape[0] == rows and not each.any() for each in leaves(final))
    begun = memories(range(rows), results[0][1])
    assert_same_bits(run(model, np.zeros((*shape, 4), "f4"), begun, time_major=time_major)[1], begun)


def test_reductions_of_no_steps_are_zeros():
    model = MODELS["reduced"]()
    for lengths in [[3, 4, 2]] * 3 + LENGTHS:
        results, idle = model(sequences(lengths)), np.array(lengths, np.int64) == 0
        for how in ("sum", "mean", "max", "first", "last", "h"):
            assert_same_bits(results[how][idle], np.zeros((idle.sum(), 8), "f4"))


def test_a_memory_that_an_earlier_part_makes_is_kept_too():
    model, start = MODELS["carried"](), np.tanh(np.zeros((1, 8), "f4") + np.float32(0.25))
    for lengths in [[3, 4, 2]] * 3 + LENGTHS:
        final, idle = model(sequences(lengths))["h"], np.array(lengths, np.int64) == 0
        np.testing.assert_allclose(final[idle], np.repeat(start, idle.sum(), 0), rtol=1e-6)


@pytest.mark.parametrize("name", LAYERS[:3])
def test_the_last_output_of_an_empty_sequence_is_zeros(name: str):
    model, every = MODELS[name](), [MODELS[name]()(sequences(lengths))[0] for lengths in LENGTHS]
    warm(model, lambda x: model(x, last_only=True))
    call = model if name == "stack" else partial(run, model)  # those of several parts are not prepared
    for lengths, expected in zip(LENGTHS, every, strict=True):
        outputs, _ = call(sequences(lengths), last_only=True)
        last = 0 if name == "lstm, reverse" else -1
        ends = [own[last] if len(own) else np.zeros(own.shape[1:], "f4") for own in expected.to_list()]
        assert_same_bits(outputs, np.reshape(ends, outputs.shape).astype("f4"))


def test_last_outputs_of_both_directions_are_zeros_where_a_call_before_had_others():
    model = both(4, 0)
    warm(model, lambda x: model(x, last_only=True))
    for lengths in LENGTHS:
        model(sequences([3] * len(lengths), seed=1), last_only=True)
        outputs, _ = model(sequences(lengths), last_only=True)
        assert_same_bits(outputs, both(4, 0)(sequences(lengths), last_only=True)[0])
        assert not outputs[np.array(lengths, np.int64) == 0].any()


@pytest.mark.usefixtures("small_calls_are_shared")
@pytest.mark.parametrize("name", ["gru", "directions"])
def test_lanes_that_run_several_sequences(name: str, constants: Constants):
    constants("stepnet.compiler.targets.cpu.running.sequence_layout", EVEN_SECONDS=0)
    sn.set_threads(2)
    model = MODELS[name]()
    for empty in (0, 0, 0, 5, 30, 39, 40):
        lengths = np.random.default_rng(empty).permutation([60, *range(2, 41)])
        lengths[:empty] = 0
        x = sequences(lengths, empty)
        kept = sn.Ragged(x.values, (np.cumsum([0, *lengths[lengths > 0]]).astype(np.int64),))
        own = [np.asarray(getattr(each, "values", each)) for each in leaves(MODELS[name]()(kept))]
        assert_same_bits(of_filled(lengths, model(x)), own)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients(name: str):
    """Gradients of other sequences are as without the empty ones, through which those of memories pass."""
    model, runs = MODELS[name](), MODELS[name]()
    for lengths in LENGTHS:
        x = sequences(lengths)
        final = model(sequences([2]))[1]
        begun, ends = memories(lengths, final), memories(lengths, final)
        filled, idle = np.flatnonzero(lengths), np.flatnonzero(np.array(lengths) == 0)
        kept = sn.Ragged(x.values, (np.cumsum([0, *filter(None, lengths)]).astype(np.int64),))
        some = [transform(lambda each: each[filled], each) for each in (begun, ends)]  # noqa: B023
        (outputs, _), backward = sn.vjp(runs)(kept, initial=some[0])
        expected = backward(outputs, some[1])
        for _ in range(4):
            (outputs, _), backward = sn.vjp(model)(x, initial=begun)
            made = backward(outputs, ends)
            assert_same_bits(made.params, expected.params)
            assert_same_bits(made.inputs.values, expected.inputs.values)
            for own, other, end in zip(*map(leaves, (made.initial, expected.initial, ends)), strict=True):
                assert_same_bits(own[filled], other)
                assert_same_bits(own[idle], end[idle])


def test_sequences_that_are_shorter_than_padding_reads_are_refused_and_empty_ones_are_not():
    layer = rnn_of("gru", 4, 8)

    def padded() -> sn.Graph:
        return sn.Graph(lambda x, _: layer(sn.pad_steps(x, (2, 9)))[0])

    for rows in (1, 40):  # whose lengths no other call has given
        model = padded()
        for _ in range(10):
            assert model(sequences([0] * rows)).lengths.tolist() == [0] * rows
    model = padded()
    for lengths in ([15, 20, 12], [11, 15, 10], [20, 0, 11], [0, 0, 0], [0, 30, 0]):
        x = sequences(lengths)
        assert_same_bits(model(x).values, padded()(x).values)
    fresh = padded()
    for _ in range(4):  # of which one prepares calls with other sequences in the place of empty ones
        with pytest.raises(InputError, match=r"reads 9 steps besides .* and sequence 1 has 4"):
            fresh(sequences([0, 4, 20]))
    run(model, sequences([12, 0, 11]))
    for lengths in ([20, 9, 15], [20, 1, 0]):
        with pytest.raises(InputError, match=r"reads 9 steps besides .* and sequence 1 has"):
            model(sequences(lengths))
