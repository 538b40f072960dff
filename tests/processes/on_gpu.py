"""Cases of the emulated tests that run on a machine with a GPU, on the device itself, each with its verdict.

    usage: on_gpu.py [name of a section ...]

Results are compared with the interpreter, by the tolerance of the tests. A section is a process of its own,
as a wrong address ends the context of its process. Besides stepnet it needs pytest and hypothesis. The
sections memcheck, racecheck and synccheck run the kernels of `kernels` under NVIDIA's compute-sanitizer, and
say that they were left out where that is not there. It ends with 1 if anything was wrong, and at once where
there is no GPU.
"""

import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in ("src", "tests/support", "tests/compiler/targets/cuda", "."):
    sys.path.insert(0, str(ROOT / folder))
LIMIT = 100
"""The seconds of a section."""
RANDOM = 60
"""The random steps that run."""

Case = tuple[str, Callable[[], Any]]


def models() -> Iterator[Case]:
    """Every kind of model."""
    from device_models import MODELS, same

    def run(make: Callable[[], Any]) -> None:
        call = make()
        same(call(ENGINE), call("interpret"))

    for make in MODELS:
        yield make.__name__, lambda make=make: run(make)


def steps() -> Iterator[Case]:
    """Random steps, in a batch and alone."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st
    from random_steps import random_steps
    from random_ways import DTYPES, alone, assert_right, assert_same_bits, in_float64, sequences_for

    from stepnet.errors import RefusedError

    def run() -> None:
        refused = list[str]()

        @seed("on a gpu")
        @settings(
            max_examples=RANDOM,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
            deadline=None,
        )
        @given(st.data())
        def check(data: st.DataObject) -> None:
            step, dtype, reverse = data.draw(random_steps()), data.draw(DTYPES), data.draw(st.booleans())
            batch = data.draw(sequences_for(step, dtype))
            rnn = step.rnn(dtype, reverse)
            try:
                found = rnn(batch.inputs, batch.initial, batch.statics, engine=ENGINE)
            except RefusedError as error:
                refused.append(str(error).splitlines()[1])
                return
            assert_right(found, in_float64(step, batch, reverse))
            one = batch[:1]
            _, final = rnn(one.inputs, one.initial, one.statics, engine=ENGINE)
            assert_same_bits(final, alone(found[1], 0))

        check()
        print("refused:", len(refused), *sorted(set(refused))[:5], sep="\n    ")

    yield f"{RANDOM} random steps", run


def wide() -> Iterator[Case]:
    """Recurrences whose weights fit no multiprocessor, and gradients, beside the interpreter."""
    import numpy as np
    from tolerance import assert_close

    import stepnet as sn
    from bench.gpu.cells import recurrence
    from stepnet.compiler.values import leaves

    def run(rnn: Any, features: int, rows: int) -> None:
        x = np.random.default_rng(0).normal(size=(rows, 6, features)).astype("f4")
        lengths = [6, 0, 3, *[5] * rows][:rows]
        results = [leaves(rnn(x, lengths=lengths, engine=engine)) for engine in (ENGINE, "interpret")]
        for ours, theirs in zip(*results, strict=True):
            assert_close(ours, theirs, 6, 2 * ours.shape[-1])
        again = leaves(rnn(x, lengths=lengths, engine=ENGINE))
        first = leaves(rnn(x[:1], lengths=lengths[:1], engine=ENGINE))
        assert [each.tobytes() for each in results[0]] == [each.tobytes() for each in again]
        assert all((one[:1] == other).all() for one, other in zip(results[0], first, strict=True))

    def gradients(rnn: Any, features: int) -> None:
        x = np.random.default_rng(0).normal(size=(3, 6, features)).astype("f4")
        made = list[Any]()
        for engine in (ENGINE, "interpret"):
            (outputs, final), backward = sn.vjp(rnn)(x, lengths=[6, 0, 3], engine=engine)
            gradient = backward(outputs, final)
            made.append(leaves((outputs, final, gradient.params, gradient.inputs)))
        for ours, theirs in zip(*made, strict=True):
            scale = np.abs(theirs).max()
            assert_close(ours / scale, theirs / scale, 18, 4 * 512)

    def given(name: str, width: int) -> tuple[Any, int]:
        rnn = recurrence(name, width)
        return rnn, rnn.program.net.type_of(rnn.program.net.inputs[0]).size

    for name, width in (("gru", 1024), ("lstm", 1024), ("layer_normed", 256), ("slstm", 1024)):
        rnn, features = given(name, width)
        for rows in (1, 5, 40):
            yield f"{name}-{width} x {rows}", lambda a=(rnn, features, rows): run(*a)
    for name, width in (("lstm", 512), ("gru", 1024), ("minimal_gated_unit", 64), ("layer_normed", 256)):
        rnn, features = given(name, width)
        yield f"gradients of {name}-{width}", lambda a=(rnn, features): gradients(*a)


def loops() -> Iterator[Case]:
    """Loops on tensor cores, by each schedule."""
    import numpy as np
    import tensor_loops
    from tolerance import assert_close

    from bench.gpu.cells import recurrence
    from stepnet.compiler.plan.passes import PIPELINE
    from stepnet.compiler.plan.plan import Planning
    from stepnet.compiler.targets.cuda import COSTS, CudaDevice, EmulatedDevice, TensorSchedule, TensorStep

    def plan_of(cell: str, width: int) -> Any:
        return recurrence(cell, width).plan.planned(Planning(PIPELINE, COSTS))

    device = CudaDevice() if ENGINE == "cuda" else EmulatedDevice()
    tensor_loops.EmulatedDevice = lambda seed=0: device
    lengths = [3, 7, 0, 1, 5, 4, 2, 6, 7, 3]

    def run(cell: str, width: int, blocks: int, exchange: str, parts: int, ahead: int) -> None:
        made = tensor_loops.Case.drawn(TensorStep.of(plan_of(cell, width)), lengths)
        schedule = TensorSchedule(blocks=blocks, exchange=exchange, parts=parts, ahead=ahead)
        bits = list[list[Any]]()
        for _ in range(3):
            found = made.run(schedule)
            for ours, theirs in zip(
                [*found[0], *found[1]], [*made.expected()[0], *made.expected()[1]], strict=True
            ):
                assert_close(ours, theirs.astype(ours.dtype), max(lengths), 2 * width)
            bits.append([each.tobytes() for each in (*found[0], *found[1])])
        assert bits[0] == bits[1] == bits[2]
        assert np.isfinite(found[0][0]).all()

    for cell in ("gru", "lstm", "minimal_gated_unit", "simple_rnn"):
        for width in (64, 128):
            for blocks, exchange in ((1, "block"), (4, "grid"), (4, "tagged"), (4, "cluster")):
                for parts, ahead in ((1, 1), (4, 2)):
                    name = f"{cell}-{width} {exchange}{blocks} parts {parts} ahead {ahead}"
                    yield name, lambda a=(cell, width, blocks, exchange, parts, ahead): run(*a)


def kernels() -> Iterator[Case]:
    """A kernel of each schedule, those of early ends and of gradients among them."""
    from bench.gpu.place import Place
    from bench.gpu.sanitized import CASES

    def run(name: str) -> None:
        row = CASES[name](Place(ENGINE))
        assert row["right"], row

    for name in CASES:
        yield name, lambda name=name: run(name)


def watched(tool: str) -> Iterator[Case]:
    """The same kernels, each access to memory watched by a tool of compute-sanitizer."""
    from bench.gpu.parts import in_process, wrong_rows

    def run() -> None:
        told = in_process(tool, ENGINE, LIMIT, ROOT / "build" / "watched.json")
        assert told["rows"], told
        assert not told["ended"], told
        assert not wrong_rows(told["rows"]), told

    yield f"all kernels by {SANITIZER}", run


SANITIZER, TOOLS = "compute-sanitizer", ("memcheck", "racecheck", "synccheck")
SECTIONS: dict[str, Callable[[], Iterator[Case]]] = {
    "models": models,
    "steps": steps,
    "loops": loops,
    "wide": wide,
    "kernels": kernels,
    **{tool: partial(watched, tool) for tool in TOOLS},
}
ENGINE = "cuda"


def run_section(name: str) -> int:
    """Runs the cases of a section; prints a line for each. Returns the number of those that failed."""
    failed = 0
    for title, case in SECTIONS[name]():
        begun = time.perf_counter()
        try:
            case()
            verdict = "right"
        except Exception as error:
            failed += 1
            verdict = f"WRONG {type(error).__name__}: {str(error)[:600]}"
            if failed < 4:
                traceback.print_exc(limit=-4)
        print(f"{name}: {title}: {verdict} ({time.perf_counter() - begun:.2f} s)", flush=True)
    return failed


def run_apart(name: str) -> bool:
    """Runs a section as a process, and prints its verdict; returns whether something was wrong."""
    if name in TOOLS and shutil.which(SANITIZER) is None:
        print(f"== {name}: left out: {SANITIZER}, of NVIDIA's CUDA toolkit, is not here", flush=True)
        return False
    begun = time.perf_counter()
    try:
        emulated = ["--emulated"] if ENGINE != "cuda" else []
        command = [sys.executable, __file__, *emulated, "--here", name]
        code = subprocess.run(command, timeout=LIMIT).returncode
    except subprocess.TimeoutExpired:
        code = "stopped at its limit"
    verdict = "all right" if code == 0 else code
    print(f"== {name}: {verdict} ({time.perf_counter() - begun:.1f} s)", flush=True)
    return code != 0


def main(arguments: list[str]) -> None:
    """Runs the sections that are asked for."""
    global ENGINE
    if arguments[:1] == ["--emulated"]:
        ENGINE = "cuda-emulated"
        arguments = arguments[1:]
    if arguments[:1] == ["--here"]:
        sys.exit(bool(run_section(arguments[1])))
    from bench.gpu.place import Place
    from stepnet.errors import DeviceError

    try:
        Place(ENGINE)
    except DeviceError as error:
        sys.exit(f"on_gpu: {error}")
    failed = [run_apart(name) for name in arguments or SECTIONS]
    sys.exit(any(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
