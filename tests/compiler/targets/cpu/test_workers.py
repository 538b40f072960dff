"""Threads that wait for work in machine code: handed it, refusing it, asleep; and steps that they share."""

import ctypes
import gc
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from callers import on_threads
from constants import Constants
from llvmlite import ir
from sharing import every_step_shared
from zoo import rnn_of

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets.cpu import I64, POINTER, Code, engine, host_processor
from stepnet.compiler.targets.cpu.compile.compiled import CompiledPlans
from stepnet.compiler.targets.cpu.emit import driver_code
from stepnet.compiler.targets.cpu.machine.machine_code import MachineCode, NativeFunction
from stepnet.compiler.targets.cpu.machine.object_code import object_code
from stepnet.compiler.targets.cpu.running import prepared_chain
from stepnet.compiler.targets.cpu.running.call_block import ThreadedBlock
from stepnet.compiler.targets.cpu.running.prepared_tasks import DividedTasks
from stepnet.compiler.targets.cpu.threads import waiting, workers
from stepnet.compiler.targets.cpu.threads.handover import (
    CLAIMED,
    EMPTY,
    GROUP_FIELDS,
    SENT,
    handover_functions,
)
from stepnet.compiler.targets.cpu.threads.workers import (
    WORKER_POOL,
    Lateness,
    TaskGroup,
    Worker,
    WorkerPool,
    current_processor,
)
from stepnet.compiler.targets.threads import threads
from stepnet.errors import InputError

Array = np.ndarray
LOOK = handover_functions().receive
pytestmark = [
    pytest.mark.alone,  # threads that wait for one another, on all processors
    pytest.mark.usefixtures("small_calls_are_shared"),
]


class Words:
    """Tasks for machine code that leave a trace: `look` waits until a word is THERE, and makes it NOTHING."""

    def __init__(self, count: int, ready: bool = True) -> None:
        self.words = np.zeros(8 * count, np.int64)
        self.addresses = [self.words.ctypes.data + 64 * place for place in range(count)]
        if ready:
            self.begin()

    def begin(self) -> None:
        """Makes all tasks such that they can be done."""
        self.words[::8] = SENT

    @property
    def done(self) -> list[bool]:
        """The tasks that were done."""
        return [bool(word == EMPTY) for word in self.words[::8]]


def until(holds: Callable[[], bool]) -> None:
    """Waits for what another thread brings about."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(1e-4)


def crew_of(count: int) -> WorkerPool:
    """A crew of so many workers."""
    crew = WorkerPool()
    crew.grow(count)
    assert len(crew.workers) == count
    return crew


def all_asleep(crew: WorkerPool) -> None:
    """Waits until all of a crew sleep."""
    until(lambda: all(worker.is_asleep for worker in crew.workers))


def orders(crew: WorkerPool, words: Words, **options: Any) -> TaskGroup:
    """Orders for tasks that are done at most once."""
    return TaskGroup(crew, [(LOOK, address) for address in words.addresses], **options)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_every_task_is_done_by_workers_awake_and_asleep(count: int):
    crew, words = WorkerPool(), Words(count)
    order = orders(crew, words)
    for again in range(20):
        if again % 7 == 3:
            all_asleep(crew)
        words.begin()
        crew_runs_once(crew, order)
        assert all(words.done)
    assert len(crew.workers) == count - 1


def crew_runs_once(crew: WorkerPool, order: TaskGroup) -> None:
    """Leads once: `look` always says that there is more to do."""
    if len(crew.workers) < order.count - 1:
        crew.grow(order.count - 1)
    assert order.lead()


def test_every_task_is_done_without_any_worker():
    crew, words = WorkerPool(), Words(4)
    orders(crew, words).lead()
    assert all(words.done)
    assert crew.workers == []


def test_a_task_that_its_worker_has_not_begun_is_done_by_the_leader():
    crew, words = crew_of(1), Words(1, ready=False)
    (worker,) = crew.workers
    # The worker is claimed, as one is that works for another call.
    worker._words[workers_claimed()] = 1
    try:
        tasks = Words(3)
        orders(crew, tasks).lead()
        assert all(tasks.done)
        assert words.done == [True]
    finally:
        worker._words[workers_claimed()] = 0


def workers_claimed() -> int:
    """Where a worker's memory says that a thread has claimed it, in words."""
    return CLAIMED // 8


def test_workers_are_free_again_after_each_call():
    crew = crew_of(3)
    for count in (2, 4, 3):
        orders(crew, Words(count)).lead()
        assert [worker._words[workers_claimed()] for worker in crew.workers] == [0, 0, 0]


