"""Estimates of the time of a loop in chunks of steps (`chunked/form.py`), by facts of loops on tensor cores.

    reads      the way of vectors and values from main memory, and the instructions that load them
    products   of the tensor cores, with their operands
    solution   of what is written, step by step: a chain of instructions, or those of all later reads
    decays     their products; where each key has its own, also those of vectors of near steps
    barriers   of a block

Nothing of it was measured. Instructions are counted by the kernel's loops, for the busiest warp.
"""

from collections.abc import Iterable
from math import ceil, log2

from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.arrays.product_shares import DEPTH, TENSOR_WAYS
from stepnet.compiler.targets.cuda.chunked.form import (
    MOST_TILES,
    SOLVED,
    TILE_COLUMNS,
    ChunkForm,
    chunk_forms,
    tiles_together,
)
from stepnet.compiler.targets.cuda.chunked.sizes import TILE_ROWS
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.loops.lanes import LanePace
from stepnet.compiler.targets.cuda.stored import half_of
from stepnet.compiler.targets.cuda.tensor.costs import (
    EXACT,
    SCHEDULERS,
    TURN_READS,
    TimeByParts,
    instructions,
)
from stepnet.compiler.targets.cuda.tensor.facts import TensorFacts, facts_of
from stepnet.compiler.values.records import dataclass

MEETINGS = 5
"""The barriers of a chunk; one less without decays, and where nothing is solved; one more where each key has
its own decays. One less where the next chunk is loaded ahead, and one where its decays are multiplied then.
"""
MOVED = 14
"""The instructions that bring a number of a matrix from main memory to shared memory, with its places."""
LOADED, SHOWN = 5, 10
"""The same of a number that a step reads, and of one of an output, four at a time, as in machine code."""
WRITTEN = 3
"""The instructions of a step that store what it writes, as in machine code of a delta rule."""
ADDED = 4
"""The instructions that add up a number of two lanes, and choose which of them has it first."""
DECAYED = 5
"""The instructions for a product of decays, as in machine code."""
KEPT, TURN, UNROLLED = 4, 10, 300
"""The instructions that change a number in shared memory, with its places; those of a turn of the loop over k
besides operands, products and sums; and of how many a loop is written out instead. All as in machine code.
"""
SPLIT = {"float32": 4, "tf32": 4, "bfloat16": 3}
"""The instructions for a register of an operand, as in machine code: loads, and what makes of it what is
multiplied.
"""
SCALED = 2
"""The further instructions for a number of an operand that is multiplied by decays, a load and a product, as
in machine code: a register of bfloat16 has two numbers, which are multiplied before they are packed.
"""
ADDRESSES = 12
"""The instructions of a turn of a loop that find where its numbers lie."""
REGISTERS = 128
"""The registers of a thread, as ptxas has them for delta rules."""
BYTES = 4
"""The bytes of a number of float32."""
RESERVED = 1024
"""The bytes of shared memory that a GPU takes for itself, of each block."""


@dataclass(frozen=True)
class ChunkTime(TimeByParts):
    """The microseconds of a chunk of a block, by the resource that takes them."""

    reads: float
    products: float
    solution: float
    decays: float
    barriers: float


