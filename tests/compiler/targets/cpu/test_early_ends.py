"""Lanes that take the next sequence where one has ended early: against sequences alone, and plain loops.

A few lanes, so that few sequences wait for one.
"""

from collections.abc import Generator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from constants import Constants
from controlled_loop import assert_right, right
from same_bits import assert_same_bits

import stepnet as sn
from stepnet.compiler.plan import CallPartition, Partition
from stepnet.compiler.targets import Call, EarlyEnds
from stepnet.compiler.targets.cpu import LlvmEngine
from stepnet.compiler.targets.cpu.running import ending, native, prepared_chain, sequence_layout, workspace
from stepnet.compiler.targets.cpu.threads.workers import WORKER_POOL, Lateness
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values import leaves, transform
from stepnet.errors import InputError
from stepnet.ragged import Positions

Array = np.ndarray
LANES = 4
F32, I64 = np.float32, np.int64
WAYS = {
    "one thread": CallPartition("alone", 1, 0.0),
    "2 threads by rows": CallPartition("rows", 2, 0.0),
    "5 threads by rows": CallPartition("rows", 5, 0.0),
    "2 threads by units": CallPartition("units", 2, 0.0),
    "5 threads by units": CallPartition("units", 5, 0.0),
}
pytestmark = pytest.mark.alone  # threads that wait for one another, on all processors


@pytest.fixture(autouse=True)
def few_lanes(constants: Constants) -> Generator[None]:
    before, WORKER_POOL.lateness = threads(), Lateness()
    constants(ending, LANES=LANES)
    constants(sequence_layout, LANES=LANES)
    yield
    sn.set_threads(before)
    WORKER_POOL.lateness = Lateness()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way in which threads share every call."""
    share_in(WAYS[request.param], monkeypatch)


def share_in(chosen: CallPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares every call of a new recurrence in a way."""
    sn.set_threads(chosen.threads)
    monkeypatch.setattr(native, "partition", lambda *_: Partition(chosen, (chosen,)))


# ---- a step with memories of several kinds

PARAMS = {
    name: np.random.default_rng(place).uniform(-0.7, 0.7, shape).astype(F32)
    for place, (name, shape) in enumerate({"W": (3, 20), "R": (20, 20), "S": (5, 20)}.items())
}
MEMORY = {"h": sn.Spec(20), "count": sn.Spec((), I64), "trace": sn.Spec((2, 2))}


def step(x: Any, memory: Any, p: Any, index: Any, statics: Any = None) -> Any:
    """Statics are multiplied by a matrix, which is done once for each sequence."""
    own = x["x"] @ p["W"] + memory["h"] @ p["R"] + (index % 3).astype(F32)[:, None] / 8
    h = np.tanh(own if statics is None else own + np.tanh(statics @ p["S"]))
    trace = memory["trace"] / 2 + h[:, :2, None] * h[:, None, 1:3]
    count = memory["count"] + 1
    return {"h": h, "count": count, "x": x["x"] * 2}, {"h": h, "count": count, "trace": trace}


def with_statics(x: Any, memory: Any, p: Any, index: Any, statics: Any) -> Any:
    return step(x, memory, p, index, statics)


def without_statics(x: Any, memory: Any, p: Any, index: Any) -> Any:
    return step(x, memory, p, index)


def at_flag(output: Any, memory: Any) -> Any:
    return output["flag"]


def flagged(function: Any) -> Any:
    """The step with one more input, which is an output too."""

    def run(x: Any, memory: Any, p: Any, **extras: Any) -> Any:
        output, after = function(x, memory, p, **extras)
        return {**output, "flag": x["flag"]}, after

    def plain(x: Any, memory: Any, p: Any, index: Any) -> Any:
        return run(x, memory, p, index=index)

    def still(x: Any, memory: Any, p: Any, index: Any, statics: Any) -> Any:
        return run(x, memory, p, index=index, statics=statics)

    return still if function is with_statics else plain


