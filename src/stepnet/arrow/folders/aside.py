"""The file of rows that cannot be run and are set aside.

    during a run   .bad.parquet.parts/day=1/a.parquet   the rows of one result, written before the result
    at its end     bad.parquet                          the rows of all results, in the order of the results

So the rows of every result that exists are in one of these files. An index in the metadata of `bad.parquet`,
such as `[[origin of a, 2], [origin of b, 1]]`, says how many rows belong to which result. It identifies a
result by its input, as marks do: the path inside the folder that is read, the size and the digest. So the
rows are found however the path of the folder is spelled.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.dictionaries import no_rows
from stepnet.arrow.folders.marks import ResultRecord, difference, metadata_of, origin_of, read_record
from stepnet.arrow.folders.plan import Job, ResultsPlan, files_below, resolve_path
from stepnet.arrow.folders.result_files import (
    ResultFile,
    partial_of,
    remove_folder,
    remove_partial,
    sync_folder,
    write_errors,
)
from stepnet.arrow.folders.sifting import BadRow
from stepnet.arrow.folders.tables import FILES, open_native, read_errors
from stepnet.arrow.predictor import Selection
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, InputError
from stepnet.layout.files.paths import free
from stepnet.layout.options import option
from stepnet.ragged.arrow import pyarrow_module

GROUP = 1024
"""The number of rows in a row group of the file."""
COMPRESSION = "snappy"
INDEX = "results"
"""The name of the index in the metadata that follows the rows."""


def index_of(counts: Iterable[tuple[dict[str, Any], int]]) -> dict[str, Any]:
    """Returns metadata for the file of rejected rows, which says how many of its rows belong to each result.
    counts: for each result in order, (its metadata, the number of its rejected rows).
    """
    return {INDEX: [(origin_of(mark), rows) for mark, rows in counts]}


class EarlierRows:
    """The rows that an earlier run set aside because they could not be run, by result.

    path, metadata: the file and its Parquet footer.
    ranges: by the digest of a result's input, the first row and the row after the last.

    Row groups are read one at a time. The latest one stays in memory, as the next result begins in it.
    """

    def __init__(self, path: Path, metadata: Any, ranges: dict[str, tuple[int, int]]) -> None:
        """Stores the path and the Parquet footer of a file of rejected rows, and the range of rows of each
        result, by the digest of its input; reads no rows.
        """
        self.path, self.metadata, self.ranges = path, metadata, ranges
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self.starts = [0, *accumulate(sizes)]
        self._group: tuple[int, Any] | None = None

    @classmethod
    def of(cls, path: Path, mark: dict[str, Any]) -> "EarlierRows":
        """Opens the file of rows that could not be run in the run to resume. Raises `FileError` for a damaged
        file, for a file of another kind, and for another model or other options.

        mark: the version, model and options of this run, which must be those of the file at `path`.
        """
        found = metadata_of(path)
        with read_errors(path, "Parquet"), open_native(path) as file:
            metadata = pyarrow_module("pyarrow.parquet", FILES).read_metadata(file)
        ranges = None if found is None else ranges_of(found[1].get(INDEX), metadata.num_rows)
        if found is None or ranges is None:
            reason = "it is not a file of rows that were set aside"
        else:
            reason = difference(found[0], mark)
        if ranges is None or reason:
            raise FileError(f"{path}: {reason}; choose another file")
        return cls(path, metadata, ranges)

    def count(self, mark: dict[str, Any]) -> int:
        """Returns the number of rows of one input that an earlier run set aside because the model could not
        be run on them; 0 for an input that is not in its file. mark: the metadata of the result of that
        input.
        """
        start, stop = self.ranges.get(origin_of(mark), (0, 0))
        return stop - start

    def rows(self, mark: dict[str, Any]) -> Iterator[Any]:
        """Yields record batches of the rows of one input on which an earlier run could not run the model.
        mark: the metadata of the result of that input.
        """
        start, stop = self.ranges.get(origin_of(mark), (0, 0))
        while start < stop:
            number = bisect_right(self.starts, start) - 1
            last = min(stop, self.starts[number + 1])
            yield from self.group(number).slice(start - self.starts[number], last - start).to_batches()
            start = last

    def group(self, number: int) -> Any:
        """Reads row group `number` of the file of rejected rows as a table, cached until another is read."""
        if self._group is None or self._group[0] != number:
            self._group = None
            parquet = pyarrow_module("pyarrow.parquet", FILES)
            with read_errors(self.path, "Parquet"), open_native(self.path) as file:
                table = parquet.ParquetFile(file, metadata=self.metadata).read_row_group(number)
            self._group = number, table
        return self._group[1]


def ranges_of(index: Any, rows: int) -> dict[str, tuple[int, int]] | None:
    """Converts the index in a file of rejected rows, which assigns rows to results, to (first row, row after
    the last) by result; None if it is no index, or its counts do not add up to `rows`.

    index: pairs of a result's digest and its row count. rows: the number of rows of the file.

    >>> ranges_of([["a", 2], ["b", 1]], 3), ranges_of([["a", 2]], 3)
    ({'a': (0, 2), 'b': (2, 3)}, None)
    """
    try:
        counts = {str(origin): int(count) for origin, count in index}
    except (TypeError, ValueError):
        return None
    stops = list(accumulate(counts.values()))
    if min(counts.values(), default=0) < 0 or (stops[-1] if stops else 0) != rows:
        return None
    return dict(zip(counts, zip([0, *stops], stops, strict=False), strict=True))


@dataclass(frozen=True)
class RejectedRows:
    """The file for the rows of a run on which the model cannot be run.

    path: the file. output: where the results are. schema: the schema of the file. mark: version, model and
    options, which the file and all results share. earlier: the rows of the run that is resumed; None if there
    are none.
    """

    path: Path
    output: Path
    schema: Any
    mark: dict[str, Any]
    earlier: EarlierRows | None

    @classmethod
    def of(
        cls,
        path: Path,
        output: Path,
        folders: Iterable[Path],
        selection: Selection,
        mark: dict[str, Any],
        resume: bool,
    ) -> "RejectedRows":
        """Checks the path of the file for rows that cannot be run; with `resume`, opens the file of the
        earlier run. Raises `InputError` for a column whose name the file uses for its own, and `FileError`
        for a path that cannot be used: inside a folder that is read, inside the output, or an existing file.

        folders: the folders that are read. selection: the columns that are passed on. mark: version, model
        and options. resume: whether an existing file is accepted, if an earlier run with the same `mark`
        wrote it.
        """
        schema = schema_of_rows(path, selection)
        check_target_path(path, output, folders)
        earlier = EarlierRows.of(path, mark) if resume and os.path.isfile(path) else None
        rejected = cls(path, output, schema, mark, earlier)
        if earlier is None:
            if os.path.lexists(path):
                raise FileError(
                    f"{path}: the file is there already; {option('resume')} continues its run, or remove "
                    "it, or choose another file"
                )
            free(path)
            if rejected.parts.exists() and not resume:
                raise FileError(
                    f"{rejected.parts}: these are rows of another run; {option('resume')} continues it"
                )
        return rejected

    @property
    def parts(self) -> Path:
        """The hidden folder that has, during a run, a temporary file of the rejected rows of each result."""
        return self.path.with_name(f".{self.path.name}.parts")

    def temporary_path(self, job: Job) -> Path:
        """Returns the path of the temporary file for the rows rejected while one job's result is made."""
        name = job.target.relative_to(self.output) if job.target != self.output else job.target.name
        return self.parts / f"{name}.parquet"

    def records(self, job: Job, bad: Sequence[BadRow]) -> Any:
        """Makes a record batch, to write, of a job's rejected rows, `bad`: the input's path, the row's number
        and the reason, then the columns that are used.
        """
        pyarrow = pyarrow_module("pyarrow", FILES)
        rows = pyarrow.Table.from_batches(
            [rejection.records.select([*job.selection.used]) for rejection in bad]
        )
        files, indices = [arrow_text(str(job.table.path))] * len(bad), [rejection.row for rejection in bad]
        reasons = [rejection.reason(job.table.name) for rejection in bad]
        columns = [*map(pyarrow.array, (files, indices, reasons)), *rows.combine_chunks().columns]
        typed = [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)]
        table = pyarrow.Table.from_arrays(typed, schema=self.schema)
        return pyarrow.concat_batches(table.to_batches())

    def target(self, job: Job) -> ResultFile:
        """Opens a new file for the rows that are rejected for one job, which makes one result file."""
        return ResultFile(self.temporary_path(job), self.schema, job.mark, "parquet", COMPRESSION)

    def check(self, plan: ResultsPlan) -> None:
        """Raises `FileError` if rejected rows of an existing result are missing, fewer or more than its
        metadata says. plan: the results of the run, with the ones that exist already.
        """
        for job in plan.jobs:
            record = plan.done.get(job.target)
            if record is None or not record.bad:
                continue
            if self.has_temporary_file(job):
                count = record.bad  # the file of the rows was complete before the result appeared
            else:
                count = 0 if self.earlier is None else self.earlier.count(job.mark)
            if count != record.bad:
                raise FileError(
                    f"{job.target}: {record.bad} rows were set aside for it, and {count} of them are in "
                    f"{self.path}; name the file of its run, or remove the result {job.target.name} to make "
                    "both again"
                )

    def has_temporary_file(self, job: Job) -> bool:
        """Returns True if a temporary file of this or the resumed run has the job's rejected rows."""
        path = self.temporary_path(job)
        part = read_record(path) if path.exists() else None
        return part is not None and difference(part.mark, job.mark) is None

    def rows_of(self, job: Job) -> Iterator[Any]:
        """Yields the rows rejected for a job as record batches, with the path as this run spells it."""
        path = str(job.table.path)
        for batch in self.stored_rows(job):
            files = pyarrow_module("pyarrow", FILES).array([arrow_text(path)] * batch.num_rows)
            yield batch.set_column(0, self.schema.field(0), files)

    def stored_rows(self, job: Job) -> Iterator[Any]:
        """Yields, as record batches, the rows of a job's input on which the model could not be run: from the
        temporary file of this run, or from the file of an earlier one.
        """
        if self.has_temporary_file(job):
            path = self.temporary_path(job)
            with read_errors(path, "Parquet"), open_native(path) as file:
                yield from pyarrow_module("pyarrow.parquet", FILES).ParquetFile(file).iter_batches(GROUP)
        elif self.earlier is not None:
            yield from self.earlier.rows(job.mark)

    def finish(self, made: Iterable[tuple[Job, ResultRecord]]) -> None:
        """Writes the rows rejected for all results to one file, in order, and removes their temporary files.

        made: the jobs (each makes one result) and the records (the stored metadata) of their results.
        """
        results = [(job, done) for job, done in made if done.bad]
        rows, expected = 0, sum(done.bad for _, done in results)
        target = ResultFile(self.path, self.schema, self.mark, "parquet", COMPRESSION)
        try:
            for group in in_groups(batch for job, _ in results for batch in self.rows_of(job)):
                target.write(group)
                rows += group.num_rows
            if rows != expected:
                raise FileError(
                    f"{self.path}: {expected} rows were set aside, and {rows} of them can be read; remove "
                    "the results and make them again"
                )
            target.finish(index_of((job.mark, done.bad) for job, done in results))
        except BaseException:
            target.drop()
            raise
        with write_errors(self.parts):
            if self.parts.exists():
                remove_folder(self.parts)
                sync_folder(self.parts.parent)

    def clean(self) -> None:
        """Removes files of rejected rows that another process began and did not complete."""
        for partial in [*files_below(self.parts), partial_of(self.path)]:
            if partial.suffix == ".partial" and partial.exists():
                remove_partial(partial)


