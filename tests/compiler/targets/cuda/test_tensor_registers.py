"""Registers of loops on tensor cores: what ptxas needs, in a table that this file writes when it is run."""

import json
import re
import subprocess
from itertools import product
from pathlib import Path

import pytest
from llvmlite.binding import llvm_version_info

from stepnet.compiler.plan import Plan
from stepnet.compiler.targets.cuda import (
    TensorChoice,
    TensorSchedule,
    TensorShape,
    TensorStep,
    assembled,
    chosen,
    fitted,
    ptxas,
    registers,
)
from stepnet.compiler.targets.cuda.tensor.numbers import Precision
from stepnet.compiler.targets.cuda.tensor.registers import limit
from tests.compiler.targets.cuda.tensor_loops import DEVICE, backward_plan, cell_plan

TABLE = Path(__file__).with_name("tensor_registers.json")
FEW = 16
"""The bytes that a kernel may spill: four registers of the 255."""
STEPS = ("gru", "lstm", "backward gru", "backward lstm", "minimal_gated_unit")
WIDTHS = (64, 128, 256, 512)
HALVES = ("bfloat16 gru", "bfloat16 lstm", "bfloat16 backward lstm", "float16 gru", "float16 backward gru")
"""Steps with weights of 16 bits."""
ROUNDED = ("rounded gru", "rounded lstm", "rounded backward lstm")
"""Steps of float32 whose products are rounded to bfloat16."""
TF32 = ("tf32 gru", "tf32 lstm", "tf32 backward gru", "tf32 backward lstm")
"""Steps of float32 whose products are rounded to tf32."""
PRECISION: dict[str, Precision] = {"rounded": "bfloat16", "tf32": "tf32"}
"""The precision of products, by the first word of a step."""
WIDE = ("gru", "lstm", "backward gru", "backward lstm", "minimal_gated_unit")
"""Steps of float32 that are also of 1024 units."""
NORMED = ("layer_normed", "backward layer_normed", "bfloat16 layer_normed")
CASES = [
    *product(STEPS, WIDTHS, (16,)),
    *product((*WIDE, *TF32), (1024,), (16,)),
    *product(NORMED, (64, 256), (16,)),
    *product((*HALVES, *ROUNDED), (128, 512, 1024), (16,)),
    *product((*WIDE, "layer_normed", "slstm", *TF32, *HALVES), (1024,), (64,)),
]
"""Steps, units and sequences."""
MADE_BY = "made by"
"""The row of the table that names the compilers: others give other registers."""
with_ptxas = pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")


def plan_of(name: str, width: int) -> Plan:
    """The plan of a cell, or of the loop that runs back through it, with weights of a dtype."""
    *words, cell = name.split()
    make = backward_plan if "backward" in words else cell_plan
    return make(cell, width, next((word for word in words if "float" in word), "float32"))


def best(name: str, width: int, sequences: int) -> list[TensorChoice]:
    """The fastest loop for 16 sequences, of each exchange; for more the fastest loop."""
    found = dict[str, TensorChoice]()
    numbers = PRECISION.get(name.split()[0], "float32")
    for choice in chosen(plan_of(name, width), sequences, DEVICE, numbers):
        found.setdefault(choice.shape.schedule.exchange, choice)
    return [*found.values()][: None if sequences == 16 else 1]


def row_of(name: str, width: int, sequences: int) -> str:
    """The name of a row of the table."""
    return f"{name}-{width}" if sequences == 16 else f"{name}-{width} x {sequences}"


def compilers() -> str:
    """The versions of LLVM and of ptxas."""
    said = subprocess.run([str(ptxas()), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V[\d.]+", said)
    return f"LLVM {'.'.join(map(str, llvm_version_info))}, ptxas {found[0] if found else said}"


def rows(name: str, width: int, sequences: int) -> dict[str, dict[str, int]]:
    """The report of ptxas on the fastest loop of each exchange, by its schedule."""
    found = dict[str, dict[str, int]]()
    for choice in best(name, width, sequences):
        made, shape = assembled(choice.code.code), choice.shape
        kept = shape.schedule.resident + shape.schedule.unsplit
        word = f"{shape.schedule.name}, {kept} of {shape.operands} operands in registers"
        sizes = {"registers": made.registers, "spilled": made.spilled, "shared": shape.shared_bytes}
        found[word] = sizes
    return found


@with_ptxas
@pytest.mark.long(every=24)
@pytest.mark.parametrize(("name", "width", "sequences"), CASES)
def test_operands_in_registers_leave_room_for_the_others(name: str, width: int, sequences: int):
    table, found = json.loads(TABLE.read_text()), rows(name, width, sequences)
    assert all(row["spilled"] <= FEW for row in found.values()), found
    told = table[row_of(name, width, sequences)]
    assert found.keys() == told.keys()
    if table[MADE_BY] == compilers():
        assert found == told


def test_the_estimate_of_registers_is_within_the_limit():
    step = TensorStep.of(cell_plan("gru", 256))
    for parts, blocks in ((1, 4), (2, 8), (4, 16)):
        shape = fitted(step, TensorSchedule(blocks, "tagged", chains=3, parts=parts, ahead=2), DEVICE)
        assert 0 < shape.schedule.resident < shape.operands
        assert registers(shape, DEVICE) <= limit(shape, DEVICE) == 255
    whole = TensorShape(step, TensorSchedule(16, "tagged", numbers="bfloat16", parts=4))
    assert fitted(step, whole.schedule, DEVICE).schedule.resident == whole.operands


if __name__ == "__main__":
    table = {row_of(*case): rows(*case) for case in CASES}
    table = {MADE_BY: compilers(), **table}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
