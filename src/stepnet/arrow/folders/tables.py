"""A Parquet or Arrow file: its schema, a digest of its content, its parts, and its rows chunk by chunk.

    Parquet          parts of whole row groups, of about `PART_BYTES` each; chunks of a number of rows
    Arrow            one part; chunks are its record batches, small ones joined

A file is closed between the reading of its schema and of its rows, so that there may be any number of files.
"""

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

from stepnet.arrow.blocks import NumberedBatch
from stepnet.arrow.folders.dictionaries import check_indices, may_hold
from stepnet.arrow.predictor import Selection
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, printable
from stepnet.ragged.arrow import pyarrow_module

FILES = "Parquet and Arrow files"
PART_BYTES = 1 << 30
"""The bytes of numbers from which on a Parquet file is cut into parts."""
CHUNK_BYTES = 1 << 24
"""The bytes that a call takes at most, about, for the rows that are read at a time."""
CHUNK_ROWS = 1 << 16
BUFFER = 1 << 20
"""The bytes of a Parquet column that are read at a time."""
BLOCK = 1 << 20
"""The bytes of a file that are read at a time for its checksum."""
EDGE = 1 << 16
"""The bytes at either end of an Arrow file that identify it."""
KINDS = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow", ".ipc": "Arrow"}


@dataclass(frozen=True)
class ResultRows:
    """Rows of a file that become one result.

    number: its index among the parts of a file; None for the whole file. first: the number of its first row.
    groups: its row groups in a Parquet file. rows: the number of rows in these. share: its fraction of the
    file. span: the offsets of its first byte and of the byte after its last.
    """

    number: int | None = None
    first: int = 0
    groups: tuple[int, ...] = ()
    rows: int = 0
    share: float = 1
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class TableFile:
    """An input file of rows, Parquet or Arrow.

    kind: Parquet or Arrow. parts: the rows of each result. size: in bytes. time: the time of modification, in
    nanoseconds. digest: a hash of the size, and of the footer of a Parquet file or both ends of an Arrow
    file.
    """

    path: Path
    kind: str
    schema: Any
    parts: tuple[ResultRows, ...]
    size: int
    time: int
    digest: str

    @property
    def name(self) -> str:
        """The path of this input file as messages show it."""
        return printable(str(self.path))

    @classmethod
    def of(cls, path: Path) -> "TableFile":
        """Reads the schema of a Parquet or Arrow file, the parts that become a result each, and a digest to
        recognise the file, but no rows; raises `FileError` for a damaged file.
        """
        kind = kind_of(path)
        with read_errors(path, kind), open_native(path) as file:
            status = os.stat(path)
            if kind == "Parquet":
                source = pyarrow_module("pyarrow.parquet", FILES).ParquetFile(file)
                metadata = source.metadata
                schema, parts = metadata.schema.to_arrow_schema(), parts_of(source, status.st_size)
                edges = [(status.st_size - metadata.serialized_size - 8, metadata.serialized_size)]
            else:
                schema, parts = open_arrow(file).schema, (ResultRows(span=(0, status.st_size)),)
                edges = [(0, EDGE), (max(0, status.st_size - EDGE), EDGE)]
            for field in schema:
                check_text(field)
            hasher = hashlib.blake2b(str(status.st_size).encode(), digest_size=16)
            for begin, count in edges:
                file.seek(max(0, begin))
                hasher.update(file.read(count))
        return cls(path, kind, schema, parts, status.st_size, status.st_mtime_ns, hasher.hexdigest())

    def chunks(
        self, part: ResultRows, column: str, selection: Selection
    ) -> Iterator[tuple[NumberedBatch, float]]:
        """Yields (batch of rows, about the fraction of the file that it is) for a part of the file. Raises
        `FileError` for rows that cannot be read, and for a file that has changed since it was listed.

        part: the rows to read. column: the list column. selection: the columns that are read and passed on.
        """
        first = part.first
        with read_errors(self.path, self.kind), open_native(self.path) as file:
            self.check_unchanged()
            parquet = self.kind == "Parquet"
            for records in (
                parquet_batches(file, part, column, selection) if parquet else arrow_batches(file, selection)
            ):
                if parquet:
                    check_indices(records)
                    share = records.num_rows / max(1, part.rows) * part.share
                else:
                    share = records.nbytes / self.size
                yield NumberedBatch(self.name, first, records), share
                first += records.num_rows
                del records  # frees its memory before the next one is made
            self.check_unchanged()

    def checksum(self, part: ResultRows, between: Callable[[], None] = lambda: None) -> int:
        """Computes the CRC-32 of the bytes of some rows of this input file, to notice changes of the file,
        also of columns that are not read. Raises `FileError` for a file that cannot be read or has changed.

        part: the rows, with their range of bytes. between: a function called after each `BLOCK` bytes, which
        may raise an exception to stop.
        """
        checksum, (begin, end) = 0, part.span
        with read_errors(self.path, self.kind), self.path.open("rb", buffering=0) as file:
            file.seek(begin)
            while begin < end and (block := file.read(min(BLOCK, end - begin))):
                checksum = crc32(block, checksum)
                begin += len(block)
                between()
            self.check_unchanged()
        return checksum

    def check_unchanged(self) -> None:
        """Raises `FileError` if this input file's size or time has changed since it was listed."""
        status = os.stat(self.path)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.time):
            raise FileError(f"{self.path}: the file was changed while it was run")


