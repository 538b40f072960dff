"""The kernels of bench/gpu in emulation: their results, what the emulation finds, and the measurements' own
code.

Nothing here needs a GPU. The emulation stands in for the driver, so that checks and times run as they would
there.
"""

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import Constants
from tolerance import assert_close
from typer.testing import CliRunner

import stepnet as sn
from bench.gpu import checks, driver, stages, steps, tables
from bench.gpu.__main__ import app
from bench.gpu.backward import backward_step
from bench.gpu.bundle import Bundle, Check, Compiled, write_case
from bench.gpu.cases import schedule
from bench.gpu.cells import model
from bench.gpu.driver import CudaError, Driver
from bench.gpu.emulator import emulated
from bench.gpu.inputs import Inputs, arranged, drawn
from bench.gpu.prepare import file_name, step_of
from bench.gpu.shape import Schedule, Shape, Step
from bench.gpu.truth import interpreted

Array = np.ndarray
RAGGED = [3, 7, 0, 1, 5, 4, 2, 6, 7, 3]


def run(shape: Shape, inputs: Inputs, seed: int = 0, missing: int = 0) -> tuple[list[Array], list[Array]]:
    """Returns outputs and last memories of a kernel in emulation. missing: blocks that are not launched."""
    call = arranged(shape.signature, inputs)
    addresses = [array.ctypes.data for array in call.arrays]
    emulated(shape, addresses, call.groups * shape.schedule.blocks - missing, seed)
    return call.found(call.arrays[-call.results :])


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("gru-16", "block1.chains1"),
        ("lstm-32", "cluster2.parts4"),
        ("minimal_gated_unit-32", "grid2.ahead2"),
        ("simple_rnn-32", "tagged2.parts2"),
        ("rg_lru-16", "block1.ahead3"),
        ("gru-16", "block1.fast"),
    ],
)
def test_kernels_give_what_the_engine_gives(name: str, word: str):
    cell, width = name.split("-")
    made = model(cell, int(width), RAGGED)
    found = run(Shape(made.step, schedule(word)), made.inputs, seed=1)
    expected = made.expected()
    for ours, theirs in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        assert_close(ours, theirs, max(RAGGED), 2 * int(width))


def test_backward_loops_give_what_the_interpreter_gives():
    step = backward_step("gru", 32)
    inputs = drawn(Shape(step, Schedule()).signature, [3, 0, 2])
    found, expected = run(Shape(step, schedule("grid2")), inputs), interpreted(step, inputs)
    for ours, theirs in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        assert_close(ours, theirs.astype("f4"), 3, 3 * 32)


def test_schedules_and_orders_of_threads_give_the_same_bits():
    made = model("simple_rnn", 32, [4, 2])
    words = ("block1", "grid2", "tagged2", "cluster2")
    shapes = [Shape(made.step, schedule(word)) for word in words]
    first, *others = (run(shape, made.inputs, seed)[0][0] for seed, shape in enumerate(shapes))
    assert all(np.array_equal(first, other) for other in others)
    few = Shape(made.step, Schedule(chains=3, resident=2))
    assert np.array_equal(run(few, made.of(made.sequences[:1]))[0][0], first[:4])


@pytest.mark.parametrize(("numbers", "least", "most"), [("tf32", 1e-5, 2e-3), ("bfloat16", 1e-4, 2e-2)])
def test_rounded_products_are_not_float32(numbers: Any, least: float, most: float):
    made = model("simple_rnn", 16, [5, 2])
    away = np.abs(
        run(Shape(made.step, Schedule(numbers=numbers)), made.inputs)[0][0] - made.expected()[0][0]
    ).max()
    assert least < away < most


def test_a_missing_barrier_and_a_missing_block_are_found():
    made = model("simple_rnn", 32, [4, 2])
    racy = Shape(made.step, schedule("block1.barrier"))
    assert np.isnan(run(racy, made.inputs, 1)[1][0]).any()
    for word in ("grid2", "tagged2", "cluster2"):
        with pytest.raises(RuntimeError, match="deadlock: 32 of 32 threads wait for each other"):
            run(Shape(made.step, schedule(word)), made.inputs, missing=1)


