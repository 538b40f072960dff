"""NumPy arrays in a pickle: the calls that rebuild them, and the arrays, made from bytes in the pickle.

Source: array_reduce and array_setstate in numpy/_core/src/multiarray/methods.c of NumPy 2.
"""

import math
from collections.abc import Mapping
from typing import Literal, cast

import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files.pickles.containers import latin
from stepnet.layout.files.pickles.values import PickledCall, is_shape, tuple_items

Array = np.ndarray

RECONSTRUCT = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
FROM_BUFFER = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}  # of protocol 5
NAMES = frozenset({*RECONSTRUCT, *FROM_BUFFER})
KINDS = "fiubc"  # of dtypes: numbers and truth values


def is_numpy(value: object) -> bool:
    """Returns True if a value of a pickle is a call that rebuilds a NumPy array."""
    return isinstance(value, PickledCall) and value.name in NAMES


def of_numbers(value: object) -> bool:
    """Returns True if a pickled call rebuilds a NumPy array of numbers, not of texts or objects."""
    if not isinstance(value, PickledCall) or not is_numpy(value):
        return False
    dtypes = [item for item in fields(value) if isinstance(item, PickledCall) and item.name == "numpy.dtype"]
    codes = dtypes[0].arguments[:1] if dtypes else ()
    return any(isinstance(code, str) and code[:1] in KINDS for code in codes)


def fields(call: PickledCall) -> tuple[object, ...]:
    """Returns the fields, such as shape and dtype, of the call that rebuilds a pickled NumPy array."""
    return tuple_items(call.state) if call.name in RECONSTRUCT else call.arguments


def described(
    name: str, call: PickledCall, dtypes: Mapping[str, object], advice: str
) -> tuple[np.dtype[np.generic], tuple[int, ...], str, object]:
    """Returns the dtype, shape, order (C or F) and bytes of an array that a call in a pickle rebuilds.

    name, advice: for messages. dtypes: those that are allowed, by NumPy's codes. Raises `FileError` for
    another call, dtype or shape.
    """
    match fields(call):
        case (_, shape, PickledCall(name="numpy.dtype") as dtype, bool(fortran), data):
            order = "F" if fortran else "C"
        case (data, PickledCall(name="numpy.dtype") as dtype, shape, "C" | "F" as letter):
            order = str(letter)
        case _:
            raise FileError(f"{name!r} is not an array in a form that stepnet knows; {advice}")
    if not is_shape(shape):
        raise FileError(f"{name!r} has a shape that no array can have")
    return dtype_of(name, dtype, dtypes), cast(tuple[int, ...], shape), order, data


def dtype_of(name: str, call: PickledCall, dtypes: Mapping[str, object]) -> np.dtype[np.generic]:
    """Returns the dtype of a pickled array, with byte order; raises `FileError` unless it is in `dtypes`."""
    code = call.arguments[0] if call.arguments else None
    order = (*tuple_items(call.state), None, None)[1]
    if not isinstance(code, str) or code not in dtypes:
        code = code[:20] if isinstance(code, str) else ""
        kind = {"O": "Python objects", "U": "texts", "S": "texts"}.get(code[:1], f"dtype {code!a}")
        raise FileError(f"{name!r} holds {kind}, which stepnet does not read; save an array of numbers")
    return np.dtype(code).newbyteorder(">" if order == ">" else "<" if order == "<" else "=")


def array_of(
    name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...], order: str, data: object
) -> Array:
    """Makes an array from the bytes that a pickle has for it, or from a text of them by Python 2, without a
    copy if possible. order: of the axes, "C" or "F". name: for messages. Raises `FileError` for too few or
    too many bytes.
    """
    if isinstance(data, str):
        try:
            data = latin(data)
        except UnicodeEncodeError:
            raise FileError(f"{name!r} has a text where its bytes must be") from None
    size = math.prod(shape) * dtype.itemsize
    if not isinstance(data, bytearray) or len(data) != size:
        available = f"{len(data)} bytes" if isinstance(data, bytearray) else "none"
        raise FileError(f"{name!r} of shape {shape} and dtype {dtype} needs {size} bytes and has {available}")
    array = np.ndarray(shape, dtype, data, order=cast(Literal["C", "F"], order))
    if dtype == np.bool_ and (array.view(np.uint8) > 1).any():
        raise FileError(f"{name!r} holds truth values other than 0 and 1")
    return array.astype(dtype.newbyteorder("="), copy=False)
