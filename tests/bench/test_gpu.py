"""The measurements on a GPU, tried in emulation: their rows, processes and limits; fits of the cost model.

Nothing here needs a GPU. A stand-in for the driver launches the microbenchmarks, which are CUDA C++.
"""

import ctypes
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from constants import Constants
from typer.testing import CliRunner

from bench.gpu import (
    arithmetic,
    calibrate,
    cycles,
    estimates,
    exchanges,
    generation,
    microbenchmarks,
    parts,
    sanitized,
    schedules,
)
from bench.gpu.__main__ import app
from bench.gpu.calibrate import Measured, calibration, fitted_facts, measured, positive_fit
from bench.gpu.cells import recurrence
from bench.gpu.microbenchmarks import MicroFunction, compiled
from bench.gpu.parts import PARTS, Beside, Part, in_process, wrong_rows
from bench.gpu.place import EMULATED, GPU, Place
from bench.gpu.placed import PlacedCall, plan_of
from bench.gpu.schedules import loop_by, right, schedule, step_of
from bench.runtimes import oracle
from bench.runtimes.cases import Case
from bench.runtimes.groups import GROUPS, chosen_cases
from bench.runtimes.machine import Peak
from bench.runtimes.peers import cudnn, gpu_libraries, onnxruntime, worker
from bench.runtimes.peers import stepnet as ours
from bench.runtimes.peers import torch as torch_peer
from bench.runtimes.results import Result, Run, Timing
from bench.runtimes.saved import load, save
from stepnet.compiler.targets.cuda import H100, CudaEngine, DeviceCode, EmulatedDevice, empty, step_time
from stepnet.errors import DeviceError, InputError
from tests.processes import on_gpu

SAVED = Path(__file__).parents[2] / "bench" / "saved" / "gpu-h100.json"
WITH_A_GPU = ("exchanges", "arithmetic")
"""The parts that are CUDA C++."""
CYCLES = 100.0
"""The cycles of a round in the stand-in for a GPU."""
BY_CASES = "kernels"
"""The part whose cases are tests of their own; tools watch it too."""
HERE = [
    name
    for name, part in PARTS.items()
    if part.module and not part.tool and name not in (*WITH_A_GPU, BY_CASES)
]
"""The parts that run in this process."""


@pytest.fixture
def place() -> Place:
    """The emulation."""
    return Place(EMULATED)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", HERE)
def test_a_part_runs_in_emulation(name: str, place: Place):
    rows = dict(PARTS[name].rows(place))
    assert rows
    assert wrong_rows(rows) == []
    json.dumps(rows)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", sanitized.CASES)
def test_a_kernel_of_each_schedule_is_right(name: str, place: Place):
    assert sanitized.CASES[name](place)["right"]


def test_the_part_and_the_script_for_a_gpu_run_all_kernels(
    place: Place, constants: Constants, capsys: pytest.CaptureFixture[str]
):
    few = {name: run for name, run in sanitized.CASES.items() if name.startswith("product")}
    constants(sanitized, CASES=few)
    constants(on_gpu, ENGINE=EMULATED)
    assert list(dict(PARTS[BY_CASES].rows(place))) == list(few)
    assert on_gpu.run_section(BY_CASES) == 0
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == list(few)
    constants(on_gpu, SANITIZER="no-such-tool")
    for tool in ("memcheck", "racecheck", "synccheck"):
        assert PARTS[tool].function == PARTS[BY_CASES].function
        assert not on_gpu.run_apart(tool)
        said = capsys.readouterr().out
        assert said == f"== {tool}: left out: no-such-tool, of NVIDIA's CUDA toolkit, is not here\n"
    assert on_gpu.run_apart("no such section")  # its process ends with 1
    constants(on_gpu, ENGINE=GPU)
    with pytest.raises(SystemExit, match="on_gpu: there is no CUDA driver here"):
        on_gpu.main([])


