"""`Ragged`: sequences of any length, stored end to end without padding."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, cast, overload

import numpy as np

from stepnet.compiler.values.arguments import array_of, kind
from stepnet.compiler.values.fork_guard import module_late
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.ragged.offsets import (
    Array,
    checked_index,
    checked_indices,
    checked_lengths,
    checked_offsets,
    checked_values,
    narrow,
    offsets_of,
    positions_of,
    reversed_positions_of,
    slice_of,
)

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Integers = np.ndarray[Any, np.dtype[np.int64]]


def conversions(module: str) -> Any:
    """Returns a module of this folder, which is imported at its first use: few processes need several."""
    return module_late(f"stepnet.ragged.{module}")


@dataclass(frozen=True, eq=False, repr=False)
class Ragged:
    """Sequences of different lengths, stored end to end without padding.

    Sequence i of one level is `values[offsets[0][i]:offsets[0][i + 1]]`. With more levels `offsets[0]` counts
    the entries of `offsets[1]` (documents of sentences of words), and the last offsets count the values.
    Empty sequences, and a `Ragged` of no sequences, are valid. The values are not copied; the offsets are
    copied and made read-only.

    Args:
        values: The steps of all sequences, [total, *features]: numbers or bools.
        offsets: One int64 array per level, outermost first. Each starts at 0, never decreases, and ends
            at the number of entries of the next level.

    Raises:
        InputError: For values that are not numbers, and for offsets that violate these conditions.

    >>> words = Ragged(np.arange(8.0).reshape(4, 2), (np.array([0, 3, 3, 4]),))
    >>> words
    Ragged(3 sequences of 0 to 3 steps, 2 features, float64)
    >>> words[2]
    array([[6., 7.]])
    >>> Ragged(words.values, (np.array([0, 1, 3]), words.offsets[0]))
    Ragged(2 sequences of 1 to 2 sequences of 0 to 3 steps, 2 features, float64)
    """

    values: Array
    offsets: tuple[Integers, ...]

    def __post_init__(self) -> None:
        """Checks the fields of a new `Ragged`, and copies the offsets; raises `InputError` if invalid."""
        object.__setattr__(self, "values", checked_values(self.values, "values"))
        object.__setattr__(self, "offsets", checked_offsets(self.offsets, len(self.values)))

    def __repr__(self) -> str:
        """A summary: the number of sequences, the range of their lengths, the features and the dtype."""
        words = [_count(len(self), "sequence")]
        for level, name in zip(self.offsets, ["sequence"] * (self.levels - 1) + ["step"], strict=True):
            lengths = np.diff(level)
            if lengths.size:
                few, many = lengths.min(), lengths.max()
                words.append(_count(many, name) if few == many else f"{few} to {many} {name}s")
        parts = [" of ".join(words)]
        if self.features:
            axes = " x ".join(str(size) for size in self.features)
            parts.append("1 feature" if self.features == (1,) else f"{axes} features")
        return f"Ragged({', '.join(parts)}, {self.dtype})"

    @property
    def lengths(self) -> Integers:
        """The length of each outermost sequence, int64: its number of steps, or of inner sequences.

        >>> Ragged.from_list([[1, 2], [], [3]]).lengths
        array([2, 0, 1])
        """
        return np.diff(self.offsets[0])

    @property
    def levels(self) -> int:
        """The number of levels: 1 for sequences of steps, 2 for sequences of sequences of steps.

        >>> Ragged.from_list([[np.arange(3)], [np.arange(1), np.arange(2)]]).levels
        2
        """
        return len(self.offsets)

    @property
    def features(self) -> tuple[int, ...]:
        """The shape of one step of the sequences; () if each step is one number.

        >>> Ragged.from_list([np.zeros((2, 3)), np.zeros((5, 3))]).features
        (3,)
        """
        return self.values.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values of all sequences."""
        return self.values.dtype

    @property
    def total(self) -> int:
        """The number of steps of all sequences together.

        >>> Ragged.from_list([[1, 2], [], [3]]).total
        3
        """
        return len(self.values)

    def __len__(self) -> int:
        """Returns the number of outermost sequences."""
        return len(self.offsets[0]) - 1

    def __iter__(self) -> "Iterator[Array | Ragged]":
        """Yields the outermost sequences: arrays of steps, or `Ragged`s of inner sequences."""
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: SupportsIndex) -> "Array | Ragged": ...
    @overload
    def __getitem__(self, index: slice) -> "Ragged": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Array | Ragged":
        """Returns the sequence at an index (an array, or a `Ragged` of inner sequences), or a `Ragged` of the
        sequences of a slice. The values are views, except for a slice with a stride, which copies.
        """
        if isinstance(index, slice):
            start, stop, stride = slice_of(index, len(self))
            if stride != 1:
                return self.take(range(start, stop, stride))
            return Ragged(*narrow(self.values, self.offsets, start, max(start, stop)))
        outer = self.offsets[0]
        place = checked_index(index, len(self))
        values, offsets = narrow(self.values, self.offsets[1:], int(outer[place]), int(outer[place + 1]))
        return Ragged(values, offsets) if offsets else values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """Refuses the conversion to an array, as sequences differ in length; names the alternatives."""
        raise InputError("a Ragged is not a single array; use .values [total, *features], or to_padded()")

    def take(self, indices: Any) -> "Ragged":
        """Returns the sequences at these indices, in this order, with copied values.

        Args:
            indices: [count], whole numbers. Repeated ones repeat; negative ones count from the end.

        Raises:
            InputError: For an index beyond the sequences.

        >>> Ragged.from_list([[1, 2], [], [3]]).take([2, 0, 2]).to_list()
        [array([3]), array([1, 2]), array([3])]
        """
        positions = checked_indices(indices, len(self))
        offsets: list[Integers] = []
        for level in self.offsets:
            starts, lengths = level[positions], level[positions + 1] - level[positions]
            offsets.append(offsets_of(lengths))
            positions = positions_of(starts, lengths)
        return Ragged(self.values[positions], tuple(offsets))

    def reversed(self) -> "Ragged":
        """Returns each sequence of steps from its last step to its first, with copied values.

        Sequences and inner sequences stay in their order. Together with the original it gives a cell two
        inputs, one of them backwards: `rnn({"forward": x, "backward": x.reversed()})`.

        >>> Ragged.from_list([[1, 2, 3], [], [4, 5]]).reversed().to_list()
        [array([3, 2, 1]), array([], dtype=int64), array([5, 4])]
        """
        return Ragged(self.values[reversed_positions_of(self.offsets[-1])], self.offsets)

    def with_values(self, values: Array) -> "Ragged":
        """Returns sequences of the same lengths with other values.

        Args:
            values: [total, *features], one value per step, with any features.

        Raises:
            InputError: Unless there is one value per step.

        >>> Ragged.from_list([[1, 2], [3]]).with_values(np.zeros((3, 5)))
        Ragged(2 sequences of 1 to 2 steps, 5 features, float64)
        """
        checked = checked_values(values, "values")
        if len(checked) != self.total:
            raise InputError(
                f"the new values have shape {np.shape(values)}, and there are {self.total} steps to hold them"
            )
        return unchecked_ragged(checked, self.offsets)

    def inner(self) -> "Ragged":
        """Returns the inner sequences, with the outermost level removed. `group` is the inverse.

        Raises:
            InputError: For sequences of one level.

        >>> documents = Ragged.from_list([[np.arange(3)], [np.arange(1), np.arange(2)]])
        >>> documents.inner()
        Ragged(3 sequences of 1 to 3 steps, int64)
        """
        if self.levels == 1:
            raise InputError("sequences of one level have no inner sequences; their steps are .values")
        return Ragged(self.values, self.offsets[1:])

    def group(self, counts: Any) -> "Ragged":
        """Groups the sequences, as a new outermost level. `inner` is the inverse.

        Args:
            counts: The next `counts[i]` sequences are group i.

        Raises:
            InputError: Unless the counts add up to the number of sequences.

        >>> Ragged.from_list([[1, 2], [], [3]]).group([1, 2])
        Ragged(2 sequences of 1 to 2 sequences of 0 to 2 steps, int64)
        """
        groups = array_of(counts, "the counts").size
        outer = offsets_of(checked_lengths(counts, groups, len(self), "group", "the number of sequences"))
        if outer[-1] != len(self):
            raise InputError(
                f"the counts add up to {outer[-1]}, and there are {len(self)} sequences to group"
            )
        return Ragged(self.values, (outer, *self.offsets))

    def equal(self, other: "Ragged") -> bool:
        """Tells whether both have the same dtype and the same numbers in the same sequences. NaN equals
        NaN.

        Raises:
            InputError: If `other` is not a `Ragged`.

        >>> Ragged.from_list([[1, 2], [3]]).equal(Ragged.from_list([[1], [2, 3]]))
        False
        """
        if not isinstance(cast("Any", other), Ragged):
            raise InputError(f"equal compares with another Ragged, not {kind(other)}")
        if (self.levels, self.dtype, self.values.shape) != (other.levels, other.dtype, other.values.shape):
            return False
        if not all(np.array_equal(mine, its) for mine, its in zip(self.offsets, other.offsets, strict=True)):
            return False
        mine, its = self.values, other.values
        return bool(((mine == its) | ((mine != mine) & (its != its))).all())

    @classmethod
    def from_list(
        cls,
        sequences: Any,
        dtype: "DTypeLike | None" = None,
        features: int | tuple[int, ...] | None = None,
        levels: int | None = None,
    ) -> "Ragged":
        """Makes a `Ragged` of the sequences in a list.

        Each list around a list of arrays adds a level. If there are no arrays (an empty list, Python
        numbers), `levels` decides, by default 1.

        Args:
            sequences: A list of arrays [steps, *features], or of lists of steps; nested for more levels.
            dtype: The dtype; by default NumPy's common dtype of all sequences, and float32 without sequences.
            features: The feature shape; needed only if no sequence shows it.
            levels: The number of levels; needed only if no array shows it.

        Raises:
            InputError: Naming the first sequence whose features differ from the others', that holds no
                numbers, or that `dtype` cannot hold.

        >>> Ragged.from_list([np.zeros((2, 3)), np.zeros((5, 3)), []])
        Ragged(3 sequences of 0 to 5 steps, 3 features, float64)
        >>> Ragged.from_list([[np.zeros((2, 3)), np.zeros((5, 3))], []])
        Ragged(2 sequences of 0 to 2 sequences of 2 to 5 steps, 3 features, float64)
        >>> Ragged.from_list([], features=12)
        Ragged(0 sequences, 12 features, float32)
        """
        return cls(*conversions("lists").from_list(sequences, dtype, features, levels))

    def to_list(self) -> list[Any]:
        """Returns a list of arrays [steps, *features], views of the values; for two levels, a list of such
        lists.

        >>> Ragged.from_list([[1, 2], []]).to_list()
        [array([1, 2]), array([], dtype=int64)]
        """
        return [sequence.to_list() if isinstance(sequence, Ragged) else sequence for sequence in self]

    @classmethod
    def from_padded(cls, x: Any, lengths: Any = None, time_major: bool = False) -> "Ragged":
        """Makes a `Ragged` of a padded array and the lengths of its sequences.

        Without padding, the values share the array's memory.

        Args:
            x: [batch, time, *features], or [time, batch, *features] if `time_major`.
            lengths: [batch], the number of steps of each row that belong to its sequence; by default all. The
                padding is never read.
            time_major: Whether the time is the first axis.

        Raises:
            InputError: Naming the first sequence whose length is negative or beyond the array.

        >>> Ragged.from_padded([[1, 2, 0], [3, 4, 5]], [2, 3]).to_list()
        [array([1, 2]), array([3, 4, 5])]
        """
        return cls(*conversions("padded").from_padded(x, lengths, time_major))

    def to_padded(
        self, time_major: bool = False, length: int | None = None, fill: Any = 0
    ) -> tuple[Array, Integers]:
        """Returns an array [batch, time, *features] padded with `fill`, and the lengths [batch].

        Args:
            time_major: Whether the axes are [time, batch, *features].
            length: The size of the time axis; by default the longest length.
            fill: The value of the padding.

        Raises:
            InputError: For a sequence longer than `length`, a `fill` that the dtype cannot hold, and for more
                than one level.

        >>> Ragged.from_list([[1, 2], [3]]).to_padded(fill=-1)
        (array([[ 1,  2], [ 3, -1]]), array([2, 1]))
        """
        offsets = self._only_offsets("to_padded")
        return conversions("padded").to_padded(self.values, offsets, time_major, length, fill), self.lengths

    @classmethod
    def from_arrow(cls, array: Any) -> "Ragged":
        """Makes a `Ragged` of an Arrow list array or column, one sequence per row, sharing its memory.

        Bools are copied, because Arrow stores them as bits, and so are columns of several chunks.

        Args:
            array: A pyarrow `list` or `large_list` array. The lists hold numbers, fixed-size lists of numbers
                (features), or lists again (one level more).

        Raises:
            InputError: For nulls, naming the first row; for other types; without pyarrow.

        >>> import pyarrow
        >>> Ragged.from_arrow(pyarrow.array([[1.0, 2.0], [], [3.0]]))
        Ragged(3 sequences of 0 to 2 steps, float64)
        """
        return cls(*conversions("arrow").from_arrow(array))

    def to_arrow(self) -> Any:
        """Returns a pyarrow list array, one row per sequence, that shares the memory of contiguous values.

        Its type is `list`, with a further list per level and a fixed-size list per feature axis; `large_list`
        if the offsets need more than 32 bits.

        Raises:
            InputError: For a dtype that Arrow lacks, and without pyarrow.

        >>> Ragged.from_list([np.zeros((2, 3), np.float32)]).to_arrow().type
        ListType(list<item: fixed_size_list<item: float>[3]>)
        """
        return conversions("arrow").to_arrow(self.values, self.offsets)

    @classmethod
    def from_packed(cls, packed: Any) -> "Ragged":
        """Makes a `Ragged` of a torch `PackedSequence`, copied, in the order before the packing sorted the
        sequences.

        Args:
            packed: A `torch.nn.utils.rnn.PackedSequence`.

        Raises:
            InputError: For anything else, and without torch.

        >>> import torch
        >>> packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
        >>> Ragged.from_packed(packed).lengths
        array([2, 3])
        """
        return cls(*conversions("torch").from_packed(packed))

    def to_packed(self, enforce_sorted: bool = False) -> Any:
        """Returns a torch `PackedSequence` with copied data, which stores the order of the sequences.

        Args:
            enforce_sorted: Whether lengths must not increase; the order is then not stored, as in torch.

        Raises:
            InputError: For an empty sequence, naming the first, and for no sequences: torch cannot hold them.
                For more than one level, and without torch.

        >>> Ragged.from_list([[1, 2], [3, 4, 5]]).to_packed().batch_sizes
        tensor([2, 2, 1])
        """
        return conversions("torch").to_packed(self.values, self._only_offsets("to_packed"), enforce_sorted)

    @classmethod
    def from_nested(cls, nested: Any) -> "Ragged":
        """Makes a `Ragged` of a torch nested tensor, sharing its memory.

        Args:
            nested: A nested tensor [batch, steps, *features] of layout `torch.jagged`. One with gaps (lengths
                shorter than its offsets) is copied without them.

        Raises:
            InputError: For anything else, and without torch.

        >>> import torch
        >>> nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
        >>> Ragged.from_nested(nested)
        Ragged(2 sequences of 2 to 3 steps, 4 features, float32)
        """
        return cls(*conversions("torch").from_nested(nested))

    def to_nested(self) -> Any:
        """Returns a torch nested tensor of layout `torch.jagged` that shares the memory of the values.

        Values that are read-only or not contiguous are copied: torch has no read-only tensors.

        Raises:
            InputError: For more than one level, for a dtype that torch lacks, and without torch.

        >>> Ragged.from_list([np.zeros((2, 4)), np.zeros((3, 4))]).to_nested().offsets()
        tensor([0, 2, 5])
        """
        return conversions("torch").to_nested(self.values, self._only_offsets("to_nested"))

    def _only_offsets(self, method: str) -> Integers:
        """Returns the offsets of sequences of one level of nesting; raises `InputError` for more levels,
        which `method`, the caller's name for the message, does not support.
        """
        if self.levels > 1:
            raise InputError(
                f"{method} takes sequences of one level, and these have {self.levels}; use inner() first"
            )
        return self.offsets[0]


def _count(count: int, name: str) -> str:
    """Formats a count with a noun for a summary, such as "1 step" or "2 steps"."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def unchecked_ragged(values: Array, offsets: tuple[Array, ...]) -> Ragged:
    """Makes a `Ragged` without the checks, for values that are known to fit the offsets of another one."""
    ragged = object.__new__(Ragged)
    attributes = ragged.__dict__  # written without the checks of a frozen class, in half the time
    attributes["values"], attributes["offsets"] = values, offsets
    return ragged
