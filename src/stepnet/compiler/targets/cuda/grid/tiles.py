"""The sizes of the products of a block of a group on tensor cores.

The columns of a block are the 16 rows of an instruction, with those of all results of a product side by side;
8 vectors are its columns. A sum over k is divided into parts, which warps add up beside each other:

    item      one part, of 16 columns, for up to `abreast` times 8 vectors: the work of a warp at a time

The parts depend on the lengths of the sums alone. So a sum has the same bits whichever block, group or number
of rows it is computed in.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.statements import Statement, Statements
from stepnet.compiler.targets.cuda.tensor.costs import (
    BLOCK_READS,
    CACHE_READS,
    H100,
    MOVED,
    SCHEDULERS,
    WIDE,
)
from stepnet.compiler.targets.cuda.tensor.numbers import FACTS, NumbersFacts, Precision
from stepnet.compiler.targets.cuda.tensor.shape import ROWS as VECTORS
from stepnet.compiler.targets.cuda.tensor.shape import UNITS as COLUMNS
from stepnet.compiler.values.records import dataclass

PARTS, SHORT = 4, 64
"""The parts of a sum, and the length of a sum up to which it is in one part."""
MOST_SUMS = 48
"""The registers of a thread for sums."""
UNROLLED = 4, 2, 1
"""The numbers of operands that a turn of the loop over k may multiply."""
BANKS, APART = 32, 4
"""The banks of shared memory; the distance of vectors there modulo these, so that 8 of them, of which 4 lanes
read numbers side by side, lie in other banks.
"""

AT_ONCE = 16
"""The most tiles of columns of which the sums lie in shared memory at once, where weights are not kept."""
STREAMED = 60
"""The instructions that read an operand of weights from main memory, as counted."""
CACHE, MAIN_READS = 40e6, 3e6
"""The bytes of weights that the second cache holds, as an estimate; the bytes that all blocks read together
of main memory in a microsecond, of an H100.
"""


@dataclass(frozen=True)
class GridProduct:
    """A product of a step: some results of a node, of one size, that have the same left sides.

    statements: of the results, by node. lefts, rights: the left sides, and for each result the right sides.
    columns: of a result. lead: the vectors of a row.
    """

    statements: tuple[int, ...]
    lefts: tuple[int, ...]
    rights: tuple[tuple[int, ...], ...]
    columns: int
    lead: int

    @property
    def key(self) -> int:
        """The node of the first result, by which the product is known."""
        return self.statements[0]


def grid_products(statements: Statements) -> list[GridProduct]:
    """Lists the products of a step."""
    together = dict[tuple[int, int], list[Statement]]()
    for statement in statements.all_statements():
        if statement.kind == "product":
            together.setdefault((number_of(statements.net, statement), statement.size), []).append(statement)
    return [product_of(statements.net, each) for each in together.values()]


def number_of(net: Net, statement: Statement) -> int:
    """Returns the node that multiplies, of a statement with one of its results."""
    node = net.nodes[statement.number]
    return node.inputs[0] if node.operation == "result" else statement.number


def product_of(net: Net, together: list[Statement]) -> GridProduct:
    """Returns the product that some statements have results of."""
    lefts, rights = net.nodes[number_of(net, together[0])].sides
    count, shape = len(lefts), net.nodes[together[0].number].type.shape
    of = [net.nodes[statement.number].attributes.get("of", 0) for statement in together]
    return GridProduct(
        tuple(statement.number for statement in together),
        lefts,
        tuple(rights[place * count : (place + 1) * count] for place in of),
        shape[-1],
        together[0].size // shape[-1],
    )


@dataclass(frozen=True)
class GridTiles:
    """The tiles of a product of a block.

    results: of the product. own: the columns of a result that the block has. vectors: of all rows.
    lengths: of the left sides. numbers: the format in which float32 is multiplied.
    is_kept: whether the weights stay in shared memory. Those of other products are read at each step, for
        which the columns of each result begin with a tile.
    """

    results: int
    own: int
    vectors: int
    lengths: tuple[int, ...]
    numbers: Precision
    is_kept: bool = True

    @property
    def streamed(self) -> "GridTiles":
        """The tiles of the product if its weights are read at each step."""
        return replace(self, is_kept=False)

    @property
    def facts(self) -> NumbersFacts:
        """The facts of the numbers."""
        return FACTS[self.numbers]

    @property
    def pitch(self) -> int:
        """The columns from one result to the next."""
        return self.own if self.is_kept else -(-self.own // COLUMNS) * COLUMNS

    @property
    def tiles(self) -> int:
        """The tiles of 16 columns."""
        return -(-self.results * self.pitch // COLUMNS)

    @property
    def at_once(self) -> int:
        """The tiles whose sums lie in shared memory at once: all, or some of a result."""
        return self.tiles if self.is_kept else min(AT_ONCE, self.tiles // self.results)

    @property
    def turns(self) -> int:
        """The turns in which sums of a result lie there."""
        return 1 if self.is_kept else -(-self.tiles // self.results // self.at_once)

    @property
    def parts(self) -> int:
        """The parts of a sum."""
        return PARTS if max(self.lengths) > SHORT else 1

    def share(self, length: int) -> int:
        """Returns the operands of a part of a left side, padding included."""
        return ceil(ceil(length / self.facts.depth) / self.parts)

    def is_whole(self, length: int) -> bool:
        """Tells whether the parts of a left side have no padding."""
        return length == self.share(length) * self.parts * self.facts.depth

    @property
    def abreast(self) -> int:
        """The tiles of 8 vectors that a warp multiplies at a time."""
        all_ = ceil(self.vectors / VECTORS)
        most = max(1, MOST_SUMS // (4 * len(self.facts.terms)))
        return next(count for count in range(min(all_, most), 0, -1) if all_ % count == 0)

    @property
    def chunks(self) -> int:
        """The turns in which all vectors are multiplied with an operand of weights."""
        return ceil(self.vectors / VECTORS) // self.abreast

    @property
    def sums_stride(self) -> int:
        """The numbers from the sums of a vector to those of the next one, in shared memory."""
        return COLUMNS * self.at_once + APART

    @property
    def sums_bytes(self) -> int:
        """The bytes of shared memory for the sums of all parts."""
        return 4 * self.parts * self.chunks * self.abreast * VECTORS * self.sums_stride

    def weight_bytes(self, length: int) -> int:
        """Returns the bytes of shared memory for the weights of a left side."""
        return 16 * LANES * self.tiles * self.parts * self.share(length)


def left_stride(length: int) -> int:
    """Returns the numbers from a vector of a left side to the next one, in shared memory."""
    return length + (APART - length) % BANKS


def tiles_time(listed: Sequence[GridTiles], threads: int, blocks: int, slowness: float = 1.0) -> float:
    """Estimates the microseconds of the products of a step: the instructions of the busiest warp, or the
    reads of weights that are not kept, of all blocks together, and the sums of parts.

    threads: the number of threads of a block. blocks: of all groups that run at once. slowness: how many
    times slower main memory is than an H100's. Nothing of it was measured.
    """
    warps, found = threads // LANES, 0.0
    instruction = H100.warp + H100.scheduler * warps / SCHEDULERS
    for tiles in listed:
        depth = sum(tiles.share(length) for length in tiles.lengths)
        fetched = WIDE + tiles.facts.fetched if tiles.is_kept else STREAMED
        one = fetched + tiles.abreast * (tiles.facts.read + len(tiles.facts.terms))
        turns = ceil(tiles.tiles * tiles.chunks * tiles.parts / warps)
        added = ceil(tiles.results * tiles.vectors * tiles.own / threads) * (tiles.parts + MOVED)
        away = 0.0 if tiles.is_kept else 4 * tiles.results * tiles.own * sum(tiles.lengths) * tiles.chunks
        whole = blocks * away
        rate = min(BLOCK_READS, (CACHE_READS if whole < CACHE else MAIN_READS / slowness) / blocks)
        found += max(instruction * turns * depth * one, away / rate)
        found += instruction * added + 2 * H100.barrier * tiles.turns
    return found
