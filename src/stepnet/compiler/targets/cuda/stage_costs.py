"""Estimates of the work around a loop, by the bytes that it moves and by its operations.

    before   p = x @ W        the library's product: 2 * steps * 64 * 256 operations, at the rate of its kind
             n = norm(p)      a kernel: 2 * steps * 256 numbers of main memory, or what it computes
    total    dW = x' @ dp     the same product, of as many tiles as dW has, in parts of the steps
             db = sum of dp   steps * 256 numbers of main memory

What takes longer counts. Launches are not in it, and nothing of it was measured.
"""

from collections.abc import Sequence
from math import ceil

from stepnet.compiler.net.flops import flops
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.pairs import PAIRED, is_causal, keys_of, queries_of
from stepnet.compiler.net.type_rules import ENDS
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, is_pairs
from stepnet.compiler.net.windows import derived_length
from stepnet.compiler.plan.load import WORDS, CallSize
from stepnet.compiler.targets.cuda.arrays.memory import PART as ROWS_OF_PART
from stepnet.compiler.targets.cuda.arrays.product_form import PART, ProductTile
from stepnet.compiler.targets.cuda.arrays.products import chosen, tiles_for, tiles_of
from stepnet.compiler.targets.cuda.arrays.totals import way_of
from stepnet.compiler.targets.cuda.codes import DeviceStage, ProductCode
from stepnet.compiler.targets.cuda.options import CudaOptions
from stepnet.compiler.targets.cuda.tensor.facts import TensorFacts
from stepnet.compiler.values.records import dataclass

FLOPS = {"float32": 55e6, "tf32": 120e6, "bfloat16": 180e6, "plain": 17e6}
"""Operations of a product in a microsecond, by how it multiplies: as expected of an H100; "plain" of float64,
and as an estimate of all others, and of kernels."""
TILE, FEW, MANY = 16, 1e6, 2e6
"""The rows of the smallest tile of a product, and the bytes of weights that products of so many rows, and of
more, read in a microsecond."""


@dataclass(frozen=True)
class StageCosts:
    """Estimates for the stages of a net.

    size: of the call. facts, options: of the device, and of its engine. multiprocessors: of the device.
    """

    net: Net
    size: CallSize
    facts: TensorFacts
    options: CudaOptions
    multiprocessors: int

    def time(self, codes: Sequence[DeviceStage | ProductCode]) -> tuple[float, str]:
        """Returns the microseconds of a stage's codes in turn, and the resource that takes the most."""
        return together([self.code_time(code) for code in codes])

    def code_time(self, code: DeviceStage | ProductCode) -> tuple[float, str]:
        """Returns the microseconds of a kernel or a product, and what bounds it."""
        if isinstance(code, ProductCode):
            computed = (
                product_time(self.net, code, self.count(code.node), self.options, self.facts),
                "products",
            )
            moved = [code.node, *code.lefts, *code.rights]
        else:
            operations = sum(flops(self.net, n) * self.count(n) for n in self.computed(code))
            computed = self.facts.slowness * operations / FLOPS["plain"], "operations"
            moved = [*code.reads, *code.writes]
        return max(computed, (self.facts.main * sum(map(self.nbytes, moved)), "main memory"))

    def computed(self, code: DeviceStage) -> set[int]:
        """Returns the nodes that a kernel computes."""
        found, waiting = set[int](), [*code.writes]
        while waiting:
            number = waiting.pop()
            node = self.net.nodes[number]
            if number not in found and number not in code.reads and node.types[0].extent != CONST:
                found.add(number)
                waiting += node.inputs
        return found

    def node_time(self, number: int, stored: Sequence[str | None] = (None, None)) -> tuple[float, str]:
        """Returns the microseconds of a node that no kernel of a stage computes, and what bounds it: a sum or
        product over steps or rows, windows, pairs of steps, copies.

        stored: as of `total`.
        """
        node, type_of = self.net.nodes[number], self.net.type_of
        moved = self.nbytes(number) + sum(map(self.nbytes, node.inputs))
        computed = 0.0, "operations"
        if node.operation == "contract" and node.type.extent == CONST:
            computed = self.contracted_time(node, stored)
            _, parts, is_split = self.contracted_by(node, stored)
            moved += 2 * parts * node.type.size * node.type.itemsize if is_split else 0
        elif node.operation == "contract" or node.operation in PAIRED:
            # Threads read two numbers for each multiply-add, of which caches have most.
            read = 2 * type_of(number).itemsize * self.terms(number)
            computed = read * self.facts.direct / self.multiprocessors, "reads of the second cache"
        elif (node.operation == "reduce" and node.attributes["how"] in ENDS) or node.operation == "expand":
            moved = 2 * self.nbytes(number)
        return max(computed, (self.facts.main * moved, "main memory"))

    def terms(self, number: int) -> float:
        """Returns the multiply-adds of sums of products over the steps of a row, or at pairs of steps."""
        node, type_of = self.net.nodes[number], self.net.type_of
        if node.operation == "contract":
            left = type_of(node.inputs[0])
            return self.count(node.inputs[0]) * left.size // left.shape[-1] * node.type.size
        pairs = number if node.operation == "scores" else node.inputs[0]
        return self.count(pairs) * type_of(node.inputs[1]).size

    def contracted_time(self, node: Node, stored: Sequence[str | None]) -> tuple[float, str]:
        """Returns the microseconds in which tiles compute a sum of outer products over all rows or steps, and
        what bounds it. Tiles that do not fill the device take the time of those that do.
        """
        tile, parts, is_split = self.contracted_by(node, stored)
        rows, columns = node.type.shape
        blocks = tiles_of(tile, rows, columns) * (parts if is_split else 1)
        turns = ceil(blocks / self.multiprocessors) * self.multiprocessors
        of_block = 2 * tile.rows * tile.columns * self.depth(node) / (parts if is_split else 1)
        rate = FLOPS.get(self.way(node, stored).partition("-")[0], FLOPS["plain"])
        return self.facts.slowness * turns * of_block / rate, "products"

    def contracted_by(self, node: Node, stored: Sequence[str | None]) -> tuple[ProductTile, int, bool]:
        """Returns the tile of such a sum, the parts of its terms, and whether blocks divide these."""
        parts = ceil(self.depth(node) / PART)
        tiles = tiles_for(self.way(node, stored), node.type.dtype)
        rows, columns = node.type.shape
        tile, is_split = chosen(tiles, rows, columns, parts, self.multiprocessors)
        return tile, parts, is_split and parts > 1

    def way(self, node: Node, stored: Sequence[str | None]) -> str:
        """Returns the way in which such a sum multiplies."""
        return way_of(node) or self.options.way(node.type.dtype, *stored)

    def depth(self, node: Node) -> int:
        """Returns the terms of such a sum."""
        left = self.net.type_of(node.inputs[0])
        return self.count(node.inputs[0]) * left.size // left.shape[-1]

    def launches(self, number: int, stored: Sequence[str | None] = (None, None)) -> int:
        """Returns the launches of a node that no kernel of a stage computes: sums of many terms are added up
        in parts. Copies, and a table of the sequence of each entry, are none of them.
        """
        node = self.net.nodes[number]
        if node.operation == "contract" and node.type.extent == CONST:
            return 1 + self.contracted_by(node, stored)[-1]
        if node.operation == "reduce" and node.attributes["how"] not in ENDS:
            every = self.count(node.inputs[0])
            return 1 + ((every if node.type.extent == CONST else self.size.longest) > ROWS_OF_PART)
        return 1

    def count(self, number: int) -> int:
        """Returns the number of values of a node in a call: one, one of each row, or one of each step."""
        return entries(self.net.nodes[number].types[0].extent, self.size)

    def nbytes(self, number: int) -> int:
        """Returns the bytes of all values of a node."""
        type_ = self.net.type_of(number)
        return self.count(number) * type_.size * type_.itemsize


