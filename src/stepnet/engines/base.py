"""The interface of an engine: it refuses a schedule with a reason, or compiles it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from stepnet.plan.passes.narrow import narrow_weights
from stepnet.plan.plan import Plan
from stepnet.plan.schedule import Part, Schedule
from stepnet.ragged.offsets import offsets_of, positions_of

Array = np.ndarray


@dataclass(frozen=True)
class EarlyEnds:
    """When sequences end ahead of their last step.

    flag: the place of a memory, a bool that is False at first, and True from the last step of the sequence
    on. No step behind that changes a memory. beyond: whether such steps may be computed, for nobody: else one
    of them might index a table outside of it.
    """

    flag: int
    beyond: bool


@dataclass(frozen=True)
class Call:
    """The checked arrays of one call: C-contiguous, with the dtypes and features of the net's inputs.

    They are in the order of the net's inputs: sequences, initial memories, statics.

    sequences: for each input [total, features...]. Step t of sequence i is at starts[i] + steps[t], where
    `steps` is as long as the longest sequence; or at starts[i] + t where `steps` is None. Outputs are
    arranged as inputs are. An input that is a sequence at each step has the values of all these sequences end
    to end, and `inner` has the offsets of each level, outermost first. initial: for each memory that is an
    input [batch, features...], or None for zeros. statics: for each static [batch, features...]. A static
    that is a sequence has the values of all rows end to end, and `beside` has its offsets, by the name of its
    axis.

    last_only: whether outputs are the last of each sequence, [batch, features...], or of every step, [total,
    features...]. begun: the number of steps of each sequence that were run before this call, int64; None for
    zeros. apart: how many of the outputs, the first ones, have memory of their own; the others live equally
    long, and may lie in one piece. None for all. until: when sequences end ahead of their last step; None for
    never. known: what engines have worked out of where the sequences lie.
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
    apart: int | None = None
    until: EarlyEnds | None = None
    known: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)

    def with_arrays(
        self,
        sequences: Sequence[Array],
        initial: Sequence[Array | None],
        statics: Sequence[Array] = (),
        last_only: bool = False,
        apart: int | None = None,
    ) -> "Call":
        """A call of sequences that lie as these do, which shares what is known of that."""
        made = object.__new__(Call)
        made.__dict__.update(
            self.__dict__,
            sequences=sequences,
            initial=initial,
            statics=statics,
            last_only=last_only,
            apart=apart,
            until=None,
        )
        return made

    @property
    def rows(self) -> int:
        """The number of sequences."""
        return len(self.lengths)

    @property
    def is_full(self) -> bool:
        """Whether every sequence has steps."""
        if "full" not in self.known:
            self.known["full"] = bool(self.lengths.all())
        return self.known["full"]

    @property
    def offsets(self) -> Array:
        """The offsets of the sequences if they were laid end to end."""
        if "offsets" not in self.known:
            self.known["offsets"] = offsets_of(self.lengths)
        return self.known["offsets"]

    @property
    def is_packed(self) -> bool:
        """Whether the sequences lie end to end, in order and without gaps."""
        if "packed" not in self.known:
            dense = self.steps is None and int(self.offsets[-1]) == self.total
            self.known["packed"] = dense and np.array_equal(self.starts, self.offsets[:-1])
        return self.known["packed"]

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
        """The places of all steps, sequence after sequence."""
        return self.places(np.arange(self.rows), np.zeros(self.rows, np.int64), self.lengths)

    def ends(self, values: Array, first: bool) -> Array:
        """The value of the last step of each sequence, or of the first; zeros for an empty sequence."""
        ends = np.zeros((self.rows, *values.shape[1:]), values.dtype)
        filled = np.flatnonzero(self.lengths)
        numbers = np.zeros(len(filled), np.int64) if first else self.lengths[filled] - 1
        ends[filled] = values[self.places(filled, numbers, np.ones(len(filled), np.int64))]
        return ends


@dataclass(frozen=True)
class Results:
    """The results of a call, by kind, each kind in the order of the net's results.

    outputs: those of each step, [total, features...] (or [batch, features...]). final: those of each row,
    [batch, features...], such as the last value of a memory. totals: those over all rows, [features...].
    """

    outputs: list[Array]
    final: list[Array]
    totals: list[Array] = field(default_factory=list[Array])

    @property
    def arrays(self) -> list[Array]:
        """The arrays of all kinds, one kind after the other."""
        return [*self.outputs, *self.final, *self.totals]


class FrozenCall(Protocol):
    """What runs a call that is laid out, for other arrays of the same shapes."""

    def __call__(
        self,
        sequences: Sequence[Array],
        initial: Sequence[Array | None],
        statics: Sequence[Array] = (),
        /,
    ) -> Results:
        """The results for these sequences, initial memories and statics."""
        ...


class Begun(Protocol):
    """Calls of several kernels, added in the order of the kernels, which run in one go."""

    def add(self, call: Call, /) -> Results:
        """The arrays of the results of the next call, which `run` fills."""
        ...

    def run(self) -> None:
        """Computes the results of all calls."""
        ...

    def frozen(self) -> "FrozenChain | None":
        """What runs calls like these with other arrays; None where it would not be faster."""
        ...


class BegunFrozen(Protocol):
    """Arrays for frozen calls of several kernels, added in the order of the kernels."""

    def add(
        self,
        sequences: Sequence[Array],
        initial: Sequence[Array | None],
        statics: Sequence[Array] = (),
        /,
    ) -> Results:
        """The arrays of the results of the next call, which `run` fills."""
        ...

    def run(self) -> None:
        """Computes the results of all calls."""
        ...


