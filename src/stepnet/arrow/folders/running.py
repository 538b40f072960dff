"""`run`: a model over files, folders and globs of Parquet and Arrow files."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.aside import Aside
from stepnet.arrow.folders.listing import Listing, listing
from stepnet.arrow.folders.marks import model_digest
from stepnet.arrow.folders.pipeline import Counts, Writing, run_jobs
from stepnet.arrow.folders.plan import ARROW_ENDINGS, Plan, check_targets, jobs_of, planned, planned_file
from stepnet.arrow.folders.tables import FILES, TableFile
from stepnet.arrow.folders.targets import COMPRESSIONS, folder_held, remove_partial
from stepnet.arrow.predictor import JOINED, Predictor
from stepnet.errors import InputError, named
from stepnet.layout.options import option
from stepnet.ragged.arrow import list_axes, pyarrow_module
from stepnet.rnn.program import Asked
from stepnet.values.arguments import choice, file_path, flag
from stepnet.values.version import __version__

FORMATS = {"parquet": ".parquet", "arrow": ".arrow"}


@dataclass(frozen=True)
class Summary:
    """What a run did.

    files, results: how many were read and written, in this run and before; before: how many results were
    there already. sequences, steps: those of this run, without bad rows. features: the numbers of an output.
    bad: how many rows were set aside, in this run and before. passed_over: files in folders that are no
    tables.
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

    def text(self, bad: str | Path | None = None) -> str:
        """The same in words. bad: the file of the rows that were set aside."""
        counts = f"{self.sequences} sequences of {self.steps} steps in all: {self.features} outputs each"
        where = self.output if self.results == 1 else f"{self.results} files in {self.output}"
        lines = [
            f"{counts} in {where}, after {self.seconds:.2f} s ({self.sequences_per_second:.0f} a second)"
        ]
        if self.before:
            lines.append(f"{self.before} of {self.results} results were there already")
        if self.bad:
            lines.append(f"{self.bad} rows were set aside in {bad}")
        if self.passed_over:
            lines.append(f"{self.passed_over} other files were passed over")
        return "\n".join(lines)


@dataclass(frozen=True)
class Progress:
    """How far a run is. done, total: bytes of inputs, those of results that were there already among both.
    sequences: how many were run. results, of: how many results there are, and will be.
    """

    done: float
    total: float
    sequences: int


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
    resume, force = flag(resume, "resume"), flag(force, "force")
    found, target = listing(inputs), file_path(output, "output")
    alone = is_file(found, output, target)
    if force and (resume or not alone):
        reason = f"{option('resume')} goes on with what is there" if resume else f"{target} is a folder"
        raise InputError(f"{option('force')} replaces an output file, and {reason}")
    kept = format_of(file_format, target if alone else None)
    packed = choice(
        COMPRESSIONS[kept][0] if compression is None else compression,
        f"compression of {kept} is {' or '.join(COMPRESSIONS[kept])}",
        COMPRESSIONS[kept],
    )
    first = TableFile.of(found.files[0].path)
    with named(str(first.path)):
        name = list_column(first.schema, column)
        predictor = Predictor(model, name, result, keep, memory=JOINED, engine=engine, refuse_nan=refuse_nan)
        chosen = predictor.choose(first.schema)
    options = {
        "column": name,
        "result": result,
        "keep": predictor.keep and list(predictor.keep),
        "engine": str(engine),
        "refuse_nan": predictor.refuse_nan,
        "compression": packed,
    }
    digest = model_digest(predictor.runnable, chosen.column.spec)
    mark = {"version": __version__, "model": digest, "options": options}
    jobs = list(jobs_of(found, target, alone, FORMATS[kept], predictor.choose, mark))
    with ExitStack() as held:
        if alone:
            plan = planned_file(jobs[0], resume, force)
        else:
            check_targets(jobs, target, found.folders)
            if target.is_dir() or not os.path.lexists(target):
                held.enter_context(folder_held(target))
            plan = planned(jobs, target, resume)
        aside = None
        if bad is not None:
            aside = Aside.of(parquet_path(bad), target, found.folders, chosen, mark, resume)
            held.enter_context(folder_held(aside.parts))
        check_aside(plan, aside)
        counts = executed(plan, predictor, Writing(kept, packed, result, aside), progress)
        made = plan.done | counts.made
        if aside is not None:
            aside.finish((job, made[job.target]) for job in plan.jobs)
    seconds = time.perf_counter() - begun
    return Summary(
        files=len(found.files),
        results=len(jobs),
        before=len(plan.done),
        sequences=counts.sequences,
        steps=counts.steps,
        features=prod(list_axes(chosen.schema.field(result).type)[1]),
        bad=sum(each.bad for each in made.values()),
        passed_over=found.passed_over,
        seconds=seconds,
        sequences_per_second=counts.sequences / seconds,
        output=str(output),
    )


def executed(plan: Plan, predictor: Predictor, how: Writing, progress: Callable[[Progress], None]) -> Counts:
    """What the jobs of a plan that are not done give."""
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


def is_file(found: Listing, output: str | Path, target: Path) -> bool:
    """Whether the output is a file: a single file was asked for, and the output is no folder."""
    single = len(found.files) == 1 and not found.folders
    return single and not target.is_dir() and bool(target.suffix) and not os.fspath(output).endswith(os.sep)


def format_of(asked: str | None, file: Path | None) -> str:
    """The format of results; raises `InputError` for one that an output file's ending does not say."""
    ending = "parquet" if file is None or file.suffix.lower() not in ARROW_ENDINGS else "arrow"
    kept = choice(
        ending if asked is None else asked, f"file_format is {' or '.join(FORMATS)}", tuple(FORMATS)
    )
    if file is not None and kept != ending:
        raise InputError(f"{file}: the format is {kept}, and this name is that of {ending}")
    return kept


def parquet_path(bad: Any) -> Path:
    """The path of the file of rows that are set aside; raises `InputError` for another kind of file."""
    path = file_path(bad, "bad")
    if path.suffix != ".parquet":
        raise InputError(f"bad is a file of Parquet, and its name ends so: {path}.parquet")
    return path


def check_aside(plan: Plan, aside: Aside | None) -> None:
    """Raises an error where rows were set aside for results that are there, and are not to be had."""
    lost = next((path for path, made in plan.done.items() if made.bad), None)
    if aside is not None:
        aside.check(plan)
    elif lost is not None:
        raise InputError(
            f"{lost}: {plan.done[lost].bad} rows were set aside for it; name their file, {option('bad')}"
        )


def list_column(schema: Any, asked: str | None) -> str:
    """The column that holds the sequences; raises `InputError` if it is missing or ambiguous."""
    types = pyarrow_module("pyarrow.types", FILES)
    names = [field.name for field in schema]
    lists = [field.name for field in schema if types.is_list(field.type) or types.is_large_list(field.type)]
    if asked is not None and names.count(asked) != 1:
        raise InputError(f"there is no column `{asked}`; there are {', '.join(names) or 'none'}")
    if asked is not None and asked not in lists:
        raise InputError(
            f"column `{asked}` holds {schema.field(asked).type}, and not lists, one per sequence"
        )
    if asked is None and len(lists) != 1:
        held = ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
        many = f"{len(lists)} list columns ({', '.join(lists)}); say {option('column')} for one"
        raise InputError(f"there are {many}" if lists else f"there is no list column; there are {held}")
    return asked or lists[0]
