"""The part of a model over chunks of steps that puts copies of steps at the ends of sequences.

    steps so far    a b         nothing is known of two steps ahead by reflection, c b
                    a b c       c b | a b c
                    a b c d     and d
    at the end      a b c d     and the copies behind, which need the last steps

So nothing is ready until a sequence has the steps that are copied ahead of it; from then on all steps are.
"""

import numpy as np

from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.ir import Net
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.model.streams.chunk_parts import Chunk, ChunkValues, StepCounts
from stepnet.model.streams.waiting import Kept, WaitingSteps
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray


@dataclass(frozen=True)
class EndsPart:
    """Copies of steps ahead of sequences, and behind sequences that end with a chunk.

    number: the node. model: the net of the model. name: the prefix of the names of the values that it keeps.
    """

    number: int
    model: Net
    name: str

    @computed_once
    def extension(self) -> Extension:
        """The numbers of copies that the node makes, and the steps that it copies."""
        return Extension.of(self.model.nodes[self.number].attributes)

    @property
    def reads(self) -> int:
        """The value whose steps the node copies."""
        return self.model.nodes[self.number].inputs[0]

    @property
    def ahead(self) -> int:
        """The number of first steps that contain all steps copied ahead of a sequence."""
        return 1 + (self.extension.before if self.extension.how == "reflect" else 0)

    @property
    def behind(self) -> int:
        """The number of last steps that contain all steps copied behind a sequence."""
        after = self.extension.after
        return min(after, 1) + (after if self.extension.how == "reflect" else 0)

    def begin(self, rows: int) -> Kept:
        """Returns the values that the part keeps of rows without a step so far. rows: the number of rows."""
        none = np.zeros(rows, np.int64)
        earlier = WaitingSteps.zeros(none, self.model.type_of(self.number))
        return {f"{self.name}.earlier": earlier, f"{self.name}.read": none}

    def given(self, read: Array) -> Array:
        """Returns the known steps of the result, for rows that do not end. read: the steps of each row."""
        return np.where(read >= self.ahead, read + self.extension.before, 0)

    def kept(self, read: Array) -> Array:
        """Returns the number of last steps that are kept of each row: all until the steps ahead are known,
        then as many as are copied behind it. read: how many steps each row has had.
        """
        return np.where(read >= self.ahead, np.minimum(read, self.behind), read)

    def run(self, values: ChunkValues, kept: Kept, chunk: Chunk) -> tuple[ChunkValues, Kept]:
        """Copies the known steps; returns them by node, and the part's new state. Raises `InputError`
        for rows that end with too few steps.

        values: the values of the chunk so far. kept: the part's state of the rows.
        """
        new: WaitingSteps = values[self.reads]
        before: Array = kept[f"{self.name}.read"]
        steps, read = kept[f"{self.name}.earlier"].before(new), before + new.lengths
        known = self.given(read)
        if chunk.ends:
            self.extension.check(read)
            known = self.extension.lengths.of(read)
        given = self.given(before)
        counts = known - given
        numbers = np.arange(int(counts.sum())) - np.repeat(offsets_of(counts)[:-1], counts)
        places = numbers + np.repeat(given, counts) - self.extension.before
        firsts = steps.offsets[1:] - read  # where the first step of each row would lie
        indices = np.repeat(firsts, counts) + self.extension.read(places, np.repeat(read, counts))
        _, left = steps.split(steps.lengths - self.kept(read))
        made = WaitingSteps(steps.values[indices], counts)
        return {self.number: made}, {f"{self.name}.earlier": left, f"{self.name}.read": read}

    def counts(self, steps: StepCounts, chunk: Chunk) -> tuple[StepCounts, dict[str, Array]]:
        """Returns the number of known steps of the result in total, and the number that the part keeps, by
        name. steps: the numbers of steps of earlier values. chunk: the chunk of rows, which do not end.
        """
        read = steps[self.reads]
        own = {f"{self.name}.earlier": self.kept(read), f"{self.name}.read": read}
        return {self.number: self.given(read)}, own
