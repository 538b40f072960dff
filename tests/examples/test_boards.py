"""The examples for microcontrollers have the bits of NumPy on emulated ones, and take few instructions."""

from pathlib import Path

import pytest

from bench.devices.counting import missing
from bench.devices.examples import EXAMPLES, built, on_board
from stepnet.compiler.targets.frame import FrameRun

CASES = [(example, core) for example in EXAMPLES for core in ("cortex-m4f", "cortex-m55")]
CASES.append(("voice_activity", "cortex-m0plus"))  # in integers alone
MOST = {"cortex-m4f": 12, "cortex-m55": 12, "cortex-m0plus": 25}
"""The instructions of a multiply-add, with all that is not one."""


def fnv(data: bytes) -> int:
    """The FNV-1a sum of bytes."""
    total = 2166136261
    for byte in data:
        total = (total ^ byte) * 16777619 % 2**32
    return total


@pytest.mark.skipif(bool(missing()), reason=f"missing: {', '.join(missing())}")
@pytest.mark.long(every=3)
@pytest.mark.parametrize(("example", "core"), CASES)
def test_examples_have_the_bits_of_numpy_on_cores(example: str, core: str, tmp_path: Path):
    made, frames = built(example, tmp_path)
    run, (y,) = FrameRun(made.program), made.program.of("output")
    outputs = b"".join(run.step(frame)[0].astype(y.dtype).tobytes() for frame in frames)
    found = on_board(made, EXAMPLES[example][0], frames, core)
    assert found.outputs == fnv(outputs)
    assert made.sizes.multiply_adds < found.instructions < MOST[core] * made.sizes.multiply_adds
