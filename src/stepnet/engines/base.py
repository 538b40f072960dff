"""What an engine is: it refuses a schedule with a reason, or compiles it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stepnet.plan.schedule import Schedule
from stepnet.ragged.offsets import offsets_of, positions_of

Array = np.ndarray


@dataclass(frozen=True)
class Call:
    """The arrays of one call, checked: C-contiguous, of the dtypes and features that the net says.

    They stand in the order of the net's inputs: sequences, initial memories, statics.
    sequences: per input [total, features...]; step t of sequence i lies at starts[i] + steps[t], where steps
    has as many as the longest sequence, and at starts[i] + t where it is None. Outputs lie as inputs do. An
    input that is a sequence at each step has the values of all of these end to end, and `inner` the offsets
    of each level, outermost first. initial: per memory that is an input [batch, features...], or None for
    zeros. statics: per static [batch, features...]; one that is a sequence has the values of all rows end to
    end, and `beside` its offsets, by the name of its axis.
    last_only: outputs are each sequence's last, [batch, features...], not every step's, [total, features...].
    begun: per sequence how many of its steps were run before this call, int64; None for none.
    """

    sequences: Sequence[Array]
    starts: Array
    lengths: Array
    total: int
    initial: Sequence[Array | None]
    statics: Sequence[Array] = field(default=())
    last_only: bool = False
    begun: Array | None = None
    steps: Array | None = None
    inner: tuple[Array, ...] = ()
    beside: Mapping[str, Array] = field(default_factory=dict[str, Array])

    @property
    def rows(self) -> int:
        """How many sequences there are."""
        return len(self.lengths)

    @property
    def is_packed(self) -> bool:
        """Whether the sequences lie end to end, in order and with nothing in between."""
        if self.steps is not None:
            return False
        offsets = offsets_of(self.lengths)
        return int(offsets[-1]) == self.total and np.array_equal(self.starts, offsets[:-1])

    def places(self, rows: Array, first: Array, lengths: Array) -> Array:
        """Where steps lie, one after the other: of each of these rows so many from its step `first` on.

        Two sequences of two steps each, of which a batch [time, batch, features] has one beside the other:

        >>> batch = Call([], np.arange(2), np.full(2, 2), 4, [], steps=2 * np.arange(2))
        >>> batch.places(np.arange(2), np.zeros(2, np.int64), batch.lengths)
        array([0, 2, 1, 3])
        """
        numbers = positions_of(first, lengths)
        return np.repeat(self.starts[rows], lengths) + (
            numbers if self.steps is None else self.steps[numbers]
        )

    @property
    def all_places(self) -> Array:
        """Where all steps lie, sequence after sequence."""
        return self.places(np.arange(self.rows), np.zeros(self.rows, np.int64), self.lengths)

    def ends(self, values: Array, first: bool) -> Array:
        """The value of each sequence's last step, or of its first; zeros where it has none."""
        ends = np.zeros((self.rows, *values.shape[1:]), values.dtype)
        filled = np.flatnonzero(self.lengths)
        numbers = np.zeros(len(filled), np.int64) if first else self.lengths[filled] - 1
        ends[filled] = values[self.places(filled, numbers, np.ones(len(filled), np.int64))]
        return ends


@dataclass(frozen=True)
class Results:
    """What a call gives: the results of the net by kind, each kind in the order of the net's results.

    outputs: those per step, [total, features...] (or [batch, features...]). final: those per row,
    [batch, features...], as the last value of each memory. totals: those that there is one of, [features...].
    """

    outputs: list[Array]
    final: list[Array]
    totals: list[Array] = field(default_factory=list[Array])

    @property
    def arrays(self) -> list[Array]:
        """All of them, kind by kind."""
        return [*self.outputs, *self.final, *self.totals]


FrozenCall = Callable[[Sequence[Array], Sequence[Array | None]], Results]
"""What runs a call that is laid out, for other sequences and initial memories of the same shapes."""


class Bound(Protocol):
    """A kernel with its parameters."""

    def __call__(self, call: Call) -> Results:
        """The results of a call, in new arrays."""
        ...

    def again(self, call: Call, results: Results, whole: bool = False) -> Callable[[], None]:
        """What runs this call as often as it is called, on whatever its arrays hold then, into the arrays of
        `results`. whole: it is not interrupted in its midst.
        """
        ...

    def frozen(self, call: Call) -> FrozenCall | None:
        """What runs calls like this one, by one thread at a time; None where there is no quicker way than a
        call. All that is not given again stays as it is: lengths, and that there are no statics.
        """
        ...


class Kernel(Protocol):
    """A schedule made ready to run."""

    def bind(self, parameters: Sequence[Array]) -> Bound:
        """What runs a call with these parameters, given in the net's order."""
        ...


class Engine(Protocol):
    """One way to run schedules, on whatever device it likes and in as many pieces as it needs."""

    @property
    def name(self) -> str:
        """What `engine=` calls it."""
        ...

    def refuse(self, schedule: Schedule) -> str | None:
        """Why this engine cannot run the schedule; None if it can."""
        ...

    def compile(self, schedule: Schedule) -> Kernel:
        """The schedule made ready to run; the engine has not refused it."""
        ...
