"""`run`: a model over files, folders and globs of Parquet and Arrow files; its progress and its report."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.aside import RejectedRows
from stepnet.arrow.folders.listing import Listing, listing
from stepnet.arrow.folders.marks import ResultRecord
from stepnet.arrow.folders.pipeline import RunCounts, WriteOptions, run_jobs
from stepnet.arrow.folders.plan import ResultsPlan, check_targets, plan_file, plan_folder, whole_part
from stepnet.arrow.folders.request import Destination, RunRequest, list_column, parquet_path
from stepnet.arrow.folders.result_files import lock_folder, remove_partial
from stepnet.arrow.folders.tables import TableFile
from stepnet.arrow.predictor import Predictor
from stepnet.compiler.values.arguments import advised, short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, named, printable
from stepnet.layout.options import option
from stepnet.model.file import FileModel
from stepnet.model.program import Asked
from stepnet.ragged import Ragged
from stepnet.ragged.arrow import list_axes, pyarrow_module

SHOWN = 3
"""The number of names of passed over files in the text of a report."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    done, total: bytes of inputs, including those of results that existed before. sequences: the number of
    sequences that were run.
    """

    done: float
    total: float
    sequences: int


@dataclass(frozen=True)
class Summary:
    """The report of a run.

    files, results: the numbers of inputs and results, including those of earlier runs. before: the number of
    results that existed already. sequences, steps: the counts of this run, without rows that were set aside.
    features: the numbers of the outputs of a step, or of a sequence. bad: the number of rows that were set
    aside, including earlier runs. passed_over: the number of files in folders that are no tables. seconds:
    the time of this run. left_out: the layers and arrays of the model file that were not run. passed_names:
    the names of passed over files that are not hidden.
    """

    files: int
    results: int
    before: int
    sequences: int
    steps: int
    features: int
    bad: int
    passed_over: int
    seconds: float
    sequences_per_second: float
    output: str
    left_out: tuple[str, ...] = ()
    passed_names: tuple[str, ...] = ()

    def text(self, bad: str | Path | None = None) -> str:
        """Returns the report of the run as text: a line with the counts, and lines for what was left out, was
        there already, set aside or passed over. bad: the path of the file of rows that were set aside, if
        any.
        """
        counts = f"{self.sequences} sequences of {self.steps} steps in all: {self.features} outputs each"
        output = printable(self.output)
        where = output if self.results == 1 else f"{self.results - self.before} files in {output}"
        lines = [
            f"{counts} in {where}, after {self.seconds:.2f} s ({self.sequences_per_second:.0f} a second)"
        ]
        if self.left_out:
            lines.append(f"recurrent layers alone; left out: {', '.join(self.left_out)}")
        if self.before:
            lines.append(f"{self.before} of {self.results} results were there already")
        if self.bad:
            lines.append(f"{self.bad} rows were set aside in {printable(str(bad))}")
        if self.passed_over:
            shown = [printable(name) for name in self.passed_names[:SHOWN]]
            rest = ["..."] if self.passed_over > len(shown) else []
            names = f" ({', '.join(shown + rest)})" if shown else ""
            lines.append(f"{self.passed_over} other files were passed over{names}")
        return "\n".join(lines)


@advised(
    output="it is the folder or file of the results, and the last output of each sequence is result='last'",
    format="write file_format= in place of it",
)
def run(
    inputs: Any,
    model: Any,
    output: str | Path,
    *,
    column: str | None = None,
    result: str = "outputs",
    keep: Iterable[str] | None = None,
    engine: Asked = "auto",
    bad: str | Path | None = None,
    refuse_nan: bool = False,
    resume: bool = False,
    force: bool = False,
    file_format: str | None = None,
    compression: str | None = None,
    recurrent_only: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Runs a model over Parquet and Arrow files, also larger than memory, into files of results.

    A result has the rows of its input in their order: the columns that are passed on, and the column of the
    model's outputs. It appears under its name when it is complete. Reading, running and writing overlap.

    Args:
        inputs: A path, or several: of a file, a folder, or a glob such as "calls/**/*.parquet".
        model: A model, or the path of a model file, as for `predict`.
        output: A folder, which gets the tree of the inputs; for a single input file also a file.
        column: The name of the list column; not needed if there is only one.
        result: "outputs" for the outputs of all steps, "last" for the last one of each sequence. The result
            column has this name.
        keep: The names of the columns to pass on; by default all but the list column.
        engine: An engine, or several in order of preference.
        bad: A Parquet file for the rows that cannot be run, with the columns file, row and reason beside
            their own. Without it the first such row is an error.
        refuse_nan: Whether a row with NaN or infinite numbers cannot be run.
        resume: Whether to use the results that are in `output` already.
        force: Whether to replace an output file; not for a folder.
        file_format: "parquet" or "arrow"; by default that of an output file's ending, Parquet for a folder.
        compression: "snappy" (the default), "none" or "zstd" for Parquet; "none" (the default) or "zstd" for
            Arrow.
        recurrent_only: Whether to run only the recurrent layers of a model file. The metadata of each result
            lists what was left out.
        progress: Called with a `Progress` as the run advances.

    Returns:
        A `Summary` of the run.

    Raises:
        InputError: For columns that do not fit, differ between files or have the result's name, and, naming
            file and row, for a row that cannot be run.
        FileError: For files that cannot be read or written, names that clash, an output that exists, and a
            result in it of another model, other options or other inputs.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq, stepnet as sn
    >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=sn.Spec((), "float32"), inputs=())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pa.table({"x": pa.array([[1, 2], [3]], pa.list_(pa.float32()))})
    ...     pq.write_table(table, f"{folder}/a.parquet")
    ...     done = run(f"{folder}/a.parquet", total, f"{folder}/totals", result="last")
    ...     pq.read_table(f"{folder}/totals/a.parquet").to_pylist(), done.steps
    ([{'last': 3.0}, {'last': 3.0}], 3)
    """
    start = time.perf_counter()
    if not callable(progress):
        raise InputError(f"progress is a function of a `Progress`, not {short_repr(progress)}")
    found = listing(inputs)
    target = Destination.of(output, found, resume, force, file_format, compression)
    work = RunRequest.of(found, target, model, column, result, keep, engine, refuse_nan, recurrent_only)
    before, records, counts = run_work(
        work, target, found, None if bad is None else parquet_path(bad), progress
    )
    seconds = time.perf_counter() - start
    return Summary(
        files=len(found.files),
        results=len(work.jobs),
        before=before,
        sequences=counts.sequences,
        steps=counts.steps,
        features=numbers_in(work.selection.schema.field(result).type),
        bad=sum(record.bad for record in records.values()),
        passed_over=found.passed_over,
        seconds=seconds,
        sequences_per_second=counts.sequences / seconds,
        output=str(output),
        left_out=work.predictor.left_out,
        passed_names=tuple(found.passed_names),
    )


