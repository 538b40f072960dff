"""Random programs of exact operations, on memories too, have every bit of the same programs on arrays.

What the table of single operations cannot show is how they meet: on registers of one loop, before it and in
it, and in the passes.
"""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from numpys_values import EDGES, Array, different

import stepnet as sn
from stepnet.compiler.values import COMPUTED
from stepnet.errors import StepnetError

WIDTH, BATCH, LENGTH = 5, 2, 3
Program = list[tuple[str, int, int]]

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "less": lambda a, b: a < b,
    "equal": lambda a, b: a == b,
    "or": lambda a, b: np.logical_or(a, b),
    "xor": lambda a, b: np.logical_xor(a, b),
    "where": lambda a, b: np.where(a > 0, a, b),
    "negative": lambda a, _: -a,
    "absolute": lambda a, _: abs(a),
    "sign": lambda a, _: np.sign(a),
    "rint": lambda a, _: np.rint(a),
    "square": lambda a, _: a**2,
    "reciprocal": lambda a, _: np.reciprocal(a),
    "root": lambda a, _: a**0.5,
    "cube of integers": lambda a, _: a**3 if a.dtype.kind == "i" else -a,
    "halves": lambda a, _: np.float32(0.5) * a,
    "thirds": lambda a, _: a / np.float64(3),
    "backwards": lambda a, b: a[:, ::-1],
    "taken": lambda a, _: a[:, [4, 0, 0, -2, 1]],
    "turned": lambda a, b: np.concatenate([a[:, 3:], b[:, :3]], axis=1),
    "spread": lambda a, _: a[:, 1:2] - a,
    "first of the largest": lambda a, _: a * np.argmax(a, axis=1)[:, None],
    "count": lambda a, b: np.sum(a > b, axis=1)[:, None] - a,
    "any": lambda a, b: ((a[:, None, :] > 0) @ (b[:, :, None] > a[:, None, :]))[:, 0],
    "narrow": lambda a, _: a.astype("f4"),
    "wide": lambda a, _: a.astype("f8"),
    "whole": lambda a, _: np.where(abs(a) < 1000, a, 7).astype("i4"),
    "truth": lambda a, _: a.astype(bool),
}


def run(program: Program, values: list[Any]) -> list[Any]:
    """The values and what a program makes of them, without what NumPy or a step has no dtype for."""
    for name, first, second in program:
        try:
            found = OPERATIONS[name](values[first % len(values)], values[second % len(values)])
        except (TypeError, StepnetError):
            continue
        if found.dtype.name in COMPUTED and found.ndim == 2:
            values.append(found)
    return values


def step_of(program: Program) -> Callable[[Any, Any, Any], Any]:
    def step(x: Any, h: Any, p: Any) -> Any:
        values = run(program, [*x.values(), *h.values(), p["v"] + x["float64"]])
        last = values[-1]
        after = {"f": np.where(last == last, last, 3).astype("f4"), "i": (last > h["i"]) + h["i"] * 3}
        return tuple(values[-6:]), after

    return step


def by_hand(program: Program, inputs: dict[str, Array], p: Any) -> list[list[Array]]:
    """The outputs of each step, on arrays."""
    step = step_of(program)
    h = {"f": np.zeros((BATCH, WIDTH), "f4"), "i": np.zeros((BATCH, WIDTH), "i8")}
    outputs: list[list[Array]] = []
    with np.errstate(all="ignore"):
        for time in range(LENGTH):
            found, h = step({name: array[:, time] for name, array in inputs.items()}, h, p)
            outputs.append(list(found))
    return outputs


@pytest.mark.long(examples=4)
@pytest.mark.parametrize("engine", ["interpret", "llvm"])
@settings(max_examples=12, phases=[Phase.generate])  # each attempt to shrink would be compiled
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 99), st.integers(0, 99)),
        min_size=4,
        max_size=12,
    ),
    st.integers(0, 999),
)
def test_programs(engine: str, program: Program, seed: int) -> None:
    random = np.random.default_rng(seed)
    inputs = {name: random.choice(edges, (BATCH, LENGTH, WIDTH)) for name, edges in EDGES.items()}
    params = {"v": random.choice(EDGES["float64"], WIDTH)}
    memory = {"f": sn.Spec(WIDTH, "f4"), "i": sn.Spec(WIDTH, "i8")}
    outputs, _ = sn.RNN(step_of(program), params, memory=memory)(inputs, engine=engine)
    for time, wanted in enumerate(by_hand(program, inputs, params)):
        for found, right in zip(outputs, wanted, strict=True):
            assert found.dtype == right.dtype
            away = different(found[:, time], right)
            assert not away.any(), (found[:, time][away], right[away])


def test_most_of_a_program_runs() -> None:
    """Each operation has a dtype that it takes: else programs would test less than they say."""
    values = [np.ones((BATCH, WIDTH), dtype) for dtype in COMPUTED]
    for name in OPERATIONS:
        programs = [[(name, first, second)] for first in range(5) for second in range(5)]
        assert any(len(run(program, list(values))) > len(values) for program in programs), name
