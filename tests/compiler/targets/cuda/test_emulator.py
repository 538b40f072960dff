"""Kernels in emulation: what threads do together, and what the emulation finds."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from bench.gpu.together import TOGETHER, reversed_in_blocks
from stepnet.compiler.targets.cuda import (
    DeviceArray,
    DeviceCode,
    EmulatedDevice,
    KernelWriter,
    empty,
    get,
    put,
)
from stepnet.compiler.targets.cuda.emulation.fibers import switch_here
from stepnet.errors import DeviceError, LibraryError

Array = np.ndarray
I32, F32, VOID = ir.IntType(32), ir.FloatType(), ir.VoidType()
FOUR, QUAD = ir.VectorType(F32, 4), ir.LiteralStructType([F32] * 4)
SEEDS = range(4)


def launch(code: DeviceCode, blocks: int, *arguments: "DeviceArray | int", seed: int = 0) -> EmulatedDevice:
    device = next((one.device for one in arguments if isinstance(one, DeviceArray)), EmulatedDevice())
    assert isinstance(device, EmulatedDevice)
    device.seed = seed
    words = [one if isinstance(one, int) else one.address for one in arguments]
    device.launch(code, blocks, words)
    return device


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TOGETHER)
def test_what_threads_do_together(name: str, seed: int):
    TOGETHER[name](EmulatedDevice(seed))


@pytest.mark.parametrize("barriers", [0, 1])
def test_missing_barriers_are_seen(barriers: int):
    device, x = EmulatedDevice(), np.arange(64, dtype="f4")
    y = empty(device, x.shape, "float32")
    launch(reversed_in_blocks(barriers), 1, put(device, x), y, seed=1)
    found = get(y)
    assert not np.array_equal(found, x[::-1])
    assert barriers or np.isnan(found).any()  # shared memory is poisoned


def test_memory_is_poisoned():
    array = get(empty(EmulatedDevice(), (10,), "float64"))
    assert np.isnan(array).all()


def waiting(name: str) -> DeviceCode:
    """A kernel whose first 40 threads call a function that all are to call."""
    writer = KernelWriter("half of it", ["counter"])
    with writer.when(writer.icmp_signed("<", writer.thread, writer.number(40))):
        arguments = [writer.pointer("counter")] if name == "acquire" else []
        if name == "acquire":
            with writer.loop_while(
                lambda: writer.icmp_signed(
                    "<", writer.function_call(name, I32, arguments), ir.Constant(I32, 9)
                )
            ):
                pass
        else:
            writer.function_call(name, VOID, arguments)
    return writer.finished(64)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "barrier",
            "40 of 64 threads wait for each other: threads 0 to 39 of block 0 at a barrier of the block",
        ),
        ("warp_barrier", "8 of 64 .*: threads 32 to 39 of block 0 for the other threads of their warps"),
        ("wait", "40 of 64 .*: threads 0 to 39 of block 0 at a barrier of the cluster"),
        ("acquire", "40 of 64 .*: threads 0 to 39 of block 0 for a counter of another block"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_deadlocks_are_found(name: str, words: str, seed: int):
    counter = put(EmulatedDevice(), np.zeros(1, np.int64))
    with pytest.raises(DeviceError, match=f"half of it: deadlock: {words}"):
        launch(waiting(name), 1, counter, seed=seed)


@pytest.mark.parametrize("seed", [101, 123, 184, 198])
def test_who_polls_late_waits_for_nobody(seed: int):
    """A thread of a slow warp may begin to poll when all others have ended: it has to look again."""
    TOGETHER["counters"](EmulatedDevice(seed))


def test_deadlocks_of_many_blocks_are_shortened():
    counter = put(EmulatedDevice(), np.zeros(1, np.int64))
    with pytest.raises(DeviceError, match=r"80 of 640 threads.* of block 3 .*; and 6 more groups$"):
        launch(waiting("warp_barrier"), 10, counter)


def writing_at(dtype: str, offset: int, shared: bool = False) -> DeviceCode:
    """A kernel that writes one element of an array, or of shared memory of 64 bytes."""
    writer = KernelWriter("careless", ["y"])
    target = writer.shared(0) if shared else writer.pointer("y")
    number = writer.trunc(writer.number(5), ir.IntType(np.dtype(dtype).itemsize * 8))
    writer.write_element(dtype, number, target, writer.number(offset))
    return writer.finished(32, shared=64)


@pytest.mark.parametrize(("offset", "byte"), [(10, 40), (-1, -4), (73, 292)])
def test_writes_outside_of_an_array_are_found(offset: int, byte: int):
    device = EmulatedDevice()
    y = empty(device, (10,), "int32")
    with pytest.raises(
        DeviceError, match=f"careless wrote outside of an array of 40 bytes: at its byte {byte}$"
    ):
        launch(writing_at("int32", offset), 1, y)


def test_writes_outside_are_found_when_the_array_is_freed():
    device = EmulatedDevice()
    address = device.allocate(40)
    device.launch(writing_at("int32", 8), 1, [address + 8])  # the kernel is given a part of the array
    with pytest.raises(DeviceError, match=r"a kernel wrote outside of an array of 40 bytes: at its byte 40$"):
        device.free(address)


def test_arrays_that_were_freed_are_found():
    device = EmulatedDevice()
    address = int(empty(device, (10,), "int32").address)
    with pytest.raises(DeviceError, match=r"^careless: the array of argument 0 has been freed$"):
        device.launch(writing_at("int32", 0), 1, [address])


def test_writes_outside_of_shared_memory_are_found():
    y = empty(EmulatedDevice(), (10,), "int32")
    with pytest.raises(
        DeviceError, match=r"careless wrote outside of the 64 bytes of shared memory of block 0: at byte 64$"
    ):
        launch(writing_at("int32", 16, shared=True), 1, y)


def accessing(function: str, size: int, writes: bool, shared: bool) -> DeviceCode:
    """A kernel of 32 threads that accesses `size` bytes at an address, by an instruction or a function."""
    writer = KernelWriter("wide", ["y", "offset"])
    at = writer.at(writer.shared(0) if shared else writer.pointer("y"), writer.word("offset"))
    with writer.when(writer.icmp_signed("==", writer.thread, writer.number(0))):
        if function:
            writer.function_call(function, FOUR if function == "from_cache" else QUAD, [at])
        elif writes:
            type_ = FOUR if size == 16 else ir.DoubleType()
            writer.write(ir.Constant(type_, None), at, size)
        else:
            writer.read(FOUR if size == 16 else ir.DoubleType(), at, size)
    return writer.finished(32, shared=256)


ACCESSES = [
    ("", size, writes, shared) for size in (8, 16) for writes in (False, True) for shared in (False, True)
]
FUNCTIONS = [(name, 16, False, False) for name in ("from_cache", "read_tagged")]


@pytest.mark.parametrize("arena", [0, 2**14])
@pytest.mark.parametrize(("function", "size", "writes", "shared"), [*ACCESSES, *FUNCTIONS])
def test_addresses_that_are_not_aligned_are_found(
    function: str, size: int, writes: bool, shared: bool, arena: int
):
    """A GPU stops at them. The CPU would not, or the process would end, where vectors must be aligned.

    arena: of a device whose blocks have views of its memory.
    """
    device = EmulatedDevice(arena=arena)
    code, y = accessing(function, size, writes, shared), put(device, np.zeros(64, "f4"))
    for offset in (0, size, 5 * size):
        launch(code, 1, y, offset)
    for offset in (4, size // 2, size + 4, 1):
        with pytest.raises(
            DeviceError, match="wide used an address that is not aligned to the 8 or 16 bytes it"
        ):
            launch(code, 1, y, offset)


@pytest.mark.parametrize("arena", [0, 2**14])
def test_numbers_at_such_addresses_are_no_indices(arena: int):
    """Half of each of two numbers would be an index far outside of all memory, and the process would end."""
    writer = KernelWriter("indexed", ["y", "offset"])
    at = writer.at(writer.pointer("y"), writer.word("offset"))
    index = writer.read(ir.IntType(64), at, 8)
    with writer.when(writer.icmp_signed("==", writer.thread, writer.number(0))):
        writer.write_element("float32", ir.Constant(F32, 3), writer.pointer("y"), index)
    device = EmulatedDevice(arena=arena)
    code, y = writer.finished(32), put(device, np.ones(16, "i8"))
    with pytest.raises(DeviceError, match="indexed used an address that is not aligned"):
        launch(code, 1, y, 4)
    assert get(y).view("f4")[1] == 3


def test_the_argument_that_is_not_aligned_is_named():
    device = EmulatedDevice()
    address = device.allocate(256)
    with pytest.raises(DeviceError, match=r"argument 0 is not at a multiple of 16 bytes$"):
        device.launch(accessing("", 16, False, False), 1, [address + 4, 0])


@pytest.mark.parametrize(
    ("facts", "blocks", "said"),
    [
        ({"shared": 232449}, 1, "idle needs 232449 bytes of shared memory, of 232448"),
        ({"group": 133, "exchange": "grid"}, 133, "idle needs 133 blocks at once"),
        ({"group": 32, "exchange": "cluster"}, 32, "idle needs clusters of 32"),
    ],
)
def test_what_a_gpu_does_not_launch_is_refused(facts: dict[str, Any], blocks: int, said: str):
    code = KernelWriter("idle", []).finished(32, **facts)
    with pytest.raises(DeviceError, match=f"^{said}$"):
        EmulatedDevice().launch(code, blocks, [])


def test_several_threads_emulate_at_once():
    code, x = reversed_in_blocks(2), np.arange(64 * 20, dtype="f4")

    def one(seed: int) -> Array:
        device = EmulatedDevice()
        y = empty(device, x.shape, "float32")
        launch(code, 20, put(device, x), y, seed=seed)
        return get(y)

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(one, range(20)):
            assert np.array_equal(found, x.reshape(20, 64)[:, ::-1].ravel())


def test_no_block_does_nothing():
    device = EmulatedDevice()
    device.launch(waiting("barrier"), 0, [0])
    device.wait()


@pytest.mark.parametrize(("system", "machine"), [("linux", "riscv64"), ("win32", "AMD64")])
def test_other_processors_are_refused(system: str, machine: str):
    with pytest.raises(LibraryError, match=f"runs on x86-64 and 64-bit Arm.*not on {machine.lower()}"):
        switch_here(system, machine)


def test_both_processors_have_a_change_of_stacks():
    assert switch_here("darwin", "arm64").frame == 160
    assert switch_here("linux", "x86_64").entry == 48
