"""Record batches from the objects that hold them: iterators, readers, datasets, and Arrow's C stream."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, cast

from stepnet.compiler.values.arguments import kind
from stepnet.errors import InputError
from stepnet.ragged.arrow import pyarrow_module


def open_source(source: Any) -> tuple[Any | None, Iterator[Any]]:
    """Returns (schema, iterator of record batches) of an object with batches: a batch, table, dataset,
    scanner or reader, an object with Arrow's C stream, or an iterable of batches, whose schema is None
    because only a batch tells it. Raises `InputError` for other objects.
    """
    pyarrow = pyarrow_module(what="Arrow's record batches")
    if isinstance(source, pyarrow.RecordBatch):
        return source.schema, iter([source])
    if hasattr(source, "to_batches") and hasattr(source, "schema"):  # a table, a dataset, a scanner's source
        return source.schema, iter(source.to_batches())
    if hasattr(source, "to_batches") and hasattr(source, "projected_schema"):
        return source.projected_schema, source.to_batches()
    if isinstance(source, pyarrow.RecordBatchReader):
        return source.schema, iter(source)
    try:
        if hasattr(source, "__arrow_c_stream__"):
            reader = pyarrow.RecordBatchReader.from_stream(source)
            return reader.schema, iter(reader)
        if hasattr(source, "__arrow_c_array__"):
            batch = pyarrow.record_batch(source)
            return batch.schema, iter([batch])
    except pyarrow.ArrowInvalid as error:
        raise InputError(
            f"batches is {kind(source)}, which is not a record batch or table: {error}"
        ) from error
    if not isinstance(source, Iterable) or isinstance(source, str | bytes | dict):
        is_file = hasattr(cast("object", source), "iter_batches")  # a ParquetFile
        is_path = isinstance(source, str | os.PathLike)
        advice = (
            ": give pyarrow.dataset.dataset(path), or call stepnet.arrow.run, which takes files and folders"
        )
        raise InputError(
            "batches is an iterator of Arrow record batches, or has an Arrow C stream, and is "
            f"{kind(source)}{advice if is_path else ''}{': give its iter_batches()' if is_file else ''}"
        )
    return None, batches_of(cast("Iterable[Any]", source))


def batches_of(source: Iterable[Any]) -> Iterator[Any]:
    """Yields the record batches of an iterable of batches and tables; raises `InputError` for other items."""
    for number, item in enumerate(source):
        if not hasattr(item, "__arrow_c_array__") and not hasattr(item, "__arrow_c_stream__"):
            raise InputError(f"item {number} of batches is {kind(item)}, and must be a record batch")
        yield from open_source(item)[1]
