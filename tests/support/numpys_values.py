"""Comparison of a step's values and dtypes with those of NumPy's arrays, for several tests.

A case is a function of a namespace: rows `float32`, `float64`, `int32`, `int64` and `bool`, each [rows, n]
with the edges of its dtype, and parameters `p_float32`, ... [n] with the same. Run on arrays, it is the
definition of right: of the values' bits, of their dtype, and of what raises.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from types import SimpleNamespace
from typing import Any

import numpy as np

import stepnet as sn
from stepnet.compiler.trace import trace_step
from stepnet.compiler.values import COMPUTED
from stepnet.errors import StepnetError

ENGINES = ("interpret", "llvm")
Array = np.ndarray
Function = Callable[[Any], Any]
Values = dict[str, Array]


@dataclass(frozen=True)
class Case:
    """A function of the namespace. ulps: how far a result may be from `exact`, which is the function with its
    values in a wider dtype; where it is None the bits are NumPy's. zeros: whether the sign of a zero counts.
    least: the least number of whose last places `ulps` counts, the size of terms that are added.
    """

    function: Function
    ulps: float | None = None
    exact: Function | None = None
    zeros: bool = True
    least: float = 0.0


def float_edges(dtype: str) -> Array:
    info = np.finfo(dtype)
    small = [info.smallest_subnormal, info.tiny, info.eps]
    ordinary = [0.1, 0.5, 1, 1.5, 2.5, 3, 7, 2**24 - 1, 2**31, 2**63]
    positive = np.array([0, *small, *ordinary, info.max, np.inf], dtype)
    return np.concatenate([positive, -positive, np.array([np.nan], dtype)])


def integer_edges(dtype: str) -> Array:
    info = np.iinfo(dtype)
    ordinary = [0, 1, 2, 3, 7, 100, 2**24 + 1]
    numbers = [*ordinary, *(-one for one in ordinary[1:]), info.max, info.max - 1, info.min, info.min + 1]
    return np.array(numbers, dtype)


EDGES: Values = {
    "float32": float_edges("float32"),
    "float64": float_edges("float64"),
    "int32": integer_edges("int32"),
    "int64": integer_edges("int64"),
    "bool": np.array([False, True]),
}
ROWS: Values = {name: np.stack([edges, edges[::-1]]) for name, edges in EDGES.items()}
PARAMETERS: Values = {f"p_{name}": edges for name, edges in EDGES.items()}


def by_numpy(function: Function, values: Values) -> list[Array] | Exception:
    """NumPy's result, or its exception."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = function(SimpleNamespace(**values))
        except (TypeError, ValueError, OverflowError, IndexError, ZeroDivisionError) as error:
            return error
    return [np.asarray(one) for one in (found if isinstance(found, tuple | list) else [found])]


def by_tracing(function: Function, rows: Values, params: Values) -> StepnetError | None:
    """The refusal of stepnet for a function."""
    inputs = {name: sn.Spec(array.shape[1:], array.dtype) for name, array in rows.items()}
    try:
        trace_step(
            lambda x, h, p: (listed(function(SimpleNamespace(**x, **p))), h), inputs, None, None, params
        )
    except StepnetError as error:
        return error
    return None


def listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def by_engine(functions: Mapping[str, Function], rows: Values, params: Values, engine: str) -> dict[str, Any]:
    """The results of an engine: all functions in one step, for rows of one step each."""

    def step(x: Any, h: Any, p: Any) -> Any:
        return {name: listed(f(SimpleNamespace(**x, **p))) for name, f in functions.items()}, h

    rnn = sn.RNN(step, params, memory={"none": sn.Spec((), "int64")})
    outputs, _ = rnn({name: array[:, None] for name, array in rows.items()}, engine=engine)
    return {name: [one[:, 0] for one in leaves(found)] for name, found in outputs.items()}


def leaves(value: Any) -> list[Array]:
    return list(value) if isinstance(value, tuple) else [value]


