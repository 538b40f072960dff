"""Memory for machine code: zeroed, page-aligned, and in huge pages if it is large.

Parameters are read sequentially at every step. With pages of 4 KB, each page needs a TLB entry, and the
prefetcher stops at the end of each page. Pages of 2 MB avoid both.

The first access to a page is a page fault. With pages of 4 KB the faults may take longer than the work on the
contents. So large results are in huge pages too, and workspaces are reused from call to call (`Pool`).

The memory is private to the process: after a fork, parent and child each have their own.
"""

import ctypes
import platform
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from itertools import accumulate
from typing import Any, cast

import numpy as np

from stepnet.compiler.native.pages import PAGE, WORTH_HUGE, aligned, pointer
from stepnet.compiler.values.lending import Spec, bytes_of
from stepnet.errors import LibraryError

Array = np.ndarray

MOSTLY_FULL = 3 * 2**19
"""The size in bytes from which a result has separate huge pages: it fills at least three quarters of them."""
LINE = 64
APART = 9 * LINE
"""The least distance in bytes from the end of one array to the next in `JointAllocation`."""
EMPTY, ZEROS = 184, 183
"""The places of `PyArray_Empty` and `PyArray_Zeros` among the functions of NumPy's interface in C."""
POOLED = 256 * 2**20
"""The most bytes of unused memory that are kept for reuse."""


class SharedMemory:
    """Owner of memory that several arrays share. It is deleted with the last of them, and then returns the
    memory.

    An array cannot be the owner: NumPy makes a view of a view refer to the base array.
    """

    def __init__(self, memory: Array) -> None:
        """Takes an array; the arrays that NumPy makes of this object share its memory and keep this alive."""
        self.memory, self.__array_interface__ = memory, memory.__array_interface__


