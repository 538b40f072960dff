"""The meaning of an array's axes (rows, steps, directions, features) through operators that move its numbers.

    [B, D, T, H]  --transpose 0 2 1 3-->  [B, T, D, H]  --reshape 0 0 -1-->  [B, T, DH]

Operators between two recurrent layers change nothing if the axes after them are those that the second layer
expects. A transpose that swaps steps and features does change the meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Axes:
    """The axes of an array as letters, to follow it through reshapes: "TH" has T times H entries; "" has one.

    sizes: the length that each letter stands for, if it is known.

    >>> outputs = Axes.of("BDTH", {"D": 2, "H": 3})
    >>> outputs.transposed([0, 2, 1, 3]).reshaped([0, 0, 6], copies=True).axes
    ('B', 'T', 'DH')
    >>> outputs.transposed([0, 1, 3, 2]).axes
    ('B', 'D', 'H', 'T')
    """

    axes: tuple[str, ...]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, letters: str, sizes: Mapping[str, int]) -> "Axes":
        """Returns the axes of an array, a letter of `letters` each; "" for one of length 1 by `sizes`."""
        return cls(tuple("" if sizes.get(letter) == 1 else letter for letter in letters), sizes)

    def transposed(self, order: Sequence[int]) -> "Axes | None":
        """Returns the axes of an array after a transpose; None if `order` is no permutation of the axes.

        order: for each new axis, the index of the old axis, if negative counted from the end; an empty
        `order` reverses all axes.
        """
        count = len(self.axes)
        indices = [index + count if index < 0 else index for index in order] or [*reversed(range(count))]
        if sorted(indices) != [*range(count)]:
            return None
        return self.with_axes([self.axes[index] for index in indices])

    def squeezed(self, indices: Sequence[int]) -> "Axes | None":
        """Returns the axes of an array after a squeeze, which removes the axes at `indices` (if negative,
        counted from the end) or, if `indices` is empty, all axes of length 1; None if an axis to remove is
        longer than 1.
        """
        removed = {index % len(self.axes) for index in indices} if self.axes else set[int]()
        if not indices:
            removed = {index for index, axis in enumerate(self.axes) if not axis}
        kept_axes = [axis for index, axis in enumerate(self.axes) if index not in removed]
        return None if any(self.axes[index] for index in removed) else self.with_axes(kept_axes)

    def expanded(self, indices: Sequence[int]) -> "Axes | None":
        """Returns the axes of an array after new axes of length 1 were inserted, as by `numpy.expand_dims`;
        None if an index is repeated.

        indices: the indices of the new axes in the result, if negative counted from its end.
        """
        count = len(self.axes) + len(indices)
        axes, new = list(self.axes), {index % count for index in indices}
        if len(new) < len(indices):
            return None
        return self.with_axes(["" if index in new else axes.pop(0) for index in range(count)])

    def reshaped(self, lengths: Sequence[int], copies: bool = False) -> "Axes | None":
        """Returns the axes of an array after a reshape to the shape `lengths`; None if the reshape would
        split an axis that has one letter, or if a length that decides this is unknown.

        The name of an axis lists the letters that are merged in it: "TH" is as long as T times H. One of
        `lengths` may be -1: this axis gets the letters that the other axes leave. copies: True if a length of
        0 stands for the length of the old axis at the same index.
        """
        letters, before, after = list("".join(self.axes)), list[str](), list[str]()
        rest = lengths.index(-1) if -1 in lengths else len(lengths)
        for index in range(rest):
            axis = self.take_axis(letters, lengths[index], index, copies)
            if axis is None:
                return None
            before.append(axis)
        letters.reverse()
        for index in reversed(range(rest + 1, len(lengths))):
            axis = self.take_axis(letters, lengths[index], index, copies)
            if axis is None:
                return None
            after.append(axis[::-1])
        middle = ["".join(reversed(letters))] if rest < len(lengths) else []
        return None if letters and not middle else self.with_axes([*before, *middle, *reversed(after)])

    def take_axis(self, letters: list[str], length: int, index: int, copies: bool) -> str | None:
        """Removes letters from the front of `letters` until their lengths multiply to `length`, and returns
        them, such as "DH", as the name of a new axis: one step of a reshape. Returns None if a letter would
        be split, or if its length is unknown.

        letters: the letters of the old axes that no new axis has yet, in order. index: the index of the new
        axis. copies: True if length 0 stands for the length of the old axis at that index.
        """
        if copies and length == 0:
            same_axis = self.axes[index] if index < len(self.axes) else "?"
            axis = "".join(letters[: len(same_axis)])
            del letters[: len(same_axis)]
            return axis if axis in (same_axis, same_axis[::-1]) else None
        axis = ""
        while length > 1:
            count = self.sizes.get(letters[0], 0) if letters else 0
            if not count or length % count:
                return None
            axis, length = axis + letters.pop(0), length // count
        return axis if length == 1 else None

    def with_axes(self, axes: Sequence[str]) -> "Axes":
        """Returns the axes of an array whose letters were moved or merged, as by a transpose or reshape:
        `axes`, one text of letters per axis. The letters keep the lengths that they have in this object.
        """
        return replace(self, axes=tuple(axes))
