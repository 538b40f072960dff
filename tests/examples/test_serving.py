"""Batching by arrival, and the example of a web server: every answer has the bits of a call alone."""

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from examples.batching import Batcher

GRU = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=3, hidden=8))
LENGTHS = [*np.random.default_rng(0).integers(0, 40, 198), 1, 300]
SEQUENCES = [
    np.random.default_rng(n).normal(size=(length, 3)).astype("f4") for n, length in enumerate(LENGTHS)
]


def last(sequences: sn.Ragged) -> Any:
    return GRU(sequences)[1]


def alone(sequence: Any) -> Any:
    return last(sn.Ragged.from_list([sequence]))[0]


def test_each_of_many_threads_gets_the_bits_of_a_call_alone() -> None:
    with Batcher(last, most=10) as batcher, ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda one: batcher.submit(one).result(), SEQUENCES))
    for result, sequence in zip(results, SEQUENCES, strict=True):
        np.testing.assert_array_equal(result, alone(sequence))
    assert sum(batcher.sizes) == len(SEQUENCES)
    assert max(batcher.sizes) <= 10


def test_requests_that_arrive_during_a_call_are_the_next_call() -> None:
    begun, go_on = Event(), Event()

    def slow(sequences: sn.Ragged) -> Any:
        begun.set()
        assert go_on.wait(30)
        return last(sequences)

    with Batcher(slow, most=4) as batcher:
        first = batcher.submit(SEQUENCES[0])
        assert begun.wait(30)
        others = [batcher.submit(one) for one in SEQUENCES[1:7]]
        go_on.set()
        results = [future.result() for future in (first, *others)]
    assert batcher.sizes == [1, 4, 2]
    np.testing.assert_array_equal(results, [alone(one) for one in SEQUENCES[:7]])


def test_a_refused_call_is_the_error_of_its_requests_alone() -> None:
    with Batcher(last) as batcher:
        with pytest.raises(sn.StepnetError):
            batcher.submit(np.zeros((2, 5), "f4")).result(30)
        np.testing.assert_array_equal(batcher.submit(SEQUENCES[1]).result(30), alone(SEQUENCES[1]))


def submitted_together(*sequences: Any) -> list[Any]:
    """The futures of requests that are all there when the thread takes the first."""
    with Batcher(last, moment=0.2) as batcher:
        return [batcher.submit(one) for one in sequences]


def test_no_answer_depends_on_the_dtype_of_others() -> None:
    double = SEQUENCES[2].astype("f8")
    for future, one in zip(submitted_together(*SEQUENCES[:2], double), (*SEQUENCES[:2], double), strict=True):
        assert future.result().dtype == one.dtype
        np.testing.assert_array_equal(future.result(), alone(one))


def test_a_request_with_other_features_fails_alone() -> None:
    right, wrong = submitted_together(SEQUENCES[1], np.zeros((2, 5), "f4"))
    np.testing.assert_array_equal(right.result(), alone(SEQUENCES[1]))
    assert isinstance(wrong.exception(), sn.StepnetError)


def test_lists_are_sequences() -> None:
    (future,) = submitted_together(SEQUENCES[1].tolist())
    np.testing.assert_array_equal(future.result(), alone(SEQUENCES[1].astype("f8")))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("count", [1, 2])
def test_a_model_of_a_pair_is_told_what_to_give(count: int) -> None:
    with Batcher(GRU, moment=0.2) as batcher:
        futures = [batcher.submit(one) for one in SEQUENCES[:count]]
        for future in futures:
            error = future.exception(30)
            assert f"the model gave tuple for {count} sequences" in str(error)
            assert error is not None
            assert isinstance(error.__cause__, TypeError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_has_ended() -> None:
    def wrong(sequences: sn.Ragged) -> Any:
        raise KeyError("no model")

    with Batcher(wrong) as batcher:
        with pytest.raises(RuntimeError, match="the model failed, which ended the batcher: KeyError"):
            batcher.submit(SEQUENCES[0]).result(30)
        batcher.thread.join()
        with pytest.raises(RuntimeError, match="this batcher does not run"):
            batcher.submit(SEQUENCES[0])


def test_a_request_that_is_cancelled_is_left_out_alone() -> None:
    begun, go_on = Event(), Event()

    def model(sequences: sn.Ragged) -> Any:
        begun.set()
        assert go_on.wait(30)
        return last(sequences)

    with Batcher(model) as batcher:
        futures = [batcher.submit(SEQUENCES[0])]
        assert begun.wait(30)
        futures += [batcher.submit(one) for one in SEQUENCES[1:4]]
        assert futures[2].cancel()
        go_on.set()
        for place in (0, 1, 3):
            np.testing.assert_array_equal(futures[place].result(30), alone(SEQUENCES[place]))
    assert batcher.sizes == [1, 2]


def test_a_batcher_runs_within_its_block_and_again() -> None:
    batcher = Batcher(last)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="submit inside of its `with` block"):
            batcher.submit(SEQUENCES[0])
        with batcher:
            np.testing.assert_array_equal(batcher.submit(SEQUENCES[0]).result(30), alone(SEQUENCES[0]))


# ---- the web server ----------------------------------------------------------------------------------------


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as a module."""
    pytest.importorskip(
        "starlette", reason="starlette is missing, of which the example's application is made"
    )
    pytest.importorskip("uvicorn", reason="uvicorn is missing, which serves the example's application")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    return import_module("serving")


def test_the_example_serves_and_stops(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--requests", "40", "--clients", "8"])
    requests, taken, bits, right = capsys.readouterr().out.splitlines()
    assert requests.startswith("40 requests of 8 clients in ")
    assert taken.startswith("a request takes ")
    assert bits == "40 of 40 answers have the bits of a call of the utterance alone"
    assert float(right.split("%")[0]) > 90


def test_wrong_requests_are_answered_and_the_server_goes_on(example: Any) -> None:
    model = example.speaker_model()
    with example.running(example.app(model)) as port:
        connection = HTTPConnection(example.HOST, port, timeout=30)
        row = [1.0] * 12
        wrong = [[1, 2]], ["a"], row, [row * 2], [[row]], [["1"] * 12], [[True] * 12], [[None] * 12]
        wrong += [[float("nan")] * 12], [[1e39] * 12], [[10**400] * 12]
        bodies = [json.dumps({"frames": frames}) for frames in wrong]
        for body in ("{", "[]", '{"other": 1}', "[" * 100_000, *bodies):
            connection.request("POST", "/speaker", body)
            answer = connection.getresponse()
            said = json.loads(answer.read())["error"]
            assert "frames are lists of 12 numbers" in said
            assert ("a request is {" in said) == (body in ("[]", '{"other": 1}'))
            assert answer.status == 400
        connection.request("GET", "/speaker")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 405
        connection.close()
        answers = example.asked(port, [np.ones((steps, 12), "f4") for steps in (4, 0)], 1)
    for (found, _), steps in zip(answers, (4, 0), strict=True):
        assert found["scores"] == model(np.ones((1, steps, 12), "f4"))[0].tolist()