def test_wrong_results_are_rows_that_say_so(place: Place):
    rnn, its = recurrence("simple_rnn", 32), schedule("tagged2")
    _, loop = loop_by(plan_of(rnn, place), its, place.device.facts, 1)
    found = right(place, "simple_rnn-32", rnn, its, loop)
    assert (found["right"], found["alone_alike"]) == (True, True)
    assert 0 < found["error"] < 1
    without = schedule("tagged2.products")
    _, racy = loop_by(plan_of(rnn, place), without, place.device.facts, 1)
    found = right(place, "simple_rnn-32", rnn, without, racy)
    assert found["right"] is False
    assert found["error"] > 1
    assert wrong_rows({"one": found, "two": {"right": True}, "three": 4}) == ["one"]


class Refusing(EmulatedDevice):
    """A device that takes no kernel."""

    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        raise DeviceError("too large")


@dataclass(frozen=True)
class PlaceOn(Place):
    """A place with a device of the test's own."""

    own: Any = None

    @property
    def engine(self) -> CudaEngine:
        return CudaEngine(self.own, name=EMULATED)


def test_a_loop_that_the_device_refuses_says_why():
    place = PlaceOn(EMULATED, Refusing())
    rnn = recurrence("simple_rnn", 32)
    _, loop = loop_by(plan_of(rnn, place), schedule("block1"), place.device.facts, 1)
    assert schedules.timed(place, rnn, loop, 2) == "refused: too large"


def test_a_loop_of_ones_choice_is_the_one_that_runs(place: Place):
    rnn, x = recurrence("simple_rnn", 32), np.ones((2, 3, 12), "f4")
    _, loop = loop_by(plan_of(rnn, place), schedule("tagged2.parts2"), place.device.facts, 1)
    placed = PlacedCall.of(rnn, place, x, [3, 3], loop)
    assert placed.loop is loop
    assert loop.loop.code.group == 2
    assert [array.shape for array in placed.results()] == [(6, 32), (2, 32)]


def test_words_are_schedules():
    (float32, tf32, bfloat16) = schedules.schedules("cluster8.parts4.*.ahead2")
    assert (float32.name, tf32.name) == ("cluster8-float32-p4-c3-a2", "cluster8-tf32-p4-c1-a2")
    assert bfloat16.numbers == "bfloat16"
    assert schedule("block1.fast.products").name == "block1-float32-p1-c3-a1-fast-no-products"
    assert step_of("minimal_gated_unit-64") == ("minimal_gated_unit", 64)


def test_every_schedule_that_is_timed_exists():
    for table in (schedules.TIMED, schedules.TRIAL):
        for step, text in table.items():
            assert step_of(step)[1] >= 16
            assert schedules.schedules(text)


# ---- processes


def test_parts_are_processes_and_their_rows_are_kept(tmp_path: Path, constants: Constants):
    few = {name: PARTS[name] for name in ("without products", "exchanges")}
    constants(parts, PARTS={**few, "watched": Part("sanitized", "sanitized", 9, ("no-such-tool",))})
    path = tmp_path / "new" / "report.json"
    assert not parts.report(path, [*parts.PARTS], 60, EMULATED)
    told = json.loads(path.read_text())
    assert told["device"] == Place(EMULATED).device.facts.name
    assert len(told["parts"]["without products"]["rows"]) == 2
    assert told["parts"]["without products"]["ended"] == ""
    assert told["parts"]["exchanges"]["ended"] == "it ended with 1"
    assert (
        "barriers.cu are CUDA C++, which is not emulated: they need a GPU"
        in told["parts"]["exchanges"]["said"]
    )
    assert told["parts"]["watched"]["ended"] == "no-such-tool is not here"


def test_the_rows_beside_other_runtimes_are_read_and_kept(tmp_path: Path):
    part, case = PARTS["beside"], GROUPS["gpu"].cases[0]
    timings = {"stepnet": Timing((0.5, 0.5, 0.5), 1, 0.1), "torch": Timing((1.0, 2.0, 1.0), 1, 0.1)}
    result = Result(case, timings, {"fla": "refused: it has no gru cell"}, Peak(1e9, 1e9, 1.0), "gpu")
    run = Run((result,), {"processor": "p", "threads": 2}, {}, {}, {}, "python -m bench")
    save(run, tmp_path / "result.json")
    (row,) = part.read(tmp_path / "result.json").items()
    failures = {"fla": "refused: it has no gru cell"}
    assert row == (str(case), {"stepnet": 0.5, "torch": 1.0, "ratio": 2.0, "failures": failures})
    for _ in range(2):
        part.keep(tmp_path / "result.json", tmp_path / "report.json")
    assert load(tmp_path / "report-beside.json").results == [result, result]
    command = part.command("beside", GPU, tmp_path / "result.json")
    assert command[2:4] == ["bench", "--save"]
    assert command[-8:] == ["--group", "gpu", "--batch", "16", "--hidden", "256", "--rounds", "3"]


