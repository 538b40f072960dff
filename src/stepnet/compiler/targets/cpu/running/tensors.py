"""Tensors of a call that a framework allocated: machine code reads from the objects where their numbers lie.

    list      tensor objects x, W, y, saved
    tensors   class, dtype, sizes and strides as known?     or else nothing is run
    values    the address of each, by the tensor in which it lies and where it begins
    block     the call, on these addresses

Python calls the function once with the list of the tensors. In Python the address of a tensor and its checks
take longer than all of this for a whole call.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.targets.cpu.machine.machine_code import BuiltIn
from stepnet.compiler.targets.cpu.machine.memory import items_offset, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.values.lending import Spec, TensorList, dtype_word

Array = np.ndarray
TABLE = (
    *("tensors", "tensor_count", "values", "value_count", "gaps", "gap_count", "records"),
    *("read", "kind", "other_kind", "least", "none", "kind_offset", "items_offset", "block", "run", "list"),
)
"""The words of the table of a call's tensors.

tensors, tensor_count: the pointer to the table of tensors, and its number of entries.
values, value_count: the pointer to the table of values, and its number of entries.
gaps, gap_count: the pointer to the table of gaps, and its number of entries.
records: the pointer to the records of the values, as `CallBlock` has them: a type, 0, and an address.
read: the address of the function of the framework that describes a tensor.
kind, other_kind: the addresses of the two classes of tensors. least: the least address of their memory.
none: the address of None.
kind_offset, items_offset: the offset of the class in an object, and of the pointer to the items in a list.
block, run: the addresses of the call block and of the function that runs it.
list: the pointer to the list of records, as the block takes it.
"""
TENSOR = ("begin", "instead", "form", "axes", "sizes")
"""The words of a tensor: the address of its numbers, which machine code writes; that of the memory in place
of None, or 0; the word `form` of its `DLTENSOR`; its number of axes; and the pointer to a size and a stride
for each, where a stride of -1 may be any.
"""
VALUE = ("tensor", "start")
"""The words of a value: the number of its tensor, and where it begins there, in bytes."""
GAP = ("tensor", "start", "bytes")
"""The words of a gap: the number of the tensor, where the gap begins in it, and its bytes."""
DLTENSOR = ("data", "device", "form", "sizes", "strides", "start")
"""The words of a `DLTensor` of DLPack. device: the kind and the number of the device. form: the number of
axes, and the dtype.
"""


class TensorReader(NamedTuple):
    """Functions that machine code has for the tensors of a call, each of a list of them.

    read: writes the addresses of the values to their records. run: does so, and then runs the block.
    Both return the results of a call block; `NO_ARRAY` if a tensor lends no memory: nothing was run then.
    held: the memory that machine code reads, which must be kept.
    """

    read: Callable[[list[Any]], int]
    run: Callable[[list[Any]], int]
    held: Sequence[Array]


def reader_of(
    tensors: TensorList, records: Array, block: tuple[int, int, int], processor: Processor
) -> TensorReader:
    """Makes the functions that read the tensors of a call.

    records: of the values, whose second words get the addresses. block: the addresses of a call block, of the
        function that runs it, and of its list of records. processor: the processor that the code is for.
    """
    sizes = [sizes_of(spec) for spec in tensors.specs]
    rows = [
        (0, tensors.instead.get(place, 0), form_of(spec), len(spec[0]), pointer(own))
        for place, (spec, own) in enumerate(zip(tensors.specs, sizes, strict=True))
    ]
    gaps = [(tensor, start, end - start) for tensor, start, end in tensors.gaps]
    tables = [
        np.array(each, np.int64).reshape(-1, len(words))
        for each, words in ((rows, TENSOR), (tensors.places, VALUE), (gaps, GAP))
    ]
    begins = [word for table in tables for word in (pointer(table), len(table))]
    kinds = [*map(id, tensors.lender.kinds), tensors.lender.least, id(None)]
    offsets = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p), items_offset()
    words = np.array([*begins, pointer(records), tensors.lender.read, *kinds, *offsets, *block], np.int64)
    read, run = (each.bound(pointer(words)) for each in built_ins(processor))
    return TensorReader(read, run, [words, records, *tables, *sizes])


def sizes_of(spec: Spec) -> Array:
    """Returns the size and the stride of each axis of a dense tensor; -1 for a stride that may be any."""
    shape, _ = spec
    strides = [int(np.prod(shape[axis + 1 :])) if size != 1 else -1 for axis, size in enumerate(shape)]
    return np.array([*zip(shape, strides, strict=True), (0, 0)], np.int64)


def form_of(spec: Spec) -> int:
    """Returns the word of DLPack for a number of axes and a dtype: its kind, its bits, and one number."""
    return len(spec[0]) | dtype_word(spec[1]) << 32


@cache
def built_ins(processor: Processor) -> tuple[BuiltIn, BuiltIn]:
    """Returns the functions of Python, to be bound to the address of a table of tensors, that read a list of
    these: `read_tensors` and `run_tensors`.
    """
    code = machine_code("running.tensors", processor)
    return code.built_in("read_tensors"), code.built_in("run_tensors")