def together(parts: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Returns the sum of some times, and the bound that takes most of it.

    >>> together([(1.0, "products"), (2.0, "main memory"), (1.5, "products")])
    (4.5, 'products')
    """
    by = {bound: sum(time for time, its in parts if its == bound) for _, bound in parts}
    return sum(by.values()), max(by, key=lambda bound: by[bound])


def entries(extent: Extent, size: CallSize) -> int:
    """Returns how many values a call of a size has at an extent. Inner and static sequences, whose lengths a
    size does not have, are taken to have `WORDS` steps, and inputs with steps of their own those of the
    first.

    >>> size = CallSize(2, 6, 12)
    >>> [entries(extent, size) for extent in ((), ("rows",), ("rows", "steps"), ("rows", "steps[+0/2]"))]
    [1, 2, 12, 6]
    >>> entries(("rows", "steps", "steps*"), size), entries(("rows", "keys"), size)
    (72, 64)
    """
    if extent == CONST:
        return 1
    if extent == ROWS:
        return size.filled
    if is_pairs(extent):
        of_row = entries(keys_of(extent), size) / max(1, size.filled)
        # Long sequences have more pairs than the mean.
        uneven = size.filled * sum(n * n for n in size.lengths) / max(1, size.steps) ** 2
        pairs = entries(queries_of(extent), size) * of_row * (uneven or 1)
        return ceil(pairs / 2 if is_causal(extent) else pairs)
    if len(extent) == len(STEPS) and STEPS[-1] in extent[-1]:
        lengths = size.lengths or (size.longest,) * size.filled
        return sum(derived_length(extent[-1], length) for length in lengths)
    return entries(extent[:-1], size) * WORDS


def product_time(net: Net, code: ProductCode, rows: int, options: CudaOptions, facts: TensorFacts) -> float:
    """Estimates the microseconds of a product with vectors of `rows` entries."""
    type_, sizes = net.type_of(code.node), [net.type_of(right).size for right in code.rights]
    way = "bfloat16" if code.is_rounded else options.way(type_.dtype, *code.stored)
    rate = FLOPS.get(way.partition("-")[0], FLOPS["plain"])
    padded = TILE * ceil(ceil(rows * type_.size / net.type_of(code.rights[0]).shape[-1]) / TILE)
    read = sum(sizes) * (8 if type_.dtype == "float64" else 4) / (FEW if padded == TILE else MANY)
    return max(facts.slowness * 2 * padded * sum(sizes) / rate, facts.slowness_of_memory * read)
