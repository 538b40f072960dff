"""`Bidirectional` and `Stack`: what their parts give, put together by hand, on every form of sequences."""

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet.cells import CELLS
from stepnet.errors import InputError, StepError
from stepnet.model.merge import MERGES

LENGTHS = (3, 0, 1, 6)
BATCH, TIME, INPUTS, HIDDEN = len(LENGTHS), max(LENGTHS), 2, 3
FORMS = ["ragged", "padded", "dense"]


@cache  # so that what is compiled for one test serves the others
def recurrence(inputs: int = INPUTS, seed: int = 0, reverse: bool = False, name: str = "gru") -> sn.RNN:
    return rnn_of(name, inputs, HIDDEN, seed=seed, dtype="float64", reverse=reverse)


def given(form: str) -> tuple[Any, dict[str, Any], list[np.ndarray]]:
    """Sequences in one form, what goes with them in a call, and the same as a list."""
    x = np.random.default_rng(7).normal(size=(BATCH, TIME, INPUTS))
    if form == "dense":
        return x, {}, list(x)
    sequences = [row[:length] for row, length in zip(x, LENGTHS, strict=True)]
    if form == "padded":
        return x, {"lengths": LENGTHS}, sequences
    return sn.Ragged.from_list(sequences), {}, sequences


def listed(outputs: Any, form: str) -> list[np.ndarray]:
    """The outputs as a list of [steps, features], once they have the form of the inputs."""
    if form == "ragged":
        assert isinstance(outputs, sn.Ragged)
        return outputs.to_list()
    assert isinstance(outputs, np.ndarray)
    assert outputs.shape[:2] == (BATCH, TIME)
    if form == "dense":
        return list(outputs)
    assert all(not outputs[row, length:].any() for row, length in enumerate(LENGTHS))
    return [outputs[row, :length] for row, length in enumerate(LENGTHS)]


