"""Estimates of the time of a step on tensor cores, from the instructions of a warp and the rates of a device.

    loop         the loop itself
    products     products of the tensor cores, with their operands: instructions of the busiest scheduler, or
                 the tensor cores themselves, or the reads from shared memory or from the second cache
    elementwise  other instructions, and those that wait for one another
    exchange     barriers, and the way of values to other blocks
    reads        of values of the step, where nothing else takes as long

Values that are read from the second cache as they are multiplied are read ahead of the products before them,
so that the longer of both counts, and the first of these reads besides. By plain units a step waits besides
for shared memory and for shuffles, which are in its exchanges. The facts of devices are in `facts.py`.
"""

from dataclasses import fields
from math import ceil, log2

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.loops.lanes import LanePace
from stepnet.compiler.targets.cuda.tensor.facts import H100, TensorFacts
from stepnet.compiler.targets.cuda.tensor.shape import TensorShape
from stepnet.compiler.targets.cuda.tensor.step import TensorStep
from stepnet.compiler.values.records import dataclass

PACKED_READ = 6
"""The instructions that read an operand of values that is kept in bfloat16, as counted."""
ELEMENTARY = "sigmoid", "tanh", "exp", "expm1", "log", "log1p", "erf", "sin", "cos", "tan", "power"
EXACT, APPROXIMATE = 25.0, 9.0
"""The instructions of an elementary function, exact or by approximate instructions."""
FUNCTIONS = {"exact": EXACT, "short": 14.0, "fast": APPROXIMATE}
"""The instructions of one by the functions of a schedule, as fitted; those of "short" are counted."""
DIVIDED = "divide", "sqrt"
DIVISIONS = {"exact": 11.0, "short": 3.0, "fast": 11.0}
"""The instructions of a quotient or a root by the functions of a schedule, as counted in machine code."""
MOVED = 6
"""The instructions that read or write an element in main memory."""
WIDE = 4
"""The turns of shared memory for a read of 16 bytes by each thread of a warp."""
PLAIN_READ, PLAIN_SHUFFLE = 2.0, 3.0
"""The instructions of plain units for a read of four numbers, and to hand on a sum, with its addition."""
CYCLE = 1 / 1980
"""The microseconds of a cycle, of the H100 that was measured."""
COUNTED = 1.11
"""The time of loops of one block that were measured, by the cycles that are counted of them."""
PLAIN_READS, PLAIN_SHUFFLES = 66.0, 28.0
"""The cycles of a write and a read of shared memory, 33 each, and of a shuffle that hands on a sum, with its
addition. Known latencies: nothing of it was measured in a loop.
"""
MEETING, MEETING_WARP = 12.6, 2.0
"""The cycles of a barrier of a block, and more for each warp, as measured of barriers alone, 21 for 4 warps
and 29 for 8. A loop without its two barriers took 15 ns less for each. The fitted time of a barrier is that
of all else that tensor cores wait for too.
"""
BLOCK_ROWS = 4
"""The sequences of a block that does without tensor cores."""
BLOCK_READS, CACHE_READS = 60e3, 5.5e6
"""The bytes of weights in a microsecond that a block reads, and that all blocks read together."""
PRODUCTS = 128 * 1.4e3
"""The products in a microsecond of a block that does without tensor cores."""
TURN_READS = 4
"""The reads of main memory one after the other between two turns of a group: of its lanes, of memories and
statics, of the first inputs. Nothing of it was measured.
"""
SCHEDULERS = 4
"""The schedulers of a multiprocessor."""


@dataclass(frozen=True)
class TimeByParts:
    """Microseconds by the resource that takes them: the base class of records whose fields are the parts."""

    @property
    def total(self) -> float:
        """The microseconds of all parts."""
        return sum(getattr(self, each.name) for each in fields(self))

    @property
    def bound(self) -> str:
        """The name of the part that takes the longest."""
        return max((each.name for each in fields(self)), key=lambda name: getattr(self, name))


@dataclass(frozen=True)
class StepTime(TimeByParts):
    """The microseconds of a step, by the resource that takes them."""

    loop: float
    products: float
    elementwise: float
    exchange: float
    reads: float


def step_time(shape: TensorShape, facts: TensorFacts) -> StepTime:
    """Estimates the time of a step of a loop on tensor cores, whose blocks have a multiprocessor each."""
    step, schedule = shape.step, shape.schedule
    cost = facts.plain if shape.is_plain else facts
    instruction = cost.warp + cost.scheduler * shape.warps / SCHEDULERS
    values = shape.elements * (elementwise(step, schedule.functions) + MOVED * moved(step))
    return StepTime(
        0.0 if shape.is_plain else facts.loop,
        max(
            instruction * multiplying(shape),
            tensor_time(shape, facts),
            read_bytes(shape) * facts.shared,
            direct_bytes(shape)[1] * facts.direct,
        ),
        instruction * values + (0.0 if shape.is_plain else facts.wait * waits(step, schedule.functions)),
        exchange_time(shape, facts),
        0.0 if step.lefts else facts.read / schedule.ahead,
    )


