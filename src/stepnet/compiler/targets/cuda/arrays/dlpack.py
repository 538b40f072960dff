"""Arrays on a device as capsules of DLPack, by which other libraries take them where they lie."""

import ctypes
from collections.abc import Sequence
from typing import Any

from stepnet.compiler.values.lending import DLTensor, dtype_word
from stepnet.errors import InputError

NAME = b"dltensor"


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