def run(rnn: sn.RNN, x: np.ndarray, initial: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """One GRU over one sequence [steps, inputs], a step at a time; a reverse one from its last step."""
    memory = np.zeros((1, HIDDEN)) if initial is None else initial.reshape(1, HIDDEN)
    outputs: list[np.ndarray] = []
    for step in reversed(range(len(x))) if rnn.reverse else range(len(x)):
        output, memory = rnn.step(x[step : step + 1], memory, rnn.params)
        outputs.append(output)
    outputs = outputs[::-1] if rnn.reverse else outputs
    return np.concatenate([np.zeros((0, HIDDEN)), *outputs]), memory[0]


def last(outputs: np.ndarray, reverse: bool = False) -> np.ndarray:
    return outputs[0 if reverse else -1] if len(outputs) else np.zeros(outputs.shape[1:])


def merged_by_hand(merge: str, forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
    if merge == "concat":
        return np.hstack([forward, backward])
    return {"sum": forward + backward, "average": (forward + backward) / 2, "product": forward * backward}[
        merge
    ]


FORWARD, BACKWARD = recurrence(seed=1), recurrence(seed=2, reverse=True)


# ---- two directions


@pytest.mark.long(every=5)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("merge", MERGES)
def test_directions_are_merged_at_every_step(merge: str, form: str, engine: str):
    x, options, sequences = given(form)
    outputs, final = sn.Bidirectional(FORWARD, BACKWARD, merge)(x, engine=engine, **options)
    for row, (sequence, output) in enumerate(zip(sequences, listed(outputs, form), strict=True)):
        (forward, h), (backward, back) = run(FORWARD, sequence), run(BACKWARD, sequence)
        assert_close(output, merged_by_hand(merge, forward, backward), TIME, INPUTS + HIDDEN)
        assert_close(final["forward"][row], h, TIME, INPUTS + HIDDEN)
        assert_close(final["backward"][row], back, TIME, INPUTS + HIDDEN)


@pytest.mark.long(every=5)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("merge", MERGES)
def test_last_outputs_are_each_directions_own(merge: str, form: str, engine: str):
    x, options, sequences = given(form)
    both = sn.Bidirectional(FORWARD, BACKWARD, merge)
    outputs, _ = both(x, engine=engine, last_only=True, **options)
    for sequence, output in zip(sequences, outputs, strict=True):
        forward, backward = last(run(FORWARD, sequence)[0]), last(run(BACKWARD, sequence)[0], reverse=True)
        assert_close(output, merged_by_hand(merge, forward, backward), TIME, INPUTS + HIDDEN)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("form", FORMS)
def test_directions_without_a_merge_are_a_pair(form: str, engine: str):
    x, options, sequences = given(form)
    outputs, _ = sn.Bidirectional(FORWARD, BACKWARD, None)(x, engine=engine, **options)
    forward, backward = (listed(each, form) for each in outputs)
    for row, sequence in enumerate(sequences):
        assert_close(forward[row], run(FORWARD, sequence)[0], TIME, INPUTS + HIDDEN)
        assert_close(backward[row], run(BACKWARD, sequence)[0], TIME, INPUTS + HIDDEN)


def test_initial_memories_of_directions(engine: str):
    x, _, sequences = given("ragged")
    random = np.random.default_rng(8)
    initial = {"backward": random.normal(size=(BATCH, HIDDEN)), "forward": None}
    outputs, final = sn.Bidirectional(FORWARD, BACKWARD)(x, initial=initial, engine=engine)
    for row, sequence in enumerate(sequences):
        (forward, _), (backward, h) = (
            run(FORWARD, sequence),
            run(BACKWARD, sequence, initial["backward"][row]),
        )
        assert_close(outputs[row], np.hstack([forward, backward]), TIME, INPUTS + HIDDEN)
        assert_close(final["backward"][row], h, TIME, INPUTS + HIDDEN)


def running_sum(x: Any, h: Any, params: Any, statics: Any) -> Any:
    """Outputs in a structure, one of them without a feature axis, and a memory in a structure."""
    h = h["sum"] + x * statics
    return {"all": h, "first": h[:, 0]}, {"sum": h}


SUMS = [sn.RNN(running_sum, memory={"sum": INPUTS}, reverse=reverse) for reverse in (False, True)]


@pytest.mark.long(every=5)
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("form", FORMS)
def test_structures_of_outputs_are_merged_leaf_by_leaf(form: str, merge: str, engine: str):
    x, options, sequences = given(form)
    one, other = np.full((BATCH, INPUTS), 2.0), np.full((BATCH, INPUTS), -1.0)
    statics = {"forward": one, "backward": other}
    both = sn.Bidirectional(SUMS[0], SUMS[1], merge)
    outputs, final = both(x, statics=statics, engine=engine, **options)
    assert list(outputs) == ["all", "first"]
    ends, _ = both(x, statics=statics, engine=engine, last_only=True, **options)
    every, first = listed(outputs["all"], form), listed(outputs["first"], form)
    for row, sequence in enumerate(sequences):
        forward = np.cumsum(2.0 * sequence, axis=0)
        backward = np.cumsum(-sequence[::-1], axis=0)[::-1]
        assert_close(every[row], merged_by_hand(merge, forward, backward), TIME, INPUTS)
        alone = merged_by_hand(merge, forward[:, :1], backward[:, :1])
        assert_close(first[row], alone if merge == "concat" else alone[:, 0], TIME, INPUTS)
        end = merged_by_hand(merge, last(forward), last(backward, reverse=True))
        assert_close(ends["all"][row], end, TIME, INPUTS)
        alone = merged_by_hand(merge, last(forward)[:1], last(backward, reverse=True)[:1])
        assert_close(ends["first"][row], alone if merge == "concat" else alone[0], TIME, INPUTS)
        assert_close(final["backward"]["sum"][row], last(backward, reverse=True), TIME, INPUTS)


# ---- layers


@pytest.mark.long(each=True)
@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_a_layer_are_the_inputs_of_the_next(form: str, engine: str):
    layers = [recurrence(seed=1), recurrence(HIDDEN, seed=2, reverse=True), recurrence(HIDDEN, seed=3)]
    x, options, sequences = given(form)
    initial = (None, np.random.default_rng(9).normal(size=(BATCH, HIDDEN)), None)
    outputs, final = sn.Stack(layers)(x, initial=initial, engine=engine, **options)
    ends, _ = sn.Stack(layers)(x, initial=initial, last_only=True, engine=engine, **options)
    assert isinstance(final, tuple)
    for row, (sequence, output) in enumerate(zip(sequences, listed(outputs, form), strict=True)):
        for place, layer in enumerate(layers):
            memory = initial[place]
            sequence, h = run(layer, sequence, None if memory is None else memory[row])
            assert_close(final[place][row], h, 3 * TIME, 2 * HIDDEN)
        assert_close(output, sequence, 3 * TIME, 2 * HIDDEN)
        assert_close(ends[row], last(sequence), 3 * TIME, 2 * HIDDEN)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("form", FORMS)
def test_layers_of_directions(form: str, engine: str):
    above = recurrence(2 * HIDDEN, seed=3), recurrence(2 * HIDDEN, seed=4, reverse=True)
    stack = sn.Stack([sn.Bidirectional(FORWARD, BACKWARD), sn.Bidirectional(*above, "sum")])
    x, options, sequences = given(form)
    outputs, final = stack(x, engine=engine, **options)
    ends, _ = stack(x, engine=engine, last_only=True, **options)
    for row, (sequence, output) in enumerate(zip(sequences, listed(outputs, form), strict=True)):
        below = np.hstack([run(FORWARD, sequence)[0], run(BACKWARD, sequence)[0]])
        (forward, _), (backward, h) = (run(layer, below) for layer in above)
        assert_close(output, forward + backward, 2 * TIME, 3 * HIDDEN)
        assert_close(ends[row], last(forward) + last(backward, reverse=True), 2 * TIME, 3 * HIDDEN)
        assert_close(final[1]["backward"][row], h, 2 * TIME, 3 * HIDDEN)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("form", FORMS)
def test_directions_of_layers(form: str, engine: str):
    above = recurrence(HIDDEN, seed=3), recurrence(HIDDEN, seed=4, reverse=True)
    both = sn.Bidirectional(sn.Stack([FORWARD, above[0]]), sn.Stack([sn.Stack([BACKWARD]), above[1]]))
    x, options, sequences = given(form)
    outputs, final = both(x, engine=engine, **options)
    for row, (sequence, output) in enumerate(zip(sequences, listed(outputs, form), strict=True)):
        forward, _ = run(above[0], run(FORWARD, sequence)[0])
        backward, h = run(above[1], run(BACKWARD, sequence)[0])
        assert_close(output, np.hstack([forward, backward]), 2 * TIME, 2 * HIDDEN)
        assert_close(final["backward"][1][row], h, 2 * TIME, 2 * HIDDEN)
    assert final["backward"][0][0].shape == (BATCH, HIDDEN)


def test_statics_of_layers(engine: str):
    x, _, sequences = given("ragged")

    def scaled(x: Any, h: Any, params: Any, statics: Any) -> Any:
        h = h + x * statics
        return h, h

    statics = np.arange(BATCH * INPUTS, dtype=np.float64).reshape(BATCH, INPUTS)
    stack = sn.Stack([sn.RNN(scaled, memory=INPUTS), recurrence(seed=1)])
    outputs, _ = stack(x, statics=(statics, None), engine=engine)
    for row, sequence in enumerate(sequences):
        below = np.cumsum(sequence * statics[row], axis=0)
        assert_close(outputs[row], run(FORWARD, below)[0], TIME, INPUTS + HIDDEN)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("lengths", [(), (0,), (1,), (0, 0)])
def test_few_and_empty_sequences(lengths: tuple[int, ...], engine: str):
    x = sn.Ragged.from_list([np.ones((length, INPUTS)) for length in lengths], "float64", INPUTS)
    stack = sn.Stack([sn.Bidirectional(FORWARD, BACKWARD), recurrence(2 * HIDDEN)])
    outputs, final = stack(x, engine=engine)
    ends, _ = stack(x, engine=engine, last_only=True)
    assert outputs.lengths.tolist() == list(lengths)
    assert outputs.features == (HIDDEN,)
    assert ends.shape == final[1].shape == final[0]["forward"].shape == (len(lengths), HIDDEN)
    np.testing.assert_array_equal(ends, final[1])
    for row, length in enumerate(lengths):
        assert bool(final[0]["forward"][row].any()) == bool(length)


def test_only_the_top_layer_gives_its_last_output_alone():
    stack = sn.Stack([recurrence(INPUTS), recurrence(HIDDEN)])
    stack(given("dense")[0], last_only=True)
    (program,) = stack.programs.by_arrays.values()
    assert [part.last_only for part in program.schedule.parts] == [False, True]


# ---- what does not fit


def broken(x: Any, h: Any, params: Any) -> Any:
    return h, h[:, 1:]


def loose(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sn.Stack([]), "a Stack has at least one layer"),
        (lambda: sn.Stack([FORWARD, np.tanh]), "layer 1 is an RNN, a Bidirectional or a Stack, not a ufunc"),
        (
            lambda: sn.Bidirectional(FORWARD, BACKWARD, "mean"),
            "merge is 'concat', 'sum', 'average', 'product' or None, not 'mean'",
        ),
        (
            lambda: sn.Bidirectional(FORWARD, FORWARD),
            "the backward direction is made with reverse=True, and RNN(gru",
        ),
        (
            lambda: sn.Bidirectional(sn.Stack([FORWARD, BACKWARD]), BACKWARD),
            "the forward direction is made with reverse=False, and RNN(gru",
        ),
        (
            lambda: sn.Bidirectional(FORWARD, sn.Bidirectional(FORWARD, BACKWARD)),
            "the backward direction is made with reverse=True, and RNN(gru",
        ),
        (
            lambda: sn.Bidirectional(FORWARD, loose(3)),
            "backward is an RNN, a Bidirectional or a Stack, not a int",
        ),
    ],
)
def test_parts_that_do_not_fit(make: Any, message: str):
    with pytest.raises(InputError, match=re.escape(message)):
        make()


