"""Arrays on a device as capsules of DLPack, by which libraries take each other's where they lie.

capsule_of    an array of stepnet, for others
lent_by       an array of another library, for stepnet
"""

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from stepnet.compiler.values.lending import KINDS, DLTensor, dtype_word
from stepnet.errors import InputError

NAME = b"dltensor"
NAMES = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
"""The names of dtypes without their bits, by NumPy's letters for their kinds."""


class ManagedTensor(ctypes.Structure):
    """An array with the function that gives it back, as DLPack lays it out."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


HELD = dict[int, tuple[ManagedTensor, Any, Any]]()
"""The arrays that consumers of capsules hold, by the address of the `ManagedTensor`."""
python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
python.PyCapsule_IsValid.argtypes = ctypes.c_void_p, ctypes.c_char_p
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, ctypes.c_char_p


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def give_back(address: int) -> None:
    """Takes an array back from its consumer: its memory may be freed."""
    HELD.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def drop_unused(capsule: int) -> None:
    """Takes an array back if nobody has consumed the capsule, which would have another name then."""
    if python.PyCapsule_IsValid(capsule, NAME):
        HELD.pop(python.PyCapsule_GetPointer(capsule, NAME), None)


def capsule_of(address: int, shape: Sequence[int], dtype: str, place: tuple[int, int], owner: object) -> Any:
    """Makes a capsule of a C-contiguous array.

    address: of its first byte. place: the type and the number of its device. owner: keeps its memory.
    Raises `InputError` for a dtype that DLPack lacks.
    """
    try:
        word = dtype_word(dtype)
    except KeyError:
        raise InputError(f"DLPack has no dtype {dtype}: take the array's numbers with .numpy()") from None
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    tensor = DLTensor(address, place, len(shape), word, ctypes.addressof(sizes), None, 0)
    managed = ManagedTensor(tensor, None, ctypes.cast(give_back, ctypes.c_void_p))
    where = ctypes.addressof(managed)
    HELD[where] = managed, sizes, owner
    return python.PyCapsule_New(where, NAME, ctypes.cast(drop_unused, ctypes.c_void_p))


class LentArray(NamedTuple):
    """An array of another library. capsule: keeps its memory. is_whole: whether it is C-contiguous."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    capsule: Any
    is_whole: bool


def lent_by(value: Any, **options: Any) -> LentArray:
    """Returns where the array of another library lies. options: of the protocol, such as the stream on which
    its numbers are to be ready.
    """
    capsule = value.__dlpack__(**options)
    lent = DLTensor.from_address(python.PyCapsule_GetPointer(id(capsule), NAME))
    shape = tuple((ctypes.c_int64 * lent.axes).from_address(lent.sizes)) if lent.axes else ()
    is_whole = True
    if lent.strides and prod(shape):
        strides = (ctypes.c_int64 * lent.axes).from_address(lent.strides)
        right = (prod(shape[axis + 1 :]) for axis in range(lent.axes))
        is_whole = all(n == 1 or has == one for n, has, one in zip(shape, strides, right, strict=True))
    return LentArray((lent.data or 0) + lent.start, shape, dtype_of(lent.dtype), capsule, is_whole)


def dtype_of(word: int) -> str:
    """Returns the name of a dtype by DLPack's word for it, the inverse of `dtype_word`.

    >>> dtype_of(0x12002), dtype_of(0x11004)
    ('float32', 'bfloat16')
    """
    bits = word >> 8 & 255
    kind = next((letter for letter, number in KINDS.items() if number == word & 255), "")
    return {"V": "bfloat16", "b": "bool"}.get(kind) or f"{NAMES.get(kind, 'unknown')}{bits}"
