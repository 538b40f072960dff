"""The elementary functions of the CPU engine, powers among them, in ulp, against NumPy in float64 (f4) and
mpmath (f8).
"""

import ctypes
from collections.abc import Callable
from dataclasses import astuple
from functools import cache, partial
from math import erf
from typing import Any

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from stepnet.compiler.targets.cpu import (
    ELEMENTARY,
    I64,
    POINTER,
    Code,
    Processor,
    available_processors,
    host_processor,
)
from stepnet.compiler.targets.cpu.writing.powers import power

Function = Callable[[NDArray], NDArray]

EXPONENTS = (1.7, -0.3, 1 / 3, 5.0, -2.0, 17.0, -100.0, 1e-3, 200.5, 1e5, -1e17, 1e-300)
POWERS: dict[str, float] = {f"power {exponent:.4g}": exponent for exponent in EXPONENTS}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **ELEMENTARY,
    **{name: partial(power, exponent=exponent) for name, exponent in POWERS.items()},
}

# The units in the last place that a result may be away.
BOUNDS = dict.fromkeys(FUNCTIONS, 2.0) | {"expm1": 4.0, "log1p": 4.0, "erf": 4.0}
MOST_LANES = 64
# Of all doubles the one that comes nearest to a multiple of π/2 (J.-M. Muller and others, Handbook of
# Floating-Point Arithmetic, 11.1); and of those up to 2^20, by continued fractions: 29 π/2 - 6.2e-19.
NEAREST = 6381956970095103 * 2.0**797
NEAREST_ORDINARY = 45.553093477052
PROCESSORS = pytest.mark.parametrize(
    "processor", available_processors(), ids=lambda processor: processor.name
)
NAMES = pytest.mark.parametrize("name", FUNCTIONS)
DTYPES = pytest.mark.parametrize("dtype", ["f4", "f8"])


def raised(x: NDArray, exponent: float) -> NDArray:
    return np.power(x, np.full_like(x, exponent))  # an array: NumPy has other code for some single exponents


def exactly_raised(x: Any, exponent: float) -> Any:
    return mpmath.power(x, mpmath.mpf(exponent))


WIDE: dict[str, Function] = {
    **{name: getattr(np, name) for name in ELEMENTARY if hasattr(np, name)},
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(erf, otypes=["f8"]),
    **{name: partial(raised, exponent=exponent) for name, exponent in POWERS.items()},
}
EXACT = {
    **{name: getattr(mpmath, name.replace("arc", "a")) for name in ELEMENTARY if hasattr(np, name)},
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "erf": mpmath.erf,
    **{name: partial(exactly_raised, exponent=exponent) for name, exponent in POWERS.items()},
}
# Exponentials have nothing to compute far out, and mpmath would take for ever.
EXPONENTIAL = ("exp", "expm1", "sinh", "cosh", "tanh", "sigmoid", "erf")


class Unfused(Processor):
    """A processor of any family without a fused multiply-add."""

    has_fused = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def unfused() -> Processor:
    """The widest processor here without fused multiply-adds: on x86-64 the generic one is tested apart."""
    return Unfused(*astuple(host_processor()))


# ------------------------------------------------------------------------------- compiling and calling


