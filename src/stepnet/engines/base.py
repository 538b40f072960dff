"""What an engine is: it refuses a plan with a reason, or compiles it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stepnet.plan import Plan

Array = np.ndarray


@dataclass(frozen=True)
class Call:
    """The arrays of one call, checked: C-contiguous, of the dtypes and features that the plan says.

    sequences: per input [total, features...]; sequence i is the steps starts[i] to starts[i] + lengths[i].
    initial: per memory that is an input [batch, features...], or None for zeros. statics: per static
    [batch, features...]. reverse says which end of a sequence its last step is at. last_only: outputs are
    each sequence's last, [batch, features...], not every step's, [total, features...]. begun: per sequence
    how many of its steps were run before this call, int64; None for none.
    """

    sequences: Sequence[Array]
    starts: Array
    lengths: Array
    total: int
    initial: Sequence[Array | None]
    statics: Sequence[Array] = field(default=())
    last_only: bool = False
    reverse: bool = False
    begun: Array | None = None


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
    """A plan made ready to run."""

    def bind(self, parameters: Sequence[Array]) -> Bound:
        """What runs a call with these parameters, given in the plan's order."""
        ...


class Engine(Protocol):
    """One way to run plans."""

    @property
    def name(self) -> str:
        """What `engine=` calls it."""
        ...

    def refuse(self, plan: Plan) -> str | None:
        """Why this engine cannot run the plan; None if it can."""
        ...

    def compile(self, plan: Plan) -> Kernel:
        """The plan made ready to run; the engine has not refused it."""
        ...
