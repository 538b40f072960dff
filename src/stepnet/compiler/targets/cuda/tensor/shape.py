"""A schedule of a loop on tensor cores, and the sizes of its kernel.

A *group* of blocks runs 8 sequences. One warp, or several that divide the sums over k, own 16 units with all
of their gates. A warp's part of the recurrent weights is loaded once, as operands of the tensor cores, and
remains for all steps: in registers, or in shared memory. The threads of the 16 units hold 4 elements (units x
sequences) of every value, or a part of these, so that elementwise work moves no data.

Widths that are no multiple of the units of all warps are padded: weights of padded units are zero, and
nothing is written for them.
"""

from dataclasses import dataclass
from math import lcm
from typing import Literal

from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts, Exchange
from stepnet.compiler.targets.cuda.tensor.step import TensorStep, UnitSum
from stepnet.compiler.values.once import computed_once

ROWS = 8
"""The sequences of a group of blocks: the columns of a product of the tensor cores."""
UNITS = 16
"""The units of a warp: the rows of a product of the tensor cores."""
DEPTH = {"float32": 8, "tf32": 8, "bfloat16": 16}
"""The products that one instruction of the tensor cores adds to a sum, by the numbers that it multiplies."""
COUNTER_BYTES = 256
"""The bytes before the exchanged values of a group: its counter, in a line that no other group writes to."""
TensorExchange = Literal["block", "alone", "grid", "tagged", "cluster"]
Numbers = Literal["float32", "tf32", "bfloat16"]
LAUNCHED: dict[TensorExchange, Exchange] = {
    "block": "none",
    "alone": "none",
    "grid": "grid",
    "tagged": "grid",
    "cluster": "cluster",
}
"""The kind of launch of a kernel, by its exchange."""


