"""Refusals of `stepnet.arrow`: errors in the user's names, with batch and row."""

import re
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_cases import FIXED, IN, LOOSE, MODELS, RNN, TOKENS, batch_of
from zoo import rnn_of

import stepnet as sn
from stepnet import arrow
from stepnet.errors import InputError

NULLS = pa.record_batch({"frames": pa.array([[[1, 2]], [[1, None]]], LOOSE)})
OTHER = sn.RNN(lambda x, h, p: (h + x["a"], h), memory=(), inputs={"a": (), "b": ()})
STILL = sn.RNN(lambda x, h, p, statics: (h + statics, h), memory=(), inputs=(), statics=())
OPEN = sn.RNN(lambda x, h, p: (h, h + x.sum(-1)), memory=())
NUMBER: Any = 3
HALF = sn.Spec(IN, "bfloat16")
WORDS = pa.list_(pa.dictionary(pa.int8(), pa.string()))


def small(numbers: Any = 1, kind: Any = None) -> Any:
    return pa.record_batch({"frames": pa.array([[[1, 2]], [[1, 2], [numbers, 2]]], kind or LOOSE)})


def test_lists_of_lists_are_told_how_they_become_steps_of_features():
    column = pa.array([[[1.0, 2.0]], []], LOOSE)
    cast = f"column.cast(pyarrow.list_(pyarrow.list_(pyarrow.float32(), {IN})))"
    with pytest.raises(InputError, match=r"sequences of sequences.*" + re.escape(cast)):
        RNN(sn.Ragged.from_arrow(column))
    steps = sn.Ragged.from_arrow(column.cast(FIXED))
    assert steps.lengths.tolist() == [1, 0]


def parquet_file() -> Any:
    content = BytesIO()
    pq.write_table(pa.table({"frames": [[1.0]]}), content)
    return pq.ParquetFile(content)


def test_calls_with_columns_and_tables_name_the_way_from_arrow():
    table = pa.table(small())
    for given in (table, table["frames"]):
        with pytest.raises(InputError, match=r"sn\.Ragged\.from_arrow\(column\) for Arrow"):
            RNN(given)
        with pytest.raises(
            InputError, match=r"from_list takes .*; a column of Arrow goes through Ragged.from_"
        ):
            sn.Ragged.from_list(given)