def test_every_case_on_a_gpu_is_in_a_part_of_the_report():
    asked = list[Case]()
    for part in PARTS.values():
        if isinstance(part, Beside):
            options = dict(zip(part.arguments[::2], part.arguments[1::2], strict=True))
            sizes = [[*map(int, options.get(name, "0").split(","))] for name in ("--batch", "--hidden")]
            batches, hiddens = ([] if size == [0] else size for size in sizes)
            asked += chosen_cases(GROUPS["gpu"], (), batches, hiddens)
    assert sorted(map(str, asked)) == sorted(map(str, GROUPS["gpu"].cases))


class Command(Part):
    """A part that is a command in Python, which is given the file of results."""

    def command(self, name: str, engine: str, result: Path) -> list[str]:
        return [sys.executable, "-c", self.function, str(result)]

    def keep(self, result: Path, report: Path) -> None:
        report.with_name("kept.json").write_bytes(result.read_bytes())


def test_a_part_that_is_stopped_keeps_what_it_wrote(tmp_path: Path, constants: Constants):
    text = "import sys, time; open(sys.argv[1], 'w').write('{\"a\": 1}'); print('said', flush=True)"
    constants(parts, PARTS={"slow": Command("", f"{text}; time.sleep(60)", 50)})
    found = in_process("slow", EMULATED, 1.0, tmp_path / "report.json")
    assert found["rows"] == json.loads((tmp_path / "kept.json").read_text()) == {"a": 1}
    assert (found["ended"], found["said"]) == ("it was stopped after 1 seconds", "said")


def test_parts_that_do_not_begin_in_time_say_so(tmp_path: Path):
    assert not parts.report(tmp_path / "report.json", ["kernels"], 1, EMULATED)
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["parts"]["kernels"]["ended"] == "no time was left"


def test_one_part_is_printed_and_written(tmp_path: Path):
    done = CliRunner().invoke(
        app, ["part", "without products", "--emulated", "--result", str(tmp_path / "rows.json")]
    )
    assert done.exit_code == 0, done.output
    assert [*json.loads((tmp_path / "rows.json").read_text())] == [
        line.split(": {")[0] for line in done.output.splitlines()
    ]


def test_parts_that_do_not_exist_are_refused():
    for command in (["report", "result.json", "--only", "stairs"], ["part", "stairs"]):
        error = CliRunner().invoke(app, command).exception
        assert isinstance(error, InputError)
        assert str(error).startswith("there is no part stairs; there are selfcheck, kernels, ")


def test_without_a_gpu_it_is_said():
    with pytest.raises(DeviceError, match="there is no CUDA driver here"):
        Place()
    with pytest.raises(InputError, match="'llvm' is no engine for GPUs: give 'cuda' or 'cuda-emulated'"):
        Place("llvm")


def test_without_a_gpu_a_report_is_refused(tmp_path: Path):
    for command in (["report", str(tmp_path / "result.json")], ["part", "engine"]):
        error = CliRunner().invoke(app, command).exception
        assert isinstance(error, DeviceError)
        assert "there is no CUDA driver here" in str(error)
    assert not [*tmp_path.iterdir()]


def test_estimates_of_generation():
    *_, row = generation.table([("highest score", 64, 4, {})], 256)
    _, name, symbols, rows, time, without, bound, _ = (cell.strip() for cell in row.split("|"))
    assert (name, symbols, rows) == ("highest score", "64", "4")
    assert 1 < float(time) < float(without)
    assert bound == "meetings of blocks"


