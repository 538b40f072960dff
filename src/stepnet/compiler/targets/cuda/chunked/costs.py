"""Estimates of the time of a loop in chunks of steps (`chunked/form.py`), by facts of loops on tensor cores.

    reads      the way of vectors and values from main memory, and the instructions that load them
    products   of the tensor cores, with their operands
    solution   of what is written, step by step: a chain of instructions, or those of all later reads
    barriers   of a block

Nothing of it was measured. Instructions are counted by the kernel's loops, for the busiest warp.
"""

from collections.abc import Iterable
from math import ceil

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.arrays.product_shares import DEPTH, TENSOR_WAYS
from stepnet.compiler.targets.cuda.chunked.form import (
    THREADS,
    TILE_COLUMNS,
    WARPS,
    ChunkForm,
    chunk_forms,
    tiles_together,
)
from stepnet.compiler.targets.cuda.chunked.sizes import TILE_ROWS
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.loops.lanes import LanePace
from stepnet.compiler.targets.cuda.tensor.costs import (
    EXACT,
    SCHEDULERS,
    TURN_READS,
    TimeByParts,
    instructions,
)
from stepnet.compiler.targets.cuda.tensor.facts import TensorFacts, facts_of
from stepnet.compiler.values.records import dataclass

MEETINGS = 7
"""The barriers of a chunk; one less without decays."""
MOVED = 14
"""The instructions that bring a number from main memory to shared memory, or back, with its places."""
KEPT = 8
"""The instructions that change a number in shared memory, with its places."""
SPLIT = {"float32": 5, "tf32": 4, "bfloat16": 3}
"""The instructions for a register of an operand: loads, and what makes of it what is multiplied."""
REGISTERS = 128
"""The registers of a thread, as ptxas has them for delta rules."""
MAIN_BYTES = 2.6e6
"""The bytes that an H100 reads or writes in main memory in a microsecond, as measured of moves."""


@dataclass(frozen=True)
class ChunkTime(TimeByParts):
    """The microseconds of a chunk of a block, by what takes them."""

    reads: float
    products: float
    solution: float
    barriers: float


@dataclass(frozen=True)
class ChunkChoice:
    """Way to run a loop in chunks, with its time.

    microseconds: of a step. pace: of its groups of blocks. bound: what takes most of the time.
    """

    form: ChunkForm
    microseconds: float
    pace: LanePace
    bound: str

    @property
    def reason(self) -> str:
        """Why it was chosen, for people."""
        form = self.form
        values = f", each with {form.columns} values of a head" if form.parts > 1 else ""
        blocks = (
            f"{form.blocks} blocks of a sequence{values}" if form.blocks > 1 else "a block for a sequence"
        )
        numbers = "" if form.way == "float32" else f", in {form.way}"
        return (
            f"{form.steps} steps at a time as products of matrices on tensor cores{numbers}; {blocks}; "
            f"{self.microseconds:.3f} us for a step, most of it {self.bound}"
        )


def chunk_choices(plan: Plan, rows: int, device: DeviceFacts, way: str) -> list[ChunkChoice] | str:
    """Returns the ways to run a plan's loop in chunks, the fastest first; or why it cannot be run so."""
    forms = chunk_forms(plan, device, way)
    if isinstance(forms, str):
        return forms
    return sorted((chosen(form, rows, device) for form in forms), key=lambda choice: choice.microseconds)