def test_shapes_that_the_prototype_does_not_take_are_refused():
    step = model("gru", 32, [1]).step
    with pytest.raises(ValueError, match="32 units on 4 blocks: the prototype takes a multiple of 64 units"):
        Shape(step, schedule("grid4"))
    with pytest.raises(ValueError, match="a group of 2 blocks cannot exchange values by 'block'"):
        Schedule(blocks=2)
    rnn = sn.RNN(lambda x, h, params: (x + h.sum(-1, keepdims=True),) * 2, {}, memory=32)
    rnn(np.zeros((1, 1, 32), "f4"))
    with pytest.raises(ValueError, match="the prototype does not take reshape in a step"):
        Shape(Step.of(rnn.plan), Schedule())


# ---- the measurements, with the emulation in place of the driver


class EmulatedDriver(Driver):
    """A driver whose memory is this process' own, and whose kernels are emulated. A kernel's code is its
    name.
    """

    def __init__(self) -> None:
        """Begins without memory."""
        self.kept = dict[int, Array]()
        self.images = list[str]()

    def facts(self) -> dict[str, Any]:
        """Returns what the GPU is called."""
        return {"device": "emulation"}

    def seconds(self, call: Any) -> float:
        """Calls; returns a made-up time."""
        call()
        return 1e-3

    def call(self, name: str, *arguments: Any) -> None:
        """Does what a function of the driver does."""
        match name, arguments:
            case "cuMemAlloc_v2", (address, size):
                array = np.full(size.value + 16, 0xFF, "u1")
                self.kept[array.ctypes.data] = array
                address._obj.value = array.ctypes.data
            case "cuMemFree_v2", (address,):
                del self.kept[address.value]
            case (("cuMemcpyHtoD_v2" | "cuMemcpyDtoH_v2" | "cuMemcpyDtoD_v2"), (target, source, size)):
                ctypes.memmove(target.value, source.value, size.value)
            case "cuMemsetD32_v2", (address, word, count):
                (ctypes.c_uint32 * count.value).from_address(address.value)[:] = [word] * count.value
            case "cuModuleLoadData", (handle, image):
                self.images.append(image.value.decode())
                handle._obj.value = len(self.images)
            case "cuModuleGetFunction", (function, module, _):
                function._obj.value = module.value
            case (("cuLaunchKernel" | "cuLaunchCooperativeKernel"), (function, blocks, *_)):
                if blocks > 132:
                    raise CudaError("too large")
                self.launch(self.images[function.value - 1], blocks, arguments[9])
            case (("cuCtxSynchronize" | "cuFuncSetAttribute" | "cuModuleUnload"), _):
                pass
            case _:
                raise AssertionError(name)

    def launch(self, name: str, blocks: int, pointers: Any) -> None:
        """Emulates a kernel by its name."""
        step, word = name.split("/")
        shape = Shape(step_of(step), schedule(word))
        table = ctypes.c_uint64.from_address(pointers[0]).value
        addresses = (ctypes.c_uint64 * len(shape.argument_names)).from_address(table)
        emulated(shape, list(addresses), blocks)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> EmulatedDriver:
    """The emulation as the driver of the measurements."""
    emulation = EmulatedDriver()
    for module in (checks, steps):
        monkeypatch.setattr(module, "driver", lambda: emulation)
    return emulation


