"""A bar on the standard error output that shows how far calls are."""

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Shown

from stepnet.engines.watching import Progress, Watch

COLUMNS = (
    BarColumn(),
    TextColumn("{task.percentage:>3.0f}%"),
    TextColumn("{task.fields[text]}"),
)


@contextmanager
def bar(console: Console | None = None) -> Generator[Watch]:
    """A function that shows progress as a bar, with a line for each call; it shows nothing if no call takes
    long.
    """
    shown = Shown(*COLUMNS, console=console or Console(stderr=True), auto_refresh=False)
    begun: list[TaskID] = []  # the call that is shown, where one is

    def show(now: Progress) -> None:
        shown.start()
        if not begun:
            begun.append(shown.add_task("", total=now.all_steps, text=""))
        shown.update(begun[-1], completed=now.steps, text=text(now), refresh=True)
        if now.is_done:
            begun.clear()

    try:
        yield show
    finally:
        if shown.live.is_started:
            shown.stop()


def text(now: Progress) -> str:
    """Progress in words.

    >>> text(Progress(300, 1200, 2, 8, 1.5))
    '300 of 1,200 steps, 2 of 8 sequences, 200 steps/s, 4.5 s left'
    >>> text(Progress(1200, 1200, 8, 8, 6.0))
    '1,200 of 1,200 steps, 8 of 8 sequences, 200 steps/s, 6.0 s in all'
    """
    times = f"{now.seconds:.1f} s in all" if now.is_done else f"{now.left:.1f} s left"
    return (
        f"{now.steps:,} of {now.all_steps:,} steps, {now.sequences:,} of {now.all_sequences:,} sequences, "
        f"{now.rate:,.0f} steps/s, {times}"
    )