def faults(
    cases: Mapping[str, Case],
    refused: Mapping[str, str],
    rows: Values = ROWS,
    params: Values = PARAMETERS,
) -> list[str]:
    """Differences from NumPy, on any engine: refusals where NumPy has a result, but for `refused` (patterns
    names, with the reasons); results where NumPy raises; values and dtypes that differ.
    """
    found: list[str] = []
    wanted: dict[str, list[Array]] = {}
    for name, case in cases.items():
        right, refusal = by_numpy(case.function, rows | params), by_tracing(case.function, rows, params)
        if isinstance(right, Exception):
            found += [] if refusal else [f"{name}: NumPy raises {right!r}"]
        elif refusal is None:
            wanted[name] = right
        elif all(one.dtype.name in COMPUTED for one in right) and not is_listed(name, refused):
            found.append(f"{name} is refused: {refusal}")
    for engine in ENGINES:
        results = by_engine({name: cases[name].function for name in wanted}, rows, params, engine)
        for name, right in wanted.items():
            said = differences(name, cases[name], results[name], right, rows | params)
            found += [f"{engine}: {one}" for one in said]
    return found


def check(cases: Mapping[str, Case], refused: Mapping[str, str], *values: Values) -> None:
    found = faults(cases, refused, *values)
    assert not found, "\n".join(found)


def check_refused(
    cases: Mapping[str, Case], refused: Mapping[str, str], rows: Values, params: Values
) -> None:
    """Asserts that each pattern names something that NumPy can do and stepnet refuses."""
    for pattern in refused:
        named = [case.function for name, case in cases.items() if fnmatch(name, pattern)]
        assert any(
            by_tracing(one, rows, params) and isinstance(by_numpy(one, rows | params), list) for one in named
        ), pattern


def is_listed(name: str, refused: Mapping[str, str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in refused)


def differences(
    name: str, case: Case, actual: list[Array], right: list[Array], values: Values
) -> Iterator[str]:
    for one, wanted in zip(actual, right, strict=True):
        wanted = np.broadcast_to(wanted, one.shape) if wanted.ndim < one.ndim else wanted
        if (one.dtype, one.shape) != (wanted.dtype, wanted.shape):
            yield f"{name}: {one.dtype}{one.shape} is not {wanted.dtype}{wanted.shape}"
            continue
        away = distant(case, one, wanted, values) if case.exact else different(one, wanted, case.zeros)
        if away.any():
            place = tuple(int(axis[0]) for axis in np.nonzero(away))
            yield f"{name}: {one[place]!r} is not {wanted[place]!r} at {place}, and {away.sum()} in all"


def different(one: Array, other: Array, zeros: bool = True) -> Array:
    """Where bits differ; all NaNs are the same."""
    if one.dtype.kind != "f":
        return one != other
    signs = (np.signbit(one) != np.signbit(other)) & zeros & (other == 0)
    return ((one != other) | signs) & ~(np.isnan(one) & np.isnan(other))


def distant(case: Case, one: Array, wanted: Array, values: Values) -> Array:
    """Where a result is further from the right number than it may be; infinities, NaN and zeros exactly."""
    assert case.exact is not None
    assert case.ulps is not None
    wide = "f8" if one.dtype == "f4" else "g"
    with np.errstate(all="ignore"):
        exact = np.asarray(case.exact(SimpleNamespace(**values)))
        assert exact.dtype == wide
        exact = np.broadcast_to(exact, one.shape)
        rounded = exact.astype(one.dtype)
        info = np.finfo(one.dtype)
        exponents = np.maximum(np.frexp(np.maximum(np.abs(exact), case.least))[1] - 1, info.minexp)
        far = np.abs(one - exact) > case.ulps * np.ldexp(np.ones((), wide), exponents - info.nmant)
    plain = np.isfinite(rounded) & (rounded != 0) & np.isfinite(one)
    return np.where(plain, far, different(one, rounded))
