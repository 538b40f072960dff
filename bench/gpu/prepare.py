"""Writes the bundle: compiles all kernels, and computes what they must give."""

import subprocess
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np

from bench.gpu.backward import backward_step
from bench.gpu.bundle import STEPS, Bundle, Check, Compiled, write_case
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


def schedules(text: str) -> list[Schedule]:
    """Returns schedules out of words such as block1, cluster8.bfloat16 or grid4.float32.chains1."""
    return [schedule(word) for word in text.split()]


def schedule(word: str) -> Schedule:
    """Returns the schedule of one word: an exchange with its blocks, then numbers, chains, ahead or without."""
    first, *others = word.split(".")
    exchange = first.rstrip("0123456789")
    options: dict[str, object] = {"blocks": int(first[len(exchange) :]), "exchange": exchange}
    for other in others:
        name = other.rstrip("0123456789")
        if name in ("chains", "parts", "ahead"):
            options[name] = int(other[len(name) :])
        elif other == "fast":
            options["functions"] = other
        else:
            options["without" if other in ("barrier", "products") else "numbers"] = other
    options.setdefault("chains", 3 if options.get("numbers", "float32") == "float32" else 1)
    return Schedule(**options)  # pyright: ignore[reportArgumentType]


def in_all_numbers(text: str) -> str:
    """Returns words for schedules in float32, tf32 and bfloat16."""
    return " ".join(f"{word}.{numbers}" for word in text.split() for numbers in ("float32", "tf32", "bfloat16"))


