"""Elementary functions of frames, in NumPy operation by operation, against float64 and Python's own."""

import math

import numpy as np
import pytest

from stepnet.compiler.net import OPERATIONS
from stepnet.compiler.targets.frame import (
    INTRINSICS,
    FrameBuffer,
    FrameProgram,
    FrameRegister,
    FrameRun,
    Instruction,
    PointwiseLoop,
    Recorder,
    Routine,
    StridedView,
    routine_of,
)

ELEMENTARY = [*("arctan", "cosh", "erf", "exp", "expm1", "log", "log1p", "sigmoid", "sinh", "tanh")]
MOST_ULPS = 2
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 1e-30, -1e-30, 3e-45]


def computed(routine: Routine, values: np.ndarray) -> np.ndarray:
    """The results of a routine on numbers."""
    dtype = values.dtype.name
    x, y = FrameBuffer("x", dtype, len(values), "input"), FrameBuffer("y", dtype, len(values), "output")
    views = [StridedView(name, 0, (1,)) for name in "xy"]
    call = Instruction(routine.name, (0,), dtype)
    loop = PointwiseLoop((len(values),), (views[0],), (call,), ((views[1], 1),))
    return FrameRun(FrameProgram((x, y), {}, {}, (routine,), (loop,))).step(values)[0]


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_are_near_the_exact_ones(name: str):
    x = np.concatenate([np.linspace(-12, 12, 2001), np.geomspace(1e-6, 80, 200), SPECIAL]).astype("f4")
    if name.startswith("log"):
        x = np.concatenate([np.abs(x), [-2.0]]).astype("f4")
    with np.errstate(all="ignore"):
        exact = OPERATIONS[name].meaning(x.astype("f8"))
    own = computed(routine_of(name, "float32"), x)
    with np.errstate(all="ignore"):
        right = exact.astype("f4")
        away = np.abs(own.astype("f8") - exact) / np.spacing(np.maximum(np.abs(right), np.float32(1e-38)))
    ordinary = np.isfinite(right)
    np.testing.assert_array_equal(own[~ordinary], right[~ordinary])
    assert away[ordinary].max() <= MOST_ULPS


@pytest.mark.parametrize("name", ["rint", "floor", "ceil", "minimum", "maximum"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_roundings_and_extremes_have_numpys_bits(name: str, dtype: str):
    x = np.array([*np.linspace(-3, 3, 25), 2.0**22 + 0.5, 2.0**53, -(2.0**40) - 0.25, *SPECIAL], dtype)
    code, operand = Recorder(1), FrameRegister(0, dtype)
    binary = name in ("minimum", "maximum")
    other = [code.constant(dtype, 0.25)] if binary else []
    result = INTRINSICS[name](code, operand, *other)
    own = computed(Routine(name, (dtype,), tuple(code.body), result.number), x)
    right = getattr(np, name)(x, *[np.array(0.25, dtype)] if binary else [])
    numbers = ~np.isnan(right)
    np.testing.assert_array_equal(np.isnan(own), ~numbers)
    np.testing.assert_array_equal(own[numbers].view("u1"), right[numbers].view("u1"))


def test_equal_instructions_are_one():
    code, x = Recorder(1), FrameRegister(0, "float32")
    assert code.fadd(x, x) == code.fadd(x, x)
    assert code.constant("float32", 0.0) != code.constant("float32", -0.0)
    assert len(code.body) == 3
