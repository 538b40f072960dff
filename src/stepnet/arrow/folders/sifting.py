"""Runs rows, and separates those that cannot be run.

    rows --windows--> rows of a call --run--> results
                                     `--error--> halves --> halves --> ... --> one row, with the reason

The error of a call does not always name the row, so its rows are bisected until one is left.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from stepnet.arrow.blocks import NumberedBatch, cuts, row_sizes
from stepnet.arrow.predictor import JOINED, Predictor, Selection
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.ragged.arrow import pyarrow_module


@dataclass(frozen=True)
class BadRow:
    """A row on which the model cannot be run.

    row: its number in the file. message: the error of a call with only this row. records: the row.
    """

    row: int
    message: str
    records: Any

    def reason(self, name: str) -> str:
        """Returns the error of a rejected row without path (`name`) and row number: they have own columns."""
        return self.message.removeprefix(name).removeprefix(f", row {self.row}").removeprefix(": ")


@dataclass(frozen=True)
class BatchOutcome:
    """The outcome of one call of a model on rows of a table.

    results: a record batch, or None if no row has a result. bad: the rows that failed. rows: the number of
    all rows. steps: the number of steps of the rows with results.
    """

    results: Any
    bad: tuple[BadRow, ...]
    rows: int
    steps: int


def run_batch(batch: NumberedBatch, predictor: Predictor, selection: Selection) -> Iterator[BatchOutcome]:
    """Runs a model on the rows of a record batch, at most `JOINED` bytes at a time; yields the outcome of
    each such range of rows: its results, and the rows that could not be run with their errors.

    selection: the compiled model and the columns to use.
    """
    pyarrow = pyarrow_module()
    array = batch.records.column(predictor.column)
    for start, stop in cuts(row_sizes(array, selection.level_bytes, selection.compiled.pair_bytes), JOINED):
        window = NumberedBatch(batch.name, batch.first + start, batch.records.slice(start, stop - start))
        results, bad, steps = list[Any](), list[BadRow](), 0
        for rows, outcome in outcomes(window, predictor, selection):
            if isinstance(outcome, BadRow):
                bad.append(outcome)
            else:
                results += outcome
                steps += steps_of(rows.column(predictor.column))
        result = results[0] if len(results) == 1 else pyarrow.concat_batches(results) if results else None
        del results
        yield BatchOutcome(result, tuple(bad), stop - start, steps)


def outcomes(
    batch: NumberedBatch, predictor: Predictor, selection: Selection
) -> Iterator[tuple[Any, list[Any] | BadRow]]:
    """Runs a model on the rows of a record batch (`batch`); yields (rows, their results) or (one row, its
    error), in order. If a call fails, its rows are run in halves, until the rows with errors are found.

    selection: the compiled model and the columns to use.
    """
    rows = batch.records.num_rows
    message = ""
    try:
        results = list(predictor.results(iter([batch]), selection))
    except InputError as error:
        results, message = None, str(error)
    if results is not None:
        yield batch.records, results
        return
    if rows == 1:
        yield batch.records, BadRow(batch.first, message, batch.records)
        return
    for start, stop in ((0, rows // 2), (rows // 2, rows)):
        half = batch.records.slice(start, stop - start)
        yield from outcomes(NumberedBatch(batch.name, batch.first + start, half), predictor, selection)


def steps_of(array: Any) -> int:
    """Returns the number of steps of all sequences of a list column; null rows have none."""
    pyarrow = pyarrow_module()
    if array.null_count or not isinstance(array, pyarrow.ListArray | pyarrow.LargeListArray):
        compute = pyarrow_module("pyarrow.compute")  # which takes longer to import than to run small models
        return compute.sum(compute.list_value_length(array)).as_py() or 0
    offsets = np.from_dlpack(array.offsets) if len(array) else (0,)
    return int(offsets[-1] - offsets[0])
