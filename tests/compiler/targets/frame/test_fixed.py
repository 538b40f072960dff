"""Numbers with a fixed point: elementary functions and operations against exact ones of float64."""

import math
from collections.abc import Callable
from fractions import Fraction
from math import floor

import numpy as np
import pytest

from stepnet.compiler.targets.frame import (
    DIGITS,
    ELEMENTWISE,
    LARGEST,
    MOST,
    FrameBuffer,
    FrameProgram,
    FrameRegister,
    FrameRun,
    PointwiseLoop,
    Recorder,
    StridedView,
    bounded_fraction,
    column_scales,
    factor,
    fixed_routine,
    shifted,
    stored,
)

erf = np.vectorize(math.erf)

EXACT: dict[str, tuple[Callable[..., np.ndarray], float]] = {
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 0.7),
    "tanh": (np.tanh, 0.9),
    "erf": (erf, 1.3),
    "exp": (np.exp, 1.2),
    "expm1": (np.expm1, 2.0),
    "log": (lambda x: np.log(np.maximum(x, 0)), 0.6),
    "log1p": (lambda x: np.log1p(np.maximum(x, -1)), 0.6),
    "sqrt": (lambda x: np.sqrt(np.maximum(x, 0)), 0.5),
}
"""Each elementary function, and the largest difference that docs/devices.md states, in units of 2^-15."""


def computed(
    record: Callable[[Recorder, list[FrameRegister]], FrameRegister], *arrays: np.ndarray, of: str = ""
) -> np.ndarray:
    """The results of recorded instructions on int32, in int32. of: the routine that they call, if any."""
    size, code = arrays[0].size, Recorder(len(arrays))
    result = record(code, [FrameRegister(place, "int32") for place in range(len(arrays))])
    if result.dtype != "int32":
        result = code.record("convert", "int32", result)
    names = [f"x{place}" for place in range(len(arrays))]
    buffers = [FrameBuffer(name, "int32", size, "input") for name in names]
    buffers.append(FrameBuffer("y", "int32", size, "output"))
    views = [StridedView(name, 0, (1,)) for name in (*names, "y")]
    loop = PointwiseLoop((size,), tuple(views[:-1]), tuple(code.body), ((views[-1], result.number),))
    routines = (fixed_routine(of),) if of else ()
    tables = {name: np.array(table, "i4") for each in routines for name, table in each.tables.items()}
    buffers += [FrameBuffer(name, "int32", table.size, "constant") for name, table in tables.items()]
    program = FrameProgram(tuple(buffers), tables, {}, routines, (loop,))
    return FrameRun(program).step(*(array.astype(np.int32) for array in arrays))[0]


def of_function(name: str, x: np.ndarray) -> np.ndarray:
    """The results of an elementary function, of numbers with 15 digits behind the point."""
    form = ELEMENTWISE[name]
    return computed(lambda code, given: form.record(code, given, [DIGITS], DIGITS), x, of=form.routine)


@pytest.mark.parametrize("name", EXACT)
def test_elementary_functions_differ_by_as_many_units_as_the_docs_say(name: str):
    exact, most = EXACT[name]
    first = {"log": 1, "sqrt": 0, "log1p": 1 - 2**DIGITS}.get(name, -MOST - 9)
    last = {"exp": 0, "expm1": round(np.log(2) * 2**DIGITS), "sqrt": 2**DIGITS}.get(name, MOST + 9)
    x = np.arange(first, last + 1)
    largest = np.abs(of_function(name, x) - exact(x / 2**DIGITS) * 2**DIGITS).max()
    assert most - 0.1 < largest <= most


def test_base_of_logarithms_is_exact_over_all_magnitudes():
    x = np.unique(np.concatenate([2 ** np.arange(31), np.geomspace(1, 2**30, 9999).astype("i8")]))
    own = computed(lambda code, given: code.record("log2_i32", "int32", *given), x, of="log2")
    assert np.abs(own / 2**24 - np.log2(x)).max() < 1.2e-6