def schema_of_rows(path: Path, selection: Selection) -> Any:
    """Returns the schema of the file of rejected rows at `path`: file (the input's path), row, reason, and
    the columns that are used, as `selection` says. Raises `InputError` for a column with the name of one of
    the first three, and `FileError` for a type that Parquet cannot hold.
    """
    pyarrow = pyarrow_module("pyarrow", FILES)
    own = [("file", pyarrow.string()), ("row", pyarrow.int64()), ("reason", pyarrow.string())]
    for name, _ in own:
        if name in selection.used:
            raise InputError(
                f"there is a column `{name}`, as {option('bad')} has one: rename the column, or "
                "do not pass it on"
            )
    with write_errors(path):
        return schema_of_parquet(pyarrow.schema([*own, *selection.used.items()]))


def check_target_path(path: Path, output: Path, folders: Iterable[Path]) -> None:
    """Raises `FileError` if the file of rejected rows, `path`, is in one of the folders that are read or in
    the output, where a later run would take it for an input or a result.
    """
    refused = [*((folder, f"{folder}, which is read") for folder in folders), (output, "the output")]
    target = resolve_path(path)
    for folder, name in refused:
        if target.is_relative_to(resolve_path(folder)):
            raise FileError(f"{path}: the rows that are set aside would lie in {name}; choose another place")


def schema_of_parquet(schema: Any) -> Any:
    """Returns the schema of a Parquet file written with `schema`, with types that Parquet lacks replaced."""
    pyarrow, parquet = (pyarrow_module(name, FILES) for name in ("pyarrow", "pyarrow.parquet"))
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_batches([no_rows(schema)]), sink)
    return parquet.read_table(sink.getvalue()).schema.remove_metadata()


def in_groups(batches: Iterable[Any]) -> Iterator[Any]:
    """Regroups the rows of record batches into batches of `GROUP` rows, and a last one of the rest, for row
    groups of equal size.
    """
    pyarrow = pyarrow_module("pyarrow", FILES)
    held, count = list[Any](), 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, GROUP - count)
            held.append(piece)
            start, count = start + piece.num_rows, count + piece.num_rows
            if count == GROUP:
                yield pyarrow.concat_batches(held)
                held, count = [], 0
    if held:
        yield pyarrow.concat_batches(held)


def arrow_text(name: str) -> str:
    """Converts a file name to text that Arrow can hold: bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
