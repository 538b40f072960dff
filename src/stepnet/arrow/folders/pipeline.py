"""Reading, running and writing at the same time.

    reader: files -> chunks   --4-->   engine: chunks -> results   --4-->   writer: results -> files

The engine runs in the thread of the caller, so that Ctrl-C stops it, and pyarrow works without Python's lock.
An error of the reader is raised in the caller's thread, after all chunks before it were run.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any

from stepnet.arrow.folders.aside import Aside
from stepnet.arrow.folders.marks import Made
from stepnet.arrow.folders.plan import Job
from stepnet.arrow.folders.sifting import Sifted, sifted
from stepnet.arrow.folders.targets import Target
from stepnet.arrow.predictor import Predictor
from stepnet.errors import InputError
from stepnet.layout.options import option

DEPTH = 4
"""How many chunks wait at most between two threads."""


class StoppedError(Exception):
    """A thread was told to stop."""


class Channel:
    """A queue of at most `DEPTH` items from one thread to one other.

    `stop` wakes both. Nothing more can be put in then, and the items that were put in before can still be
    taken out. Both queues inside are of C, so that Ctrl-C between two instructions leaves no lock held.
    """

    def __init__(self) -> None:
        self.items, self.room = SimpleQueue[Any](), SimpleQueue[None]()
        self.stopped = False
        for _ in range(DEPTH):
            self.room.put(None)

    def put(self, item: Any) -> None:
        """Waits for room; raises `StoppedError`."""
        self.check()
        self.room.get()
        self.check()
        self.items.put(item)

    def check(self) -> None:
        """Raises `StoppedError` if the channel was stopped."""
        if self.stopped:
            raise StoppedError

    def stop(self) -> None:
        """Wakes the thread that waits for room, and after the last item the one that waits for an item."""
        self.stopped = True
        self.room.put(None)
        self.items.put(StoppedError())

    def __iter__(self) -> Iterator[Any]:
        """The items until `None`. An item that is an error is raised, as is `StoppedError`."""
        while True:
            item = self.items.get()
            self.room.put(None)
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
            del item  # or it would be held beside the next


@contextmanager
def threads(
    channels: tuple[Channel, ...], *tasks: tuple[Callable[[], None], Channel | None]
) -> Generator[list[BaseException]]:
    """Runs functions in threads of their own beside the block, and waits for their ends after it.

    Yields a list of what they raised. The error of a function is put in the channel beside it, where it is
    raised after the items before it. The error of a function without a channel stops all channels, and is
    raised after the block. An error in the block stops all channels.
    """
    failed = list[BaseException]()

    def stop() -> None:
        for channel in channels:
            channel.stop()

    def guarded(task: Callable[[], None], channel: Channel | None) -> None:
        try:
            task()
        except StoppedError:
            pass
        except BaseException as error:
            try:
                if channel is not None:
                    return channel.put(error)
            except StoppedError:
                return None
            failed.append(error)
            stop()

    running = [Thread(target=guarded, args=task, name=f"stepnet-{task[0].__name__}") for task in tasks]
    try:
        for thread in running:
            thread.start()
        yield failed
        for thread in running:
            thread.join()
    except BaseException:
        stop()
        for thread in running:
            if thread.ident is not None:  # Ctrl-C may come before all are started
                thread.join()
        raise
    if failed:
        raise failed[0]


@dataclass(frozen=True)
class End:
    """The rows of a result are complete. checksum: that of their bytes in the input."""

    job: Job
    checksum: int


@dataclass
class Counts:
    """What was run. bad: the number of rows that were set aside. made: the results that were written."""

    sequences: int = 0
    steps: int = 0
    bad: int = 0
    made: dict[Any, Made] = field(default_factory=dict[Any, Made])


@dataclass(frozen=True)
class Writing:
    """How results are written. plain: the column of the model's outputs. aside: where rows without results
    go; None to stop at the first.
    """

    format: str
    compression: str
    plain: str
    aside: Aside | None


def run_jobs(
    jobs: list[Job], predictor: Predictor, how: Writing, advance: Callable[[float, int], None]
) -> Counts:
    """Runs jobs, and writes their results.

    advance: called after each step with the bytes of inputs and the sequences of this step.
    """
    counts, done = Counts(), 0.0
    chunks, results = Channel(), Channel()

    def read() -> None:
        for job in jobs:
            for batch, share in job.table.chunks(job.part, predictor.column, job.chosen):
                chunks.put((job, batch, share))
                del batch
            chunks.put(End(job, job.table.checksum(job.part, chunks.check)))
        chunks.put(None)

    def write() -> None:
        written = Result(how)
        try:
            for item in results:
                if isinstance(item, End):
                    counts.made[item.job.target] = written.finish(item)
                else:
                    written.add(*item)
                del item
        finally:
            written.drop()

    with threads((chunks, results), (read, chunks), (write, None)) as failed:
        try:
            for item in chunks:
                if isinstance(item, End):
                    advance(item.job.size - done, 0)
                    done = 0.0
                    results.put(item)
                    continue
                job, batch, share = item
                del item
                rows = max(1, batch.records.num_rows)
                for part in sifted(batch, predictor, job.chosen):
                    if part.bad and how.aside is None:
                        raise InputError(f"{part.bad[0].message}; {option('bad')} sets such rows aside")
                    results.put((job, part))
                    good = part.rows - len(part.bad)
                    counts.sequences, counts.steps = counts.sequences + good, counts.steps + part.steps
                    counts.bad += len(part.bad)
                    size = min(share * job.table.size * part.rows / rows, job.size - done)
                    done += size
                    advance(size, good)
                    del part
                del batch
            results.put(None)
        except StoppedError:
            raise failed[0] from None
    return counts


class Result:
    """The result that is being written, and the rows that are set aside for it."""

    def __init__(self, how: Writing) -> None:
        self.how = how
        self.rows = self.bad = 0
        self.target: Target | None = None
        self.aside: Target | None = None

    def add(self, job: Job, part: Sifted) -> None:
        """Adds rows, and begins the file with the first."""
        self._begin(job)
        self.rows, self.bad = self.rows + part.rows, self.bad + len(part.bad)
        if part.results is not None and self.target is not None:
            self.target.write(part.results)
        if part.bad and self.how.aside is not None:
            self.aside = self.aside or self.how.aside.target(job)
            self.aside.write(self.how.aside.records(job, part.bad))

    def finish(self, end: End) -> Made:
        """Ends the files of a job: the rows that are set aside are on disk before the result appears."""
        job = end.job
        target = self._begin(job)
        made = Made(job.mark, job.part.first, self.rows, self.bad, job.table.time, end.checksum)
        if self.aside is not None:
            self.aside.finish(made.end)
        target.finish(made.end)
        self.target = self.aside = None
        self.rows = self.bad = 0
        return made

    def drop(self) -> None:
        """Removes the files that are not complete."""
        for each in (self.target, self.aside):
            if each is not None:
                each.drop()

    def _begin(self, job: Job) -> Target:
        how = self.how
        if self.target is None:
            schema = job.chosen.schema
            self.target = Target(job.target, schema, job.mark, how.format, how.compression, how.plain)
        return self.target
