"""Registers of loops that groups of blocks share: what ptxas needs, in a table that this file writes when it
is run.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stepnet as sn
from bench.gpu.generation import language
from stepnet.compiler.targets.cuda import LOOPS, LoopCode, assembled, grid_code, grid_form, ptxas
from stepnet.compiler.targets.cuda.loops.others import other_loop
from tests.compiler.targets.cuda.tensor_loops import DEVICE, cell_plan
from tests.compiler.targets.cuda.test_tensor_registers import MADE_BY, compilers

TABLE = Path(__file__).with_name("grid_registers.json")


def generated(symbols: int, rows: int, **options: Any) -> LoopCode:
    """The loop of a generation by a GRU of 512 units."""
    LOOPS.clear()
    language(symbols).explain("cuda", rows=rows, max_steps=100, **options)
    return list(LOOPS.values())[-1].loop


def without_tensor_cores(width: int) -> LoopCode:
    """The loop of a GRU whose products are sums of plain units."""
    form = grid_form(cell_plan("gru", width), 4, DEVICE)
    assert form is not None
    return grid_code(form)


CASES: dict[str, Callable[[], LoopCode]] = {
    "gru 2048": lambda: other_loop(cell_plan("gru", 2048), 16, DEVICE, "too wide").loop,
    "gru 512, plain units": partial(without_tensor_cores, 512),
    "highest of 256": partial(generated, 256, 16),
    "highest of 32000": partial(generated, 32000, 16),
    "highest of 32000, 64 sequences": partial(generated, 32000, 64),
    "drawn of 256": partial(generated, 256, 16, sampler=sn.sampling()),
    **{f"{beams} beams": partial(generated, 64, 16, beams=beams) for beams in (8, 16, 32, 64)},
}
"""A loop of each kind: its weights kept or read at each step, its highest numbers found by one block or by
all, and of beams.
"""


def row(name: str) -> dict[str, int | str]:
    """The report of ptxas on a loop."""
    loop = CASES[name]()
    made = assembled(loop.code)
    sizes = {"registers": made.registers, "spilled": made.spilled, "shared": loop.code.shared}
    return {"schedule": loop.schedule, **sizes}


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.long(every=10)
@pytest.mark.parametrize("name", CASES)
def test_loops_of_groups_keep_all_in_registers(name: str) -> None:
    table, found = json.loads(TABLE.read_text()), row(name)
    assert found["spilled"] == 0
    assert found["schedule"] == table[name]["schedule"]
    assert found["shared"] == table[name]["shared"] <= DEVICE.shared
    if table[MADE_BY] == compilers():
        assert found == table[name]


if __name__ == "__main__":
    rows = {name: row(name) for name in CASES}
    TABLE.write_text(json.dumps({MADE_BY: compilers(), **rows}, indent=1) + "\n")
