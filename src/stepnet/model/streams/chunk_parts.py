"""Parts of a model over chunks of steps, as a stream of chunks runs them one after the other.

    recurrence, plain    a part of the schedule, by the machine code of a call, from the memories of each row
    windows, overlap     the steps that later windows read too are kept
    expand, reduce       a value of a row at each of its new steps, and its value at the last step so far

Each part computes the results that no later step can change: a convolution that reads two later steps gives
a result two steps later. Parts that read several values take as many steps as all of them have, and keep the
others. At the end of a row each part computes the rest, with zeros behind the last step, as a call does.
The parts that an engine runs are in `chunk_plans.py`.
"""

from dataclasses import field
from typing import Any, Protocol

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, Extent, Type
from stepnet.compiler.net.windows import WINDOWED, Window, derived_offsets
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.model.streams.waiting import Kept, WaitingSteps
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
ChunkValues = dict[int, Any]
"""The values of a chunk by node of the model's net: `WaitingSteps` of the steps that are new, arrays [rows,
features...] of values that a row has once, and constants."""
StepCounts = dict[int, Array]
"""The number of steps of each row so far that a value has, int64 [rows], by node of the model's net."""


@dataclass(frozen=True)
class Chunk:
    """Some steps of the rows of a stream.

    taken: the number of steps of each row so far, those of this chunk included.
    ends: whether the sequences end with this chunk.
    counts: the number of entries of each row so far along an axis of steps, by its name, at first use.
    """

    taken: Array
    ends: bool
    counts: dict[str, Array] = field(default_factory=dict[str, Array])

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.taken)

    def along(self, axis: str) -> Array:
        """Returns the number of entries that each row has along an axis, if it ends with this chunk."""
        if axis not in self.counts:
            self.counts[axis] = np.diff(derived_offsets(axis, offsets_of(self.taken)))
        return self.counts[axis]


class ChunkPart(Protocol):
    """Part of a model that runs over chunks of steps."""

    def begin(self, rows: int) -> Kept:
        """Returns the part's state of rows that have had no step. rows: the number of rows."""
        ...

    def run(self, values: ChunkValues, kept: Kept, chunk: Chunk) -> tuple[ChunkValues, Kept]:
        """Computes the results of a chunk that are ready; returns them by node, and the part's new state.
        values: the values of the chunk so far. kept: the part's state of the rows.
        """
        ...

    def counts(self, steps: StepCounts, chunk: Chunk) -> tuple[StepCounts, dict[str, Array]]:
        """Returns the total number of steps of each result, by node, and the counts and the numbers of steps
        that the part keeps, by name. They depend on the number of steps of each row so far alone, not on the
        cut into chunks.

        steps: the numbers of steps of earlier values. chunk: the chunk of rows, which do not end.
        """
        ...


def zeros(type_: Type, rows: int) -> Array:
    """Returns zeros for each row. type_: of a value that each row has once; its extent is not read."""
    return np.zeros((rows, *type_.shape), type_.dtype)


