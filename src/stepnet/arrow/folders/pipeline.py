"""Reads, runs and writes at the same time, in three threads.

    reader: files -> chunks   --4-->   engine: chunks -> results   --4-->   writer: results -> files

The engine runs in the thread of the caller, so that Ctrl-C stops it; pyarrow works without Python's lock. An
error of the reader is raised in the caller's thread, after all chunks before it were run.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import field
from queue import SimpleQueue
from threading import Thread
from typing import Any

from stepnet.arrow.folders.aside import RejectedRows
from stepnet.arrow.folders.marks import ResultRecord
from stepnet.arrow.folders.plan import Job
from stepnet.arrow.folders.result_files import ResultFile
from stepnet.arrow.folders.sifting import BatchOutcome, run_batch
from stepnet.arrow.predictor import Predictor
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.layout.options import option

DEPTH = 4
"""The number of chunks that wait at most between two threads."""


class StoppedError(Exception):
    """Raised in a thread that was told to stop."""


class Channel:
    """A queue of at most `DEPTH` items from one thread to one other.

    `stop` wakes both threads. After it nothing can be put in, but the items in the queue can still be taken
    out. Both inner queues are implemented in C, so that Ctrl-C between two instructions leaves no lock held.
    """

    def __init__(self) -> None:
        """Opens an empty queue between two threads, with room for `DEPTH` items."""
        self.items, self.room = SimpleQueue[Any](), SimpleQueue[None]()
        self.stopped = False
        for _ in range(DEPTH):
            self.room.put(None)

    def put(self, item: Any) -> None:
        """Waits for room in this queue between threads, then adds an item; `StoppedError` if stopped."""
        self.check()
        self.room.get()
        self.check()
        self.items.put(item)

    def check(self) -> None:
        """Raises `StoppedError`, to end the calling thread, if this queue was stopped."""
        if self.stopped:
            raise StoppedError

    def stop(self) -> None:
        """Stops this queue: a thread that puts an item, or takes one after the last, gets `StoppedError`."""
        self.stopped = True
        self.room.put(None)
        self.items.put(StoppedError())

    def __iter__(self) -> Iterator[Any]:
        """Waits for items and yields them until `None`, which marks the end. An exception in the queue is
        raised here: an error of the other thread, or `StoppedError`.
        """
        while True:
            item = self.items.get()
            self.room.put(None)
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
            del item  # frees its memory before the next one is made


@contextmanager
def threads(
    channels: tuple[Channel, ...], *tasks: tuple[Callable[[], None], Channel | None]
) -> Generator[list[BaseException]]:
    """Runs functions in threads beside its `with` block, and waits for them at its end. An exception in the
    block stops all channels. Yields the list of exceptions of functions without a channel.

    channels: all channels between the threads.
    tasks: pairs of a function and a channel. An exception of the function is put into the channel, whose
        reader raises it after the items before it. With None in place of a channel it stops all channels, and
        is raised after the block.
    """
    failed = list[BaseException]()

    def stop() -> None:
        """Stops all channels (queues between the threads), which ends the threads."""
        for channel in channels:
            channel.stop()

    def run_task(task: Callable[[], None], channel: Channel | None) -> None:
        """Runs a task (a function) in its thread. Puts its exception into its channel, or, without a channel,
        records it in `failed` and stops all channels. `StoppedError` only ends the thread.
        """
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

    running = [Thread(target=run_task, args=task, name=f"stepnet-{task[0].__name__}") for task in tasks]
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
    """Message that the rows of a result are complete. checksum: the checksum of their bytes in the input."""

    job: Job
    checksum: int


@dataclass
class RunCounts:
    """Counts of a run. sequences, steps: those that were run. bad: the number of rows that could not be run.
    made: the records of the results, by path.
    """

    sequences: int = 0
    steps: int = 0
    bad: int = 0
    made: dict[Any, ResultRecord] = field(default_factory=dict[Any, ResultRecord])


@dataclass(frozen=True)
class WriteOptions:
    """Settings of the writer of results.

    format: parquet or arrow. plain: the column of the model's outputs. aside: the file for rows that cannot
    be run; None to stop at the first one.
    """

    format: str
    compression: str
    plain: str
    aside: RejectedRows | None


def run_jobs(
    jobs: list[Job], predictor: Predictor, options: WriteOptions, advance: Callable[[float, int], None]
) -> RunCounts:
    """Runs jobs (each makes one result file) and writes their results; returns counts and the records (the
    stored metadata) of the results.

    predictor: runs the model. options: the settings of the writer. advance: called after each call of the
    model with the bytes of input and the number of sequences that it finished.
    """
    counts, done = RunCounts(), 0.0
    chunks, results = Channel(), Channel()

    def read() -> None:
        """Reads the rows of all jobs. Puts (job, batch of rows, its share of the file) into the channel
        `chunks`, an `End` (job and its input's checksum) after each job, and None at the end.
        """
        for job in jobs:
            for batch, share in job.table.chunks(job.part, predictor.column, job.selection):
                chunks.put((job, batch, share))
                del batch
            chunks.put(End(job, job.table.checksum(job.part, chunks.check)))
        chunks.put(None)

    def write() -> None:
        """Runs in the writing thread: writes the results of a model that arrive in the channel (queue)
        `results` to files; removes an unfinished file at the end.
        """
        written = ResultWriter(options)
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
                for part in run_batch(batch, predictor, job.selection):
                    if part.bad and options.aside is None:
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


class ResultWriter:
    """Writer of result files, one job after the other, each with a file of the rows that could not be run."""

    def __init__(self, options: WriteOptions) -> None:
        """Sets up the writer without a file: the first rows of a result create it. options: its settings.

        Attributes: rows and bad, the counts of the result so far; target and aside, its open file and the
        open file of its rejected rows, or None.
        """
        self.options = options
        self.rows = self.bad = 0
        self.target: ResultFile | None = None
        self.aside: ResultFile | None = None

    def add(self, job: Job, part: BatchOutcome) -> None:
        """Writes results of a job's rows, and the rows that could not be run; creates each file when needed.

        job: the result file to make. part: the outcome of one call of the model.
        """
        self._begin(job)
        self.rows, self.bad = self.rows + part.rows, self.bad + len(part.bad)
        if part.results is not None and self.target is not None:
            self.target.write(part.results)
        if part.bad and self.options.aside is not None:
            self.aside = self.aside or self.options.aside.target(job)
            self.aside.write(self.options.aside.records(job, part.bad))

    def finish(self, end: End) -> ResultRecord:
        """Completes the files of the job of `end`, whose rows have all been written; returns the result's
        record (the stored metadata). A result without rows gets an empty file. Rejected rows are on disk
        before the result is, so that no crash loses them.
        """
        job = end.job
        target = self._begin(job)
        record = ResultRecord(job.mark, job.part.first, self.rows, self.bad, job.table.time, end.checksum)
        if self.aside is not None:
            self.aside.finish(record.end)
        target.finish(record.end)
        self.target = self.aside = None
        self.rows = self.bad = 0
        return record

    def drop(self) -> None:
        """Removes the unfinished files of a result (rows and rejected rows) after an error."""
        for result_file in (self.target, self.aside):
            if result_file is not None:
                result_file.drop()

    def _begin(self, job: Job) -> ResultFile:
        """Returns the result file of a job that is being written; creates it at the first call for a job."""
        options = self.options
        if self.target is None:
            schema = job.selection.schema
            self.target = ResultFile(
                job.target, schema, job.mark, options.format, options.compression, options.plain
            )
        return self.target