def test_calls_from_many_threads_claim_workers_of_their_own():
    crew = crew_of(2)

    def work(_: int) -> None:
        words = Words(3)
        order = orders(crew, words)
        for _ in range(300):
            words.begin()
            order.lead()
            assert all(words.done)

    on_threads(6, work)


def test_threads_that_lead_at_the_same_time_take_a_part_of_the_threads_each():
    crew, words = crew_of(3), Words(4)
    order = orders(crew, words)
    for others, asked in ((0, 4), (1, 2), (2, 1), (7, 1), (0, 4)):
        crew.list_head[1] = others
        words.begin()
        order.lead()
        assert all(words.done)
        assert order.fields[workers.ASKED] == asked
        assert crew.list_head[1] == others, "a thread that has led no longer counts"


def test_a_worker_lives_as_long_as_its_thread_which_looks_at_its_memory():
    crew = crew_of(1)
    worker = weakref.ref(crew.workers[0])
    crew.forget()
    gc.collect()
    assert worker() is not None


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch):
    starts = []

    def refused(self: Worker, crew: WorkerPool) -> None:
        starts.append(self)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Worker, "start", refused)
    crew, words = WorkerPool(), Words(3)
    crew.grow(2)
    crew.grow(2)
    orders(crew, words).lead()
    assert all(words.done)
    assert len(starts) == 1, "a refused thread is not asked for again at once"


def test_threads_that_have_not_joined_yet_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    late = list[Worker]()

    def start(self: Worker, crew: WorkerPool) -> None:
        late.append(self)
        self.has_joined.release()

    monkeypatch.setattr(Worker, "start", start)
    constants(workers, BEGINS=60)
    crew = WorkerPool()
    for joined in range(3):
        crew.grow(2)
        assert (len(late), len(crew.workers)) == (2, joined)
        if joined < 2:
            crew.join(late[joined])


def test_a_crew_that_forgets_its_workers_begins_anew_for_orders_that_are_laid_out():
    crew, words = crew_of(1), Words(2)
    order = orders(crew, words)
    order.lead()
    assert all(words.done)
    crew.forget()
    assert crew.list_head[0] == 0
    words.begin()
    order.lead()
    assert all(words.done)
    crew.grow(1)
    words.begin()
    order.lead()
    assert all(words.done)
    assert len(crew.workers) == 1


@pytest.mark.skipif(current_processor() is None, reason="Linux is missing, which wakes threads so")
def test_a_worker_wakes_away_from_the_processor_that_hands_out_work():
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < 2:
        pytest.skip("there is one processor; two are missing")
    crew = crew_of(1)
    all_asleep(crew)
    thread = crew.workers[0].thread
    assert os.sched_getaffinity(thread) == everywhere
    crew.workers[0].wake()
    assert len(os.sched_getaffinity(thread)) == len(everywhere) - 1
    assert os.sched_getaffinity(0) == everywhere


def test_a_system_that_keeps_threads_where_they_are(monkeypatch: pytest.MonkeyPatch):
    def forbidden(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden, raising=False)
    crew, words = crew_of(1), Words(2)
    all_asleep(crew)
    crew.wake(1)
    orders(crew, words).lead()
    assert all(words.done)


# ---- threads that are late ---------------------------------------------------------------------------------


def test_late_threads_are_left_out_for_a_while_and_longer_if_they_are_late_again(
    monkeypatch: pytest.MonkeyPatch,
):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lateness, first = Lateness(), workers.LEFT_OUT
    assert lateness.thread_limit(4) == 4
    lateness.limit_threads(2)
    assert [lateness.thread_limit(count) for count in (1, 2, 4)] == [1, 2, 2]
    now[0] += first
    assert lateness.thread_limit(4) == 4
    lateness.limit_threads(1)
    now[0] += 1.5 * first
    assert lateness.thread_limit(4) == 1, "late as soon as it is back: left out for twice as long"
    now[0] += 0.5 * first
    assert lateness.thread_limit(4) == 4
    now[0] += 2.1 * first
    lateness.limit_threads(2)
    now[0] += first
    assert lateness.thread_limit(4) == 4, "back for longer than it was left out: it begins anew"
    for _ in range(20):
        lateness.limit_threads(1)
    now[0] += workers.LONGEST_LEFT_OUT
    assert lateness.thread_limit(4) == 4


def waits() -> NativeFunction:
    """A function of machine code that pauses as often as the number says that it is given."""
    module = ir.Module("waits")
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "waits")
    code = Code(function.append_basic_block("entry"), host_processor())
    with code.loop(code.number(0), code.read(I64, function.args[0], 8)):
        code.pause()
    code.ret(code.number(0))
    return MachineCode(object_code(module, host_processor())).function("waits", ctypes.c_int64)


