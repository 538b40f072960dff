"""The steps that sequences took until a flag ended them, to which all that is beside the loop is cut.

outputs of the loop   a0 a1 a2 .  .  b0 .  .     room for all steps       taken 3 1
cut                   a0 a1 a2 b0                what runs after the loop sees these alone

So are values that were computed ahead of the loop, for all steps.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.memory import AnyMemory, Buffer
from stepnet.compiler.net.types import Type
from stepnet.compiler.targets.base import Call
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.offsets import offsets_of, positions_of
from stepnet.ragged.positions import Positions

Array = np.ndarray


@dataclass(frozen=True)
class TakenSteps:
    """The steps that the sequences of a call took. taken: their number, for each sequence.

    reverse: whether sequences run from their last step to the first.
    """

    positions: Positions
    taken: Array
    reverse: bool

    @computed_once
    def left_out(self) -> Array:
        """The steps of each sequence, in its array, ahead of those that it took."""
        return self.positions.lengths - self.taken if self.reverse else np.zeros_like(self.taken)

    @computed_once
    def entries(self) -> Array:
        """The indices of the steps in arrays that lie as the call's do."""
        return self.positions.step_indices(np.arange(self.positions.rows), self.left_out, self.taken)

    @computed_once
    def placed(self) -> Array:
        """The indices of the steps in the outputs of the loop, in which all sequences lie end to end."""
        return positions_of(self.positions.offsets[:-1] + self.left_out, self.taken)

    def call(self, call: Call) -> Call:
        """Returns a call with these steps alone, whose arrays of sequences are still to be cut."""
        where = Positions.end_to_end(offsets_of(self.taken))
        sequences: list[Any] = [None] * len(call.sequences)
        return replace(call, positions=where, sequences=sequences, until=None)

    def values(self, memory: AnyMemory, value: Buffer, type_: Type, last_only: bool) -> Buffer:
        """Returns a value of all steps at these steps alone, end to end.

        memory: that it lies in. last_only: whether to return that of the last of these steps of each
            sequence, [rows, features...]; zeros for one without steps.
        """
        if not last_only:
            return memory.take(value, self.entries)
        rows = np.flatnonzero(self.taken)
        last = self.left_out[rows] if self.reverse else self.taken[rows] - 1
        made = memory.zeros((len(self.taken), *type_.shape), type_.dtype)
        places = self.positions.step_indices(rows, last, np.ones_like(rows))
        memory.write(made, rows, memory.take(value, places))
        return made
