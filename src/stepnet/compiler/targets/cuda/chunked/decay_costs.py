"""Estimate of the time of the gradients of a matrix that decays (`chunked/decay_form.py`), as that of chunks
(`costs.py`).

Nothing of it was measured.
"""

from collections.abc import Sequence
from dataclasses import fields
from math import ceil

from stepnet.compiler.net.decays import decay_operands
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.targets.cuda.chunked.costs import (
    DECAYED,
    LOADED,
    REGISTERS,
    SHOWN,
    tile_instructions,
)
from stepnet.compiler.targets.cuda.chunked.decay_form import DecayForm, form_of
from stepnet.compiler.targets.cuda.chunked.form import (
    THREADS,
    TILE_COLUMNS,
    WARPS,
    tiles_together,
)
from stepnet.compiler.targets.cuda.chunked.sizes import TILE_ROWS
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.tensor.costs import SCHEDULERS, TimeByParts
from stepnet.compiler.targets.cuda.tensor.facts import facts_of
from stepnet.compiler.values.records import dataclass

MEETINGS, MEETINGS_OF_KEYS = 9, 7
"""The barriers of a chunk, in both passes."""
READS, FURTHER = 2, 4
"""The reads that a chunk waits for: vectors in both passes; dS, where it is read as it is multiplied."""
FETCHED = 0.4
"""The time of such a read by that of one of main memory: one of the second cache, 300 cycles of 750, where
another chunk before has brought it.
"""
FETCHES = 30
"""The instructions of a warp that bring an array of the next chunk there."""
KEPT_FOUR = 3
"""The instructions that store a number of a matrix in main memory, four side by side."""
GRADIENT, MASKED = 22, 6
"""The further instructions of a number of a gradient of heads, which is checked and stored by itself, and of
one of N, which is stored in two places or is 0: as in machine code of 64 keys, 2 reads and 1 write.
"""
WAITS = 3
"""The instructions of a turn of a sum that wait for one another."""


@dataclass(frozen=True)
class DecayTime(TimeByParts):
    """The microseconds of a chunk of a block, by the resource that takes them.

    reads: waits for main memory. moves: the instructions of loads and stores.
    """

    reads: float
    moves: float
    products: float
    chains: float
    barriers: float


def time_of_decays(net: Net, node: Node, rows: int, device: DeviceFacts, way: str) -> float:
    """Estimates the microseconds of a step of some sequences, of a node `matrix_gradients` of a net.

    way: how float32 is multiplied.
    """
    heads, form = form_of_node(net, node, device, way)
    return decay_time(form, rows, heads, device)


def parts_of_decays(net: Net, node: Node, rows: int, device: DeviceFacts, way: str) -> dict[str, float]:
    """Estimates the parts of that time, by name: the bytes that are moved, if nothing else took time, and the
    parts of `DecayTime`, one after another.
    """
    heads, form = form_of_node(net, node, device, way)
    parts, turns = decay_parts(form, device), ceil(rows * heads / device.multiprocessors)
    each = {field.name: turns * getattr(parts, field.name) / form.steps for field in fields(parts)}
    return {"bytes": decay_bytes(form, rows * heads) * facts_of(device).main, **each}


def form_of_node(net: Net, node: Node, device: DeviceFacts, way: str) -> tuple[int, DecayForm]:
    """Returns the number of heads, and the kernel of a node `matrix_gradients`."""
    reads, ends = node.attributes["reads"], node.attributes["ends"]
    operands = decay_operands([net.type_of(number) for number in node.inputs], reads, ends)
    heads, form = form_of(operands, way, device.shared)
    assert form is not None, "the gradient does not fit, which `TrainedChunks` refuses"
    return heads, form


def instructions_of_key(form: DecayForm) -> float:
    """Returns the instructions of a chunk for the thread of a key (`chunked/decays_of_keys.py`); those of the
    gradients of the writes run beside them.
    """
    reads, writes, steps = form.reads, form.writes, form.steps
    of_pair = max(2 + reads * (3 + 2 * writes), 1 + reads + writes * (1 + 2 * reads))
    return of_pair * steps * (steps - 1) / 2 + steps * (3 * (reads + writes) + 4)


