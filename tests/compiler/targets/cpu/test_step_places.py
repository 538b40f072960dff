"""Steps that lie otherwise than end to end: a batch [time, batch, features], PyTorch's packed sequences.

The same sequences give the same bits wherever their steps lie, and outputs lie as the inputs do.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from planned import schedule

import stepnet as sn
from stepnet.compiler.net import Net
from stepnet.compiler.targets import Bound, Call, Results, engine_named
from stepnet.compiler.values import leaves
from stepnet.model.control import Control, run_until
from stepnet.ragged import Positions, offsets_of

pytestmark = pytest.mark.usefixtures("small_calls_are_shared", "same_threads")

Array = np.ndarray
RANDOM = np.random.default_rng(0)
ENGINES = {name: engine_named(name) for name in ("interpret", "llvm")}
PLAIN = Control()
LENGTHS = st.lists(st.integers(0, 9), max_size=12)


@dataclass(frozen=True)
class Layout:
    """Where steps lie: as a call has it."""

    starts: Array
    steps: Array | None
    total: int


def time_major(lengths: Array) -> Layout:
    """The places of an array [time, batch, features], which has one step more than the sequences."""
    batch, time = len(lengths), int(lengths.max(initial=0)) + 1
    return Layout(np.arange(batch, dtype=np.int64), np.arange(time, dtype=np.int64) * batch, batch * time)


def packed(lengths: Array) -> Layout:
    """The places of the data of a `PackedSequence`: step by step, the sequences that have this step."""
    rank = np.empty(len(lengths), np.int64)
    rank[np.argsort(-lengths, kind="stable")] = np.arange(len(lengths))
    sizes = [int(np.count_nonzero(lengths > step)) for step in range(int(lengths.max(initial=0)))]
    return Layout(rank, np.cumsum([0, *sizes])[:-1].astype(np.int64), int(lengths.sum()))


def padded(lengths: Array) -> Layout:
    """The places of an array [batch, time, features], given by a table."""
    batch, time = len(lengths), int(lengths.max(initial=0))
    return Layout(np.arange(batch, dtype=np.int64) * time, np.arange(time, dtype=np.int64), batch * time)


LAYOUTS = {"time": time_major, "packed": packed, "padded": padded}


def step(x: Any, h: Any, params: Any, statics: Any, index: Any) -> tuple[Any, Any]:
    """A memory beside an output that feeds none, so that there is work before, in and after the loop."""
    h = np.tanh(x["x"] @ params["W"] + h @ params["R"] + statics) * (index[:, None] % 3 > 0)
    return {"h": h, "out": h @ params["V"] + x["y"]}, h


PARAMS = {name: RANDOM.normal(size=shape).astype("f4") for name, shape in (("W", (3, 5)), ("R", (5, 5)))}
PARAMS["V"] = RANDOM.normal(size=(5, 2)).astype("f4")


ENDING = Control(until=lambda output, memory: output["h"][:, 0] > 0.5)


@cache
def bound(engine: str, reverse: bool, control: Control = PLAIN) -> Bound:
    """The step, compiled and bound, under control."""
    return ENGINES[engine].compile(schedule(traced_net(reverse, control))).bind(leaves(PARAMS))


def traced_net(reverse: bool, control: Control) -> Net:
    """The net of the step under control."""
    rnn = sn.RNN(step, PARAMS, memory=5, inputs={"x": 3, "y": 2}, statics=5, reverse=reverse)
    traced = rnn.program.traced
    return (control.around(rnn.step, traced) if control else traced).net(reverse)


def end_to_end(lengths: Array, last_only: bool, masked: bool, begun: bool) -> Call:
    """A call of random numbers, whose sequences lie end to end."""
    total, batch = int(lengths.sum()), len(lengths)
    random = np.random.default_rng(0)
    shapes = ((total, 3), (total, 2), (batch, 5), (batch, 5))
    x, y, initial, statics = (random.normal(size=shape).astype("f4") for shape in shapes)
    mask = [random.random(total) < 0.7] if masked else []
    return Call(
        Positions.end_to_end(offsets_of(lengths)),
        [x, y, *mask],
        [initial, *[None] * (2 if masked else 0)],
        [statics],
        last_only=last_only,
        step_offset=np.arange(batch, dtype=np.int64) if begun else None,
    )


def places(call: Call) -> Array:
    """Where the steps of a call lie, sequence after sequence."""
    batch = len(call.positions.lengths)
    return call.positions.step_indices(np.arange(batch), np.zeros(batch, np.int64), call.positions.lengths)


def moved(call: Call, layout: Layout) -> Call:
    """The same call, its steps lying elsewhere among other numbers."""
    positions = replace(call.positions, starts=layout.starts, steps=layout.steps, total=layout.total)
    there = replace(call, positions=positions)
    arrays: list[Array] = []
    for sequence in call.sequences:
        array = np.ones((layout.total, *sequence.shape[1:]), sequence.dtype)
        array[places(there)] = sequence
        arrays.append(array)
    return replace(there, sequences=arrays)


def moved_back(call: Call, there: Call, results: Results) -> Results:
    """The results as they would lie end to end; nothing lies between."""
    if call.last_only:
        return results
    at = places(there)
    for output in results.outputs:
        assert len(output) == there.positions.total
        assert not np.delete(output, at, axis=0).any()
    return Results([output[at] for output in results.outputs], results.final)


def assert_same_bits(one: Results, other: Results) -> None:
    for a, b in zip([*one.outputs, *one.final], [*other.outputs, *other.final], strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.mark.long(each=True, examples=20)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kind", ENGINES)
@settings(max_examples=60, phases=[Phase.generate])
@given(
    lengths=LENGTHS,
    reverse=st.booleans(),
    last_only=st.booleans(),
    masked=st.booleans(),
    begun=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_the_same_sequences_give_the_same_bits_wherever_they_lie(
    kind: str,
    name: str,
    lengths: list[int],
    reverse: bool,
    last_only: bool,
    masked: bool,
    begun: bool,
    threads: int,
) -> None:
    sn.set_threads(threads)
    run = bound(kind, reverse, Control("repeat") if masked else PLAIN)
    call = end_to_end(np.array(lengths, np.int64), last_only, masked, begun)
    there = moved(call, LAYOUTS[name](call.positions.lengths))
    assert_same_bits(moved_back(call, there, run(there)), run(call))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_call_longer_than_a_block_of_steps(name: str, reverse: bool) -> None:
    lengths = np.array([700, 1, 0, 300, 650, 2], np.int64)
    run = bound("llvm", reverse)
    call = end_to_end(lengths, False, False, True)
    there = moved(call, LAYOUTS[name](lengths))
    assert_same_bits(moved_back(call, there, run(there)), run(call))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_prepared_call_keeps_the_table(name: str, reverse: bool) -> None:
    def plain(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        h = np.tanh(x @ params["W"] + h @ params["R"])
        return h, h

    rnn = sn.RNN(plain, PARAMS, memory=5, inputs=3, reverse=reverse)
    run = ENGINES["llvm"].compile(rnn.schedule).bind(leaves(rnn.params))
    lengths = np.array([4, 9, 1, 9], np.int64)
    layout = LAYOUTS[name](lengths)
    x = RANDOM.normal(size=(layout.total, 3)).astype("f4")
    call = Call(Positions(layout.starts, lengths, layout.total, layout.steps), [x], [None])
    prepared, at = run.prepare(call), places(call)
    assert prepared is not None
    expected = run(call)
    del call, layout
    junk = [np.full(9, 7) for _ in range(64)]  # where a table that nobody keeps would have been
    again = prepared.run([x, None], None)
    assert len(junk) == 64
    assert_same_bits(
        Results([output[at] for output in again.outputs], again.final),
        Results([output[at] for output in expected.outputs], expected.final),
    )


@pytest.mark.long(each=True)
@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("reverse", [False, True])
def test_early_ends_are_found_wherever_steps_lie(kind: str, name: str, reverse: bool) -> None:
    run, net = bound(kind, reverse, ENDING), traced_net(reverse, ENDING)
    lengths = np.array([30, 0, 5, 17], np.int64)
    call = end_to_end(lengths, False, False, False)
    call = replace(call, initial=[*call.initial, None, None])
    ended, results = run_until(run, call, net, ended=1)
    ended_there, results_there = run_until(run, moved(call, LAYOUTS[name](lengths)), net, ended=1)
    assert ended.tolist() == ended_there.tolist() != lengths.tolist()
    assert_same_bits(results_there, results)
