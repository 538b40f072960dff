"""The examples for microcontrollers have the bits of NumPy here and on emulated ones, and take few
instructions.
"""

import shutil
from functools import cache
from typing import Any

import numpy as np
import pytest

from bench.devices.counting import missing
from bench.devices.examples import EXAMPLES, FRAMES, built, on_board
from stepnet.compiler.targets.frame import FrameRun

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
CASES = [(name, core) for name in EXAMPLES for core in ("cortex-m4f", "cortex-m55")]
CASES.append(("voice_activity", "cortex-m0plus"))  # in integers alone
MOST = {"cortex-m4f": 12, "cortex-m55": 12, "cortex-m0plus": 25}
"""The instructions of a multiply-add, with all that is not one."""


@pytest.fixture(scope="module")
def example_and_outputs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes an example, once, with the outputs of its first frames in NumPy."""

    @cache
    def make(name: str) -> tuple[Any, np.ndarray]:
        example = built(name, tmp_path_factory.mktemp(name))
        run, (y,) = FrameRun(example.made.program), example.made.program.of("output")
        return example, np.stack([run.step(frame)[0] for frame in example.codes[:FRAMES]]).astype(y.dtype)

    return make


def said_of(name: str, example: Any, outputs: np.ndarray) -> list[str]:
    """The lines that the program says of outputs."""
    if name == "noise_suppression":
        return []
    (y,) = example.made.program.of("output")
    limit, said = (1, "alarm in frame") if y.scale is None else (int(0.5 / y.scale), "voice from frame")
    over = np.concatenate([[False], outputs[:, 0] > limit])
    return [f"{said} {frame}" for frame in np.flatnonzero(over[1:] & ~over[:-1])]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_programs_have_the_bits_of_numpy_here(name: str, compiler: str, example_and_outputs: Any):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is missing")
    (example, right), on_devices = example_and_outputs(name), pytest.importorskip("on_devices")
    outputs = on_devices.run(example, compiler, STRICT)
    assert len(outputs) == len(example.codes)
    assert outputs[:FRAMES].tobytes() == right.tobytes()
    assert (example.folder / "said").read_text().splitlines() == said_of(name, example, outputs)


@pytest.mark.skipif(bool(missing()), reason=f"missing: {', '.join(missing())}")
@pytest.mark.long(every=3)
@pytest.mark.parametrize(("name", "core"), CASES)
def test_programs_have_the_bits_of_numpy_on_cores(name: str, core: str, example_and_outputs: Any):
    example, right = example_and_outputs(name)
    found = on_board(example, core)
    assert found.outputs.tobytes() == right.tobytes()
    assert found.said.splitlines() == said_of(name, example, right)
    adds = example.made.sizes.multiply_adds
    assert adds < found.instructions < MOST[core] * adds


def test_the_frames_that_cores_run_have_recorded_speech():
    import sounds  # from examples

    for seed in (1_000_000, 3_000_000):
        assert sounds.held_out(seed, 250)[0].active[:FRAMES].sum() > 10
