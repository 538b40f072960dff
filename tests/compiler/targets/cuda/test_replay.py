"""Work that a GPU is given again, and captures, with a CUDA driver in Python in the place of a GPU."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda

from stepnet.compiler.targets.cuda import (
    CudaDevice,
    DeviceCode,
    DeviceWork,
    KernelWriter,
    NotResidentError,
    empty,
    started,
)
from stepnet.errors import DeviceError

CLEAR = DeviceWork("clear", (0,), (8,), 16)
COPY = DeviceWork("copy", (1, 0), (0, 8), 8)
GRAPH = ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch"]


def device() -> tuple[CudaDevice, FakeCuda]:
    fake = FakeCuda()
    made = CudaDevice(0, started(fake))
    fake.current = 77
    return made, fake


def code(**options: Any) -> DeviceCode:
    writer = KernelWriter("sums of 3 values", ["x", "count"])
    writer.write_number(writer.word("count"), writer.pointer("x"), writer.thread)
    return writer.finished(32, **options)


def launch(base: int = 0, offset: int = 0, stream: int = 0, **options: Any) -> DeviceWork:
    return DeviceWork("launch", (base, -1), (offset, -5), 3, code(**options), stream)


def mark(stream: int, number: int) -> DeviceWork:
    return DeviceWork("mark", (), (), number, stream=stream)


def follow(stream: int, number: int) -> DeviceWork:
    return DeviceWork("follow", (), (), number, stream=stream)


def test_work_is_given_in_order_with_the_addresses_of_the_run() -> None:
    made, fake = device()
    work = made.repeated([CLEAR, launch(1, 4), launch(0, 0, exchange="grid", shared=64), COPY], None)
    first, second = (np.arange(6, dtype=float) for _ in range(2))
    fake.names()
    with made.on_stream(9):
        work([first.ctypes.data, second.ctypes.data])
    assert fake.launched == [
        (3, 1, 1, 32, 1, 1, 0, 9, second.ctypes.data + 4, -5),
        (3, 1, 1, 32, 1, 1, 64, 9, first.ctypes.data, -5),
    ]
    assert first.tolist() == [0, 0, 0, 3, 4, 5]
    assert second.tolist() == [0, 1, 2, 3, 4, 5]
    given = [name.removeprefix("cu") for name in fake.names() if "Event" not in name]
    launches = ["LaunchKernel", "LaunchCooperativeKernel"]
    assert given == ["StreamIsCapturing", "MemsetD8Async", *launches, "MemcpyDtoDAsync_v2"]


def test_work_of_side_streams_is_ordered_by_events_of_its_own() -> None:
    made, fake = device()
    fake.events, fake.streams = iter([101, 102]), iter([201, 202])
    order = [mark(0, 0), follow(1, 0), launch(stream=1), mark(1, 1), follow(0, 1), launch()]
    work = made.repeated(order, None)
    fake.names()
    work([512])
    events = [call for call in fake.calls if "Event" in call[0]]
    assert [launched[7] for launched in fake.launched] == [201, 0]
    assert events == [
        ("cuEventRecord", 101, 0),
        ("cuStreamWaitEvent", 201, 101, 0),
        ("cuEventRecord", 102, 201),
        ("cuStreamWaitEvent", 0, 102, 0),
    ]
    del work
    gc.collect()
    assert made.events == [101, 102]  # for those that come


def test_work_on_the_same_memory_becomes_a_graph() -> None:
    made, fake = device()
    work = made.repeated([launch(), launch(), launch(1)], None)
    for _ in range(2):
        work([512, 1024])
    assert not {*GRAPH} & {*fake.names()}
    work([512, 1024])
    given = [name for name in fake.names() if "Graph" in name or "Capture" in name]
    assert given == [*GRAPH[:3], "cuGraphDestroy", GRAPH[3]]
    assert fake.launched[-3:] == [(3, 1, 1, 32, 1, 1, 0, 56, address, -5) for address in (512, 512, 1024)]
    work([512, 1024])
    assert fake.names() == ["cuGraphLaunch"]
    work([512, 2048])  # other memory
    assert fake.names() == ["cuLaunchKernel"] * 3
    assert fake.launched[-1][-2:] == (2048, -5)
    empty(made, (1,), "int64")
    assert "cuGraphExecDestroy" in fake.names()


def test_a_run_keeps_no_memory_allocated() -> None:
    made, _ = device()
    work, array = made.repeated([launch()], None), empty(made, (1,), "int64")
    kept = weakref.ref(array.owner)
    work([array.address])
    del array
    assert kept() is None


def test_graphs_of_little_work_are_not_made() -> None:
    made, fake = device()
    work = made.repeated([launch()], None)
    for _ in range(5):
        work([512])
    assert not {*GRAPH} & {*fake.names()}


def test_work_that_is_not_captured_is_given_piece_by_piece() -> None:
    made, fake = device()
    work = made.repeated([launch(), launch(), launch()], None)
    fake.errors["cuStreamEndCapture"] = 900
    for _ in range(5):
        work([512])
    names = fake.names()
    assert "cuGraphLaunch" not in names
    assert names.count("cuStreamBeginCapture_v2") == 1
    assert names.count("cuLaunchKernel") == 5 * 3 + 3
    other = made.repeated([launch(), launch(), launch()], None)
    fake.errors["cuStreamEndCapture"] = 700
    for _ in range(2):
        other([512])
    with pytest.raises(DeviceError, match="read or wrote an address that is not its own"):
        other([512])


def test_graphs_are_freed_with_their_work() -> None:
    made, fake = device()
    work = made.repeated([launch(), launch(), launch()], None)
    for _ in range(3):
        work([512])
    del work
    gc.collect()
    empty(made, (1,), "int64")
    assert ("cuGraphExecDestroy", 45) in fake.calls


def test_failures_name_the_kernels() -> None:
    made, fake = device()
    work = made.repeated([launch()], None)
    fake.errors["cuLaunchKernel"] = 700
    with pytest.raises(DeviceError, match="the kernel 'sums of 3 values' read or wrote an address"):
        work([512])
    with pytest.raises(DeviceError, match="cannot be used any more"):
        work([512])


def test_a_loop_that_does_not_fit_any_more_is_told_from_other_failures() -> None:
    made, fake = device()
    work = made.repeated([launch(), launch(exchange="grid"), launch()], None)
    for _ in range(2):  # the second time it fails where the work is captured
        fake.errors["cuLaunchCooperativeKernel"] = 720
        with pytest.raises(NotResidentError, match=r"needs 3 blocks of 32 threads .* that run at once"):
            work([512])
        fake.errors.clear()
        work([512])


def test_a_forked_process_gives_no_work() -> None:
    made, fake = device()
    work = made.repeated([launch()], None)
    made.process += 1
    fake.names()
    with pytest.raises(DeviceError, match="was forked from one that uses the GPU"):
        work([512])
    assert fake.names() == []


# ---- captures by another library


def test_known_work_is_captured_and_kept() -> None:
    made, fake = device()
    work = made.repeated([launch(), launch(), launch()], None)
    fake.capturing.add(9)
    made.clear(0, 1)  # on another stream, which a capture must not wait for
    fake.names()
    with made.on_stream(9):
        for _ in range(5):
            work([512])
    assert {*fake.names()} == {"cuStreamIsCapturing", "cuLaunchKernel"}
    assert made.captured == {work}
    fake.capturing.clear()
    with made.on_stream(9):
        made.clear(0, 1)
    assert "cuStreamWaitEvent" in fake.names()


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (lambda made: made.allocate(8), "memory of the GPU cannot be allocated"),
        (lambda made: made.write(512, np.zeros(1)), "numbers of the host cannot be copied to the GPU"),
        (lambda made: made.read(512, np.zeros(1)), "the host cannot read numbers of the GPU"),
        (lambda made: made.wait(), "the GPU cannot be waited for"),
        (lambda made: made.launch(code(), 1, [0, 0]), "the kernel 'sums of 3 values' cannot be loaded"),
    ],
)
def test_what_a_capture_cannot_do(does: Any, message: str) -> None:
    made, fake = device()
    fake.capturing.add(9)
    whole = f"{message} while a CUDA graph is captured: run this call once before the capture"
    with made.on_stream(9), pytest.raises(DeviceError, match=whole):
        does(made)
    made.wait()  # outside of the capture


def test_memory_given_up_during_a_capture_is_freed_later() -> None:
    made, fake = device()
    address = made.allocate(8)
    fake.capturing.add(9)
    with made.on_stream(9):
        made.free(address)
    assert "cuMemFreeAsync" not in fake.names()
    made.allocate(8)
    assert fake.names().count("cuMemFreeAsync") == 1