def multiplying(shape: TensorShape) -> float:
    """Returns the instructions of a warp for the products of a step: of tensor cores, and for operands."""
    step, schedule = shape.step, shape.schedule
    if shape.is_plain:
        return plain_instructions(shape)
    fetched = max((facts.fetched for facts in shape.multiplied), default=0)
    late = max((facts.fetched for facts in shape.multiplied if facts.is_split), default=0)
    count = float(shape.away * (fetched + WIDE) + schedule.unsplit * late)
    for each in step.sums.values():
        facts = shape.facts(each)
        depth = sum(shape.depth(each, left) for left in each.lefts)
        read = PACKED_READ if shape.is_packed else facts.read
        count += shape.abreast * depth * (read + len(facts.terms) * each.results)
        if schedule.parts > 1:
            count += each.results * (4 * shape.abreast + schedule.parts * shape.elements)
    return count


def tensor_time(shape: TensorShape, facts: TensorFacts) -> float:
    """Estimates the microseconds of the products of a step where nothing else is waited for: of the tensor
    core of a scheduler, and of the links of a chain.
    """
    if shape.is_plain:
        return 0.0
    links = sum(
        shape.depth(each, left) * len(shape.facts(each).terms)
        for each in shape.step.sums.values()
        for left in each.lefts
    )
    of_scheduler = facts.product * shape.instructions * shape.warps / SCHEDULERS
    return max(of_scheduler, facts.link * links / shape.schedule.chains)


def direct_bytes(shape: TensorShape) -> tuple[float, float]:
    """Returns the bytes of left operands that a block reads directly from the second cache, for all its
    warps: the bytes that are waited for, and the bytes that are read during products.
    """
    waited, others = 0.0, 0.0
    for each in shape.step.sums.values():
        for left in {*each.lefts} & shape.direct:
            its = shape.tiles * shape.published_bytes(left)
            first = its * min(1.0, shape.read_at_once(each) / shape.depth(each, left))
            waited, others = waited + first, others + its - first
    return waited, others


def plain_instructions(shape: TensorShape) -> float:
    """Returns the instructions of a warp for the products of a step by plain units."""
    count, rows, parts = PLAIN_READ * shape.away, shape.schedule.rows, shape.schedule.parts
    for each in shape.step.sums.values():
        reads = rows * sum(shape.depth(each, left) for left in each.lefts)
        handed = 3 if rows == 4 else parts // 2
        added = rows * (shape.schedule.chains - 1) + PLAIN_SHUFFLE * handed
        count += reads * (PLAIN_READ + 4 * each.results) + each.results * added
    return count


