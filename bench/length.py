"""Measures the memory of a run beyond its inputs, over sequences of a thousand steps to a million.

    python bench/length.py                  a table
    python bench/length.py --rows 1         for one sequence alone, which needs no gigabytes
    python bench/length.py --json

A GRU of 64 over 8 inputs, float32, in three ways: `last_only=True`, which gives each sequence's last output;
all outputs, of every step; and PyTorch's `nn.GRU`, which has no other way. Each run has a process of its own.
There the recurrence is made and the inputs are written in full, then it runs over two steps, so that machine
code and threads are there. The figure is the peak of the process from there to the end of the long run, less
its memory before: working memory and outputs. If the system lets a process's peak begin anew (Linux, by
/proc/self/clear_refs) that is exact to some pages; elsewhere it is by how much the run raises the peak of the
whole process. A way that would take more than there is, going by a shorter run, is left out. All are checked
to end in the same last outputs.

`code` is the machine code of the recurrence, the loop with all around it. Neither it nor the memory of
`last_only` should grow with the steps.
"""

import gc
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from stepnet import cells
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.cpu.running.run import Runner
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
INPUTS, HIDDEN = 8, 64
STEPS, ROWS = [1_000, 100_000, 1_000_000], [1, 16]
WIDE = 120  # columns of a table that is written to a file or a pipe
WARM, SHORT = 2, 1000  # steps of the first run, which does not count, and those that affect the last output
MOST = 512 * 1024  # the promised limit: bytes that a long run takes beyond the shortest
SHARE = 0.6  # the most of the free memory that a run may take
LAST, ALL, TORCH = "last only", "all outputs", "torch"
STATUS, ANEW = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Run:
    """The result of one process: bytes of a run beyond its inputs, bytes of its code, and last outputs."""

    memory: int
    code: int
    last: list[list[float]]


@dataclass(frozen=True)
class Found:
    """The result for one size: bytes of memory of each way, None if left out, and the bytes expected."""

    rows: int
    steps: int
    inputs: int
    code: int
    memory: dict[str, int | None]
    expected: dict[str, int]


# ---- what is run, in a process of its own ------------------------------------------------------------------


def parameters() -> dict[str, Array]:
    """Returns the parameters of the GRU, the same in every process."""
    return dict(cells.CELLS["gru"].parameters(INPUTS, HIDDEN))


def recurrence(last_only: bool) -> tuple[Callable[[Array], Array], Callable[[], int]]:
    """Returns a function that runs stepnet's GRU to the last outputs [rows, hidden], and one that gives the
    bytes of its machine code.
    """
    rnn = cells.rnn("gru", parameters())

    def run(x: Array) -> Array:
        """Runs stepnet's GRU, whose memory is measured; returns the last outputs [rows, hidden]."""
        outputs, _ = rnn(x, last_only=last_only, engine="llvm")
        return outputs if last_only else outputs[:, -1]

    return run, lambda: code_bytes(rnn)


def code_bytes(rnn: sn.RNN) -> int:
    """Returns the bytes of a recurrence's machine code, after it ran."""
    runner = rnn.program.bound("llvm")
    assert isinstance(runner, Runner)
    return runner.native.compiled.code.bytes


def in_torch() -> tuple[Callable[[Array], Array], Callable[[], int]]:
    """Returns a function that runs PyTorch's GRU to the last outputs, and one that gives 0 for its code."""
    import torch

    torch.set_num_threads(1)  # this changes only the time, which is not measured
    module = torch.nn.GRU(INPUTS, HIDDEN, batch_first=True)
    weights = sn.convert(parameters(), "stepnet.gru", "torch.gru").arrays
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})

    def run(x: Array) -> Array:
        """Runs PyTorch's GRU, whose memory is measured; returns the last outputs [rows, hidden]."""
        with torch.inference_mode():
            outputs, _ = module(torch.from_numpy(x))
            return outputs[:, -1].numpy()

    return run, lambda: 0


WAYS = {LAST: lambda: recurrence(last_only=True), ALL: lambda: recurrence(last_only=False), TORCH: in_torch}


def alone(way: str, rows: int, steps: int) -> Run:
    """Measures a way (a key of `WAYS`) in this process: memory, code and last outputs."""
    run, code = WAYS[way]()
    x = np.empty((rows, steps, INPUTS), np.float32)
    np.random.default_rng(0).standard_normal(dtype=np.float32, out=x)
    run(x[:, :WARM].copy())
    memory, last = watched(lambda: run(x))
    return Run(memory, code(), last.tolist())


def watched(run: Callable[[], Array]) -> tuple[int, Array]:
    """Calls `run`; returns the peak bytes of this process meanwhile beyond those before, and the outputs."""
    gc.collect()
    with suppress(OSError):
        ANEW.write_text("5")
    before = peak()
    outputs = run()
    return peak() - before, outputs


def peak() -> int:
    """Returns the most bytes that this process has held; on Linux, since the peak was reset."""
    import resource

    if STATUS.exists():
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if platform.system() == "Darwin" else most * 1024


