"""Shows the progress of a run over files: the part that is done, sequences per second, and the time left."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from stepnet.arrow import Progress as Done
from stepnet.explain.bars import shown_late


class RateColumn(ProgressColumn):
    """Column of a progress bar with the number of sequences done, and sequences per second."""

    def render(self, task: Task) -> Text:
        """Formats a column of a progress bar: the sequences done, and how many are done a second."""
        seconds = task.elapsed
        rate = f"{task.fields['sequences'] / seconds:,.0f}" if seconds else "0"
        return Text(f"{task.fields['sequences']:,} sequences, {rate}/s")


@contextmanager
def bar(shown: bool = True) -> Generator[Callable[[Done], None]]:
    """Yields a function to call with the progress of a run over files, which a bar on stderr shows.

    shown: whether to show a bar; there is none if stderr is not a terminal.
    """
    columns = BarColumn(), TextColumn("{task.percentage:>3.0f}%"), RateColumn(), TimeRemainingColumn()
    with shown_late(shown, *columns) as progress:
        task = progress.add_task("", total=None, sequences=0)

        def show(done: Done) -> None:
            """Updates the progress bar by a report; its total is known from the first report on."""
            if progress.tasks[0].total is None:
                progress.reset(task, total=done.total, completed=int(done.done), sequences=done.sequences)
            progress.update(task, completed=done.done, sequences=done.sequences)

        yield show
