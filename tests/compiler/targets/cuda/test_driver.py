"""A GPU by the CUDA driver, with one in Python in its place: the order of its calls, and all messages."""

import os
import threading
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda
from fake_cuda import fake_device as device

from stepnet.compiler.targets.cuda import CudaDevice, CudaLibrary, DeviceCode, KernelWriter, get, put, started
from stepnet.compiler.targets.cuda.driver import library
from stepnet.compiler.targets.cuda.driver.gpu import renew_locks
from stepnet.compiler.targets.cuda.driver.staging import HALF
from stepnet.errors import DeviceError


def kernel(name: str = "sums of 3 values", **options: Any) -> DeviceCode:
    writer = KernelWriter(name, ["x", "count"])
    writer.write_number(writer.word("count"), writer.pointer("x"), writer.thread)
    return writer.finished(32, **options)


def test_facts_are_those_of_the_driver():
    facts = device()[0].facts
    assert (facts.name, facts.capability, facts.multiprocessors) == ("NVIDIA Fake", (9, 0), 132)
    assert (facts.shared, facts.registers, facts.cluster) == (232448, 65536, 16)
    assert device(attributes={75: 8, 76: 6, 120: 0})[0].facts.cluster == 1
    assert device(attributes={75: 10})[0].facts.cluster == 8


def test_arrays_come_back_as_they_were():
    made, _ = device()
    small, large = np.arange(1000), np.arange(HALF, dtype="i4")  # the second in several pieces
    assert np.array_equal(get(put(made, small)), small)
    assert np.array_equal(get(put(made, large)), large)
    assert np.array_equal(get(put(made, small[:7])), small[:7])
    assert get(put(made, np.empty((3, 0)))).shape == (3, 0)


def test_an_array_may_change_after_it_was_written():
    made, fake = device()
    held = list[tuple[Any, ...]]()
    made.library.functions["cuMemcpyHtoDAsync_v2"] = lambda *arguments: held.append(arguments) or 0
    array = np.arange(5)
    address = made.allocate(40)
    made.write(address, array)
    array[:] = 0
    for arguments in held:  # the GPU copies later
        fake.do_cuMemcpyHtoDAsync_v2(*arguments)
    found = np.empty(5, int)
    made.read(address, found)
    assert found.tolist() == [0, 1, 2, 3, 4]


def test_halves_of_the_buffer_are_waited_for():
    made, fake = device()
    address = made.allocate(3 * HALF)
    made.write(address, np.zeros(2 * HALF, "u1"))
    assert "cuEventSynchronize" not in fake.names()
    made.write(address, np.zeros(HALF, "u1"))
    assert "cuEventSynchronize" in fake.names()


def test_only_read_and_wait_wait():
    made, fake = device()
    address = made.allocate(64)
    made.write(address, np.zeros(8))
    made.copy(address, address + 8, 8)
    made.clear(address, 8)
    made.launch(kernel(), 3, [address, 8])
    made.free(address)
    assert not [name for name in fake.names() if "Synchronize" in name]
    made.wait()
    made.read(made.allocate(8), np.zeros(1))
    assert fake.names().count("cuStreamSynchronize") == 2


def test_nothing_is_given_for_no_bytes_and_no_blocks():
    made, fake = device()
    fake.names()
    made.copy(0, 0, 0)
    made.clear(0, 0)
    made.launch(kernel(), 0, [0, 0])
    assert fake.names() == []


def test_a_kernel_is_loaded_once_and_has_its_words():
    made, fake = device()
    for _ in range(2):
        made.launch(kernel(shared=100), 3, [2**40, -5])
    assert len(fake.texts) == 1
    assert ".target sm_90a" in fake.texts[0]
    assert fake.launched == [(3, 1, 1, 32, 1, 1, 100, 0, 2**40, -5)] * 2
    assert ("cuFuncSetAttribute", 99, 8, 100) in fake.calls


def test_kernels_that_need_all_blocks_are_cooperative():
    made, fake = device()
    made.launch(kernel(exchange="grid", group=4), 4, [0, 0])
    assert "cuLaunchCooperativeKernel" in fake.names()
    made.launch(kernel(exchange="cluster", group=16), 16, [0, 0])
    assert ("cuFuncSetAttribute", 99, 14, 1) in fake.calls
    assert ".reqnctapercluster 16" in fake.texts[-1]


def test_the_context_of_the_thread_stays_as_it_was():
    made, fake = device()
    fake.names()
    made.clear(0, 1)
    assert fake.names() == ["cuCtxPushCurrent_v2", "cuMemsetD8Async", "cuCtxPopCurrent_v2"]
    fake.current = 77
    made.clear(0, 1)
    assert fake.names() == ["cuMemsetD8Async"]


