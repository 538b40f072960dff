"""A Parquet or Arrow file: its schema, what identifies its content, its parts, and its rows chunk by chunk.

    Parquet          parts of whole row groups, of about `PART_BYTES` each; chunks of a number of rows
    Arrow            one part; chunks as its record batches are, small ones together

A file is not held open between its schema and its rows, so that there may be any number of files.
"""

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

from stepnet.arrow.blocks import Batch
from stepnet.arrow.folders.dictionaries import check_indices, may_hold
from stepnet.arrow.predictor import Chosen
from stepnet.errors import FileError, printable
from stepnet.ragged.arrow import pyarrow_module

FILES = "Parquet and Arrow files"
PART_BYTES = 1 << 30
"""The bytes of numbers from which on a Parquet file is cut into parts."""
CHUNK_BYTES = 1 << 24
"""About how many bytes a call takes for the rows that are read at a time."""
CHUNK_ROWS = 1 << 16
BUFFER = 1 << 20
"""How much of a Parquet column is read at a time."""
BLOCK = 1 << 20
"""How much of a file is read at a time for its checksum."""
EDGE = 1 << 16
"""How much of either end of an Arrow file identifies it."""
KINDS = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow", ".ipc": "Arrow"}


@dataclass(frozen=True)
class Part:
    """Rows of a file that become one result.

    number: its place among the parts of a file; None for the whole file. first: the number of its first row.
    groups: its row groups in a Parquet file. rows: the number of rows of these. share: its fraction of the
    file. span: where its bytes begin and end in the file.
    """

    number: int | None = None
    first: int = 0
    groups: tuple[int, ...] = ()
    rows: int = 0
    share: float = 1
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class TableFile:
    """A file of rows.

    kind: Parquet or Arrow. parts: the rows of each result. size: in bytes. time: the time of modification, in
    nanoseconds. digest: of the size, and of the footer of a Parquet file or of both ends of an Arrow file.
    """

    path: Path
    kind: str
    schema: Any
    parts: tuple[Part, ...]
    size: int
    time: int
    digest: str

    @property
    def name(self) -> str:
        """The path as messages show it."""
        return printable(str(self.path))

    @classmethod
    def of(cls, path: Path) -> "TableFile":
        """What is known of a file without its rows; raises `FileError` for a file that is damaged."""
        kind = kind_of(path)
        with reading(path, kind), native(path) as file:
            status = os.stat(path)
            if kind == "Parquet":
                source = pyarrow_module("pyarrow.parquet", FILES).ParquetFile(file)
                metadata = source.metadata
                schema, parts = metadata.schema.to_arrow_schema(), parts_of(source, status.st_size)
                edges = [(status.st_size - metadata.serialized_size - 8, metadata.serialized_size)]
            else:
                schema, parts = opened(file).schema, (Part(span=(0, status.st_size)),)
                edges = [(0, EDGE), (max(0, status.st_size - EDGE), EDGE)]
            for field in schema:
                check_text(field)
            hasher = hashlib.blake2b(str(status.st_size).encode(), digest_size=16)
            for begin, count in edges:
                file.seek(max(0, begin))
                hasher.update(file.read(count))
        return cls(path, kind, schema, parts, status.st_size, status.st_mtime_ns, hasher.hexdigest())

    def chunks(self, part: Part, column: str, chosen: Chosen) -> Iterator[tuple[Batch, float]]:
        """The rows of a part in batches, each with about its fraction of the file.

        Raises `FileError` for rows that cannot be read, and for a file that has changed since it was listed.
        """
        first = part.first
        with reading(self.path, self.kind), native(self.path) as file:
            self.check_unchanged()
            parquet = self.kind == "Parquet"
            for records in of_groups(file, part, column, chosen) if parquet else together(file, chosen):
                if parquet:
                    check_indices(records)
                    share = records.num_rows / max(1, part.rows) * part.share
                else:
                    share = records.nbytes / self.size
                yield Batch(self.name, first, records), share
                first += records.num_rows
                del records  # or it would be held beside the next
            self.check_unchanged()

    def checksum(self, part: Part, between: Callable[[], None] = lambda: None) -> int:
        """The CRC-32 of all bytes of a part, whether or not its columns are read.

        between: called after each `BLOCK` bytes. Raises `FileError` as `chunks` does.
        """
        checksum, (begin, end) = 0, part.span
        with reading(self.path, self.kind), self.path.open("rb", buffering=0) as file:
            file.seek(begin)
            while begin < end and (block := file.read(min(BLOCK, end - begin))):
                checksum = crc32(block, checksum)
                begin += len(block)
                between()
            self.check_unchanged()
        return checksum

    def check_unchanged(self) -> None:
        """Raises `FileError` if the file is no longer what it was."""
        status = os.stat(self.path)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.time):
            raise FileError(f"{self.path}: the file was changed while it was run")


def check_text(field: Any) -> None:
    """Raises `UnicodeDecodeError` for a field whose name, or that of a field inside it, is not UTF-8."""
    _ = field.name
    for place in range(field.type.num_fields):
        check_text(field.type.field(place))