def check_text(field: Any) -> None:
    """Raises `UnicodeDecodeError` if the name of an Arrow field, or of one inside it, is not UTF-8."""
    _ = field.name
    for index in range(field.type.num_fields):
        check_text(field.type.field(index))


def parts_of(source: Any, size: int) -> tuple[ResultRows, ...]:
    """Cuts a Parquet file into parts of whole row groups, which jobs run one by one: a part ends as soon as
    it has `PART_BYTES` or more.

    source: pyarrow's `ParquetFile`. size: the bytes of the file.
    """
    metadata = source.metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    sizes, rows = [group.total_byte_size for group in groups], [group.num_rows for group in groups]
    cuts, held = [0], 0
    for index, count in enumerate(sizes):
        if held >= PART_BYTES:
            cuts.append(index)
            held = 0
        held += count
    ranges = list(zip(cuts, [*cuts[1:], len(groups)], strict=True))
    edges = [0, *(group_start(source, index) for index in cuts[1:]), size]
    spans = list(pairwise(edges))
    if edges != sorted(edges):  # the row groups are not in the order of their bytes
        spans = [(0, size)] * len(ranges)
    return tuple(
        ResultRows(
            number if len(ranges) > 1 else None,
            sum(rows[:start]),
            tuple(range(start, stop)),
            sum(rows[start:stop]),
            sum(sizes[start:stop]) / max(1, sum(sizes)),
            span,
        )
        for number, ((start, stop), span) in enumerate(zip(ranges, spans, strict=True))
    )


def group_start(source: Any, group: int) -> int:
    """Returns the offset in bytes of row group `group` in a Parquet file, `source`, which is where its first
    page begins; 0 without columns.
    """
    check_group(source, group)
    row_group = source.metadata.row_group(group)
    columns = [row_group.column(index) for index in range(row_group.num_columns)]
    pages = [(column_chunk.data_page_offset, column_chunk.dictionary_page_offset) for column_chunk in columns]
    return min((page for both in pages for page in both if page), default=0)


def check_group(source: Any, group: int, column: str | None = None) -> None:
    """Reads one row of a row group of a Parquet file, `source`, which raises an error if the file's metadata
    is damaged. Without this check, pyarrow's `RowGroupMetaData.column` ends the process where it meets
    damaged statistics.

    group: the index of the row group. column: the only column to check; None for all.
    """
    next(source.iter_batches(1, row_groups=[group], columns=column and [column]), None)


def parquet_batches(file: Any, part: ResultRows, column: str, selection: Selection) -> Iterator[Any]:
    """Yields the record batches of some rows of a Parquet file, with the columns that are used.

    file: the open file. part: the row groups to read. column: the list column. selection: the columns that
    are read and passed on.
    """
    source = pyarrow_module("pyarrow.parquet", FILES).ParquetFile(file, buffer_size=BUFFER, pre_buffer=False)
    rows = min((chunk_rows(source, group, column, selection) for group in part.groups), default=1)
    names = None if selection.others else [*selection.used]
    # pyarrow cannot read a batch of several row groups with dictionaries inside lists or structs.
    is_plain = pyarrow_module("pyarrow.types", FILES).is_dictionary
    nested = any(may_hold(kind) and not is_plain(kind) for kind in selection.used.values())
    for groups in [[group] for group in part.groups] if nested else [list(part.groups)]:
        yield from source.iter_batches(rows, row_groups=groups, columns=names)