def reads_of(form: DecayForm) -> int:
    """Returns the number of reads that a chunk waits for."""
    return READS + (0 if form.has_after else FURTHER)


def beside_instructions(products: Sequence[tuple[int, int, int]], way: str) -> float:
    """Returns the instructions of the busiest warp for products that run beside each other: each begins with
    the warps behind those that the one before has (`TileWriter.write`).
    """
    warps, busy = [0.0] * WARPS, 0
    for rows, columns, depth in products:
        below, beside = tiles_together(rows, columns)
        tasks = rows // (TILE_ROWS * below) * (columns // (TILE_COLUMNS * beside))
        of_task = tile_instructions(rows, columns, depth, way, WARPS) / ceil(tasks / WARPS)
        for task in range(tasks):
            warps[(busy + task) % WARPS] += of_task
        busy += tasks
    return max(warps)


def decay_parts(form: DecayForm, device: DeviceFacts) -> DecayTime:
    """Estimates the time of a chunk of a block."""
    facts = facts_of(device)
    steps, keys, values, reads, writes = form.steps, form.keys, form.values, form.reads, form.writes
    instruction = facts.warp + facts.scheduler * WARPS / SCHEDULERS
    moved = LOADED if form.has_after else 0
    loaded = (LOADED * vectors_of(form) * steps + (moved + KEPT_FOUR) * keys * values) / THREADS + 2 * FETCHES
    products = [(keys, values, reads * steps), (keys, values, writes * steps)]
    of_values = [(steps, steps, values)] * (reads * writes)
    if form.by_key:
        beside = [*of_values, *[(steps, keys, values)] * (reads + writes)]
        warps = max(1.0, 2 * keys / LANES / SCHEDULERS)
        of_threads = (facts.warp + facts.scheduler * warps) * instructions_of_key(form)
        chains, meetings = of_threads + facts.wait * WAITS * values, MEETINGS_OF_KEYS
    else:
        beside = [(steps, steps, keys)] * (reads * writes)
        products += of_values
        products += [(steps, keys, values + writes * steps)] * reads
        products += [(steps, keys, values + reads * steps)] * writes
        chains, meetings = facts.wait * WAITS * (keys + values + 2 * steps), MEETINGS
        chains += 2 * DECAYED * steps * (facts.warp + facts.scheduler)
        loaded += GRADIENT * (reads + writes) * keys * steps / THREADS
        loaded += MASKED * reads * writes * steps * steps / THREADS
    loaded += SHOWN * form.gradients * steps / THREADS
    multiplying = sum(
        tile_instructions(*each, form.way, WARPS, scaled=place < 2 and not form.by_key)
        for place, each in enumerate(products)  # the first two, of dS and of S, are of decayed vectors
    )
    multiplying += beside_instructions(beside, form.way)
    waits = reads_of(form) * FETCHED * facts.read
    return DecayTime(waits, instruction * loaded, instruction * multiplying, chains, meetings * facts.barrier)


def vectors_of(form: DecayForm) -> int:
    """Returns the number of numbers of vectors and decays that both passes load for a step."""
    both = (2 * form.reads + form.writes) * (form.keys + form.values)
    return both + (2 * form.keys if form.by_key else 0)


def decay_time(form: DecayForm, rows: int, heads: int, device: DeviceFacts) -> float:
    """Estimates the microseconds of a step of some sequences."""
    facts = facts_of(device)
    together = max(1, min(device.registers // (REGISTERS * THREADS), device.shared // form.shared))
    used = min(together, ceil(rows * heads / device.multiprocessors))
    at_once = used * device.multiprocessors
    moved = decay_bytes(form, min(rows * heads, at_once))
    alone = decay_parts(form, device).total / form.steps
    step = max((1 + facts.crowd * (used - 1)) * alone, moved * facts.main)
    return ceil(rows * heads / at_once) * step


def decay_bytes(form: DecayForm, blocks: int) -> float:
    """Returns the bytes that some blocks move in main memory for a step."""
    return blocks * 4 * (vectors_of(form) + form.gradients + 2 * form.keys * form.values / form.steps)