@dataclass(frozen=True)
class TensorSchedule:
    """The way in which a loop runs on tensor cores.

    blocks: the blocks of a group.
    exchange: how warps see the values of other warps: through shared memory and a barrier of the block;
        through the second cache, by a counter per group (grid) or a tag beside each value (tagged); or
        written to the shared memory of all blocks (cluster). For units that are "alone" there is none.
    numbers: what is multiplied; sums are float32. For float32 an operand is a sum of two numbers of tf32,
        and a product three products of these; for the others an operand is rounded.
    chains: the number of sums of a warp for each number, added in the end. One is a single chain over k.
    parts: the warps that divide the sums over k: 1, 2 or 4.
    resident: the number of a warp's operands that stay in registers; the others are in shared memory.
    ahead: how many steps ahead the values of a step are read; as many steps are written one after another.
    functions: sigmoid and tanh as the CPU engine has them ("exact"), or by approximate instructions of the
        GPU ("fast").
    without: a part that is left out, to see what it costs or that a check notices it: "barrier", "products".
    """

    blocks: int = 1
    exchange: TensorExchange = "block"
    numbers: Numbers = "float32"
    chains: int = 1
    parts: int = 1
    resident: int = 1000
    ahead: int = 1
    functions: Literal["exact", "fast"] = "exact"
    without: str = ""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a schedule that does not exist."""
        if self.exchange != "alone" and (self.exchange == "block") != (self.blocks == 1):
            raise ValueError(
                f"a group of {self.blocks} blocks cannot exchange values by {self.exchange!r}: one does "
                'by "block", several by "grid", "tagged" or "cluster"'
            )

    @property
    def terms(self) -> int:
        """The products of the tensor cores that make up one product."""
        return 3 if self.numbers == "float32" else 1

    @property
    def name(self) -> str:
        """A name for people and files."""
        name = f"{self.exchange}{self.blocks}-{self.numbers}-p{self.parts}-c{self.chains}-a{self.ahead}"
        fast = "-fast" if self.functions == "fast" else ""
        return name + fast + (f"-no-{self.without}" if self.without else "")

    @property
    def text(self) -> str:
        """A description for people."""
        how = {"block": "", "alone": ""}.get(self.exchange, f" that exchange values by {self.exchange}")
        blocks = f"{self.blocks} blocks{how}" if self.blocks > 1 else "a block"
        return f"{blocks} for {ROWS} sequences, tensor cores, {self.numbers}"


@dataclass(frozen=True)
class TensorShape:
    """The sizes of a kernel: a step that tensor cores can run, and a schedule."""

    step: TensorStep
    schedule: TensorSchedule

    @computed_once
    def width(self) -> int:
        """The number of units of all warps, padding included."""
        whole = lcm(UNITS * self.schedule.blocks, DEPTH[self.schedule.numbers] * self.schedule.parts)
        return -(-self.step.width // whole) * whole

    @property
    def tiles(self) -> int:
        """The tiles of 16 units of a block."""
        return self.width // UNITS // self.schedule.blocks

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return self.tiles * self.schedule.parts

    @property
    def elements(self) -> int:
        """The elements of a value that a thread holds."""
        return 4 // self.schedule.parts

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.warps * LANES

    def numbers(self, each: UnitSum) -> Numbers:
        """Returns what a product multiplies: as its weights are encoded, or else as the schedule has it. Sums
        over units have the digits of float32.
        """
        if not each.rights:
            return "float32"
        return "bfloat16" if each.weights == "bfloat16" else self.schedule.numbers

    def depth(self, each: UnitSum, left: int) -> int:
        """Returns the instructions of the tensor cores along k, of one warp, for a left operand of a sum."""
        share = DEPTH[self.numbers(each)] * self.schedule.parts
        return -(-self.step.size(left) // share)

    @computed_once
    def places(self) -> dict[tuple[int, int, int], int]:
        """The number of the first operand of each matrix, by node, result and left; in the order of use."""
        found, count = dict[tuple[int, int, int], int](), 0
        for number, each in self.step.sums.items():
            for gate in range(len(each.rights)):
                for place, left in enumerate(each.lefts):
                    found[number, gate, place] = count
                    count += self.depth(each, left)
        return found

    @computed_once
    def operands(self) -> int:
        """The operands of the tensor cores that a warp keeps: 16 bytes of weights for each thread."""
        return sum(
            self.depth(each, left) * len(each.rights)
            for each in self.step.sums.values()
            for left in each.lefts
        )

    @property
    def state_floats(self) -> int:
        """The numbers of a left operand of 8 sequences, in one of its two places."""
        return self.width * ROWS

    @property
    def states_bytes(self) -> int:
        """The bytes of shared memory for left operands, each in two places."""
        return len(self.step.lefts) * 2 * self.state_floats * 4

    @property
    def sums_bytes(self) -> int:
        """The bytes of shared memory for the sums of the parts of products: of all sums of a phase."""
        if self.schedule.parts == 1:
            return 0
        sums = self.step.sums
        most = max(sum(sums[n].results for n in phase if n in sums) for phase in self.step.phases)
        return most * 4 * self.threads * 4

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory of a block."""
        away = max(0, self.operands - self.schedule.resident)
        return self.states_bytes + self.sums_bytes + away * self.threads * 16

    @property
    def exchange_floats(self) -> int:
        """The numbers of the memory through which the blocks of a group exchange values."""
        tags = {"grid": 1, "tagged": 2}.get(self.schedule.exchange, 0)
        return len(self.step.lefts) * 2 * self.state_floats * tags

    @property
    def scratch(self) -> int:
        """The bytes of main memory of a group: a counter, and the exchanged values."""
        return COUNTER_BYTES + 4 * self.exchange_floats if self.exchange_floats else 0

    @property
    def zeros(self) -> int:
        """The bytes of a group's memory that are zero at first: the counter, and tags with their values."""
        return self.scratch if self.schedule.exchange == "tagged" else min(COUNTER_BYTES, self.scratch)

    def misfit(self, facts: DeviceFacts) -> str | None:
        """Tells why a device cannot run the kernel; None if it can."""
        if self.step.lefts and self.schedule.exchange == "alone":
            return "its units are not alone"
        if self.threads > 1024:
            return f"a block would have {self.threads} threads, and 1024 is the most"
        if self.schedule.exchange == "cluster" and self.schedule.blocks > facts.cluster:
            return f"a cluster has at most {facts.cluster} blocks here"
        if LAUNCHED[self.schedule.exchange] == "grid" and self.schedule.blocks > facts.multiprocessors:
            there = facts.multiprocessors
            return f"its {self.schedule.blocks} blocks do not run at once on {there} multiprocessors"
        if self.shared_bytes > facts.shared:
            return f"it needs {self.shared_bytes} bytes of shared memory, and a block has {facts.shared}"
        return None
