"""Rows that are set aside, in a file of their own.

    while it runs  .bad.parquet.parts/day=1/a.parquet  those of each result that has any, written before it
    at the end     bad.parquet                         all of them, in the order of the results

So when a result is there, its rows are: in a part, or in the file of a run that came to its end.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stepnet.arrow.folders.marks import Made, difference, made_by
from stepnet.arrow.folders.plan import Job, Plan
from stepnet.arrow.folders.sifting import Bad
from stepnet.arrow.folders.tables import FILES, native, reading
from stepnet.arrow.folders.targets import Target, on_disk, partial_of, remove_partial, writing
from stepnet.arrow.predictor import Chosen
from stepnet.errors import FileError, InputError
from stepnet.files.paths import free
from stepnet.layout.options import option
from stepnet.ragged.arrow import pyarrow_module

GROUP = 1024
"""The rows of a row group of the file."""
COMPRESSION = "snappy"


class Aside:
    """The file of rows that are set aside. folders: those that are read. mark: what it says of itself.

    Raises `FileError` for a file that is there already and is not that of an earlier run with `resume`.
    """

    def __init__(
        self,
        path: Path,
        output: Path,
        folders: Iterable[Path],
        chosen: Chosen,
        mark: dict[str, Any],
        resume: bool,
    ) -> None:
        pyarrow = pyarrow_module("pyarrow", FILES)
        self.path, self.output, self.mark = path, output, mark
        self.parts = path.with_name(f".{path.name}.parts")
        own = [("file", pyarrow.string()), ("row", pyarrow.int64()), ("reason", pyarrow.string())]
        for name, _ in own:
            if name in chosen.used:
                raise InputError(
                    f"there is a column `{name}`, as {option('bad')} has one: rename it, or do not pass it on"
                )
        with writing(path):
            self.schema = schema_of_parquet(pyarrow.schema([*own, *chosen.used.items()]))
        place = path.resolve()
        for folder in folders:
            if place.is_relative_to(folder.resolve()):
                raise FileError(
                    f"{path}: the rows that are set aside would lie in {folder}, which is read; choose "
                    "another place"
                )
        if place.is_relative_to(output.resolve()):
            raise FileError(
                f"{path}: the rows that are set aside would lie in the output; choose another place"
            )
        self.old = path if resume and os.path.isfile(path) else None
        if self.old is None:
            free(path)
            if self.parts.exists() and not resume:
                raise FileError(
                    f"{self.parts}: these are rows of another run; {option('resume')} goes on with it"
                )
        else:
            made = made_by(path)
            reason = difference(made.mark, mark) if made else "it is no file of rows that were set aside"
            if reason:
                raise FileError(f"{path}: {reason}; choose another file")

    def part_of(self, job: Job) -> Path:
        """Where the rows of a result are while it runs."""
        name = job.target.relative_to(self.output) if job.target != self.output else job.target.name
        return self.parts / f"{name}.parquet"

    def records(self, job: Job, bad: Sequence[Bad]) -> Any:
        """Rows as a record batch of the file."""
        pyarrow, name = pyarrow_module("pyarrow", FILES), str(job.table.path)
        rows = pyarrow.Table.from_batches([each.records.select([*job.chosen.used]) for each in bad])
        files, places = [text_of(name)] * len(bad), [each.row for each in bad]
        reasons = [text_of(each.reason(name)) for each in bad]
        columns = [*map(pyarrow.array, (files, places, reasons)), *rows.combine_chunks().columns]
        typed = [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)]
        table = pyarrow.Table.from_arrays(typed, schema=self.schema)
        return pyarrow.concat_batches(table.to_batches())

    def target(self, job: Job) -> Target:
        """The rows of a result, to be written."""
        return Target(self.part_of(job), self.schema, self.mark, "parquet", COMPRESSION)

    def check(self, plan: Plan) -> None:
        """Raises `FileError` where a result is there, and not all rows that were set aside for it."""
        for job in plan.jobs:
            made = plan.done.get(job.target)
            if made is None or not made.bad:
                continue
            there = sum(batch.num_rows for batch in self.rows_of(job, made))
            if there != made.bad:
                raise FileError(
                    f"{job.target}: {made.bad} rows were set aside for it, and {there} of them are in "
                    f"{self.path}; remove it to make it again, or name the file of its run"
                )

    def rows_of(self, job: Job, made: Made) -> Iterator[Any]:
        """The rows that were set aside for a result."""
        part = self.part_of(job)
        if part.exists():
            with reading(part, "Parquet"), native(part) as file:
                yield from pyarrow_module("pyarrow.parquet", FILES).ParquetFile(file).iter_batches(GROUP)
        elif self.old is not None:
            compute = pyarrow_module("pyarrow.compute", FILES)
            with reading(self.old, "Parquet"), native(self.old) as file:
                source = pyarrow_module("pyarrow.parquet", FILES).ParquetFile(file)
                for batch in source.iter_batches(GROUP):
                    row = batch.column("row")
                    within = compute.and_(
                        compute.greater_equal(row, made.first), compute.less(row, made.first + made.rows)
                    )
                    same = compute.equal(batch.column("file"), text_of(str(job.table.path)))
                    yield batch.filter(compute.and_(within, same))

    def finish(self, made: Iterable[tuple[Job, Made]]) -> None:
        """Writes the file: the rows of all results in their order. Their parts are removed."""
        results = list(made)
        rows, wanted = 0, sum(done.bad for _, done in results)
        target = Target(self.path, self.schema, self.mark, "parquet", COMPRESSION)
        try:
            for group in in_groups(
                batch for job, done in results if done.bad for batch in self.rows_of(job, done)
            ):
                target.write(group)
                rows += group.num_rows
            if rows != wanted:
                raise FileError(
                    f"{self.path}: {wanted} rows were set aside, and {rows} of them are there; remove the "
                    "results and make them again"
                )
            target.finish(0, rows, rows)
        except BaseException:
            target.drop()
            raise
        with writing(self.parts):
            if self.parts.exists():
                shutil.rmtree(self.parts)
                on_disk(self.parts.parent)

    def clean(self) -> None:
        """Removes what a process left half-written."""
        for partial in [*self.parts.rglob("*.partial"), partial_of(self.path)]:
            if partial.exists():
                remove_partial(partial)


def schema_of_parquet(schema: Any) -> Any:
    """The schema that Parquet gives back for a table of one: some types become others, as seconds do."""
    pyarrow, parquet = (pyarrow_module(name, FILES) for name in ("pyarrow", "pyarrow.parquet"))
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(schema.empty_table(), sink)
    return parquet.read_table(sink.getvalue()).schema.remove_metadata()


def in_groups(batches: Iterable[Any]) -> Iterator[Any]:
    """Rows in record batches of `GROUP` each, however they came."""
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


def text_of(name: str) -> str:
    """A name as text that Arrow can hold; bytes that are none are written as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