def parts_of(source: Any, size: int) -> tuple[Part, ...]:
    """The parts of a Parquet file by its footer, which end where row groups do. size: that of the file."""
    metadata = source.metadata
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    sizes, rows = [group.total_byte_size for group in groups], [group.num_rows for group in groups]
    cuts, held = [0], 0
    for place, each in enumerate(sizes):
        if held >= PART_BYTES:
            cuts.append(place)
            held = 0
        held += each
    ranges = list(zip(cuts, [*cuts[1:], len(groups)], strict=True))
    edges = [0, *(begin_of(source, place) for place in cuts[1:]), size]
    spans = list(pairwise(edges))
    if edges != sorted(edges):  # row groups in another order than their bytes
        spans = [(0, size)] * len(ranges)
    return tuple(
        Part(
            number if len(ranges) > 1 else None,
            sum(rows[:start]),
            tuple(range(start, stop)),
            sum(rows[start:stop]),
            sum(sizes[start:stop]) / max(1, sum(sizes)),
            span,
        )
        for number, ((start, stop), span) in enumerate(zip(ranges, spans, strict=True))
    )


def begin_of(source: Any, group: int) -> int:
    """Where the first byte of a row group of a Parquet file is."""
    check_group(source, group)
    row_group = source.metadata.row_group(group)
    columns = [row_group.column(place) for place in range(row_group.num_columns)]
    pages = [(each.data_page_offset, each.dictionary_page_offset) for each in columns]
    return min((page for both in pages for page in both if page), default=0)


def check_group(source: Any, group: int, column: str | None = None) -> None:
    """Reads a row of a row group of a Parquet file, which raises an error if its metadata is damaged.

    column: the only column that is checked. Without this, pyarrow's `RowGroupMetaData.column` ends the
    process where it meets damaged statistics.
    """
    next(source.iter_batches(1, row_groups=[group], columns=column and [column]), None)


def of_groups(file: Any, part: Part, column: str, chosen: Chosen) -> Iterator[Any]:
    """The record batches of row groups of a Parquet file, of the columns that are read."""
    source = pyarrow_module("pyarrow.parquet", FILES).ParquetFile(file, buffer_size=BUFFER, pre_buffer=False)
    rows = min((chunk_rows(source, group, column, chosen) for group in part.groups), default=1)
    names = None if chosen.others else [*chosen.used]
    # pyarrow cannot read a batch of several row groups with dictionaries inside lists or structs.
    is_plain = pyarrow_module("pyarrow.types", FILES).is_dictionary
    nested = any(may_hold(kind) and not is_plain(kind) for kind in chosen.used.values())
    for groups in [[group] for group in part.groups] if nested else [list(part.groups)]:
        yield from source.iter_batches(rows, row_groups=groups, columns=names)


def kind_of(path: Path) -> str:
    """Parquet or Arrow, by the ending of a name, and by the content of other files."""
    kind = KINDS.get(path.suffix.lower())
    if kind is not None:
        return kind
    with reading(path, "Parquet"), path.open("rb") as file:
        return "Arrow" if file.read(6) == b"ARROW1" else "Parquet"


def native(path: Path) -> Any:
    """A file that pyarrow reads without Python."""
    return pyarrow_module("pyarrow", FILES).OSFile(os.fsencode(path))


def opened(file: Any) -> Any:
    """A reader of an Arrow file or stream."""
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
    """The record batches of an Arrow file or stream."""
    if hasattr(reader, "num_record_batches"):
        return map(reader.get_batch, range(reader.num_record_batches))
    return iter(reader)


def together(file: Any, chosen: Chosen) -> Iterator[Any]:
    """The record batches of an Arrow file, of the columns that are read; small ones are joined."""
    held, size = list[Any](), 0
    for batch in batches_of(opened(file)):
        batch = batch if chosen.others else batch.select([*chosen.used])
        batch.validate(full=True)  # before its size is asked for and it is joined, which follow its offsets
        if size + batch.nbytes > CHUNK_BYTES:
            yield from joined(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
        del batch
    yield from joined(held)


def joined(batches: Sequence[Any]) -> Iterator[Any]:
    """Record batches in one."""
    pyarrow = pyarrow_module("pyarrow", FILES)
    if len(batches) > 1 and "ordered=1" not in str(batches[0].schema):  # whose order would be lost
        with suppress(pyarrow.ArrowException):  # dictionaries that cannot be joined
            batches = pyarrow.Table.from_batches(batches).combine_chunks().to_batches() or batches[:1]
    yield from batches


def chunk_rows(source: Any, group: int, column: str, chosen: Chosen) -> int:
    """The number of rows to read at a time, so that a call for them takes about `CHUNK_BYTES`."""
    rows = source.metadata.row_group(group).num_rows
    steps = numbers_in(source, column, group) / max(1, prod(chosen.column.spec.shape) * rows)
    outer, *inner = chosen.level_bytes
    return int(min(CHUNK_ROWS, max(1, CHUNK_BYTES // max(1, outer + steps * sum(inner)))))


def numbers_in(source: Any, name: str, group: int) -> int:
    """The number of numbers in a column of a row group of a Parquet file, including those inside lists."""
    check_group(source, group, name)
    metadata = source.metadata
    paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    places = [place for place, path in enumerate(paths) if f"{path}.".startswith(f"{name}.")]
    return sum(metadata.row_group(group).column(place).num_values for place in places)


@contextmanager
def reading(path: Path, kind: str) -> Generator[None]:
    """Turns errors of the block into a `FileError` that says that the file cannot be read."""
    pyarrow = pyarrow_module("pyarrow", FILES)
    try:
        yield
    except PermissionError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror})") from error
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or " ".join(str(error).split())).rstrip(".")
        raise FileError(f"{path}: this is no whole {kind} file ({reason})") from error
