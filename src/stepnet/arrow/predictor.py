"""Models over record batches: columns are checked once against the schema, then batches run one by one."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any, cast

from stepnet.arrow.blocks import BatchPiece, NumberedBatch, concatenate, null_of, pieces, rows_of
from stepnet.arrow.columns import Column, result_column
from stepnet.arrow.runnable import CompiledModel, Runnable
from stepnet.arrow.sources import open_source
from stepnet.compiler.values.arguments import advised, checked_integer, flag, instance, kind, short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, StepnetError, named, printable
from stepnet.layout.options import option
from stepnet.model.file import FileModel, read_model
from stepnet.model.program import Asked
from stepnet.ragged.arrow import check_whole, pyarrow_module

MEMORY = 1 << 28
"""The default limit of the bytes that a call takes."""
LEFT_OUT = b"stepnet.left_out"
"""The metadata key of the list of layers that a model file has and the model does not run."""
COLUMN = "frames"
"""The default name of the list column."""
JOINED = 1 << 24
"""The bytes up to which small pieces are joined to one call. Larger calls do not take less time per step."""
SET_ASIDE = "call stepnet.arrow.run, or `stepnet run`, which sets rows aside"
"""The advice for a call with `bad=` of a function without it."""
OFFSETS = 32
"""The bytes of the offsets of a list: in the input, in the `Ragged`, and in the result."""


@dataclass(frozen=True)
class Selection:
    """The decision of how the batches of a schema are run, made once per schema.

    names: the columns that are passed on. compiled: the model. column: the reader of the list column.
    level_bytes: the bytes that a row, a step and an entry of each further level take. used: the Arrow type of
    each column that is read, by name. others: whether all other columns are passed on. schema: the schema of
    the results.
    """

    names: tuple[str, ...]
    compiled: CompiledModel
    column: Column
    level_bytes: tuple[int, ...]
    used: dict[str, Any]
    others: bool
    schema: Any


class Predictor:
    """A model over Arrow record batches: maps a batch to a batch, and with `over` a stream to a stream.

    `predict` uses it. It can be pickled for workers of other engines; each process compiles the model once.
    It has the arguments and errors of `predict`.

    >>> import numpy as np, pyarrow as pa, stepnet as sn
    >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=sn.Spec((), "float32"), inputs=())
    >>> predictor = Predictor(total, column="x", result="last")
    >>> batch = pa.record_batch({"id": [7, 8], "x": pa.array([[1, 2], None], pa.list_(pa.float32()))})
    >>> predictor(batch).to_pylist()
    [{'id': 7, 'last': 3.0}, {'id': 8, 'last': None}]
    >>> [part.num_rows for part in predictor.over([batch, batch])]
    [2, 2]
    """

    @advised(output="write result= in place of it", bad=SET_ASIDE)
    def __init__(
        self,
        model: Any,
        column: str = COLUMN,
        result: str = "last",
        keep: Iterable[str] | None = None,
        *,
        memory: int = MEMORY,
        engine: Asked = "auto",
        refuse_nan: bool = False,
        recurrent_only: bool = False,
    ) -> None:
        """Checks the arguments of a predictor, the same as of `predict`, and reads the model if it is a path;
        nothing is compiled until the type of the list column is known.
        """
        source = read_source(model, flag(recurrent_only, "recurrent_only"))
        self.model, self.left_out = source.model, source.left_out
        self.column = instance(column, str, "column is the name of the list column")
        self.runnable = runnable_of(source, result, engine)
        self.result, self.keep = result, None if keep is None else check_names(keep)
        self.memory = checked_integer(memory, "memory is a number of bytes, from 1 on", 1)
        self.engine = self.runnable.engine
        self.refuse_nan = flag(refuse_nan, "refuse_nan")
        self._compiled = dict[Any, tuple[Column, CompiledModel]]()

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns (constructor, arguments) to pickle the predictor with its model and not the file's path."""
        constructor = partial(Predictor, memory=self.memory, engine=self.engine, refuse_nan=self.refuse_nan)
        model = FileModel(self.model, self.left_out) if self.left_out else self.model
        return constructor, (model, self.column, self.result, self.keep)

    def __repr__(self) -> str:
        """The model, the columns and the kind of outputs, for debugging."""
        return f"Predictor({self.model!r}, column={self.column!r}, result={self.result!r}, keep={self.keep})"

    def __call__(self, batch: Any) -> Any:
        """Returns an Arrow record batch or table like the given one, with a column of the model's results."""
        schema, batches = open_source(batch)
        if schema is None:
            raise InputError(f"a Predictor is called with a record batch or a table, not {kind(batch)}")
        selection = self.select(schema)
        pyarrow, results = pyarrow_module(), list(self.results(number_batches(batches), selection))
        if isinstance(batch, pyarrow.RecordBatch):
            return results[0] if len(results) == 1 else pyarrow.concat_batches(results)
        return pyarrow.Table.from_batches(results, selection.schema)

    def schema(self, schema: Any) -> Any:
        """Returns the Arrow schema of the results for batches with the given schema; compiles the model."""
        meaning = "schema is the pyarrow Schema of the batches"
        return self.select(instance(schema, pyarrow_module().Schema, meaning)).schema

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the model's results for a stream of record batches, in order; nothing for an empty one."""
        schema, source = open_source(batches)
        if schema is None:
            schema, source = peek_schema(source)
        if schema is not None:
            yield from self.results(number_batches(source), self.select(schema))

    def select(self, schema: Any) -> Selection:
        """Decides how a predictor runs batches of an Arrow schema: the model, the columns that are read and
        passed on, and the schema of the results. Compiles the model once for each type of the list column.

        Raises `InputError` for columns that are missing, do not fit the model, or have the name of the
        result.
        """
        pyarrow = pyarrow_module()
        is_default = self.column == COLUMN
        check_columns(schema, [self.column], "; column=NAME names the list column" if is_default else "")
        others = tuple(name for name in schema.names if name != self.column)
        if self.result in (others if self.keep is None else self.keep):
            raise InputError(
                f"there is a column `{self.result}` already, and the result would have that name: "
                "rename the column, or do not pass it on"
            )
        names = others if self.keep is None else self.keep
        check_columns(schema, names)
        type_ = schema.field(self.column).type
        if type_ not in self._compiled:
            with named(f"column `{self.column}`"):
                column = Column.of(type_, self.runnable.spec, self.refuse_nan)
            self._compiled[type_] = column, CompiledModel.of(self.runnable, column.spec)
        column, compiled = self._compiled[type_]
        with named(f"the result `{self.result}`"):
            result = pyarrow.field(self.result, result_column(compiled.blank, None, column.large).type)
        *outer, inner = compiled.level_bytes
        return Selection(
            names,
            compiled,
            column,
            (*(size + OFFSETS for size in outer), inner + column.entry_bytes),
            {name: schema.field(name).type for name in (self.column, *names)},
            self.keep is None,
            pyarrow.schema([*(schema.field(name) for name in names), result], left_out(self.left_out)),
        )

    def results(self, batches: Iterator[NumberedBatch], selection: Selection) -> Iterator[Any]:
        """Yields the model's results for record batches, in order. Batches of few rows are collected for one
        call, up to `JOINED` bytes, or `memory` if that is less. An error is raised after the results before
        it.

        selection: the compiled model and the columns to use.
        """
        least, held, size = min(self.memory, JOINED), list[BatchPiece](), 0
        for batch in batches:
            try:
                for piece in self.pieces(batch, selection):
                    if size + piece.size > least:
                        yield from run_pieces(held, selection)
                        size = 0
                    held.append(piece)
                    size += piece.size
                    del piece  # frees its memory before the next one is made
                    if size >= least:
                        yield from run_pieces(held, selection)
                        size = 0
            except StepnetError:
                yield from run_pieces(held, selection)
                raise
            del batch  # frees its memory before the next one is made
        yield from run_pieces(held, selection)

    def pieces(self, batch: NumberedBatch, selection: Selection) -> Iterator[BatchPiece]:
        """Checks a batch, and yields its rows in pieces (ranges of rows) that one call of the model takes;
        errors name batch and column.

        selection: the compiled model and the columns to use.
        """
        records = batch.records
        with named(batch.name):
            check_same(records.schema, selection)
            array = records.column(self.column)
            with named(f"column `{self.column}`"):
                check_whole(array)
                passed = [records.column(name) for name in selection.names]
                sizes = selection.level_bytes, selection.compiled.pair_bytes
                yield from pieces(batch, array, passed, selection.column, *sizes, self.memory)


