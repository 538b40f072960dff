"""Casts from and to the dtypes that arrays are only stored in: bit for bit NumPy's, on every processor."""

from collections.abc import Callable
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from planned import schedule

import stepnet as sn
from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Net, Type
from stepnet.compiler.targets import Call
from stepnet.compiler.targets.cpu import LlvmEngine, Processor, available_processors
from stepnet.errors import NetError
from stepnet.ragged import Positions

Array = np.ndarray
PROCESSORS = pytest.mark.parametrize(
    "processor", available_processors(), ids=lambda processor: processor.name
)
STORED = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
WIDTH = 24
PATTERNS = np.arange(2**16, dtype=np.uint16)


def cast_net(source: str, target: str) -> Net:
    """A recurrence whose outputs are its inputs as another dtype."""
    body = Builder()
    x, h = body.input(Type(ROWS, (WIDTH,), source), "x"), body.input(Type(ROWS, (), "float32"), "h")
    inner = body.net([body.add("cast", x, dtype=target), h])
    outer = Builder()
    operands = outer.input(Type(STEPS, (WIDTH,), source), "x"), outer.input(Type(ROWS, (), "float32"), "h")
    recur = outer.add("recur", *operands, body=inner, sequences=1, memories=1, reverse=False, unroll=1)
    return outer.net([outer.add("result", recur, of=0), outer.add("result", recur, of=1)])


@cache
def compiled(source: str, target: str, on: Processor) -> Any:
    engine, whole = LlvmEngine(on), schedule(cast_net(source, target))
    assert engine.refuse(whole) is None
    return engine.compile(whole).bind([])


def cast(numbers: Array, target: str, on: Processor) -> Array:
    """The numbers as another dtype, by machine code."""
    steps = -(-numbers.size // WIDTH)
    x = np.zeros(steps * WIDTH, numbers.dtype)
    x[: numbers.size] = numbers
    call = Call(Positions.end_to_end(np.array([0, steps])), [x.reshape(steps, WIDTH)], [None])
    return compiled(numbers.dtype.name, target, on)(call).outputs[0].reshape(-1)[: numbers.size]


def assert_as_numpy(found: Array, right: Array) -> None:
    """The same bits, any NaN for a NaN of the same sign."""
    assert found.dtype == right.dtype
    nan = np.isnan(right)
    assert np.isnan(found[nan]).all()
    assert (np.signbit(found[nan]) == np.signbit(right[nan])).all()
    assert found[~nan].tobytes() == right[~nan].tobytes()


def rounded(numbers: Array, dtype: str) -> Array:
    """The rounding of NumPy. There, a float64 becomes bfloat16 by way of a float32, which rounds twice."""
    with np.errstate(all="ignore"):
        return numbers.astype(dtype)


@pytest.mark.long(each=True)
@PROCESSORS
@STORED
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_every_number_widens_to_itself(processor: Processor, dtype: str, wide: str) -> None:
    numbers = PATTERNS.view(dtype)
    with np.errstate(all="ignore"):  # of NaNs that are not quiet
        assert_as_numpy(cast(numbers, wide, processor), numbers.astype(wide))


@PROCESSORS
@STORED
def test_all_about_every_number_is_rounded_to_the_nearest(processor: Processor, dtype: str) -> None:
    """Each number, the middle to the next one, and what is next to that on both sides."""
    with np.errstate(all="ignore"):
        exact = PATTERNS.view(dtype).astype(np.float32)
    half = np.uint32(1 << (15 if dtype == "bfloat16" else 12))
    bits = exact.view(np.uint32)
    near = [bits, bits + np.uint32(1), bits + half - np.uint32(1), bits + half, bits + half + np.uint32(1)]
    numbers = np.concatenate(near).view(np.float32)
    assert_as_numpy(cast(numbers, dtype, processor), rounded(numbers, dtype))


@PROCESSORS
@STORED
def test_numbers_of_every_exponent_are_rounded_to_the_nearest(processor: Processor, dtype: str) -> None:
    """A thousand of each, also of those that are beyond the largest number."""
    fractions = np.random.default_rng(0).integers(0, 2**23, 1000, np.uint32)
    bits = (np.arange(512, dtype=np.uint32)[:, None] << 23 | fractions).ravel()
    numbers = bits.view(np.float32)
    assert_as_numpy(cast(numbers, dtype, processor), rounded(numbers, dtype))


@pytest.mark.long(each=True, examples=10)
@PROCESSORS
@STORED
@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=200, max_size=200))
def test_any_float_is_rounded_to_the_nearest(processor: Processor, dtype: str, bits: list[int]) -> None:
    numbers = np.array(bits, np.uint32).view(np.float32)
    assert_as_numpy(cast(numbers, dtype, processor), rounded(numbers, dtype))


@pytest.mark.long(each=True)
@PROCESSORS
@STORED
def test_doubles_are_rounded_once(processor: Processor, dtype: str) -> None:
    """The middle of two numbers, and what is so little from it that a float32 has no difference."""
    finite = PATTERNS[: 0x7F00 if dtype == "bfloat16" else 0x7B00].view(dtype).astype(np.float64)
    middle = (finite[1:] + finite[:-1]) / 2
    even = PATTERNS[: len(finite)].view(dtype)
    below, above = middle * (1 - 2.0**-40), middle * (1 + 2.0**-40)
    assert_as_numpy(cast(below, dtype, processor), even[:-1])
    assert_as_numpy(cast(above, dtype, processor), even[1:])
    assert_as_numpy(cast(-above, dtype, processor), -even[1:])
    up = np.arange(len(middle)) % 2 == 1
    assert_as_numpy(cast(middle, dtype, processor), np.where(up, even[1:], even[:-1]))
    ends = np.array([1e300, -1e300, np.inf, np.nan, 1e-300, 0.0, -0.0])
    assert_as_numpy(cast(ends, dtype, processor), rounded(ends, dtype))


@STORED
def test_what_is_only_stored_is_not_computed_with(dtype: str) -> None:
    builder = Builder()
    x = builder.input(Type(ROWS, (4,), dtype), "x")
    W = builder.input(Type(CONST, (4, 4), "float32"), "W")
    computing: list[Callable[[], int]] = [
        lambda: builder.add("add", x, x),
        lambda: builder.add("tanh", x),
        lambda: builder.add("matmul", x, W),
        lambda: builder.add("sum", x, axes=(-1,)),
        lambda: builder.add("cumsum", x, axis=-1),
    ]
    for add in computing:
        with pytest.raises(
            NetError, match=f"^{dtype} is a storage dtype: cast the value to float32 to compute with it$"
        ):
            add()
    count = builder.input(Type(ROWS, (4,), "int64"), "count")
    with pytest.raises(NetError, match=f"^int64 cannot be cast to {dtype}: only floats can$"):
        builder.add("cast", count, dtype=dtype)


def test_a_pair_of_bytes_is_what_a_field_takes() -> None:
    rnn = sn.RNN(lambda x, h, params: (x, h), memory=1, inputs=sn.Spec(3, "float16"))
    assert "f16[3]" in rnn.explain("llvm")