def chosen(form: ChunkForm, rows: int, device: DeviceFacts) -> ChunkChoice:
    """Returns a way to run a loop, with its time for some sequences."""
    facts = facts_of(device)
    time = chunk_time(form, facts)
    together = max(1, min(device.registers // (REGISTERS * THREADS), device.shared // form.shared))
    used = min(together, ceil(rows * form.blocks / device.multiprocessors))
    at_once = used * device.multiprocessors
    crowd = 1 + facts.crowd * (used - 1)
    alone = crowd * time.total / form.steps
    bytes_of_step = min(rows * form.blocks, at_once) * moved_bytes(form)
    step, bound = max((alone, time.bound), (bytes_of_step / MAIN_BYTES, "main memory"))
    waves = ceil(rows * form.blocks / at_once)
    turn = crowd * (TURN_READS * facts.read + form.keys * form.columns / THREADS * MOVED * facts.warp)
    pace = LanePace(max(1, at_once // form.blocks), step * max(1.0, form.blocks / at_once), turn)
    return ChunkChoice(form, waves * step, pace, bound)


def moved_bytes(form: ChunkForm) -> float:
    """Returns the bytes that a block reads and writes in main memory for a step. Blocks of one head read its
    vectors through the second cache.
    """
    return 4 * (form.vectors * form.keys / form.parts + (len(form.wide) + 1) * form.columns)


def chunk_time(form: ChunkForm, facts: TensorFacts) -> ChunkTime:
    """Estimates the time of a chunk of a block that has a multiprocessor for itself."""
    instruction = facts.warp + facts.scheduler * WARPS / SCHEDULERS
    steps, reads, writes = form.steps, len(form.reads), form.writes
    values = steps * form.columns / THREADS
    loaded = form.vectors * steps * form.keys / THREADS + len(form.wide) * values
    late = late_instructions(form)
    own = instruction * (MOVED * loaded + values * (MOVED + late))
    products = [
        (reads * steps, form.columns, form.keys),
        (reads * steps, writes * steps, form.keys),
        ((reads - form.solved) * steps, form.columns, writes * steps),
        (form.keys, form.columns, writes * steps),
    ]
    multiplying = instruction * sum(tile_instructions(*each, form.way) for each in products)
    decays = 0.0
    if form.rule.decay:
        decays = steps * 4 * facts.wait
    if form.solved:
        warps = form.columns / LANES
        issue = facts.warp + facts.scheduler * max(1.0, warps / SCHEDULERS)
        all_later = 1.25 * form.solved * writes * steps * steps / 2 + steps * (4 * form.solved + late + KEPT)
        solution = max(issue * all_later, facts.wait * steps * (late + 4))
    else:
        solution = instruction * values * (late + KEPT)
    meetings = MEETINGS if form.rule.decay else MEETINGS - 1
    return ChunkTime(facts.read + own, multiplying, solution + decays, meetings * facts.barrier)


def late_instructions(form: ChunkForm) -> float:
    """Returns the elementwise instructions of a step that depend on the matrix, for each value."""
    body, late = form.rule.body, {read.number for read in form.reads}
    total = 0.0
    for number, node in enumerate(body.nodes):
        if (
            number not in late
            and not late.isdisjoint(node.inputs)
            and node.type.size <= form.rule.value_count
        ):
            late.add(number)
            total += instructions(node.operation, EXACT) if node.kind == "pointwise" else 0.0
    return total


def tile_instructions(rows: int, columns: int, depth: int, way: str) -> float:
    """Returns the instructions of the busiest warp for a product [rows, depth] @ [depth, columns]."""
    if not rows:
        return 0.0
    below, beside = tiles_together(rows, columns)
    tasks = ceil(rows // (TILE_ROWS * below) * (columns // (TILE_COLUMNS * beside)) / WARPS)
    registers, tiles = DEPTH // TENSOR_WAYS[way].depth, below * beside
    terms = 1 + len(TENSOR_WAYS[way].small)
    each = registers * ((4 * below + 2 * beside) * SPLIT[way] + tiles * terms) + 4 * tiles
    return tasks * (depth / DEPTH * each + 4 * tiles * KEPT)


def fastest(choices: Iterable[ChunkChoice], steps: int) -> ChunkChoice:
    """Returns the fastest of some ways, the fastest first, with a number of steps of a chunk."""
    return next(choice for choice in choices if choice.form.steps == steps)
