"""How far long calls are: shown as a bar, or handed to a function.

Machine code returns to Python every 50 milliseconds, so that signals are handled. Only then is it asked who
watches: a call that nobody watches, or that is shorter, pays nothing for it.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from stepnet.errors import InputError
from stepnet.values.arguments import kind


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
_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def watching() -> Watch | None:
    """Who watches the calls of this thread, or task of asyncio; None for nobody."""
    return _WATCH.get()


@contextmanager
def progress(callback: Watch | None = None) -> Generator[None]:
    """Shows how far calls inside a `with` are: steps, sequences, the rate, and the time that is left.

    Calls of recurrences, stacks and graphs on the engine `llvm` that take longer than 50 milliseconds say how
    far they are, and once more when they are done. Results are the same bit for bit. A model of which some
    parts do not run in one go begins anew with each of them. Calls of other threads are not watched.

    Args:
        callback: A function that takes a `Progress`. None for a bar on the standard error output. It may call
            recurrences. What it raises ends the call and is raised by it.

    Raises:
        InputError: For a callback that cannot be called.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> rnn = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=3, hidden=4))
    >>> with sn.progress(lambda now: print(f"{now.steps} of {now.all_steps} steps, {now.left:.0f} s left")):
    ...     outputs, memory = rnn(np.zeros((2, 5, 3), "float32"))  # too short to be heard of
    """
    if callback is not None and not callable(callback):
        raise InputError(
            f"the callback of progress is a function of one argument, or None for a bar, not {kind(callback)}"
        )
    if callback is not None:
        token = _WATCH.set(callback)
        try:
            yield
        finally:
            _WATCH.reset(token)
        return
    from stepnet.engines.progress_bar import bar  # rich takes long to import

    with bar() as shown:
        token = _WATCH.set(shown)
        try:
            yield
        finally:
            _WATCH.reset(token)
