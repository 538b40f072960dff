"""Translates a kernel to PTX, and PTX to the machine code of a GPU, with what ptxas says of it."""

import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from bench.gpu.device_functions import GPU
from bench.gpu.shape import Shape
from bench.gpu.writing import written
from stepnet.compiler.targets.cpu.machine.room import load_llvm

PROCESSOR = "sm_90a"
TRIPLE = "nvptx64-nvidia-cuda"
SHARED_LIMIT = 232448
"""The bytes of shared memory that a block of an H100 can have."""
REGISTERS = 65536
OTHERS = {8: 72, 4: 112}
"""The registers of a thread that are not weights, as a first guess, by the registers of an operand."""


@dataclass(frozen=True)
class Assembled:
    """A kernel as machine code. registers, spilled: what ptxas says of a thread; spilled is in bytes."""

    shape: Shape
    ptx: str
    cubin: bytes
    registers: int
    spilled: int


def load_all_targets() -> None:
    """Loads LLVM with its code generators for all processors and GPUs."""
    load_llvm()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def linked(texts: list[str], machine: Any, triple: str, only_inside: frozenset[str] = frozenset()) -> Any:
    """Links modules of LLVM code into one and optimises it. only_inside: functions that nobody else calls."""
    first, *others = (
        f'target triple = "{triple}"\n'
        + "\n".join(line for line in text.splitlines() if line[:6] != "target")
        for text in texts
    )
    module = llvm.parse_assembly(first)
    for other in others:
        module.link_in(llvm.parse_assembly(other))
    for function in module.functions:
        if function.name in only_inside:
            function.linkage = "internal"
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return module


def translated(shape: Shape) -> str:
    """Returns the PTX of a kernel."""
    load_all_targets()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=PROCESSOR, features="+ptx83", opt=3)
    bounds = f'"nvvm.reqntid"="{shape.threads}" "nvvm.minctasm"="1"'
    if shape.schedule.exchange == "cluster":
        bounds += f' "nvvm.cluster_dim"="{shape.schedule.blocks}"'
    text = written(shape).replace('define void @"kernel"', 'define ptx_kernel void @"kernel"')
    text = text.replace('(ptr %".1")', f'(ptr %".1") {bounds}', 1)
    functions = frozenset(re.findall(r"^define .*?@(\w+)\(", GPU, re.MULTILINE))
    return machine.emit_assembly(linked([text, GPU], machine, TRIPLE, functions))


def assembled(shape: Shape) -> Assembled:
    """Returns a kernel as machine code. Raises `RuntimeError` with ptxas' own words if it refuses the PTX."""
    ptx = translated(shape)
    with tempfile.TemporaryDirectory() as folder:
        source, code = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        said = subprocess.run(
            ["ptxas", "-v", f"-arch={PROCESSOR}", str(source), "-o", str(code)],
            capture_output=True,
            text=True,
        )
        if said.returncode:
            raise RuntimeError(f"ptxas refuses the PTX of {shape.schedule}: {said.stderr}")
        registers = re.search(r"Used (\d+) registers", said.stderr)
        spilled = re.search(r"(\d+) bytes spill stores", said.stderr)
        assert registers, said.stderr
        assert spilled, said.stderr
        return Assembled(shape, ptx, code.read_bytes(), int(registers[1]), int(spilled[1]))


def fitted(shape: Shape) -> Assembled:
    """Returns a kernel with as many operands in registers as do not spill, found by trial.

    Raises `ValueError` if then those in shared memory do not fit there.
    """
    most = min(255, REGISTERS // (shape.threads) // 8 * 8)
    each = 8 if shape.schedule.terms == 3 else 4
    resident = min(shape.operands, max(0, most - OTHERS[each] - 8 * shape.schedule.chains) // each)
    while True:
        sized = replace(shape, schedule=replace(shape.schedule, resident=resident))
        if sized.shared_bytes > SHARED_LIMIT:
            raise ValueError(
                f"{sized.schedule.name}: {shape.operands - resident} operands of {shape.warps} warps are "
                f"{sized.shared_bytes} bytes of shared memory; a block has {SHARED_LIMIT}"
            )
        found = assembled(sized)
        if not found.spilled or not resident:
            return found
        resident = max(0, resident - max(2, found.spilled // 4 // each + 1))
