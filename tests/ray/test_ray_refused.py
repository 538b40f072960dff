"""Refusals of `stepnet.ray`: errors in the user's names, at the call or from the worker."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pytest
from arrow_cases import MODELS, RNN, batch_of

import stepnet as sn
from stepnet import arrow
from stepnet.compiler.targets.threads import threads
from stepnet.errors import FileError, InputError, RefusedError
from stepnet.ray import WorkerError, predict
from stepnet.ray.options import PROCESS, pool, processors, worker_bytes
from stepnet.ray.pickled import pickled
from stepnet.ray.worker import ModelWorker

TABLE = pa.Table.from_batches([batch_of()])
LOOSE = pa.table({"frames": [[[1.0, 2.0]], [[1.0, 2.0], [3.0]]]})
TEXT: Any = "1"
PART: Any = 1.5
THREE: Any = (1, 2, 3)
NOT_SENT = r"the model cannot be sent to workers: {}, which cannot be pickled: make it inside the step"


class Sum:
    """A step that is an object, of a class that workers import."""

    def __call__(self, x: Any, h: Any, params: Any) -> Any:
        return h + x, h


class Holder(Sum):
    """An object that holds a lock."""

    def __init__(self) -> None:
        self.lock = Lock()


def holding(step: Callable[..., Any]) -> sn.RNN:
    return sn.RNN(step, memory=(), inputs=())


def with_a_lock() -> sn.RNN:
    lock = Lock()

    def step(x: Any, h: Any, params: Any) -> Any:
        with lock:
            return h + x, h

    return holding(step)


@pytest.fixture
def dataset() -> Any:
    import ray.data

    return ray.data.from_arrow(TABLE)


BAD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no dataset": (
        lambda dataset: predict(TABLE, RNN),
        "dataset is a Dataset of Ray, and is a Table: make one with ray.data.from_arrow",
    ),
    "no model": (
        lambda dataset: predict(dataset, 3),
        "model is the path of a file, an RNN, a Stack, a Bidirectional",
    ),
    "no column": (
        lambda dataset: predict(dataset, RNN, column="steps"),
        "there is no column `steps`; there are id, frames",
    ),
    "no list": (
        lambda dataset: predict(dataset, RNN, column="id"),
        "column `id`: the Arrow array is int64, and must be a list or large_list",
    ),
    "no column to pass on": (
        lambda dataset: predict(dataset, RNN, keep=["user"]),
        "there is no column `user`",
    ),
    "another model": (
        lambda dataset: predict(dataset, MODELS["nested"]),
        "column `frames`: it is list<item: fixed_size_list<item: float>[2]>, and the model takes",
    ),
    "no workers": (
        lambda dataset: predict(dataset, RNN, concurrency=0),
        "concurrency is the number of workers, from 1 on, or the least and the most, as (1, 8), not 0",
    ),
    "the output by its old name": (
        lambda dataset: predict(dataset, RNN, output="last"),
        "predict has no argument output=: write result= in place of it",
    ),
    "workers as text": (lambda dataset: predict(dataset, RNN, concurrency=TEXT), "as (1, 8), not '1'"),
    "part of a worker": (lambda dataset: predict(dataset, RNN, concurrency=PART), "as (1, 8), not 1.5"),
    "more than the most": (lambda dataset: predict(dataset, RNN, concurrency=(3, 2)), "not (3, 2)"),
    "three bounds": (lambda dataset: predict(dataset, RNN, concurrency=THREE), "not (1, 2, 3)"),
    "no processors": (
        lambda dataset: predict(dataset, RNN, num_cpus=0),
        "num_cpus is the number of processors of a worker, from 1 on, or a part of one between 0 and 1, "
        "not 0",
    ),
    "processors and a part": (
        lambda dataset: predict(dataset, RNN, num_cpus=1.5),
        "between 0 and 1, not 1.5",
    ),
    "no number": (lambda dataset: predict(dataset, RNN, num_cpus=float("nan")), "between 0 and 1, not nan"),
    "any number": (lambda dataset: predict(dataset, RNN, num_cpus=float("inf")), "between 0 and 1, not inf"),
    "processors as text": (lambda dataset: predict(dataset, RNN, num_cpus=TEXT), "between 0 and 1, not '1'"),
    "processors as a flag": (
        lambda dataset: predict(dataset, RNN, num_cpus=True),
        "between 0 and 1, not True",
    ),
    "no memory": (lambda dataset: predict(dataset, RNN, memory=0), "memory is a number of bytes, from 1 on"),
    "an option of its own": (
        lambda dataset: predict(dataset, RNN, batch_size=3),
        "batch_size is set by predict: leave it out",
    ),
    "another function": (
        lambda dataset: predict(dataset, RNN, fn_kwargs={}),
        "fn_kwargs is set by predict: leave it out",
    ),
    "graphics processors": (
        lambda dataset: predict(dataset, RNN, num_gpus=1),
        "num_gpus reserves GPUs, and models run on CPUs: leave it out",
    ),
    "a name for all workers": (
        lambda dataset: predict(dataset, RNN, name="gru"),
        "name belongs to a single actor, and there may be several workers: leave it out",
    ),
    "several blocks at once": (
        lambda dataset: predict(dataset, RNN, max_concurrency=2),
        "max_concurrency is 1: a worker runs one block at a time, in the memory reserved: leave it out",
    ),
    "an unknown option": (
        lambda dataset: predict(dataset, RNN, gpus=2),
        "Ray does not take gpus=2: Invalid option keyword gpus for actors. Valid ones are [",
    ),
    "an option of tasks": (
        lambda dataset: predict(dataset, RNN, max_calls=2),
        "Ray does not take max_calls=2: Invalid option keyword max_calls for actors",
    ),
    "an environment that is none": (
        lambda dataset: predict(dataset, RNN, runtime_env=5),
        "Ray does not take runtime_env=5: The type of keyword 'runtime_env' must be",
    ),
    "less than no resources": (
        lambda dataset: predict(dataset, RNN, resources={"fast": -1}),
        "Ray does not take resources={'fast': -1}: The quantity of resource fast cannot be negative",
    ),
    "options that are no function": (
        lambda dataset: predict(dataset, RNN, ray_remote_args_fn={}),
        "ray_remote_args_fn is a function that returns options, not {}",
    ),
    "a function that gives no options": (
        lambda dataset: predict(dataset, RNN, ray_remote_args_fn=lambda: 5),
        "ray_remote_args_fn is a function that returns options, a dict, and it returned 5",
    ),
    "a function that gives an option of predict": (
        lambda dataset: predict(dataset, RNN, ray_remote_args_fn=lambda: {"num_gpus": 1}),
        "the options that ray_remote_args_fn returned: num_gpus reserves GPUs, and models run on CPUs",
    ),
    "a function that gives an unknown option": (
        lambda dataset: predict(dataset, RNN, ray_remote_args_fn=lambda: {"gpus": 1}),
        "the options that ray_remote_args_fn returned: Ray does not take gpus=1: Invalid option keyword "
        "gpus for actors",
    ),
    "resources that are no numbers": (
        lambda dataset: predict(dataset, RNN, resources={"x": "y"}),
        "resources are amounts of Ray's resources by their names, as {'fast': 1}, not {'x': 'y'}",
    ),
    "resources without names": (
        lambda dataset: predict(dataset, RNN, resources={1: 1}),
        "resources are amounts of Ray's resources by their names, as {'fast': 1}, not {1: 1}",
    ),
    "memory below nothing": (
        lambda dataset: predict(dataset, RNN, memory=-5),
        "memory is a number of bytes, from 1 on, not -5",
    ),
    "a flag as text": (
        lambda dataset: predict(dataset, RNN, refuse_nan=TEXT),
        "refuse_nan is True or False, not '1'",
    ),
    "a lock": (
        lambda dataset: pickled(with_a_lock()),
        NOT_SENT.format("`lock` in `step` is a lock of _thread"),
    ),
    "what holds a lock": (
        lambda dataset: pickled(holding(Holder())),
        NOT_SENT.format("`lock` is a lock of _thread"),
    ),
    "a stream": (
        lambda dataset: pickled({"stream": RNN.stream(1)}),
        NOT_SENT.format("`stream` is a Stream of stepnet.model.streams.stream"),
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_at_the_call(dataset: Any, make: Callable[[Any], Any], message: str):
    with pytest.raises(InputError) as caught:
        make(dataset)
    assert message in str(caught.value)


def test_a_step_that_writes_to_a_file_is_refused(tmp_path: Path):
    with (tmp_path / "log").open("w") as log, pytest.raises(InputError) as caught:
        pickled(holding(lambda x, h, params: (h + x, h) if log.writable() else (h, h)))
    assert str(caught.value).startswith(NOT_SENT.format("`log` in `<lambda>` is a TextIOWrapper of _io"))


def test_a_model_file_that_is_not_there_is_refused_at_the_call(dataset: Any):
    with pytest.raises(FileError, match=r"none\.safetensors"):
        predict(dataset, "none.safetensors")


def test_a_model_that_does_not_run_is_refused_though_the_columns_are_not_known(dataset: Any):
    unknown = dataset.map_batches(lambda batch: batch)
    assert predict(unknown, RNN).schema(fetch_if_missing=False) is None
    with pytest.raises(RefusedError, match="onednn"):
        predict(unknown, MODELS["ends"], engine="onednn")


@pytest.mark.usefixtures("same_threads")
def test_rows_are_named_within_their_block():
    worker = ModelWorker(pickled(arrow.Predictor(RNN)), 1)
    parts = pa.concat_tables([LOOSE.slice(0, 1)] * 3 + [LOOSE])
    with pytest.raises(WorkerError) as caught:
        list(worker(parts))
    line = "a block of 5 rows: column `frames`: row 4, entry 1 has 1 numbers, and the model takes 2"
    assert caught.value.reason == str(caught.value) == line
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.reason) == (WorkerError, line)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_nan_is_refused_by_the_worker_if_asked(dataset: Any, asked: list[dict[str, Any]], number: float):
    table = pa.table({"frames": [[[1.0, 2.0]], [[0.0, 1.0], [number, 2.0]]]})
    for refused in (False, True):
        predict(dataset, RNN, refuse_nan=refused)
    lenient, strict = (ModelWorker(*call["fn_constructor_args"]) for call in asked)
    assert sum(part.num_rows for part in lenient(table)) == 2
    line = rf"^a block of 2 rows: column `frames`: row 1, entry 1 has {number}, and NaN and infinite"
    with pytest.raises(WorkerError, match=line):
        list(strict(table))


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"x": [1]}), "there is no column `frames`; there are x"),
        (pa.table({"frames": [1]}), "column `frames`: the Arrow array is int64, and must be a list"),
    ],
)
def test_columns_that_are_known_late_are_refused_by_the_worker(table: Any, message: str):
    with pytest.raises(WorkerError, match=message):
        list(ModelWorker(pickled(arrow.Predictor(RNN)), 1)(table))


def test_a_module_that_a_worker_lacks_is_named():
    text = pickle.dumps(holding(Sum())).replace(__name__.encode(), b"n" * len(__name__))
    with pytest.raises(
        WorkerError, match=r"the model needs a module that this worker lacks: No module named"
    ):
        ModelWorker(text, 1)


def test_without_ray():
    text = (
        "import sys; sys.modules['ray'] = None\n"
        "try:\n    import stepnet.ray\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert said.startswith("InputError stepnet.ray needs Ray Data (")
    assert said.endswith('): pip install "stepnet[ray]"\n')


# ---- what a worker has


@pytest.mark.usefixtures("same_threads")
def test_a_worker_has_as_many_threads_as_processors_but_no_more_than_are_set(monkeypatch: pytest.MonkeyPatch):
    sn.set_threads(None)
    assert [processors(number) for number in (None, 0.25, 1, 3.0)] == [(1, 1), (0.25, 1), (1, 1), (3, 3)]
    sn.set_threads(2)
    assert [processors(number) for number in (None, 0.25, 1, 3)] == [(2, 2), (0.25, 1), (1, 1), (3, 2)]
    sent = pickled(arrow.Predictor(RNN))
    for limit, count, used in ((8, 3, 3), (2, 3, 2), (2, 1, 1)):
        sn.set_threads(limit)  # as the environment of a worker does
        ModelWorker(sent, count)
        assert threads() == used


def test_workers_may_be_any_number_or_between_two():
    assert pool(None).min_size == 1
    assert (pool((2, 5)).min_size, pool((2, 5)).max_size) == (2, 5)
    assert (pool(3).min_size, pool(3).max_size) == (3, 3)


@pytest.fixture
def asked(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments with which `predict` calls `map_batches`."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(type(dataset), "map_batches", lambda self, worker, **options: calls.append(options))
    return calls


def test_memory_is_reserved_for_a_call_and_the_model(dataset: Any, asked: list[dict[str, Any]]):
    predict(dataset, RNN, memory=1000, num_cpus=2, runtime_env={"env_vars": {}})
    predict(dataset, RNN, memory=1000, resources={"fast": 1})
    size = len(asked[0]["fn_constructor_args"][0])
    assert asked[0]["memory"] == worker_bytes(1000, size) == PROCESS + 1000 + 3 * size
    assert (asked[0]["num_cpus"], asked[0]["runtime_env"]) == (2, {"env_vars": {}})
    assert (asked[1]["num_cpus"], asked[1]["resources"]) == (1, {"fast": 1})
