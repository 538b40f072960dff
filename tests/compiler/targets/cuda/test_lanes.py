"""Lanes that are refilled, on the emulation of a GPU: tables, the bits of sorted lanes, and when they pay."""

import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zoo import uniform

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.plan import Plan
from stepnet.compiler.targets.cuda import (
    LANE_WORDS,
    ChosenLoop,
    CudaEngine,
    CudaKernel,
    EmulatedDevice,
    LaidLoop,
    LanePace,
    LaneTable,
    LoopCode,
    TensorSchedule,
    TensorShape,
    TensorStep,
    assembled,
    code_of,
    grid_code,
    grid_form,
    laid,
    loop_code,
    ptxas,
    refilled_lanes,
    sorted_lanes,
    units_code,
)
from stepnet.compiler.values import leaves
from stepnet.errors import InputError
from stepnet.ragged import Positions
from tests.compiler.targets.cuda.tensor_loops import DEVICE, Case, cell_plan

ROW, START, TIME, BEFORE, COUNT, ENDS, STEPS = range(len(LANE_WORDS))
Array = np.ndarray
LENGTHS = 3, 7, 0, 1, 5, 0, 2, 9, 4, 3, 1
UNITS = 10


# ---- tables


def steps_run(table: LaneTable, count: int) -> list[list[int]]:
    """The steps of each sequence in the order in which lanes run them, checked on the way."""
    ran = [list[int]() for _ in range(count)]
    ended = [0] * count
    for first, last in zip(table.first, table.first[1:], strict=False):
        present: list[int | None] = [None] * table.lanes.shape[1]  # the sequence that goes on in a lane
        for turn in table.lanes[first:last]:
            assert (turn[:, STEPS] == turn[:, COUNT].max()).all()
            for lane, (row, before, steps, ends) in enumerate(turn[:, [ROW, BEFORE, COUNT, ENDS]]):
                if before == 1 and steps == 0:
                    assert present[lane] is None
                    continue
                assert present[lane] == (row if before else None)
                assert len(ran[row]) == before
                ran[row] += range(before, before + steps)
                ended[row] += int(ends)
                present[lane] = None if ends else int(row)
        assert all(row is None for row in present)
    assert ended == [1] * count
    return ran


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=40),
    st.sampled_from([1, 2, 8]),
    st.integers(1, 3),
    st.sampled_from([1, 2, 5]),
)
def test_lanes_run_each_step_of_each_sequence_once_in_order(
    lengths: list[int], lanes: int, groups: int, whole: int
) -> None:
    given = np.array(lengths)
    for table in (refilled_lanes(given, lanes, groups, whole), sorted_lanes(given, lanes, groups)):
        assert table.groups <= groups
        assert steps_run(table, len(lengths)) == [list(range(length)) for length in lengths]
        assert table.full_steps == sum(lengths)
        steps, turns = table.loads()
        assert turns.sum() == len(table.lanes)
        assert lanes * steps.sum() >= sum(lengths)


def test_a_lane_begins_its_next_sequence_in_the_step_after_one_ends() -> None:
    table = refilled_lanes(np.array([6, 2, 2, 2]), 2, 1)
    assert table.lanes[:, :, ROW].tolist() == [[0, 1], [0, 2], [0, 3]]
    assert table.lanes[:, :, BEFORE].tolist() == [[0, 0], [2, 0], [4, 0]]
    assert table.loads() == (np.array([6]), np.array([3]))
    assert sorted_lanes(np.array([6, 2, 2, 2]), 2, 1).loads()[0].tolist() == [8]


@pytest.mark.parametrize("reverse", [False, True])
def test_places_are_those_of_the_positions(reverse: bool) -> None:
    positions = Positions.padded(np.array([5, 0, 3, 2]), 6)
    table = refilled_lanes(positions.lengths, 2, 1)
    for row, start, time, before, steps in table.placed(positions, reverse)[:, :, :5].reshape(-1, 5):
        first = positions.lengths[row] - 1 - before if reverse else before
        assert (start, time) == ((6 * row, first) if steps else (0, 0))
    assert not table.lanes[:, :, [START, TIME]].any()


# ---- results


def gated(x: Any, m: Any, p: Any, statics: Any, index: Any) -> Any:
    """A product of one memory, a value per sequence, and the number of the step."""
    h = np.tanh(x + m["h"] @ p["R"] + statics + index[:, None].astype(x.dtype) / 8)
    return h, {"h": h, "c": 0.5 * m["c"] + h}