def test_estimates_are_beside_what_was_measured():
    """All numbers of a row: those that were measured are of the files, and per operation by hand."""
    *_, row = estimates.table(["minimal_gated_unit"], [256])
    name, *cells = [cell.strip() for cell in row.strip("|").split("|")]
    estimate, measured_time, cudnn_time, per_flop = map(float, cells[:4])
    assert (name, measured_time, cudnn_time) == ("minimal gated unit 256", 2.5, 12.52)
    assert per_flop == round(estimate / (2 * 2 * 256**2) / (12.524 / (2 * 4 * 256**2)), 2) < 1
    assert 1 < estimate < 4
    assert estimates.measured("slstm", 1024, 16) == "", "it was not measured"


@pytest.mark.long
def test_code_is_compiled_once_and_then_read():
    ((name, times),) = estimates.compile_times([("simple_rnn", 32)], rounds=1)
    assert name == "simple rnn 32"
    assert times.cold > times.warm > times.again > 0
    assert times.call > 0
    assert not times.loads_llvm


@pytest.mark.parametrize("text", [None, "", "[]", "{}"])
def test_facts_of_what_is_no_report_are_refused(text: str | None, tmp_path: Path):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    error = CliRunner().invoke(app, ["facts", str(tmp_path / "report.json")]).exception
    assert isinstance(error, InputError)
    assert "report.json is no report of `python -m bench.gpu report`: " in str(error)


# ---- the facts of the cost model


@cache
def on_an_h100() -> list[Measured]:
    """The loops of up to 256 units that were timed on an H100."""
    return [*measured(calibrate.of_file(SAVED), 256)]


def test_facts_are_fitted_to_what_was_measured_on_an_h100():
    loops = on_an_h100()
    facts = fitted_facts(loops, calibrate.clusters_of(calibrate.of_file(SAVED)))
    assert facts.clusters == H100.clusters
    for name in ("warp", "scheduler", "read"):
        assert getattr(facts, name) == pytest.approx(getattr(H100, name), rel=0.2)
    for exchange in ("grid", "cluster"):
        assert facts.exchanges[exchange].alone == pytest.approx(H100.exchanges[exchange].alone, rel=0.2)
    near = [factor < 1.4 for factor, _ in calibrate.errors(facts, loops)]
    assert sum(near) / len(near) > 0.95
    text = calibrate.written(facts)
    names = {"PlainCost": calibrate.PlainCost}
    names |= {"TensorFacts": calibrate.TensorFacts, "ExchangeCost": calibrate.ExchangeCost}
    again = eval(text, names)
    assert [step_time(each.shape, again).total for each in loops] == pytest.approx(
        [step_time(each.shape, facts).total for each in loops], rel=0.01
    )


def test_facts_are_those_that_times_were_made_of():
    sums = replace(H100, product=0.0, link=0.0)  # tensor cores that are busy make it the longer of two times
    loops = [
        replace(each, row={"microseconds": {calibrate.BATCH: step_time(each.shape, sums).total}})
        for each in on_an_h100()
    ]
    facts = fitted_facts(loops, dict(H100.clusters))
    for name in calibrate.TIMES:
        assert getattr(facts, name) == pytest.approx(getattr(H100, name), rel=1e-3), name
    assert facts.exchanges["tagged"].alone == pytest.approx(H100.exchanges["tagged"].alone, rel=1e-3)


def test_no_fact_is_negative():
    matrix = np.array([[1.0, 1], [0, 1], [1, 0]])
    assert positive_fit(matrix, np.array([1.0, -1, 2])).tolist() == pytest.approx([1.5, 0])
    assert positive_fit(matrix, np.array([3.0, 1, 2])).tolist() == pytest.approx([2, 1])
    random = np.random.default_rng(0)
    for _ in range(20):
        matrix, wanted = random.uniform(size=(6, 4)), random.uniform(size=6)
        errors = [np.linalg.norm(wanted)]
        for some in chain.from_iterable(combinations(range(4), count) for count in (1, 2, 3, 4)):
            x = np.linalg.lstsq(matrix[:, some], wanted, rcond=None)[0]
            errors += [np.linalg.norm(matrix[:, some] @ x - wanted)] if (x >= 0).all() else []
        found = positive_fit(matrix, wanted)
        assert (found >= 0).all()
        assert np.linalg.norm(matrix @ found - wanted) == pytest.approx(min(errors))