class FrozenChain(Protocol):
    """Several calls that are laid out, for other arrays of the same shapes, one thread at a time."""

    def started(self) -> BegunFrozen:
        """What takes the arrays and then runs."""
        ...


class Chain(Protocol):
    """Several kernels with their parameters, which run in one go, in any number of threads."""

    def started(self) -> Begun:
        """What takes the calls and then runs them."""
        ...

    def release(self) -> None:
        """Gives back its memory: it is not called any more."""
        ...


class Steps(Protocol):
    """What runs single steps of rows of a call. Memories, statics and `begun` have a place for each row there
    may be; sequences and outputs have at place i those of the i-th row of the step. The memories of rows that
    take no step are not touched.
    """

    def of(self, rows: Array) -> Callable[[], None]:
        """What takes a step of these rows on the present contents of the arrays, until `of` is asked for
        others. An interrupt does not come between its beginning and its end.
        """
        ...

    def renew(self, rows: Array) -> None:
        """Says that the statics of these rows are others; at first those of all rows are."""
        ...


class Bound(Protocol):
    """A kernel with its parameters."""

    @property
    def ends_early(self) -> bool:
        """Whether it takes calls with `Call.until`.

        The last memories of such a call are those of the steps that were taken. Its outputs are those of
        these steps alone, sequence after sequence, or with `last_only` the last of each sequence.
        """
        ...

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Takes other parameters in place of its own, for what it has laid out too; False where it cannot."""
        ...

    def release(self) -> None:
        """Gives back its memory: it is not called any more, and nothing that it has laid out is."""
        ...

    def __call__(self, call: Call) -> Results:
        """The results of a call, in new arrays."""
        ...

    def again(self, call: Call, results: Results) -> Callable[[], None]:
        """A function that runs this call on the present contents of its arrays, into those of `results`."""
        ...

    def steps(self, call: Call, results: Results) -> "Steps":
        """What runs single steps of some rows of this call at a time, from its memories into those of
        `results`. It writes to the `starts` of the call.
        """
        ...

    def frozen(self, call: Call) -> FrozenCall | None:
        """A function that runs calls like this one with other arrays, one thread at a time.

        None where it would not be faster than a call. The lengths stay as they are.
        """
        ...


class Kernel(Protocol):
    """A compiled schedule."""

    def bind(self, parameters: Sequence[Array]) -> Bound:
        """The kernel with these parameters, given in the net's order."""
        ...


@dataclass(frozen=True)
class Cell:
    """What an engine has for a recurrence. reads: the sequences that its x is made of, by their places in a
    call, where it needs a scale of these; else none. text: what it is.
    """

    reads: tuple[int, ...]
    text: str


class Joins(Protocol):
    """How an engine runs several recurrences in one piece: layers, or both directions of one."""

    def refuse(self, part: Part) -> str | None:
        """The reason why the members of a joined part, each of which the engine runs, do not run in one
        piece; None if they do.
        """
        ...

    def compile(self, part: Part) -> Kernel:
        """A compiled joined part; it has not been refused. Its call has the sequences that the first layer
        reads, and the first memories of all members in order; its results are those of the part.
        """
        ...


class Engine(Protocol):
    """A way to run schedules, on any device and in as many pieces as it needs."""

    @property
    def name(self) -> str:
        """The name for `engine=`."""
        ...

    @property
    def joins(self) -> Joins | None:
        """How it runs several recurrences in one piece; None for an engine that runs each by itself."""
        ...

    def refuse(self, schedule: Schedule) -> str | None:
        """The reason why this engine cannot run the schedule; None if it can."""
        ...

    def compile(self, schedule: Schedule) -> Kernel:
        """The compiled schedule; the engine has not refused it."""
        ...

    def refuse_plan(self, plan: Plan) -> str | None:
        """The reason why this engine cannot run the plan of one part; None if it can."""
        ...

    def compile_plan(self, plan: Plan) -> Kernel:
        """The compiled plan of one part; the engine has not refused it."""
        ...


class Pair(Protocol):
    """The gradient of one recurrence, by code that an engine has for it: a forward pass that keeps what its
    backward pass reads.

    Arrays are those of the net's inputs, in their order; None is a memory of zeros. A call has no arrays, and
    its sequences are those of the net.
    """

    @property
    def text(self) -> str:
        """What it is."""
        ...

    def forward(self, arrays: Sequence[Array | None], call: Call) -> tuple[list[Array], Array]:
        """The results in the net's order, and what is kept, as bytes."""
        ...

    def backward(
        self, arrays: Sequence[Array | None], cotangents: Sequence[Array], kept: Array, call: Call
    ) -> list[Array]:
        """The gradients of all inputs, for the cotangents of all results."""
        ...

    def kept_bytes(self, rows: int, steps: int) -> int:
        """How much is kept for so many sequences of so many steps."""
        ...


class Pairs(Protocol):
    """What an engine has gradients for by code of its own: recurrences, and none of the work between them."""

    @property
    def between(self) -> str:
        """The engine that runs what lies between, where no other is asked for."""
        ...

    def pair(self, plan: Plan) -> Pair | str:
        """The gradient of a recurrence; a reason where there is none."""
        ...


class LowEngine(Engine, Protocol):
    """An engine that runs recurrences in the precisions with which a net marks them."""

    def cell(self, plan: Plan) -> Cell | str:
        """What it has for the recurrence of a plan, in the precision of the mark; a reason where nothing."""
        ...


def narrow_cell(plan: Plan) -> Cell | str:
    """What engines have that run any step and encode the weights of its products; a reason where nothing."""
    count = narrow_weights(plan.traced)
    if not count:
        return "it has no product of float32 values with parameters"
    return Cell((), f"{count:,} weights in its products")