def matrix(x: Any, m: Any, p: Any, statics: Any, index: Any) -> Any:
    """The same with a memory that is a matrix, and one that counts."""
    S = 0.9 * m["S"] + (x * statics)[:, :, None] * np.tanh(m["h"])[:, None, :]
    h = np.tanh(x + m["h"] @ p["R"] + (S * m["h"][:, None, :]).sum(axis=2) + index[:, None].astype("f4") / 8)
    return h, {"h": h, "S": S, "n": m["n"] + 1}


def alone(x: Any, m: Any, p: Any, statics: Any, index: Any) -> Any:
    """A step whose units are alone."""
    h = sn.sigmoid(x) * m["h"] + statics * p["b"] + index[:, None].astype("f4") / 8
    return h, {"h": h}


def tensor(schedule: TensorSchedule) -> Callable[[Plan], LoopCode]:
    """Makes the function that writes the loop of a plan on tensor cores."""
    return lambda plan: code_of(TensorShape(TensorStep.of(plan), schedule))


def by_grid(plan: Plan) -> LoopCode:
    """The loop of a plan for groups of 3 blocks with 2 lanes."""
    form = grid_form(plan, 2, DEVICE, 32, 4)
    assert form is not None
    return grid_code(form)


def by_units(plan: Plan) -> LoopCode:
    """The loop of a plan with a thread for each unit."""
    code = units_code(plan)
    assert code is not None
    return code


GATED = gated, {"h": UNITS, "c": UNITS}
LOOPS: dict[str, tuple[Any, Callable[[Plan], LoopCode]]] = {
    "blocks": ((matrix, {"h": UNITS, "S": (UNITS, UNITS), "n": 1}), lambda plan: loop_code(plan, 4, 64)),
    "grid": ((matrix, {"h": UNITS, "S": (UNITS, UNITS), "n": 1}), by_grid),
    "units": ((alone, {"h": UNITS}), by_units),
    "tensor block": (GATED, tensor(TensorSchedule(chains=3, ahead=3))),
    "tensor tagged": (GATED, tensor(TensorSchedule(2, "tagged", chains=3, parts=2))),
    "tensor cluster": (GATED, tensor(TensorSchedule(2, "cluster", chains=3))),
}


@dataclass(frozen=True)
class Lanes:
    """The loop that an engine runs, and its lanes.

    write: writes the loop of a plan. groups: the most groups of blocks; 0 for any number.
    whole: as in `LaidLoop`. pace: if given, it decides.
    """

    write: Callable[[Plan], LoopCode]
    groups: int = 0
    whole: int = 0
    pace: LanePace | None = None


@dataclass(frozen=True)
class LaidKernel(CudaKernel):
    """A plan whose loop and lanes are given."""

    lanes: Lanes = Lanes(loop_code)

    def chosen_loop(self, rows: int, place: int | None) -> ChosenLoop:
        """The loop that is given."""
        its = self.lanes
        step = its.pace.step if its.pace else 0.0
        return ChosenLoop(its.write(self.plan), its.groups, "given", step, pace=its.pace)

    def laid(self, lengths: Array) -> LaidLoop:
        """The lanes that are given, or that are faster."""
        if self.lanes.pace is not None:
            return super().laid(lengths)
        return LaidLoop(self.loop(len(lengths)), lengths, self.lanes.groups, self.lanes.whole)


@dataclass(frozen=True)
class LaidEngine(CudaEngine):
    """The emulation with loops and lanes that are given."""

    lanes: Lanes = Lanes(loop_code)

    def compile_plan(self, plan: Plan) -> LaidKernel:
        """The kernel of a plan."""
        return LaidKernel(plan, self.memory, self.options, lanes=self.lanes)


Engines = Callable[..., str]
NUMBERS = itertools.count()


@pytest.fixture
def engine_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    """A function that makes an engine for lanes, whose name it returns. seed: of the order of threads."""

    def made(lanes: Lanes, seed: int = 0) -> str:
        """Makes an engine."""
        name = f"laid {next(NUMBERS)}"
        engine = LaidEngine(EmulatedDevice(seed), name=name, devices=(), lanes=lanes)
        monkeypatch.setitem(targets.ENGINES, name, lambda: engine)
        return name

    yield made
    targets.engine.cache_clear()


def recurrence(model: tuple[Any, Any], reverse: bool) -> sn.RNN:
    """A recurrence of some units, with values per sequence."""
    step, memory = model
    params = {"R": uniform(UNITS, UNITS, seed=2, scale=0.4), "b": uniform(UNITS, seed=3)}
    return sn.RNN(step, params, memory=memory, inputs=UNITS, statics=UNITS, reverse=reverse)