def test_too_few_loops_are_refused(tmp_path: Path, constants: Constants):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"parts": {"schedules": {"rows": {}}}}))
    with pytest.raises(
        InputError, match="0 loops were timed, and facts are fitted to 20 or more: run `schedules`"
    ):
        calibration(path)


def test_a_report_gives_the_row_of_its_gpu(place: Place, tmp_path: Path, constants: Constants):
    constants(calibrate, FEWEST=2, BATCH="2")
    rows = dict(schedules.schedule_times(place))
    more = {"clusters of 8 at once": 16, "barrier counter, 128 threads": {"2": 680.0}}
    path = tmp_path / "report.json"
    moves = {"rows in order, 524288 rows of 64 float32": {"TB/s": 4.0}, "take": {"TB/s": 5.0}}
    parts = {"schedules": rows, "exchanges": more, "memory": moves}
    path.write_text(json.dumps({"parts": {name: {"rows": rows} for name, rows in parts.items()}}))
    said = calibration(path)
    assert "main=2.5e-07," in said
    assert "clusters={2: 66, 4: 30, 8: 16, 16: 7}," in said
    assert "barrier counter, 128 threads, 2 blocks: 0.680 us" in said
    assert " of 4 loops within 1.4; worst " in said


# ---- microbenchmarks