class Given:
    """Sequences, and where each ends: at the first flag in the direction of the recurrence."""

    def __init__(self, rows: int, often: float, statics: bool, begun: bool, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.lengths = random.choice([0, 1, 2, 7, 20, 31], rows, p=[0.1, 0.1, 0.1, 0.2, 0.2, 0.3])
        offsets = (np.concatenate([[0], np.cumsum(self.lengths)]),)
        total = int(self.lengths.sum())
        self.x = {
            "x": sn.Ragged(random.uniform(-1, 1, (total, 3)).astype(F32), offsets),
            "flag": sn.Ragged(random.uniform(0, 1, total) < often, offsets),
        }
        shapes = {"h": (20,), "trace": (2, 2)}
        drawn: dict[str, Array] = {
            n: random.uniform(-1, 1, (rows, *shape)).astype(F32) for n, shape in shapes.items()
        }
        drawn["count"] = random.integers(0, 9, rows)
        self.initial = {name: drawn[name] for name in MEMORY} if begun else None
        self.statics = random.uniform(-1, 1, (rows, 5)).astype(F32) if statics else None
        self.step = flagged(with_statics if statics else without_statics)

    def rnn(self, reverse: bool = False) -> sn.RNN:
        return sn.RNN(self.step, PARAMS, memory=MEMORY, reverse=reverse, until=at_flag)

    def arguments(self, rows: Any = slice(None)) -> tuple[Any, Any, Any]:
        places = np.arange(len(self.lengths))[rows]
        pick = {name: each.take(places) for name, each in self.x.items()}
        initial, statics = (
            None if each is None else transform(lambda array: array[places], each)
            for each in (self.initial, self.statics)
        )
        return pick, initial, statics

    def one_by_one(self, rnn: sn.RNN, **options: Any) -> list[tuple[Any, Any]]:
        return [rnn(*self.arguments([row]), **options) for row in range(len(self.lengths))]


def together(results: list[tuple[Any, Any]], last_only: bool) -> list[Any]:
    """The outputs and last memories of single sequences as those of one batch."""
    outputs, finals = zip(*([leaves(part) for part in result] for result in results), strict=True)
    join = np.concatenate if last_only else sn.Ragged.from_list
    joined = [join([each if last_only else each[0] for each in leaf]) for leaf in zip(*outputs, strict=True)]
    return [*joined, *(np.concatenate(leaf) for leaf in zip(*finals, strict=True))]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("statics", [False, True])
def test_each_sequence_has_the_bits_that_it_has_alone(
    statics: bool, reverse: bool, last_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Given(50, 0.08, statics, begun=reverse)
    share_in(WAYS["one thread"], monkeypatch)
    alone = together(given.one_by_one(given.rnn(reverse), last_only=last_only), last_only)
    for way in WAYS.values():
        share_in(way, monkeypatch)
        found = given.rnn(reverse)(*given.arguments(), last_only=last_only)
        assert_same_bits([*leaves(found[0]), *leaves(found[1])], alone)


@pytest.mark.long(each=True)
@pytest.mark.parametrize(("rows", "reverse"), [(1, False), (2, True), (3, False), (50, False), (50, True)])
@pytest.mark.parametrize("often", [0, 0.08, 0.5, 1])
def test_values_are_those_of_a_plain_loop(often: float, rows: int, reverse: bool) -> None:
    """From sequences that never end early to those that end at their first step."""
    given = Given(rows, often, statics=True, begun=True, seed=rows)
    x, initial, statics = given.arguments()
    found = given.rnn(reverse)(x, initial, statics)
    wanted = right(given.step, PARAMS, x, initial, statics, until=at_flag, reverse=reverse)
    assert_right(found, wanted, True, longest=31, width=20)
    taken = leaves(found[0])[0].lengths
    if often in (0, 1):
        assert taken.tolist() == np.minimum(given.lengths, 1 if often else 99).tolist()
    else:
        assert rows < 50 or (taken < given.lengths).sum() > 20


def test_no_sequences_and_none_with_steps() -> None:
    given = Given(6, 0.5, statics=True, begun=True)
    x, initial, statics = given.arguments(slice(0, 0))
    outputs, _ = given.rnn()(x, initial, statics)
    assert len(outputs["h"]) == 0
    empty = {name: each.take(np.flatnonzero(given.lengths < 0)) for name, each in x.items()}
    assert len(given.rnn()(empty, initial, statics)[0]["h"]) == 0
    none = [row for row in range(6) if not given.lengths[row]] or [0]
    x, initial, statics = given.arguments(none)
    x = {name: sn.Ragged.from_list([each[0][:0]] * len(none)) for name, each in x.items()}
    outputs, final = given.rnn()(x, initial, statics)
    assert outputs["h"].lengths.tolist() == [0] * len(none)
    assert_same_bits(final, initial)


# ---- what is computed


@pytest.mark.long(each=True)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.usefixtures("way")
def test_a_step_behind_an_end_indexes_nothing(rows: int) -> None:
    """The values behind the end are outside of the table. A step before the end may not read there."""
    random = np.random.default_rng(0)
    table = random.uniform(-1, 1, (5, 20)).astype(F32)

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(p["E"][x] + h @ p["R"])
        return {"h": h, "x": x}, h

    ends, length = random.integers(0, 29, rows), 30
    x = np.full((rows, length), 99)
    for row, end in enumerate(ends):
        x[row, : end + 1] = [*random.integers(0, 4, end), 4]
    rnn = sn.RNN(step, {"E": table, "R": PARAMS["R"]}, memory=20, until=lambda out, h: out["x"] == 4)
    outputs, _ = rnn(x)
    assert outputs["h"].lengths.tolist() == (ends + 1).tolist()
    late = int(np.argmax(ends))
    x[late, ends[late]] = 3
    with pytest.raises(InputError, match="an integer is outside the rows of the parameter"):
        rnn(x)


@pytest.mark.usefixtures("way")
def test_no_more_steps_are_computed_than_a_block_has() -> None:
    """A net whose memory counts on behind the end: how far each sequence was run."""

    def counting(x: Any, memory: Any, p: Any) -> Any:
        return memory["count"] + x, {"count": memory["count"] + 1, "ended": memory["ended"] | (x > 0.5)}

    memory = {"count": sn.Spec((), I64), "ended": sn.Spec((), "bool")}
    rnn = sn.RNN(counting, memory=memory, inputs=())
    run = LlvmEngine().compile(rnn.schedule).bind([])
    flag = list(rnn.memory).index("ended")
    rows, length = 60, 200
    ends = np.random.default_rng(1).integers(1, length, rows)
    x = np.zeros((rows, length), F32)
    x[np.arange(rows), ends - 1] = 1

    def counts(beyond: bool, rows: int) -> Array:
        total = rows * length
        call = Call(
            Positions.end_to_end(np.arange(rows + 1) * length),
            [x[:rows].reshape(total)],
            [None] * 2,
            until=EarlyEnds(flag, beyond),
        )
        results = run(call)
        assert len(results.outputs[0]) == ends[:rows].sum()
        return results.final[1 - flag]

    assert counts(beyond=False, rows=rows).tolist() == ends.tolist()
    for rows_ in (1, rows):
        most = counts(beyond=True, rows=rows_) - ends[:rows_]
        assert most.min() >= 0
        assert most.max() < workspace.ENDING_STEPS
    assert counts(beyond=True, rows=1)[0] % workspace.ENDING_STEPS == 0


def test_sequences_that_may_be_long_take_no_memory_for_it() -> None:
    """64 GB of outputs if none ended early."""
    rows, length = 40, 50_000
    x = np.zeros((rows, length), F32)
    x[:, 2] = 1
    x = np.stack([x, x], axis=-1)
    params = np.ones((1, 8192), F32)
    rnn = sn.RNN(
        lambda x, h, p: (x[:, :1] @ p, h + x[:, 0]), params, memory=(), until=lambda output, h: h > 0
    )
    outputs, final = rnn(x)
    assert outputs.lengths.tolist() == [3] * rows
    assert outputs.values.tolist() == [[0.0] * 8192, [0.0] * 8192, [1.0] * 8192] * rows
    assert final.tolist() == [1] * rows


# ---- pauses, room, and who watches


@pytest.mark.long(each=True)
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.usefixtures("way")
def test_pauses_and_more_room_change_nothing(
    last_only: bool, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    given = Given(300, 0.05, statics=True, begun=True)
    expected = given.rnn()(*given.arguments(), last_only=last_only)
    rooms, got = list[int](), ending.Room.get

    def spied(room: ending.Room, space: Any) -> None:
        rooms.append(room.rows)
        got(room, space)

    monkeypatch.setattr(ending.Room, "get", spied)
    constants(ending, ROOM_BYTES=1, ENDING_ROWS=LANES)
    constants(workspace, ENDING_ROWS=LANES)
    for seconds in (1e-9, 60):
        constants(prepared_chain, SLICE=seconds)
        rooms.clear()
        assert_same_bits(given.rnn()(*given.arguments(), last_only=last_only), expected)
        assert set(rooms) == (set() if last_only else {LANES})
        assert last_only or len(rooms) > 300


@pytest.mark.usefixtures("way")
def test_a_call_says_how_far_it_is(constants: Constants) -> None:
    constants(prepared_chain, SLICE=1e-9)
    given, seen = Given(200, 0.05, statics=True, begun=True), list[sn.Progress]()
    with sn.progress(seen.append):
        given.rnn()(*given.arguments())
    assert len(seen) > 3
    for one, following in pairwise(seen):
        assert 0 <= one.steps <= following.steps
        assert 0 <= one.sequences <= following.sequences
        assert not one.is_done
    filled = int(np.count_nonzero(given.lengths))
    assert {(one.all_steps, one.all_sequences) for one in seen} == {(int(given.lengths.sum()), filled)}
    assert 0 < seen[0].steps < seen[0].all_steps
    assert 0 < seen[len(seen) // 2].sequences < filled
    assert (seen[-1].steps, seen[-1].sequences) == (seen[-1].all_steps, filled)


@pytest.mark.usefixtures("way")
def test_an_interrupted_call_leaves_the_next_one_right(constants: Constants) -> None:
    constants(prepared_chain, SLICE=1e-9)
    given = Given(100, 0.05, statics=True, begun=True)
    rnn = given.rnn()
    expected, turns = rnn(*given.arguments()), 0

    def stop(_: sn.Progress) -> None:
        nonlocal turns
        turns += 1
        if turns % 4 == 0:
            raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), sn.progress(stop):
            rnn(*given.arguments())
        assert_same_bits(rnn(*given.arguments()), expected)


# ---- generation


@pytest.mark.parametrize("sampler", [None, sn.sampling(1.5)])
def test_rows_that_wait_write_what_they_write_alone(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    params = {
        "E": random.normal(size=(9, 6)),
        "R": random.normal(size=(6, 6)),
        "S": random.normal(size=(6, 9)),
    }

    def step(x: Any, h: Any, p: Any, statics: Any) -> Any:
        h = np.tanh(p["E"][x] + h @ p["R"] + statics)
        return h @ p["S"], h

    starts, statics = random.integers(0, 9, 60), random.normal(size=(60, 6))
    options: dict[str, Any] = {"max_steps": 50, "stop": [2, 7], "sampler": sampler, "seed": 3}

    def rnn() -> sn.RNN:
        return sn.RNN(step, params, memory=6, inputs=sn.Spec((), I64), statics=6)

    share_in(WAYS["one thread"], monkeypatch)
    one = rnn()
    alone = [
        sn.generate(one, starts[[row]], statics=statics[[row]], identities=[row], **options)[0]
        for row in range(60)
    ]
    assert len({len(symbols) for symbols in alone}) > 5
    for way in WAYS.values():
        share_in(way, monkeypatch)
        found = sn.generate(rnn(), starts, statics=statics, **options)
        assert_same_bits(found, sn.Ragged.from_list(alone))
