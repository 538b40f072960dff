"""Every ufunc that a step may use gives what NumPy gives, in value and in dtype: on the edges of all dtypes,
of values with values, parameters, Python's numbers and NumPy's numbers.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpys_values import EDGES, PARAMETERS, ROWS, Case, Function, check, check_refused
from zoo import sigmoid

import stepnet as sn
from stepnet.compiler.targets.cpu import ELEMENTARY
from stepnet.compiler.trace import COMPOSED, UFUNCS

REFUSED = {
    "signbit *bool": "NumPy computes it in float16",
    "* 2**40 *": "a whole number beyond the dtype of what it is compared with; NumPy compares numbers",
    "power *bool int *": "NumPy has int8 for x ** 2 and int64 for x ** 3",
}
"""Values of NumPy that stepnet refuses, by the names of cases, with the reasons."""

ULPS = {**dict.fromkeys(ELEMENTARY, 2), "expm1": 4, "log1p": 4, "erf": 4}
SEVERAL = 8
"""The largest error of a function of several operations, in units of the last place."""

ULPS |= {one.__name__: SEVERAL for one in COMPOSED}
TERMS = {"logaddexp": float(np.log(2)), "logaddexp2": 1.0}
"""The largest of the second term of a sum, by function. Errors are of the sizes of the terms, which nearly
cancel where both operands are near minus that number: the sum has fewer correct digits there, as in NumPy.
"""
BITS = ("copysign", "divmod", "fmax", "fmin", "fmod", "heaviside", "isfinite", "isinf", "signbit", "trunc")
"""Functions of several operations that round once, or not at all."""

# The larger of two zeros may be either in IEEE 754, and is in NumPy.
EITHER_ZERO = ("maximum", "minimum", "fmax", "fmin")

NUMBERS: dict[str, Any] = {
    "0": 0,
    "-3": -3,
    "2**40": 2**40,
    "-0.0": -0.0,
    "2.5": 2.5,
    "1e300": 1e300,
    "inf": np.inf,
    "nan": np.nan,
    "True": True,
    "float32(0.1)": np.float32(0.1),
    "float64(0.1)": np.float64(0.1),
    "int32(-7)": np.int32(-7),
    "int64(2**33)": np.int64(2**33),
    "bool_(True)": np.bool_(True),
}


def names(inputs: int) -> list[str]:
    """The ufuncs of one or two operands, those with a test of their own aside."""
    own = (np.matmul, np.power)
    return sorted(one.__name__ for one in (*UFUNCS, *COMPOSED) if one.nin == inputs and one not in own)


def wide(array: Any, dtype: Any) -> Any:
    """An array of a wider dtype, for the reference of a function of floats with results in `dtype`."""
    return array.astype(dtype).astype("f8" if dtype == "f4" else "g")


def unary_cases() -> Iterator[tuple[str, Case]]:
    for name, dtype in product([*names(1), "sigmoid", "erf"], EDGES):
        function = getattr(np, name, None) or getattr(sn, name)
        yield f"{name} {dtype}", unary(name, function, dtype)
        yield f"{name} p_{dtype}", unary(name, function, f"p_{dtype}")
    for source, target in product(EDGES, EDGES):
        yield f"astype {source} {target}", Case(lambda o, s=source, t=target: getattr(o, s).astype(t))


def unary(name: str, function: Callable[[Any], Any], operand: str) -> Case:
    def case(o: Any) -> Any:
        return function(getattr(o, operand))

    result = "f4" if operand.endswith("float32") else "f8"
    exact = EXACT.get(name, function)
    if name not in ULPS or name in BITS:
        return Case(case)
    return Case(case, ULPS[name], lambda o: exact(wide(getattr(o, operand), result)))


EXACT: dict[str, Function] = {"sigmoid": sigmoid}


def test_unary() -> None:
    check(dict(unary_cases()), REFUSED)


def outer(o: Any, left: str, right: str) -> tuple[Any, Any]:
    """Two operands, each number of the one beside each of the other."""
    return getattr(o, left)[..., :, None], getattr(o, right)[..., None, :]


def binary_cases(name: str) -> Iterator[tuple[str, Case]]:
    ufunc, zeros = getattr(np, name), name not in EITHER_ZERO
    if name in ULPS and name not in BITS:
        yield from rounded_cases(name, ufunc)
        return
    kinds = [*EDGES, *(f"p_{dtype}" for dtype in EDGES)]
    for left, right in product(kinds, kinds):
        if not left.startswith("p_") or not right.startswith("p_"):
            yield (
                f"{name} {left} {right}",
                Case(lambda o, a=left, b=right: ufunc(*outer(o, a, b)), zeros=zeros),
            )
    for (text, number), dtype in product(NUMBERS.items(), EDGES):
        yield (
            f"{name} {dtype} {text} right",
            Case(lambda o, n=number, d=dtype: ufunc(getattr(o, d), n), zeros=zeros),
        )
        yield (
            f"{name} {dtype} {text} left",
            Case(lambda o, n=number, d=dtype: ufunc(n, getattr(o, d)), zeros=zeros),
        )


def rounded_cases(name: str, ufunc: Any) -> Iterator[tuple[str, Case]]:
    """Cases of a ufunc of two floats that rounds more than once: of values with values, and with numbers."""
    for left, right in product(EDGES, EDGES):
        yield f"{name} {left} {right}", rounded(ufunc, lambda o, a=left, b=right: outer(o, a, b), ULPS[name])
    for (text, number), dtype in product(NUMBERS.items(), EDGES):
        for side, operands in {
            "right": lambda o, n=number, d=dtype: (getattr(o, d), n),
            "left": lambda o, n=number, d=dtype: (n, getattr(o, d)),
        }.items():
            yield f"{name} {dtype} {text} {side}", rounded(ufunc, operands, ULPS[name])


def rounded(ufunc: Any, operands: Callable[[Any], tuple[Any, Any]], ulps: float) -> Case:
    """A case of a ufunc of two floats, compared with the ufunc of the same numbers in a wider dtype."""

    def exact(o: Any) -> Any:
        given = operands(o)
        plain = ufunc(*given)
        narrow = [np.asarray(one).astype(plain.dtype) for one in given]
        found = ufunc(*(wide(one, "f4" if plain.dtype == "f4" else "f8") for one in narrow))
        # glibc's long double has infinity for (-inf) ** -(2 ** 63), where float64 has 0.
        return np.where(np.isfinite(plain) & (plain != 0), found, plain.astype(found.dtype))

    return Case(lambda o: ufunc(*operands(o)), ulps, exact, least=TERMS.get(ufunc.__name__, 0.0))


PARTS = 7  # in each of which every dtype is on either side, and every number


@pytest.mark.long(every=PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", names(2))
def test_binary(name: str, part: int) -> None:
    check(dict([*binary_cases(name)][part::PARTS]), REFUSED)


# ---- powers ------------------------------------------------------------------------------------------------

EXPONENTS: dict[str, Any] = {
    **{f"int {number}": number for number in (0, 1, 2, 3, 4, 7, 17, 63, 1000, -1, -2)},
    **{f"float {number}": number for number in (0.0, 0.5, 1.0, 2.0, 3.0, -1.0, -0.5, -2.0, 1.7, -1 / 3)},
    **{f"float {number}": number for number in (5.0, 101.0, -64.0, 1e-3, -1e-300, 1e17, 1e300)},
    **{f"float {number}": number for number in (np.inf, -np.inf, np.nan)},
    "int True": True,
    "float float32(1.7)": np.float32(1.7),
    "float float64(1.7)": np.float64(1.7),
    "float float64(2)": np.float64(2),
    "int int32(3)": np.int32(3),
    "int int64(2)": np.int64(2),
    "int int64(-2)": np.int64(-2),
    "int 0-d array": np.array(5),
}


def power_cases() -> Iterator[tuple[str, Case]]:
    for (text, exponent), dtype in product(EXPONENTS.items(), EDGES):
        for operand in (dtype, f"p_{dtype}"):
            yield f"power {operand} {text}", power(operand, exponent)


def power(operand: str, exponent: Any) -> Case:
    """A power: of integers to integers exactly, else to 2 ulp of the same in a wider dtype."""
    base = np.dtype(operand.removeprefix("p_"))
    weak = isinstance(exponent, int | float) and not isinstance(exponent, bool | np.generic)
    dtype = np.result_type(base, exponent if weak else np.asarray(exponent).dtype)
    if dtype.kind != "f":
        return Case(lambda o: getattr(o, operand) ** exponent)

    def exact(o: Any) -> Any:
        x = wide(getattr(o, operand), "f4" if dtype == "f4" else "f8")
        raised = np.asarray(exponent).astype(dtype).astype(x.dtype)
        return np.sqrt(x) if raised == 0.5 else np.power(x, np.full_like(x, raised))

    return Case(lambda o: getattr(o, operand) ** exponent, 2, exact)


def test_powers() -> None:
    check(dict(power_cases()), REFUSED)


LARGEST_LOG = 745
"""The largest exponent of e, as that of float64 numbers: a last place of it is as many of the power."""


def test_powers_of_values_by_values() -> None:
    floats = ("float32", "float64")
    cases = {
        f"{left} by {right}": rounded(
            np.power,
            lambda o, a=left, b=right: outer(o, a, b),
            2 if left == right == "float32" else 2 * LARGEST_LOG,
        )
        for left, right in product(EDGES, EDGES)
        if left in floats or right in floats
    }
    numbers = ("0", "-3", "-0.0", "2.5", "inf", "nan")
    cases |= {
        f"{text} by {dtype}": rounded(
            np.power,
            lambda o, n=NUMBERS[text], d=dtype: (n, getattr(o, d)),
            2 if dtype == "float32" else 2 * LARGEST_LOG,
        )
        for text, dtype in product(numbers, floats)
    }
    check(cases, REFUSED)


def test_what_is_listed_is_refused() -> None:
    cases = dict(unary_cases()) | dict(power_cases())
    for name in names(2):
        cases |= dict(binary_cases(name))
    check_refused(cases, REFUSED, ROWS, PARAMETERS)