class FakeGpu(EmulatedDevice):
    """A stand-in for a GPU: it counts the launches of microbenchmarks, each of which takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.words = list[str](), list[int]()
        self.library = self
        self.functions: dict[str, Callable[..., int]] = {"cuOccupancyMaxActiveClusters": lambda *_: 0}

    def handle(self, name: str, *arguments: Any) -> int:
        self.calls.append(name)
        return 1

    def call(self, name: str, *arguments: Any) -> None:
        self.calls.append(name)
        if name == "cuOccupancyMaxActiveClusters":
            arguments[0]._obj.value = 7
        if name.startswith("cuLaunch"):
            self.words = [ctypes.c_int64.from_address(each).value for each in arguments[9]]

    def read(self, address: int, array: np.ndarray) -> None:
        array[...] = CYCLES * self.words[2]


class PlaceOfFake(PlaceOn):
    """The place of a stand-in for a GPU."""

    @property
    def is_emulated(self) -> bool:
        return False


@pytest.fixture
def fake(tmp_path: Path, constants: Constants) -> FakeGpu:
    """The stand-in, and files in place of the code of microbenchmarks."""
    constants(microbenchmarks, FOLDER=tmp_path)
    for name in microbenchmarks.NAMES:
        (tmp_path / f"{name}-90a.cubin").write_bytes(b"code")
    return FakeGpu()


def test_microbenchmarks_have_a_row_for_all_they_repeat(fake: FakeGpu):
    between = dict(exchanges.exchanges(PlaceOfFake(EMULATED, fake)))
    assert between["clusters of 16 at once"] == 7
    assert [*between["barrier counter, 128 threads"]] == [2, 4, 8, 16, 32, 64, 128, 132]
    assert {"exchange tagged, 16 words", "cluster store, 16 blocks", "handoff"} <= {*between}
    assert fake.calls.count("cuLaunchCooperativeKernel") > fake.calls.count("cuLaunchKernel") > 1000


def test_arithmetic_has_a_row_for_all_it_repeats(fake: FakeGpu):
    within = dict(arithmetic.arithmetic(PlaceOfFake(EMULATED, fake)))
    assert within["tf32_8, 16 warps"] == {"cycles": CYCLES / 8, "flops_per_cycle": 2048 * 8 * 16 / CYCLES}
    assert within["the same 256 KB read by 132 blocks"] == {"cycles": CYCLES}
    assert {"barrier of a block, 8 warps", "shared memory, 8 warps", "latency of the second cache"} <= {
        *within
    }


def test_arguments_of_a_microbenchmark_are_words(fake: FakeGpu, place: Place):
    memory = empty(place.device, (4,), "float32")
    gpu: Any = fake
    MicroFunction(gpu, 1, 0)(2, 32, memory, 5, 6, cooperative=True)
    assert fake.words == [memory.address, 5, 6]


def test_microbenchmarks_need_nvcc_or_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "barriers-90a.cubin").write_bytes(b"code")
    assert compiled("barriers", (9, 0), tmp_path) == b"code"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DeviceError, match=r"nvcc is not here, which compiles arithmetic\.cu: run `python -m bench\.gpu"
    ):
        compiled("arithmetic", (9, 0), tmp_path)


# ---- runtimes beside stepnet


def answers(peer: ModuleType, case: Case, **options: Any) -> Any:
    """The results of a runtime for a case."""
    prepared = worker.prepared_by(peer, worker.Work(case.record, case.arrays(), 1, options))
    found = prepared.outputs(prepared.run())
    return found if isinstance(found, dict) else {"outputs": found}


@pytest.mark.parametrize(
    "case",
    [
        Case("gru", 2, 4, 6, 8, "ragged", device=EMULATED),
        Case("minimal", 2, 4, 6, 8, device=EMULATED),
        Case("diagonal", 2, 4, 6, 8, device=EMULATED),
        Case("lstm", 2, 3, 6, 8, mode="training", device=EMULATED),
        Case("minimal", 2, 3, 6, 8, mode="training", device=EMULATED),
    ],
    ids=str,
)
def test_runtimes_compute_the_same_on_a_device(case: Case):
    right = oracle.expected(case, case.arrays())
    assert oracle.wrong(answers(ours, case), right, case) is None
    assert oracle.wrong(answers(torch_peer, case, form="loop"), right, case) is None


def test_runtimes_without_the_device_refuse_it():
    case = Case("gru", 2, 4, 6, 8, device="cuda")
    for peer, message in (
        (ours, "there is no CUDA driver here"),
        (torch_peer, "PyTorch finds no GPU here"),
        (onnxruntime, "it does not run on cuda"),
    ):
        with pytest.raises(worker.Refused, match=message):
            answers(peer, case, form="padded")
    with pytest.raises(worker.Refused, match="a loop is captured as a graph on a GPU alone"):
        answers(torch_peer, Case("gru", 2, 4, 6, 8), form="graph")
    for library in gpu_libraries.MODULES:
        with pytest.raises(worker.Missing, match="PyTorch finds no GPU here"):
            gpu_libraries.start(1, {"library": library})
    with pytest.raises(worker.Missing, match="PyTorch finds no GPU here"):
        cudnn.start(1, {"algorithm": "standard"})


class CudnnOnCpu:
    """cuDNN's functions on the memory of the process: a weight space of matrices and then biases, and the
    equations of its manual.
    """

    def __init__(self) -> None:
        self.sizes: tuple[int, ...] = ()
        self.asked = list[str]()

    def __getattr__(self, name: str) -> Callable[..., int]:
        assert name.startswith(("cudnnCreate", "cudnnSet", "cudnnBuildRNNDynamic"))
        return lambda *arguments: self.asked.append(name) or 0

    def cudnnSetRNNDescriptor_v8(self, rnn: Any, *fields: Any) -> int:  # noqa: N802
        self.algorithm, self.cell, inputs, hidden = fields[0], fields[1], fields[8], fields[9]
        self.sizes = inputs, hidden, {2: 4, 3: 3}[self.cell]
        return 8 if self.algorithm == 3 else 0

    def cudnnGetErrorString(self, status: int) -> bytes:  # noqa: N802
        return b"CUDNN_STATUS_NOT_SUPPORTED"

    def offsets(self) -> list[int]:
        """The first bytes of the matrices, and then of the biases."""
        inputs, hidden, gates = self.sizes
        counts = [hidden * inputs] * gates + [hidden * hidden] * gates + [hidden] * 2 * gates
        return [0, *(4 * np.cumsum(counts)).tolist()]

    def cudnnGetRNNWeightSpaceSize(self, handle: Any, rnn: Any, size: Any) -> int:  # noqa: N802
        size._obj.value = self.offsets()[-1]
        return 0

    def cudnnGetRNNTempSpaceSizes(self, *arguments: Any) -> int:  # noqa: N802
        return 0

    def cudnnGetRNNWeightParams(self, handle: Any, rnn: Any, layer: int, *rest: Any) -> int:  # noqa: N802
        _, space, number, _, matrix, _, bias = rest
        offsets, gates = self.offsets(), self.sizes[2]
        matrix._obj.value = space.value + offsets[number]
        bias._obj.value = space.value + offsets[2 * gates + number]
        return 0

    def cudnnRNNForward(self, handle: Any, rnn: Any, mode: int, lengths: Any, *rest: Any) -> int:  # noqa: N802
        x_at, y_at, space = rest[1].value, rest[3].value, rest[11].value
        (inputs, H, gates), offsets = self.sizes, self.offsets()

        def array(first: int, *shape: int) -> Any:
            numbers = (ctypes.c_float * int(np.prod(shape))).from_address(first)
            return np.ctypeslib.as_array(numbers).reshape(shape)

        W = [array(space + offsets[n], H, inputs) for n in range(gates)]
        R = [array(space + offsets[gates + n], H, H) for n in range(gates)]
        b, d = (
            [array(space + offsets[first + n], H) for n in range(gates)] for first in (2 * gates, 3 * gates)
        )
        h = c = np.zeros((2, H), "f4")
        for x, y in zip(array(x_at, 4, 2, inputs), array(y_at, 4, 2, H), strict=True):
            a, u = (
                [x @ w.T + e for w, e in zip(W, b, strict=True)],
                [h @ r.T + e for r, e in zip(R, d, strict=True)],
            )
            if gates == 3:
                r, z = (oracle.sigmoid(a[n] + u[n]) for n in range(2))
                h = (1 - z) * np.tanh(a[2] + r * u[2]) + z * h
            else:
                i, f, o = (oracle.sigmoid(a[n] + u[n]) for n in (0, 1, 3))
                c = f * c + i * np.tanh(a[2] + u[2])
                h = o * np.tanh(c)
            y[...] = h
        return 0


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_weights_are_where_cudnn_wants_them(cell: str, constants: Constants):
    library, case = CudnnOnCpu(), Case(cell, 2, 4, 6, 8)
    constants(cudnn, DEVICES=("cpu",), LOAD=lambda: library)
    for algorithm in ("standard", "persistent", "dynamic"):
        found = answers(cudnn, case, algorithm=algorithm)
        assert oracle.wrong(found, oracle.expected(case, case.arrays()), case) is None
        assert library.algorithm == cudnn.ALGORITHMS[algorithm]
    assert library.asked.count("cudnnBuildRNNDynamic") == 1
    with pytest.raises(worker.Refused, match=r"cuDNN says: CUDNN_STATUS_NOT_SUPPORTED \(cudnnSetRNN"):
        answers(cudnn, case, algorithm="small")
    with pytest.raises(worker.Refused, match="on sequences of one length, in float32"):
        answers(cudnn, Case(cell, 2, 4, 6, 8, "ragged"), algorithm="standard")


def flashrnns_own(Wx: Any, R: Any, b: Any, function: str, backend: str, dtype: str) -> Any:
    """FlashRNN's functions as they are documented: Wx [B, T, G, 1, D], R [G, 1, D, D], b [G, 1, D]."""
    h, c, outputs = (
        torch.zeros(Wx.shape[0], Wx.shape[-1]),
        torch.zeros(Wx.shape[0], Wx.shape[-1]),
        list[Any](),
    )
    for x in Wx[:, :, :, 0].unbind(1):
        u = torch.einsum("gdp,bp->bgd", R[:, 0], h) + (b[:, 0] if function == "lstm" else b[:3, 0])
        if function == "lstm":
            i, f, z, o = (x + u).unbind(1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
            h = torch.sigmoid(o) * torch.tanh(c)
        else:
            r, z = torch.sigmoid(x[:, 0] + u[:, 1]), torch.sigmoid(x[:, 1] + u[:, 2])
            h = z * h + (1 - z) * torch.tanh(x[:, 2] + b[3, 0] + r * u[:, 0])
        outputs.append(h)
    return torch.stack(outputs, 1)[None, :, :, None], None


def hgrns_own(x: Any, g: Any) -> Any:
    """HGRN's recurrence as it is documented, for x and g [B, T, D]: h = exp(g) h + x."""
    h, outputs = torch.zeros_like(x[:, 0]), list[Any]()
    for each, gate in zip(x.unbind(1), g.unbind(1), strict=True):
        h = torch.exp(gate) * h + each
        outputs.append(h)
    return torch.stack(outputs, 1), h


def mambas_own(u: Any, delta: Any, A: Any, B: Any, C: Any) -> Any:
    """The selective scan as it is documented, for u and delta [B, D, L] and A, B and C [D, N]."""
    h, outputs = u.new_zeros(*u.shape[:2], A.shape[1]), list[Any]()
    for each, step in zip(u.unbind(2), delta.unbind(2), strict=True):
        h = torch.exp(step[..., None] * A) * h + (step * each)[..., None] * B
        outputs.append((h * C).sum(-1))
    return torch.stack(outputs, 2)


@pytest.mark.parametrize(
    ("library", "cell"),
    [("flashrnn", "gru"), ("flashrnn", "lstm"), ("fla", "diagonal"), ("mamba_ssm", "diagonal")],
)
def test_weights_are_given_to_libraries_as_they_take_them(
    library: str, cell: str, monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    functions = {
        "flashrnn": flashrnns_own,
        "fused_recurrent_hgrn": hgrns_own,
        "selective_scan_fn": mambas_own,
    }
    monkeypatch.setitem(sys.modules, gpu_libraries.MODULES[library][0], SimpleNamespace(**functions))
    constants(gpu_libraries, DEVICES=("cpu",))
    case = Case(cell, 2, 4, 6, 8)
    found_answers = answers(gpu_libraries, case, library=library)
    assert oracle.wrong(found_answers, oracle.expected(case, case.arrays()), case) is None
    other = Case("custom", 2, 4, 6, 8)
    with pytest.raises(worker.Refused, match="has no custom cell"):
        answers(gpu_libraries, other, library=library)
    with pytest.raises(worker.Refused, match="on sequences of one length"):
        answers(gpu_libraries, Case(cell, 2, 4, 6, 8, "ragged"), library=library)


def test_a_runtime_that_multiplies_fewer_digits_has_their_tolerance():
    case = Case("gru", 2, 4, 6, 8)
    right = oracle.expected(case, case.arrays())
    near = {name: array + 1e-3 for name, array in right.items()}
    assert "away from float64" in (oracle.wrong(near, right, case) or "")
    assert oracle.wrong(near, right, case, "float16") is None


def test_cycles_follow_stalls_counters_and_barriers():
    """By hand: of instructions that wait after themselves, for a result, and for other warps."""

    def its(name: str, stall: int = 1, result: int = 7, waits: int = 0) -> cycles.Instruction:
        return cycles.Instruction(0, name, None, False, stall, result, 7, waits)

    def round_of(loop: list[cycles.Instruction], warps: int = 1) -> float:
        return cycles.cycles(loop, warps, 4.0)

    assert round_of([its("FFMA", 4), its("FADD", 4)]) == 8
    assert round_of([its("SHFL", 2, result=0), its("FADD", 4, waits=1)]) == 24 + 4
    assert round_of([its("FFMA", 5), its("BAR.SYNC", 5)], warps=4) == pytest.approx(5 + 12.6 + 8)
    reads = [its("LDS.128", result=0), its("FADD", 5, waits=1), its("BAR.SYNC")]
    assert round_of(reads, warps=4) == pytest.approx(3 * 4 + 33 + 5 + 12.6 + 8), "reads take turns"


def test_the_loop_over_steps_is_found_in_code():
    def at(address: int, target: int | None = None, is_conditional: bool = False) -> cycles.Instruction:
        return cycles.Instruction(address, "BRA" if target else "FADD", target, is_conditional, 1, 7, 7, 0)

    code = [
        at(0),
        at(16),
        at(32, 64),
        at(48),
        at(64),
        at(80, 112, True),
        at(96),
        at(112, 16, True),
        at(128, 0),
    ]
    assert [each.address for each in cycles.innermost(code)] == [16, 32, 64, 80, 96, 112]


def test_facts_of_plain_units_are_those_that_times_were_made_of():
    facts = replace(H100, plain=calibrate.PlainCost(2e-3, 0.5e-3))
    shapes = [shape for cell, shape in cycles.plain_loops() if cell.startswith(("gru", "minimal"))]
    found = calibrate.fitted_plain([(shape, step_time(shape, facts).total) for shape in shapes])
    assert (found.warp, found.scheduler) == pytest.approx((2e-3, 0.5e-3))
