"""Threads that wait for work in machine code: given it, refusing it, asleep; and steps that they share."""

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet import cells
from stepnet.engines.llvm import run as llvm_run
from stepnet.engines.llvm.handover import NOTHING, THERE, signals
from stepnet.engines.llvm.run import Again, Shared
from stepnet.engines.llvm.workers import Crew, Orders, Worker, current_processor
from stepnet.errors import InputError
from stepnet.threads import threads

Array = np.ndarray
SAY, LOOK = signals().say, signals().look


class Words:
    """Places where functions of machine code leave a trace: `say` makes a word THERE."""

    def __init__(self, count: int) -> None:
        self.words = np.zeros(8 * count, np.int64)
        self.addresses = [self.words.ctypes.data + 64 * place for place in range(count)]

    @property
    def said(self) -> list[bool]:
        """Which words are THERE."""
        return [bool(word == THERE) for word in self.words[::8]]


def until(holds: Callable[[], bool]) -> None:
    """Waits for what another thread brings about."""
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(1e-4)


def asleep(worker: Worker) -> Worker:
    """The worker, once it sleeps."""
    until(lambda: bool(worker.is_asleep))
    return worker


def test_work_is_done_awake_and_asleep():
    worker, words = Worker(), Words(40)
    for place, address in enumerate(words.addresses):
        if place % 10 == 0:
            asleep(worker)
        worker.start(SAY, address)
        worker.finish()
        assert words.said == [True] * (place + 1) + [False] * (39 - place)


def test_a_worker_lives_as_long_as_its_thread_which_looks_at_its_memory():
    worker = weakref.ref(Worker())
    gc.collect()
    assert worker() is not None


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_crew_does_all_that_it_is_told(count: int):
    crew, words = Crew(), Words(count)
    for _ in range(3):
        words.words[:] = NOTHING
        crew.run(SAY, words.addresses)
        assert all(words.said)


def test_a_sleeping_worker_is_left_alone_and_comes_once_it_is_roused():
    crew, words = Crew(), Words(2)
    orders = Orders(SAY, words.addresses)
    crew.run(SAY, Words(2).addresses)
    (worker,) = crew._idle
    assert not crew.run_if_awake(Orders(SAY, words.addresses)) or all(words.said)
    asleep(worker)
    words.words[:] = NOTHING
    assert not crew.run_if_awake(orders)
    assert words.said == [False, False]

    def runs() -> bool:
        crew.rouse(1)
        return crew.run_if_awake(orders)

    until(runs)
    assert words.said == [True, True]
    assert crew._idle == [worker]


def test_a_worker_that_is_busy_elsewhere_does_not_get_the_work_later():
    worker, gate, words = Worker(), Words(1), Words(2)
    orders = Orders(SAY, words.addresses)

    def leads() -> bool:
        worker.rouse()
        return orders.lead(worker)

    until(leads)
    words.words[:] = NOTHING
    # It waits at a gate, as a thread does whose processor another process has.
    worker.start(LOOK, gate.addresses[0])
    until(lambda: worker._words[0] == NOTHING)
    for _ in range(5):
        assert not orders.lead(worker)
    gate.words[0] = THERE
    worker.finish()
    time.sleep(0.01)
    assert words.said == [False, False]
    worker.start(SAY, words.addresses[1])
    worker.finish()
    assert words.said == [False, True]


def test_several_workers_come_together_or_not_at_all():
    crew, words = Crew(), Words(4)
    orders = Orders(SAY, words.addresses)
    crew.run(SAY, Words(4).addresses)
    for worker in crew._idle:
        asleep(worker)
    crew._idle[0].rouse()
    assert not crew.run_if_awake(orders)
    assert not any(words.said)

    def runs() -> bool:
        crew.rouse(3)
        return crew.run_if_awake(orders)

    until(runs)
    assert all(words.said)
    assert len(crew._idle) == 3


@pytest.mark.skipif(current_processor() is None, reason="Linux is missing, which wakes threads so")
def test_a_worker_wakes_away_from_the_processor_that_hands_out_work():
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < 2:
        pytest.skip("there is one processor; two are missing")
    worker = asleep(Worker())
    thread = worker._thread.native_id
    assert thread is not None
    assert os.sched_getaffinity(thread) == everywhere
    worker.rouse()
    assert len(os.sched_getaffinity(thread)) == len(everywhere) - 1
    assert os.sched_getaffinity(0) == everywhere


# ---- steps that threads share ------------------------------------------------------------------------------


@pytest.fixture(params=[2, 3])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[sn.RNN]:
    """A recurrence whose steps so many threads share, though it is small."""
    monkeypatch.setattr(llvm_run, "HANDOVER_BYTES", 0)
    monkeypatch.setattr(llvm_run, "SHARED_BYTES", 0)
    before = threads()
    sn.set_threads(request.param)
    yield cells.rnn("gru", cells.CELLS["gru"].parameters(24, 48, seed=3))
    sn.set_threads(before)


def inputs(rows: int, steps: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, steps, 24)).astype("float32")


def laid_out(stream: Any) -> Any:
    """What runs a stream's steps."""
    return stream._step.run


def test_shared_steps_are_bit_for_bit_those_of_one_thread(shared: sn.RNN, monkeypatch: pytest.MonkeyPatch):
    x, alone = inputs(1, 200), Again.__call__
    counts = {"alone": 0, "all": 0}

    def counted(self: Again) -> None:
        counts["alone"] += 1
        alone(self)

    monkeypatch.setattr(Again, "__call__", counted)
    stream = shared.stream()
    expected: Array | None = None

    def both_ways() -> bool:
        nonlocal expected
        found: list[Array] = []
        for at in range(200):
            if at % 50 == 25:
                time.sleep(0.02)  # long enough for workers to fall asleep
            found.append(stream.step(x[:, at]))
        stream.reset()
        counts["all"] += 200
        steps = np.stack(found, axis=1)
        expected = steps if expected is None else expected
        np.testing.assert_array_equal(steps, expected)
        return 0 < counts["alone"] < counts["all"]

    until(both_ways)
    assert isinstance(laid_out(stream), Shared)
    sn.set_threads(1)
    np.testing.assert_array_equal(expected, shared(x)[0])


def test_streams_of_several_threads_do_not_disturb_one_another(shared: sn.RNN):
    wrong: list[int] = []
    expected = [shared(inputs(1, 60, seed))[0] for seed in range(4)]

    def work(seed: int) -> None:
        x, stream = inputs(1, 60, seed), shared.stream()
        for again in range(5):
            for at in range(60):
                if not np.array_equal(stream.step(x[:, at]), expected[seed][:, at]):
                    wrong.append(at)
            stream.reset()
            time.sleep(1e-3 * again)

    started = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert wrong == []


def test_an_index_outside_a_table_in_a_shared_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(llvm_run, "HANDOVER_BYTES", 0)
    monkeypatch.setattr(llvm_run, "SHARED_BYTES", 0)

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(p["E"][x] + h @ p["R"])
        return h, h

    params = {"E": np.eye(3, 32, dtype="float32"), "R": np.eye(32, dtype="float32")}
    before = threads()
    sn.set_threads(2)
    try:
        stream = sn.RNN(step, params, memory=32).stream()
        for symbol in (0, 1, 2):
            stream.step(np.array([symbol]))
        for _ in range(20):
            with pytest.raises(InputError, match="an integer is outside the rows"):
                stream.step(np.array([3]))
        stream.reset()
        right = np.tanh(params["E"][:1])
        np.testing.assert_allclose(stream.step(np.array([0])), right, rtol=1e-6)
    finally:
        sn.set_threads(before)
