"""What a value in a net is: its extent, its feature shape and its dtype.

The extent says how many of it there are, as a path of ragged axes:

    const                 one per model               a parameter
    rows                  one per sequence            a static, a memory, a final state
    rows/steps            one per step                an input, an output
    rows/steps/words      one per step of an inner sequence
    rows/keys             one per step of a sequence that a row has besides, the same one at every step

Axes are called by their depth, so a step-net's rows/steps are the rows/steps/words of who runs it. Those of
statics that are sequences have names of their own.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.errors import NetError

Extent = tuple[str, ...]
AXES: Extent = ("rows", "steps", "words", "letters", "strokes", "points")
CONST: Extent = ()
ROWS: Extent = AXES[:1]
STEPS: Extent = AXES[:2]


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # which NumPy knows by name once ml_dtypes is imported


@dataclass(frozen=True)
class Dtype:
    """What numbers a dtype has.

    kind: float, integer or bool. compute: the dtype that it is computed in, which holds each of its numbers:
    its own, or that of one which arrays are only stored in.
    """

    name: str
    text: str
    kind: str
    compute: str

    @property
    def is_stored(self) -> bool:
        """Whether arrays are only stored in it."""
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
        Dtype(BFLOAT16.name, "bf16", "float", "float32"),
    )
}
COMPUTED = tuple(name for name, row in DTYPES.items() if not row.is_stored)
"""The dtypes that steps compute in."""


@dataclass(frozen=True)
class Type:
    """One extent x feature shape x dtype.

    >>> print(Type(ROWS, (64,), "float32"))
    rows f32[64]
    """

    extent: Extent
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise NetError(f"dtype {self.dtype} is none of {', '.join(DTYPES)}")
        if any(size < 0 for size in self.shape):
            raise NetError(f"a shape has no negative size: {self.shape}")

    def __str__(self) -> str:
        return f"{extent_text(self.extent)} {self.element}"

    @property
    def element(self) -> str:
        """The text of one element, without the extent: f32[64]."""
        return f"{DTYPES[self.dtype].text}[{', '.join(map(str, self.shape))}]"

    @property
    def size(self) -> int:
        """How many numbers one element holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return np.dtype(self.dtype).itemsize

    @property
    def is_float(self) -> bool:
        """Whether the numbers are floating-point ones."""
        return DTYPES[self.dtype].kind == "float"

    @property
    def computed(self) -> "Type":
        """The same in the dtype that it is computed in.

        >>> print(Type(ROWS, (64,), "bfloat16").computed)
        rows f32[64]
        """
        return Type(self.extent, self.shape, DTYPES[self.dtype].compute)

    def at(self, extent: Extent) -> "Type":
        """The same element at another extent."""
        return Type(extent, self.shape, self.dtype)


@dataclass(frozen=True, eq=False)
class Literal:
    """An array that is part of a net. Two are equal if their dtype, shape and bits are."""

    value: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", own_copy(self.value))

    def _key(self) -> tuple[str, tuple[int, ...], bytes]:
        return self.value.dtype.str, self.value.shape, self.value.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        if self.value.size <= 8:
            return str(self.value.tolist())
        return f"{self.value.size} numbers #{hash_text(self.value.tobytes())}"


def native(array: np.ndarray) -> np.ndarray:
    """The numbers side by side and in the processor's own order of bytes; the array itself, if they are."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def own_copy(array: np.ndarray) -> np.ndarray:
    """A copy that nobody changes, side by side and in the processor's own order of bytes."""
    copy = np.array(array, array.dtype.newbyteorder("="), order="C")
    copy.setflags(write=False)
    return copy


def kind_of_dtype(dtype: Any) -> str:
    """What numbers an array's dtype has: float, integer (signed or not), bool, or other.

    >>> kind_of_dtype(np.dtype("bfloat16")), kind_of_dtype(np.dtype("uint8"))
    ('float', 'integer')
    """
    row = DTYPES.get(dtype.name)
    return row.kind if row else NUMPYS_KINDS.get(dtype.kind, "other")


NUMPYS_KINDS = {"f": "float", "i": "integer", "u": "integer", "b": "bool"}


def promoted_float(dtypes: Iterable[Any]) -> str:
    """The promoted one of the floating dtypes; float32 where there is none.

    Two that are only stored in have none between them, and are promoted as what they are computed in.

    >>> promoted_float(["bfloat16", "int64"]), promoted_float(["bfloat16", "float16"]), promoted_float([])
    ('bfloat16', 'float32', 'float32')
    """
    floats = {dtype.name for dtype in map(np.dtype, dtypes) if kind_of_dtype(dtype) == "float"}
    if len(floats) > 1:
        floats = {np.result_type(*(DTYPES[name].compute for name in floats)).name}
    return floats.pop() if floats else "float32"


def computed(array: np.ndarray) -> np.ndarray:
    """The numbers in the dtype that they are computed in, which holds them exactly."""
    row = DTYPES.get(array.dtype.name)
    return array.astype(row.compute) if row and row.is_stored else array


def is_integer(value: Any) -> bool:
    """Whether a value is a whole number of Python's or NumPy's; a bool is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def dtype_text(dtype: Any) -> str:
    """The name of a dtype; what was given, as text, where NumPy knows none of that name.

    >>> dtype_text(np.float32), dtype_text("half a float")
    ('float32', "'half a float'")
    """
    if isinstance(dtype, np.dtype):
        return dtype.name
    try:
        return np.dtype(dtype).name
    except (TypeError, ValueError, SyntaxError, DeprecationWarning):  # NumPy's ways to say that it is none
        return repr(dtype)


def extent_of(depth: int) -> Extent:
    """The extent of so many axes; raises `NetError` for more than there are names for."""
    if depth > len(AXES):
        raise NetError(f"sequences nest {len(AXES) - 1} deep, not {depth - 1}")
    return AXES[:depth]


def is_beside(extent: Extent) -> bool:
    """Whether an extent is that of a static which is a sequence.

    >>> is_beside(("rows", "keys")), is_beside(STEPS)
    (True, False)
    """
    return bool(extent) and extent[-1] not in AXES


def extent_text(extent: Extent) -> str:
    """The extent as people read it: const, rows, rows/steps."""
    return "/".join(extent) or "const"


def hash_text(data: bytes) -> str:
    """Eight hexadecimal digits that tell two byte strings apart."""
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def joint_extent(types: Sequence[Type]) -> Extent:
    """The one extent that the values share, constants aside; raises `NetError` where there are two."""
    extents = {type_.extent for type_ in types if type_.extent != CONST}
    if len(extents) > 1:
        found = ", ".join(sorted(map(extent_text, extents)))
        short, long = min(extents, key=len), max(extents, key=len)
        hint = "; sn.reduce makes one value of a sequence, sn.expand repeats a value along one"
        raise NetError(
            f"values of different extents meet: {found}{hint if long[: len(short)] == short else ''}"
        )
    return extents.pop() if extents else CONST
