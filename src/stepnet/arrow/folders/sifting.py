"""The results of rows, and those rows that have none.

    rows --windows--> rows of a call --run--> results
                                     `--wrong--> halves --> halves --> ... --> one row, with the reason

The error of a call does not always name the row. So its rows are halved until one is left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepnet.arrow.blocks import Batch, cuts, row_sizes
from stepnet.arrow.predictor import JOINED, Chosen, Predictor
from stepnet.errors import InputError
from stepnet.ragged.arrow import pyarrow_module


@dataclass(frozen=True)
class Bad:
    """A row without a result.

    row: its number in the file. message: the error of a call with this row alone. records: the row.
    """

    row: int
    message: str
    records: Any

    def reason(self, name: str) -> str:
        """The message without the name of the file before it, and without the row where that follows."""
        return self.message.removeprefix(name).removeprefix(f", row {self.row}").removeprefix(": ")


@dataclass(frozen=True)
class Sifted:
    """The results of the rows of one call, and the rows that have none.

    results: a record batch; None if no row has a result. bad: the rows without results. rows: the number of
    all rows. steps: the number of steps of the rows with results.
    """

    results: Any
    bad: tuple[Bad, ...]
    rows: int
    steps: int


def sifted(batch: Batch, predictor: Predictor, chosen: Chosen) -> Iterator[Sifted]:
    """The results of a batch and the rows without results, for as many rows at a time as a call takes."""
    pyarrow = pyarrow_module()
    array = batch.records.column(predictor.column)
    for start, stop in cuts(row_sizes(array, chosen.level_bytes), JOINED):
        window = Batch(batch.name, batch.first + start, batch.records.slice(start, stop - start))
        results, bad, steps = list[Any](), list[Bad](), 0
        for rows, outcome in outcomes(window, predictor, chosen):
            if isinstance(outcome, Bad):
                bad.append(outcome)
            else:
                results += outcome
                steps += steps_of(rows.column(predictor.column))
        made = results[0] if len(results) == 1 else pyarrow.concat_batches(results) if results else None
        del results
        yield Sifted(made, tuple(bad), stop - start, steps)


def outcomes(batch: Batch, predictor: Predictor, chosen: Chosen) -> Iterator[tuple[Any, list[Any] | Bad]]:
    """The rows of a batch, in order, each with their results, or with what is wrong with a single one."""
    rows = batch.records.num_rows
    message = ""
    try:
        made = list(predictor.results(iter([batch]), chosen))
    except InputError as error:
        made, message = None, str(error)
    if made is not None:
        yield batch.records, made
        return
    if rows == 1:
        yield batch.records, Bad(batch.first, message, batch.records)
        return
    for start, stop in ((0, rows // 2), (rows // 2, rows)):
        half = batch.records.slice(start, stop - start)
        yield from outcomes(Batch(batch.name, batch.first + start, half), predictor, chosen)


def steps_of(array: Any) -> int:
    """How many steps the sequences of a column have."""
    compute = pyarrow_module("pyarrow.compute")
    return compute.sum(compute.list_value_length(array)).as_py() or 0
