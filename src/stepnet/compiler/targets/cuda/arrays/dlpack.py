"""Arrays on a device as capsules of DLPack, by which libraries take each other's where they lie.

capsule_of    an array of stepnet, for others
lent_by       an array of another library, for stepnet
"""

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.values.lending import KINDS, DLTensor, dtype_word
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError

NAME = b"dltensor"
NAMES = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
"""The names of dtypes without their bits, by NumPy's letters for their kinds."""
WIDEST = 8
"""The bytes of the widest whole numbers."""

pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
"""A function of Python with types of its own: other libraries set those of `ctypes.pythonapi`."""


@dataclass(frozen=True)
class KeptArray:
    """Facts of an array, as NumPy reads them. owner: keeps its memory."""

    __array_interface__: dict[str, Any]
    owner: object


def capsule_of(address: int, shape: Sequence[int], dtype: str, place: tuple[int, int], owner: object) -> Any:
    """Makes a capsule of a C-contiguous array: one of NumPy, which never reads the memory, with another place
    and dtype. So no code in Python runs when it is dropped, which may be while an error is raised.

    address: of its first byte. place: the type and the number of its device. owner: keeps its memory.
    Raises `InputError` for a dtype that DLPack lacks.
    """
    try:
        word = dtype_word(dtype)
    except KeyError:
        raise InputError(f"DLPack has no dtype {dtype}: take the array's numbers with .numpy()") from None
    size = np.dtype(dtype).itemsize
    typestr = np.dtype(f"u{size}" if size <= WIDEST else f"c{size}").str
    facts = {"shape": (*shape,), "typestr": typestr, "data": (int(address), False), "version": 3}
    capsule = np.asarray(KeptArray(facts, owner)).__dlpack__()
    tensor = tensor_of(capsule)
    tensor.data, tensor.dtype = address, word
    tensor.device[:] = place
    return capsule


def tensor_of(capsule: Any) -> DLTensor:
    """Returns the array of a capsule. Raises `BufferError` for what is none, or was consumed."""
    try:
        return DLTensor.from_address(pointer_in(capsule, NAME))
    except ValueError:
        raise BufferError(f"its __dlpack__ gave no capsule that is still unused: {capsule!r}") from None


class LentArray(NamedTuple):
    """An array of another library. capsule: keeps its memory. is_whole: whether it is C-contiguous."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    capsule: Any
    is_whole: bool


def lent_by(value: Any, **options: Any) -> LentArray:
    """Returns where the array of another library lies. options: of the protocol, such as the stream on which
    its numbers are to be ready. Raises `BufferError` for one that cannot be read.
    """
    capsule = value.__dlpack__(**options)
    lent = tensor_of(capsule)
    shape = tuple((ctypes.c_int64 * lent.axes).from_address(lent.sizes)) if lent.axes else ()
    is_whole, has_numbers = True, bool(prod(shape))
    if has_numbers and not lent.data:
        raise BufferError("it has no memory")
    if lent.strides and has_numbers:
        strides = (ctypes.c_int64 * lent.axes).from_address(lent.strides)
        right = (prod(shape[axis + 1 :]) for axis in range(lent.axes))
        is_whole = all(n == 1 or has == one for n, has, one in zip(shape, strides, right, strict=True))
    return LentArray((lent.data or 0) + lent.start, shape, dtype_of(lent.dtype), capsule, is_whole)


def dtype_of(word: int) -> str:
    """Returns the name of a dtype by DLPack's word for it, the inverse of `dtype_word`. Raises `BufferError`
    for one that NumPy and ml_dtypes lack, as of half bytes, and for vectors.

    >>> dtype_of(0x12002), dtype_of(0x11004)
    ('float32', 'bfloat16')
    """
    number, bits = word & 255, word >> 8 & 255
    kind = next((letter for letter, own in KINDS.items() if own == number), "")
    name = {"V": "bfloat16", "b": "bool"}.get(kind) or f"{NAMES.get(kind, '')}{bits}"
    try:
        if dtype_word(name) == word:
            return name
    except TypeError:
        pass
    raise BufferError(f"no such dtype is known: number {number} of DLPack, of {bits} bits")