BOTH = sn.Bidirectional(FORWARD, BACKWARD)


@pytest.mark.parametrize(
    ("layer", "options", "error", "message"),
    [
        (
            BOTH,
            {"initial": np.zeros(3)},
            InputError,
            "initial of a Bidirectional is {'forward': ..., 'backward'",
        ),
        (BOTH, {"statics": {"forward": 1}}, InputError, "statics of a Bidirectional is {'forward': ..., "),
        (
            BOTH,
            {"initial": {"forward": np.zeros((1, 2)), "backward": None}},
            InputError,
            "the forward direction: the initial memory `h` is [1, 2]; it should be [4, 3]",
        ),
        (
            sn.Stack([BOTH]),
            {"initial": np.zeros((1, 3))},
            InputError,
            "initial of a Stack is a tuple, one entry for each of its 1 layers",
        ),
        (sn.Stack([BOTH]), {"initial": (None, None)}, InputError, "initial of a Stack is a tuple, one entry"),
        (
            sn.Stack([FORWARD, sn.Stack([sn.Bidirectional(sn.RNN(broken, memory=4), BACKWARD)])]),
            {},
            StepError,
            "layer 1: layer 0: the forward direction: the memory `h` enters the step as f64[4]",
        ),
        (
            sn.Bidirectional(FORWARD, recurrence(reverse=True, name="lstm"), None),
            {"initial": {"forward": None, "backward": np.zeros((BATCH, HIDDEN))}},
            InputError,
            "the backward direction: initial is array, the memory `memory` is {h: array, c: array}",
        ),
        (
            sn.Bidirectional(FORWARD, sn.RNN(lambda x, h, p: (x, h), memory=1, reverse=True), "sum"),
            {},
            InputError,
            "outputs of the two directions do not merge by 'sum': their features are (3,) and (2,)",
        ),
        (
            sn.Bidirectional(FORWARD, sn.RNN(lambda x, h, p: (x[:, 0], h), memory=1, reverse=True)),
            {},
            InputError,
            "outputs of the two directions do not merge by 'concat': their features are (3,) and ()",
        ),
        (
            sn.Bidirectional(FORWARD, sn.RNN(lambda x, h, p: ((x, h), h), memory=1, reverse=True)),
            {},
            InputError,
            "outputs of the two directions do not merge: array and (array, array)",
        ),
    ],
)
def test_calls_that_do_not_fit(layer: Any, options: dict[str, Any], error: type, message: str):
    for form in ("dense", "ragged"):
        with pytest.raises(error, match=re.escape(message)):
            layer(given(form)[0], engine="interpret", **options)


