"""Side streams: their order, the memory that they free, and what is found where a mark is missing."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from fake_cuda import fake_device

from stepnet.compiler.targets.cuda import (
    CudaMemory,
    DeviceCode,
    EmulatedDevice,
    Fork,
    KernelWriter,
    empty,
    get,
    put,
)
from stepnet.errors import DeviceError

SEEDS = range(6)


def two_sides(seed: int, marked: bool = True) -> list[list[float]]:
    """Rows taken by a side stream from what another one took."""
    memory = CudaMemory(EmulatedDevice(seed))
    x, results = memory.put(np.arange(8.0).reshape(8, 1)), list[Any]()
    with memory.device.forked() as fork:
        with fork.on(0):
            first = memory.take(x, np.arange(7, -1, -1))
            mark = fork.mark()
        with fork.on(1):
            results.append(memory.take(x, np.array([3, 4])))
            if marked:
                fork.after(mark)
            results.append(memory.take(first, np.array([0, 1])))
        with fork.on(0):
            results.append(memory.take(x, np.array([6, 5])))
    return [memory.get(each)[:, 0].tolist() for each in results]


@pytest.mark.parametrize("seed", SEEDS)
def test_marks_order_the_work_of_two_streams(seed: int):
    assert two_sides(seed) == [[3, 4], [7, 6], [6, 5]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_mark_is_found_in_every_order(seed: int):
    with pytest.raises(DeviceError, match=r"no mark puts one behind the other"):
        two_sides(seed, marked=False)


def test_reads_of_one_array_need_no_order():
    device = EmulatedDevice()
    memory, x = CudaMemory(device), put(device, np.arange(3.0))
    with device.forked() as fork:
        for side in range(3):
            with fork.on(side):
                memory.copy(x)


def test_writes_of_one_array_need_an_order():
    device = EmulatedDevice()
    x = put(device, np.arange(3.0))

    def clear_by_two_sides() -> None:
        with device.forked() as fork:
            for side in range(2):
                with fork.on(side):
                    device.clear(x.address, x.nbytes)

    with pytest.raises(DeviceError, match=r"zeros of stream [12] writes an array that a copy of zeros"):
        clear_by_two_sides()


def put_by_two_sides(memory: CudaMemory, change: Callable[[Fork], Any] = vars) -> list[Any]:
    """Indices that are put by the first of three uses, and found again by their contents."""
    x, counts, made = memory.put(np.arange(3.0)), np.array([1, 2, 0]), list[Any]()
    with memory.device.forked() as fork:
        change(fork)
        for side in (0, 1, 0):
            with fork.on(side):
                made.append(memory.repeat(x, counts))
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_put_in_a_fork_is_for_all_streams(seed: int):
    memory = CudaMemory(EmulatedDevice(seed))
    made = put_by_two_sides(memory)
    assert [memory.get(each).tolist() for each in made] == [[0, 1, 1]] * 3


def test_what_is_put_by_a_side_stream_alone_has_no_order():
    def no_main(fork: Fork) -> None:
        fork.on_main = nullcontext  # type: ignore[method-assign]

    with pytest.raises(DeviceError, match="and no mark puts one behind"):
        put_by_two_sides(CudaMemory(EmulatedDevice()), no_main)


def test_work_of_a_fork_runs_in_other_orders_by_the_seed():
    found = set[str]()
    for seed in SEEDS:
        device, order = EmulatedDevice(seed), list[str]()

        def work(name: str, order: list[str] = order) -> list[Any]:
            order.append(name)
            return []

        with device.forked() as fork:
            for side in (0, 1):
                with fork.on(side):
                    for _ in range(3):
                        device.give("work", (), partial(work, str(side)))
        assert sorted(order) == ["0"] * 3 + ["1"] * 3
        found.add("".join(order))
    assert len(found) > 2


def test_memory_is_freed_where_it_was_used():
    device = EmulatedDevice()
    with device.forked() as fork:
        with fork.on(0):
            own = empty(device, (4,), "float32")
            device.clear(own.address, own.nbytes)
            place = int(own.address)
            del own
            kept = empty(device, (4,), "float32")
            device.clear(kept.address, kept.nbytes)
            mark = fork.mark()
        with fork.on(1):
            fork.after(mark)
            copied = CudaMemory(device).copy(kept)
            other = int(kept.address)
            del kept  # another stream has read it
            assert device.freed_later == [other]
        assert place in device.memory  # the clearing did not run yet
    assert not {place, other} & {*device.memory}
    assert get(copied).tolist() == [0] * 4


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_that_another_stream_had_cannot_be_freed_in_time(seed: int):
    device = EmulatedDevice(seed)

    def free_too_early() -> None:
        made = empty(device, (4,), "float32")
        with device.forked() as fork:
            with fork.on(0):
                device.clear(made.address, made.nbytes)
            with fork.on(1):
                fork.allocated(int(made.address))  # which is not true
                del made

    with pytest.raises(DeviceError, match=r"the end of stream 2 writes an array|another stream has freed"):
        free_too_early()


def test_a_fork_has_no_forks():
    for device in (EmulatedDevice(), fake_device()[0]):
        with device.forked() as fork, fork.on(0):
            with pytest.raises(AssertionError, match="side streams have no side streams"), fork.on(1):
                pass
            with pytest.raises(AssertionError, match="a fork has no forks"), device.forked():
                pass


# ---- by the driver


def test_side_streams_begin_behind_the_fork_and_end_before_the_join():
    device, fake = fake_device()
    fake.current = 77
    device.clear(0, 8)
    fake.streams = iter((901, 902))
    fake.events = iter(range(801, 820))
    fake.names()
    with device.forked() as fork:
        with fork.on(0):
            device.clear(0, 1)
            mark = fork.mark()
        with fork.on(1):
            fork.after(mark)
            device.clear(0, 2)
    device.clear(0, 3)
    assert [call for call in fake.calls if not call[0].endswith("Create")] == [
        ("cuEventRecord", 801, 0),
        ("cuStreamWaitEvent", 901, 801, 0),
        ("cuMemsetD8Async", 0, 0, 1, 901),
        ("cuEventRecord", 802, 901),
        ("cuStreamWaitEvent", 902, 801, 0),
        ("cuStreamWaitEvent", 902, 802, 0),
        ("cuMemsetD8Async", 0, 0, 2, 902),
        ("cuEventRecord", 803, 901),
        ("cuStreamWaitEvent", 0, 803, 0),
        ("cuEventRecord", 804, 902),
        ("cuStreamWaitEvent", 0, 804, 0),
        ("cuMemsetD8Async", 0, 0, 3, 0),
    ]
    assert device.events == [801, 802, 803, 804]
    fake.names()
    with device.forked() as fork, fork.on(1):
        device.clear(0, 1)
    assert "cuStreamCreate" not in fake.names()  # streams and events are used again
    assert len(device.events) == 4


def test_uploads_in_a_fork_go_to_the_main_stream():
    device, fake = fake_device()
    fake.current, fake.streams, fake.events = 77, iter((901,)), iter(range(801, 820))
    with device.forked() as fork, fork.on(0):
        device.clear(0, 1)
        fake.names()
        array = put(device, np.arange(3))
        device.clear(0, 1)
        where = [(name, stream) for name, *_, stream in fake.calls if name.endswith("Async_v2")]
        assert where == [("cuMemcpyHtoDAsync_v2", 0)]
        assert [call for call in fake.calls if "Event" in call[0] and "Create" not in call[0]] == [
            ("cuEventRecord", 804, 0),  # 802 and 803 are those of the buffer for copies
            ("cuStreamWaitEvent", 901, 804, 0),
        ]
        assert fake.calls[-1] == ("cuMemsetD8Async", 0, 0, 1, 901)
    assert get(array).tolist() == [0, 1, 2]


def test_memory_is_freed_on_the_stream_that_had_it_or_behind_the_join():
    device, fake = fake_device()
    fake.streams = iter((901, 902))
    with device.forked() as fork:
        with fork.on(0):
            device.free(device.allocate(16))
            escaped = device.allocate(16)
        with fork.on(1):
            device.free(escaped)
        frees = [call for call in fake.calls if call[0] == "cuMemFreeAsync"]
        assert [stream for *_, stream in frees] == [901]
    assert ("cuMemFreeAsync", escaped, 0) in fake.calls
    names = [name for name, *_ in fake.calls]
    assert max(place for place, name in enumerate(names) if name == "cuStreamWaitEvent") < names.index(
        "cuMemFreeAsync", names.index("cuMemFreeAsync") + 1
    )


def kernel(name: str) -> DeviceCode:
    writer = KernelWriter(name, ["x", "count"])
    writer.write_number(writer.word("count"), writer.pointer("x"), writer.thread)
    return writer.finished(32, shared=8 * len(name))


def test_kernels_that_side_streams_may_run_are_not_unloaded():
    device, fake = fake_device()
    with device.forked() as fork:
        for side, name in enumerate(("first", "second")):
            with fork.on(side):
                device.launch(kernel(name), 1, [0, 0])  # whose code is then gone
    assert "cuModuleUnload" not in fake.names()
    device.launch(kernel("the third"), 1, [0, 0])
    assert fake.names().count("cuModuleUnload") == 2


def test_a_kernel_of_another_side_stream_may_have_failed():
    device, fake = fake_device()
    with device.forked() as fork:
        with fork.on(0):
            device.launch(kernel("first"), 1, [0, 0])
        with fork.on(1):
            device.launch(kernel("second"), 1, [0, 0])
            device.wait()
    fake.errors["cuMemsetD8Async"] = 719
    with pytest.raises(DeviceError, match="one of the kernels 'first', 'second' failed"):
        device.clear(0, 1)


def test_a_lost_context_ends_a_fork():
    device, fake = fake_device()
    fake.errors["cuMemsetD8Async"] = 716

    def fail() -> None:
        with device.forked() as fork, fork.on(0):
            device.clear(0, 1)

    with pytest.raises(DeviceError, match="used an address that is not aligned"):
        fail()
    assert device.fork is None