def plain_waits(shape: TensorShape) -> float:
    """Returns the cycles that a step by plain units waits for its exchanges, and for shuffles of sums."""
    meetings = shape.step.exchanges * (MEETING + MEETING_WARP * shape.warps)
    parts = PLAIN_READS + PLAIN_SHUFFLES * (shape.schedule.parts // 2)
    return meetings + parts * len(shape.step.phases)


def read_bytes(shape: TensorShape) -> int:
    """Returns the bytes of weights and left operands that a block reads from shared memory at each step."""
    staged = {*shape.staged}
    depth = sum(shape.depth(each, n) for each in shape.step.sums.values() for n in each.lefts if n in staged)
    weights = shape.away * shape.operand_bytes
    if shape.is_plain:  # a read of 16 bytes by each of four lanes takes a turn
        return weights + depth * shape.schedule.rows * shape.warps * 128
    return weights + shape.abreast * depth * shape.threads * 8


def exchange_time(shape: TensorShape, facts: TensorFacts) -> float:
    """Estimates the microseconds of the exchanges of a step."""
    count, blocks = shape.step.exchanges, shape.schedule.blocks
    cost = facts.exchanges.get(shape.schedule.exchange)
    if shape.is_plain:
        slower = facts.barrier / H100.barrier
        return slower * COUNTED * CYCLE * plain_waits(shape)
    if cost is None:
        return count * facts.barrier
    pieces = sum(map(shape.published_bytes, shape.staged)) / 16
    pieces *= {"tagged": 2.0, "cluster": (blocks - 1) / blocks}.get(shape.schedule.exchange, 1.0)
    each = facts.barrier + cost.alone + cost.doubling * log2(blocks)
    return count * each + cost.pieces * pieces / 1000 + direct_bytes(shape)[0] * facts.direct


def instructions(operation: str, elementary: float) -> float:
    """Returns the instructions of an elementwise operation. elementary: those of an elementary function."""
    return elementary if operation in ELEMENTARY else 1.0


def node_instructions(step: TensorStep, number: int, functions: str) -> float:
    """Returns the elementwise instructions of a node of a step, by the functions of a schedule."""
    node = step.body.nodes[number]
    if node.kind != "pointwise":
        return 0.0
    if node.operation not in DIVIDED or not node.type.is_float:
        return instructions(node.operation, FUNCTIONS[functions])
    by_number = step.body.nodes[step.root(node.inputs[-1])].operation == "constant"
    return 1.0 if by_number and functions == "short" else DIVISIONS[functions]


def elementwise(step: TensorStep, functions: str) -> float:
    """Returns the elementwise instructions of a step for each element of its units."""
    return sum(node_instructions(step, number, functions) for number in range(len(step.body.nodes)))


def waits(step: TensorStep, functions: str) -> float:
    """Returns the longest chain of elementwise instructions of a step, in which each waits for another."""
    longest = dict[int, float]()
    for number, node in enumerate(step.body.nodes):
        own = node_instructions(step, number, functions)
        longest[number] = own + max((longest[n] for n in node.inputs), default=0.0)
    return max(longest[n] for n in step.following)


def moved(step: TensorStep) -> int:
    """Returns the values that a step reads and writes in main memory."""
    return len(step.read_sequences) + sum(len(pieces) for pieces in step.outputs)


def moved_bytes(plan: Plan) -> int:
    """Returns the bytes that a step of a sequence reads and writes in main memory: inputs that are read, and
    outputs.
    """
    recur = plan.recurrence.recur
    read = {operand for node in recur.body.nodes for operand in node.inputs} | {*recur.outputs}
    moved = map(recur.body.type_of, [*({*recur.sequences} & read), *recur.outputs])
    return sum(type_.size * type_.itemsize for type_ in moved)


def groups_at_once(
    shape: TensorShape, device: DeviceFacts, facts: TensorFacts, registers: int
) -> tuple[int, int]:
    """Returns the number of groups of blocks that run at once with a block on each multiprocessor, and the
    number of blocks that a multiprocessor can hold.

    registers: the number of registers of a thread.
    """
    blocks = shape.schedule.blocks
    by_registers = device.registers // (registers * shape.threads)
    together = max(1, min(by_registers, 2048 // shape.threads, device.shared // max(1, shape.shared_bytes)))
    if shape.schedule.exchange == "cluster":
        return facts.clusters_at_once(blocks, device.multiprocessors), together
    return max(1, device.multiprocessors // blocks), together


def pace(shape: TensorShape, rows: int, device: DeviceFacts, facts: TensorFacts, registers: int) -> LanePace:
    """Estimates the number of groups of blocks that run at once for `rows` sequences, and their speed."""
    alone, together = groups_at_once(shape, device, facts, registers)
    if shape.schedule.exchange in ("grid", "tagged"):
        together = 1
    used = max(1, min(together, ceil(-(-rows // shape.schedule.rows) / alone)))
    exchange = exchange_time(shape, facts) / max(1, shape.step.exchanges)
    step = (1 + facts.crowd * (used - 1)) * step_time(shape, facts).total
    return LanePace(alone * used, step, TURN_READS * facts.read + 2 * exchange)


def batch_time(
    shape: TensorShape, rows: int, device: DeviceFacts, facts: TensorFacts, registers: int
) -> float:
    """Estimates the microseconds of a step of `rows` sequences: of all turns that the groups take."""
    return paced_time(pace(shape, rows, device, facts, registers), rows, shape.schedule.rows)


def paced_time(found: LanePace, rows: int, together: int) -> float:
    """Estimates the microseconds of a step of `rows` sequences in turns of groups of `together`."""
    return ceil(-(-rows // together) / found.at_once) * found.step


def block_time(step: TensorStep, rows: int, device: DeviceFacts) -> float:
    """Estimates the microseconds of a step of `rows` sequences where a block runs few of them without tensor
    cores, and reads the weights at each step. Nothing of it was measured.
    """
    blocks = -(-rows // BLOCK_ROWS)
    at_once = min(blocks, 2 * device.multiprocessors)
    weights = sum(
        each.count * each.columns for one in step.sums.values() for gate in one.rights for each in gate
    )
    reading = 4 * weights / min(BLOCK_READS, CACHE_READS / at_once)
    computing = weights * BLOCK_ROWS / PRODUCTS
    warps = step.width * BLOCK_ROWS / 32
    others = H100.scheduler * warps * (elementwise(step, "exact") + MOVED * moved(step))
    each = 2 * H100.barrier * len(step.phases) + H100.wait * waits(step, "exact") + others
    return ceil(blocks / at_once) * (H100.read + each + max(reading, computing))
