"""The elementary functions of the CPU engine, in ulp, against NumPy in float64 (f4) and mpmath (f8)."""

import ctypes
from collections.abc import Callable
from functools import cache
from math import erf

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from stepnet.engines.llvm.code import I64, POINTER, Code
from stepnet.engines.llvm.maths import MATHS
from stepnet.engines.llvm.target import Target, available_targets

Function = Callable[[NDArray], NDArray]

# The units in the last place that a result may be away.
BOUNDS = {"exp": 2.0, "log": 2.0, "tanh": 2.0, "sigmoid": 2.0, "expm1": 4.0, "log1p": 4.0, "erf": 4.0}
MOST_LANES = 64
TARGETS = pytest.mark.parametrize("target", available_targets(), ids=lambda target: target.name)
NAMES = pytest.mark.parametrize("name", MATHS)
DTYPES = pytest.mark.parametrize("dtype", ["f4", "f8"])

WIDE: dict[str, Function] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(erf, otypes=["f8"]),
}
EXACT = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "erf": mpmath.erf,
}


class Unfused(Code):
    """Code for a processor without a fused multiply-add."""

    def fused(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.fadd(self.fmul(a, b), c)


# ------------------------------------------------------------------------------- compiling and calling


@cache
def compiled(target: Target, dtype: str, lanes: int, code_class: type[Code] = Code) -> dict[str, Function]:
    """Every function as one on arrays, computed `lanes` at a time (0: a scalar at a time)."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = ir.Module("maths")
    for name in MATHS:
        write_loop(module, name, target, dtype, lanes, code_class)
    machine = llvm.Target.from_default_triple().create_target_machine(target.cpu, target.features, opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    return {name: on_arrays(engine, name) for name in MATHS}


def write_loop(module: ir.Module, name: str, target: Target, dtype: str, lanes: int, code_class: type[Code]):
    element = ir.FloatType() if dtype == "f4" else ir.DoubleType()
    type_ = ir.VectorType(element, lanes) if lanes else element
    bytes_each = np.dtype(dtype).itemsize
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64]), name)
    source, result, count = function.args
    code = code_class(function.append_basic_block("entry"), target)
    with code.loop(code.number(0), count, code.number(max(lanes, 1))) as index:
        offset = code.mul(index, code.number(bytes_each))
        source, result = (code.bitcast(code.gep(p, [offset]), type_.as_pointer()) for p in (source, result))
        code.store(MATHS[name](code, code.load(source, align=bytes_each)), result, align=bytes_each)
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


def lanes_of(target: Target, dtype: str) -> int:
    return target.vector_bytes // np.dtype(dtype).itemsize


# ---------------------------------------------------------------------------------------------- points


@cache
def points(dtype: str, count: int) -> NDArray:
    """Any bits at all; ranges around 0, evenly and by magnitude; ranges around 1; the edges."""
    generator = np.random.default_rng(0)
    kind = np.dtype(dtype)
    integer = np.dtype(f"u{kind.itemsize}")
    bits = generator.integers(0, np.iinfo(integer).max, count, dtype=integer, endpoint=True).view(kind)
    spans = [0.3, 1.0, 4.0, 20.0, 100.0 if kind.itemsize == 4 else 760.0]
    ranges = [generator.uniform(-span, span, count) for span in spans]
    small = 10.0 ** generator.uniform(-12, 0, count) * generator.choice([-1, 1], count)
    near_one = generator.uniform(0.6, 1.6, count)
    info = np.finfo(kind)
    edges = [
        info.tiny,
        info.smallest_subnormal,
        info.tiny * 0.7,
        1.0,
        np.nextafter(kind.type(1), kind.type(0)),
    ]
    return np.concatenate(
        [bits, *(part.astype(kind) for part in [*ranges, small, near_one, np.array(edges)])]
    )


@cache
def exact(name: str, count: int) -> tuple[NDArray, NDArray, NDArray]:
    """The points where the function of a double is finite, its value there, and what that leaves out."""
    x = points("f8", count)
    with np.errstate(all="ignore"):
        x = x[np.isfinite(WIDE[name](x)) & np.isfinite(x)]
    with mpmath.workprec(120):
        # Far out there is nothing to compute, and mpmath would take for ever.
        values = [
            EXACT[name](mpmath.mpf(min(max(v, -2000.0), 2000.0) if "log" not in name else v))
            for v in x.tolist()
        ]
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
    x = points("f4", count)
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


@TARGETS
@NAMES
def test_single_precision(target: Target, name: str):
    check_single(compiled(target, "f4", lanes_of(target, "f4"))[name], name, 40_000)


@TARGETS
@NAMES
def test_double_precision(target: Target, name: str):
    check_double(compiled(target, "f8", lanes_of(target, "f8"))[name], name, 1000)


@NAMES
def test_without_fused_multiply_add(name: str):
    target = available_targets()[-1]
    check_single(compiled(target, "f4", 4, Unfused)[name], name, 40_000)
    check_double(compiled(target, "f8", 2, Unfused)[name], name, 1000)


@TARGETS
@DTYPES
def test_special_values(target: Target, dtype: str):
    big = float(np.finfo(dtype).max)
    x = np.array([-np.inf, -big, -0.0, 0.0, big, np.inf, np.nan], dtype)
    inf, nan = np.inf, np.nan
    wanted = {
        "exp": [0, 0, 1, 1, inf, inf, nan],
        "expm1": [-1, -1, -0.0, 0, inf, inf, nan],
        "log": [nan, nan, -inf, -inf, np.log(np.array(big, dtype)), inf, nan],
        "log1p": [nan, nan, -0.0, 0, np.log(np.array(big, dtype)), inf, nan],
        "tanh": [-1, -1, -0.0, 0, 1, 1, nan],
        "sigmoid": [0, 0, 0.5, 0.5, 1, 1, nan],
        "erf": [-1, -1, -0.0, 0, 1, 1, nan],
    }
    for name, function in compiled(target, dtype, lanes_of(target, dtype)).items():
        got, values = function(x), np.array(wanted[name], dtype)
        np.testing.assert_array_equal(got, values, err_msg=name)
        known = ~np.isnan(values)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(values[known]), err_msg=name)
    assert compiled(target, dtype, 0)["log1p"](np.array([-1], dtype))[0] == -inf


@TARGETS
@DTYPES
def test_every_width_gives_the_same_bits(target: Target, dtype: str):
    x = points(dtype, 300)
    integer = f"u{np.dtype(dtype).itemsize}"
    natural = lanes_of(target, dtype)
    for name in MATHS:
        one = compiled(target, dtype, 0)[name](x)
        for lanes in (natural, natural // 2, natural * 2):
            several = compiled(target, dtype, lanes)[name](x)
            same = (one.view(integer) == several.view(integer)) | (np.isnan(one) & np.isnan(several))
            assert same.all(), (name, lanes, x[~same])


@DTYPES
def test_every_target_that_fuses_gives_the_same_bits(dtype: str):
    x = points(dtype, 300)
    targets = [target for target in available_targets() if target.has_fused]
    for name in MATHS:
        results = [compiled(target, dtype, lanes_of(target, dtype))[name](x) for target in targets]
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0], err_msg=name)


@DTYPES
def test_odd_functions_are_odd(dtype: str):
    x = points(dtype, 2000)
    target = available_targets()[0]
    for name in ("tanh", "erf"):
        function = compiled(target, dtype, lanes_of(target, dtype))[name]
        np.testing.assert_array_equal(function(-x), -function(x), err_msg=name)