@advised(output="write result= in place of it", bad=SET_ASIDE)
def predict(
    batches: Any,
    model: Any,
    column: str = COLUMN,
    result: str = "last",
    keep: Iterable[str] | None = None,
    *,
    memory: int = MEMORY,
    engine: Asked = "auto",
    refuse_nan: bool = False,
    recurrent_only: bool = False,
) -> Any:
    """Runs a model over a stream of Arrow record batches; returns a stream with a column of results.

    Rows stay in their order. Each batch gives one batch, except that a batch larger than `memory` allows
    gives several. Nothing runs before it is asked for. The results of the engine llvm, which "auto" takes,
    have the same bits however the rows are cut into batches.

    Args:
        batches: An iterator of record batches, or an object that has them: a table, a dataset, a reader, or
            anything with Arrow's C stream, such as relations of DuckDB and frames of Polars.
        model: A recurrence, a `Stack`, a `Bidirectional`, a `Graph`, or the path of a model file, which is
            read as by `stepnet.load`.
        column: The name of the list column. A row is a sequence of steps: numbers, lists of numbers of one
            size, or sequences again for a nested recurrence. The numbers are cast to the model's dtype, from
            floats to floats and from whole numbers to whole numbers. A null row has a null result.
        result: "last" for the last output of each sequence, zeros for an empty one; "outputs" for the outputs
            of all steps. The result column has this name. The last output of a `Bidirectional` is that of
            each direction; the backward one has it at the first step. Outputs that a graph computes once per
            sequence are the same for both.
        keep: The names of the columns to pass on; by default all but the list column.
        memory: The most bytes that a call of the model may take, sequences and outputs included. A single
            sequence that takes more is run by itself.
        engine: An engine, or several in order of preference.
        refuse_nan: Whether NaN and infinite numbers in sequences are an error.
        recurrent_only: Whether to run only the recurrent layers of a model file. The metadata of the results'
            schema, "stepnet.left_out", then lists the other layers and arrays, as JSON.

    Returns:
        A pyarrow `RecordBatchReader`: an iterator of record batches with a schema.

    Raises:
        InputError: For columns that are missing, do not fit the model or have the result's name, for no
            batches at all without a schema, and without pyarrow. While batches are read, naming batch and
            row: for nulls inside sequences, steps of another size, numbers that the model's dtype does not
            hold, a schema that changes, and, with `refuse_nan`, NaN and infinite numbers.
        FileError: For a model file that cannot be read.
        LayoutError: For a model file with layers that are not recurrent, naming them, unless
            `recurrent_only`.

    >>> import numpy as np, pyarrow as pa, stepnet as sn
    >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=sn.Spec((), "float32"), inputs=())
    >>> table = pa.table({"id": [7, 8], "x": pa.array([[1, 2], [3]], pa.list_(pa.float32()))})
    >>> predict(table, total, column="x", result="outputs").read_all().to_pylist()
    [{'id': 7, 'outputs': [1.0, 3.0]}, {'id': 8, 'outputs': [3.0]}]
    """
    predictor = Predictor(
        model,
        column,
        result,
        keep,
        memory=memory,
        engine=engine,
        refuse_nan=refuse_nan,
        recurrent_only=recurrent_only,
    )
    schema, source = open_source(batches)
    if schema is None:
        schema, source = peek_schema(source)
        if schema is None:
            raise InputError(
                "there are no batches, so nothing is known of their columns: give a table or a reader, "
                "which has a schema"
            )
    selection = predictor.select(schema)
    return pyarrow_module().RecordBatchReader.from_batches(
        selection.schema, predictor.results(number_batches(source), selection)
    )


