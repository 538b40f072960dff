"""Assignment of parts of files to results, and the results that exist already.

    inputs --listing--> files --TableFile.of--> parts --jobs--> [day=1/a.parquet, day=1/b-00000.parquet, ...]

Names, schemas and the files in the output folder are checked here, before a row is read.
"""

import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from stepnet.arrow.folders.listing import ENDINGS, Listing, entries
from stepnet.arrow.folders.marks import ResultRecord, difference, read_record
from stepnet.arrow.folders.result_files import partial_of
from stepnet.arrow.folders.tables import ResultRows, TableFile
from stepnet.arrow.predictor import Selection
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, InputError, named, printable
from stepnet.layout.files.paths import free
from stepnet.layout.options import option

IGNORES_CASE = sys.platform in ("darwin", "win32")
"""True if names may stand for one file that differ in case alone, or in how accents are written."""
ARROW_ENDINGS = tuple(ending for ending in ENDINGS if ending != ".parquet")

LONGEST = 238
"""The largest number of bytes of a result's name: file systems allow 255, and the names of unfinished files,
.a.partial and .a.parquet.partial, are up to 17 longer.
"""


@dataclass(frozen=True)
class Job:
    """A result file to make.

    table: the input file. part: the rows of it that are run. selection: the model and the columns to use.
    target: the result's path. mark: the metadata on the model, options and input of the result.
    """

    table: TableFile
    part: ResultRows
    selection: Selection
    target: Path
    mark: dict[str, Any]

    @property
    def size(self) -> float:
        """The bytes of input of this job, which makes one result: its share of the input file."""
        return self.table.size * self.part.share


@dataclass(frozen=True)
class ResultsPlan:
    """All results of a run in their order, as jobs to make them.

    done: the records of the results that exist, by path. partial: the files that a process left unfinished.
    """

    jobs: tuple[Job, ...]
    done: dict[Path, ResultRecord]
    partial: tuple[Path, ...]


def jobs_of(
    found: Listing, output: Path, alone: bool, ending: str, select: Any, mark: dict[str, Any]
) -> Iterator[Job]:
    """Yields the jobs of a run, one for each result file to make. Raises `FileError` for damaged files, and
    `InputError` for a file whose columns do not fit the model, or differ from those of the first file.

    found: the input files. mark: the metadata that all results share. output: the path of a folder or, if
    `alone`, of the only result file, which then has all rows of the only input. ending: the ending of result
    files. select: a function of an Arrow schema that returns how files with it are run.
    """
    first: tuple[Path, Selection] | None = None
    for file in found.files:
        table = TableFile.of(file.path)
        with named(str(file.path)):
            selection = select(table.schema)
        first = first or (file.path, selection)
        check_alike(file.path, selection, *first)
        for part in [whole_part(table)] if alone else table.parts:
            name = file.name.with_name(result_name(file.name.name, part, ending))
            origin = {"name": file.name.as_posix(), "size": table.size, "digest": table.digest}
            yield Job(
                table,
                part,
                selection,
                output if alone else output / name,
                mark | {"input": origin, "part": part.number},
            )


def whole_part(table: TableFile) -> ResultRows:
    """Returns all rows of a file, of all its parts, as one part, for a run that makes a single result."""
    groups = tuple(group for part in table.parts for group in part.groups)
    return ResultRows(groups=groups, rows=sum(part.rows for part in table.parts), span=(0, table.size))


def result_name(name: str, part: ResultRows, ending: str) -> str:
    """Returns the file name of a result: the name of its input without its ending, the number of the part of
    the input if there are several, and the ending of results.

    >>> result_name("a b.2.arrow", ResultRows(), ".parquet")
    'a b.2.parquet'
    >>> result_name("a.parquet", ResultRows(3), ".parquet")
    'a-00003.parquet'
    """
    stem = next((name[: -len(known)] for known in ENDINGS if name.lower().endswith(known)), name)
    return f"{stem}{'' if part.number is None else f'-{part.number:05}'}{ending}"


def check_alike(path: Path, selection: Selection, first_path: Path, first: Selection) -> None:
    """Raises `InputError` if the columns that are used differ, in names or types, between an input file and
    the first one: all results of a run have the same columns.

    selection, first: the used columns of the two files, with their Arrow types.
    """
    here, there = printable(str(path)), printable(str(first_path))
    for column in {**first.used, **selection.used}:
        kind, before, name = selection.used.get(column), first.used.get(column), printable(column)
        if kind is None or before is None:
            has, lacks = (there, here) if kind is None else (here, there)
            hint = f"name the columns to pass on with {option('keep')}"
            raise InputError(f"{lacks}: there is no column `{name}`, which {has} has; {hint}")
        if kind != before:
            raise InputError(
                f"{here}: column `{name}` is {kind}, and in {there} it is {before}; cast one of them"
            )


def check_targets(jobs: Sequence[Job], output: Path, folders: Iterable[Path]) -> None:
    """Raises `FileError` if the results of jobs cannot be written as named: if their names are too long or
    clash, if the output folder is inside one of `folders`, which are read, or if inputs are inside the output
    folder.
    """
    known = dict[str, Job]()
    for job in jobs:
        if len(os.fsencode(job.target.name)) > LONGEST:
            raise FileError(
                f"{job.table.path}: the name of its result is longer than {LONGEST} bytes; rename it"
            )
        other = known.setdefault(name_of_place(job.target), job)
        if other is not job:
            alike = "" if other.target == job.target else ", as this system takes the two names for one"
            advice = "" if alike else with_folders(other.table.path, job.table.path)
            raise FileError(
                f"{job.target}: this would be the result of {other.table.path} and of {job.table.path}"
                f"{alike}; {advice}rename one, or run them into two folders"
            )
    for job in jobs:
        above = next(filter(None, map(known.get, map(name_of_place, job.target.parents))), None)
        if above is not None:
            raise FileError(
                f"{above.target}: this would be the result of {above.table.path}, and the folder of that of "
                f"{job.table.path}; rename one, or run them into two folders"
            )
    target = resolve_path(output)
    for folder in folders:
        if target.is_relative_to(resolve_path(folder)):
            raise FileError(
                f"{output}: the output lies in {folder}, which is read; choose a folder beside it"
            )
    for job in jobs:
        if resolve_path(job.table.path).is_relative_to(target):
            raise FileError(f"{output}: {job.table.path} lies in the output; choose another folder")


