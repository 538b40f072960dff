"""A schedule of a loop on tensor cores, and the sizes of its kernel.

A *group* of blocks runs 8 sequences, or 16 or 32. One warp, or several that divide the sums over k, own 16
units with all of their gates. A warp's part of the recurrent weights is loaded once, as operands of the
tensor cores, and remains for all steps: in registers, or in shared memory. The threads of the 16 units hold 4
elements (units x sequences) of every value for each 8 sequences, or a part of these, so that elementwise work
moves no data. Where 8 warps divide a sum of 8 sequences, two of them compute each element, and one writes it.

The *plain units* of a multiprocessor multiply as fast where a group has 1, 2 or 4 sequences (`plain.py`).
Then two or four lanes of a warp divide the sums of a unit over k, and each holds the unit for one of the
sequences.

Widths that are no multiple of the units of all warps are padded: weights of padded units are zero, and
nothing is written for them.
"""

from math import lcm
from typing import Literal

from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts, Exchange
from stepnet.compiler.targets.cuda.tensor.numbers import FACTS, Numbers, NumbersFacts, Precision, numbers_of
from stepnet.compiler.targets.cuda.tensor.step import TensorStep, UnitSum
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

ROWS = 8
"""The columns of a product of the tensor cores: the sequences of a group of blocks, or some of them."""
UNITS = 16
"""The units of a warp: the rows of a product of the tensor cores."""
SUMMED = 8
"""The units whose sum a warp publishes, of values that are only summed over units."""
READ_AT_ONCE = 4
"""The operands of values, of 8 sequences each, that a warp reads from the second cache before it multiplies
those that it read before.
"""
COUNTER_BYTES = 256
"""The bytes before the exchanged values of a group: its counter, in a line that no other group writes to."""
WIDE_ROWS = 16, 32
"""The sequences of a group that multiplies each operand of weights with several operands of values."""
PLAIN_PARTS = 2, 4
"""The lanes that may divide the sums of a unit, where plain units multiply."""
WHOLE = 256
"""The most threads of a block of which each may have all registers that a thread can have."""
TensorExchange = Literal["block", "plain", "alone", "grid", "tagged", "cluster"]
LAUNCHED: dict[TensorExchange, Exchange] = {
    "block": "none",
    "plain": "none",
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
    exchange: how warps see the values of other warps: through shared memory and a barrier of the block, where
        tensor cores multiply (block) or, for few sequences, plain units do (plain); through the second cache,
        by a counter per group (grid) or a tag beside each value (tagged); or written to the shared memory of
        all blocks (cluster). For units that are "alone" there is none.
    numbers: the format in which float32 is multiplied; sums are float32. Weights that are stored in 16 bits
        are multiplied as they are (`numbers.py`).
    chains: the number of sums of a warp for each number, added in the end. One is a single chain over k.
    parts: the warps that divide the sums over k: 1, 2, 4 or 8.
    resident: the number of a warp's operands that stay in registers, as the tensor cores multiply them.
    ahead: how many steps ahead the values of a step are read; as many steps are written one after another.
    states: the format in which left operands are exchanged and kept: "bfloat16" only where products round
        them to it.
    functions: elementary functions as the CPU engine has them ("exact"), or some of them by instructions of
        the GPU: "short" or "fast" (`approximate.py`).
    unsplit: the number of further operands that stay in registers as they are stored. Where that takes fewer
        registers (`NumbersFacts.is_split`), they are split into two numbers at each step. All others are in
        shared memory, as they are stored too.
    places: the places in shared memory of a left operand: 2, which steps use in turn; 1 if the warps that
        divide a sum have met before the next values are written; or 0 if warps read values from the second
        cache as they multiply them ("grid" only).
    rows: the sequences of a group: the 8 columns of a product of the tensor cores, or 16 or 32, whose
        products follow one another for each operand of weights; 1, 2 or 4 for plain units.
    without: a part that is left out, to see what it costs or that a check notices it: "barrier", "products".
    """

    blocks: int = 1
    exchange: TensorExchange = "block"
    numbers: Precision = "float32"
    chains: int = 1
    parts: int = 1
    resident: int = 1000
    ahead: int = 1
    functions: Literal["exact", "short", "fast"] = "exact"
    states: Literal["float32", "bfloat16"] = "float32"
    unsplit: int = 0
    places: int = 2
    rows: int = ROWS
    without: str = ""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a schedule that does not exist."""
        is_plain = self.exchange == "plain"
        does_not_fit = self.parts not in PLAIN_PARTS or self.rows > self.parts or self.blocks != 1
        several = WIDE_ROWS if self.exchange in ("grid", "tagged") else ()
        if is_plain != (self.rows not in (ROWS, *several)) or (is_plain and does_not_fit):
            raise ValueError(
                "a block of plain units has 2 or 4 parts and up to as many sequences, and all others have "
                f"{ROWS} sequences, or 16 or 32 where values go through the second cache, not {self.rows} "
                f"and {self.parts} with the exchange {self.exchange!r}"
            )
        if self.exchange not in ("alone", "plain") and (self.exchange == "block") != (self.blocks == 1):
            raise ValueError(
                f"a group of {self.blocks} blocks cannot exchange values by {self.exchange!r}: one does "
                'by "block", several by "grid", "tagged" or "cluster"'
            )
        if self.places == 0 and (self.parts == 1 or self.exchange != "grid"):
            raise ValueError(
                "left operands are read from the second cache only where several warps divide a sum and "
                f'blocks exchange values by "grid", not {self.parts} and {self.exchange!r}'
            )
        if self.places == 1 and (self.parts == 1 or self.exchange in ("cluster", "plain")):
            raise ValueError(
                f"left operands need 2 places in shared memory, not 1, where {self.parts} warps divide a sum "
                f"and blocks exchange values by {self.exchange!r}: they are written while others are read"
            )

    @property
    def name(self) -> str:
        """A name for people and files."""
        count = self.rows if self.exchange == "plain" else self.blocks
        name = f"{self.exchange}{count}-{self.numbers}-p{self.parts}-c{self.chains}-a{self.ahead}"
        fast = "" if self.functions == "exact" else f"-{self.functions}"
        packed = "-packed" if self.states == "bfloat16" else ""
        wide = f"-r{self.rows}" if self.rows > ROWS else ""
        direct = "" if self.places else "-direct"
        return name + fast + packed + wide + direct + (f"-no-{self.without}" if self.without else "")

    @property
    def text(self) -> str:
        """A description for people."""
        if self.exchange == "plain":
            return f"a block for {self.rows} sequence{'s' * (self.rows > 1)}, plain units, {self.numbers}"
        how = {"block": "", "alone": ""}.get(self.exchange, f" that exchange values by {self.exchange}")
        blocks = f"{self.blocks} blocks{how}" if self.blocks > 1 else "a block"
        return f"{blocks} for {self.rows} sequences, tensor cores, {self.numbers}"


@dataclass(frozen=True)
class TensorShape:
    """The sizes of a kernel: a step that tensor cores can run, and a schedule."""

    step: TensorStep
    schedule: TensorSchedule

    @property
    def is_plain(self) -> bool:
        """Tells whether the plain units multiply."""
        return self.schedule.exchange == "plain"

    @property
    def summed(self) -> set[int]:
        """The left operands of which sums of some units are published."""
        return set() if self.is_plain else self.step.summed

    @computed_once
    def width(self) -> int:
        """The number of units of all warps, padding included."""
        if self.is_plain:
            whole = max(UNITS, LANES // self.schedule.parts)
            return -(-self.step.width // whole) * whole
        depths = [FACTS[self.schedule.numbers].depth, *(self.facts(n).depth for n in self.step.sums.values())]
        whole = lcm(UNITS * self.schedule.blocks, max(depths) * self.schedule.parts)
        return -(-self.step.width // whole) * whole

    @property
    def tiles(self) -> int:
        """The tiles of 16 units of a block."""
        return self.width // UNITS // self.schedule.blocks

    @property
    def warps(self) -> int:
        """The warps of a block."""
        parts = self.schedule.parts
        return self.width * parts // LANES if self.is_plain else self.tiles * parts

    @property
    def abreast(self) -> int:
        """The operands of values, of 8 sequences each, that an operand of weights is multiplied with."""
        return 1 if self.is_plain else self.schedule.rows // ROWS

    @property
    def elements(self) -> int:
        """The elements of a value that a thread holds."""
        return 1 if self.is_plain else max(1, 4 * self.abreast // self.schedule.parts)

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.warps * LANES

    def numbers(self, each: UnitSum) -> Numbers:
        """Returns the format of the numbers that a product multiplies: that in which its weights are encoded
        or stored, or else the schedule's. Sums over units have the digits of float32.
        """
        if not each.rights:
            return "sums"
        if each.weights == "bfloat16":
            return "bfloat16"
        return numbers_of(self.schedule.numbers, each.stored_weights, each.stored_values)

    def facts(self, each: UnitSum) -> NumbersFacts:
        """Returns the facts of the numbers that a product multiplies."""
        return FACTS[self.numbers(each)]

    def depth(self, each: UnitSum, left: int) -> int:
        """Returns the number of instructions of the tensor cores that a warp runs along k for a left operand
        of a sum; on plain units, the number of reads of 4 numbers.
        """
        if self.is_plain:
            return self.width // (4 * self.schedule.parts)
        share, size = self.facts(each).depth * self.schedule.parts, self.step.size(left)
        if left in self.summed:  # of all tiles that have units
            size = -(-size // UNITS) * UNITS // SUMMED
        return -(-size // share)

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

    @computed_once
    def instructions(self) -> int:
        """The instructions of a warp in a step that multiply."""
        if self.is_plain:
            return 4 * self.operands * self.schedule.rows
        return self.abreast * sum(
            self.depth(each, left) * each.results * len(self.facts(each).terms)
            for each in self.step.sums.values()
            for left in each.lefts
        )

    @computed_once
    def multiplied(self) -> tuple[NumbersFacts, ...]:
        """The facts of the numbers that the products of the step multiply."""
        return tuple({self.facts(each) for each in self.step.sums.values() if each.rights})

    @computed_once
    def is_rounded(self) -> bool:
        """Tells whether all that reads a left operand rounds it to bfloat16."""
        return all(self.numbers(each) == "bfloat16" for each in self.step.sums.values())

    @property
    def is_packed(self) -> bool:
        """Tells whether left operands are kept in bfloat16, two units in a word."""
        return self.schedule.states == "bfloat16"

    @computed_once
    def direct(self) -> set[int]:
        """The left operands that warps read from the second cache as they multiply them."""
        return {*self.step.lefts} - self.summed if self.schedule.places == 0 else set[int]()

    def read_at_once(self, each: UnitSum) -> int:
        """Returns the operands along k that a warp reads from the second cache at once: more for few
        products.
        """
        is_short = self.abreast > 1 and each.results == 1
        return max(1, READ_AT_ONCE * (1 + is_short) // self.abreast)

    @property
    def staged(self) -> list[int]:
        """The left operands that are in shared memory."""
        return [left for left in self.step.lefts if left not in self.direct]

    @property
    def shared_places(self) -> int:
        """The places in shared memory of a left operand that is there."""
        return max(1, self.schedule.places)

    def fragment(self, left: int) -> int:
        """Returns the units of a left operand that is read directly, 8 or 16; 0 where sums differ."""
        depths = {self.facts(each).depth for each in self.step.sums.values() if left in each.lefts}
        return depths.pop() if len(depths) == 1 else 0

    def published(self, left: int) -> int:
        """Returns the units of a left operand that warps publish: all, or sums of some, padding included."""
        return self.width // SUMMED if left in self.summed else self.width

    def published_bytes(self, left: int) -> int:
        """Returns the bytes of a place of a left operand, of all sequences of a group."""
        return self.published(left) * self.schedule.rows * (2 if self.is_packed else 4)

    @property
    def states_bytes(self) -> int:
        """The bytes of shared memory for left operands, each in its places."""
        return self.shared_places * sum(map(self.published_bytes, self.staged))

    @property
    def sums_at_once(self) -> int:
        """The sums of a phase with parts in shared memory at once: all for 8 sequences, fewer for more."""
        sums = self.step.sums
        most = max(sum(sums[n].results for n in phase if n in sums) for phase in self.step.phases)
        return -(-most // self.abreast)

    @property
    def sums_bytes(self) -> int:
        """The bytes of shared memory for the sums of the parts of products."""
        if self.schedule.parts == 1 or self.is_plain:
            return 0
        return self.sums_at_once * 4 * self.abreast * self.threads * 4

    @property
    def operand_bytes(self) -> int:
        """The bytes of shared memory of an operand of all warps of a block."""
        return self.threads * 16

    @property
    def whole(self) -> int:
        """The steps that the code writes one after another; a turn is rounded up to a multiple of them. Even
        where operands are exchanged, so that each turn begins with the first of the two places of an operand.
        """
        return lcm(self.schedule.ahead, 2) if self.step.lefts else self.schedule.ahead

    @property
    def away(self) -> int:
        """The operands of a warp that are in shared memory."""
        return max(0, self.operands - self.schedule.resident - self.schedule.unsplit)

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory of a block."""
        return self.states_bytes + self.sums_bytes + self.away * self.operand_bytes

    @property
    def exchange_bytes(self) -> int:
        """The bytes through which a group's blocks exchange values: two places per operand, and tags."""
        tags = {"grid": 1, "tagged": 2}.get(self.schedule.exchange, 0)
        return 2 * tags * sum(map(self.published_bytes, self.step.lefts))

    @property
    def scratch(self) -> int:
        """The bytes of main memory of a group: a counter, and the exchanged values."""
        return COUNTER_BYTES + self.exchange_bytes if self.exchange_bytes else 0

    @property
    def zeros(self) -> int:
        """The bytes of a group's memory that are zero at first: the counter, and tags with their values."""
        return self.scratch if self.schedule.exchange == "tagged" else min(COUNTER_BYTES, self.scratch)

    @property
    def direct_misfit(self) -> str | None:
        """Tells why warps cannot read left operands from the second cache as they multiply them."""
        if self.direct and self.is_packed:
            return "its left operands are not numbers of float32"
        if any((self.abreast * self.fragment(left) or 1) % 16 for left in self.direct):
            return "a thread's numbers of its left operands are no whole reads of 16 bytes"
        return None

    def misfit(self, facts: DeviceFacts) -> str | None:
        """Tells why a device cannot run the kernel; None if it can."""
        if self.step.lefts and self.schedule.exchange == "alone":
            return "its units are not alone"
        if self.is_packed and not self.is_rounded:
            return "its products do not all round to bfloat16"
        if (reason := self.direct_misfit) is not None:
            return reason
        if self.is_plain and self.away and self.threads > WHOLE:
            return "its weights do not fit registers"
        if self.is_plain and any(each.weights == "bfloat16" for each in self.step.sums.values()):
            return "its products round to bfloat16"
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
