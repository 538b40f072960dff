"""How far a call is, and who is told so while it runs.

Machine code returns to Python every 50 milliseconds, so that signals are handled. Only then is it asked who
watches: a call that nobody watches, or that is shorter, pays nothing for it.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a call is.

    Attributes:
        steps: How many steps are done, of all sequences. In a model of several recurrences each has its own.
        all_steps: How many there are.
        sequences: How many sequences are done to the end, by all recurrences.
        all_sequences: How many there are.
        seconds: Since the call began.

    >>> now = Progress(steps=300, all_steps=1200, sequences=2, all_sequences=8, seconds=1.5)
    >>> now.rate, now.left, now.is_done
    (200.0, 4.5, False)
    """

    steps: int
    all_steps: int
    sequences: int
    all_sequences: int
    seconds: float

    @property
    def rate(self) -> float:
        """Steps per second; 0 before the first."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float:
        """Seconds that are left at this rate; infinity before the first step is done."""
        if self.is_done:
            return 0.0
        return (self.all_steps - self.steps) / self.rate if self.rate else float("inf")

    @property
    def is_done(self) -> bool:
        """Whether all steps are done."""
        return self.steps >= self.all_steps


Watch = Callable[[Progress], object]
WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def watching() -> Watch | None:
    """Who watches the calls of this thread, or task of asyncio; None for nobody."""
    return WATCH.get()