def renamed(batch: Any, *names: str) -> Any:
    return pa.record_batch(batch.columns, list(names))


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no list": (
        lambda: arrow.predict([pa.record_batch({"frames": [1.0]})], RNN),
        "column `frames`: the Arrow array is double, and must be a list or large_list",
    ),
    "no numbers": (
        lambda: arrow.predict([pa.record_batch({"frames": [["a"]]})], RNN),
        "column `frames`: the Arrow array is list<item: string>, and its lists must hold numbers, not string",
    ),
    "words in a dictionary": (
        lambda: arrow.predict([pa.record_batch({"frames": pa.array([["a"]], WORDS)})], MODELS["graph"]),
        "its lists must hold numbers, not dictionary<values=string, indices=int8, ordered=0>; its "
        "numbers may be others in each batch",
    ),
    "another size": (
        lambda: arrow.predict([small(kind=pa.list_(pa.list_(pa.float32(), 2)))], rnn_of("gru", 4, 3)),
        "column `frames`: it is list<item: fixed_size_list<item: float>[2]>, and the model takes "
        "sequences of steps of 4 numbers",
    ),
    "too few levels": (
        lambda: arrow.predict([pa.record_batch({"frames": [[1.0]]})], MODELS["nested"]),
        "column `frames`: it is list<item: double>, and the model takes sequences of sequences of "
        "steps of one number",
    ),
    "lists that nobody knows the size of": (
        lambda: arrow.predict([small()], OPEN),
        "column `frames`: it is list<item: list<item: float>>, and the model was made without inputs=",
    ),
    "whole numbers": (
        lambda: arrow.predict([small(kind=pa.list_(pa.list_(pa.int64())))], RNN),
        "column `frames`: its numbers are int64, and the model takes float32; cast them",
    ),
    "unequal widths": (
        lambda: list(
            arrow.predict([small(), pa.record_batch({"frames": [[[1.0, 2.0], [3.0]]]}, small().schema)], RNN)
        ),
        "batch 1: column `frames`: row 0, entry 1 has 1 numbers, and the model takes 2",
    ),
    "unequal widths in a later piece": (
        lambda: list(
            arrow.predict([pa.record_batch({"frames": [[[1.0, 2.0]], [], [[1.0]]]})], RNN, memory=1)
        ),
        "batch 0: column `frames`: row 2, entry 0 has 1 numbers, and the model takes 2",
    ),
    "nulls inside": (
        lambda: list(arrow.predict([NULLS.slice(0, 1), NULLS], RNN)),
        "batch 1: column `frames`: the Arrow array has a null in row 1, entry 0, entry 1; drop such rows",
    ),
    "nulls inside a later piece": (
        lambda: list(arrow.predict([NULLS], RNN, memory=1)),
        "batch 0: column `frames`: the Arrow array has a null in row 1, entry 0, entry 1; drop such rows",
    ),
    "a number that is too large": (
        lambda: list(arrow.predict([small(1e300, pa.list_(pa.list_(pa.float64())))], RNN)),
        "batch 0: column `frames`: row 1, entry 1 has 1e+300, and the model takes float32, which "
        "does not hold it",
    ),
    "a token that is too large": (
        lambda: list(
            arrow.predict(
                [pa.record_batch({"frames": pa.array([[2**63]], pa.list_(pa.uint64()))})], MODELS["graph"]
            )
        ),
        "batch 0: column `frames`: row 0, entry 0 has 9223372036854775808, and the model takes int64, "
        "which does not hold it",
    ),
    "a damaged column": (
        lambda: list(arrow.predict([pa.record_batch({"frames": damaged()})], RNN)),
        "batch 0: column `frames`: the Arrow array is damaged: ",
    ),
    "no batches": (
        lambda: arrow.predict(iter([]), RNN),
        "there are no batches, so nothing is known of their columns: give a table or a reader, "
        "which has a schema",
    ),
    "a type that changes": (
        lambda: list(arrow.predict([small(), small(kind=FIXED)], RNN)),
        "batch 1: column `frames` is list<item: fixed_size_list<item: float>[2]>, and was list<item: "
        "list<item: float>> before; cast one of them",
    ),
    "a kept column that changes": (
        lambda: list(
            arrow.predict(
                [batch_of(), pa.record_batch({"id": ["a"], "frames": batch_of().column(1)[:1]})], RNN
            )
        ),
        "batch 1: column `id` is string, and was int64 before; cast one of them",
    ),
    "a column that goes": (
        lambda: list(arrow.predict([batch_of(), batch_of().select(["frames"])], RNN)),
        "batch 1: there is no column `id`; there are frames",
    ),
    "a column that comes": (
        lambda: list(arrow.predict([small(), renamed(batch_of(kind=LOOSE), "new", "frames")], RNN)),
        "batch 1: there is a column `new`, which was not there before; name the columns to pass on "
        "with keep=",
    ),
    "no such column": (
        lambda: arrow.predict(renamed(batch_of(), "id", "x"), RNN),
        "there is no column `frames`; there are id, x; column=NAME names the list column",
    ),
    "no such column to keep": (
        lambda: arrow.predict([batch_of()], RNN, keep=["x"]),
        "there is no column `x`; there are id, frames",
    ),
    "columns of one name": (
        lambda: arrow.predict([renamed(batch_of(), "frames", "frames")], RNN),
        "there are 2 columns `frames`; rename all but one",
    ),
    "a column with the name of the result": (
        lambda: arrow.predict([renamed(batch_of(), "last", "frames")], RNN),
        "there is a column `last` already, and the result would have that name: rename the column, or do "
        "not pass it on",
    ),
    "keep with the name of the result": (
        lambda: arrow.predict([renamed(batch_of(), "last", "frames")], RNN, keep=["last"]),
        "there is a column `last` already, and the result would have that name: rename the column, or do "
        "not pass it on",
    ),
    "keep twice": (lambda: arrow.predict([batch_of()], RNN, keep=["id", "id"]), "keep has `id` twice"),
    "keep as a text": (
        lambda: arrow.predict([batch_of()], RNN, keep="id"),
        "keep is a list of names of columns, not 'id'",
    ),
    "no memory": (
        lambda: arrow.predict([batch_of()], RNN, memory=0),
        "memory is a number of bytes, from 1 on, not 0",
    ),
    "another output": (
        lambda: arrow.predict([batch_of()], RNN, result="final"),
        "result is 'last' or 'outputs', not 'final'",
    ),
    "the output by its old name": (
        lambda: arrow.predict([batch_of()], RNN, output="last"),  # pyright: ignore[reportCallIssue]
        "predict has no argument output=: write result= in place of it",
    ),
    "a predictor's by its old name": (
        lambda: arrow.Predictor(RNN, output="last"),  # pyright: ignore[reportCallIssue]
        "Predictor has no argument output=: write result= in place of it",
    ),
    "rows to set aside": (
        lambda: arrow.predict([batch_of()], RNN, bad="b.parquet"),  # pyright: ignore[reportCallIssue]
        "predict has no argument bad=: call stepnet.arrow.run, or `stepnet run`, which sets rows aside",
    ),
    "a folder of inputs": (
        lambda: arrow.predict("calls/", RNN),
        "and is a str: give pyarrow.dataset.dataset(path), or call stepnet.arrow.run, which takes files and "
        "folders",
    ),
    "no model": (
        lambda: arrow.predict([batch_of()], 3),
        "model is the path of a file, an RNN, a Stack, a Bidirectional or a Graph, not 3: give a model",
    ),
    "a model of several inputs": (
        lambda: arrow.predict([batch_of()], OTHER),
        "the model takes a structure of inputs, {a: array, b: array}, and a column is a single one: "
        "make a Graph of it that takes the features apart, stepnet.Graph(lambda x, params: model(...))",
    ),
    "a model of statics": (
        lambda: arrow.predict([batch_of()], STILL),
        "the model takes statics beside its sequences, and here there is a single column",
    ),
    "results that Arrow has no type for": (
        lambda: arrow.predict([small()], sn.RNN(lambda x, h, p: (x, h + x), memory=IN, inputs=HALF)),
        "the result `last`: Arrow has no bfloat16",
    ),
    "no column": (
        lambda: arrow.predict([batch_of()], RNN, column=NUMBER),
        "column is the name of the list column, not 3",
    ),
    "no batches at all": (
        lambda: arrow.predict(3, RNN),
        "batches is an iterator of Arrow record batches, or has an Arrow C stream, and is a int",
    ),
    "a file of Parquet": (
        lambda: arrow.predict(parquet_file(), RNN),
        "batches is an iterator of Arrow record batches, or has an Arrow C stream, and is a "
        "ParquetFile: give its iter_batches()",
    ),
    "an array": (
        lambda: arrow.predict(batch_of().column(0), RNN),
        "batches is a Int64Array, which is not a record batch or table: ",
    ),
    "a column of a table": (
        lambda: arrow.predict(pa.table(batch_of()).column("frames"), RNN),
        "batches is a ChunkedArray, which is not a record batch or table: ",
    ),
    "items that are arrays": (
        lambda: arrow.predict([batch_of().column(0)], RNN),
        "batches is a Int64Array, which is not a record batch or table: ",
    ),
    "rows of a struct that are null": (
        lambda: arrow.predict(pa.array([None], pa.struct({"frames": FIXED})), RNN),
        "batches is a StructArray, which is not a record batch or table: ",
    ),
    "a stream that is a number": (
        lambda: list(arrow.Predictor(RNN).over(NUMBER)),
        "batches is an iterator of Arrow record batches, or has an Arrow C stream, and is a int",
    ),
    "the schema of a number": (
        lambda: arrow.Predictor(RNN).schema(NUMBER),
        "schema is the pyarrow Schema of the batches, not 3",
    ),
    "no outputs": (
        lambda: arrow.predict([small()], sn.RNN(lambda x, h, p: ({}, h + x), memory=IN, inputs=IN)),
        "the result `last`: the model gives no outputs",
    ),
    "outputs of one name": (
        lambda: arrow.predict(
            [small()], sn.RNN(lambda x, h, p: ({"a": {"b": x}, "a.b": h}, h + x), memory=IN, inputs=IN)
        ),
        "the result `last`: two outputs of the model are called `a.b`; rename one of them",
    ),
    "items that are no batches": (
        lambda: list(arrow.predict([batch_of(), np.zeros(3)], RNN)),
        "item 1 of batches is a ndarray, and must be a record batch",
    ),
    "a call of a list": (
        lambda: arrow.Predictor(RNN)([batch_of()]),
        "a Predictor is called with a record batch or a table, not a list",
    ),
    "tokens beyond the table": (
        lambda: list(
            arrow.predict([batch_of("graph", pa.list_(pa.int64()), [[1], [TOKENS]])], MODELS["graph"])
        ),
        "batch 0, rows 0 to 1: ",
    ),
}


def damaged() -> Any:
    """A column whose offsets lead outside it."""
    inside = pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))
    offsets = pa.py_buffer(np.array([0, 9, 1], "int32"))
    return pa.Array.from_buffers(FIXED, 2, [None, offsets], children=[inside])


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_the_users_names(make: Callable[[], Any], message: str):
    with pytest.raises(InputError) as refused:
        make()
    assert message in str(refused.value)


def test_what_came_before_a_bad_batch_is_given_first():
    results = iter(arrow.predict([small(), small(), NULLS], RNN))
    assert [next(results).num_rows for _ in range(2)] == [2, 2]
    with pytest.raises(InputError, match="batch 2"):
        next(results)


@pytest.mark.parametrize("make", [lambda: arrow.predict([], RNN), lambda: arrow.Predictor(RNN)(batch_of())])
def test_without_pyarrow(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r'need pyarrow: pip install "stepnet\[arrow\]"'):
        make()
