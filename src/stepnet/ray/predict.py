"""Models over the rows of a dataset of Ray, by actors that compile the model once each."""

from collections.abc import Iterable
from typing import Any

from stepnet.arrow.predictor import MEMORY, Predictor
from stepnet.arrow.runnable import CompiledModel
from stepnet.compiler.values.arguments import advised, kind
from stepnet.errors import InputError
from stepnet.model.program import Asked
from stepnet.ragged.arrow import pyarrow_module
from stepnet.ray.installed import installed
from stepnet.ray.options import check_options, pool, processors, worker_bytes
from stepnet.ray.pickled import pickled
from stepnet.ray.worker import ModelWorker

Dataset: Any = installed("ray.data").Dataset


@advised(output="write result= in place of it")
def predict(
    dataset: Any,
    model: Any,
    column: str = "frames",
    result: str = "last",
    keep: Iterable[str] | None = None,
    *,
    concurrency: int | tuple[int, int] | None = None,
    num_cpus: float | None = None,
    memory: int = MEMORY,
    engine: Asked = "auto",
    refuse_nan: bool = False,
    recurrent_only: bool = False,
    **options: Any,
) -> Any:
    """Runs a model over each row of a dataset of Ray; returns a dataset with a column of results.

    Nothing runs before the results are asked for. The workers are actors of Ray, which compile the model
    once. They read blocks in Ray's object store without a copy. The results of the engine llvm, which "auto"
    takes, have the same bits for any number of workers, and however the rows are cut into blocks.

    Args:
        dataset: A `ray.data.Dataset`.
        model: A recurrence, a `Stack`, a `Bidirectional`, a `Graph`, or the path of a model file, which is
            read here. The model is checked here too, and so are columns whose types Ray knows without
            running.
        column: The name of the list column, as for `stepnet.arrow.predict`.
        result: "last" for the last output of each sequence, "outputs" for the outputs of all steps.
        keep: The names of the columns to pass on; by default all but the list column.
        concurrency: The number of workers, or the least and the most, as `(1, 8)`; by default as many as
            there are work and resources for.
        num_cpus: The processors that Ray reserves for a worker, which uses as many threads, but not more than
            `sn.set_threads` allows here. A fraction, as 0.5, is one thread. By default the number of
            `sn.set_threads`, or one.
        memory: The most bytes that a call of the model may take, sequences and outputs included. Ray reserves
            them for a worker, in addition to its process and the parameters.
        engine: An engine, or several in order of preference.
        refuse_nan: Whether NaN and infinite numbers in sequences are an error.
        recurrent_only: Whether to run only the recurrent layers of a model file, as for
            `stepnet.arrow.predict`.
        options: Further options of Ray's `Dataset.map_batches`, for its actors: `runtime_env`, `resources`.

    Returns:
        A `ray.data.Dataset`. A dataset without rows gives one without rows.

    Raises:
        InputError: For a model or columns that do not fit, a model that cannot be pickled, options that Ray
            does not take, and without Ray.
        FileError: For a model file that cannot be read.
        WorkerError: When the results are asked for, for rows that the model does not take; with `refuse_nan`
            also for rows with NaN and infinite numbers.

    >>> import ray.data, pyarrow as pa, stepnet as sn
    >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=sn.Spec((), "float32"), inputs=())
    >>> table = pa.table({"id": [7, 8], "x": pa.array([[1, 2], [3]], pa.list_(pa.float32()))})
    >>> results = predict(ray.data.from_arrow(table), total, column="x", concurrency=2)  # nothing runs yet
    >>> isinstance(results, ray.data.Dataset)
    True
    """
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"dataset is a Dataset of Ray, and is {kind(dataset)}: make one with ray.data.from_arrow, "
            "from_pandas or read_parquet"
        )
    check_options(options)
    strategy, (reserved, count) = pool(concurrency), processors(num_cpus)
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
    check(predictor, dataset)
    sent = pickled(predictor)
    return dataset.map_batches(
        ModelWorker,
        fn_constructor_args=(sent, count),
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
        compute=strategy,
        num_cpus=reserved,
        memory=worker_bytes(predictor.memory, len(sent)),
        **options,
    )


def check(predictor: Predictor, dataset: Any) -> None:
    """Compiles the model of a predictor here, before any worker does, to refuse it early: for the dataset's
    columns, if Ray knows their types, or else for the inputs that the model states. Does nothing if neither
    is known.
    """
    schema, spec = dataset.schema(fetch_if_missing=False), predictor.runnable.spec
    types = None if schema is None else schema.base_schema
    if isinstance(types, pyarrow_module().Schema):
        predictor.select(types)
    elif spec is not None:
        CompiledModel.of(predictor.runnable, spec)
