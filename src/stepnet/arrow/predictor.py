"""Models over record batches: columns are checked once by the schema, and the model runs batch by batch."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, cast

from stepnet.arrow.blocks import Batch, Piece, joined, null_of, pieces, rows_of
from stepnet.arrow.columns import Column
from stepnet.arrow.results import result_column
from stepnet.arrow.runnable import Compiled, Runnable
from stepnet.arrow.sources import opened
from stepnet.errors import InputError, StepnetError, named, printable
from stepnet.model_file import FileModel, read_model
from stepnet.ragged.arrow import check_whole, pyarrow_module
from stepnet.rnn.program import Asked
from stepnet.values.arguments import flag, instance, kind, shown, whole

MEMORY = 1 << 28
"""The default limit of the bytes that a call takes."""
LEFT_OUT = b"stepnet.left_out"
"""The key of the metadata that lists what was left out of a model file."""
JOINED = 1 << 24
"""The number of bytes up to which small pieces are joined. Larger calls do not take less time per step."""
OFFSETS = 32
"""The bytes of the offsets of a list: in the input, in the `Ragged`, and in the result."""


@dataclass(frozen=True)
class Chosen:
    """How batches of a schema are run.

    names: the columns that are passed on. compiled: the model. column: how the list column is read.
    level_bytes: the bytes that a row, a step and an entry of each further level take. used: the type of each
    column that is read. others: whether all other columns are passed on. schema: the schema of the results.
    """

    names: tuple[str, ...]
    compiled: Compiled
    column: Column
    level_bytes: tuple[int, ...]
    used: dict[str, Any]
    others: bool
    schema: Any


class Predictor:
    """A model over Arrow record batches: a function from batch to batch, and from a stream to a stream.

    It is what `predict` runs, for workers of other engines: it can be pickled, and each process compiles the
    model once. Its arguments and errors are those of `predict`.

    >>> import numpy as np, pyarrow as pa, stepnet as sn
    >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=sn.Spec((), "float32"), inputs=())
    >>> predictor = Predictor(total, column="x", output="last")
    >>> batch = pa.record_batch({"id": [7, 8], "x": pa.array([[1, 2], None], pa.list_(pa.float32()))})
    >>> predictor(batch).to_pylist()
    [{'id': 7, 'last': 3.0}, {'id': 8, 'last': None}]
    >>> [part.num_rows for part in predictor.over([batch, batch])]
    [2, 2]
    """

    def __init__(
        self,
        model: Any,
        column: str = "frames",
        output: str = "last",
        keep: Iterable[str] | None = None,
        *,
        memory: int = MEMORY,
        engine: Asked = "auto",
        refuse_nan: bool = False,
        recurrent_only: bool = False,
    ) -> None:
        source = read_source(model, flag(recurrent_only, "recurrent_only"))
        self.model, self.left_out = source.model, source.left_out
        self.column = instance(column, str, "column is the name of the list column")
        self.runnable = runnable_of(source, output, engine)
        self.output, self.keep = output, None if keep is None else checked_names(keep)
        self.memory = whole(memory, "memory is a number of bytes, from 1 on", 1)
        self.engine, self.refuse_nan = engine, flag(refuse_nan, "refuse_nan")
        self._compiled = dict[Any, tuple[Column, Compiled]]()

    def __reduce__(self) -> tuple[Any, ...]:
        """The arguments it was made from, with the model of a file as it was read."""
        made = partial(Predictor, memory=self.memory, engine=self.engine, refuse_nan=self.refuse_nan)
        model = FileModel(self.model, self.left_out) if self.left_out else self.model
        return made, (model, self.column, self.output, self.keep)

    def __repr__(self) -> str:
        return f"Predictor({self.model!r}, column={self.column!r}, output={self.output!r}, keep={self.keep})"

    def __call__(self, batch: Any) -> Any:
        """The results of a record batch as a record batch, or of a table as a table."""
        schema, batches = opened(batch)
        if schema is None:
            raise InputError(f"a Predictor is called with a record batch or a table, not {kind(batch)}")
        chosen = self.choose(schema)
        pyarrow, made = pyarrow_module(), list(self.results(numbered(batches), chosen))
        if isinstance(batch, pyarrow.RecordBatch):
            return made[0] if len(made) == 1 else pyarrow.concat_batches(made)
        return pyarrow.Table.from_batches(made, chosen.schema)

    def schema(self, schema: Any) -> Any:
        """The Arrow schema of the results for batches of a schema. The model is compiled for it."""
        meaning = "schema is the pyarrow Schema of the batches"
        return self.choose(instance(schema, pyarrow_module().Schema, meaning)).schema

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The results of a stream of record batches, in the same order; none of none. See `predict`."""
        schema, source = opened(batches)
        if schema is None:
            schema, source = begun(source)
        if schema is not None:
            yield from self.results(numbered(source), self.choose(schema))

    def choose(self, schema: Any) -> Chosen:
        """How batches of a schema are run; raises `InputError` for columns that do not fit."""
        pyarrow = pyarrow_module()
        check_columns(schema, [self.column])
        others = tuple(name for name in schema.names if name != self.column)
        if self.output in (others if self.keep is None else self.keep):
            raise InputError(
                f"there is a column `{self.output}` already, which the result would be called: "
                "rename it, or do not pass it on"
            )
        names = others if self.keep is None else self.keep
        check_columns(schema, names)
        type_ = schema.field(self.column).type
        if type_ not in self._compiled:
            with named(f"column `{self.column}`"):
                column = Column.of(type_, self.runnable.spec, self.refuse_nan)
            self._compiled[type_] = column, Compiled.of(self.runnable, column.spec)
        column, compiled = self._compiled[type_]
        with named(f"the result `{self.output}`"):
            result = pyarrow.field(self.output, result_column(compiled.blank, None, column.large).type)
        *outer, inner = compiled.level_bytes
        return Chosen(
            names,
            compiled,
            column,
            (*(size + OFFSETS for size in outer), inner + column.entry_bytes),
            {name: schema.field(name).type for name in (self.column, *names)},
            self.keep is None,
            pyarrow.schema([*(schema.field(name) for name in names), result], left_out(self.left_out)),
        )

    def results(self, batches: Iterator[Batch], chosen: Chosen) -> Iterator[Any]:
        """The results of batches. What came before a batch with an error is given first."""
        least, held, size = min(self.memory, JOINED), list[Piece](), 0
        for batch in batches:
            try:
                for piece in self.pieces(batch, chosen):
                    if size + piece.size > least:
                        yield from run_together(held, chosen)
                        size = 0
                    held.append(piece)
                    size += piece.size
                    del piece  # or it would be held beside the next
                    if size >= least:
                        yield from run_together(held, chosen)
                        size = 0
            except StepnetError:
                yield from run_together(held, chosen)
                raise
            del batch  # or it would be held beside the next
        yield from run_together(held, chosen)

    def pieces(self, batch: Batch, chosen: Chosen) -> Iterator[Piece]:
        """The rows of a batch in pieces, checked."""
        records = batch.records
        with named(batch.name):
            check_same(records.schema, chosen)
            array = records.column(self.column)
            with named(f"column `{self.column}`"):
                check_whole(array)
                passed = [records.column(name) for name in chosen.names]
                yield from pieces(batch, array, passed, chosen.column, chosen.level_bytes, self.memory)


