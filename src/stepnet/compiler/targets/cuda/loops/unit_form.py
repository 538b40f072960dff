"""Ways to run the units of a step that are alone: by lanes of a warp that share a unit, with steps ahead.

16 states of a unit    one lane: s0 ... s15      four lanes: s0 ... s3 | s4 ... s7 | s8 ... s11 | s12 ... s15
their sum              (s0 + ... + s3) + (s4 + ... + s7), and so on, whoever adds up: the same bits
"""

from collections import Counter
from math import ceil, gcd

from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.apart import UnitFibers
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.values.records import dataclass

THREADS = 64
REGISTERS, FIBER_REGISTERS = 96, 144
"""The most registers for the inputs of steps ahead: of units of one element, and of fibers."""
MOST_AHEAD = 16
PARTS = 4
"""The parts of a sum over a fiber, which are added up pair by pair; also the most lanes of a unit."""


@dataclass(frozen=True)
class UnitForm:
    """The units of a step, and the threads that run them.

    lanes: the neighbouring lanes of a warp that share a unit: 1, 2 or 4. ahead: the steps whose inputs are
    read ahead; 0 for as many as registers allow. resident: the blocks for whose registers a multiprocessor
    must have room. is_rounded: whether products may be rounded; then exponentials have the digits of the
    GPU's power of 2.
    """

    fibers: UnitFibers
    lanes: int = 1
    ahead: int = 0
    resident: int = 1
    is_rounded: bool = False

    @property
    def threads_of_row(self) -> int:
        """The threads of a sequence."""
        return self.fibers.count * self.lanes

    @property
    def rows(self) -> int:
        """The sequences of a block."""
        return max(1, THREADS // self.threads_of_row)

    @property
    def blocks(self) -> int:
        """The blocks of these sequences."""
        return ceil(self.threads_of_row / THREADS)

    def own(self, number: int) -> int:
        """Returns the number of elements of a value of the step in a thread."""
        size, count, longest = (
            self.fibers.body.type_of(number).size,
            self.fibers.count,
            max(self.fibers.lengths),
        )
        own = size // count if size >= count else min(size, longest)
        return ceil(own / self.lanes) if own > 1 else own

    def steps_ahead(self, inputs: int) -> int:
        """Returns the steps whose inputs are read ahead. inputs: the numbers that a step reads."""
        registers = FIBER_REGISTERS if self.fibers.are_long else REGISTERS
        return self.ahead or max(1, min(MOST_AHEAD, registers // max(inputs, 1)))


def lanes_of(fibers: UnitFibers) -> list[int]:
    """Lists the numbers of lanes that may share a unit. All lanes of a warp run the same sequence."""
    lengths = [length for length, axis in zip(fibers.lengths, fibers.axes, strict=True) if axis is not None]
    if not lengths:
        return [1]
    whole = (n for n in (2, 4) if gcd(PARTS, *lengths) % n == 0 and fibers.count * n % LANES == 0)
    return [1, *whole]


def uses_of(body: Net) -> Counter[int]:
    """Returns the number of times that each value of a step is read, or is a result."""
    return Counter([*body.results, *(n for node in body.nodes for n in node.inputs)])


def is_product(body: Net, number: int, uses: Counter[int]) -> bool:
    """Tells whether a value is a product of floats, or a view of one, that nothing else reads."""
    while body.nodes[number].kind == "view" and uses[number] == 1:
        (number,) = body.nodes[number].inputs
    node = body.nodes[number]
    dtypes = {node.type.dtype, *(body.type_of(operand).dtype for operand in node.inputs)}
    is_plain = node.operation == "multiply" and uses[number] == 1
    return is_plain and len(dtypes) == 1 and dtypes <= {"float32", "float64"}