def test_elementary_functions_of_numbers_too_large_are_their_limits():
    x = np.array([-(2**30), -(2**24), 2**24, 2**30])
    for name, limits in (("sigmoid", [0, 0, 2**15, 2**15]), ("tanh", [-(2**15)] * 2 + [2**15] * 2)):
        assert of_function(name, x).tolist() == limits


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_shift_is_the_nearest_integer_of_two_the_upper_one(count: int):
    x = np.arange(-40, 41)
    own = computed(lambda code, given: shifted(code, given[0], count), x)
    assert own.tolist() == [floor(Fraction(int(each), 2**count) + Fraction(1, 2)) for each in x]


def test_high_products_are_rounded_down():
    x = np.array([0, 1, -1, 2**31 - 1, -(2**31), 12345678, -987654321])
    y = x[::-1].copy()
    own = computed(lambda code, given: code.high_product(*given), x, y)
    assert own.tolist() == [int(a) * int(b) // 2**32 for a, b in zip(x, y, strict=True)]


EXACT_OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "negative": np.negative,
    "absolute": np.absolute,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "divide": np.divide,
    "sign": np.sign,
    "cast": np.positive,
    **{name: exact for name, (exact, _) in EXACT.items()},
}


DIGITS_OF_OPERATIONS = [
    ((15, 15), 15),
    ((12, 9), 11),
    ((3, 15), 4),
    ((-4, 2), -5),
    ((20, 14), 20),
    ((10, 0), 20),
    ((0, 14), 3),
]
"""The digits behind the point of two operands and of a result."""


@pytest.mark.parametrize(("fractions", "target"), DIGITS_OF_OPERATIONS)
@pytest.mark.parametrize("name", EXACT_OPERATIONS)
def test_operations_are_within_a_unit_and_saturate(name: str, fractions: tuple[int, int], target: int):
    random = np.random.default_rng(3)
    own_digits = [*fractions][: 1 if name in ("negative", "absolute", "sign", "cast", *EXACT) else 2]
    special = [0, 1, -1, LARGEST, -LARGEST - 1]
    arrays = [np.concatenate([random.integers(-LARGEST - 1, LARGEST + 1, 500), special]) for _ in own_digits]
    arrays[-1][:5] = 0, 0, 1, -1, 2
    form = ELEMENTWISE[name]
    own = computed(
        lambda code, given: stored(code, form.record(code, given, own_digits, target)),
        *arrays,
        of=form.routine,
    )
    with np.errstate(all="ignore"):
        numbers = [array / 2.0**digits for array, digits in zip(arrays, own_digits, strict=True)]
        right = EXACT_OPERATIONS[name](*numbers) * 2.0**target
    right = np.where(np.isnan(right), np.inf, right)  # 0 / 0
    # A term with more digits than fit is rounded once more; a function has units of its own.
    own_units = EXACT[name][1] + 0.6 * (own_digits[0] > DIGITS) if name in EXACT else 0
    units = own_units * 2.0 ** max(target - DIGITS, 0) + 1.01
    assert np.abs(own - np.clip(right, -LARGEST - 1, LARGEST)).max() <= units
    assert own.min() >= -LARGEST - 1
    assert own.max() <= LARGEST


def test_scales_fit_what_they_are_for():
    random = np.random.default_rng(5)
    for largest in (1e-4, 0.4999, 0.99, 1.0, 3.0, 32767.0, 1e5):
        codes = largest * 2.0 ** bounded_fraction(largest)
        assert codes <= LARGEST
        assert codes > LARGEST / 2 or largest < 0.02
    for scale in (0.75, 1.0, 3e-5, 0.999999, 177.3):
        number, shift = factor(scale, 15)
        assert 2**14 <= number < 2**15
        assert abs(number / 2**shift - scale) <= scale * 2.0**-15
    weights = random.normal(size=(900, 7)) * np.geomspace(1e-6, 1e3, 7)
    weights[:, 3] = 0
    for most in (128, LARGEST + 1):
        codes = np.rint(weights / column_scales(weights, most, np.zeros(7)))
        assert np.abs(codes).max() <= 127
        assert (np.abs(codes).sum(0) * most).max() < 2**31
