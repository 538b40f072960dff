"""Which result is made of which part of which file, and which results exist already.

    inputs --listing--> files --TableFile.of--> parts --jobs--> [day=1/a.parquet, day=1/b-00000.parquet, ...]

Names, schemas and the files in the output folder are checked here, before a row is read.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.listing import ENDINGS, Listing, entries
from stepnet.arrow.folders.marks import Made, difference, made_by
from stepnet.arrow.folders.tables import Part, TableFile
from stepnet.arrow.folders.targets import partial_of
from stepnet.arrow.predictor import Chosen
from stepnet.errors import FileError, InputError, named, printable
from stepnet.files.paths import free
from stepnet.layout.options import option

ARROW_ENDINGS = tuple(ending for ending in ENDINGS if ending != ".parquet")

LONGEST = 238
"""The largest number of bytes of a result's name: 17 of 255 are for those of unfinished files, .a.partial and
.a.parquet.partial.
"""


@dataclass(frozen=True)
class Job:
    """A result to make.

    target: its path. chosen: how its rows are run. mark: the metadata that says what it is made of.
    """

    table: TableFile
    part: Part
    chosen: Chosen
    target: Path
    mark: dict[str, Any]

    @property
    def size(self) -> float:
        """The bytes of its part of the file."""
        return self.table.size * self.part.share


@dataclass(frozen=True)
class Plan:
    """All results in their order.

    done: the results that exist. partial: the files that a process left unfinished.
    """

    jobs: tuple[Job, ...]
    done: dict[Path, Made]
    partial: tuple[Path, ...]


def jobs_of(
    found: Listing, output: Path, alone: bool, ending: str, choose: Any, mark: dict[str, Any]
) -> Iterator[Job]:
    """The results of all files. choose: gives how a schema is run. mark: the metadata of all results.

    Raises `FileError` for files that are damaged, `InputError` for one whose columns do not fit, or are not
    those of the first file.
    """
    first: tuple[Path, Chosen] | None = None
    for each in found.files:
        table = TableFile.of(each.path)
        with named(str(each.path)):
            chosen = choose(table.schema)
        first = first or (each.path, chosen)
        check_alike(each.path, chosen, *first)
        for part in [whole_part(table)] if alone else table.parts:
            name = each.name.with_name(result_name(each.name.name, part, ending))
            origin = {"name": each.name.as_posix(), "size": table.size, "digest": table.digest}
            yield Job(
                table,
                part,
                chosen,
                output if alone else output / name,
                mark | {"input": origin, "part": part.number},
            )


def whole_part(table: TableFile) -> Part:
    """All parts of a file in one."""
    groups = tuple(group for part in table.parts for group in part.groups)
    return Part(groups=groups, rows=sum(part.rows for part in table.parts), span=(0, table.size))


def result_name(name: str, part: Part, ending: str) -> str:
    """The name of a result.

    >>> result_name("a b.2.arrow", Part(), ".parquet"), result_name("a.parquet", Part(3), ".parquet")
    ('a b.2.parquet', 'a-00003.parquet')
    """
    stem = next((name[: -len(known)] for known in ENDINGS if name.lower().endswith(known)), name)
    return f"{stem}{'' if part.number is None else f'-{part.number:05}'}{ending}"


def check_alike(path: Path, chosen: Chosen, first_path: Path, first: Chosen) -> None:
    """Raises `InputError` for a file with other columns than the first one has."""
    here, there = printable(str(path)), printable(str(first_path))
    for column in {**first.used, **chosen.used}:
        kind, before, name = chosen.used.get(column), first.used.get(column), printable(column)
        if kind is None or before is None:
            has, lacks = (there, here) if kind is None else (here, there)
            hint = f"{option('keep')} names those to pass on"
            raise InputError(f"{lacks}: there is no column `{name}`, which {has} has; {hint}")
        if kind != before:
            raise InputError(
                f"{here}: column `{name}` is {kind}, and in {there} it is {before}; cast one of them"
            )


def check_targets(jobs: Sequence[Job], output: Path, folders: Iterable[Path]) -> None:
    """Raises `FileError` for names that are too long, for two results of one name, for an output folder in a
    folder that is read, and for inputs in the output folder.
    """
    known = dict[Path, Job]()
    for job in jobs:
        if len(os.fsencode(job.target.name)) > LONGEST:
            raise FileError(
                f"{job.table.path}: the name of its result is longer than {LONGEST} bytes; rename it"
            )
        other = known.setdefault(job.target, job)
        if other is not job:
            raise FileError(
                f"{job.target}: this would be the result of {other.table.path} and of {job.table.path}; "
                "rename one, or run them into two folders"
            )
    for job in jobs:
        above = next((known[parent] for parent in job.target.parents if parent in known), None)
        if above is not None:
            raise FileError(
                f"{above.target}: this would be the result of {above.table.path}, and the folder of that of "
                f"{job.table.path}; rename one, or run them into two folders"
            )
    place = resolved(output)
    for folder in folders:
        if place.is_relative_to(resolved(folder)):
            raise FileError(
                f"{output}: the output lies in {folder}, which is read; choose a folder beside it"
            )
    for job in jobs:
        if resolved(job.table.path).is_relative_to(place):
            raise FileError(f"{output}: {job.table.path} lies in the output; choose another folder")


def resolved(path: Path) -> Path:
    """An absolute path without links; raises `FileError` for a path that leads nowhere."""
    try:
        return path.resolve()
    except RuntimeError as error:
        raise FileError(f"{printable(str(path))}: a link leads to itself; remove it") from error
    except OSError as error:
        raise FileError(f"{printable(str(path))}: the path cannot be used ({error.strerror})") from error


def planned(jobs: Sequence[Job], output: Path, resume: bool) -> Plan:
    """What is to be done for an output folder.

    Raises `FileError` for a folder that is not empty, unless `resume`, and then for what is in it and is no
    result of these jobs.
    """
    if os.path.lexists(output) and not os.path.isdir(output):
        raise FileError(f"{output}: this is no folder, and the results of these inputs are several files")
    there = list(files_below(output)) if os.path.isdir(output) else []
    if there and not resume:
        raise FileError(
            f"{output}: the folder is not empty; {option('resume')} goes on with the results that are in it"
        )
    partials = {partial_of(job.target) for job in jobs}
    partial = tuple(path for path in there if path in partials)
    by_target, done = {job.target: job for job in jobs}, dict[Path, Made]()
    for path in there:
        if path in partials:
            continue
        job = by_target.get(path)
        if job is None:
            raise FileError(
                f"{path}: this is no result of these inputs; move it elsewhere, or choose another folder"
            )
        done[path] = checked(path, job)
    return Plan(tuple(jobs), done, partial)


def planned_file(job: Job, resume: bool, force: bool) -> Plan:
    """What is to be done for a single result. Raises `FileError` as `planned` does."""
    target = job.target
    if os.path.exists(target) and os.path.samefile(target, job.table.path):
        raise FileError(f"{target}: the output is the input; choose another name")
    if resume and os.path.isfile(target):
        return Plan((job,), {target: checked(target, job)}, ())
    return Plan((free(target, force) and job,), {}, ())


def checked(path: Path, job: Job) -> Made:
    """The result in a file; raises `FileError` if it is not that of the job."""
    made = made_by(path)
    reason = "it is no result of stepnet run" if made is None else difference_of(made, job)
    if made is None or reason:
        raise FileError(f"{path}: {reason}; remove it to make it again, or choose another output")
    return made


def difference_of(made: Made, job: Job) -> str | None:
    """Why a result is not that of a job; None where it is.

    The input is read only if it was changed at another time: its size and digest do not cover all its bytes.
    """
    reason = difference(made.mark, job.mark)
    if reason is None and made.time != job.table.time and made.checksum != job.table.checksum(job.part):
        return f"{job.table.path} was changed since it was made"
    return reason


def files_below(folder: Path) -> Iterator[Path]:
    """All files of a folder, and of those inside it; links to folders are not followed."""
    folders = [folder]  # `os.walk` calls itself for each level before Python 3.12
    while folders:
        place, inside = folders.pop(), list[Path]()
        for entry in entries(place):
            path = place / entry.name
            if entry.is_dir(follow_symlinks=False):
                inside.append(path)
            elif not entry.is_dir():  # which a link to a folder is
                yield path
        folders += reversed(inside)