def test_explain_has_every_recurrence_under_its_name():
    text = sn.Stack([recurrence(), BOTH]).explain(engine="interpret")
    names = ["layer 0:", "layer 1:", "the forward direction:", "the backward direction:"]
    assert [line for line in text.splitlines() if line.endswith(":") and line in names] == names
    assert f"layer 0:\n{recurrence().explain(engine='interpret')}" in text
    assert f"the backward direction:\n{BACKWARD.explain(engine='interpret')}" in text


def test_explain_before_the_inputs_are_known():
    unknown = sn.RNN(recurrence().step, recurrence().params, memory=HIDDEN, reverse=True)
    with pytest.raises(InputError, match="layer 0: the backward direction: the inputs are not known yet"):
        sn.Stack([sn.Bidirectional(FORWARD, unknown)]).explain()


def test_layers_are_what_was_given():
    assert BOTH.layers == (FORWARD, BACKWARD)
    assert sn.Stack([FORWARD, BOTH]).layers == (FORWARD, BOTH)
    assert repr(BOTH).startswith("Bidirectional(forward=RNN(gru, ")


# ---- control, streams, and inside a step ---------------------------------------------------------------


def counted(x: Any, h: Any, p: Any, index: Any) -> tuple[Any, Any]:
    """A GRU that also hears how many steps were."""
    h = sn.cells.gru(x + 0.1 * index[:, None], h, p)[1]
    return h, h