def with_folders(first: Path, second: Path) -> str:
    """Returns how two inputs of one name that lie in different folders get results in different folders, for
    a message; an empty text if they lie in one.
    """
    if first.parent == second.parent or first.is_absolute() != second.is_absolute():
        return ""
    above = printable(os.path.commonpath([first.parent, second.parent]) or ".")
    return f"give the folder above them, {above}, or a glob in quotes, whose results keep the folders; or "


def name_of_place(path: Path) -> str:
    """Returns a text that is the same for all paths that the system takes for one file.

    >>> name_of_place(Path("day.parquet"))
    'day.parquet'
    """
    text = os.fspath(path)
    return (
        unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()) if IGNORES_CASE else text
    )


def resolve_path(path: Path) -> Path:
    """Returns the absolute path without links; raises `FileError` for a circular link or an unusable path."""
    try:
        return path.resolve()
    except RuntimeError as error:
        raise FileError(f"{printable(str(path))}: a link leads to itself; remove it") from error
    except OSError as error:
        raise FileError(f"{printable(str(path))}: the path cannot be used ({error.strerror})") from error


def plan_folder(jobs: Sequence[Job], output: Path, resume: bool) -> ResultsPlan:
    """Plans a run that makes several result files: returns the jobs, and the results of them that exist, so
    that only the missing ones are made. Raises `FileError` for an output folder that is not empty unless
    `resume` is true, and for a file in it that is not the result of a job.
    """
    if os.path.lexists(output) and not os.path.isdir(output):
        raise FileError(f"{output}: this is not a folder, and the results of these inputs are several files")
    there = list(files_below(output)) if os.path.isdir(output) else []
    if there and not resume:
        raise FileError(
            f"{output}: the folder is not empty; {option('resume')} continues with the results that are in it"
        )
    partials = {name_of_place(partial_of(job.target)) for job in jobs}
    partial = tuple(path for path in there if name_of_place(path) in partials)
    by_target, done = {name_of_place(job.target): job for job in jobs}, dict[Path, ResultRecord]()
    for path in there:
        if path in partial:
            continue
        job = by_target.get(name_of_place(path))
        if job is None:
            raise FileError(f"{path}: {stranger(path, jobs)}; move it elsewhere, or choose another folder")
        done[job.target] = check_result(path, job)
    return ResultsPlan(tuple(jobs), done, partial)


def stranger(path: Path, jobs: Sequence[Job]) -> str:
    """Returns why a file in the output folder is no result of a run, for a message. path: the file. jobs: the
    results of the run.
    """
    record = read_record(path) if path.suffix.lower() in ENDINGS and os.path.isfile(path) else None
    origin: Any = record and record.mark.get("input")
    name = cast("dict[str, Any]", origin).get("name") if isinstance(origin, dict) else None
    if not isinstance(name, str):
        return "this is not a result of these inputs"
    if any(job.mark["input"]["name"] == name for job in jobs):
        return f"this is a result of {printable(name)}, and not as this run names it (another format?)"
    return f"this is a result of {printable(name)}, which is not among these inputs (removed or renamed?)"


def plan_file(job: Job, resume: bool, force: bool) -> ResultsPlan:
    """Plans a run that makes a single result file. Raises `FileError` if the output is the input, exists, or
    is not the result of this job.

    force: whether to replace an existing file. resume: whether an existing file may be the result.
    """
    target = job.target
    if os.path.exists(target) and os.path.samefile(target, job.table.path):
        raise FileError(f"{target}: the output is the input; choose another name")
    if resume and os.path.isfile(target):
        return ResultsPlan((job,), {target: check_result(target, job)}, ())
    return ResultsPlan((free(target, force) and job,), {}, ())


def check_result(path: Path, job: Job) -> ResultRecord:
    """Reads the record of the result at `path`; raises `FileError` if it is not the result of the job."""
    record = read_record(path)
    reason = "it is not a result of stepnet run" if record is None else difference_of(record, job)
    if record is None or reason:
        raise FileError(f"{path}: {reason}; remove it to make it again, or choose another output")
    return record


def difference_of(record: ResultRecord, job: Job) -> str | None:
    """Returns why the result of an earlier run is not the one that a job would make, or None if it is. Reads
    the input file again only if its modification time has changed.

    record: the metadata that the earlier result stores. job: the model, options and input rows of the result
    to make.
    """
    reason = difference(record.mark, job.mark)
    if reason is None and record.time != job.table.time and record.checksum != job.table.checksum(job.part):
        return f"{job.table.path} was changed since it was made"
    return reason


def files_below(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder, sorted by name in each folder; links to folders are not followed."""
    folders = [folder]  # before Python 3.12 `os.walk` recurses for each level
    while folders:
        index, inside = folders.pop(), list[Path]()
        for entry in entries(index):
            path = index / entry.name
            if entry.is_dir(follow_symlinks=False):
                inside.append(path)
            elif not entry.is_dir():  # a link to a folder is skipped
                yield path
        folders += reversed(inside)
