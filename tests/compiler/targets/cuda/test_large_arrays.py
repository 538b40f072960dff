"""Arrays of more than 2 ** 32 elements: places of steps and of rows are computed in 64 bits everywhere.

Such an array is only addresses here: memory that nothing touches but where it ends.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.cuda import (
    LANE_WORDS,
    LOOP_WORDS,
    CudaEngine,
    DeviceArray,
    DeviceCode,
    DevicePositions,
    EmulatedDevice,
    get,
    put,
)
from stepnet.compiler.values import leaves
from stepnet.errors import InputError
from stepnet.ragged import Positions
from tests.compiler.targets.cuda.loop_kinds import KINDS, draw

Array = np.ndarray
ENGINE, FAR = "cuda-emulated", 2**32
"""The engine, and the entries ahead of those of a call."""
NO_RESERVE = 0x4000
"""The flag of Linux for memory that takes room only where it is touched."""


class FarArray:
    """The memory of an array behind `FAR` entries. lies: the array's address. size: of an entry."""

    def __init__(self, lies: int, count: int, size: int) -> None:
        """Copies the `count` bytes of an array there."""
        self.lies, self.count, self.ahead = lies, count, FAR * size
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        self.pages = mmap.mmap(-1, self.ahead + count, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        ctypes.memmove(self.address + self.ahead, lies, count)

    def copy_back(self) -> None:
        """Copies the bytes to the array. Fails if something was written ahead of them, at the begin."""
        ctypes.memmove(self.lies, self.address + self.ahead, self.count)
        assert not any(ctypes.string_at(self.address, 4096))


class FarDevice(EmulatedDevice):
    """A device whose loops have their inputs and outputs behind `FAR` other entries.

    entries: of a call. arrays: the inputs, outputs and memories of its loop. loops: how many ran.
    """

    entries, arrays, loops = 0, (0, 0, 0), 0

    def launch(self, code: DeviceCode, blocks: int, words: Any) -> None:
        """Launches a loop with other addresses and places."""
        if not code.name.startswith("loop"):
            super().launch(code, blocks, words)
            return
        turns, lanes, *others = map(int, words)
        block = self.block_of(turns)
        assert block is not None
        table = (ctypes.c_int64 * ((block + self.memory[block].count - lanes) // 8)).from_address(lanes)
        moved = np.array(table).reshape(-1, len(LANE_WORDS))
        moved[:, LANE_WORDS.index("start")] += FAR
        lies = put(self, moved)
        given, arrays = [turns, int(lies.address), *others], list[FarArray]()
        inputs, outputs, memories = self.arrays
        begin, end = len(LOOP_WORDS), len(given) - memories
        for place in [*range(begin, begin + inputs), *range(end - outputs, end)]:
            count = self.memory[given[place]].count
            arrays.append(FarArray(given[place], count, count // self.entries))
            given[place] = arrays[-1].address
        self.loops += 1
        super().launch(code, blocks, given)
        for array in arrays:
            array.copy_back()


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[FarDevice]:
    """The device of the engine "far"."""
    device = FarDevice()
    made = CudaEngine(device, name="far", devices=())
    monkeypatch.setitem(targets.ENGINES, "far", lambda: made)  # type: ignore[arg-type]
    yield device
    targets.engine.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="memory that is never touched, as Linux has it")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_loops_read_and_write_steps_that_lie_far_behind(
    kind: str, reverse: bool, far: FarDevice, codes: list[DeviceCode]
) -> None:
    step, params, memory, x, name = KINDS[kind]
    rnn = sn.RNN(step, params, memory=memory, reverse=reverse)
    right, first = leaves(rnn(x, engine="interpret")), leaves(x)[0]
    (plan,) = rnn.program.schedule_for(ENGINE).plans
    recurrence = plan.recurrence
    inputs = recurrence.recur.operands_by_kind(recurrence.inputs).sequences
    far.arrays = len(inputs), len(recurrence.recur.outputs), len(recurrence.recur.memories)
    far.entries = first.shape[0] * first.shape[1]
    found = leaves(rnn(x, engine="far"))
    for ours, theirs in zip(found, right, strict=True):
        assert_close(np.asarray(ours), theirs, 5, 4 * 256)
    assert far.loops == 1
    assert any(code.name.startswith(name) for code in codes)


def test_rows_that_lie_far_behind_are_moved() -> None:
    engine: Any = engine_named(ENGINE)
    device, rows = engine.device, draw(5, 4)
    lies = put(device, rows)
    seeming = DeviceArray(device, lies.address - 16 * FAR, (FAR + 5, 4), "float32", lies)
    assert get(engine.memory.take(seeming, np.array([FAR + 3, FAR]))).tolist() == rows[[3, 0]].tolist()
    engine.memory.write(seeming, np.array([FAR + 1]), put(device, -rows[:1]))
    assert get(lies)[1].tolist() == (-rows[0]).tolist()


def test_steps_that_lie_too_far_apart_are_refused() -> None:
    """Kernels count them in 32 bits, from the first one on."""
    for far, is_refused in ((2**31 - 1, False), (2**31, True)):
        positions = Positions(np.zeros(1, np.int64), np.full(1, 2), far + 1, np.array([0, far]))
        places = DevicePositions(positions, EmulatedDevice())
        if is_refused:
            with pytest.raises(InputError, match="lies 2,147,483,648 entries behind its first"):
                _ = places.steps
        else:
            assert places.steps is not None