def numbers_in(result_type: Any) -> int:
    """Returns the count of numbers of an Arrow type, a struct if the model has several outputs."""
    if pyarrow_module().types.is_struct(result_type):
        return sum(numbers_in(field.type) for field in result_type)
    return prod(list_axes(result_type)[1])


def run_work(
    work: RunRequest,
    target: Destination,
    found: Listing,
    bad: Path | None,
    progress: Callable[[Progress], None],
) -> tuple[int, dict[Path, ResultRecord], RunCounts]:
    """Makes all results that do not exist yet, under a lock of the output folder. Returns (number of results
    that existed before, records (the stored metadata) of all results by path, counts of this run).

    work: the model and the jobs. target: the output. found: the inputs. bad: the file for rows that cannot be
    run, or None. progress: called with a `Progress` as the run advances.
    """
    with ExitStack() as held:
        if target.alone:
            plan = plan_file(work.jobs[0], target.resume, target.force)
        else:
            check_targets(work.jobs, target.path, found.folders)
            if os.path.isdir(target.path) or not os.path.lexists(target.path):
                held.enter_context(lock_folder(target.path))
            plan = plan_folder(work.jobs, target.path, target.resume)
        aside = None
        if bad is not None:
            aside = RejectedRows.of(bad, target.path, found.folders, work.selection, work.mark, target.resume)
            held.enter_context(lock_folder(aside.parts))
        check_aside(plan, aside)
        options = WriteOptions(target.format, target.compression, work.predictor.result, aside)
        counts = run_plan(plan, work.predictor, options, progress)
        records = plan.done | counts.made
        if aside is not None:
            aside.finish((job, records[job.target]) for job in plan.jobs)
    return len(plan.done), records, counts


def run_plan(
    plan: ResultsPlan, predictor: Predictor, options: WriteOptions, progress: Callable[[Progress], None]
) -> RunCounts:
    """Removes unfinished files, then makes the results of the run that do not exist yet; returns the counts
    of rows, sequences and steps. plan: the results to make, and the ones that exist. predictor: the model.
    options: the settings of the writer. progress: called as the run advances.
    """
    for path in plan.partial:
        remove_partial(path)
    if options.aside is not None:
        options.aside.clean()
    sizes = {job.target: job.size for job in plan.jobs}
    at = Progress(sum(sizes[path] for path in plan.done), sum(sizes.values()), 0)

    def advance(size: float, sequences: int) -> None:
        """Adds finished bytes of input (`size`) and sequences to the progress, and reports it."""
        nonlocal at
        at = replace(at, done=at.done + size, sequences=at.sequences + sequences)
        progress(at)

    progress(at)
    return run_jobs([job for job in plan.jobs if job.target not in plan.done], predictor, options, advance)


def check_aside(plan: ResultsPlan, aside: RejectedRows | None) -> None:
    """Raises an error if rows that an earlier run rejected for an existing result cannot be found:
    `FileError` if they are not in the file of rejected rows, `InputError` if the user names no such file.

    plan: the results to make, and those that exist. aside: the file of rejected rows; None without one.
    """
    lost = next((path for path, record in plan.done.items() if record.bad), None)
    if aside is not None:
        aside.check(plan)
    elif lost is not None:
        raise InputError(
            f"{printable(str(lost))}: {plan.done[lost].bad} rows were set aside for it; name the file "
            f"that holds them with {option('bad')}"
        )


def sequences_of(inputs: Any, model: FileModel, column: str | None = None) -> Iterator[Ragged]:
    """Yields the sequences of files, folders and globs as a model takes them, without null rows.

    column: the list column; not needed if there is only one. Raises the errors of `run` for such inputs.
    """
    for file in listing(inputs).files:
        table = TableFile.of(file.path)
        with named(str(file.path)):
            name = list_column(table.schema, column)
            predictor = Predictor(model, name, "outputs", keep=())
            selection = predictor.select(table.schema)
        for batch, _ in table.chunks(whole_part(table), name, selection):
            for piece in predictor.pieces(batch, selection):
                null = piece.null
                yield piece.sequences if null is None else piece.sequences.take((~null).nonzero()[0])
