"""Fibers of more than memories: statics and products of matrices of a row, and matrices that a step keeps
under a condition.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from planned import plan
from same_bits import assert_same_bits
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.plan import Plan
from stepnet.compiler.targets.cpu import host_processor
from stepnet.compiler.targets.cpu.lower.loops import FiberLoop, Register
from stepnet.compiler.targets.cpu.lower.program import lowered
from stepnet.model.control import Control
from tests.compiler.targets.cpu.test_fibers import Case, Shapes, delta, loop, vectors

pytestmark = pytest.mark.usefixtures("small_calls_are_shared", "same_threads")

Array = np.ndarray
LENGTHS = [3, 0, 1, 5, 2]


@dataclass(frozen=True)
class Static:
    """A step that reads a static, the shapes of all, and the phases of its loop."""

    step: Callable[..., Any]
    inputs: Shapes
    memory: Shapes
    static: tuple[int, ...]
    phases: int = 1

    def rnn(self, **more: Any) -> sn.RNN:
        inputs = {name: sn.Spec(shape, "float32") for name, shape in self.inputs.items()}
        statics = sn.Spec(self.static, "float32")
        return sn.RNN(self.step, memory=self.memory, inputs=inputs, statics=statics, **more)

    def random(self, lengths: list[int]) -> tuple[dict[str, sn.Ragged], dict[str, Array], Array]:
        """Inputs, first memories and statics."""
        case = Case(self.step, self.inputs, self.memory)
        statics = np.random.default_rng(2).standard_normal((len(lengths), *self.static)) / self.static[0]
        return case.values(lengths), case.begin(len(lengths)), statics.astype("float32")

    def right(
        self, values: dict[str, sn.Ragged], initial: dict[str, Array], statics: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The step in a plain loop over NumPy's float64, sequence by sequence."""
        (offsets,) = next(iter(values.values())).offsets
        outputs, finals = list[Array](), list[dict[str, Array]]()
        for row, (begin, end) in enumerate(pairwise(offsets)):
            static = statics[row : row + 1].astype("f8")
            memory = {name: array[row : row + 1].astype("f8") for name, array in initial.items()}
            for at in range(begin, end):
                x = {name: ragged.values[at : at + 1].astype("f8") for name, ragged in values.items()}
                output, memory = self.step(x, memory, (), static)
                outputs.append(output)
            finals.append(memory)
        joined = {name: np.concatenate([each[name] for each in finals]) for name in initial}
        return np.concatenate(outputs), joined


def written(x: Any, memory: Any, read: Any) -> tuple[Any, Any]:
    """A matrix that is written with a value that was read from another one."""
    S = 0.5 * memory["S"] + x["k"][:, :, None] * (x["v"] - read)[:, None, :]
    return (S * x["k"][:, :, None]).sum(1), {"S": S}


def early(x: Any, memory: Any, params: Any, statics: Any) -> Any:
    """A sum over the static that no memory is needed for."""
    return written(x, memory, (statics * x["k"][:, :, None]).sum(1))


def over_last(x: Any, memory: Any, params: Any, statics: Any) -> Any:
    """The static is summed over its last axis."""
    return written(x, memory, (statics * x["k"][:, None, :]).sum(2))


def of_vector(x: Any, memory: Any, params: Any, statics: Any) -> Any:
    """A static times a memory that is no matrix."""
    h = np.tanh(x["v"] + (statics * memory["h"][:, None, :]).sum(2))
    return h, {"h": h}


def both_ways(x: Any, memory: Any, params: Any, statics: Any) -> Any:
    """The static is summed over either axis: it lies as it came, and one of the sums has no fibers."""
    n = np.tanh(memory["n"] + (statics * x["v"][:, None, :]).sum(2))
    return (statics * n[:, :, None]).sum(1), {"n": n}


