"""A plan and a schedule for it: the sizes of a kernel, and the steps that it refuses.

A *group* of blocks runs 8 sequences. One warp, or several that divide the sums over k, own 16 units with all
of their gates. A warp's part of the recurrent weights is loaded once, as operands of the tensor cores, and
remains for all steps: in registers, or in shared memory. The threads of the 16 units hold 4 elements (units x
sequences) of every value, or a part of these, so that elementwise work moves no data.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from bench.gpu.inputs import ROWS, Signature
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.recur import Order
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.phases import phases
from stepnet.compiler.plan.plan import Plan

UNITS = 16
"""The units of a warp: the rows of a product of the tensor cores."""
DEPTH = {"float32": 8, "tf32": 8, "bfloat16": 16}
"""The products that one instruction of the tensor cores adds to a sum, by the numbers that it multiplies."""
LANES = 32
Exchange = Literal["block", "grid", "tagged", "cluster"]
Numbers = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class Schedule:
    """The way in which a kernel runs a step.

    blocks: the blocks of a group.
    exchange: how warps see the values of other warps: through shared memory and a barrier of the block;
        through the second cache, by a counter per group (grid) or a tag beside each value (tagged); or
        written to the shared memory of all blocks (cluster).
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
    exchange: Exchange = "block"
    numbers: Numbers = "float32"
    chains: int = 1
    parts: int = 1
    resident: int = 1000
    ahead: int = 1
    functions: Literal["exact", "fast"] = "exact"
    without: str = ""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a schedule that does not exist."""
        if (self.exchange == "block") != (self.blocks == 1):
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
        """A name for files: the exchange and its blocks, the numbers and chains, and what is left out."""
        name = f"{self.exchange}{self.blocks}-{self.numbers}-p{self.parts}-c{self.chains}-a{self.ahead}"
        fast = "-fast" if self.functions == "fast" else ""
        return name + fast + (f"-no-{self.without}" if self.without else "")


@dataclass(frozen=True)
class Step:
    """The step of a recurrence, in phases: what a kernel is written from.

    body: the net of the step. order: the numbers of its sequences and memories.
    loop: the nodes of the step by phase; between phases all units of a value must be known.
    """

    body: Net
    order: Order
    loop: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, plan: Plan) -> "Step":
        """Returns the step of a plan."""
        return cls(plan.body, plan.recurrence.recur.order, plan.loop)

    @classmethod
    def of_body(cls, body: Net, order: Order) -> "Step":
        """Returns the step of a body, in the phases that its products need."""
        inside = [n for n, node in enumerate(body.nodes) if node.operation != "input"]
        return cls(body, order, phases(body, [n for n in inside if body.nodes[n].types[0].extent != CONST]))

    @cached_property
    def sequences(self) -> list[int]:
        """The inputs of the body that are one step of the sequences, by number."""
        return self.order.operands_by_kind(self.body.inputs).sequences

    @cached_property
    def memories(self) -> list[int]:
        """The inputs of the body that are memories before the step, by number."""
        return self.order.operands_by_kind(self.body.inputs).memories

    @cached_property
    def constants(self) -> list[int]:
        """The inputs of the body that are parameters, by number."""
        return self.order.operands_by_kind(self.body.inputs).others

    @cached_property
    def outputs(self) -> list[int]:
        """The nodes that are outputs of the step, by number."""
        return self.order.results_by_kind(self.body.results).outputs

    @cached_property
    def following(self) -> list[int]:
        """The nodes that are the memories after the step, by number."""
        return self.order.results_by_kind(self.body.results).memories

    @cached_property
    def lefts(self) -> list[int]:
        """The nodes that are left operands of products, which all warps of a group need."""
        products = [node for node in self.body.nodes if node.kind == "matmul"]
        return sorted({left for node in products for left in node.sides[0]})

    @cached_property
    def rights(self) -> list[int]:
        """The parameters that are right operands of products, in order."""
        products = [node for node in self.body.nodes if node.kind == "matmul"]
        return [n for n in self.constants if any(n in node.sides[1] for node in products)]

    @cached_property
    def exchanges(self) -> int:
        """The exchanges of a step: the phases that end with values which other warps need."""
        *shown, last = (any(n in self.lefts for n in phase) for phase in self.loop)
        return sum(shown) + (last or any(n in self.lefts for n in self.memories))

    @cached_property
    def width(self) -> int:
        """The number of units of every value of the step."""
        return self.body.type_of(self.memories[0]).size


@dataclass(frozen=True)
class Shape:
    """The sizes of a kernel: a step and a schedule that fit."""

    step: Step
    schedule: Schedule

    def __post_init__(self) -> None:
        """Raises `ValueError` for a step or a schedule that the prototype does not take."""
        width = self.step.width
        if width % (DEPTH[self.schedule.numbers] * self.schedule.parts):
            raise ValueError(f"{width} units in {self.schedule.parts} parts: they must be whole products")
        if width % (UNITS * self.schedule.blocks):
            raise ValueError(
                f"{width} units on {self.schedule.blocks} blocks: the prototype takes a multiple of "
                f"{UNITS * self.schedule.blocks} units"
            )
        for node in self.step.body.nodes:
            size, dtype = node.types[0].size, node.types[0].dtype
            if node.types[0].extent != CONST and (size not in (1, width) or dtype not in ("float32", "bool")):
                raise ValueError(f"{node.operation} of {node.types[0]}: the prototype takes float32[{width}]")
            if node.kind not in ("pointwise", "matmul", "source") and node.operation != "result":
                raise ValueError(f"the prototype does not take {node.operation} in a step")

    @property
    def tiles(self) -> int:
        """The tiles of 16 units of a block."""
        return self.step.width // UNITS // self.schedule.blocks

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

    @property
    def depth(self) -> int:
        """The instructions of the tensor cores along k, of one warp."""
        return self.step.width // DEPTH[self.schedule.numbers] // self.schedule.parts

    @property
    def operands(self) -> int:
        """The operands of the tensor cores that a warp keeps: 16 bytes of weights for each thread."""
        return len(self.step.rights) * self.depth

    @property
    def state_floats(self) -> int:
        """The numbers of a left operand of 8 sequences, in one of its two places."""
        return self.step.width * ROWS

    @property
    def states_bytes(self) -> int:
        """The bytes of shared memory for left operands, each in two places."""
        return len(self.step.lefts) * 2 * self.state_floats * 4

    @property
    def sums_bytes(self) -> int:
        """The bytes of shared memory for the sums of the parts of products: of all products of a phase."""
        nodes = self.step.body.nodes
        most = max(
            sum(len(nodes[n].types) for n in phase if nodes[n].kind == "matmul") for phase in self.step.loop
        )
        return most * 4 * self.threads * 4 if self.schedule.parts > 1 else 0

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory of a block."""
        return (
            self.states_bytes
            + self.sums_bytes
            + max(0, self.operands - self.schedule.resident) * self.threads * 16
        )

    @property
    def exchange_floats(self) -> int:
        """The numbers of the memory through which the blocks of a group exchange values."""
        tags = 2 if self.schedule.exchange == "tagged" else 1
        return len(self.step.lefts) * 2 * self.state_floats * tags

    @property
    def signature(self) -> Signature:
        """The arguments that the kernel takes."""
        step = self.step
        shapes = tuple(tuple(step.body.type_of(n).shape) for n in step.constants)
        counts = len(step.sequences), len(step.memories), len(step.outputs)
        return Signature(step.width, *counts, shapes, self.exchange_floats)

    @property
    def argument_names(self) -> list[str]:
        """The arrays that a kernel takes, in order: where sequences lie, memory of the group, then values."""
        counted = {"x": self.step.sequences, "h": self.step.memories, "c": self.step.constants}
        counted |= {"y": self.step.outputs, "last": self.step.memories}
        values = [f"{name}{place}" for name, numbers in counted.items() for place in range(len(numbers))]
        return ["starts", "lengths", "longest", "exchange", "counters", *values]
