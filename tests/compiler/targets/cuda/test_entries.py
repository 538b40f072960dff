"""Steps of every kind on the emulation of a GPU, against the interpreter in float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import normal, uniform

import stepnet as sn
from stepnet.compiler.plan import PIPELINE, Plan, Planning, planned
from stepnet.compiler.targets.cuda import (
    COSTS,
    DevicePositions,
    EmulatedDevice,
    LoopCode,
    empty,
    get,
    loop_code,
    put,
    sorted_lanes,
    units_code,
)
from stepnet.compiler.values import leaves, transform
from stepnet.errors import IndexOutsideError
from stepnet.ragged import Positions

Array = np.ndarray
LENGTHS = 3, 0, 5, 1, 2


@dataclass(frozen=True)
class Case:
    """A step with the features of its input and its memory, and its parameters in float32."""

    step: Callable[..., Any]
    inputs: tuple[int, ...]
    memory: Any
    params: dict[str, Array] = field(default_factory=dict[str, Array])
    inputs_dtype: str = "float32"

    def rnn(self, dtype: str, **options: Any) -> sn.RNN:
        """The recurrence with floats in a dtype."""
        params = transform(lambda array: cast(array, dtype), self.params)
        return sn.RNN(self.step, params, memory=self.memory, **options)

    def x(self, dtype: str) -> sn.Ragged:
        """Sequences for the step."""
        shape = (sum(LENGTHS), *self.inputs)
        numbers = uniform(*shape, seed=1)
        if self.inputs_dtype != "float32":
            numbers = (numbers * 4).astype(self.inputs_dtype)
        return sn.Ragged(cast(numbers, dtype), (np.cumsum([0, *LENGTHS], dtype=np.int64),))


def cast(array: Array, dtype: str) -> Array:
    """The array with its floats in a dtype."""
    return array.astype(dtype) if array.dtype.kind == "f" else array


def delta(x: Any, S: Any, p: Any) -> Any:
    """A matrix memory that is read and written by keys."""
    k, v = x[:, 0] / 2, x[:, 1]
    read = (S * k[:, :, None]).sum(axis=1)
    S = 0.9 * S + k[:, :, None] * (v - read)[:, None, :]
    return (S * x[:, 0][:, :, None]).sum(axis=1), S


def normed(x: Any, h: Any, p: Any) -> Any:
    """Means over many features."""
    h = np.tanh(sn.layer_norm(x + h @ p["R"], epsilon=0.1) + h)
    return sn.softmax(h), h


def scanned(x: Any, h: Any, p: Any) -> Any:
    """Prefix sums and products along both axes."""
    h = np.cumsum(h, axis=2) / 4 + x
    return np.cumsum(h, axis=1), np.cumprod(1 + h / 8, axis=2) - 1


def looked_up(x: Any, h: Any, p: Any) -> Any:
    """Rows of a table at indices of the input and of the memory."""
    best = h.argmax(axis=-1)
    h = np.tanh(p["table"][x[:, 0]] + p["table"][best % 5] + h @ p["R"])
    return (h, best, x.sum(axis=-1), (x > 1).any(axis=-1)), h


def swapped(x: Any, m: Any, p: Any) -> Any:
    """Memories that move to each other, one that stays, and one that delays the input."""
    after = {"a": m["b"], "b": m["a"][:, ::-1], "c": m["c"], "d": x}
    return m["d"] + m["a"], after


def joined(x: Any, h: Any, p: Any) -> Any:
    """A concatenation that a product reads, repeated and taken apart."""
    both = np.concatenate([x, h, x[:, ::-1]], axis=-1)
    h = np.tanh((both @ p["W"]).reshape(-1, 2, 3).transpose(0, 2, 1).reshape(-1, 6)[:, [0, 5, 2, 2, 1, 3]])
    return np.repeat(h, 2, axis=-1), h


def counted(x: Any, m: Any, p: Any, index: Any) -> Any:
    """Integers and bools in memories, and the number of the step."""
    n = m["n"] + (x.sum(axis=-1) > 0)
    return n % 3 == index % 3, {"n": n, "seen": m["seen"] | (x[:, 0] > 0.5)}


def attended(x: Any, m: Any, p: Any) -> Any:
    """The last inputs in a matrix memory, with a mean by weights."""
    keys = np.concatenate([m[:, 1:], x[:, None]], axis=1)
    weights = sn.softmax((keys * x[:, None]).sum(axis=-1))
    return (weights[:, :, None] * keys).sum(axis=1), keys


CASES = {
    "delta": Case(delta, (2, 6), (6, 6)),
    "normed": Case(normed, (70,), 70, {"R": uniform(70, 70, scale=0.1)}),
    "scanned": Case(scanned, (3, 5), (3, 5)),
    "looked_up": Case(
        looked_up,
        (2,),
        7,
        {"table": uniform(5, 7, seed=2), "R": uniform(7, 7, seed=3, scale=0.3)},
        inputs_dtype="int64",
    ),
    "swapped": Case(swapped, (4,), dict.fromkeys("abcd", 4)),
    "joined": Case(joined, (5,), 6, {"W": uniform(16, 6, scale=0.4)}),
    "counted": Case(counted, (3,), {"n": sn.Spec((), "int64"), "seen": sn.Spec((), "bool")}),
    "attended": Case(attended, (3,), (4, 3)),
}


def results(rnn: sn.RNN, *arguments: Any, **options: Any) -> list[Array]:
    """The outputs and the last memories of a call."""
    return [getattr(leaf, "values", leaf) for leaf in leaves(rnn(*arguments, **options))]


def assert_right(ours: Sequence[Array], right: Sequence[Array]) -> None:
    """Asserts that results in float32 are those in float64, and others the same."""
    for a, b in zip(ours, right, strict=True):
        assert_close(a, b, max(LENGTHS), 70)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_step_is_right(name: str, reverse: bool) -> None:
    case = CASES[name]
    ours = results(case.rnn("float32", reverse=reverse), case.x("float32"), engine="cuda-emulated")
    right = results(case.rnn("float64", reverse=reverse), case.x("float64"), engine="interpret")
    assert_right(ours, right)


@pytest.mark.parametrize("name", ["normed", "delta", "joined"])
def test_a_sequence_alone_has_the_same_bits(name: str) -> None:
    case = CASES[name]
    rnn, x = case.rnn("float32"), case.x("float32")
    for whole, alone in zip(
        results(rnn, x, engine="cuda-emulated"), results(rnn, x[2:3], engine="cuda-emulated"), strict=True
    ):
        own = whole[2:3] if len(whole) == len(LENGTHS) else whole[3:8]
        assert own.tobytes() == alone.tobytes()


def test_units_that_are_alone_have_a_thread_each_and_the_same_bits() -> None:
    def decayed(x: Any, h: Any, p: Any) -> Any:
        """A memory that decays by what comes in."""
        h = sn.sigmoid(x[:, 0] + p["b"]) * h + x[:, 1]
        return np.tanh(h), h

    rnn = Case(decayed, (2, 70), 70, {"b": uniform(70)}).rnn("float32", inputs=sn.Spec((2, 70), "float32"))
    plan = planned(rnn.program.net, Planning(PIPELINE, COSTS))
    units, blocks = units_code(plan), loop_code(plan, 2, 64)
    assert units is not None
    assert (units.code.group, units.code.shared) == (2, 0)
    x = normal(9, 2, 70)
    for a, b in zip(run_loop(units, plan, x), run_loop(blocks, plan, x), strict=True):
        assert a.tobytes() == b.tobytes()


def run_loop(loop: LoopCode, plan: Plan, x: Array) -> list[Array]:
    """The outputs and final memories of two sequences, of 6 and of 3 steps, on a loop of one memory."""
    device, size = EmulatedDevice(3), 70
    errors, *sources = [put(device, array) for array in (np.zeros(4, "i8"), *sources_of(plan, x))]
    made = [empty(device, (9, size), "float32"), empty(device, (2, size), "float32")]
    scratch = empty(device, (max(loop.scratch, 1),), "int8")
    positions = Positions(np.array([3, 0]), np.array([6, 3]), 9)
    table = sorted_lanes(positions.lengths, loop.group_rows)
    lanes = DevicePositions(positions, device).lanes("tested", False, lambda: table)
    words = [*lanes.words, 0, 0, 0, scratch.address, errors.address]
    inputs = iter(sources)
    for number in plan.body.inputs:
        words.append(0 if number in plan.recurrence.recur.memories else next(inputs).address)
    device.launch(loop.code, lanes.groups * loop.code.group, [*words, *(array.address for array in made)])
    return [get(array) for array in made]


def sources_of(plan: Plan, x: Array) -> list[Array]:
    """Arrays for the operands of a loop other than its memories: numbers of their shapes."""
    recur, body = plan.recurrence.recur, plan.body
    lead = {number: (len(x),) for number in recur.sequences}
    numbers = [number for number in body.inputs if number not in recur.memories]
    return [uniform(*lead.get(number, ()), *body.type_of(number).shape) for number in numbers]


def test_an_index_outside_its_table_raises() -> None:
    case = CASES["looked_up"]
    x = case.x("float32")
    with pytest.raises(IndexOutsideError):
        case.rnn("float32")(x.with_values(x.values + 9), engine="cuda-emulated")