def predict(
    batches: Any,
    model: Any,
    column: str = "frames",
    output: str = "last",
    keep: Iterable[str] | None = None,
    *,
    memory: int = MEMORY,
    engine: Asked = "auto",
    refuse_nan: bool = False,
    recurrent_only: bool = False,
) -> Any:
    """The results of a model for each row of a stream of Arrow record batches, as such a stream.

    Rows stay in their order. Batches come out as they came in, but for one that is larger than `memory`
    allows, which comes out in several. Nothing is run before it is asked for. Results of the
    engine llvm, which "auto" takes, have the same bits however the rows are cut into batches.

    Args:
        batches: An iterator of record batches, or what has them: a table, a dataset, a reader, and all that
            has Arrow's C stream, as relations of DuckDB and frames of Polars.
        model: A recurrence, a `Stack`, a `Bidirectional`, a `Graph`, or the path of a model file, which is
            read as by `stepnet.load`.
        column: The name of the list column. A row is a sequence of steps: numbers, lists of numbers of one
            size, or sequences again for a nested recurrence. The numbers are cast to the model's dtype, from
            floats to floats and from whole numbers to whole numbers. A null is a null in the result.
        output: "last" for the last output of each sequence, zeros for an empty one; "outputs" for those of
            all its steps. The result has this name. The last output of a `Bidirectional` is that of each
            direction, and the backward one has it at the first step. Outputs that a graph computes once for
            each sequence stay as they are.
        keep: The names of the columns that are passed on; by default all but the list column.
        memory: How many bytes a call of the model takes at most, sequences and outputs included. A single
            sequence that takes more is run by itself.
        engine: An engine, or several in order of preference.
        refuse_nan: Whether NaN and infinite numbers in sequences are an error.
        recurrent_only: Whether to run only the recurrent layers of a model file. The metadata of the
            results' schema, "stepnet.left_out", lists what was left out, as JSON.

    Returns:
        A pyarrow `RecordBatchReader`: an iterator of record batches with a schema.

    Raises:
        InputError: For columns that are missing, do not fit the model or have the result's name, and for no
            batches at all without a schema. While batches are read, naming batch and row: for nulls inside
            sequences, steps of another size, numbers that the model's dtype does not hold, and a schema that
            changes. With `refuse_nan` for NaN and infinite numbers. Without pyarrow.
        FileError: For a model file that cannot be read.
        LayoutError: For a model file that is more than recurrent layers, naming the others, unless
            `recurrent_only`.

    >>> import numpy as np, pyarrow as pa, stepnet as sn
    >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=sn.Spec((), "float32"), inputs=())
    >>> table = pa.table({"id": [7, 8], "x": pa.array([[1, 2], [3]], pa.list_(pa.float32()))})
    >>> predict(table, total, column="x", output="outputs").read_all().to_pylist()
    [{'id': 7, 'outputs': [1.0, 3.0]}, {'id': 8, 'outputs': [3.0]}]
    """
    predictor = Predictor(
        model,
        column,
        output,
        keep,
        memory=memory,
        engine=engine,
        refuse_nan=refuse_nan,
        recurrent_only=recurrent_only,
    )
    schema, source = opened(batches)
    if schema is None:
        schema, source = begun(source)
        if schema is None:
            raise InputError(
                "there are no batches, so nothing is known of their columns: give a table or a reader, "
                "which has a schema"
            )
    chosen = predictor.choose(schema)
    return pyarrow_module().RecordBatchReader.from_batches(
        chosen.schema, predictor.results(numbered(source), chosen)
    )