def test_streams_wait_for_each_other():
    made, fake = device()
    fake.current = 77
    made.clear(0, 1)
    fake.names()
    with made.on_stream(5):
        assert fake.names() == ["cuStreamIsCapturing"]
        made.clear(0, 1)
        made.clear(0, 1)
        assert fake.calls[:3] == [
            ("cuEventRecord", 55, 0),
            ("cuStreamWaitEvent", 5, 55, 0),
            ("cuMemsetD8Async", 0, 0, 1, 5),
        ]
        assert fake.names()[3:] == ["cuMemsetD8Async"]
        other = threading.Thread(target=made.clear, args=(0, 1))
        other.start()
        other.join()
        assert fake.calls[-1] == ("cuMemsetD8Async", 0, 0, 1, 0)  # the stream of another thread
        made.wait()
    fake.names()
    made.clear(0, 1)  # the stream that was left is not used any more
    assert fake.calls == [("cuStreamWaitEvent", 0, 55, 0), ("cuMemsetD8Async", 0, 0, 1, 0)]


def test_memory_without_pools():
    made, fake = device(attributes={115: 0})
    made.free(made.allocate(100))
    assert {"cuMemAlloc_v2", "cuMemFree_v2"} <= set(fake.names())


def test_no_memory():
    made, fake = device()
    fake.errors["cuMemAllocFromPoolAsync"] = 2
    with pytest.raises(
        MemoryError,
        match="NVIDIA Fake has no room for an array of 4096 bytes: 1000 of its 5000 bytes are free",
    ):
        made.allocate(4096)
    assert "cuMemPoolTrimTo" in fake.names()
    del fake.errors["cuMemAllocFromPoolAsync"]
    assert made.allocate(4096)  # nothing else is lost


def test_a_wrong_address_is_named_with_the_kernel():
    made, fake = device()
    made.launch(kernel("first"), 1, [0, 0])
    made.wait()
    made.launch(kernel("second"), 1, [0, 0])
    fake.errors["cuStreamSynchronize"] = 700
    with pytest.raises(DeviceError, match="the kernel 'second' read or wrote an address that is not its own"):
        made.wait()
    del fake.errors["cuStreamSynchronize"]
    with pytest.raises(
        DeviceError, match="cannot be used any more in this process, as the kernel 'second' read or wrote"
    ):
        made.clear(0, 1)
    made.free(0)  # of an array that is deleted later


def test_one_of_several_kernels_failed():
    made, fake = device()
    made.launch(kernel("first"), 1, [0, 0])
    made.launch(kernel("second"), 1, [0, 0])
    fake.errors["cuMemsetD8Async"] = 719
    with pytest.raises(DeviceError, match="one of the kernels 'first', 'second' failed"):
        made.clear(0, 1)


def test_a_kernel_that_is_launched_later_is_not_named():
    made, fake = device()
    made.launch(kernel("first"), 1, [0, 0])
    made.launch(kernel("second"), 0, [0, 0])
    fake.errors["cuLaunchKernel"] = 700
    with pytest.raises(DeviceError, match=r"^the kernel 'first' read or wrote an address"):
        made.launch(kernel("second"), 1, [0, 0])


def test_a_kernel_of_another_library_failed():
    made, fake = device()
    fake.errors["cuMemsetD8Async"] = 716
    with pytest.raises(DeviceError, match="a kernel of another library used an address that is not aligned"):
        made.clear(0, 1)


def test_other_errors_have_the_drivers_words():
    made, fake = device()
    fake.errors["cuMemsetD8Async"] = 1
    message = (
        r"NVIDIA Fake: the CUDA driver says: words of the driver, CUDA_ERROR, error 1 \(cuMemsetD8Async\)"
    )
    with pytest.raises(DeviceError, match=message):
        made.clear(0, 1)


def test_a_grid_that_is_too_large():
    made, fake = device()
    fake.errors["cuLaunchCooperativeKernel"] = 720
    with pytest.raises(
        DeviceError,
        match="'sums of 3 values' needs 500 blocks of 32 threads and 64 bytes of shared memory that run at "
        "once, and NVIDIA Fake runs 264: give fewer sequences per call",
    ):
        made.launch(kernel(exchange="grid", shared=64), 500, [0, 0])


@pytest.mark.parametrize(("error", "group"), [(701, 1), (912, 16)])
def test_a_block_that_is_too_large(error: int, group: int):
    made, fake = device()
    fake.errors["cuLaunchKernel"] = error
    what = "clusters of 16 blocks" if group > 1 else "blocks"
    with pytest.raises(DeviceError, match=f"cannot run on NVIDIA Fake with {what} of 32 threads") as raised:
        made.launch(kernel(exchange="cluster" if group > 1 else "none", group=group), 16, [0, 0])
    fewer = made.facts.multiprocessors - 1  # for which a loop without clusters is chosen
    assert getattr(raised.value, "at_once", None) == (fewer if group > 1 else None)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (222, "the CUDA driver is too old for the kernel 'sums of 3 values'"),
        (218, "the CUDA driver refuses the kernel 'sums of 3 values'"),
        (700, "read or wrote an address"),
    ],
)
def test_kernels_that_cannot_be_loaded(error: int, message: str):
    made, fake = device()
    fake.errors["cuModuleLoadDataEx"] = error
    with pytest.raises(DeviceError, match=message):
        made.launch(kernel(), 1, [0, 0])