@cache
def compiled(processor: Processor, dtype: str, lanes: int) -> dict[str, Function]:
    """Every function as one on arrays, computed `lanes` at a time (0: a scalar at a time)."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = ir.Module("maths")
    for name in FUNCTIONS:
        write_loop(module, name, processor, dtype, lanes)
    machine = llvm.Target.from_default_triple().create_target_machine(
        processor.cpu, processor.features, opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    return {name: on_arrays(engine, name) for name in FUNCTIONS}


def write_loop(module: ir.Module, name: str, processor: Processor, dtype: str, lanes: int):
    element = ir.FloatType() if dtype == "f4" else ir.DoubleType()
    type_ = ir.VectorType(element, lanes) if lanes else element
    bytes_each = np.dtype(dtype).itemsize
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64]), name)
    source, result, count = function.args
    code = Code(function.append_basic_block("entry"), processor)
    with code.loop(code.number(0), count, code.number(max(lanes, 1))) as index:
        offset = code.mul(index, code.number(bytes_each))
        value = code.read(type_, code.at(source, offset), bytes_each)
        code.write(FUNCTIONS[name](code, value), code.at(result, offset), bytes_each)
    code.ret_void()


def on_arrays(engine: llvm.ExecutionEngine, name: str) -> Function:
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        engine.get_function_address(name)
    )

    def call(x: NDArray) -> NDArray:
        filled = np.zeros(-(-x.size // MOST_LANES) * MOST_LANES, x.dtype)
        filled[: x.size] = x
        result = np.empty_like(filled)
        native(filled.ctypes.data, result.ctypes.data, filled.size)
        # The machine code lives as long as the engine, and the engine as long as this function.
        return result[: x.size] if engine else result

    return call


def lanes_of(processor: Processor, dtype: str) -> int:
    return processor.vector_bytes // np.dtype(dtype).itemsize


# ---------------------------------------------------------------------------------------------- points


@cache
def points(dtype: str, count: int) -> NDArray:
    """Any bits at all; ranges around 0, evenly and by magnitude; ranges around 1; the numbers nearest to
    whole quarters of a turn, small and large; the edges.
    """
    generator = np.random.default_rng(0)
    kind = np.dtype(dtype)
    integer = np.dtype(f"u{kind.itemsize}")
    bits = generator.integers(0, np.iinfo(integer).max, count, dtype=integer, endpoint=True).view(kind)
    spans = [0.3, 1.0, 4.0, 20.0, 100.0 if kind.itemsize == 4 else 760.0]
    ranges = [generator.uniform(-span, span, count) for span in spans]
    small = 10.0 ** generator.uniform(-12, 0, count) * generator.choice([-1, 1], count)
    near_one = generator.uniform(0.6, 1.6, count)
    quarters = np.concatenate([generator.integers(1, most, count) for most in (30, 2**20, 2**60)]) * np.pi / 2
    info = np.finfo(kind)
    edges = [
        info.tiny,
        info.smallest_subnormal,
        info.tiny * 0.7,
        1.0,
        np.nextafter(kind.type(1), kind.type(0)),
    ]
    return np.concatenate(
        [bits, *(part.astype(kind) for part in [*ranges, small, near_one, quarters, np.array(edges)])]
    )


def points_of(name: str, dtype: str, count: int) -> NDArray:
    """The points for a function; of a power also those where it neither over- nor underflows."""
    x = points(dtype, count)
    if name not in POWERS:
        return x
    most = 700 if dtype == "f8" else 85
    logarithms = np.random.default_rng(1).uniform(-most, most, count) / POWERS[name]
    return np.concatenate([x, np.exp(logarithms.clip(-most, most)).astype(dtype)])


@cache
def exact(name: str, count: int) -> tuple[NDArray, NDArray, NDArray]:
    """The points where the function of a double is finite, its value there, and what that leaves out."""
    x = points_of(name, "f8", count)
    with np.errstate(all="ignore"):
        x = x[np.isfinite(WIDE[name](x)) & np.isfinite(x)]
    near = x.clip(-2000.0, 2000.0) if name in EXPONENTIAL else x
    with mpmath.workprec(120):
        values = [EXACT[name](mpmath.mpf(v)) for v in near.tolist()]
        high = np.array([float(v) for v in values])
        return (
            x,
            high,
            np.array([float(v - mpmath.mpf(h)) for v, h in zip(values, high.tolist(), strict=True)]),
        )


def spacing(values: NDArray, dtype: str) -> NDArray:
    """The distance between neighbouring numbers of `dtype` there, where it is given as float64."""
    info = np.finfo(dtype)
    exponents = np.maximum(np.frexp(np.abs(values))[1] - 1, info.minexp)
    return np.ldexp(1.0, exponents - info.nmant)


# ----------------------------------------------------------------------------------------------- tests


def check_single(function: Function, name: str, count: int) -> None:
    x = points_of(name, "f4", count)
    with np.errstate(all="ignore"):
        wanted = WIDE[name](x.astype("f8"))
        rounded = wanted.astype("f4")
    got = function(x)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    x, got, wanted = x[finite], got[finite], wanted[finite]
    away = np.abs(got - wanted) / spacing(wanted, "f4")
    assert away.max() <= BOUNDS[name], (away.max(), x[away.argmax()])


def check_double(function: Function, name: str, count: int) -> None:
    x, high, low = exact(name, count)
    away = np.abs((function(x) - high) - low) / spacing(high, "f8")
    assert away.max() <= BOUNDS[name], (away.max(), x[away.argmax()])


@pytest.mark.long(each=True)
@PROCESSORS
@NAMES
def test_single_precision(processor: Processor, name: str):
    check_single(compiled(processor, "f4", lanes_of(processor, "f4"))[name], name, 40_000)


@pytest.mark.long(each=True)
@PROCESSORS
@NAMES
def test_double_precision(processor: Processor, name: str):
    check_double(compiled(processor, "f8", lanes_of(processor, "f8"))[name], name, 1000)


@pytest.mark.long(every=4)
@NAMES
def test_without_fused_multiply_add(name: str):
    check_single(compiled(unfused(), "f4", 4)[name], name, 40_000)
    check_double(compiled(unfused(), "f8", 2)[name], name, 1000)


@pytest.mark.long(each=True)
@PROCESSORS
@DTYPES
def test_special_values(processor: Processor, dtype: str):
    big = float(np.finfo(dtype).max)
    x = np.array([-np.inf, -big, -0.0, 0.0, big, np.inf, np.nan], dtype)
    inf, nan, pi = np.inf, np.nan, np.pi
    sine, cosine, tangent = (
        lambda x, f=f: float(f(mpmath.mpf(x))) for f in (mpmath.sin, mpmath.cos, mpmath.tan)
    )
    wanted = {
        "exp": [0, 0, 1, 1, inf, inf, nan],
        "expm1": [-1, -1, -0.0, 0, inf, inf, nan],
        "log": [nan, nan, -inf, -inf, np.log(np.array(big, dtype)), inf, nan],
        "log1p": [nan, nan, -0.0, 0, np.log(np.array(big, dtype)), inf, nan],
        "sin": [nan, sine(-big), -0.0, 0, sine(big), nan, nan],
        "cos": [nan, cosine(big), 1, 1, cosine(big), nan, nan],
        "tan": [nan, tangent(-big), -0.0, 0, tangent(big), nan, nan],
        "arctan": [-pi / 2, -pi / 2, -0.0, 0, pi / 2, pi / 2, nan],
        "sinh": [-inf, -inf, -0.0, 0, inf, inf, nan],
        "cosh": [inf, inf, 1, 1, inf, inf, nan],
        "tanh": [-1, -1, -0.0, 0, 1, 1, nan],
        "sigmoid": [0, 0, 0.5, 0.5, 1, 1, nan],
        "erf": [-1, -1, -0.0, 0, 1, 1, nan],
    }
    with np.errstate(all="ignore"):
        wanted |= {name: WIDE[name](x.astype("f8")) for name in POWERS}
    for name, function in compiled(processor, dtype, lanes_of(processor, dtype)).items():
        with np.errstate(over="ignore"):
            got, values = function(x), np.array(wanted[name]).astype(dtype)
        np.testing.assert_array_equal(got, values, err_msg=name)
        known = ~np.isnan(values)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(values[known]), err_msg=name)
    assert compiled(processor, dtype, 0)["log1p"](np.array([-1], dtype))[0] == -inf


@pytest.mark.long(each=True)
@PROCESSORS
@DTYPES
def test_every_width_gives_the_same_bits(processor: Processor, dtype: str):
    x = points(dtype, 300)
    integer = f"u{np.dtype(dtype).itemsize}"
    natural = lanes_of(processor, dtype)
    for name in FUNCTIONS:
        one = compiled(processor, dtype, 0)[name](x)
        for lanes in (natural, natural // 2, natural * 2):
            several = compiled(processor, dtype, lanes)[name](x)
            same = (one.view(integer) == several.view(integer)) | (np.isnan(one) & np.isnan(several))
            assert same.all(), (name, lanes, x[~same])


@DTYPES
def test_every_target_that_fuses_gives_the_same_bits(dtype: str):
    x = points(dtype, 300)
    processors = [processor for processor in available_processors() if processor.has_fused]
    for name in FUNCTIONS:
        results = [
            compiled(processor, dtype, lanes_of(processor, dtype))[name](x) for processor in processors
        ]
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0], err_msg=name)


@pytest.mark.long(pairs=True)
@PROCESSORS
@DTYPES
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_a_large_angle_changes_nothing_beside_it(processor: Processor, dtype: str, name: str):
    x = points(dtype, 40)
    x = x[np.abs(x) <= 2**20]
    function = compiled(processor, dtype, lanes_of(processor, dtype))[name]
    mixed = np.insert(x, range(0, x.size, 4), np.finfo(dtype).max)
    np.testing.assert_array_equal(function(mixed)[mixed < np.finfo(dtype).max], function(x))


@PROCESSORS
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_the_angles_nearest_to_quarters(processor: Processor, name: str):
    """The doubles that come nearest to a multiple of π/2, of all and of those up to 2^20."""
    x = np.array([NEAREST, -NEAREST, NEAREST_ORDINARY, -NEAREST_ORDINARY])
    with mpmath.workprec(1200):
        exact = [EXACT[name](mpmath.mpf(number)) for number in x.tolist()]
        high = np.array([float(number) for number in exact])
        got = compiled(processor, "f8", lanes_of(processor, "f8"))[name](x)
        away = [abs(mpmath.mpf(a) - b) for a, b in zip(got.tolist(), exact, strict=True)]
    assert (np.array([float(one) for one in away]) <= spacing(high, "f8")).all()


@DTYPES
def test_odd_functions_are_odd(dtype: str):
    x = points(dtype, 2000)
    processor = available_processors()[0]
    for name in ("sin", "tan", "arctan", "sinh", "tanh", "erf"):
        function = compiled(processor, dtype, lanes_of(processor, dtype))[name]
        np.testing.assert_array_equal(function(-x), -function(x), err_msg=name)