@dataclass(frozen=True)
class ChunkChoice:
    """Way to run a loop in chunks, with its time.

    microseconds: the time of a step. pace: of its groups of blocks. bound: the name of the resource that
    takes most of the time.
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
    used = min(resident(form.threads, form.shared, device), ceil(rows * form.blocks / device.multiprocessors))
    time, at_once = chunk_time(form, facts, used), used * device.multiprocessors
    alone = time.total / form.steps
    bytes_of_step = min(rows * form.blocks, at_once) * moved_bytes(form)
    step, bound = max((alone, time.bound), (bytes_of_step * facts.main, "main memory"))
    waves = ceil(rows * form.blocks / at_once)
    turn = TURN_READS * facts.read + form.keys * form.columns / form.threads * MOVED * used * facts.warp
    pace = LanePace(max(1, at_once // form.blocks), step * max(1.0, form.blocks / at_once), turn)
    return ChunkChoice(form, waves * step, pace, bound)


def resident(threads: int, shared: int, device: DeviceFacts) -> int:
    """Returns the number of blocks that fit on a multiprocessor at once.

    threads: the threads of a block. shared: its bytes of shared memory, to which `RESERVED` are added.
    """
    room = (device.shared + RESERVED) // (shared + RESERVED)
    return max(1, min(device.registers // (REGISTERS * threads), room))


def moved_bytes(form: ChunkForm) -> float:
    """Returns the bytes that a block reads and writes in main memory for a step. Blocks of one head read its
    vectors, and their decays, through the second cache.
    """
    rule = form.rule
    writes = rule.writes if form.first_write else ()
    vectors = [read.factor for read in form.reads] + [number for each in writes for number in each.keys]
    of_keys = form.keys * (stored_bytes(rule.body, vectors) + BYTES * rule.by_key) / form.parts
    values = [*filter(form.is_wide, form.early), *form.outputs]
    return of_keys + form.columns * (stored_bytes(rule.body, values) + BYTES * rule.by_value)


def stored_bytes(body: Net, numbers: Iterable[int]) -> int:
    """Returns the bytes of an element of each of some values: two of those that are stored in 16 bits."""
    return sum(BYTES // 2 if half_of(body, number) else BYTES for number in numbers)


def chunk_time(form: ChunkForm, facts: TensorFacts, used: int = 1) -> ChunkTime:
    """Estimates the time of a chunk of each of `used` blocks of a multiprocessor, which share its schedulers.
    That these may be at different parts of a chunk is not counted.
    """
    warps = form.threads // LANES
    instruction = facts.warp + facts.scheduler * used * warps / SCHEDULERS
    steps, reads, writes = form.steps, len(form.reads), form.writes
    values = steps * form.columns / form.threads
    loaded = steps * (form.vectors * form.keys + decays_of_step(form)) / form.threads
    loaded += form.wide_count * values
    late = late_instructions(form)
    loading = facts.read + instruction * LOADED * loaded * form.threads / (form.threads - form.loaders)
    own = instruction * values * (SHOWN + late)
    by_key, later = form.rule.by_key, form.later
    within = form.span // TILE_COLUMNS if by_key else MOST_TILES
    products = [
        tile_instructions(reads * steps, form.columns, form.keys, form.way, warps, scaled=by_key, paired=1),
        tile_instructions(
            reads * later, writes * later, form.keys, form.way, warps, within, scaled=by_key, paired=2
        ),
        tile_instructions((reads - form.solved) * steps, form.columns, writes * steps, form.way, warps),
        tile_instructions(form.keys, form.columns, writes * steps, form.way, warps, scaled=form.has_products),
    ]
    multiplying = instruction * sum(products)
    of_decays = DECAYED * steps * (facts.warp + facts.scheduler * used) if form.has_products else 0.0
    if by_key:
        of_decays = instruction * decay_instructions(form)
    if form.solved:
        warps = form.columns * form.solving / LANES
        issue = facts.warp + facts.scheduler * max(1.0, used * warps / SCHEDULERS)
        turn, groups = 1.25 * form.solved + form.rule.by_value, steps // SOLVED
        pairs = SOLVED * SOLVED * (groups / 2 + groups * (groups - 1) / 2 / form.solving)
        added = ADDED * steps * form.solved * (form.solving - 1)
        all_later = turn * writes * pairs + steps * (4 * form.solved + late + WRITTEN) + added
        solution = max(issue * all_later, facts.wait * steps * (late + 4))
    else:
        solution = instruction * values * late
    meetings = MEETINGS - (not form.has_products) - (not form.solved) + by_key
    if form.multiplies_ahead:
        of_decays, loading, meetings = 0.0, loading + of_decays, meetings - 1
    if form.ahead:
        loading, meetings = max(0.0, loading - solution), meetings - 1
    return ChunkTime(loading + own, multiplying, solution, of_decays, meetings * facts.barrier)


def decays_of_step(form: ChunkForm) -> int:
    """Returns the decays that a block loads for a step, where each key or each value has its own."""
    return (form.keys if form.rule.by_key else 0) + (form.columns if form.rule.by_value else 0)


def decay_instructions(form: ChunkForm) -> float:
    """Returns the instructions of the busiest warp for the decays of keys (`key_decays.py`)."""
    reads, writes, span, lanes = len(form.reads), form.writes, form.span, form.lanes
    products = ceil(form.decay_row * form.keys / form.threads) * form.decay_row * span * 2
    keys = form.keys / lanes
    turn = keys * (reads + 2 + (reads + 1) / 4) + reads * (2 * log2(lanes) + 4) + ADDRESSES
    # A warp has up to 15 turns, a scheduler's warps on average 9.
    within = ceil(writes * form.steps * lanes / form.threads) * 3 * span // 4 * turn
    scaled = ceil(form.steps // span * form.keys / form.threads) * span * (4 * (reads + writes) + 3)
    return products + within + scaled


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


def tile_instructions(
    rows: int,
    columns: int,
    depth: int,
    way: str,
    warps: int,
    most: int = MOST_TILES,
    scaled: bool = False,
    paired: int = 0,
) -> float:
    """Returns the instructions of the busiest of some warps for [rows, depth] @ [depth, columns].

    most: of tiles beside each other. scaled: whether the left side is multiplied by decays. paired: the sides
    of which two numbers are one load: none, the left one, or both.
    """
    if not rows:
        return 0.0
    below, beside = tiles_together(rows, columns, warps, most)
    tasks = ceil(rows // (TILE_ROWS * below) * (columns // (TILE_COLUMNS * beside)) / warps)
    registers, tiles = DEPTH // TENSOR_WAYS[way].depth, below * beside
    terms, numbers = 1 + len(TENSOR_WAYS[way].small), TENSOR_WAYS[way].depth // 8
    left, right = 4 * below * numbers, 2 * beside * numbers
    operands = (4 * below + 2 * beside) * SPLIT[way] + (left * SCALED if scaled else 0)
    operands -= (sum((left, right)[:paired]) + (left if paired and scaled else 0)) / 2
    each = registers * (operands + tiles * terms) + 4 * tiles
    turns = depth / DEPTH
    each += TURN if turns * each > UNROLLED else 0
    return tasks * (turns * each + 4 * tiles * KEPT)


def fastest(choices: Iterable[ChunkChoice], steps: int) -> ChunkChoice:
    """Returns the fastest of some ways, the fastest first, with a number of steps of a chunk."""
    return next(choice for choice in choices if choice.form.steps == steps)
