"""Progress of long calls, shown as a bar or passed to a function."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from stepnet.compiler.native.watching import WATCH, Watch
from stepnet.compiler.values.arguments import kind
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.errors import InputError


@contextmanager
def progress(callback: Watch | None = None) -> Generator[None]:
    """Reports the progress of calls inside a `with`: steps, sequences, the rate, and the remaining time.

    Calls of recurrences, stacks and graphs on the engine `llvm` that take longer than 50 milliseconds report
    their progress, and once more when they are done. Results are the same bit for bit. In a model whose parts
    do not all run as one, progress starts from zero with each part. Calls of other threads are not reported.

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
    watch: AbstractContextManager[Watch | None] = nullcontext(callback)
    if callback is None:
        with IMPORTS:  # rich takes long to import
            from stepnet.explain.bars import call_bar

        watch = call_bar()
    with watch as shown:
        token = WATCH.set(shown)
        try:
            yield
        finally:
            WATCH.reset(token)
