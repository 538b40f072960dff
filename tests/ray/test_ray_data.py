"""`stepnet.ray.predict`: workers in processes of their own give what one process gives, bit for bit."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrow_cases import FIXED, MODELS, ROWS, batch_of, cut_into
from hypothesis import given, settings
from hypothesis import strategies as st

import stepnet as sn
from stepnet import arrow, cells
from stepnet.compiler.targets.threads import threads_set
from stepnet.ray import WorkerError, predict
from stepnet.ray.pickled import pickled
from stepnet.ray.worker import ModelWorker

RANDOM = np.random.default_rng(7)


@pytest.fixture
def in_order() -> Generator[None]:
    """Rows in the order of the source."""
    import ray.data

    options = ray.data.DataContext.get_current().execution_options
    options.preserve_order = True
    yield
    options.preserve_order = False


def dataset_of(*tables: Any) -> Any:
    import ray.data

    return ray.data.from_arrow([pa.Table.from_batches([each]) for each in tables])


def many(name: str, count: int) -> Any:
    """A batch of the rows of a model in any order, numbered."""
    rows = [ROWS[name][place] for place in RANDOM.integers(0, len(ROWS[name]), count)]
    return batch_of(name, FIXED if name == "recurrence" else pa.list_(pa.int64()), rows)


def rows_of(dataset: Any) -> Any:
    """All rows of a dataset in one piece."""
    import ray

    return pa.concat_tables(ray.get(dataset.to_arrow_refs())).combine_chunks()


def workers() -> set[int]:
    """The processes of this session that hold a model."""
    parents = dict[int, int]()
    titles = dict[int, str]()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text, title = entry.read_text(), entry.with_name("cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        number = int(entry.parent.name)
        parents[number], titles[number] = int(text.rpartition(")")[2].split()[1]), title
    return {
        number
        for number, title in titles.items()
        if "ModelWorker" in title and parents.get(parents[number]) == os.getpid()
    }


# ---- the same bits


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize(
    ("name", "output", "count"),
    [
        pytest.param("graph", "outputs", 1, marks=pytest.mark.long),
        pytest.param("graph", "last", 2, marks=pytest.mark.long),
        pytest.param("recurrence", "outputs", 2, marks=pytest.mark.long),
    ],
)
def test_bits_and_order_do_not_depend_on_workers_and_blocks(
    name: str, output: str, count: int, request: pytest.FixtureRequest
):
    if not request.config.getoption("--long"):
        pytest.skip(
            "each run of Ray takes seconds; one that is killed, and the page in docs, compare bits, too"
        )
    whole = many(name, 300)
    parts = cut_into(whole, [int(size) for size in RANDOM.integers(1, 30, 50)])
    source = dataset_of(*parts[:3], whole.slice(0, 0), *parts[3:])
    results = predict(source, MODELS[name], result=output, concurrency=count)
    expected = arrow.predict([whole], MODELS[name], result=output).read_all().combine_chunks()
    assert rows_of(results).equals(expected)


@pytest.mark.long(examples=5)
@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 3000))
def test_bits_do_not_depend_on_blocks_their_chunks_and_memory(sizes: list[int], chunks: int, memory: int):
    whole, before = many("recurrence", 40), threads_set()
    worker = ModelWorker(pickled(arrow.Predictor(MODELS["recurrence"], memory=memory)), 2)
    blocks = cut_into(whole, sizes)
    tables = [
        pa.Table.from_batches(blocks[start : start + chunks]) for start in range(0, len(blocks), chunks)
    ]
    made = [part for table in tables for part in worker(table)]
    sn.set_threads(before)
    expected = arrow.predict([whole], MODELS["recurrence"]).read_all()
    assert pa.concat_tables(made).combine_chunks().equals(expected.combine_chunks())


@pytest.mark.usefixtures("in_order")
def test_a_worker_that_is_killed_loses_and_doubles_nothing():
    rows, features = 1000, 64
    model = cells.rnn("gru", cells.CELLS["gru"].parameters(features, 512))  # work for half a second
    steps = RANDOM.standard_normal((rows * 40, features), np.float32)
    sequences = sn.Ragged(steps, (np.arange(rows + 1, dtype=np.int64) * 40,))
    whole = pa.record_batch({"id": np.arange(rows), "frames": sequences.to_arrow()})
    blocks = cut_into(whole, [int(size) for size in RANDOM.integers(1, 40, 50)])
    results = predict(dataset_of(*blocks), model, concurrency=2)
    parts, killed = list[Any](), 0
    for part in results.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        parts.append(part)
        if not killed:
            assert part.num_rows < rows / 2, "each worker has blocks to do"
            killed = min(workers())
            os.kill(killed, signal.SIGKILL)
    expected = arrow.predict([whole], model).read_all()
    assert pa.concat_tables(parts).combine_chunks().equals(expected.combine_chunks())


# ---- what a worker refuses, and no rows


def test_an_error_of_a_row_is_an_error_of_stepnet():
    good, bad = [[[1.0, 2.0]]], [[[1.0, 2.0]], [[3.0]]]
    source = dataset_of(*(pa.record_batch({"frames": rows}) for rows in (good, bad)))
    results = predict(source, MODELS["recurrence"], concurrency=1)
    with pytest.raises(sn.StepnetError) as caught:
        results.materialize()
    line = "a block of 2 rows: column `frames`: row 1, entry 0 has 1 numbers, and the model takes 2"
    assert isinstance(caught.value, WorkerError)
    assert caught.value.reason == line
    assert f"WorkerError: {line}" in str(caught.value)


@pytest.mark.long
def test_a_dataset_without_rows_gives_one_without_rows(request: pytest.FixtureRequest):
    if not request.config.getoption("--long"):
        pytest.skip("each run of Ray takes seconds")
    assert predict(dataset_of(batch_of().slice(0, 0)), MODELS["recurrence"], concurrency=1).count() == 0