def bundle_of(folder: Path, step: str, words: list[str]) -> Bundle:
    """Returns a bundle of the schedules of a step, whose code is what the emulation takes."""
    kernels = dict[str, Compiled]()
    for word in words:
        its = schedule(word)
        shape, name = Shape(step_of(step), its), file_name(step, its)
        kernels[name] = Compiled(
            name,
            step,
            *(
                its.exchange,
                its.blocks,
                its.numbers,
                its.chains,
                its.parts,
                its.ahead,
                its.functions,
                its.without,
            ),
            *(shape.threads, shape.shared_bytes, 0, 0, 0),
            shape.signature,
        )
        (folder / f"{name}.cubin").write_text(f"{step}/{word}")
    bundle = Bundle(folder, kernels, (Check(step, tuple(kernels), 1e-5),))
    bundle.write()
    return Bundle.read(folder)


def test_checks_tell_the_differences_and_the_bits(cuda: EmulatedDriver, tmp_path: Path, constants: Constants):
    constants(checks, RUNS=2)
    made = model("simple_rnn", 32, [3, 0, 2])
    write_case(tmp_path / "check-simple_rnn-32.npz", made.inputs, *made.expected())
    bundle = bundle_of(tmp_path, "simple_rnn-32", ["block1", "grid2", "block1.barrier"])
    block, racy = (found for name, found in checks.checks(bundle, "block") if name in bundle.kernels)
    grid = dict(checks.checks(bundle, "grid"))
    assert block["difference"] < 1e-6
    assert block["finite"]
    assert block["alone"]
    assert block["runs_with_the_same_bits"] == "2 of 2"
    assert block["bits"] == grid["simple_rnn-32-grid2-float32-p1-c3-a1"]["bits"] != racy["bits"]
    assert not racy["finite"]
    assert grid["too large a grid"] == "refused: too large"
    assert not cuda.kept


def test_steps_are_timed_and_compared_with_the_truth(
    cuda: EmulatedDriver, tmp_path: Path, constants: Constants
):
    constants(steps, STEPS=3, BATCHES=(1, 10), WARM=0, ROUNDS=2)
    bundle = bundle_of(tmp_path, "simple_rnn-32", ["tagged2", "block1"])
    step = step_of("simple_rnn-32")
    outputs, last = interpreted(step, drawn(Shape(step, Schedule()).signature, [3]))
    np.savez(tmp_path / "truth-simple_rnn-32.npz", output0=outputs[0][-1], last0=last[0][0])
    found = dict(steps.steps(bundle, "tagged"))
    assert list(found) == ["device", "simple_rnn-32-tagged2-float32-p1-c3-a1"]
    times = found["simple_rnn-32-tagged2-float32-p1-c3-a1"]
    assert times["microseconds"] == {1: pytest.approx(1e3 / 3), 10: pytest.approx(1e3 / 3)}
    assert times["difference"] < 1e-6
    assert times["groups_alike"]
    assert times["batches_alike"]
    assert not cuda.kept


def test_a_stage_that_cannot_run_says_why_and_others_are_written(tmp_path: Path, constants: Constants):
    missing = stages.Stage("loading", "loading", 1, ("no-such-tool",))
    constants(stages, STAGES={"watched": missing})
    stages.measure(tmp_path, tmp_path / "result.json", ["watched"])
    told = json.loads((tmp_path / "result.json").read_text())
    assert told["stages"]["watched"] == {"seconds": 0.0, "ended": "no-such-tool is not here", "rows": {}}


def test_stages_that_do_not_exist_are_refused(tmp_path: Path):
    run = CliRunner().invoke(app, ["measure", str(tmp_path), "result.json", "--stages", "stairs"])
    assert run.exit_code == 2
    assert "there is no stage stairs" in " ".join(run.output.split())


def test_the_page_has_the_tables_of_the_saved_results():
    page = (Path(__file__).parents[2] / "docs" / "design" / "gpu.md").read_text("utf-8")
    missing = [name for name, table in tables.tables(tables.saved()).items() if table() not in page]
    assert missing == []


def test_without_a_driver_it_is_said(constants: Constants):
    constants(driver, LIBRARY="libcuda-that-is-not-there.so")
    with pytest.raises(CudaError, match=r"there is no CUDA driver here: .* Run it on a machine with a GPU"):
        Driver()
