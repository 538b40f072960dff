"""Times the elementary functions of the llvm engine for a number, beside PyTorch's.

    python bench/elementary.py
    python bench/elementary.py tanh sigmoid --rounds 101 --json

Each function goes over 32768 numbers of float32 in the second cache, on one thread: ours some registers
abreast, as in the epilogue of a product; PyTorch's into an array that is there. They alternate; the median
counts. Run it in two checkouts to compare revisions: PyTorch's column says how fast the machine was.
"""

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Annotated

import numpy as np
import torch
import typer
from llvmlite import ir
from rich.console import Console
from rich.table import Table

from stepnet.compiler.targets.cpu.emit.units import ABREAST
from stepnet.compiler.targets.cpu.machine.machine_code import MachineCode, NativeFunction
from stepnet.compiler.targets.cpu.machine.object_code import object_code
from stepnet.compiler.targets.cpu.machine.processor import Processor, available_processors
from stepnet.compiler.targets.cpu.writing.code import POINTER, Code, register_type
from stepnet.compiler.targets.cpu.writing.elementary import ELEMENTARY

COUNT = 32768
TURN = 20
TORCH = {"arctan": "atan"}
Call = Callable[[], object]


def machine_code(processor: Processor, names: list[str]) -> dict[str, NativeFunction]:
    """Compiles functions of a pointer to `COUNT` arguments, behind which they write the results."""
    module = ir.Module("elementary")
    lanes = ABREAST * processor.vector_bytes // 4
    for name in names:
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), name)
        code = Code(function.append_basic_block("entry"), processor)
        with code.loop(code.number(0), code.number(COUNT), lanes) as place:
            pointer = code.at(function.args[0], code.mul(place, code.number(4)))
            value = ELEMENTARY[name](code, code.read(register_type("float32", lanes), pointer, 4))
            code.write(value, code.at(pointer, 4 * COUNT), 4)
        code.ret_void()
    made = MachineCode(object_code(module, processor))
    return {name: made.function(name) for name in names}


def aligned(count: int) -> np.ndarray:
    """Returns zeros of float32 that begin at a cache line."""
    memory = np.zeros(count + 16, "f4")
    first = -memory.ctypes.data // 4 % 16
    return memory[first : first + count]


def nanoseconds(call: Call) -> float:
    """Returns the nanoseconds that a call takes for each of `COUNT` numbers."""
    begun = time.perf_counter()
    for _ in range(TURN):
        call()
    return (time.perf_counter() - begun) / TURN / COUNT * 1e9


def measured(processor: Processor, names: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Times functions by stepnet and PyTorch in alternation: {name: {"stepnet" or "torch": nanoseconds}}."""
    both = aligned(2 * COUNT)
    both[:COUNT] = np.random.default_rng(0).uniform(0.1, 3, COUNT)  # where all functions are finite
    native = machine_code(processor, names)
    x, result = torch.from_numpy(both[:COUNT]), torch.from_numpy(aligned(COUNT))
    cases: dict[tuple[str, str], Call] = {}
    for name in names:
        theirs = getattr(torch, TORCH.get(name, name))
        cases[name, "stepnet"] = lambda function=native[name]: function.call(both.ctypes.data)
        cases[name, "torch"] = lambda function=theirs: function(x, out=result)
    for name in names:
        cases[name, "stepnet"]()
        cases[name, "torch"]()
        np.testing.assert_allclose(both[COUNT:], result.numpy(), rtol=1e-5, err_msg=name)
    turns = [{case: nanoseconds(call) for case, call in cases.items()} for _ in range(rounds)]
    return {
        name: {whose: median(turn[name, whose] for turn in turns) for whose in ("stepnet", "torch")}
        for name in names
    }


def main(
    functions: Annotated[list[str] | None, typer.Argument(help="Which; all where none is named.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 31,
    target: Annotated[str, typer.Option(help="Code for avx512, avx2 or generic; the best by default.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time elementary functions beside PyTorch's, and print a table or JSON."""
    torch.set_num_threads(1)
    targets = {each.name: each for each in reversed(available_processors())}
    if unknown := [target] * (target not in ("", *targets)) + sorted({*(functions or ())} - {*ELEMENTARY}):
        raise typer.BadParameter(f"there is no {', '.join(unknown)}")
    chosen = targets[target] if target else available_processors()[0]
    times = measured(chosen, functions or list(ELEMENTARY), rounds)
    if as_json:
        typer.echo(json.dumps({"target": chosen.name, "nanoseconds": times}, indent=1))
        return
    table = Table(title=f"Nanoseconds for {64} numbers of float32, {chosen}")
    for heading in ("function", "stepnet", "torch", "torch / stepnet"):
        table.add_column(heading, justify="left" if heading == "function" else "right")
    for name, of in times.items():
        ratio = of["torch"] / of["stepnet"]
        table.add_row(name, f"{64 * of['stepnet']:.1f}", f"{64 * of['torch']:.1f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
