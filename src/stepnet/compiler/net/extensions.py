"""Steps that are put at the ends of sequences: copies of their own, as in padding by reflection.

    x              a b c d        two steps ahead, one behind
    reflect    c b a b c d c      as in a mirror at the first and the last step, which occur once
    replicate  a a a b c d d      the first and the last step again

A sequence is extended by its own steps only, and one without steps stays so.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from stepnet.compiler.net.windows import LARGEST_SIZE, Lengths, derived_axis
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError

Array = np.ndarray
MODES = ("reflect", "replicate")
"""The ways in which steps are put at the ends of a sequence."""


@dataclass(frozen=True)
class Extension:
    """Numbers of steps that are put ahead of each sequence and behind it, and which ones they are.

    >>> Extension(2, 1, "reflect").least
    3
    """

    before: int
    after: int
    how: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "Extension":
        """Makes the extension from the attributes of an `extend` node."""
        return cls(attributes["before"], attributes["after"], attributes["how"])

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a node `extend` with this extension."""
        return asdict(self)

    @property
    def refusal(self) -> str | None:
        """The reason why there is no such extension; None for one that there is."""
        if self.how not in MODES:
            return f"steps are put at the ends of a sequence by {' or '.join(MODES)}, not by {self.how!r}"
        if min(self.before, self.after) < 0 or max(self.before, self.after) > LARGEST_SIZE:
            return f"0 to {LARGEST_SIZE} steps are put at each end, not {self.before} and {self.after}"
        return None

    @property
    def lengths(self) -> Lengths:
        """The length of an extended sequence, from the one before."""
        return Lengths(self.before + self.after, 1)

    @property
    def least(self) -> int:
        """The number of steps that a sequence has at least, unless it has none."""
        return 1 + (max(self.before, self.after) if self.how == "reflect" else 0)

    def axis(self, steps: str) -> str:
        """Returns the name of the axis of the extended steps, from the name of the axis before."""
        return derived_axis(steps, self.lengths)

    def check(self, lengths: Array) -> None:
        """Raises `InputError` for a sequence with fewer steps than reflection reads.

        lengths: the numbers of steps of the sequences.
        """
        for sequence in np.flatnonzero((lengths > 0) & (lengths < self.least))[:1]:
            raise InputError(
                f"padding by reflection reads {self.least - 1} steps besides the first or the last one of a "
                f"sequence, so a sequence has at least {self.least} steps, and sequence {sequence} has "
                f"{lengths[sequence]}"
            )

    def read(self, places: Array, lengths: Array) -> Array:
        """Returns the step of its sequence that each extended step copies. places: its position from the
        first step of the sequence on; negative ahead of it. lengths: the length of its sequence.
        """
        last = lengths - 1
        if self.how == "replicate":
            return np.clip(places, 0, last)
        return last - np.abs(last - np.abs(places))

    def indices(self, made: Array, offsets: Array) -> Array:
        """Returns the index of the step that each extended step copies; raises `InputError` for sequences
        that are too short. made: where the extended sequences begin and end. offsets: where the sequences do.
        """
        lengths, counts = np.diff(offsets), np.diff(made)
        self.check(lengths)
        places = np.arange(int(made[-1])) - np.repeat(made[:-1], counts) - self.before
        return np.repeat(offsets[:-1], counts) + self.read(places, np.repeat(lengths, counts))