def read_source(model: Any, recurrent_only: bool) -> FileModel:
    """Reads a model from a path, or wraps a model as a `FileModel`, so that both are used alike. Raises
    `InputError` for recurrent_only (leave layers out that are not recurrent) without a path.
    """
    if isinstance(model, str) or hasattr(model, "__fspath__"):
        with named("model") if os.path.isdir(model) else nullcontext():  # it may be the inputs
            return read_model(model, recurrent_only=recurrent_only)
    if recurrent_only:
        raise InputError(
            "recurrent_only applies to a model file, and the model is not a path: give the path of the file"
        )
    return model if isinstance(model, FileModel) else FileModel(model)


def runnable_of(source: FileModel, result: str, engine: Asked) -> Runnable:
    """Converts a model to a function of sequences, a `Runnable`; its errors name the file that has the model.

    result: "last" for the last output of each sequence, "outputs" for the outputs of all steps. engine: the
    engine, or several in order of preference.
    """
    if not source.path:
        return Runnable.of(source.model, result, engine)
    with named(source.path):
        return Runnable.of(source.model, result, engine)


def left_out(names: Iterable[str]) -> dict[bytes, bytes] | None:
    """Returns schema metadata that lists the layers of a model file that are not run; None without any."""
    return {LEFT_OUT: json.dumps([*names]).encode()} if names else None


