"""Runs a model over a list column of a Parquet file into a new file, a chunk of rows at a time."""

import math
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import FileError, InputError, named
from stepnet.files.paths import free
from stepnet.layout.options import option
from stepnet.ragged import Ragged
from stepnet.rnn.compose import Layer, recurrences
from stepnet.rnn.program import Asked

OUTPUTS = "outputs"
CHUNK_BYTES = 1 << 26  # of outputs that are held at a time, about
CHUNK_ROWS = 4096


class Sequences:
    """A list column of a Parquet file, as the sequences that a recurrence takes.

    column: its name; by default the file's only list column. Raises `FileError` for a file that is no Parquet
    file, `InputError` if there is no such column.
    """

    def __init__(self, path: str | Path, column: str | None = None) -> None:
        self.path = Path(path)
        parquet = pyarrow_module("pyarrow.parquet")
        with reading(self.path):
            self.file = parquet.ParquetFile(self.path, memory_map=False)
            self.schema = self.file.schema_arrow
        self.rows: int = self.file.metadata.num_rows
        with named(str(self.path)):
            self.column = list_column(self.schema, column)

    def chunks(self, rows: int) -> Iterator[Any]:
        """The rows of the file as record batches of at most that many."""
        with reading(self.path):
            yield from self.file.iter_batches(batch_size=rows)

    def of(self, chunk: Any, width: int, dtype: Any) -> Ragged:
        """The sequences of one chunk of rows, each step `width` numbers of that dtype."""
        ragged = Ragged.from_arrow(chunk.column(self.column))
        if ragged.levels == 2 and ragged.features == ():  # many writers know no lists of a fixed size
            lengths = ragged.inner().lengths
            if (lengths != width).any():
                count = lengths[lengths != width][0]
                raise InputError(f"a step has {count} numbers, and the model takes {width}")
            ragged = Ragged(ragged.values.reshape(-1, width), ragged.offsets[:1])
        if ragged.features == () and width == 1:
            ragged = ragged.with_values(ragged.values.reshape(-1, 1))
        if ragged.levels != 1 or ragged.features != (width,):
            numbers = " x ".join(map(str, ragged.features)) or "1"
            raise InputError(f"a step has {numbers} numbers, and the model takes {width}")
        if ragged.dtype.kind != "f":
            raise InputError(
                f"the numbers are {ragged.dtype}, and the model takes {np.dtype(dtype)}; cast them"
            )
        return ragged.with_values(ragged.values.astype(dtype, copy=False))


@dataclass(frozen=True)
class Runnable:
    """What runs sequences: the numbers of a step, their dtype, and what gives the outputs of all steps."""

    width: int
    dtype: np.dtype[Any]
    outputs: Callable[[Ragged], Ragged]

    @classmethod
    def of(cls, layer: Layer, engine: Asked = "auto") -> "Runnable":
        """A layer on an engine."""
        return cls(*input_of(layer), lambda sequences: layer(sequences, engine=engine)[0])


def run(
    model: Runnable,
    source: Sequences,
    target: str | Path,
    *,
    force: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, int]:
    """Writes the outputs of every sequence to the file `target` as a column `outputs`, beside all other
    columns of the source; gives the numbers of `sequences`, `steps` and `features` that were written.

    Inputs are cast to the dtype of the model's. The file appears under its name only when it is
    complete. advance: called with the number of sequences just done. Raises `FileError` if the file exists,
    unless `force`.
    """
    target = free(target, force)
    others = [name for name in source.schema.names if name != source.column]
    if OUTPUTS in others:
        raise InputError(
            f"{source.path}: there is a column `{OUTPUTS}` already, which the outputs would be called"
        )
    width, dtype = model.width, model.dtype
    first = model.outputs(Ragged(np.empty((0, width), dtype), (np.zeros(1, np.int64),)))
    features = math.prod(first.features)
    done = {"sequences": 0, "steps": 0, "features": features}
    pyarrow = pyarrow_module("pyarrow")
    fields = [*(source.schema.field(name) for name in others), pyarrow.field(OUTPUTS, first.to_arrow().type)]
    with written(target, pyarrow.schema(fields)) as writer:
        for chunk in source.chunks(chunk_rows(source, width, features * first.dtype.itemsize)):
            with named(f"{source.path}, column `{source.column}`, row {done['sequences']} and on"):
                sequences = source.of(chunk, width, dtype)
                outputs = model.outputs(sequences)
            columns = [*(chunk.column(name) for name in others), outputs.to_arrow()]
            writer.write_batch(pyarrow.record_batch(columns, schema=writer.schema))
            done["sequences"] += len(sequences)
            done["steps"] += sequences.total
            advance(len(sequences))
    return done


def input_of(layer: Layer) -> tuple[int, np.dtype[Any]]:
    """The number of input features of a layer, and their dtype."""
    traced = recurrences(layer, "the model")[0].plan.traced
    type_ = traced.type_of(traced.inputs[0])
    return type_.size, np.dtype(type_.dtype)


def chunk_rows(source: Sequences, width: int, step_bytes: int) -> int:
    """The number of rows to run at a time, so that their outputs take about `CHUNK_BYTES`."""
    metadata = source.file.metadata
    numbers = 0
    for group in range(metadata.num_row_groups):
        columns = [metadata.row_group(group).column(place) for place in range(metadata.num_columns)]
        numbers += sum(c.num_values for c in columns if c.path_in_schema.split(".")[0] == source.column)
    row_bytes = numbers / max(1, width * source.rows) * step_bytes
    return int(min(CHUNK_ROWS, max(1, CHUNK_BYTES // max(1, row_bytes))))


def list_column(schema: Any, asked: str | None) -> str:
    """The column that holds the sequences; raises `InputError` if it is missing or ambiguous."""
    types = pyarrow_module("pyarrow.types")
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
    pyarrow = pyarrow_module("pyarrow")
    if not os.path.exists(path):
        raise FileError(f"{path}: there is no such file")
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        reason = (getattr(error, "strerror", None) or " ".join(str(error).split())).rstrip(".")
        raise FileError(f"{path}: this is no whole Parquet file ({reason})") from error


@contextmanager
def written(target: Path, schema: Any) -> Generator[Any]:
    """A writer of a Parquet file, which gets its name when the block ends without an error."""
    parquet = pyarrow_module("pyarrow.parquet")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:
            yield writer
        os.replace(partial, target)
    except OSError as error:
        raise FileError(f"{target}: the file cannot be written ({error.strerror or error})") from error
    finally:
        partial.unlink(missing_ok=True)


def pyarrow_module(name: str) -> Any:
    """A module of pyarrow; raises `InputError` if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError("Parquet files need pyarrow: pip install stepnet[arrow]") from error
