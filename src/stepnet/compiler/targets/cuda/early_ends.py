"""The steps that sequences took until a flag ended them, to which all that follows the loop is cut.

outputs of the loop   a0 a1 a2 .  .  b0 .  .     room for all steps       taken 3 1
cut                   a0 a1 a2 b0                what runs after the loop sees these alone
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.base import Call
from stepnet.compiler.targets.cuda.codes import DeviceStage, ProductCode
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


def read_after_loop(plan: Plan, codes: Iterable[DeviceStage | ProductCode]) -> list[int]:
    """Lists the values per step that the work after a plan's loop reads, or that are results; by node.

    codes: of the stages after the loop.
    """
    net = plan.net
    read = {*net.results, *(n for number in (*plan.reduced, *plan.total) for n in net.nodes[number].inputs)}
    for code in codes:
        read |= {*(code.lefts if isinstance(code, ProductCode) else code.reads)}
    return sorted(n for n in read if net.type_of(n).extent not in (CONST, ROWS))