def of_two(reverse: bool) -> sn.Stack:
    """Two layers that count their steps."""
    sizes = [(0, INPUTS), (1, HIDDEN)]
    params = [CELLS["gru"].parameters(inputs, HIDDEN, seed=seed, dtype="float64") for seed, inputs in sizes]
    return sn.Stack([sn.RNN(counted, each, memory=HIDDEN, reverse=reverse) for each in params])


def both_ways() -> sn.Bidirectional:
    return sn.Bidirectional(of_two(reverse=False), of_two(reverse=True), merge="sum")


@pytest.mark.long(every=5)
@pytest.mark.parametrize("masked", ["repeat", "zero"])
@pytest.mark.parametrize("form", FORMS)
def test_a_mask_reaches_every_recurrence(form: str, masked: str, engine: str):
    x, rest, sequences = given(form)
    mask: Any = np.random.default_rng(3).uniform(size=(BATCH, TIME)) < 0.6
    kept = [one[counts[: len(one)]] for one, counts in zip(sequences, mask, strict=True)]
    counted_steps = [counts[: len(one)] for one, counts in zip(sequences, mask, strict=True)]
    if form == "ragged":
        mask = sn.Ragged.from_list(counted_steps)
    gru = sn.Bidirectional(
        sn.Stack([recurrence(), recurrence(HIDDEN, 1)]),
        sn.Stack([recurrence(reverse=True), recurrence(HIDDEN, 1, reverse=True)]),
        merge=None,
    )
    outputs, final = gru(x, mask=mask, masked=masked, engine=engine, **rest)
    right, last = gru(sn.Ragged.from_list(kept), engine=engine)
    for name in ("forward", "backward"):
        for found, wanted in zip(final[name], last[name], strict=True):
            np.testing.assert_array_equal(found, wanted)
    for found, wanted in zip(outputs, right, strict=True):
        for one, counts, steps in zip(listed(found, form), counted_steps, wanted.to_list(), strict=True):
            np.testing.assert_array_equal(one[counts], steps)
            assert masked == "repeat" or not one[~counts].any()


