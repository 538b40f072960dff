"""Memory for machine code: zeroed where it is promised, apart, and used again."""

import ctypes
import gc
import mmap
from typing import Any

import numpy as np
import pytest

from stepnet.compiler.targets.cpu.machine.memory import (
    EMPTY,
    MOSTLY_FULL,
    POOL,
    WORKSPACES,
    JointAllocation,
    Pool,
    RowAllocator,
    aligned,
    data_offset,
    items_offset,
    maker_of,
    numpy_function,
)
from stepnet.errors import LibraryError

HUGE = 2**21
"""The bytes of a huge page."""


def test_what_is_given_back_is_taken_again_and_zeroed() -> None:
    pool = Pool(2**20)
    first = pool.take(5000)
    assert not first.any()
    first[...] = 7
    pool.give_back(first)
    again = pool.take(5001, zeroed=False)
    assert again is first
    assert again.all()
    pool.give_back(again)
    assert not pool.take(4999).any()


def test_memory_that_is_in_use_is_not_given_twice() -> None:
    pool = Pool(2**20)
    pool.give_back(pool.take(100))
    assert pool.take(100) is not pool.take(100)


def test_no_more_is_kept_than_it_may() -> None:
    pool = Pool(2**16)
    small, large, larger = pool.take(2**12), pool.take(2**16), pool.take(2**17)
    pool.give_back(small)
    pool.give_back(large)  # the small one goes
    assert pool.take(2**12) is not small
    assert pool.take(2**16) is large
    pool.give_back(larger)
    assert pool.take(2**17) is not larger


def test_memory_comes_back_while_the_collector_deletes_arrays() -> None:
    """The collector may run in the middle of a listing of what the pool has."""
    large = 3 * 2**19
    before, held, tries = gc.get_threshold(), list[list[tuple[int, object]]](), 20
    for pages in range(100):
        POOL.give_back(aligned(4096 * (1 + pages)))
    try:
        gc.set_threshold(60)
        for number in range(tries):
            held.append([(number, object()) for _ in range(3000)])  # no tuple is left that Python would reuse
            cycle: list[object] = [maker_of(((large * (8 + number) // 8,), "uint8"))()]
            cycle.append(cycle)
            del cycle
            POOL.give_back(aligned(4096))
    finally:
        gc.set_threshold(*before)
    assert len(held) == tries


def test_arrays_together_have_their_shapes_and_share_no_numbers() -> None:
    layout = JointAllocation([((3, 5), "float32"), ((0, 2), "float64"), ((7,), "int64")])
    arrays = layout.new()
    assert [(array.shape, array.dtype.name) for array in arrays] == [
        ((3, 5), "float32"),
        ((0, 2), "float64"),
        ((7,), "int64"),
    ]
    for number, array in enumerate(arrays):
        array[...] = number
    assert [set(array.ravel().tolist()) for array in arrays] == [{0}, set(), {2}]
    again = layout.arrays(aligned(layout.bytes))
    assert not any(array.any() for array in again)


def test_large_and_small_arrays_can_be_written() -> None:
    for count in (3, MOSTLY_FULL):
        array = RowAllocator((1,), "float32").new(count)
        array[...] = 1
        assert (array.sum(), array.flags.c_contiguous) == (count, True)


def test_large_results_have_their_memory_as_long_as_one_of_them_is_there() -> None:
    layout = JointAllocation([((MOSTLY_FULL,), "uint8"), ((3, 5), "float32")])
    first = layout.new()
    view = first[1].reshape(5, 3)[1:]
    begin = first[0].ctypes.data
    del first
    view[...] = 1
    others = [layout.new() for _ in range(3)]
    assert begin not in [arrays[0].ctypes.data for arrays in others]
    for arrays in others:
        for array in arrays:
            array[...] = 0
    assert (view == 1).all()
    del view
    assert layout.new()[0].ctypes.data == begin


def test_memory_that_the_system_does_not_have_is_an_error_of_memory() -> None:
    with pytest.raises(MemoryError, match=rf"^the system cannot allocate {2**60 + HUGE} more bytes$"):
        aligned(2**60)
    assert not aligned(2**20).any()


def test_workspaces_take_no_huge_page_that_they_fill_in_part():
    """Many are kept, of which a call uses little; parameters have huge pages from a smaller size on."""
    size = MOSTLY_FULL // 2
    assert is_mapped(POOL.take(size))
    assert not is_mapped(WORKSPACES.take(size))
    assert is_mapped(WORKSPACES.take(2 * MOSTLY_FULL))


def is_mapped(array: np.ndarray) -> bool:
    """True if the memory of an array is mapped on its own, as for huge pages."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 3, 4)])
def test_an_array_object_holds_the_pointer_to_its_elements(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, "f4")[..., None][..., 0]
    found = ctypes.c_void_p.from_address(id(array) + data_offset()).value
    assert found == array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    ("function", "place", "words"),
    [
        (data_offset, (), r"array objects of NumPy [\d.]+ have another layout"),
        (numpy_function, (EMPTY,), r"NumPy [\d.]+ has another interface in C than expected"),
    ],
)
def test_arrays_of_another_layout_are_refused(
    function: Any, place: tuple[int, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = np.ones(2, np.int64)  # what the pointer of no array of theirs is, and other sizes
    monkeypatch.setattr(f"{function.__module__}.pointer", lambda _: others.ctypes.data)
    with pytest.raises(LibraryError, match=words):
        function.__wrapped__(*place)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_list_holds_the_pointer_to_its_items(count: int) -> None:
    items: list[object] = [object() for _ in range(count)]
    first = ctypes.c_void_p.from_address(id(items) + items_offset()).value or 0
    found = [ctypes.c_void_p.from_address(first + 8 * place).value for place in range(count)]
    assert found == [*map(id, items)]
