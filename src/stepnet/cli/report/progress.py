"""A progress bar for work that takes longer than a second."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import Progress

PATIENCE = 1.0  # seconds


@contextmanager
def progress(
    title: str, total: float | None = None, shown: bool = True
) -> Generator[Callable[[float], None]]:
    """A function to call with the amount of work just done; a bar on stderr shows it, if that is a terminal.

    >>> with progress("frames", 300) as advance:
    ...     for _ in range(3):
    ...         advance(100)
    """
    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal)
    bar = Progress(console=console, transient=True, disable=hidden, refresh_per_second=4)
    task = bar.add_task(title, total=total)
    late = Timer(PATIENCE, bar.start)
    late.daemon = True
    late.start()
    try:
        yield lambda count: bar.advance(task, count)
    finally:
        late.cancel()
        late.join()
        if bar.live.is_started:
            bar.stop()