def number_batches(batches: Iterator[Any]) -> Iterator[NumberedBatch]:
    """Yields the record batches of a stream, each with a name for messages, such as "batch 0"."""
    return (NumberedBatch(f"batch {number}", 0, records) for number, records in enumerate(batches))


def peek_schema(batches: Iterator[Any]) -> tuple[Any | None, Iterator[Any]]:
    """Returns (schema of the first batch or None, iterator of all batches) of a stream without a schema."""
    first = next(batches, None)
    return (None, batches) if first is None else (first.schema, chain([first], batches))


def run_pieces(held: list[BatchPiece], selection: Selection) -> Iterator[Any]:
    """Runs the model on pieces of batches in one call; yields a record batch of results for each piece.

    held: the pieces (ranges of rows of record batches); the list is emptied, to free memory early. selection:
    the compiled model and the schema of results. Errors name the rows. Nothing is yielded for no pieces.
    """
    if not held:
        return
    pyarrow = pyarrow_module()
    block = held.copy()
    held.clear()
    with named(rows_of(block)):
        outputs = selection.compiled.run(concatenate([piece.sequences for piece in block]))
    passed = [(piece.columns, piece.rows) for piece in block]
    result = result_column(outputs, null_of(block), selection.column.large)
    del block, outputs
    start = 0
    while passed:
        columns, rows = passed.pop(0)
        yield pyarrow.RecordBatch.from_arrays([*columns, result.slice(start, rows)], schema=selection.schema)
        start += rows


def check_names(keep: Any) -> tuple[str, ...]:
    """Checks the user's keep=, names of columns to pass on, and returns it as a tuple; raises `InputError`
    for other values and repeated names.
    """
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise InputError(f"keep is a list of names of columns, not {short_repr(keep)}")
    given = cast("Iterable[Any]", keep)
    names = tuple(instance(name, str, "keep is a list of names of columns") for name in given)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"keep has `{printable(twice[0])}` twice")
    return names


def check_columns(schema: Any, names: Iterable[str], advice: str = "") -> None:
    """Raises `InputError` unless exactly one column of an Arrow schema has each name. advice: what to do
    where there is none, for the message.
    """
    for name in names:
        count = schema.names.count(name)
        if count > 1:
            raise InputError(f"there are {count} columns `{printable(name)}`; rename all but one")
        if not count:
            if "," in name and set(map(str.strip, name.split(","))) <= set(schema.names):
                advice = f"; give each by itself: {option('keep')}"
            present = printable(", ".join(schema.names)) or "none"
            raise InputError(f"there is no column `{printable(name)}`; there are {present}{advice}")


def check_same(schema: Any, selection: Selection) -> None:
    """Raises `InputError` if the columns of a record batch differ from those of the batches before it: if a
    column that is read or passed on is missing or has another type, or if there is a new column and all are
    passed on.

    schema: the batch's. selection: the columns that are read and passed on, with their types.
    """
    for name, type_ in selection.used.items():
        check_columns(schema, [name])
        if schema.field(name).type != type_:
            raise InputError(
                f"column `{printable(name)}` is {schema.field(name).type}, and was {type_} before; cast one "
                "of them"
            )
    further = [name for name in schema.names if name not in selection.used] if selection.others else []
    if further:
        raise InputError(
            f"there is a column `{printable(further[0])}`, which was not there before; name the "
            "columns to pass on with keep="
        )
