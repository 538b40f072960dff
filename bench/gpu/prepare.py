"""Writes the bundle: compiles all kernels, and computes what they must give."""

import subprocess
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np

from bench.gpu.backward import backward_step
from bench.gpu.bundle import STEPS, Bundle, Check, Compiled, write_case
from bench.gpu.cases import CHECKED, TIMED, schedules
from bench.gpu.cells import model
from bench.gpu.inputs import Signature, drawn
from bench.gpu.ptx import PROCESSOR, Assembled, fitted
from bench.gpu.shape import Schedule, Shape, Step
from bench.gpu.truth import interpreted
from stepnet.compiler.net.tolerance import tolerance

MICROBENCHMARKS = "barriers", "arithmetic"
RAGGED = [3, 7, 0, 1, 5, 4, 2, 6, 7, 3]
LOADED_AS_PTX = (
    "gru-64-block1-float32-p1-c3-a1",
    "gru-256-cluster8-float32-p1-c3-a1",
    "gru-512-grid32-float32-p1-c3-a1",
)


@cache
def step_of(name: str) -> Step:
    """Returns a step by its name, such as "gru-128" or "backward gru-128"."""
    cell, width = name.removeprefix("backward ").split("-")
    if name.startswith("backward "):
        return backward_step(cell, int(width))
    return model(cell, int(width), [1]).step


def file_name(step: str, its: Schedule) -> str:
    """Returns the name of a kernel's files."""
    return f"{step.replace(' ', '-')}-{its.name}"


def compiled(folder: Path, step: str, its: Schedule) -> Compiled:
    """Compiles a kernel, and writes its files unless they are there."""
    found: Assembled = fitted(Shape(step_of(step), its))
    shape, name = found.shape, file_name(step, its)
    (folder / f"{name}.cubin").write_bytes(found.cubin)
    if name in LOADED_AS_PTX:
        (folder / f"{name}.ptx").write_text(found.ptx)
    options = {n: value for n, value in asdict(shape.schedule).items() if n != "resident"}
    sizes = {"threads": shape.threads, "shared": shape.shared_bytes, "registers": found.registers}
    counts = {"resident": min(shape.operands, shape.schedule.resident), "operands": shape.operands}
    return Compiled(name=name, step=step, **options, **sizes, **counts, signature=shape.signature)


def write_check(folder: Path, step: str) -> Check:
    """Writes sequences of ten lengths for a step, with what the CPU engine or the interpreter gives."""
    cell, width = step.removeprefix("backward ").split("-")
    path = folder / f"check-{step.replace(' ', '-')}.npz"
    if step.startswith("backward "):
        inputs = drawn(signature(step), RAGGED)
        write_case(path, inputs, *interpreted(step_of(step), inputs))
    else:
        made = model(cell, int(width), RAGGED)
        write_case(path, made.inputs, *made.expected())
    kernels = tuple(file_name(step, each) for each in schedules(CHECKED[step]))
    return Check(step, kernels, 2 * tolerance("float32", max(RAGGED), 2 * int(width)))


def signature(step: str) -> Signature:
    """Returns what kernels of a step take; the memory of a group is not among it."""
    return Shape(step_of(step), Schedule()).signature


def write_truth(folder: Path, step: str) -> None:
    """Writes what a timed sequence must give, in float64, unless it is there: last outputs and memories."""
    path = folder / f"truth-{step.replace(' ', '-')}.npz"
    if path.exists():
        return
    inputs = drawn(signature(step), [STEPS])
    outputs, last = interpreted(step_of(step), inputs)
    arrays = {f"output{place}": each[-1] for place, each in enumerate(outputs)}
    arrays |= {f"last{place}": each[0] for place, each in enumerate(last)}
    np.savez(path, **arrays)


def compile_microbenchmarks(folder: Path) -> None:
    """Compiles the microbenchmarks, which are CUDA C++."""
    for name in MICROBENCHMARKS:
        source, code = Path(__file__).with_name(f"{name}.cu"), folder / f"{name}.cubin"
        processor = f"arch={PROCESSOR.replace('sm', 'compute')},code={PROCESSOR}"
        subprocess.run(["nvcc", "-cubin", "-gencode", processor, "-o", str(code), str(source)], check=True)


def prepare(folder: Path, processes: int = 2) -> Bundle:
    """Writes the bundle to a folder, and returns it. Kernels that do not fit a block are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    compile_microbenchmarks(folder)
    wanted = {
        file_name(step, each): (step, each)
        for table in (CHECKED, TIMED)
        for step, text in table.items()
        for each in schedules(text)
    }
    kernels = dict[str, Compiled]()
    with ProcessPoolExecutor(processes) as pool:
        found = {name: pool.submit(compiled, folder, *each) for name, each in wanted.items()}
        for name, each in found.items():
            error = each.exception()
            if isinstance(error, ValueError):
                print(f"left out: {error}")
            else:
                kernels[name] = each.result()
    checks = tuple(write_check(folder, step) for step in CHECKED)
    for step in TIMED:
        write_truth(folder, step)
    bundle = Bundle(folder, kernels, checks)
    bundle.write()
    return bundle
