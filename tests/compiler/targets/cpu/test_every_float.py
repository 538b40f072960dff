"""The elementary functions at one float32 of 4093, at those around special points, and what counts errors;
`make ulps` tries all of them.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from stepnet.compiler.targets.cpu import ELEMENTARY, Processor
from tests.compiler.targets.cpu.every_float import PATTERNS, truth, worst_of
from tests.compiler.targets.cpu.test_maths import BOUNDS, PROCESSORS, compiled, lanes_of, unfused

EVERY = 4093
AROUND = 64
NAMES = pytest.mark.parametrize("name", ELEMENTARY)


@cache
def sample() -> NDArray:
    """Every so many bits; those around where functions clamp, over- or underflow, or take another form; and
    those around where the power of two in an exponential is another one.
    """
    info = np.finfo("f4")
    special = [0, info.smallest_subnormal, info.tiny, 2**-60, 2**-28, 0.5, 1, 2, 6, info.max, np.inf, np.nan]
    special += [-2 / 3, 9, 9.01, 10, 16.64, 17.33, 20, 40, 87.34, 88.72, 89, 89.6, 103.28, 104, 105, 2**20]
    powers = (np.arange(-152, 130) + 0.5) * np.log(2)
    points = np.concatenate([special, np.negative(special), powers, powers / 2]).astype("f4").view("u4")
    around = points.astype("i8")[:, None] + np.arange(-AROUND, AROUND + 1)
    return np.union1d(np.arange(0, PATTERNS, EVERY), around % PATTERNS)


@pytest.mark.long(each=True)
@PROCESSORS
@NAMES
def test_a_sample_of_all_numbers(processor: Processor, name: str):
    worst = worst_of(compiled(processor, "f4", lanes_of(processor, "f4"))[name], name, sample())
    assert (worst.ulp <= BOUNDS[name], worst.wrong) == (True, 0), worst


@NAMES
@pytest.mark.long(every=2)
def test_a_sample_without_fused_multiply_add(name: str):
    worst = worst_of(compiled(unfused(), "f4", 4)[name], name, sample())
    assert (worst.ulp <= BOUNDS[name], worst.wrong) == (True, 0), worst


def rounded(name: str) -> Callable[[NDArray], NDArray]:
    """The function, rounded correctly."""

    def function(x: NDArray) -> NDArray:
        with np.errstate(all="ignore"):
            return truth(name, x).astype("f4")

    return function


@NAMES
def test_a_correctly_rounded_function_is_half_an_ulp_away(name: str):
    worst = worst_of(rounded(name), name, sample()[::16])
    assert (0.49 < worst.ulp <= 0.5, worst.wrong) == (True, 0), worst


def test_what_is_wrong_at_one_number_is_told_with_the_number():
    exact = rounded("exp")

    def three_away(x: NDArray) -> NDArray:
        return np.where(x == 1, np.float32(np.e) + 3 * np.spacing(np.float32(np.e)), exact(x))

    worst = worst_of(three_away, "exp", sample())
    assert (2.5 < worst.ulp < 3.5, worst.argument, worst.wrong) == (True, 1.0, 0)


@pytest.mark.parametrize("place", [np.inf, 100.0, np.nan, 1.0])
@pytest.mark.parametrize("instead", [7.0, -np.inf, np.nan])
def test_another_number_for_an_infinity_or_a_nan_and_the_reverse_is_noticed(place: float, instead: float):
    exact = rounded("exp")

    def wrong(x: NDArray) -> NDArray:
        return np.where((x == place) | (np.isnan(x) & np.isnan(place)), np.float32(instead), exact(x))

    worst = worst_of(wrong, "exp", np.array([place, 2.0], "f4").view("u4"))
    if place == 1.0:
        assert (worst.ulp > 2.0, worst.wrong) == (True, 0)
    else:
        assert worst.wrong == (not (np.isnan(place) and np.isnan(instead)))
