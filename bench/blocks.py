"""Times a memory that is a matrix in blocks of steps, as matrix products, beside step by step.

    python bench/blocks.py                  tables for 64, 128 and 256 keys and values
    python bench/blocks.py --keys 64 --gradients      outputs and gradients of inputs, without the C program
    python bench/blocks.py --keys 64 --json

A gated delta rule, and linear attention with a decay, of 8 heads on one thread:

stepnet        step by step derived        with --gradients: as `sn.vjp` runs it, in blocks that it derives
and whose size it chooses in one step    the equations of 2, 4 or 8 steps written as one step of stepnet,
which reads the matrix once for all of them; products of their keys are computed before the loop by hand
`blocks.c`, compiled by the system's compiler (CC, or cc) for this processor: step by step, and in blocks of
8, 16 or 32 steps, with all products of a block as matrix products

All alternate in one process. Each result is compared with stepnet's before it is timed. Times are medians in
milliseconds; in brackets by how much each is faster than stepnet step by step.
"""

import ctypes
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import stepnet as sn
import stepnet.model.gradients.in_blocks
from stepnet.compiler.net.tolerance import tolerance

Array = np.ndarray
Inputs = dict[str, Array]
SOURCE = Path(__file__).with_suffix(".c")
HEADS = 8
TOGETHER, BLOCKS = (2, 4, 8), (8, 16, 32)
VECTORS = 4
"""Vectors side by side in the C program."""


def delta_step(x: Any, S: Any, params: Any) -> Any:
    """Computes one step of the gated delta rule: the output, and the next matrix S.

    x: queries q, keys k, values v, log decays g and rates b of the step.
    """
    S = S * np.exp(x["g"])[:, :, None]
    d = (x["v"] - (S * x["k"][:, :, None]).sum(1)) * x["b"]
    S = S + x["k"][:, :, None] * d[:, None, :]
    return (S * x["q"][:, :, None]).sum(1), S


def decay_step(x: Any, S: Any, params: Any) -> Any:
    """Computes one step of linear attention with a decay: the output, and the next matrix S."""
    S = S * np.exp(x["g"])[:, :, None] + x["k"][:, :, None] * x["v"][:, None, :]
    return (S * x["q"][:, :, None]).sum(1), S


RULES = {"gated delta rule": delta_step, "linear attention with a decay": decay_step}


def steps_in_one(count: int, is_delta: bool) -> Callable[[Any, Any, Any], Any]:
    """Returns a step function that computes `count` steps at once; its inputs are theirs side by side.

    is_delta: True for the gated delta rule, False for linear attention with a decay.
    """

    def block(x: Any, S: Any, params: Any) -> Any:
        """Computes the outputs of all `count` steps of the block, and the matrix S after them."""
        parts = {name: np.split(value, count, axis=1) for name, value in x.items()}
        q, k, v, b = (parts[name] for name in "qkvb")
        decays = [np.exp(g) for g in parts["g"]]

        def decay(first: int, last: int) -> Any:
            return reduce(lambda a, b: a * b, decays[first : last + 1])

        def read(left: Any, t: int, behind: int) -> Any:
            """Computes what key or query t reads of the matrix after `behind` steps of the block."""
            total = decay(0, t) * (S * left[t][:, :, None]).sum(1)
            for s in range(behind):
                inner = (left[t] * k[s]).sum(1, keepdims=True)
                total = total + (inner * decay(s + 1, t) if s < t else inner) * written[s]
            return total

        written, outputs = list[Any](), list[Any]()
        for t in range(count):
            written.append((v[t] - read(k, t, t)) * b[t] if is_delta else v[t])
            outputs.append(read(q, t, t + 1))
        S = S * decay(0, count - 1)[:, :, None]
        for s in range(count):
            left = k[s] * decay(s + 1, count - 1) if s < count - 1 else k[s]
            S = S + left[:, :, None] * written[s][:, None, :]
        return np.concatenate(outputs, axis=1), S

    return block


def inputs_of(keys: int, steps: int) -> Inputs:
    """Returns inputs of all heads, each as a sequence: keys of length 1, and decays as models have them."""
    random = np.random.default_rng(0)

    def array(*shape: int) -> Array:
        return random.standard_normal((HEADS, steps, *shape)).astype("float32")

    unit = {name: array(keys) for name in "qk"}
    unit = {name: x / np.sqrt((x * x).sum(-1, keepdims=True)) for name, x in unit.items()}
    return {**unit, "v": array(keys), "g": -np.abs(array(1)) / 4, "b": 1 / (1 + np.exp(-array(1)))}


def compiled(folder: Path, keys: int, steps: int, is_delta: bool) -> ctypes.CDLL:
    """Compiles the C program for `keys` keys and values, and blocks of `steps` steps; returns the library."""
    library = folder / f"{is_delta}-{keys}-{steps}.so"
    sizes = [f"-DK={keys}", f"-DC={steps}", f"-DW={VECTORS}", f"-DDELTA={int(is_delta)}"]
    command = [
        os.environ.get("CC", "cc"),
        "-O3",
        "-march=native",
        "-ffp-contract=fast",
        "-shared",
        "-fPIC",
        *sizes,
    ]
    subprocess.run([*command, str(SOURCE), "-o", str(library), "-lm"], check=True, capture_output=True)
    return ctypes.CDLL(str(library))


