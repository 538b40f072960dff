"""A recurrence over a Parquet file in Spark, whose workers run stepnet over their record batches.

    python examples/spark_predict.py calls.parquet scores --master 'local[2]'

The file has a column `frames` of lists of lists of numbers; the results are a folder of Parquet files, with a
column `last` in its place. Spark 4 needs Java 17 or later, and in its workers stepnet, pyarrow and pandas.
"""

# pyright: reportMissingImports=false
# pyspark is in an environment of its own.

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from stepnet import arrow, cells


def predict(frame: DataFrame, predictor: arrow.Predictor) -> DataFrame:
    """The results of a predictor for each row of a frame, lazily."""
    schema = listed(predictor.schema(to_arrow_schema(frame.schema)))

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in predictor.over(batches):
            yield batch.cast(schema)

    return frame.mapInArrow(run, from_arrow_schema(schema))


def listed(schema: Any) -> Any:
    """The schema with lists in the place of fixed-size lists, which Spark does not read."""

    def kind(type_: Any) -> Any:
        if pa.types.is_struct(type_):
            return pa.struct([pa.field(each.name, kind(each.type)) for each in type_])
        return pa.list_(kind(type_.value_type)) if pa.types.is_nested(type_) else type_

    return pa.schema([pa.field(field.name, kind(field.type)) for field in schema])


def main(
    source: Annotated[Path, typer.Argument(help="A Parquet file with a column `frames`.")],
    target: Annotated[Path, typer.Argument(help="A new folder.")],
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    features: Annotated[int, typer.Option(help="The numbers of a step.")] = 2,
) -> None:
    """Runs a GRU over a Parquet file."""
    os.environ.setdefault("STEPNET_NUM_THREADS", "1")  # Spark runs a worker on each processor
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    gru = cells.rnn("gru", cells.CELLS["gru"].parameters(features, 3))
    spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
    try:
        predict(spark.read.parquet(str(source)), arrow.Predictor(gru)).write.parquet(str(target))
    finally:
        spark.stop()


if __name__ == "__main__":
    typer.run(main)
