"""The type of a value in a net: its extent, its feature shape and its dtype.

The extent is the number of values, as a path of ragged axes:

    const                 one per model               a parameter
    rows                  one per sequence            a static, a memory, a final state
    rows/steps            one per step                an input, an output
    rows/steps/words      one per step of an inner sequence
    rows/keys             one per step of a static sequence
    rows/steps[+0/2]      one per window of two steps: an axis derived from that of the steps (`windows.py`)
    rows/steps[answer]    one per step of an input whose sequences have lengths of their own
    rows/all steps        the steps of a model's sequences as a static sequence, which each step reads whole
    rows/steps/steps*     one per pair of steps of a sequence (`pairs.py`)

Axes are named by their depth, so the rows/steps of a body are the rows/steps/words of the outer net. A static
sequence is a sequence that each row has once, such as the keys of an attention; its axis has a name of its
own.
"""

from collections.abc import Sequence
from math import prod
from mmap import mmap
from typing import Any

import numpy as np

from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.hashing import blake2b
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

Extent = tuple[str, ...]
AXES: Extent = ("rows", "steps", "words", "letters", "strokes", "points")
CONST: Extent = ()
ROWS: Extent = AXES[:1]
STEPS: Extent = AXES[:2]
DERIVED = "steps["
"""The text that the names of axes derived from the steps begin with."""
WHOLE = "all "
"""The text that the names of axes begin with whose sequences the steps of a recurrence read whole."""
PAIRS, CAUSAL = "*", "<"
"""The last letter of the name of an axis of pairs: with all steps, or with those up to its own index."""


@dataclass(frozen=True)
class Type:
    """A type: extent x feature shape x dtype.

    >>> print(Type(ROWS, (64,), "float32"))
    rows f32[64]
    """

    extent: Extent
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        """Raises `NetError` for an unknown dtype or a negative size."""
        if self.dtype not in DTYPES:
            raise NetError(f"dtype {self.dtype} is not supported: use one of {', '.join(DTYPES)}")
        if self.shape and min(self.shape) < 0:
            raise NetError(f"a shape has no negative size: {self.shape}")

    def __str__(self) -> str:
        """Writes the type as text, such as `rows/steps f32[64]`."""
        return f"{extent_text(self.extent)} {self.element}"

    @property
    def element(self) -> str:
        """The feature shape and dtype of this type as text, such as f32[64]."""
        return f"{DTYPES[self.dtype].text}[{', '.join(map(str, self.shape))}]"

    @property
    def size(self) -> int:
        """The number of elements of one value of this type: the product of its feature shape."""
        return int(prod(self.shape))

    @property
    def itemsize(self) -> int:
        """The bytes of one element of a value of this type."""
        return np.dtype(self.dtype).itemsize

    @property
    def is_float(self) -> bool:
        """Tells whether the dtype is a float, storage dtypes such as bfloat16 included."""
        return DTYPES[self.dtype].kind == "float"

    @property
    def computed(self) -> "Type":
        """The type with the dtype in which such values are computed: float32 for half precision, which is for
        storage only.

        >>> print(Type(ROWS, (64,), "bfloat16").computed)
        rows f32[64]
        """
        return Type(self.extent, self.shape, DTYPES[self.dtype].compute)

    def at(self, extent: Extent) -> "Type":
        """Returns the type with the same shape and dtype at another extent (such as per row or per step)."""
        return Type(extent, self.shape, self.dtype)


@dataclass(frozen=True, eq=False)
class Literal:
    """An array that is part of a net. Two literals are equal if they have the same dtype, shape and bits."""

    value: np.ndarray

    def __post_init__(self) -> None:
        """Copies the array, so that changes of the original do not change the net."""
        object.__setattr__(self, "value", read_only_copy(self.value))

    def _key(self) -> tuple[str, tuple[int, ...], bytes]:
        """Returns dtype, shape and bytes, by which literals are compared."""
        return self.value.dtype.str, self.value.shape, self.value.tobytes()

    def __eq__(self, other: object) -> bool:
        """Tells whether the other object is a literal with the same dtype, shape and bits."""
        return isinstance(other, Literal) and self._key() == other._key()

    def __hash__(self) -> int:
        """Hashes dtype, shape and bytes, by which literals are equal."""
        return hash(self._key())

    def __str__(self) -> str:
        """Writes the literal in the text of a net: its numbers if they are few, else count and hash."""
        if self.value.size <= 8:
            return str(self.value.tolist())
        return f"{self.value.size} numbers #{blake2b(self.value.tobytes(), digest_size=4).hexdigest()}"


