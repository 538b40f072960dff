"""Runs a model over a list column of a Parquet file into a new file, a chunk of rows at a time."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from stepnet.arrow.blocks import Batch
from stepnet.arrow.predictor import Chosen, Predictor
from stepnet.errors import FileError, InputError, named
from stepnet.files.paths import free
from stepnet.layout.options import option
from stepnet.ragged.arrow import list_axes, pyarrow_module
from stepnet.rnn.program import Asked

OUTPUTS, FILES = "outputs", "Parquet files"
CHUNK_BYTES = 1 << 26  # of outputs that are held at a time, about
CHUNK_ROWS = 4096


class Sequences:
    """A list column of a Parquet file, as the sequences that a recurrence takes.

    column: its name; by default the file's only list column. Raises `FileError` for a file that is no Parquet
    file, `InputError` if there is no such column.
    """

    def __init__(self, path: str | Path, column: str | None = None) -> None:
        self.path = Path(path)
        parquet = pyarrow_module("pyarrow.parquet", FILES)
        with reading(self.path):
            self.file = parquet.ParquetFile(self.path, memory_map=False)
            self.schema = self.file.schema_arrow
            self.rows: int = self.file.metadata.num_rows
        with named(str(self.path)):
            self.column = list_column(self.schema, column)
        with reading(self.path):
            self.numbers = numbers_in(self.file.metadata, self.column)

    def chunks(self, rows: int) -> Iterator[Any]:
        """The rows of the file as record batches of at most that many."""
        with reading(self.path):
            yield from self.file.iter_batches(batch_size=rows)

    def batches(self, rows: int) -> Iterator[Batch]:
        """The same by the name of the file and the number of their first row."""
        first = 0
        for chunk in self.chunks(rows):
            yield Batch(str(self.path), first, chunk)
            first += chunk.num_rows


def run(
    model: Any,
    source: Sequences,
    target: str | Path,
    *,
    engine: Asked = "auto",
    force: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, int]:
    """Writes the outputs of every sequence to the file `target` as a column `outputs`, beside all other
    columns of the source; gives the numbers of `sequences`, `steps` and `features` that were written.

    model: as for `Predictor`. Inputs are cast to the dtype of the model's. The file appears under its name
    only when it is complete. advance: called with the number of sequences just done. Raises `FileError` if
    the file exists, unless `force`.
    """
    target = free(target, force)
    with named(str(source.path)):
        predictor = Predictor(model, source.column, OUTPUTS, memory=CHUNK_BYTES, engine=engine)
        chosen = predictor.choose(source.schema)
    compute = pyarrow_module("pyarrow.compute", FILES)
    features = list_axes(chosen.schema.field(OUTPUTS).type)[1]
    done = {"sequences": 0, "steps": 0, "features": prod(features)}
    rows = chunk_rows(source, chosen)
    with written(target, chosen.schema) as writer:
        for batch in predictor.results(source.batches(rows), chosen):
            writer.write_batch(batch)
            done["sequences"] += batch.num_rows
            done["steps"] += compute.sum(compute.list_value_length(batch.column(OUTPUTS))).as_py() or 0
            advance(batch.num_rows)
    return done


def numbers_in(metadata: Any, name: str) -> int:
    """How many numbers a column of a Parquet file has, those inside lists counted one by one."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = [group.column(place) for group in groups for place in range(metadata.num_columns)]
    return sum(each.num_values for each in columns if f"{each.path_in_schema}.".startswith(f"{name}."))


def chunk_rows(source: Sequences, chosen: Chosen) -> int:
    """The number of rows to read at a time, so that a call for them takes about `CHUNK_BYTES`."""
    steps = source.numbers / max(1, prod(chosen.column.spec.shape) * source.rows)
    row_bytes = steps * sum(chosen.level_bytes)
    return int(min(CHUNK_ROWS, max(1, CHUNK_BYTES // max(1, row_bytes))))


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


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Turns errors of the block into a `FileError` that says that the file cannot be read."""
    pyarrow = pyarrow_module("pyarrow", FILES)
    if not os.path.exists(path):
        raise FileError(f"{path}: there is no such file")
    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or " ".join(str(error).split())).rstrip(".")
        raise FileError(f"{path}: this is no whole Parquet file ({reason})") from error


@contextmanager
def written(target: Path, schema: Any) -> Generator[Any]:
    """A writer of a Parquet file, which gets its name when the block ends without an error."""
    parquet = pyarrow_module("pyarrow.parquet", FILES)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:
            yield writer
        os.replace(partial, target)
    except OSError as error:
        raise FileError(f"{target}: the file cannot be written ({error.strerror or error})") from error
    finally:
        partial.unlink(missing_ok=True)
