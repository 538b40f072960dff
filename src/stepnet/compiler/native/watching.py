"""Progress of running calls: its value, and the function to which it is reported.

Machine code returns to Python every 50 milliseconds, so that signals are handled. Only then is progress
reported: shorter calls, and calls that are not watched, pay nothing for it.
"""

from collections.abc import Callable
from contextvars import ContextVar

from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Progress:
    """Progress of a call.

    Attributes:
        steps: The number of finished steps over all sequences. In a model of several recurrences each counts
            its own.
        all_steps: The number of all steps.
        sequences: The number of sequences that all recurrences have finished.
        all_sequences: The number of all sequences.
        seconds: The seconds since the call began.

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
        """Finished steps per second since the call began; 0 before any time has passed."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float:
        """The estimated seconds until the call ends; infinity before the first step is finished."""
        if self.is_done:
            return 0.0
        return (self.all_steps - self.steps) / self.rate if self.rate else float("inf")

    @property
    def is_done(self) -> bool:
        """Tells whether the call has finished all steps."""
        return self.steps >= self.all_steps


Watch = Callable[[Progress], object]
WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def watching() -> Watch | None:
    """Returns the user's function that receives the progress of this thread's (or task's) calls, or None."""
    return WATCH.get()