def native(array: np.ndarray) -> np.ndarray:
    """Returns an array in C order and native byte order, as engines expect; copies it only if necessary."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


class MappedFile(mmap):
    """A file that is mapped read-only, and that nobody changes meanwhile: its arrays are constant."""


def is_mapped(array: np.ndarray) -> bool:
    """Tells whether an array lies in a read-only `MappedFile`, so that nothing in the process changes it."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, memoryview) and isinstance(base.obj, MappedFile)


def read_only_copy(array: np.ndarray) -> np.ndarray:
    """Makes a read-only copy of an array, in C order and native byte order.

    An array of a mapped file in this form, which is read-only too, is returned unchanged.
    """
    if is_mapped(array) and array.flags.c_contiguous and array.dtype.isnative:
        return array
    copy = np.array(array, array.dtype.newbyteorder("="), order="C")
    copy.setflags(write=False)
    return copy


def extent_of(depth: int) -> Extent:
    """Returns the extent with `depth` axes, as rows/steps for 2; raises `NetError` for too many."""
    if depth > len(AXES):
        raise NetError(f"sequences can be nested {len(AXES) - 1} deep, not {depth - 1}")
    return AXES[:depth]


def is_static_extent(extent: Extent) -> bool:
    """Tells whether an extent, the axes along which a value has entries, is that of a static sequence: a
    sequence that each row has once.

    >>> is_static_extent(("rows", "keys")), is_static_extent(STEPS)
    (True, False)
    """
    return bool(extent) and not is_sequence_axis(extent[-1]) and not is_pairs(extent)


def is_derived(extent: Extent) -> bool:
    """Tells whether the last axis of an extent (nested axes, such as rows/steps) is derived: its number of
    steps follows from that of the sequences by a rule, as after a stride.

    >>> is_derived(("rows", "steps[+0/2]")), is_derived(STEPS)
    (True, False)
    """
    return bool(extent) and extent[-1].startswith(DERIVED) and not is_pairs(extent)


def is_pairs(extent: Extent) -> bool:
    """Tells whether an extent, the axes along which a value has entries, is that of pairs of steps: each step
    of a sequence (a query) with steps of another one (its keys).

    >>> is_pairs(("rows", "steps", "steps*")), is_pairs(("rows", "steps", "words"))
    (True, False)
    """
    return len(extent) == len(STEPS) + 1 and extent[-1].endswith((PAIRS, CAUSAL))


def is_sequence_axis(axis: str) -> bool:
    """Tells whether an axis is one of a model's sequences, and not that of a static sequence."""
    return axis in AXES or axis.startswith(DERIVED)


def whole_axis(axis: str) -> str:
    """Returns the name of the axis that has the same steps as `axis`, but that each step of a recurrence
    reads whole, as attention does.

    >>> whole_axis("steps")
    'all steps'
    """
    return WHOLE + axis


def extent_text(extent: Extent) -> str:
    """Writes an extent, the axes along which a value has entries, as text such as const or rows/steps."""
    return "/".join(extent) or "const"


def joint_extent(types: Sequence[Type]) -> Extent:
    """Returns the extent (such as one value per row or per step) of all values of these types that are no
    constants; const if all are; raises `NetError` if they have different ones.
    """
    extents = {type_.extent for type_ in types if type_.extent != CONST}
    if len(extents) > 1:
        listed = " and ".join(extent_text(type_.extent) for type_ in types if type_.extent != CONST)
        short, long = min(extents, key=len), max(extents, key=len)
        hint = "they are of sequences of different lengths"
        if short != long and long[: len(short)] == short:
            hint = "sn.reduce makes one value of a sequence, sn.expand(value, sequence) repeats one along it"
        raise NetError(f"values along different axes meet: {listed}; {hint}")
    return extents.pop() if extents else CONST