# ---- steps of other times ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowPart:
    """Part that computes windows of neighbouring steps, or the sums of their entries, from the steps so far.

    number: the node. model: the net of the model. name: the prefix of the names of the values that it keeps.
    """

    number: int
    model: Net
    name: str

    @computed_once
    def window(self) -> Window:
        """The window that the node has."""
        return Window.of(self.model.nodes[self.number].attributes)

    @property
    def reads(self) -> int:
        """The value whose steps, or windows, the node reads."""
        return self.model.nodes[self.number].inputs[0]

    @property
    def is_overlap(self) -> bool:
        """Tells whether the node adds entries of windows, as a transposed convolution does."""
        return self.model.nodes[self.number].operation == "overlap"

    @property
    def ahead(self) -> int:
        """The number of zeros ahead of a row: steps before its first, or windows that add to its first."""
        return self.window.reach // self.window.stride if self.is_overlap else self.window.before

    def begin(self, rows: int) -> Kept:
        """Returns the kept values of rows that have had no step: zeros. rows: the number of rows."""
        none, type_ = np.zeros(rows, np.int64), self.model.type_of(self.number)
        ahead = WaitingSteps.zeros(none + self.ahead, self.model.type_of(self.reads))
        kept: Kept = {f"{self.name}.earlier": ahead, f"{self.name}.read": none, f"{self.name}.given": none}
        return kept | ({f"{self.name}.waiting": WaitingSteps.zeros(none, type_)} if self.is_overlap else {})

    def run(self, values: ChunkValues, kept: Kept, chunk: Chunk) -> tuple[ChunkValues, Kept]:
        """Computes windows whose steps are all known, or sums whose windows are all known; returns them by
        node, and the values that the part keeps.

        values: the values of the chunk so far. kept: the part's state of the rows.
        """
        new: WaitingSteps = values[self.reads]
        before, given = (kept[f"{self.name}.{what}"] for what in ("read", "given"))
        read, steps = before + new.lengths, kept[f"{self.name}.earlier"].before(new)
        all_of = chunk.along(self.model.type_of(self.number).extent[-1])
        now: Kept = {f"{self.name}.read": read}
        if self.is_overlap:
            made, left = self.sums(steps, before, read, all_of if chunk.ends else None)
            made = kept[f"{self.name}.waiting"].before(made)
            made, now[f"{self.name}.waiting"] = made.split(np.minimum(made.lengths, all_of - given))
        else:
            made, left = self.windows(steps, read, all_of - given, chunk.ends)
        now |= {f"{self.name}.earlier": left, f"{self.name}.given": given + made.lengths}
        return {self.number: made}, now

    def counts(self, steps: StepCounts, chunk: Chunk) -> tuple[StepCounts, dict[str, Array]]:
        """Returns the number of windows or sums that are ready in total, and the sizes of the part's state,
        by name.

        steps: the numbers of steps of earlier values. chunk: the chunk of rows, which do not end.
        """
        read, window = steps[self.reads], self.window
        all_of = chunk.along(self.model.type_of(self.number).extent[-1])
        if self.is_overlap:
            known = np.maximum(read * window.stride - window.before, 0)
            given = np.minimum(known, all_of)
            own = {"earlier": np.full_like(read, self.ahead), "waiting": known - given}
        else:
            given = np.minimum(self.known(read, self.ahead + read), all_of)
            own = {"earlier": self.ahead + read - given * window.stride}
        own |= {"read": read, "given": given}
        return {self.number: given}, {f"{self.name}.{what}": counts for what, counts in own.items()}

    def known(self, read: Array, lengths: Array) -> Array:
        """Returns the number of complete windows of each row, which read only known steps.

        read: the number of steps that each row has had. lengths: the number of steps from the beginning of
        the first of these windows on.
        """
        reach = max(self.needed, self.window.stride - 1)
        return np.where(read > 0, np.maximum((lengths - reach - 1) // self.window.stride + 1, 0), 0)

    @computed_once
    def needed(self) -> int:
        """The number of steps from the first step of a window to the last step that is read. It is 0 for
        windows of two steps of which only the first is read, as to leave out steps at a sequence's end.
        """
        window, entries = self.window, {0}
        for node in self.model.nodes:
            if self.number not in node.inputs:
                continue
            if node.operation != "slice" or len(node.attributes["slices"]) < len(node.type.shape):
                return window.reach
            entries |= {*range(*node.attributes["slices"][0])}
        return window.reach if self.number in self.model.results else max(entries) * window.dilation

    def windows(
        self, steps: WaitingSteps, read: Array, rest: Array, ends: bool
    ) -> tuple[WaitingSteps, WaitingSteps]:
        """Returns the complete windows, all of whose steps are known, and the steps that later windows read.

        steps: the steps from the next window's first on. read: the number of steps that each row has had.
        rest: the number of windows that are left if the rows end. ends: whether the rows end.
        """
        window, lengths = self.window, steps.lengths
        counts = rest if ends else np.minimum(self.known(read, lengths), rest)
        local = Window(window.size, window.dilation, 0, window.stride, window.reach)
        made = WINDOWED["windows"](steps.values, offsets_of(counts), steps.offsets, local)
        _, left = steps.split(np.minimum(counts * window.stride, lengths))
        return WaitingSteps(made, counts), left

    def sums(
        self, windows: WaitingSteps, before: Array, read: Array, all_of: Array | None
    ) -> tuple[WaitingSteps, WaitingSteps]:
        """Returns the sums to which no later window adds, and the windows that later sums need.

        windows: the earlier windows that may add to the next sum, and the new ones. before, read: the number
            of windows of each row without and with the new ones.
        all_of: the number of sums of rows that end; None for rows that go on.
        """
        window, ahead = self.window, self.ahead
        counts = (read - before) * window.stride
        if all_of is not None:  # and the steps that reach beyond the last window
            final = np.where(read > 0, all_of + window.before, 0)
            counts = counts + np.maximum(final - read * window.stride, 0)
        local = Window(window.size, window.dilation, ahead * window.stride, window.stride, window.reach)
        made = WaitingSteps(
            WINDOWED["overlap"](windows.values, offsets_of(counts), windows.offsets, local), counts
        )
        _, made = made.split(np.clip(window.before - before * window.stride, 0, counts))
        _, left = windows.split(windows.lengths - ahead)
        return made, left


# ---- values that a row has once ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RepeatPart:
    """A value that a row has once, or that is the same for all rows, at each step of a row.

    number: the node. model: the net of the model. name: the name under which it keeps its state.
    """

    number: int
    model: Net
    name: str

    @property
    def extent(self) -> Extent:
        """The extent of the result: `ROWS`, or that of the steps of rows."""
        return self.model.type_of(self.number).extent

    def begin(self, rows: int) -> Kept:
        """Returns the part's state of new rows: the number of steps at which they have the value."""
        return {} if self.extent == ROWS else {f"{self.name}.given": np.zeros(rows, np.int64)}

    def run(self, values: ChunkValues, kept: Kept, chunk: Chunk) -> tuple[ChunkValues, Kept]:
        """Repeats the value for the new steps; returns it by node, and the part's new state.

        values: the values of the chunk so far. kept: the part's state of the rows.
        """
        (operand,) = self.model.nodes[self.number].inputs
        value: Array = values[operand]
        if self.model.type_of(operand).extent == CONST:
            value = np.repeat(value[None], chunk.rows, axis=0)
        if self.extent == ROWS:
            return {self.number: value}, {}
        name, counts = f"{self.name}.given", chunk.along(self.extent[-1])
        new = counts - kept[name]
        return {self.number: WaitingSteps(np.repeat(value, new, axis=0), new)}, {name: counts}

    def counts(self, steps: StepCounts, chunk: Chunk) -> tuple[StepCounts, dict[str, Array]]:
        """Returns the number of steps at which each row has the value, which the part keeps. steps: the
        numbers of steps of earlier values. chunk: the chunk of rows, which do not end.
        """
        if self.extent == ROWS:
            return {}, {}
        given = chunk.along(self.extent[-1])
        return {self.number: given}, {f"{self.name}.given": given}


@dataclass(frozen=True)
class LastPart:
    """The value of the last step of each row so far.

    number: the node. model: the net of the model. name: the prefix of the names of the values that it keeps.
    """

    number: int
    model: Net
    name: str

    def begin(self, rows: int) -> Kept:
        """Returns the part's state of rows that have had no step: zeros. rows: the number of rows."""
        return {f"{self.name}.last": zeros(self.model.type_of(self.number), rows)}

    def run(self, values: ChunkValues, kept: Kept, chunk: Chunk) -> tuple[ChunkValues, Kept]:
        """Takes the last new step of each row that has one; returns it by node, and the part's new state.

        values: the values of the chunk so far. kept: the part's state of the rows.
        """
        steps: WaitingSteps = values[self.model.nodes[self.number].inputs[0]]
        name = f"{self.name}.last"
        last, rows = kept[name].copy(), np.flatnonzero(steps.lengths)
        last[rows] = steps.values[steps.offsets[1:][rows] - 1]
        return {self.number: last}, {name: last}

    def counts(self, steps: StepCounts, chunk: Chunk) -> tuple[StepCounts, dict[str, Array]]:
        """Returns nothing: the part keeps no steps and no counts."""
        return {}, {}
