"""A progress bar for work that takes longer than a second."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import Progress, ProgressColumn

PATIENCE = 1.0  # seconds


@contextmanager
def progress(
    title: str, total: float | None = None, shown: bool = True
) -> Generator[Callable[[float], None]]:
    """Yields a function to call with the amount of work just done; a bar shows it on stderr, if that is a
    terminal.

    >>> with progress("frames", 300) as advance:
    ...     for _ in range(3):
    ...         advance(100)
    """
    with delayed_progress(shown) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def delayed_progress(shown: bool, *columns: ProgressColumn) -> Generator[Progress]:
    """Yields a progress bar on stderr, if that is a terminal. It appears late and vanishes at the end."""
    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal)
    bar = Progress(*columns, console=console, transient=True, disable=hidden, refresh_per_second=4)
    late = Timer(PATIENCE, bar.start)
    late.daemon = True
    late.start()
    try:
        yield bar
    finally:
        late.cancel()
        late.join()
        if bar.live.is_started:
            bar.stop()
