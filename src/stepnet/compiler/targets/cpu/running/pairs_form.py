"""The form of operations at pairs of steps in machine code: passes over the keys, and scratch memory.

    scores                    pass 0     products, kept as vectors of keys
    expand(max of these)      pass 1     waits for the maximum, the end of pass 0
    mix                       behind the last pass

A value at pairs is computed anew on a later pass, unless it is costly. Scratch memory is a few buffers, of a
tile of queries with all keys.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.pairs import is_causal
from stepnet.compiler.net.types import is_pairs
from stepnet.compiler.plan.pairs import is_elementwise, mixed_of
from stepnet.compiler.plan.waves import pairs_extent
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.tiles import Tile, tiles
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

SLOT = 8
"""The bytes of a number of a query that is kept until its sums over keys are complete."""


class ScratchBuffer(NamedTuple):
    """Scratch memory of a thread.

    use: "left" or "right" for the operands of `scores`, "values" of a `mix`, and "sums" for its result;
        "pairs" for values at pairs; "slots" for numbers of queries; "line" for a row of the result.
    node: the node that it belongs to; -1 for none.
    bytes, bytes_per_block: its size, in all and for each vector of columns.
    """

    use: str
    node: int
    bytes: int
    bytes_per_block: int


@dataclass(frozen=True)
class PairsForm:
    """Form of the operations of a body for a processor.

    Rows are queries, and columns their keys, or the reverse in a body that sums over queries.
    """

    body: Net
    processor: Processor

    @computed_once
    def products(self) -> list[int]:
        """The nodes that multiply or sum."""
        return [n for n, node in enumerate(self.body.nodes) if node.operation in ("scores", "mix")]

    @property
    def result(self) -> int:
        """The node of the result."""
        return self.body.results[0]

    @property
    def is_turned(self) -> bool:
        """Tells whether the result is at keys: rows are then keys, and columns queries."""
        return any(self.body.nodes[n].attributes.get("over") == "queries" for n in self.products)

    @property
    def is_causal(self) -> bool:
        """Tells whether a query is only with the keys up to its own index."""
        return is_causal(pairs_extent(self.body))

    @property
    def dtype(self) -> str:
        """The dtype of products and sums."""
        return self.body.nodes[self.products[0]].type.dtype

    @property
    def itemsize(self) -> int:
        """The bytes of a number of products and sums."""
        return np.dtype(self.dtype).itemsize

    @property
    def width(self) -> int:
        """The numbers in a vector."""
        return self.processor.vector_bytes // self.itemsize

    @computed_once
    def tile(self) -> Tile:
        """The register tile of products: rows, and vectors of columns or features."""
        return tiles(self.processor, 1, 3)[0]

    @property
    def together(self) -> int:
        """The number of rows whose elementwise operations run together, so that they overlap."""
        return min(4, self.tile.rows)

    @computed_once
    def heads(self) -> int:
        """The number of heads: a value at pairs has as many numbers, or one."""
        return max(node.type.size for node in self.body.nodes if is_pairs(node.type.extent))

    @computed_once
    def features(self) -> int:
        """The number of features of each head of a weighted sum over the keys of a query (an operation
        `mix`), or over the queries of a key; 0 if the operations have no such sum.
        """
        mixes = (self.body.nodes[n] for n in self.products if self.body.nodes[n].operation == "mix")
        return next((node.type.shape[-1] for node in mixes), 0)

    @property
    def units(self) -> int:
        """The vectors of the features of a head."""
        return -(-self.features // self.width)

    @computed_once
    def mixed(self) -> set[int]:
        """The nodes with features of sums over pairs."""
        return mixed_of(self.body, range(len(self.body.nodes)))

    def is_at_pairs(self, number: int) -> bool:
        """Tells whether a node has values at pairs."""
        return is_pairs(self.body.type_of(number).extent)

    # ---- passes

    @computed_once
    def passes(self) -> list[int]:
        """For each node, by its number, the pass (loop over all columns, such as the keys of a query) on
        which its value is known. Values at pairs are known on the pass that computes them. A number of a row
        (such as a query) is known on the first pass that may read it; for a reduction, that is the pass after
        the one that reduces.
        """
        passes = list[int]()
        for node in self.body.nodes:
            own = max((passes[operand] for operand in node.inputs), default=0)
            passes.append(own + 1 if node.operation == "reduce" else own)
        return passes

    @computed_once
    def reductions(self) -> dict[int, list[int]]:
        """For each pass (loop over all columns, such as the keys of a query), by its number, the nodes that
        are reductions over the columns and are computed on it.
        """
        found = dict[int, list[int]]()
        for number, node in enumerate(self.body.nodes):
            if node.operation == "reduce":
                found.setdefault(self.passes[node.inputs[0]], []).append(number)
        return found

    @computed_once
    def stored(self) -> list[int]:
        """The nodes whose values at pairs (a query with a key) are in scratch memory, in order: products,
        inputs, the weights of weighted sums, the result, and values that are costly and read on a later pass
        (loop over all columns).
        """
        nodes, found = self.body.nodes, set[int]()
        for number, node in enumerate(nodes):
            if self.is_at_pairs(number) and (node.operation in ("scores", "input") or number == self.result):
                found.add(number)
            if node.operation == "mix":
                found.add(node.inputs[0])
        for turn, reductions in self.reductions.items():
            for number in reductions:
                self.add_costly(nodes[number].inputs[0], turn, found)
        for number in sorted(found):
            self.add_costly(number, self.passes[number], found)
        return sorted(found)

    def add_costly(self, number: int, turn: int, found: set[int]) -> None:
        """Adds to `found`, the nodes to be stored in scratch memory, those costly values of earlier passes
        from which a node's value at pairs (a query with a key) is computed on a pass. Other values are
        computed again on that pass.

        number: the node. turn: the number of the pass (loop over all columns).
        """
        node = self.body.nodes[number]
        if not self.is_at_pairs(number) or not is_elementwise(node):
            return
        if self.passes[number] < turn and (number in found or node.row.flops > 1):
            found.add(number)
            turn = self.passes[number]
        for operand in node.inputs:
            self.add_costly(operand, turn, found)

    @computed_once
    def slots(self) -> list[int]:
        """The nodes that have one number per row (such as a query) and are read by elementwise operations on
        weighted sums: their numbers are kept in scratch memory until the sums are known.
        """
        nodes = self.body.nodes
        read = {
            operand
            for number in self.mixed
            for operand in nodes[number].inputs
            if is_elementwise(nodes[number])
        }
        return sorted(number for number in read - self.mixed if nodes[number].operation != "constant")

    # ---- memory

    @computed_once
    def buffers(self) -> list[ScratchBuffer]:
        """The scratch memory of a thread."""
        return [*self.each_buffer()]

    def each_buffer(self) -> Iterator[ScratchBuffer]:
        """Yields the scratch buffers of a thread: for the operands and sums of products, for values at pairs
        (a query with a key), for numbers that a row (such as a query) has once, and for a row of the result.
        """
        nodes, rows, width, itemsize = self.body.nodes, self.tile.rows, self.width, self.itemsize
        line = self.units * width * itemsize
        for number in self.products:
            if nodes[number].operation == "scores":
                size = self.size_of(nodes[number])
                yield ScratchBuffer("left", number, rows * size * itemsize, 0)
                yield ScratchBuffer("right", number, 0, size * width * itemsize)
            else:
                yield ScratchBuffer("values", number, 0, width * line)
                yield ScratchBuffer("sums", number, rows * line, 0)
        for number in self.stored:
            each = np.dtype(self.body.type_of(number).dtype).itemsize
            yield ScratchBuffer("pairs", number, 0, rows * width * each)
        yield ScratchBuffer("slots", -1, max(1, len(self.slots)) * rows * SLOT, 0)
        yield ScratchBuffer("line", -1, self.units * width * SLOT, 0)

    def size_of(self, node: Node) -> int:
        """Returns the number of features of the operands of `scores`, over which its products are summed."""
        return self.body.type_of(node.inputs[0]).shape[-1]