TIMED = {
    "gru-64": in_all_numbers("block1.parts2.ahead2 block1.parts4.ahead2 cluster4.parts4.ahead2 tagged4.parts4.ahead2")
    + " block1 block1.chains1 grid4 block1.parts4 cluster4.parts4 cluster4.parts4.ahead4 block1.parts4.fast.ahead2"
    + " block1.parts4.bfloat16.fast.ahead2 cluster4.parts4.fast.ahead2 block1.parts4.ahead2.products"
    + " block1.parts4.fast.ahead2.products",
    "gru-128": in_all_numbers("cluster4.parts4.ahead2 cluster8.parts4.ahead2 tagged8.parts4.ahead2")
    + " block1 block1.tf32 block1.bfloat16 block1.chains1 block1.parts2 cluster8 cluster8.parts2 cluster8.parts4"
    + " tagged8 tagged8.parts4 grid8 grid8.parts4 grid8.parts4.ahead2 cluster8.parts4.chains1.ahead2"
    + " cluster8.parts4.fast.ahead2 cluster8.parts4.bfloat16.fast.ahead2 tagged8.parts4.fast.ahead2 block1.products"
    + " block1.barrier cluster8.parts4.ahead2.products cluster8.parts4.fast.ahead2.products"
    + " tagged8.parts4.ahead2.products grid8.parts4.ahead2.products grid8.parts4.ahead2.barrier",
    "gru-256": in_all_numbers("cluster8.parts4.ahead2 cluster16.parts4.ahead2 tagged16.parts4.ahead2")
    + " cluster8 grid8 grid16.parts4.ahead2 cluster16.parts4 cluster16.parts4.fast.ahead2 tagged16.parts4.fast.ahead2"
    + " cluster16.parts4.bfloat16.fast.ahead2 tagged8.parts4.bfloat16.ahead2 cluster16.parts4.ahead2.products"
    + " tagged16.parts4.ahead2.products",
    "gru-512": in_all_numbers("tagged32.parts4.ahead2")
    + " cluster16.parts4.bfloat16.ahead2 tagged16.parts4.bfloat16.ahead2 grid32 grid32.parts4.ahead2 tagged32.parts4"
    + " tagged32.parts4.fast.ahead2 tagged32.parts4.bfloat16.fast.ahead2 tagged32.parts4.ahead2.products",
    "gru-1024": "tagged64.parts4.bfloat16.ahead2 tagged64.parts4.tf32.ahead2 tagged64.parts4.bfloat16.fast.ahead2"
    + " grid64.parts4.bfloat16.ahead2",
    "lstm-64": in_all_numbers("block1.parts4.ahead2 cluster4.parts4.ahead2")
    + " block1 block1.parts4.fast.ahead2 block1.parts4.bfloat16.fast.ahead2",
    "lstm-128": in_all_numbers("cluster8.parts4.ahead2 tagged8.parts4.ahead2")
    + " block1 cluster8.parts4.fast.ahead2 cluster8.parts4.bfloat16.fast.ahead2",
    "lstm-256": in_all_numbers("cluster16.parts4.ahead2 tagged16.parts4.ahead2")
    + " cluster8.parts4.bfloat16.ahead2 cluster16.parts4.fast.ahead2 cluster16.parts4.bfloat16.fast.ahead2",
    "lstm-512": in_all_numbers("tagged32.parts4.ahead2")
    + " tagged16.parts4.bfloat16.ahead2 tagged32.parts4.fast.ahead2 tagged32.parts4.bfloat16.fast.ahead2"
    + " grid32.parts4.ahead2",
    "lstm-768": "tagged48.parts4.bfloat16.ahead2 tagged48.parts4.bfloat16.fast.ahead2",
    "lstm-1024": "tagged64.parts4.bfloat16.ahead2 tagged64.parts4.bfloat16.fast.ahead2",
    "minimal_gated_unit-64": in_all_numbers("block1.parts4.ahead2") + " block1 block1.parts4.fast.ahead2",
    "minimal_gated_unit-128": in_all_numbers("cluster8.parts4.ahead2") + " block1.parts2.ahead2 tagged8.parts4.ahead2",
    "minimal_gated_unit-256": in_all_numbers("cluster16.parts4.ahead2 tagged16.parts4.ahead2")
    + " cluster16.parts4.fast.ahead2",
    "minimal_gated_unit-512": in_all_numbers("tagged32.parts4.ahead2") + " tagged32.parts4.fast.ahead2",
    "rg_lru-256": "grid4 grid4.ahead2 grid4.ahead4 grid4.ahead8 grid4.ahead16 grid4.ahead32",
    "rg_lru-1024": "grid16 grid16.ahead4 grid16.ahead16",
    "backward gru-128": "cluster8.parts4.ahead2 cluster8.parts4.bfloat16.ahead2 tagged8.parts4.ahead2",
    "backward lstm-128": "cluster8.parts4.ahead2 cluster8.parts4.bfloat16.ahead2",
    "backward gru-256": "cluster16.parts4.ahead2 cluster16.parts4.bfloat16.ahead2 tagged16.parts4.ahead2",
}
"""What is timed: steps, each with its schedules."""
CHECKED = {
    "simple_rnn-16": "block1.chains1 block1.chains1.parts2",
    "simple_rnn-64": "block1.chains1 block1 cluster2 cluster4 grid2 grid4 tagged4 block1.parts4 cluster4.parts4",
    "gru-32": "block1.barrier block1.chains1 block1 cluster2 grid2 tagged2 block1.bfloat16 block1.parts4 cluster2.bfloat16",
    "gru-64": "block1.chains1 block1 cluster2 cluster4 grid2 grid4 tagged4 block1.tf32 block1.bfloat16"
    + " cluster4.bfloat16 block1.parts4 cluster4.parts4 tagged4.parts4 grid4.parts4 cluster4.parts4.ahead2"
    + " block1.parts4.fast block1.parts4.bfloat16",
    "gru-128": "block1 cluster8 grid8 tagged8 block1.parts2 cluster8.parts2 cluster8.parts4 tagged8.parts4 grid8.parts4",
    "gru-256": "cluster8 cluster16 grid8 grid16 cluster16.parts4 tagged16.parts4 grid16.parts4",
    "lstm-64": "block1 cluster2 cluster4 grid2 grid4 tagged2 block1.bfloat16 block1.parts4 cluster4.parts4",
    "minimal_gated_unit-32": "block1 cluster2 grid2 tagged2 block1.parts4",
    "minimal_gated_unit-64": "block1 cluster4 grid4 tagged4 block1.parts4 cluster4.parts4 tagged4.parts4"
    + " block1.barrier grid4.barrier",
    "rg_lru-32": "block1 block1.ahead4",
    "backward gru-32": "block1 cluster2 grid2 tagged2 block1.parts4",
    "backward lstm-32": "block1 cluster2 grid2 tagged2 block1.parts4",
    "backward gru-128": "cluster4 cluster8 grid8 tagged8 cluster8.parts4 tagged8.parts4",
}
"""What is checked: steps, each with its schedules."""


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
    """Writes sequences of ten lengths for a step, with what the CPU engine or the interpreter gives for them."""
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
    """Writes what a timed sequence must give, unless it is there: its last outputs and memories, in float64."""
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
    """Writes the bundle to a folder, and returns it. Kernels that do not fit a block are left out, and named."""
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