def test_a_function_of_python_keeps_its_machine_code() -> None:
    """Threads that loaded the same code at the same moment each hold another one, of which one is kept."""
    code = waits().code
    start, held = code.built_in("waits").bound(0), weakref.ref(code)
    del code
    gc.collect()
    assert held() is not None
    del start
    gc.collect()
    assert held() is None


class Emptied(OrderedDict[str, Any]):
    """A cache whose entries other threads remove just before one is removed here."""

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        """Removes all, and then the last one."""
        self.clear()
        return super().popitem(last)


def test_plans_that_other_threads_have_removed_are_no_error() -> None:
    plans, plan = CompiledPlans(0), cast("Any", SimpleNamespace(bytes=1))
    plans.entries = Emptied()
    for key in "ab":
        plans.put(key, plan)
    assert not plans.entries


def test_a_worker_that_is_late_with_a_task_of_its_own_is_left_out_for_a_while():
    crew, pauses = crew_of(1), np.array([100_000, 3_000_000])
    function = waits()
    order = TaskGroup(crew, [(function, pauses.ctypes.data), (function, pauses.ctypes.data + 8)])

    def is_left_out() -> bool:
        order.begin()
        order.lead()
        return crew.lateness.thread_limit(2) == 1

    until(is_left_out)
    order.lead()
    assert order.fields[GROUP_FIELDS.index("asked")] == 1
    crew.lateness = Lateness()
    for _ in range(6):  # the first thread takes the other task, too, if the worker does not come in time
        order.begin()
        pauses[:] = 1_000_000  # as long for both: nobody is late
        order.lead()
        pauses[0] = 30_000  # the last part of a run that paused: little is left for the first thread
        order.lead()
        assert crew.lateness.thread_limit(2) == 2


def test_a_prepared_call_uses_all_threads_again_after_some_were_late(shared: sn.RNN, constants: Constants):
    """It had one thread while it was prepared, as the others were late then."""
    x, pool = inputs(4, 20), workers.WORKER_POOL
    constants(workers, LEFT_OUT=60.0, LONGEST_LEFT_OUT=60.0)
    pool.lateness = Lateness()
    pool.lateness.limit_threads(1)
    for _ in range(4):
        shared(x)
    block = [each for each in gc.get_objects() if isinstance(each, ThreadedBlock)][-1]
    assert [group.fields[workers.MOST] for group in block.groups] == [1]
    constants(workers, LEFT_OUT=0.0, LONGEST_LEFT_OUT=0.0)
    pool.lateness = Lateness()
    shared(x)
    assert [group.fields[workers.MOST] for group in block.groups] == [threads()]


def test_a_timed_call_says_whether_threads_were_late():
    crew = crew_of(1)
    crew.lateness.limit_threads(1)
    seconds = crew.timed(lambda: None)
    assert seconds is not None
    assert 0 < seconds < 1
    assert crew.lateness.thread_limit(2) == 2
    assert crew.timed(lambda: crew.lateness.limit_threads(1)) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not keep threads anywhere")
def test_threads_stay_on_processors_of_their_own_while_they_are_measured(same_threads: None):
    sn.set_threads(2)
    crew, before = crew_of(1), os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one processor")
    with crew.apart():
        own, other = os.sched_getaffinity(0), os.sched_getaffinity(crew.workers[0].thread)
        assert (len(own), own & other, own | other) == (1, set(), before)
    assert os.sched_getaffinity(0) == os.sched_getaffinity(crew.workers[0].thread) == before


# ---- steps that threads share ------------------------------------------------------------------------------


@pytest.fixture(params=[2, 3])
def shared(request: pytest.FixtureRequest) -> Generator[sn.RNN]:
    """A recurrence whose steps so many threads share, though it is small."""
    before = threads()
    sn.set_threads(request.param)
    with every_step_shared():
        yield rnn_of("gru", 24, 48, seed=3)
    sn.set_threads(before)


def inputs(rows: int, steps: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, steps, 24)).astype("float32")


def prepared(stream: Any) -> Any:
    """The prepared call that runs a stream's steps."""
    ((_, step),) = stream._steps
    return step.chosen[stream._moment.side].run


def test_shared_steps_are_bit_for_bit_those_of_one_thread(shared: sn.RNN, monkeypatch: pytest.MonkeyPatch):
    x, came = inputs(1, 200), []
    lead = TaskGroup.lead

    def counted(self: TaskGroup) -> bool:
        more = lead(self)
        came.append(self.thread_count)
        return more

    monkeypatch.setattr(TaskGroup, "lead", counted)
    stream = shared.stream()
    expected: Array | None = None

    def both_ways() -> bool:
        nonlocal expected
        steps: list[Array] = []
        for at in range(200):
            if at % 50 == 25:
                time.sleep(0.02)  # long enough for workers to fall asleep
            steps.append(stream.step(x[:, at]))
        stream.reset()
        outputs = np.stack(steps, axis=1)
        expected = outputs if expected is None else expected
        np.testing.assert_array_equal(outputs, expected)
        return {1, 2} <= set(came)

    until(both_ways)
    assert isinstance(prepared(stream), DividedTasks)
    sn.set_threads(1)
    np.testing.assert_array_equal(expected, shared(x)[0])