def operands(rnn: sn.RNN, rows: list[int]) -> tuple[Any, Any, Any]:
    """Inputs, initial memories and statics of some of the sequences."""
    x = [uniform(LENGTHS[row], UNITS, seed=row) for row in rows]
    sizes = {"h": (UNITS,), "c": (UNITS,), "S": (UNITS, UNITS), "n": (1,)}
    initial = {name: uniform(len(LENGTHS), *sizes[name], seed=5)[rows] for name in rnn.memory}
    return sn.Ragged.from_list(x), initial, uniform(len(LENGTHS), UNITS, seed=6)[rows]


def results(rnn: sn.RNN, rows: list[int], engine: str) -> list[Array]:
    """The outputs and the last memories of some of the sequences."""
    return [getattr(leaf, "values", leaf) for leaf in leaves(rnn(*operands(rnn, rows), engine=engine))]


DIRECTIONS = [
    ("blocks", False),
    ("grid", True),
    ("units", True),
    ("tensor block", False),
    ("tensor tagged", False),
    ("tensor cluster", True),
]


@pytest.mark.parametrize(("name", "reverse"), DIRECTIONS)
def test_refilled_lanes_give_the_bits_of_sorted_ones_and_of_single_sequences(
    engine_of: Engines, name: str, reverse: bool
) -> None:
    model, write = LOOPS[name]
    rnn, every = recurrence(model, reverse), list(range(len(LENGTHS)))
    by_length = engine_of(Lanes(write))
    right, single = results(rnn, every, by_length), results(rnn, [7], by_length)
    first = sum(LENGTHS[:7])
    assert single[0].tobytes() == right[0][first : first + LENGTHS[7]].tobytes()
    for groups, whole in ((1, 1), (2, 6)):
        ours = results(rnn, every, engine_of(Lanes(write, groups, whole), seed=groups + reverse))
        for a, b in zip(ours, right, strict=True):
            np.testing.assert_array_equal(a, b)
            assert not np.isnan(a).any()


def test_recorded_calls_keep_their_lanes_on_the_device(engine_of: Engines, done: list[str]) -> None:
    model, write = LOOPS["tensor tagged"]
    rnn, every, engine = recurrence(model, False), list(range(len(LENGTHS))), engine_of(Lanes(write, 1, 1))
    first, found = results(rnn, every, engine), list[list[Array]]()
    gc.collect()  # the positions of the first call, which kept its table
    for _ in range(3):
        done.clear()
        found.append(results(rnn, every, engine))
        assert done.count("write") == 4  # inputs, two memories, statics
    for ours in found:
        for a, b in zip(ours, first, strict=True):
            np.testing.assert_array_equal(a, b)


