"""Where the steps of a batch lie, as arrays on a device that kernels read."""

from collections.abc import Callable, Hashable

import numpy as np

from stepnet.compiler.targets.cuda.device import Array, Device, DeviceArray, put
from stepnet.compiler.targets.cuda.loops.lanes import MOST_STEPS, LaneTable
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.ragged.positions import Positions


@dataclass(frozen=True, eq=False)
class DeviceLanes:
    """A table of lanes on a device.

    groups: the groups of blocks. array: the words of `LaneTable.first`, of which there are `count`, and then
    the words of its lanes.
    """

    groups: int
    count: int
    array: DeviceArray

    @property
    def words(self) -> tuple[int, int]:
        """The addresses of both, which are arguments of a loop's kernel."""
        return self.array.address, self.array.address + 8 * self.count


@dataclass(frozen=True, eq=False)
class DevicePositions:
    """The positions of the sequences of a batch, as arrays on a device, each made at its first use."""

    positions: Positions
    device: Device

    @classmethod
    def of(cls, positions: Positions, device: Device) -> "DevicePositions":
        """Returns the places of some positions, which keep them for later calls."""
        made: DevicePositions = positions.derive(f"cuda {id(device)}", lambda: cls(positions, device))
        return made

    def put(self, array: Array) -> DeviceArray:
        """Copies integers to the device."""
        return put(self.device, np.asarray(array, np.int64))

    @computed_once
    def steps(self) -> DeviceArray | None:
        """The index of each step after the first; None if the steps lie one after the other. Raises
        `InputError` for one that kernels, which count in 32 bits, do not reach.
        """
        steps = self.positions.steps
        if steps is None:
            return None
        most = int(np.max(steps, initial=0))
        if most > MOST_STEPS:
            raise InputError(
                f"a step of a sequence lies {most:,} entries behind its first, and a GPU reaches "
                f"{MOST_STEPS:,}: give the batch in parts, or with the steps of each sequence side by side"
            )
        return self.put(steps)

    @computed_once
    def tables(self) -> dict[Hashable, DeviceLanes]:
        """The tables of lanes that were made so far, by the schedule that they were made for."""
        return {}

    def lanes(self, key: Hashable, reverse: bool, made: Callable[[], LaneTable]) -> DeviceLanes:
        """Returns a table of lanes on the device, for sequences that run forward or backward.

        key: the schedule that it is for. made: makes the table at the first use.
        """
        if (key, reverse) not in self.tables:
            table = made()
            lanes = table.placed(self.positions, reverse)
            array = self.put(np.concatenate([table.first, lanes.ravel()]))
            self.tables[key, reverse] = DeviceLanes(table.groups, len(table.first), array)
        return self.tables[key, reverse]

    @computed_once
    def row_of(self) -> DeviceArray:
        """The row of each step, and -1 for an entry in a gap between sequences."""
        positions = self.positions
        rows = np.full(positions.total, -1, np.int64)
        rows[positions.all_step_indices] = np.repeat(np.arange(positions.rows), positions.lengths)
        return self.put(rows)

    @computed_once
    def gaps(self) -> Array:
        """The entries that are no step of any sequence, on the host."""
        if self.positions.is_packed:
            return np.zeros(0, np.int64)
        free = np.ones(self.positions.total, bool)
        free[self.positions.all_step_indices] = False
        return np.flatnonzero(free)

    @computed_once
    def index_of(self) -> DeviceArray:
        """The number of each step in its sequence, 0 in gaps."""
        positions = self.positions
        made = np.zeros(positions.total, np.int64)
        first = np.cumsum(positions.lengths) - positions.lengths
        steps = np.arange(int(positions.lengths.sum()))
        made[positions.all_step_indices] = steps - np.repeat(first, positions.lengths)
        return self.put(made)