def test_a_long_step_wakes_a_sleeping_thread_and_shares_itself_with_it(shared: sn.RNN, constants: Constants):
    constants("stepnet.compiler.targets.cpu.running.prepared_tasks", LONG=0.0)  # each step is a long one
    x, stream, outputs, counts = inputs(1, 40), shared.stream(), [], []
    for at in range(40):
        until(lambda: all(worker.is_asleep for worker in WORKER_POOL.workers))
        WORKER_POOL.lateness = Lateness()
        outputs.append(stream.step(x[:, at]))
        run = prepared(stream)
        counts += [run.orders.thread_count] if isinstance(run, DividedTasks) else []
    assert sum(count > 1 for count in counts) > 20, counts  # a processor may be taken meanwhile
    sn.set_threads(1)
    np.testing.assert_array_equal(np.stack(outputs, 1), shared(x)[0])


def test_a_call_that_pauses_between_all_its_blocks_gives_the_same_bits(
    shared: sn.RNN, monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    batches = [inputs(1, 900), inputs(3, 300), inputs(150, 20)]
    another = rnn_of("gru", 24, 48, seed=3)  # calls that were prepared keep their times
    expected = [another(x) for x in batches]
    pauses, lead = [], TaskGroup.lead

    def counted(self: TaskGroup) -> bool:
        more = lead(self)
        pauses.append(more)
        return more

    monkeypatch.setattr(TaskGroup, "lead", counted)
    constants(prepared_chain, SLICE=1e-9)
    for x, (outputs, final) in zip(batches, expected, strict=True):
        pauses.clear()
        found, last = shared(x)
        np.testing.assert_array_equal(found, outputs)
        np.testing.assert_array_equal(last, final)
        assert sum(pauses) >= 2


def test_threads_that_are_left_out_between_blocks_change_no_bit(
    shared: sn.RNN, monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    x, count, stayed = inputs(1, 900), threads(), []
    sn.set_threads(1)
    expected = shared(x)[0]
    sn.set_threads(count)
    # Code for which every wait is a long one.
    constants(engine, KEPT=CompiledPlans(2**20))
    constants("stepnet.compiler.targets.cpu.machine.stored_code", LOADED={})
    constants(driver_code, LATE_SECONDS=0, LATE=10**9)
    constants(waiting, SPINS=0)
    lead = TaskGroup.lead

    def leads(self: TaskGroup) -> bool:
        more = lead(self)
        assert self.progress is not None
        stayed.append((self.thread_count, int(self.progress[0])))
        return more

    monkeypatch.setattr(TaskGroup, "lead", leads)

    def seen() -> bool:
        WORKER_POOL.lateness = Lateness()
        rnn = cells.rnn("gru", shared.params)  # later calls of one do not lead threads from Python
        np.testing.assert_array_equal(rnn(x)[0], expected)
        return any(left < came for came, left in stayed)

    until(seen)


def test_streams_of_several_threads_do_not_disturb_one_another(shared: sn.RNN):
    expected = [shared(inputs(1, 60, seed))[0] for seed in range(4)]

    def work(seed: int) -> None:
        x, stream = inputs(1, 60, seed), shared.stream()
        for again in range(5):
            for at in range(60):
                np.testing.assert_array_equal(stream.step(x[:, at]), expected[seed][:, at])
            stream.reset()
            time.sleep(1e-3 * again)

    on_threads(4, work)


@pytest.mark.usefixtures("same_threads")
def test_an_index_outside_a_table_in_a_shared_step():
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(p["E"][x] + h @ p["R"])
        return h, h

    params = {"E": np.eye(3, 32, dtype="float32"), "R": np.eye(32, dtype="float32")}
    sn.set_threads(2)
    with every_step_shared():
        stream = sn.RNN(step, params, memory=32).stream()
        for symbol in (0, 1, 2):
            stream.step(np.array([symbol]))
        for _ in range(20):
            with pytest.raises(InputError, match="an integer is outside the rows"):
                stream.step(np.array([3]))
        stream.reset()
        right = np.tanh(params["E"][:1])
        np.testing.assert_allclose(stream.step(np.array([0])), right, rtol=1e-6)
