"""`run`: a model over files, folders and globs of Parquet and Arrow files."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.aside import Aside
from stepnet.arrow.folders.listing import Listing, listing
from stepnet.arrow.folders.marks import Made
from stepnet.arrow.folders.pipeline import Counts, Writing, run_jobs
from stepnet.arrow.folders.plan import Plan, check_targets, planned, planned_file
from stepnet.arrow.folders.request import Place, Work, parquet_path
from stepnet.arrow.folders.summary import Progress, Summary
from stepnet.arrow.folders.targets import folder_held, remove_partial
from stepnet.arrow.predictor import Predictor
from stepnet.errors import InputError, printable
from stepnet.layout.options import option
from stepnet.ragged.arrow import list_axes
from stepnet.rnn.program import Asked
from stepnet.values.arguments import shown


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
    """Runs a model over Parquet and Arrow files larger than memory into files of results; gives a `Summary`.

    Each result has the rows of its input in their order: the columns that are passed on, and that of the
    model's outputs. It appears under its name when it is whole. Reading, running and writing go on at the
    same time.

    Args:
        inputs: A path, or several: of a file, a folder, or a glob such as "calls/**/*.parquet".
        model: As for `predict`: a model, or the path of a model file.
        output: A folder, which gets the tree of the inputs; for a single input file also a file.
        column: The list column; not needed if it is the only one.
        result: "outputs" for the outputs of all steps, "last" for the last one of each sequence. The column
            has this name.
        keep: The names of the columns that are passed on; by default all but the list column.
        engine: An engine, or several in order of preference.
        bad: A Parquet file for rows that cannot be run, with the columns file, row and reason beside their
            own. Without it the first such row is an error.
        refuse_nan: Whether a row with NaN or infinite numbers is such a row.
        resume: Whether to go on with the results that are in `output`.
        force: Whether to replace an output file; not for a folder.
        file_format: "parquet" or "arrow"; by default that of an output file's ending, Parquet for a folder.
        compression: "snappy", which is the default, "none" or "zstd" for Parquet; "none" or "zstd" for Arrow.
        recurrent_only: Whether to run only the recurrent layers of a model file. The metadata of each result
            lists what was left out.
        progress: Called after each step of the work.

    Raises:
        InputError: For columns that do not fit, differ between files or have the result's name, and, naming
            file and row, for a row that cannot be run.
        FileError: For files that cannot be read or written, names that clash, an output that is there
            already, and for one that was made by another model, with other options or of other inputs.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq, stepnet as sn
    >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=sn.Spec((), "float32"), inputs=())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pa.table({"x": pa.array([[1, 2], [3]], pa.list_(pa.float32()))})
    ...     pq.write_table(table, f"{folder}/a.parquet")
    ...     done = run(f"{folder}/a.parquet", total, f"{folder}/totals", result="last")
    ...     pq.read_table(f"{folder}/totals/a.parquet").to_pylist(), done.steps
    ([{'last': 3.0}, {'last': 3.0}], 3)
    """
    begun = time.perf_counter()
    if not callable(progress):
        raise InputError(f"progress is a function of a `Progress`, not {shown(progress)}")
    found = listing(inputs)
    target = Place.of(output, found, resume, force, file_format, compression)
    work = Work.of(found, target, model, column, result, keep, engine, refuse_nan, recurrent_only)
    before, made, counts = executed(work, target, found, None if bad is None else parquet_path(bad), progress)
    seconds = time.perf_counter() - begun
    return Summary(
        files=len(found.files),
        results=len(work.jobs),
        before=before,
        sequences=counts.sequences,
        steps=counts.steps,
        features=prod(list_axes(work.chosen.schema.field(result).type)[1]),
        bad=sum(each.bad for each in made.values()),
        passed_over=found.passed_over,
        seconds=seconds,
        sequences_per_second=counts.sequences / seconds,
        output=str(output),
        left_out=work.predictor.left_out,
    )


def executed(
    work: Work, target: Place, found: Listing, bad: Path | None, progress: Callable[[Progress], None]
) -> tuple[int, dict[Path, Made], Counts]:
    """Makes all results that do not exist yet.

    Gives the number of those that existed before, all results, and what was run. bad: the file of the rows
    that are set aside.
    """
    with ExitStack() as held:
        if target.alone:
            plan = planned_file(work.jobs[0], target.resume, target.force)
        else:
            check_targets(work.jobs, target.path, found.folders)
            if os.path.isdir(target.path) or not os.path.lexists(target.path):
                held.enter_context(folder_held(target.path))
            plan = planned(work.jobs, target.path, target.resume)
        aside = None
        if bad is not None:
            aside = Aside.of(bad, target.path, found.folders, work.chosen, work.mark, target.resume)
            held.enter_context(folder_held(aside.parts))
        check_aside(plan, aside)
        how = Writing(target.format, target.compression, work.predictor.output, aside)
        counts = run_plan(plan, work.predictor, how, progress)
        made = plan.done | counts.made
        if aside is not None:
            aside.finish((job, made[job.target]) for job in plan.jobs)
    return len(plan.done), made, counts


def run_plan(plan: Plan, predictor: Predictor, how: Writing, progress: Callable[[Progress], None]) -> Counts:
    """Runs the jobs of a plan whose results do not exist, after removing what a process left unfinished."""
    for path in plan.partial:
        remove_partial(path)
    if how.aside is not None:
        how.aside.clean()
    sizes = {job.target: job.size for job in plan.jobs}
    at = Progress(sum(sizes[path] for path in plan.done), sum(sizes.values()), 0)

    def advance(size: float, sequences: int) -> None:
        nonlocal at
        at = replace(at, done=at.done + size, sequences=at.sequences + sequences)
        progress(at)

    progress(at)
    return run_jobs([job for job in plan.jobs if job.target not in plan.done], predictor, how, advance)


def check_aside(plan: Plan, aside: Aside | None) -> None:
    """Raises an error for a result that exists while the rows that were set aside for it are not at hand."""
    lost = next((path for path, made in plan.done.items() if made.bad), None)
    if aside is not None:
        aside.check(plan)
    elif lost is not None:
        raise InputError(
            f"{printable(str(lost))}: {plan.done[lost].bad} rows were set aside for it; name their file, "
            f"{option('bad')}"
        )