def test_steps_before_a_call_are_counted_in_every_layer(engine: str):
    stack, x = of_two(reverse=False), given("dense")[0]
    whole, last = stack(x, engine=engine)
    first, final = stack(x[:, :2], engine=engine)
    rest, final = stack(x[:, 2:], final, begun=2, engine=engine)
    np.testing.assert_array_equal(np.concatenate([first, rest], axis=1), whole)
    for found, wanted in zip(final, last, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert not np.array_equal(stack(x[:, 2:], stack(x[:, :2])[1])[0], rest)


def test_a_stream_through_layers_is_the_whole_sequence(engine: str):
    stack, x = sn.Stack([of_two(reverse=False), recurrence(HIDDEN, 5)]), given("dense")[0]
    whole, last = stack(x, engine=engine)
    stream = stack.stream(BATCH, engine=engine)
    for at in range(TIME):
        np.testing.assert_array_equal(stream.step(x[:, at]), whole[:, at])
    np.testing.assert_array_equal(stream.state[0][1], last[0][1])
    np.testing.assert_array_equal(stream.state[1], last[1])
    stream.reset(2)
    again = stream.step(x[:, 0])
    np.testing.assert_array_equal(again[2], whole[2, 0])
    onward, _ = stack(x[[0, 1, 3], :1], tuple_of(last, [0, 1, 3]), begun=TIME, engine=engine)
    np.testing.assert_array_equal(again[[0, 1, 3]], onward[:, 0])
    initial = ((np.ones((BATCH, HIDDEN)), None), np.zeros((BATCH, HIDDEN)))
    stream.reset(initial=initial)
    np.testing.assert_array_equal(stream.step(x[:, 0]), stack(x[:, :1], initial, engine=engine)[0][:, 0])


def tuple_of(structure: Any, rows: list[int]) -> Any:
    """The rows of arrays in nested tuples."""
    if isinstance(structure, tuple):
        return tuple(tuple_of(one, rows) for one in structure)
    return structure[rows]


def test_layers_that_have_no_stream():
    with pytest.raises(InputError, match="layer 1: a Bidirectional begins at a sequence's last step"):
        sn.Stack([recurrence(), both_ways()]).stream()
    with pytest.raises(InputError, match=r"layer 0: a recurrence with reverse=True .* has no stream"):
        sn.Stack([recurrence(reverse=True)]).stream()
    with pytest.raises(InputError, match=r"layer 1: input x has features \[3\]; this .* for \[4\]"):
        sn.Stack([recurrence(), recurrence(HIDDEN + 1)]).stream(1).step(np.ones((1, INPUTS)))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("merge", ["concat", "sum", None])
def test_both_directions_inside_a_step(merge: str | None, engine: str):
    encoder = sn.Bidirectional(recurrence(), recurrence(reverse=True, seed=1), merge=merge)
    above: Any = sn.Stack([encoder, recurrence(HIDDEN * 2, 2)]) if merge == "concat" else encoder

    def heard(outputs: Any) -> Any:
        return np.concatenate(outputs, axis=-1) if isinstance(outputs, tuple) else outputs

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        outputs, final = above(x, initial="zeros", last_only=True)
        h = np.tanh(heard(outputs) @ p + h)
        last = final[0]["backward"] if merge == "concat" else final["backward"]
        return {"h": h, "last": last}, h

    size = 2 * HIDDEN if merge is None else HIDDEN
    weights = np.random.default_rng(2).normal(size=(size, 4))
    _, _, sequences = given("ragged")
    outputs, final = sn.RNN(step, weights, memory=4)(
        sn.Ragged.from_list([sequences[:3], [], sequences[3:]]), engine=engine
    )
    flat, lasts = above(sn.Ragged.from_list(sequences), last_only=True, engine=engine)
    backward = (lasts[0] if merge == "concat" else lasts)["backward"]
    inner, h = heard(flat), np.zeros((3, 4))
    for row, numbers in enumerate(([0, 1, 2], [], [3])):
        for at, number in enumerate(numbers):
            h[row] = np.tanh(inner[number] @ weights + h[row])
            assert_close(outputs["h"][row][at], h[row], 12, 8)
            np.testing.assert_array_equal(outputs["last"][row][at], backward[number])
    assert_close(final, h, 12, 8)


def test_zeros_may_be_said_outside_a_step(engine: str):
    x = given("ragged")[0]
    for layer in (recurrence(), of_two(reverse=False), both_ways()):
        np.testing.assert_array_equal(
            layer(x, initial="zeros", engine=engine)[0].values, layer(x, engine=engine)[0].values
        )
