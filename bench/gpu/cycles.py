"""The cycles of a step of a loop on one multiprocessor, counted from its machine code. No GPU is needed.

    python -m bench.gpu cycles        loops of one block that were measured, and loops of plain units

The machine code by ptxas says of each instruction how many cycles its warp waits after it, which of six
counters of the warp it holds until it has read its operands or has its result, and which ones it waits for.
So a round of the loop is followed as the schedulers of a multiprocessor issue it, one instruction of one warp
each in a cycle. Latencies, and the cycles for which an instruction takes its unit, are those that are known
of such GPUs. The code is listed by nvdisasm (pip install nvidia-cuda-nvdisasm).
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path

import numpy as np

from bench.gpu.calibrate import fitted_plain, measured, of_file
from bench.gpu.cells import recurrence
from bench.gpu.estimates import SAVED
from stepnet.compiler.targets.cuda import (
    H100,
    EmulatedDevice,
    TensorShape,
    assembled,
    chosen,
    code_of,
    step_time,
)
from stepnet.errors import LibraryError

CLOCK = 1980.0
"""The cycles in a microsecond."""
INSTRUCTION = re.compile(
    r"/\*([0-9a-f]{4,})\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/\s+/\* 0x([0-9a-f]{16}) \*/", re.S
)
"""An instruction in the listing: its address, its text, and the upper half of its bits."""
SCHEDULERS, COUNTERS, NONE = 4, 6, 7
LATENCY = {"LDS": 33, "SHFL": 24, "MUFU": 22, "LDG": 300, "LDC": 40, "S2R": 25}
"""Cycles until a result is there, of instructions that hold a counter; of LDG from the second cache."""
OTHER, READ = 24, 20
"""The same of others, and the cycles until an instruction has read its operands."""
UNITS = {
    "MUFU": 8.0,
    "HMMA": 6.35,
    "SHFL": 2.0,
    "IMAD": 2.0,
    "IADD3": 2.0,
    "LOP3": 2.0,
    "ISETP": 2.0,
    "LEA": 2.0,
}
"""Cycles for which an instruction of a warp takes its unit of a scheduler; 1 for others."""
SHARED = "LDS", "STS", "SHFL"
"""Instructions that take turns at the one shared memory of a multiprocessor."""
CELLS = "minimal_gated_unit", "gru", "layer_normed", "lstm", "slstm"
WIDTHS = (32, 2), (64, 2), (64, 4), (96, 2), (128, 2)
"""The units of loops of plain units, and the lanes for each."""


@dataclass(frozen=True)
class Instruction:
    """An instruction: its address, its name, the address it goes to if it is a branch, and whether only where
    a condition holds; the cycles that its warp waits after it; the counters that it holds until its result is
    there and until it has read its operands; and the mask of those that it waits for.
    """

    address: int
    name: str
    target: int | None
    is_conditional: bool
    stall: int
    result: int
    operands: int
    waits: int

    @property
    def kind(self) -> str:
        """The first word of its name."""
        return self.name.split(".")[0]


def instructions(cubin: bytes) -> list[Instruction]:
    """Lists the instructions of a kernel. Raises `LibraryError` where nvdisasm is not installed."""
    beside = Path(
        sys.prefix, "lib", f"python3.{sys.version_info[1]}", "site-packages/nvidia/cu13/bin/nvdisasm"
    )
    program = str(beside) if beside.is_file() else shutil.which("nvdisasm")
    if program is None:
        raise LibraryError("nvdisasm is not installed, which lists code: pip install nvidia-cuda-nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [program, "-hex", "-c", file.name]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    labels = {
        label: int(address, 16)
        for names, address in re.findall(r"((?:^\.L_\w+:\n)+)\s+/\*([0-9a-f]+)\*/", listed, re.M)
        for label in names.replace(":", " ").split()
    }
    found = list[Instruction]()
    for address, text, bits in INSTRUCTION.findall(listed):
        words = text.split()
        is_conditional, upper = words[0].startswith("@"), int(bits, 16)
        name = words[is_conditional]
        goes = re.search(r"`\((\.L_\w+)\)", text) if name.startswith("BRA") else None
        found.append(
            Instruction(
                int(address, 16),
                name,
                labels.get(goes[1]) if goes else None,
                is_conditional,
                upper >> 41 & 15,
                upper >> 46 & 7,
                upper >> 49 & 7,
                upper >> 52 & 63,
            )
        )
    return found


def innermost(code: Sequence[Instruction]) -> list[Instruction]:
    """Returns the loop over steps: the longest one without a loop inside, as it runs where no condition of a
    branch ahead holds.
    """
    loops = [
        (each.target, each.address) for each in code if each.target is not None and each.target < each.address
    ]
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    first, last = max(inner, key=lambda loop: loop[1] - loop[0])
    found, at = list[Instruction](), first
    for each in code:
        if at <= each.address <= last:
            found.append(each)
            if each.target is not None and each.target > each.address and not each.is_conditional:
                at = each.target
    return found


@dataclass
class Warp:
    """A warp: its next instruction, the first cycle in which it may issue, and until when its counters are
    held. is_waiting: at a barrier.
    """

    at: int = 0
    ready: float = 0.0
    held: list[float] = field(default_factory=lambda: [0.0] * COUNTERS)
    is_waiting: bool = False


def cycles(loop: Sequence[Instruction], warps: int, wide: float, rounds: int = 4) -> float:
    """Returns the cycles of a round of a loop. wide: the turns of shared memory for a read of 16 bytes."""
    schedulers, shared, units = [0.0] * SCHEDULERS, 0.0, dict[tuple[int, str], float]()
    every, ends = [Warp() for _ in range(warps)], list[float]()
    while len(ends) < rounds:
        best, first, which = None, float("inf"), 0
        for number, warp in enumerate(every):
            if warp.is_waiting:
                continue
            its, own = loop[warp.at], number % SCHEDULERS
            begins = max(
                [warp.ready, schedulers[own], *(warp.held[n] for n in range(COUNTERS) if its.waits >> n & 1)]
            )
            begins = max(begins, units.get((own, its.kind), 0.0))
            if begins < first:
                best, first, which = warp, begins, number
        assert best is not None
        its, own = loop[best.at], which % SCHEDULERS
        schedulers[own], best.ready = first + 1, first + max(1, its.stall)
        units[own, its.kind] = first + UNITS.get(its.kind, 1.0)
        begun = first
        if its.kind in SHARED:
            begun = max(first, shared)
            shared = begun + (wide if its.name == "LDS.128" else 1.0)
        if its.result != NONE and not (its.is_conditional and its.kind == "LDG"):
            best.held[its.result] = max(best.held[its.result], begun + LATENCY.get(its.kind, OTHER))
        if its.operands != NONE:
            best.held[its.operands] = max(best.held[its.operands], begun + READ)
        best.at = (best.at + 1) % len(loop)
        if not best.at and which == 0:
            ends.append(first)
        if its.kind == "BAR":
            best.is_waiting = True
            if all(warp.is_waiting for warp in every):
                for warp in every:
                    warp.is_waiting, warp.ready = False, max(warp.ready, first + 12.6 + 2 * warps)
    return (ends[-1] - ends[0]) / (rounds - 1)


def counted(shape: TensorShape) -> tuple[float, float]:
    """Returns the cycles of a step of a loop of one block, and the instructions of a warp in it."""
    loop = innermost(instructions(assembled(code_of(shape).code).cubin))
    wide = 4.0
    if shape.is_plain:  # all lanes of a unit read the same of a memory, and weights of their own
        reads = sum(each.name == "LDS.128" for each in loop) / shape.schedule.ahead
        wide = 1 + 3 * min(1.0, shape.away / max(1.0, reads))
    ahead = shape.schedule.ahead
    return cycles(loop, shape.warps, wide) / ahead, len(loop) / ahead


def measured_loops() -> Iterator[tuple[str, TensorShape, float]]:
    """Yields loops of one block that were measured, and the microseconds of a step."""
    for each in measured(of_file(SAVED / "gpu-h100.json"), 128):
        if each.shape.schedule.exchange == "block" and each.time is not None:
            yield each.name, each.shape, each.time


def plain_loops() -> Iterator[tuple[str, TensorShape]]:
    """Yields loops of plain units, of one sequence of a block: the fastest one with some lanes for a unit."""
    for cell, (units, parts) in product(CELLS, WIDTHS):
        (plan,) = recurrence(cell, units).program.schedule_for("cuda-emulated").plans
        shapes = (each.shape for each in chosen(plan, 16, EmulatedDevice().facts) if each.shape.is_plain)
        wanted = (s for s in shapes if (s.schedule.rows, s.schedule.parts) == (1, parts))
        yield from ((f"{cell}-{units}", shape) for shape in islice(wanted, 1))


def report() -> Iterator[str]:
    """Yields lines of loops of one block that were measured, and of loops of plain units; then the facts of
    plain units that follow.
    """
    yield "| loop | instructions | cycles | counted, us | measured, us, or estimated |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    line = "| {} | {:.0f} | {:.0f} | {:.2f} | {:.2f} |".format
    factors, plain = list[float](), list[tuple[TensorShape, float]]()
    for name, shape, time in measured_loops():
        found, count = counted(shape)
        factors.append(time * CLOCK / found)
        yield line(name, count, found, found / CLOCK, time)
    factor = float(np.exp(np.mean(np.log(factors))))
    for name, shape in plain_loops():
        found, count = counted(shape)
        plain.append((shape, factor * found / CLOCK))
        time = step_time(shape, H100).total
        yield line(f"{name}-{shape.schedule.name}", count, found, found / CLOCK, time)
    yield f"measured by counted: {factor:.2f}, from {min(factors):.2f} to {max(factors):.2f}"
    facts = fitted_plain(plain)
    errors = [step_time(shape, replace(H100, plain=facts)).total / time for shape, time in plain]
    yield f"{facts}, from {min(errors):.2f} to {max(errors):.2f} of the count"