def by_hand(function: Any, x: Inputs) -> Callable[[], Array]:
    """Returns a call of a function of the C program for each head; it returns the outputs."""
    heads, steps, keys = x["k"].shape
    memory, outputs = np.empty((heads, keys, keys), "float32"), np.empty((heads, steps, keys), "float32")

    def run() -> Array:
        """Runs all heads from zeros by the C function, to be timed; returns the outputs."""
        memory[:] = 0
        for head in range(heads):
            arrays = [*(x[name][head] for name in "qkvgb"), memory[head], outputs[head]]
            function(steps, *(ctypes.c_void_p(array.ctypes.data) for array in arrays))
        return outputs

    return run


def run_of(recurrence: sn.RNN, x: Inputs, gradients: bool) -> Callable[[], Array]:
    """Returns a function that computes the outputs of a recurrence, or the gradient of their sum by v."""
    if not gradients:
        return lambda: recurrence(x)[0]
    derivative = sn.vjp(recurrence)

    def run() -> Array:
        """Runs forward and backward, to be timed; returns the gradient by the values v."""
        (outputs, _), backward = derivative(x)
        return backward(np.ones_like(outputs), None).inputs["v"]

    return run


@contextmanager
def step_by_step() -> Iterator[None]:
    """Makes `sn.vjp` compute gradients step by step within the block, and not in blocks of steps."""
    chosen = stepnet.model.gradients.in_blocks.block_choices
    stepnet.model.gradients.in_blocks.block_choices = lambda net, *others: {}
    try:
        yield
    finally:
        stepnet.model.gradients.in_blocks.block_choices = chosen


def ways(rule: str, keys: int, steps: int, folder: Path, gradients: bool) -> dict[str, Callable[[], Array]]:
    """Returns the functions to time, by name; raises `AssertionError` if one differs from stepnet.

    rule: a key of `RULES`. folder: for the compiled C programs.
    """
    x, is_delta = inputs_of(keys, steps), RULES[rule] is delta_step
    found = {"stepnet": run_of(sn.RNN(RULES[rule], memory=(keys, keys)), x, gradients)}
    with step_by_step():
        right = found["stepnet"]()
    if gradients:
        found["derived"] = run_of(sn.RNN(RULES[rule], memory=(keys, keys)), x, gradients)
        found["derived"]()
    for count in TOGETHER:
        block = sn.RNN(steps_in_one(count, is_delta), memory=(keys, keys))
        own = {name: value.reshape(HEADS, steps // count, -1) for name, value in x.items()}
        run = run_of(block, own, gradients)
        with step_by_step():
            run()
        found[f"{count} in one step"] = lambda run=run: run().reshape(HEADS, steps, keys)
    for count in () if gradients else BLOCKS:
        program = compiled(folder, keys, count, is_delta)
        found.setdefault("by hand, steps", by_hand(program.steps, x))
        found[f"by hand, blocks of {count}"] = by_hand(program.blocks, x)
    most = tolerance("float32", steps, keys)
    for name, way in found.items():
        away = float(np.abs(way() - right).max())
        assert away <= most, f"{name} is {away:.1e} away from stepnet, where {most:.1e} is rounding"
    return found


def measured(rule: str, keys: int, steps: int, rounds: int, gradients: bool) -> dict[str, list[float]]:
    """Times all implementations of a rule in alternation; returns the seconds of each run, by name."""
    with tempfile.TemporaryDirectory() as folder:
        found = ways(rule, keys, steps, Path(folder), gradients)
        seconds: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(rounds):
            for name, way in found.items():
                begun = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def main(
    keys: Annotated[list[int], typer.Option(help="Keys and values of a head; multiples of 64.")] = [  # noqa: B006
        64,
        128,
        256,
    ],
    steps: Annotated[int, typer.Option(min=32, help="Steps of a sequence; a multiple of 32.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 25,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Gradients too, without the C program.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time a gated delta rule step by step and in blocks of steps, and print tables or JSON."""
    if any(size < 64 or size % 64 for size in keys) or steps % 32:
        raise typer.BadParameter(f"keys are multiples of 64, and steps of 32, not {keys} and {steps}")
    sn.set_threads(1)
    try:
        times = {
            rule: {size: measured(rule, size, steps, rounds, gradients) for size in keys} for rule in RULES
        }
    finally:
        sn.set_threads(None)
    if as_json:
        typer.echo(json.dumps(times, indent=1))
        return
    console = Console()
    for rule, by_size in times.items():
        (console if console.is_terminal else Console(width=120)).print(table(rule, steps, by_size))


def table(rule: str, steps: int, times: dict[int, dict[str, list[float]]]) -> Table:
    """Returns the table of the times of a rule, with a column for each size."""
    shown = Table(title=f"{rule.capitalize()}, {HEADS} heads, {steps} steps, one thread, milliseconds")
    shown.add_column("", no_wrap=True)
    for size in times:
        shown.add_column(f"{size} x {size}", justify="right")
    for name in next(iter(times.values())):
        cells = list[str]()
        for own in times.values():
            ratio = median(ours / taken for ours, taken in zip(own["stepnet"], own[name], strict=True))
            cells.append(f"{median(own[name]) * 1e3:.3g}" + ("" if name == "stepnet" else f" ({ratio:.2f})"))
        shown.add_row(name, *cells)
    return shown


if __name__ == "__main__":
    typer.run(main)
