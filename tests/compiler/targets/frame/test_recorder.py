"""Elementary functions of frames, in NumPy operation by operation, against float64 and Python's own."""

import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepnet as sn
from stepnet.build import build
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
    fmod_routine,
    routine_of,
)

Array = np.ndarray
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


@pytest.mark.parametrize(("name", "most"), [("sin", 0.8), ("cos", 0.8), ("tan", 2.2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_angles_of_all_sizes_are_near_the_exact_ones(name: str, most: float, dtype: str):
    """Also those that come nearest to multiples of a quarter turn."""
    sizes = np.geomspace(1e-10, np.finfo(dtype).max / 2, 300)
    nearest = 16367173.0 * 2.0**72 if dtype == "float32" else 6381956970095103.0 * 2.0**797
    x = np.concatenate([np.linspace(-9, 9, 200), sizes, -sizes, np.arange(1, 99) * np.pi / 2, [nearest]])
    x = x.astype(dtype)
    own = computed(routine_of(name, dtype), x)
    with mpmath.workprec(1300):
        exact = [getattr(mpmath, name)(mpmath.mpf(float(each))) for each in x]
        units = [mpmath.mpf(float(np.spacing(np.abs(np.array(float(each), dtype))))) for each in exact]
        away = [abs(mpmath.mpf(float(a)) - b) / unit for a, b, unit in zip(own, exact, units, strict=True)]
    assert max(away) <= most
    ends = np.array([0.0, -0.0, 1e-30, math.inf, -math.inf, math.nan], dtype)
    with np.errstate(all="ignore"):
        right = getattr(np, name)(ends)
    np.testing.assert_array_equal(computed(routine_of(name, dtype), ends), right)


def remainders(x: Array, y: Array) -> tuple[Array, Array]:
    """The remainders of the routine for a dtype, and those of C's fmod."""
    dtype = x.dtype.name
    ends = [FrameBuffer(name, dtype, x.size, "input") for name in "xy"]
    views, routine = [StridedView(name, 0, (1,)) for name in "xyz"], fmod_routine(dtype)
    call = Instruction(routine.name, (0, 1), dtype)
    loop = PointwiseLoop((x.size,), tuple(views[:2]), (call,), ((views[2], 2),))
    ends.append(FrameBuffer("z", dtype, x.size, "output"))
    (own,) = FrameRun(FrameProgram(tuple(ends), {}, {}, (routine,), (loop,))).step(x, y)
    with np.errstate(all="ignore"):
        return own, np.fmod(x, y)


def same_bits(own: Array, right: Array) -> None:
    """Raises unless numbers have the same bits; all NaNs are the same."""
    known = ~np.isnan(right)
    np.testing.assert_array_equal(np.isnan(own), ~known)
    np.testing.assert_array_equal(own[known].view("u1"), right[known].view("u1"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_have_the_bits_of_fmod(dtype: str):
    random, small = np.random.default_rng(0), float(np.finfo(dtype).smallest_subnormal)
    integer = np.dtype("u4" if dtype == "float32" else "u8")
    bits = random.integers(0, np.iinfo(integer).max, (2, 20000), dtype=integer, endpoint=True).view(dtype)
    others = [[0, -0.0, 1, math.inf, 1, 5, -5, small, 5 * small], [1, 1, 0, 1, math.inf, -3, 3, 2 * small]]
    others[1].append(2 * small)
    ordinary = random.normal(size=(2, 20000)).astype(dtype)
    same_bits(*remainders(*np.concatenate([bits, ordinary, np.array(others, dtype)], 1)))


@given(st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=40))
def test_remainders_of_all_float64_have_the_bits_of_fmod(pairs: list[tuple[float, float]]):
    same_bits(*remainders(*np.array(pairs, "f8").T.copy()))


@pytest.mark.parametrize("operation", [np.remainder, np.floor_divide])
def test_divisions_of_float64_have_numpys_bits(operation: Any, tmp_path: Path):
    special = np.array([0.0, -0.0, 1, -1, 5e-324, -2.5, 1e308, math.inf, -math.inf, math.nan, 0.1, 3e-310])
    x, y = (each.ravel() for each in np.meshgrid(special, special))
    model = sn.RNN(lambda x, h, p: (operation(x[..., 0::2], x[..., 1::2]), h), {}, memory=1)
    program = build(model, tmp_path, target="c", inputs=sn.Spec(2 * x.size, "float64")).program
    (own,) = FrameRun(program).step(np.stack([x, y], -1).ravel())
    with np.errstate(all="ignore"):
        same_bits(own, operation(x, y))


@pytest.mark.parametrize("name", ["rint", "floor", "ceil", "minimum", "maximum"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_roundings_and_extremes_have_numpys_bits(name: str, dtype: str):
    x = np.array([*np.linspace(-3, 3, 25), 2.0**22 + 0.5, 2.0**53, -(2.0**40) - 0.25, *SPECIAL], dtype)
    code, operand = Recorder(1), FrameRegister(0, dtype)
    binary = name in ("minimum", "maximum")
    other = [code.constant(dtype, 0.25)] if binary else []
    result = INTRINSICS[name](code, operand, *other)
    own = computed(Routine(f"own_{name}", (dtype,), tuple(code.body), result.number), x)
    right = getattr(np, name)(x, *[np.array(0.25, dtype)] if binary else [])
    numbers = ~np.isnan(right)
    np.testing.assert_array_equal(np.isnan(own), ~numbers)
    np.testing.assert_array_equal(own[numbers].view("u1"), right[numbers].view("u1"))


def test_equal_instructions_are_one():
    code, x = Recorder(1), FrameRegister(0, "float32")
    assert code.fadd(x, x) == code.fadd(x, x)
    assert code.constant("float32", 0.0) != code.constant("float32", -0.0)
    assert len(code.body) == 3
