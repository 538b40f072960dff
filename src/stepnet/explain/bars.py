"""Progress bars on the standard error output: of calls of recurrences, and of commands that take long."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from stepnet.compiler.native.watching import Progress, Watch

PATIENCE = 1.0  # seconds
COLUMNS = (
    BarColumn(),
    TextColumn("{task.percentage:>3.0f}%"),
    TextColumn("{task.fields[text]}"),
)


@contextmanager
def call_bar(console: Console | None = None) -> Generator[Watch]:
    """Yields a function that shows reports of progress as a bar on stderr, with a line for each call of a
    recurrence.

    Calls report only if they take long, so nothing is shown for short ones. console: the console to draw on;
    None for stderr.
    """
    shown = Bars(*COLUMNS, console=console or Console(stderr=True), auto_refresh=False)
    tasks: list[TaskID] = []  # the call that is shown, if any

    def show(now: Progress) -> None:
        """Draws one report of the progress of a call: a bar and its text. The line stays when the call is
        done, and the next call gets a new one.
        """
        shown.start()
        if not tasks:
            tasks.append(shown.add_task("", total=now.all_steps, text=""))
        shown.update(tasks[-1], completed=now.steps, text=progress_text(now), refresh=True)
        if now.is_done:
            tasks.clear()

    try:
        yield show
    finally:
        if shown.live.is_started:
            shown.stop()


def progress_text(now: Progress) -> str:
    """Formats the progress of a call as text beside a bar: steps, sequences, rate and the time left.

    >>> progress_text(Progress(300, 1200, 2, 8, 1.5))
    '300 of 1,200 steps, 2 of 8 sequences, 200 steps/s, 4.5 s left'
    >>> progress_text(Progress(1200, 1200, 8, 8, 6.0))
    '1,200 of 1,200 steps, 8 of 8 sequences, 200 steps/s, 6.0 s in all'
    """
    times = f"{now.seconds:.1f} s in all" if now.is_done else f"{now.left:.1f} s left"
    return (
        f"{now.steps:,} of {now.all_steps:,} steps, {now.sequences:,} of {now.all_sequences:,} sequences, "
        f"{now.rate:,.0f} steps/s, {times}"
    )


# ---- commands ----------------------------------------------------------------------------------------------


@contextmanager
def work_bar(
    title: str, total: float | None = None, shown: bool = True
) -> Generator[Callable[[float], None]]:
    """Yields a function to call with the amount of work just done; a bar on stderr shows the sum.

    title: the text in front of the bar. total: the whole amount of work; None if it is not known. shown:
    whether to show a bar; there is none if stderr is not a terminal.

    >>> with work_bar("frames", 300) as advance:
    ...     for _ in range(3):
    ...         advance(100)
    """
    with shown_late(shown) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def shown_late(shown: bool, *columns: ProgressColumn) -> Generator[Bars]:
    """Yields progress bars on stderr which appear after `PATIENCE` seconds, if work still goes on, and vanish
    at the end.

    shown: whether to show them at all; they are never shown if stderr is not a terminal. columns: the columns
    of a bar.
    """
    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal)
    bar = Bars(*columns, console=console, transient=True, disable=hidden, refresh_per_second=4)
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