def test_steps_of_earlier_calls_count_and_padded_batches_have_gaps(engine_of: Engines) -> None:
    model, write = LOOPS["tensor tagged"]
    lengths, begun = np.array([4, 1, 3, 0, 2, 2, 1, 4, 3, 2]), np.arange(10)
    x, statics = uniform(10, 5, UNITS, seed=1), uniform(10, UNITS, seed=6)
    rnn, found = recurrence(model, False), list[list[Array]]()
    for lanes in (Lanes(write), Lanes(write, 1, 1)):
        y, final = rnn(x, statics=statics, lengths=lengths, begun=begun, engine=engine_of(lanes))
        found.append([y, *leaves(final)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("reverse", [False, True])
def test_steps_lie_anywhere(reverse: bool) -> None:
    case = Case.drawn(TensorStep.of(cell_plan("gru", 16)), list(LENGTHS), reverse)
    steps = np.arange(max(LENGTHS))
    case.starts, case.steps = list(range(len(LENGTHS))), len(LENGTHS) * steps + steps * (steps - 1) // 2
    total = int(case.steps[-1]) + len(LENGTHS)
    case.sequences = [uniform(total, each.shape[1], seed=1) for each in case.sequences]
    schedule = TensorSchedule(chains=3, ahead=2)
    right, ours = case.run(schedule, 1), case.run(schedule, 2, groups=1, refilled=2)
    for a, b in zip([*ours[0], *ours[1]], [*right[0], *right[1]], strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_have_the_bits_of_sorted_lanes(engine_of: Engines) -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        """A step of one memory."""
        h = np.tanh(x + h @ p["R"])
        return h, h

    x = sn.Ragged.from_list([uniform(length, UNITS, seed=length) for length in LENGTHS])
    rnn = sn.RNN(step, {"R": uniform(UNITS, UNITS, seed=2, scale=0.4)}, memory=UNITS, inputs=UNITS)
    found, write = list[list[Array]](), LOOPS["tensor tagged"][1]
    for lanes in (Lanes(write), Lanes(write, 1, 2)):
        (y, final), backward = sn.vjp(rnn)(x, engine=engine_of(lanes))
        gradients = backward(y, final)
        found.append([*leaves(gradients.params), gradients.inputs.values])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize(
    ("name", "capability"), [("units", (8, 0)), ("units", (9, 0)), ("tensor tagged", (8, 0))]
)
def test_the_assembler_takes_the_kernels_without_spills(name: str, capability: tuple[int, int]) -> None:
    model, write = LOOPS[name]
    (plan,) = recurrence(model, False).program.schedule_for("cuda-emulated").plans
    made = assembled(write(plan).code, capability)
    assert made.spilled == made.stack == 0


# ---- the choice


def loops(at_once: int, step: Callable[[int], float]) -> Callable[[int], ChosenLoop]:
    """Loops with 8 lanes for a group, with a time of a step by the lanes."""
    code: Any = None
    return lambda rows: ChosenLoop(
        LoopCode(code, "a block", 8, whole=2), at_once, "", step(rows), 0, LanePace(at_once, step(rows), 3.0)
    )


def test_lanes_are_refilled_where_that_is_faster() -> None:
    ragged = np.random.default_rng(0).lognormal(5, 0.7, 256).astype(int)
    found, by_length = (laid(loops(at_once, lambda _: 2.0), ragged) for at_once in (2, 32))
    assert found.whole > by_length.whole == 0  # 32 groups need no second turn
    before = LaidLoop(found.chosen, ragged, 2)
    assert found.microseconds * 1.05 < before.microseconds
    assert found.text.startswith("16 lanes, refilled: ")
    assert "sorted by length" in by_length.text
    faster = loops(32, lambda rows: 4.0 if rows > 64 else 2.0)
    fewer = laid(faster, ragged)
    assert fewer.table.groups == 8
    assert fewer.microseconds * 1.05 < LaidLoop(faster(256), ragged, 32).microseconds


def test_batches_of_one_length_and_loops_without_an_estimate_stay_sorted() -> None:
    dense = laid(loops(4, lambda _: 2.0), np.full(256, 9))
    assert (dense.whole, dense.groups, dense.table.groups) == (0, 4, 4)
    code: Any = None
    unknown = ChosenLoop(LoopCode(code, "a block", 8), 0, "")
    assert laid(lambda _: unknown, np.arange(256)).whole == 0


def test_explain_says_which_lanes_are_refilled(engine_of: Engines) -> None:
    engine = engine_of(Lanes(LOOPS["tensor block"][1], 2, pace=LanePace(2, 2.0, 0.5)))
    rnn = recurrence(GATED, False)
    lengths = np.random.default_rng(0).lognormal(6, 0.7, 120).astype(int) + 1
    said = rnn.explain(engine, lengths=lengths.tolist())
    assert f"for 120 sequences of up to {lengths.max()} steps" in said
    assert "16 lanes, refilled: " in said
    assert "predicted for all steps" in said
    assert "lanes" not in rnn.explain(engine, rows=120, steps=9).split("kernels")[1]


@pytest.mark.parametrize(
    ("lengths", "said"),
    [([3, 0], "2 sequences of up to 3 steps"), ([0, 0], "2 sequences of 0 steps")],
)
def test_explain_of_sequences_without_steps(lengths: list[int], said: str) -> None:
    """As calls take them; the lanes of a stack are weighed for them too."""
    rnn = recurrence(LOOPS["units"][0], False)
    for engine in ("cuda-emulated", "llvm"):
        assert f"for {said}" in rnn.explain(engine, lengths=lengths)
        assert said in sn.Stack([rnn, rnn]).explain(engine, lengths=lengths)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lengths": [3], "rows": 1}, "leave out rows and steps"),
        ({"lengths": 3}, "lengths lists the number of steps of each sequence, as \\[3, 0\\], not 3"),
        ({"lengths": []}, "give the number of steps of at least one sequence"),
        ({"lengths": [3, -1]}, "a whole number from 0 on"),
    ],
)
def test_lengths_that_no_call_has_are_refused(given: dict[str, Any], said: str) -> None:
    rnn = recurrence(LOOPS["units"][0], False)
    with pytest.raises(InputError, match=said):
        rnn.explain(**given)


def test_a_sequence_of_more_steps_than_kernels_count_is_refused():
    sorted_lanes(np.array([3, 2**31 - 1]), 2)
    with pytest.raises(InputError, match=r"2,147,483,648 steps, and a GPU runs at most 2,147,483,647"):
        sorted_lanes(np.array([3, 2**31]), 2)
