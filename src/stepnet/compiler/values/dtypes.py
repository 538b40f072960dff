"""The dtypes of values: the numbers that they hold, and the dtypes in which they are computed."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast

import numpy as np

from stepnet.compiler.values.records import dataclass

SMALL = 16 * 1024
"""The bytes of an array below which two copies take less time than the overhead of a NumPy function."""


@dataclass(frozen=True)
class Dtype:
    """A dtype and its kind of numbers.

    name, text: its name in NumPy, and its abbreviation in the text of nets.
    kind: float, integer or bool.
    compute: the dtype in which it is computed: the dtype itself, or for a storage dtype a wider one that
        holds all its values.
    """

    name: str
    text: str
    kind: str
    compute: str

    @property
    def is_stored(self) -> bool:
        """Tells whether this is a storage dtype such as bfloat16: its values are cast before computing."""
        return self.compute != self.name


DTYPES = {
    row.name: row
    for row in (
        Dtype("float32", "f32", "float", "float32"),
        Dtype("float64", "f64", "float", "float64"),
        Dtype("int32", "i32", "integer", "int32"),
        Dtype("int64", "i64", "integer", "int64"),
        Dtype("bool", "bool", "bool", "bool"),
        Dtype("float16", "f16", "float", "float32"),
        Dtype("bfloat16", "bf16", "float", "float32"),
    )
}

COMPUTED = tuple(name for name, row in DTYPES.items() if not row.is_stored)
"""The dtypes that steps compute in."""


@lru_cache(256)
def kind_of_dtype(dtype: Any) -> str:
    """Returns the kind of numbers of a dtype: float, integer (signed or not), bool, or other.

    >>> kind_of_dtype(np.dtype("bfloat16")), kind_of_dtype(np.dtype("uint8"))
    ('float', 'integer')
    """
    row = DTYPES.get(dtype.name)
    return row.kind if row else NUMPYS_KINDS.get(dtype.kind, "other")


NUMPYS_KINDS = {"f": "float", "i": "integer", "u": "integer", "b": "bool"}


def promoted_float(dtypes: Iterable[Any]) -> str:
    """Promotes the floating-point dtypes among `dtypes` to one; float32 if there are none.

    Two different dtypes that are stored only, such as bfloat16, are promoted as the wider ones in which they
    are computed.

    >>> promoted_float(["bfloat16", "int64"]), promoted_float(["bfloat16", "float16"]), promoted_float([])
    ('bfloat16', 'float32', 'float32')
    """
    floats = {dtype.name for dtype in map(np.dtype, dtypes) if kind_of_dtype(dtype) == "float"}
    if len(floats) > 1:
        floats = {np.result_type(*(DTYPES[name].compute for name in floats)).name}
    return floats.pop() if floats else "float32"


def computed(array: np.ndarray) -> np.ndarray:
    """Casts an array of a storage dtype, as bfloat16, to its compute dtype; returns others unchanged."""
    row = DTYPES.get(array.dtype.name)
    return array.astype(row.compute) if row and row.is_stored else array


def native(array: np.ndarray) -> np.ndarray:
    """Converts an array to its compute dtype and native byte order; copies it also if it is read-only."""
    row = DTYPES.get(array.dtype.name)
    dtype = np.dtype(row.compute) if row else array.dtype.newbyteorder("=")
    return array.astype(dtype, copy=not array.flags.writeable)


def same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    """Tells whether two arrays have the same dtype, shape and bits: NaN is NaN, and 0 is not -0.

    >>> same_bits(np.array([np.nan]), np.array([np.nan])), same_bits(np.array([0.0]), np.array([-0.0]))
    (True, False)
    """
    if first is second or (first.dtype, first.shape) != (second.dtype, second.shape):
        return first is second
    if first.nbytes < SMALL or first.dtype.itemsize not in (1, 2, 4, 8):
        return first.tobytes() == second.tobytes()
    word = f"u{first.dtype.itemsize}"
    return bool((first.view(word) == second.view(word)).all())


@lru_cache(256)
def name_of(dtype: np.dtype[Any]) -> str:
    """Returns the name of a dtype, cached: NumPy builds the string at every access.

    >>> name_of(np.dtype("f4"))
    'float32'
    """
    return dtype.name


def dtype_text(dtype: Any) -> str:
    """Returns the name of a dtype for messages; the `repr` of anything that NumPy knows as no dtype.

    >>> dtype_text(np.float32), dtype_text("half a float")
    ('float32', "'half a float'")
    """
    if isinstance(dtype, np.dtype):
        return name_of(cast("np.dtype[Any]", dtype))
    try:
        return np.dtype(dtype).name
    except (TypeError, ValueError, SyntaxError, DeprecationWarning):  # NumPy's errors for what is no dtype
        return repr(dtype)
