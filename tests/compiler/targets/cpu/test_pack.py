"""Packing in machine code: each number of a matrix at its place, wherever the matrix lies."""

from functools import reduce
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from stepnet.compiler.targets.cpu import Processor, available_processors
from stepnet.compiler.targets.cpu.machine.memory import aligned, pointer
from stepnet.compiler.targets.cpu.products.pack import Packing, vector_sums, word_count

Array = np.ndarray
DTYPES = ("float32", "float64", "float16", "int32", "int64", "bool")
VIEWS = {
    "as it lies": lambda matrix: matrix,
    "transposed": lambda matrix: np.ascontiguousarray(matrix.T).T,
    "every second column": lambda matrix: np.repeat(matrix, 2, axis=1)[:, ::2],
    "from the last": lambda matrix: matrix[::-1, ::-1].copy()[::-1, ::-1],
    "a part": lambda matrix: np.pad(matrix, 3)[3:-3, 3:-3],
    "one row for all": lambda matrix: np.broadcast_to(matrix[:1], matrix.shape),
    "read-only": lambda matrix: np.frombuffer(matrix.tobytes(), matrix.dtype).reshape(matrix.shape),
}


def unpacked(memory: Array, shape: tuple[int, int], gates: int, width: int, dtype: str) -> list[Array]:
    """The matrices that packed memory holds, with what stands behind their columns."""
    inner, size = shape
    blocks = -(-size // width)
    numbers = memory[: blocks * inner * gates * width * np.dtype(dtype).itemsize].view(dtype)
    whole = numbers.reshape(blocks, inner, gates, width)
    return [whole[:, :, gate].transpose(1, 0, 2).reshape(inner, blocks * width) for gate in range(gates)]


@pytest.mark.long(each=True, examples=8)
@pytest.mark.parametrize("processor", available_processors(), ids=lambda processor: processor.name)
@pytest.mark.parametrize("view", VIEWS)
@settings(max_examples=25, deadline=None)
@given(
    inner=st.integers(1, 40),
    size=st.integers(1, 40),
    gates=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_every_number_is_at_its_place(
    processor: Processor, view: str, inner: int, size: int, gates: int, dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    width = processor.vector_bytes // 4
    most = 2 if dtype == "bool" else 100
    values = [VIEWS[view](random.integers(0, most, (inner, size)).astype(dtype)) for _ in range(gates)]
    memory = aligned(4096 * 64)
    for gate, value in enumerate(values):
        Packing(value, gate, gates, width, memory, processor)(pointer(value))
    for value, whole in zip(values, unpacked(memory, (inner, size), gates, width, dtype), strict=True):
        np.testing.assert_array_equal(whole[:, :size], value, strict=True)
        assert not whole[:, size:].any()


@pytest.mark.long(each=True, examples=4)
@pytest.mark.parametrize("processor", available_processors(), ids=lambda processor: processor.name)
@pytest.mark.parametrize("view", VIEWS)
@settings(max_examples=10, deadline=None)
@given(inner=st.integers(1, 40), size=st.integers(1, 40), gates=st.integers(1, 4), seed=st.integers(0, 99))
def test_numbers_in_bfloat16_lie_two_to_a_word(
    processor: Processor, view: str, inner: int, size: int, gates: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    width = processor.vector_bytes // 4
    drawn = [random.normal(size=(inner, size)).astype("float32") for _ in range(gates)]
    for numbers in drawn:
        numbers[random.random((inner, size)) < 0.05] = random.choice([np.nan, np.inf, -np.inf, 1e-40, 3.4e38])
    values = [VIEWS[view](numbers) for numbers in drawn]
    memory = aligned(4096 * 64)
    for gate, value in enumerate(values):
        Packing(value, gate, gates, width, memory, processor, "bfloat16")(pointer(value))
    words = unpacked(memory, (word_count(inner, "bfloat16"), size), gates, width, "uint32")
    for value, whole in zip(values, words, strict=True):
        halves = np.stack([whole & 0xFFFF, whole >> 16], axis=1).astype(np.uint16)
        numbers = halves.reshape(-1, whole.shape[1])
        expected = value.astype(ml_dtypes.bfloat16).view(np.uint16)
        np.testing.assert_array_equal(numbers[:inner, :size], expected, strict=True)
        assert not numbers[inner:].any()
        assert not numbers[:, size:].any()


def test_a_matrix_without_numbers_is_nothing_to_pack() -> None:
    memory = aligned(64)
    for shape in ((0, 5), (5, 0)):
        Packing(np.ones(shape, "float32"), 0, 1, 16, memory, available_processors()[0])(0)
    assert not memory.any()


@pytest.mark.parametrize("processor", available_processors(), ids=lambda processor: processor.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors_are_added_from_left_to_right(processor: Processor, dtype: str) -> None:
    """Parts of parameters, of sizes that fill no vector; the memory between the sums stays."""
    random, sizes = np.random.default_rng(0), (1, 7, 16, 33)
    parameters = [random.normal(size=100).astype(dtype) for _ in range(3)]
    memory, sums = np.full(200, 9, dtype), list[Any]()
    wanted = memory.copy()
    for place, size in enumerate(sizes):
        terms = [(each, 5 * place + each) for each in range(1 + place % 3)]
        begin, itemsize = 40 * place, memory.itemsize
        sums.append((pointer(memory[begin:]), size * itemsize, [(each, at * itemsize) for each, at in terms]))
        parts = [parameters[each][at : at + size] for each, at in terms]
        wanted[begin : begin + size] = reduce(np.add, parts)
    task = vector_sums(dtype, sums, processor)
    task.read([*map(pointer, parameters)])
    for _ in range(2):
        task()
        np.testing.assert_array_equal(memory, wanted)