def read_source(model: Any, recurrent_only: bool) -> FileModel:
    """A model and what it lacks of its file; raises `InputError` for `recurrent_only` with no path."""
    if isinstance(model, str) or hasattr(model, "__fspath__"):
        return read_model(model, recurrent_only=recurrent_only)
    if recurrent_only:
        raise InputError("recurrent_only is about a model file, and the model is none: give its path")
    return model if isinstance(model, FileModel) else FileModel(model)


def runnable_of(source: FileModel, output: str, engine: Asked) -> Runnable:
    """The `Runnable` of a model; an error names the file that the model was read from."""
    if not source.path:
        return Runnable.of(source.model, output, engine)
    with named(source.path):
        return Runnable.of(source.model, output, engine)


def left_out(names: Iterable[str]) -> dict[bytes, bytes] | None:
    """The metadata of a schema that lists what was left out of a model file; None if nothing was."""
    return {LEFT_OUT: json.dumps([*names]).encode()} if names else None


def numbered(batches: Iterator[Any]) -> Iterator[Batch]:
    """The record batches of a stream, named by their numbers."""
    return (Batch(f"batch {number}", 0, records) for number, records in enumerate(batches))


def begun(batches: Iterator[Any]) -> tuple[Any | None, Iterator[Any]]:
    """The schema of the first batch, and all batches; None where there is none."""
    first = next(batches, None)
    return (None, batches) if first is None else (first.schema, chain([first], batches))


def run_together(held: list[Piece], chosen: Chosen) -> Iterator[Any]:
    """The results of pieces, which are run in one call and dropped, a record batch for each."""
    if not held:
        return
    pyarrow = pyarrow_module()
    block = held.copy()
    held.clear()
    with named(rows_of(block)):
        outputs = chosen.compiled.run(joined([piece.sequences for piece in block]))
    passed = [(piece.columns, piece.rows) for piece in block]
    result = result_column(outputs, null_of(block), chosen.column.large)
    del block, outputs
    start = 0
    while passed:
        columns, rows = passed.pop(0)
        yield pyarrow.RecordBatch.from_arrays([*columns, result.slice(start, rows)], schema=chosen.schema)
        start += rows


def checked_names(keep: Any) -> tuple[str, ...]:
    """The names of columns; raises `InputError` for what is none, and for names that are there twice."""
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise InputError(f"keep is a list of names of columns, not {shown(keep)}")
    given = cast("Iterable[Any]", keep)
    names = tuple(instance(name, str, "keep is a list of names of columns") for name in given)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"keep has `{printable(twice[0])}` twice")
    return names


def check_columns(schema: Any, names: Iterable[str]) -> None:
    """Raises `InputError` unless each is the name of one column."""
    for name in names:
        count = schema.names.count(name)
        if count > 1:
            raise InputError(f"there are {count} columns `{printable(name)}`; rename all but one")
        if not count:
            present = printable(", ".join(schema.names)) or "none"
            raise InputError(f"there is no column `{printable(name)}`; there are {present}")


def check_same(schema: Any, chosen: Chosen) -> None:
    """Raises `InputError` for a batch with other columns than those before it."""
    for name, type_ in chosen.used.items():
        check_columns(schema, [name])
        if schema.field(name).type != type_:
            raise InputError(
                f"column `{printable(name)}` is {schema.field(name).type}, and was {type_} before; cast one "
                "of them"
            )
    further = [name for name in schema.names if name not in chosen.used] if chosen.others else []
    if further:
        raise InputError(
            f"there is a column `{printable(further[0])}`, which was not there before; keep= names those to "
            "pass on"
        )
