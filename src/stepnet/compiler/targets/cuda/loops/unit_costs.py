"""Estimates of the time of a loop whose units have fibers (`units.py`), and with them the choice of its form.

Instructions are counted by the elements of a thread; the numbers of each kind are those of the machine code
by ptxas. Nothing of it was measured.
"""

from collections.abc import Collection
from itertools import product
from math import ceil

from stepnet.compiler.net.ir import Node
from stepnet.compiler.plan.apart import UnitFibers
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.loops.lanes import LanePace
from stepnet.compiler.targets.cuda.loops.unit_form import THREADS, UnitForm, is_product, lanes_of, uses_of
from stepnet.compiler.targets.cuda.tensor.costs import EXACT, SCHEDULERS, TURN_READS, instructions
from stepnet.compiler.targets.cuda.tensor.facts import facts_of
from stepnet.compiler.values.records import dataclass

EXPONENTIAL, ROUNDED, SHUFFLE = 6, 1, 2
"""The instructions of an exponential by the GPU's power of 2; of one of a product without correction; of a
number from another lane, with its sum.
"""
POWER = 8
"""The cycles for which a power of 2 of a warp takes its unit of a scheduler."""
PIECE, STEP = 4, 10
"""The numbers that are read at once, where they lie side by side; the instructions of a step besides."""
BESIDE = 64
"""The registers of a thread besides those of memories, twice, and of the inputs of steps ahead."""
AHEAD = 1, 2, 4, 8
"""The steps whose inputs may be read ahead."""
RESIDENT, SQUEEZED = 8, 1.3
"""The blocks for which a multiprocessor may be asked to have room, and by what factor the registers that a
thread takes by itself may be more than it then has: ptxas spills none of Mamba with 16 states, 164 in 128.
"""
MOST_REGISTERS = 254
"""The most registers of a thread by the estimate."""


@dataclass(frozen=True)
class UnitChoice:
    """A way to run units, with estimates.

    microseconds: the time of a step of all sequences. bound: the name of the resource that takes them.
    registers: the number of registers of a thread.
    """

    form: UnitForm
    microseconds: float
    bound: str
    registers: int
    pace: LanePace


def is_exponential(node: Node) -> bool:
    """Tells whether a node is an exponential that is written by the GPU's power of 2."""
    return node.operation == "exp" and node.type.dtype == "float32"


def unit_instructions(form: UnitForm, sequences: Collection[int]) -> float:
    """Returns the instructions of a thread for a step of a unit. sequences: the inputs that steps read."""
    body, total = form.fibers.body, float(STEP)
    uses, exponential = uses_of(body), ROUNDED if form.is_rounded else EXPONENTIAL
    for number, node in enumerate(body.nodes):
        if len(node.types) != 1:
            continue
        own = form.own(number)
        is_added = node.operation in ("add", "sum") and any(is_product(body, n, uses) for n in node.inputs)
        if node.kind == "pointwise":
            total += (
                own * (exponential if is_exponential(node) else instructions(node.operation, EXACT))
                - own * is_added
            )
        elif node.kind == "reduce":
            terms = form.own(node.inputs[0]) // max(1, own)
            total += own * terms * (1 - is_added) + own * SHUFFLE * (form.lanes // 2)
        elif node.operation == "input" and number in sequences:
            total += 1 + ceil(own / PIECE if own % PIECE == 0 else own)
    return total


def registers(form: UnitForm, sequences: Collection[int]) -> int:
    """Estimates the registers of a thread. sequences: the inputs that steps read."""

    def words(number: int) -> int:
        """Returns the registers of the elements of a value that a thread has."""
        return form.own(number) * max(1, form.fibers.body.type_of(number).itemsize // 4)

    memories = sum(map(words, form.fibers.memories))
    return BESIDE + 2 * memories + form.ahead * (1 + sum(map(words, sequences)))


def unit_choice(form: UnitForm, sequences: Collection[int], rows: int, device: DeviceFacts) -> UnitChoice:
    """Estimates the time of a way to run units. sequences: the inputs of steps. rows: the sequences."""
    facts, group = facts_of(device), form.blocks
    kept = min(registers(form, sequences), device.registers // (form.resident * THREADS))
    together = max(1, device.registers // (kept * THREADS))
    blocks = ceil(rows / form.rows) * group
    at_once = together * device.multiprocessors
    warps = min(together, ceil(blocks / device.multiprocessors)) * THREADS / LANES / SCHEDULERS
    instruction = facts.warp + facts.scheduler * max(1.0, warps)
    body = form.fibers.body
    powers = sum(form.own(n) for n, node in enumerate(body.nodes) if is_exponential(node))
    computed, bound = max(
        (instruction * unit_instructions(form, sequences), "instructions"),
        (POWER * facts.scheduler * max(1.0, warps) * powers, "powers of 2"),
    )
    # The inputs of a step take the place of those of an earlier one, behind its end.
    waited = facts.read / max(1, form.ahead - 1)
    step = max(computed, waited) if form.ahead > 1 else computed + waited
    bound = "waits for main memory" if waited > computed else bound
    pace = LanePace(max(1, at_once // group), step * max(1.0, group / at_once), TURN_READS * facts.read)
    return UnitChoice(form, ceil(blocks / at_once) * step, bound, kept, pace)


def unit_choices(
    fibers: UnitFibers, sequences: Collection[int], rows: int, device: DeviceFacts, is_rounded: bool = False
) -> list[UnitChoice]:
    """Returns the ways to run units whose registers suffice, the fastest first: all have the same bits."""
    every = product(lanes_of(fibers), AHEAD, (1, RESIDENT), (is_rounded,))
    forms = [UnitForm(fibers, *each) for each in every]
    squeezed = SQUEEZED * (device.registers // (RESIDENT * THREADS))
    most = {1: MOST_REGISTERS, RESIDENT: min(MOST_REGISTERS, squeezed)}
    fitting = [
        form
        for form in forms
        if registers(form, sequences) <= most[form.resident] or form.ahead == form.resident == 1
    ]
    found = [unit_choice(form, sequences, rows, device) for form in fitting]
    return sorted(found, key=lambda each: each.microseconds)
