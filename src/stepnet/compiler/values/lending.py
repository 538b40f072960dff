"""The memory of arrays and of tensors: the shape and dtype of each, and where values lie in those of a call.

tensors        objects of a framework, which lends their memory by DLPack
places         the values of a call, each in one of the tensors
"""

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

Spec = tuple[tuple[int, ...], Any]
"""The shape of an array, and its dtype or the name of that."""
Place = tuple[int, int]
"""The place of a value: the number of a tensor, and where the value begins in it, in bytes."""

ROOM = 16
"""The most axes of a tensor whose sizes and strides a framework may write behind its `DLTensor`."""
KINDS = {"i": 0, "u": 1, "f": 2, "V": 4, "c": 5, "b": 6}
"""DLPack's numbers of the kinds of dtypes, by NumPy's letters. V is bfloat16."""
ON_CPU = 1
"""DLPack's number of the CPU among the kinds of devices."""


class DLTensor(ctypes.Structure):
    """An array, as DLPack lays it out.

    device: the kind and the number of the device. dtype: that of `dtype_word`. sizes, strides: the pointers
    to those of the axes. start: where the numbers begin behind `data`, in bytes.
    """

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("axes", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("sizes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("start", ctypes.c_uint64),
    )


def dtype_word(dtype: Any) -> int:
    """Returns the word of DLPack for a dtype: its kind, its bits, and one number. Raises `KeyError` for a
    dtype that DLPack lacks.

    >>> hex(dtype_word("float32"))
    '0x12002'
    """
    known = np.dtype(dtype)
    return KINDS[known.kind] | 8 * known.itemsize << 8 | 1 << 16


def bytes_of(spec: Spec) -> int:
    """Returns the size in bytes of an array with a shape and dtype.

    >>> bytes_of(((2, 3), "float32"))
    24
    """
    shape, dtype = spec
    return prod(shape) * np.dtype(dtype).itemsize


class Lender(NamedTuple):
    """A framework that lends the memory of its tensors to machine code.

    read: the address of a function in C, `int read(PyObject *tensor, DLTensor *lent)`, which describes the
        memory of a tensor on the CPU in `lent`, and behind it if it has no memory of its own for the sizes;
        it returns 0, or else another number, with or without an error of Python.
    kinds: the two classes of its tensors. Objects of other classes lend nothing.
    least: the least address of a tensor's memory. One below it is the offset of a part of a tensor without
        memory, and lends nothing.
    """

    read: int
    kinds: tuple[type, type]
    least: int


class TensorList(NamedTuple):
    """The tensors of a call, in their order, and the values that lie in them.

    lender: the framework of the tensors.
    specs: the shape and dtype of each. A tensor with another one, or with gaps, lends nothing.
    places: where each value of the call lies.
    instead: for tensors that may be None, by number, the address of the memory that is read in place of
        theirs; any but 0 if none of the values lies there. held: the object that has this memory.
    gaps: the memory between values that a call sets to zero: the number of a tensor, the begin and the end
        in bytes.
    """

    lender: Lender
    specs: Sequence[Spec]
    places: Sequence[Place]
    instead: Mapping[int, int]
    held: Sequence[object] = ()
    gaps: Sequence[tuple[int, int, int]] = ()