def product(x: Any, memory: Any, params: Any, statics: Any) -> Any:
    """A product of the static with the matrix."""
    S = np.matmul(statics, memory["S"]) + x["k"][:, :, None] * x["v"][:, None, :]
    return (S * x["k"][:, :, None]).sum(1), {"S": S}


CASES = {
    "ahead of the loop": Static(early, vectors(40, 33), {"S": (40, 33)}, (40, 33)),
    "last axis": Static(over_last, vectors(40, 33), {"S": (40, 33)}, (33, 40)),
    "vector": Static(of_vector, {"v": (40,)}, {"h": (40,)}, (40, 40), 1),
    "both ways": Static(both_ways, {"v": (33,)}, {"n": (40,)}, (40, 33), 3),
    "product": Static(product, vectors(12, 20), {"S": (12, 20)}, (12, 12), 2),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@each_case
def test_values(case: Static) -> None:
    values, initial, statics = case.random(LENGTHS)
    outputs, final = case.rnn()(values, initial=initial, statics=statics)
    right, last = case.right(values, initial, statics)
    assert_close(outputs.values, right, max(LENGTHS), 40)
    for name, array in last.items():
        assert_close(final[name], array, max(LENGTHS), 40)


@each_case
def test_bits_do_not_depend_on_the_batch_or_on_threads(case: Static) -> None:
    rnn, (values, initial, statics) = case.rnn(), case.random(LENGTHS)
    sn.set_threads(1)
    outputs, final = rnn(values, initial=initial, statics=statics)
    for row, (begin, end) in enumerate(pairwise(outputs.offsets[0])):
        alone = {name: ragged.values[None, begin:end] for name, ragged in values.items()}
        own = {name: array[row : row + 1] for name, array in initial.items()}
        part, last = rnn(alone, initial=own, statics=statics[row : row + 1])
        assert_same_bits(part[0], outputs.values[begin:end])
        assert_same_bits(last, {name: array[row : row + 1] for name, array in final.items()})
    sn.set_threads(3)
    assert_same_bits(rnn(values, initial=initial, statics=statics), (outputs, final))


@each_case
def test_no_matrix_is_written_but_memories(case: Static) -> None:
    """Nothing is computed ahead of the loop, for which statics would be copied to each step."""
    made = plan(case.rnn().net)
    fiber_loops = [each for each in phases_of(made) if isinstance(each, FiberLoop)]
    stored = [field.size for each in fiber_loops for turn in each.passes for _, field in turn.stores]
    assert (made.before, len(made.loop)) == ((), case.phases)
    assert len(stored) == ("S" in case.memory)


def phases_of(made: Plan) -> list[Any]:
    """The loops of a step."""
    phases = lowered(made, host_processor()).program.loop
    return [each for phase in phases if isinstance(phase, list) for each in phase]


def test_a_static_lies_fiber_by_fiber_if_all_its_readers_agree() -> None:
    lie = {
        name: [
            field.is_fibered
            for _, field, _ in lowered(plan(case.rnn().net), host_processor()).program.statics
        ]
        for name, case in CASES.items()
    }
    assert lie == {
        "ahead of the loop": [True],
        "last axis": [True],
        "vector": [True],
        "both ways": [False],
        "product": [False],
    }


def test_a_lane_that_takes_the_place_of_another_keeps_its_static() -> None:
    """Sequences of many lengths end early, so that the last lane at work moves again and again."""
    case = Static(over_last, vectors(40, 32), {"S": (40, 32)}, (32, 40))
    values, initial, statics = case.random([20] * 60)
    whole, _ = case.right(values, initial, statics)
    limit = float(np.quantile(whole[:, 0], 0.9))
    is_over = whole[:, 0].reshape(60, 20) > limit
    # No first number is so near to the limit that rounding decides.
    assert np.abs(whole[:, 0] - limit).min() > 1e-5 * abs(limit)
    steps = np.where(is_over.any(1), is_over.argmax(1) + 1, 20)
    assert len(np.unique(steps)) > 5
    taken = np.flatnonzero((np.arange(20) < steps[:, None]).ravel())
    rnn = case.rnn(until=lambda output, memory: output[:, 0] > limit)
    sn.set_threads(1)
    outputs, _ = rnn(values, initial=initial, statics=statics)
    np.testing.assert_array_equal(outputs.lengths, steps)
    assert_close(outputs.values, whole[taken], 20, 40)


def under_control(case: Case) -> Plan:
    """The plan of a recurrence with until=, its condition read from outputs."""
    inputs = {name: sn.Spec(shape, "float32") for name, shape in case.inputs.items()}
    rnn = sn.RNN(
        case.step, memory=case.memory, inputs=inputs, until=lambda output, memory: output[:, 0] > 1e9
    )
    return plan(rnn.under(Control(None, rnn.until), rnn.program).net)


def test_a_matrix_of_a_recurrence_with_until_is_kept_in_place() -> None:
    made = under_control(Case(delta, vectors(6, 32, q=(6,), g=(), b=()), {"S": (6, 32)}))
    loops = [each for each in phases_of(made) if isinstance(each, FiberLoop)]
    (where,) = (
        n for n, node in enumerate(made.body.nodes) if node.operation == "where" and node.type.size > 1
    )
    stored = [operand for each in loops for turn in each.passes for operand, _ in turn.stores]
    matrix = lowered(made, host_processor()).program.memories[0][2]
    assert stored == [Register(where, "float32")]
    assert (matrix.record, len(made.loop)) == ("lane", 2)


def kept_where(x: Any, memory: Any, params: Any) -> Any:
    """A matrix whose change depends on a sum over other units: it waits for that as a whole."""
    is_large = (memory["n"].sum(1) > 0)[:, None, None]
    S = 0.5 * memory["S"] + x["k"][:, :, None] * x["v"][:, None, :]
    S = np.where(is_large, S * np.tanh((S * x["k"][:, :, None]).sum(1))[:, None, :], memory["S"])
    return (S * x["k"][:, :, None]).sum(1), {"S": S, "n": 0.5 * memory["n"] - x["v"]}


def test_a_matrix_waits_for_what_a_part_of_it_needs() -> None:
    case = Case(kept_where, vectors(6, 32), {"S": (6, 32), "n": (32,)})
    assert sum(isinstance(each, FiberLoop) for each in phases_of(case.plan())) == 1
    values, initial = case.values(LENGTHS), case.begin(len(LENGTHS))
    outputs, final = case.rnn()(values, initial=initial)
    right, last = loop(case, values, initial)
    assert_close(outputs.values, right, max(LENGTHS), 32)
    assert_close(final["S"], last["S"], max(LENGTHS), 32)


def normalised(x: Any, memory: Any, params: Any) -> Any:
    """A sum over features of each head, which is read head by head, beside a matrix."""
    C = 0.5 * memory["C"] + x["k"][..., None] * x["v"][:, :, None, :]
    n = 0.5 * memory["n"] + x["k"]
    size = np.maximum(np.abs((n * x["k"]).sum(-1)), 1)
    return (C * x["k"][..., None]).sum(-2) / size[..., None], {"C": C, "n": n}


def test_long_fibers_whose_neighbours_lie_apart_are_summed_along_vectors() -> None:
    case = Case(normalised, {"k": (8, 16), "v": (8, 4)}, {"C": (8, 16, 4), "n": (8, 16)})
    assert {*case.plan().fibers.sums.values()} == {32}
    short = Case(normalised, {"k": (8, 15), "v": (8, 4)}, {"C": (8, 15, 4), "n": (8, 15)})
    assert {*short.plan().fibers.sums.values()} == {8, 32}
    values, initial = case.values(LENGTHS), case.begin(len(LENGTHS))
    outputs, final = case.rnn()(values, initial=initial)
    right, last = loop(case, values, initial)
    assert_close(outputs.values, right, max(LENGTHS), 16)
    assert_close(final["C"], last["C"], max(LENGTHS), 16)