class JointAllocation:
    """The layout of several arrays in one allocation, which is freed with the last of them.

    shapes: the shape and dtype of each array. starts: where each begins, in bytes. bytes: the bytes of all.

    The arrays are some cache lines apart: otherwise the same row of each would map to the same cache set.
    """

    def __init__(self, shapes: Sequence[Spec]) -> None:
        """Computes where each array begins, given all shapes and dtypes, and the bytes in total."""
        ends = accumulate(-(-bytes_of(shape) // LINE) * LINE + APART for shape in shapes)
        *self.starts, self.bytes = [0, *ends]
        self.array_specs = [
            (sizes, np.dtype(dtype), start) for (sizes, dtype), start in zip(shapes, self.starts, strict=True)
        ]

    def arrays(self, memory: Array) -> list[Array]:
        """Makes the arrays of this layout as views of a buffer, one after the other. memory: the buffer, of
        at least `self.bytes` bytes. Its contents are left as they are.
        """
        return [np.ndarray(shape, dtype, memory, start) for shape, dtype, start in self.array_specs]

    def new(self) -> list[Array]:
        """Allocates the arrays, uninitialised. If they are large, their memory returns to the pool of memory
        when the last of them is deleted.
        """
        if self.bytes < MOSTLY_FULL:
            return self.arrays(np.empty(self.bytes, np.uint8))
        memory = POOL.take(self.bytes, zeroed=False)
        owner = SharedMemory(memory)
        weakref.finalize(owner, POOL.give_back, memory).atexit = False
        return self.arrays(np.asarray(owner))


class RowAllocator:
    """Allocator of arrays of any number of rows, each of one shape and dtype."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        """Takes the shape and the dtype of one row of the arrays to be made."""
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.bytes = bytes_of((shape, dtype))

    def new(self, count: int) -> Array:
        """Allocates an uninitialised array of `count` rows, in huge pages if it is large."""
        return maker_of(self.spec(count))()

    def spec(self, count: int) -> Spec:
        """Returns the shape and the dtype of an array of `count` rows."""
        return (count, *self.shape), self.dtype


def maker_of(shape: Spec) -> Callable[[], Array]:
    """Returns a function that makes an uninitialised array of a shape and dtype, if large in huge pages."""
    if bytes_of(shape) < MOSTLY_FULL:
        return partial(np.empty, *shape)
    joint = JointAllocation([shape])
    return lambda: joint.new()[0]


class Pool:
    """Pool of unused memory, by size.

    most: the limit in bytes. If memory is returned that exceeds it, the memory kept so far is freed.
    worth_huge: the size in bytes from which huge pages are asked for.

    >>> pool = Pool(2**20)
    >>> first = pool.take(1000)
    >>> pool.give_back(first)
    >>> pool.take(1001) is first
    True
    """

    # Each change of a list or dictionary is atomic, and so is a copy, so no lock is needed. To list the items
    # of a dictionary is not: the collector may run in the middle, and arrays that go give memory back.

    def __init__(self, most: int, worth_huge: int = WORTH_HUGE) -> None:
        """Makes an empty pool; the arguments are the attributes of the class."""
        self.most, self.worth_huge = most, worth_huge
        self.free: dict[int, list[Array]] = {}

    def take(self, size: int, zeroed: bool = True) -> Array:
        """Returns, from the pool of memory, an array of at least `size` bytes, new or reused: zeros if
        `zeroed`, else uninitialised.
        """
        size = size_class(size)
        try:
            memory = self.free.get(size, []).pop()
        except IndexError:
            return aligned(size, self.worth_huge)
        if zeroed:
            memory[...] = 0
        return memory

    def give_back(self, *memory: Array) -> None:
        """Puts unused arrays into the pool of memory, for reuse. The pool stays below its limit in bytes."""
        for array in memory:
            if array.nbytes + sum(size * len(kept) for size, kept in self.free.copy().items()) > self.most:
                self.free = {}
            if array.nbytes <= self.most:
                self.free.setdefault(array.nbytes, []).append(array)


def size_class(size: int) -> int:
    """Rounds a number of bytes up, by at most an eighth or to a page, so that similar sizes share memory.

    >>> size_class(1000), size_class(2**20 + 1)
    (4096, 1179648)
    """
    step = max(PAGE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


POOL = Pool(POOLED)
WORKSPACES = Pool(POOLED, worth_huge=MOSTLY_FULL)
"""The pool of workspaces. A call uses little of most of them, and many are kept: in huge pages each would
take 2 MB of memory, whatever its size.
"""


@cache
def data_offset() -> int:
    """Returns the offset in bytes, in the memory of an array object, of the pointer to its elements.

    It follows the head of the object, whose last word is the type: `PyArrayObject` in NumPy's C interface.

    Raises `LibraryError` if an array has not that layout.
    """
    probe, offset = np.zeros(1), object.__basicsize__
    kind, data = (ctypes.c_void_p.from_address(id(probe) + at).value for at in (offset - 8, offset))
    if (kind, data) != (id(np.ndarray), pointer(probe)):
        raise LibraryError(f"array objects of NumPy {np.__version__} have another layout than expected")
    return offset


@cache
def items_offset() -> int:
    """Returns the offset in bytes, in the memory of a list, of the pointer to its items: it follows the
    number of items, behind the head of the object.

    Raises `LibraryError` if a list has not that layout.
    """
    probe, offset = [object(), object()], object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
    items = ctypes.c_void_p.from_address(id(probe) + offset).value
    found = [ctypes.c_void_p.from_address((items or offset) + 8 * place).value for place in range(2)]
    if found != [*map(id, probe)]:
        raise LibraryError(f"lists of Python {platform.python_version()} have another layout than expected")
    return offset


@cache
def numpy_function(place: int) -> int:
    """Returns the address of a function of NumPy's interface in C that allocates an array, by its place.

    Raises `LibraryError` if it makes another array than expected.
    """
    api: Any = import_module("numpy._core._multiarray_umath")._ARRAY_API
    pointer_of: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = pointer_of(("PyCapsule_GetPointer", ctypes.pythonapi))(api, None)
    address = ctypes.c_void_p.from_address(table + 8 * place).value or 0
    dtype, sizes = np.dtype(np.int16), np.array([2, 3], np.int64)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dtype))  # the function takes a reference
    arguments = ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
    make: Any = ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(address)
    made = make(2, pointer(sizes), id(dtype), 0)
    if type(made) is not np.ndarray or (made.shape, made.dtype) != ((2, 3), dtype):
        raise LibraryError(f"NumPy {np.__version__} has another interface in C than expected")
    return address


def view(array: Array) -> memoryview:
    """Returns a memoryview of an array, which reads and writes single elements in half the time."""
    return memoryview(cast("Any", array))
