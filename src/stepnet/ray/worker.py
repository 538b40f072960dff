"""The class that an actor of Ray runs: it compiles a model once, and runs it over the blocks it is called
with.

block (a table in the object store)  ->  sequences without a copy  ->  tables of results, piece by piece
"""

import pickle
from collections.abc import Generator, Iterator
from typing import Any

from stepnet.arrow.blocks import NumberedBatch
from stepnet.arrow.predictor import Predictor
from stepnet.compiler.targets.threads import set_threads, threads
from stepnet.errors import StepnetError
from stepnet.ragged.arrow import pyarrow_module
from stepnet.ray.installed import installed

UserCodeException: Any = installed("ray.exceptions").UserCodeException
"""A base class for errors of users: Ray takes all others for its own, and asks to report them."""


class WorkerError(StepnetError, UserCodeException):
    """Raised in a worker of Ray for rows that a model does not take, or a model that does not run there.

    `reason` is the message without the text that Ray adds: the worker's name, its traceback, and advice.

    >>> error = WorkerError("a block of 2 rows: column `frames`: row 1 has a null")
    >>> error.args = (f"{error.args[0]} Failed after 1/1 attempts.",)  # as Ray does
    >>> error.reason
    'a block of 2 rows: column `frames`: row 1 has a null'
    """

    def __init__(self, reason: str) -> None:
        """Stores the error message, `reason`, as an attribute too, since Ray adds text to it."""
        super().__init__(reason)
        self.reason = reason


class ModelWorker:
    """A callable from a table to tables of results, of which Ray makes one in each actor.

    model: a pickled `Predictor`. count: the number of threads that a call may use, unless the worker's
    environment allows fewer.
    """

    def __init__(self, model: bytes, count: int) -> None:
        """Sets the number of threads to `count`, or fewer where the worker allows fewer, and unpickles the
        model. Raises `WorkerError` if a module that it needs is missing on the worker.
        """
        set_threads(min(count, threads()))
        try:
            self.predictor: Predictor = pickle.loads(model)
        except ModuleNotFoundError as error:
            raise WorkerError(
                f"the model needs a module that this worker lacks: {error}; install it there, or send it: "
                'runtime_env={"py_modules": [...]}'
            ) from None

    def __call__(self, table: Any) -> Generator[Any]:
        """Runs the model over an Arrow table and yields the results as tables, piece by piece, so that they
        are not all in memory at a time. Raises `WorkerError` in place of stepnet's errors.
        """
        pyarrow = pyarrow_module()
        try:
            selection = self.predictor.select(table.schema)
            for batch in self.predictor.results(batches_of(table), selection):
                yield pyarrow.Table.from_batches([batch])
        except StepnetError as error:
            raise WorkerError(str(error)) from None


def batches_of(table: Any) -> Iterator[NumberedBatch]:
    """Yields a table's record batches, each with the number of its first row for messages."""
    first = 0
    for records in table.to_batches():
        yield NumberedBatch(f"a block of {table.num_rows} rows", first, records)
        first += records.num_rows
