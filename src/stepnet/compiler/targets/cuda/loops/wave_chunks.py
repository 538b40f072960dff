"""Chunks of the steps of a batch: each sequence's steps of one range, end to end.

    steps     a0 a1 a2 a3 a4 a5    b0 b1 b2           chunks of 2 steps
    chunk 0   a0 a1    b0 b1       chunk 1   a2 a3    b2       chunk 2   a4 a5

All sequences are in all chunks, so that memories have the same rows; those that have ended have no steps.
"""

import numpy as np

from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
from stepnet.compiler.targets.cuda.device import Array, DeviceArray, empty, put
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.offsets import offsets_of
from stepnet.ragged.positions import Positions


@dataclass(frozen=True, eq=False)
class StepChunk:
    """A chunk of the steps of a batch.

    positions: where its steps lie in arrays of the chunk. first: the number of the first step of the chunk.
        entries: int64, the entry of each of its steps in the arrays of all steps.
    """

    positions: Positions
    first: int
    entries: Array

    def entries_on(self, memory: CudaMemory) -> DeviceArray:
        """Returns the entries of the chunk's steps on a device, where they are kept for later calls."""
        name = f"cuda entries {id(memory.device)}"
        found: DeviceArray = self.positions.derive(name, lambda: put(memory.device, self.entries))
        return found

    def steps_before(self, memory: CudaMemory, begun: DeviceArray | None) -> DeviceArray:
        """Returns the steps of each sequence before the chunk. begun: in earlier calls; None for none."""
        if begun is None:
            return put(memory.device, np.full(self.positions.rows, self.first, np.int64))
        return memory.plus(begun, self.first)

    def take(self, memory: CudaMemory, whole: DeviceArray) -> DeviceArray:
        """Makes an array of the chunk's steps from that of all steps."""
        made = empty(memory.device, (len(self.entries), *whole.shape[1:]), whole.dtype)
        memory.move(made, whole, len(self.entries), None, self.entries_on(memory))
        return made

    def give(self, memory: CudaMemory, whole: DeviceArray, steps: DeviceArray) -> None:
        """Writes the chunk's steps into the array of all steps."""
        memory.move(whole, steps, len(self.entries), self.entries_on(memory), None)


@dataclass(frozen=True, eq=False)
class StepChunks:
    """The chunks of the steps of a batch, in order.

    size: the most steps of a sequence in a chunk.
    """

    positions: Positions
    size: int

    @classmethod
    def of(cls, positions: Positions, count: int) -> "StepChunks":
        """Divides the steps of a batch into at most `count` chunks, kept by the positions for later calls."""
        name = f"{count} chunks"
        made: StepChunks = positions.derive(
            name, lambda: cls(positions, -(-int(positions.lengths.max()) // count))
        )
        return made

    @computed_once
    def chunks(self) -> tuple[StepChunk, ...]:
        """The chunks, that of the first steps first."""
        positions, size, rows = self.positions, self.size, np.arange(self.positions.rows)
        made = list[StepChunk]()
        for begin in range(0, int(positions.lengths.max()), size):
            lengths = np.clip(positions.lengths - begin, 0, size)
            first = np.full(positions.rows, begin, np.int64)
            entries = positions.step_indices(rows, first, lengths)
            made.append(StepChunk(Positions.end_to_end(offsets_of(lengths)), begin, entries))
        return tuple(made)