# ---- all of them -------------------------------------------------------------------------------------------


def in_a_process(way: str, rows: int, steps: int) -> Run:
    """Measures a way (`alone`) in a new process, so that only its own memory counts."""
    command = [sys.executable, __file__, "--alone", json.dumps([way, rows, steps])]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Run(**json.loads(said))


def measured(rows: int, steps: int, shorter: Found | None) -> Found:
    """Measures all ways at one size, but those that would take too much memory; raises `AssertionError` if
    they do not end in the same outputs.

    shorter: the result for fewer steps, from which the memory is estimated; None if there is none.
    """
    inputs = rows * steps * INPUTS * 4
    runs: dict[str, Run] = {}
    expected: dict[str, int] = {}
    for way in WAYS:
        expected[way] = longer(shorter, way, steps)
        if way == LAST or inputs + expected[way] <= SHARE * available():
            runs[way] = in_a_process(way, rows, steps)
    check(rows, steps, {way: np.array(run.last) for way, run in runs.items()})
    memory = {way: runs[way].memory if way in runs else None for way in WAYS}
    return Found(rows, steps, inputs, max(run.code for run in runs.values()), memory, expected)


def longer(shorter: Found | None, way: str, steps: int) -> int:
    """Estimates the bytes that a way takes for more steps from a shorter run; 0 if there is none."""
    if shorter is None:
        return 0
    taken = shorter.memory[way]
    return (shorter.expected[way] if taken is None else taken) * steps // shorter.steps


def available() -> int:
    """Returns the bytes of free memory; `sys.maxsize` if the system does not say."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return sys.maxsize
    lines = dict(line.split(":") for line in info.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def check(rows: int, steps: int, last: dict[str, Array]) -> None:
    """Asserts that all ways end in the same outputs: stepnet's bit for bit, PyTorch's but for rounding."""
    ours = last[LAST]
    assert ours.shape == (rows, HIDDEN), ours.shape
    assert np.abs(ours).max() > 0.01, "all outputs are next to nothing"
    if ALL in last:
        assert np.array_equal(last[ALL], ours), "the last of all outputs is not the last output"
    if TORCH in last:
        # What was rounded long ago is forgotten.
        most = 2 * tolerance("float32", min(steps, SHORT), INPUTS + HIDDEN)
        away = np.abs(last[TORCH] - ours).max()
        assert away <= most, f"torch is {away:.1e} away from ours, where {most:.1e} is rounding"


def kept(found: list[Found]) -> bool:
    """Returns True if `last_only` takes no more memory or code for long sequences than for short ones."""
    first: dict[int, Found] = {}
    for one in found:
        short = first.setdefault(one.rows, one)
        now, then = one.memory[LAST], short.memory[LAST]
        if now is None or then is None or now - then > MOST or one.code != short.code:
            return False
    return True


# ---- what one sees -----------------------------------------------------------------------------------------


def sized(count: int) -> str:
    """Formats a number of bytes with a unit, for the table."""
    for name, unit in (("GB", 1e9), ("MB", 1e6)):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count / 1e3:.0f} KB"


def table(found: list[Found]) -> Table:
    """Returns the table of all results."""
    shown = Table(title="memory of a run beyond its inputs")
    for name in ("sequences", "steps", "inputs", *WAYS, "code"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in found:
        taken = [
            f"[dim]left out: {sized(one.expected[way])}[/]" if memory is None else sized(memory)
            for way, memory in one.memory.items()
        ]
        shown.add_row(str(one.rows), f"{one.steps:,}", sized(one.inputs), *taken, sized(one.code))
    return shown


def main(
    steps: Annotated[list[int], typer.Option(min=WARM, help="How many steps; may be repeated.")] = STEPS,
    rows: Annotated[list[int], typer.Option(min=1, help="How many sequences; may be repeated.")] = ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    one: Annotated[str, typer.Option("--alone", hidden=True)] = "",
) -> None:
    """Measure the memory of runs over long sequences, and print a table or JSON."""
    if one:
        typer.echo(json.dumps(asdict(alone(*json.loads(one)))))
        return
    console = Console(stderr=as_json)
    busy = os.getloadavg()[0]
    sizes = [(count, length) for count in rows for length in sorted(steps)]
    found: list[Found] = []
    for count, length in track(sizes, "running", console=console, transient=True):
        shorter = found[-1] if found and found[-1].rows == count else None
        found.append(measured(count, length, shorter))
    if as_json:
        typer.echo(json.dumps({"found": [asdict(one) for one in found], "kept": kept(found)}, indent=1))
        return
    if not console.is_terminal:
        console = Console(width=WIDE)
    console.print(table(found))
    verdict = "[green]kept[/]" if kept(found) else "[red]not kept[/]"
    promise = f"Promised is that {LAST!r} takes no more memory for more steps, up to {sized(MOST)}"
    console.print(f"[dim]{promise}:[/] {verdict}[dim]. {threads()} threads; load {busy:.1f} at the start.[/]")


if __name__ == "__main__":
    typer.run(main)
