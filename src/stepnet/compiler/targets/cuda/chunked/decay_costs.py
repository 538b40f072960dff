"""Estimate of the time of the gradient of decays (`chunked/decay_form.py`), as that of chunks (`costs.py`).

Nothing of it was measured.
"""

from math import ceil

from stepnet.compiler.net.decays import decay_operands
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.targets.cuda.chunked.costs import (
    DECAYED,
    LOADED,
    MAIN_BYTES,
    MOVED,
    REGISTERS,
    tile_instructions,
)
from stepnet.compiler.targets.cuda.chunked.decay_form import DecayForm, form_of
from stepnet.compiler.targets.cuda.chunked.form import THREADS, WARPS
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.tensor.costs import SCHEDULERS
from stepnet.compiler.targets.cuda.tensor.facts import facts_of

MEETINGS = 7
"""The barriers of a chunk, in both passes."""
READS = 6
"""The reads of main memory that a chunk waits for: vectors in both passes, and dS as it is multiplied."""
WAITS = 3
"""The instructions of a turn of a sum that wait for one another."""


def time_of_decays(net: Net, node: Node, rows: int, device: DeviceFacts, way: str) -> float:
    """Estimates the microseconds of a step of some sequences, of a node `decay_gradient` of a net.

    way: how float32 is multiplied.
    """
    reads, ends = node.attributes["reads"], node.attributes["ends"]
    operands = decay_operands([net.type_of(number) for number in node.inputs], reads, ends)
    heads, form = form_of(operands, way, device.shared)
    assert form is not None, "the gradient does not fit, which `TrainedChunks` refuses"
    return decay_time(form, rows, heads, device)


def instructions_of_key(form: DecayForm) -> float:
    """Returns the instructions of a chunk for the thread of a key (`chunked/decays_of_keys.py`)."""
    reads, writes, steps = form.reads, form.writes, form.steps
    of_pair = 3 + reads * (2 + 2 * writes)
    return of_pair * steps * (steps - 1) / 2 + steps * (3 * (reads + writes) + 4)


def decay_time(form: DecayForm, rows: int, heads: int, device: DeviceFacts) -> float:
    """Estimates the microseconds of a step of some sequences."""
    facts = facts_of(device)
    steps, keys, values, reads, writes = form.steps, form.keys, form.values, form.reads, form.writes
    instruction = facts.warp + facts.scheduler * WARPS / SCHEDULERS
    vectors = (2 * reads + writes) * (keys + values) + (2 * keys if form.by_key else 0)
    loaded = (LOADED * vectors * steps + MOVED * 2 * keys * values) / THREADS
    products = [
        (keys, values, reads * steps),
        (keys, values, writes * steps),
        *[(steps, steps, width) for width in ([values] if form.by_key else [keys, values])]
        * (reads * writes),
        *[(steps, keys, values)] * (reads + writes),
    ]
    multiplying = sum(tile_instructions(*each, form.way, WARPS) for each in products)
    chains = facts.wait * WAITS * (keys + values + 2 * steps)
    chains += 2 * DECAYED * steps * (facts.warp + facts.scheduler)
    if form.by_key:
        warps = max(1.0, keys / LANES / SCHEDULERS)
        of_threads = (facts.warp + facts.scheduler * warps) * instructions_of_key(form)
        chains = of_threads + facts.wait * WAITS * values
    alone = READS * facts.read + instruction * (loaded + multiplying) + chains + MEETINGS * facts.barrier
    together = max(1, min(device.registers // (REGISTERS * THREADS), device.shared // form.shared))
    used = min(together, ceil(rows * heads / device.multiprocessors))
    at_once = used * device.multiprocessors
    moved = min(rows * heads, at_once) * 4 * (vectors + 2 * keys * values / steps)
    step = max((1 + facts.crowd * (used - 1)) * alone / steps, moved / MAIN_BYTES)
    return ceil(rows * heads / at_once) * step
