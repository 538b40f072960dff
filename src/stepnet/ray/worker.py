"""What an actor of Ray holds: a model that is compiled once, and run over the blocks that it is called with.

block (a table in the object store)  ->  sequences where they lie  ->  tables of results, piece by piece
"""

import pickle
from collections.abc import Generator, Iterator
from typing import Any

from stepnet.arrow.blocks import Batch
from stepnet.arrow.predictor import Predictor
from stepnet.engines.threads import set_threads, threads
from stepnet.errors import StepnetError
from stepnet.ragged.arrow import pyarrow_module
from stepnet.ray.installed import installed

UserCodeException: Any = installed("ray.exceptions").UserCodeException
"""Ray takes all other errors for its own, and asks to report them."""


class WorkerError(StepnetError, UserCodeException):
    """Rows that a model does not take, or a model that does not run there, in a worker of Ray.

    `reason` is the message without what Ray adds: its name of the worker, the traceback there, and advice.

    >>> error = WorkerError("a block of 2 rows: column `frames`: row 1 has a null")
    >>> error.args = (f"{error.args[0]} Failed after 1/1 attempts.",)  # as Ray does
    >>> error.reason
    'a block of 2 rows: column `frames`: row 1 has a null'
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ModelWorker:
    """A function from a table to tables of results. Ray makes one in each actor.

    model: a pickled `Predictor`. count: how many threads a call may use, where the environment of the worker
    does not say fewer.
    """

    def __init__(self, model: bytes, count: int) -> None:
        set_threads(min(count, threads()))
        try:
            self.predictor: Predictor = pickle.loads(model)
        except ModuleNotFoundError as error:
            raise WorkerError(
                f"the model needs a module that this worker lacks: {error}; install it there, or send it: "
                'runtime_env={"py_modules": [...]}'
            ) from None

    def __call__(self, table: Any) -> Generator[Any]:
        """The results of a table. Each is given as it is there, so that not all are held at a time."""
        pyarrow = pyarrow_module()
        try:
            chosen = self.predictor.choose(table.schema)
            for batch in self.predictor.results(batches_of(table), chosen):
                yield pyarrow.Table.from_batches([batch])
        except StepnetError as error:
            raise WorkerError(str(error)) from None


def batches_of(table: Any) -> Iterator[Batch]:
    """The record batches of a block, by the number of their first row."""
    first = 0
    for records in table.to_batches():
        yield Batch(f"a block of {table.num_rows} rows", first, records)
        first += records.num_rows