def test_too_much_shared_memory():
    with pytest.raises(
        DeviceError,
        match="'sums of 3 values' needs 300000 bytes of shared memory for each block, and NVIDIA Fake has "
        "232448",
    ):
        device()[0].launch(kernel(shared=300000), 1, [0, 0])


def test_no_such_gpu():
    with pytest.raises(DeviceError, match="there is no GPU 3 here: the CUDA driver finds 2, from 0 on"):
        CudaDevice(3, started(FakeCuda(count=2)))


def test_a_gpu_that_is_too_old():
    with pytest.raises(DeviceError, match=r"NVIDIA Fake has compute capability 7\.5, and stepnet needs 8\.0"):
        device(attributes={75: 7, 76: 5})


def test_a_driver_that_is_too_old():
    with pytest.raises(DeviceError, match=r"is for CUDA 11\.8, and stepnet needs one for 12\.0 or later"):
        started(FakeCuda(version=11080))


def test_a_driver_that_lacks_a_function():
    class Old:
        """A library without functions."""

    with pytest.raises(DeviceError, match=r"has no function cuInit: install a driver for CUDA 12\.0"):
        CudaLibrary(Old())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (100, "the CUDA driver finds no GPU here"),
        (3, "this process was forked from one that uses the GPU"),
        (803, "the CUDA driver cannot start: words of the driver"),
    ],
)
def test_a_driver_that_does_not_start(error: int, message: str):
    fake = FakeCuda()
    fake.errors["cuInit"] = error
    with pytest.raises(DeviceError, match=message):
        started(fake)


def test_no_driver():
    with pytest.raises(DeviceError, match=r"there is no CUDA driver here: libnowhere.*engine \"llvm\""):
        library.loaded("libnowhere.so.1")


def test_a_forked_process(monkeypatch: pytest.MonkeyPatch):
    made, fake = device()
    made.process += 1
    fake.names()
    holder = threading.Thread(target=made.lock.acquire)  # a thread that does not exist in the forked process
    holder.start()
    holder.join()
    renew_locks()
    with pytest.raises(DeviceError, match="was forked from one that uses the GPU, which CUDA does not allow"):
        made.clear(0, 1)
    made.free(0)
    assert fake.names() == []
    monkeypatch.setitem(library.LOADED, os.getppid(), made.library)
    with pytest.raises(DeviceError, match='start processes by "spawn"'):
        library.cuda_library()


# ---- kernels that are not needed any more


def unloaded(fake: FakeCuda) -> list[str]:
    """The loads, waits and unloads since the last time."""
    return [
        name.removeprefix("cu") for name in fake.names() if "Module" in name or name.endswith("Synchronize")
    ]


LOADED = ["ModuleLoadDataEx", "ModuleGetFunction"]


def test_kernels_of_codes_that_are_gone_are_unloaded_ahead_of_the_next_one():
    made, fake = device()
    first, equal = kernel("first"), kernel("first")
    for code in (first, equal, first):
        made.launch(code, 1, [0, 0])
    assert unloaded(fake) == LOADED
    del first, code
    made.launch(second := kernel("second", shared=16), 1, [0, 0])
    assert unloaded(fake) == LOADED  # the equal one is still there
    del equal
    made.launch(third := kernel("third", shared=32), 1, [0, 0])
    assert unloaded(fake) == ["StreamSynchronize", "ModuleUnload", *LOADED]
    for code in (second, third):
        made.launch(code, 1, [0, 0])
    assert len(made.kernels.by_key) == len(made.kernels.by_code) == 2
    assert unloaded(fake) == []


def test_a_code_that_comes_back_has_the_kernel_of_the_one_that_is_gone():
    made, fake = device()
    for _ in range(3):
        made.launch(kernel("again"), 1, [0, 0])
    assert unloaded(fake) == LOADED
    assert len(made.kernels.by_key) == 1


def test_nothing_is_unloaded_in_a_lost_context():
    made, fake = device()
    made.launch(kernel("first"), 1, [0, 0])
    fake.errors["cuStreamSynchronize"] = 700
    with pytest.raises(DeviceError, match="the kernel 'first' read or wrote an address"):
        made.launch(kernel("second", shared=16), 1, [0, 0])
    with pytest.raises(DeviceError, match="cannot be used any more"):
        made.launch(kernel("third", shared=32), 1, [0, 0])
    assert "ModuleUnload" not in unloaded(fake)


def test_nothing_is_unloaded_in_a_forked_process():
    made, fake = device()
    made.launch(kernel("first"), 1, [0, 0])
    made.process += 1  # as if the process were another one
    with pytest.raises(DeviceError, match="forked"):
        made.launch(kernel("second", shared=16), 1, [0, 0])
    assert "ModuleUnload" not in unloaded(fake)