def kind_of(path: Path) -> str:
    """Returns the format of a file, "Parquet" or "Arrow", by the ending of its name, or by its content for
    any other ending.
    """
    kind = KINDS.get(path.suffix.lower())
    if kind is not None:
        return kind
    with read_errors(path, "Parquet"), path.open("rb") as file:
        return "Arrow" if file.read(6) == b"ARROW1" else "Parquet"


def open_native(path: Path) -> Any:
    """Opens a file as pyarrow's file object, which reads without Python's lock while the engine runs."""
    return pyarrow_module("pyarrow", FILES).OSFile(os.fsencode(path))


def open_arrow(file: Any) -> Any:
    """Opens pyarrow's reader of an Arrow file or stream, which it tells apart by the first six bytes; raises
    `ArrowInvalid` if it is empty.
    """
    pyarrow = pyarrow_module("pyarrow", FILES)
    ipc = pyarrow_module("pyarrow.ipc", FILES)
    magic = file.read(6)
    file.seek(0)
    if magic == b"ARROW1":
        return ipc.open_file(file)
    if not magic:
        raise pyarrow.ArrowInvalid("it is empty")
    return ipc.open_stream(file)


def batches_of(reader: Any) -> Iterator[Any]:
    """Returns an iterator of the record batches of pyarrow's reader of an Arrow file or stream."""
    if hasattr(reader, "num_record_batches"):
        return map(reader.get_batch, range(reader.num_record_batches))
    return iter(reader)


def arrow_batches(file: Any, selection: Selection) -> Iterator[Any]:
    """Yields record batches of an Arrow file, with the columns that are used; small batches are joined up to
    `CHUNK_BYTES`. Raises `ArrowInvalid` for a damaged batch.

    selection: the columns that are read and passed on.
    """
    held, size = list[Any](), 0
    for batch in batches_of(open_arrow(file)):
        batch = batch if selection.others else batch.select([*selection.used])
        batch.validate(full=True)  # nbytes and a join follow offsets, which may be damaged
        if size + batch.nbytes > CHUNK_BYTES:
            yield from joined_batches(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
        del batch
    yield from joined_batches(held)


def joined_batches(batches: Sequence[Any]) -> Iterator[Any]:
    """Joins record batches to one, to run fewer calls; yields them one by one if their dictionaries cannot be
    joined or are ordered.
    """
    pyarrow = pyarrow_module("pyarrow", FILES)
    if len(batches) > 1 and "ordered=1" not in str(batches[0].schema):  # a join would lose their order
        with suppress(pyarrow.ArrowException):  # dictionaries that cannot be joined
            batches = pyarrow.Table.from_batches(batches).combine_chunks().to_batches() or batches[:1]
    yield from batches


def chunk_rows(source: Any, group: int, column: str, selection: Selection) -> int:
    """Returns the number of rows of a row group to read at a time, so that a call takes about `CHUNK_BYTES`,
    by the mean number of steps of a row; from 1 to `CHUNK_ROWS`.

    source: the Parquet file. column: the list column. selection: says how many bytes rows and steps take in a
    call.
    """
    rows = source.metadata.row_group(group).num_rows
    steps = numbers_in(source, column, group) / max(1, prod(selection.column.spec.shape) * rows)
    outer, *inner = selection.level_bytes
    row = outer + steps * sum(inner) + steps**2 * selection.compiled.pair_bytes
    return int(min(CHUNK_ROWS, max(1, CHUNK_BYTES // max(1, row))))


def numbers_in(source: Any, name: str, group: int) -> int:
    """Returns the number of numbers that the column `name` has in a row group of a Parquet file, numbers
    inside lists included. source: pyarrow's `ParquetFile`.
    """
    check_group(source, group, name)
    metadata = source.metadata
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    indices = [index for index, path in enumerate(paths) if f"{path}.".startswith(f"{name}.")]
    return sum(metadata.row_group(group).column(index).num_values for index in indices)


@contextmanager
def read_errors(path: Path, kind: str) -> Generator[None]:
    """Converts errors on reading in its `with` block to a `FileError` that says that the file at `path`
    cannot be read, or is not a complete file of `kind`, "Parquet" or "Arrow".
    """
    pyarrow = pyarrow_module("pyarrow", FILES)
    try:
        yield
    except PermissionError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror})") from error
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or " ".join(str(error).split())).rstrip(".")
        raise FileError(f"{path}: this is not a complete {kind} file ({reason})") from error
