"""The form of a loop that many blocks share: what lies where, and an estimate of the time of a step.

A step takes the time of its meetings, of the reading of the left sides of products (all of them by each
block), and of the products. Without tensor cores these are chains of fused multiply-adds over k, each of
which waits for its operands from shared memory: `GridForm.microseconds` estimates 17 us for a GRU of 1024
units and 16 sequences, of which a block keeps 8 units (96 KB), as was measured on an H100. With them it is
the instructions of a warp, or the reads of weights that are not kept (`grid/tiles.py`).
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from math import ceil, prod

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.entries.room import ALIGNMENT, StoredValue, stored_values
from stepnet.compiler.targets.cuda.entries.statements import (
    Statement,
    Statements,
    found_with,
    is_by_warps,
    reduced_count,
)
from stepnet.compiler.targets.cuda.grid.products import Areas, vectors_of_thread
from stepnet.compiler.targets.cuda.grid.share import GridShare, Ownership, lefts_of, products_of, units_of
from stepnet.compiler.targets.cuda.grid.tensor import TileAreas
from stepnet.compiler.targets.cuda.grid.tiles import GridTiles, grid_products, left_stride, tiles_time
from stepnet.compiler.targets.cuda.loops.loop import LoopForm
from stepnet.compiler.targets.cuda.tensor.facts import H100, facts_of
from stepnet.compiler.targets.cuda.tensor.numbers import Precision
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

Value = ir.Value
COUNTER = 256
"""The bytes of a group's scratch memory with the number of blocks that have come to meetings."""
STEP, MEETING, READS = 1.0, 1.5, 16e3
"""Microseconds of a step and of a meeting; the bytes that a block reads in a microsecond."""
LINK, FUSED = 6.9e-3, 0.58e-3
"""Microseconds of a k in a chain over k, which waits for shared memory, and of each multiply-add of a thread
for it. These and the others were fitted to the times of an H100 in bench/saved/gpu-target-h100.json.
"""
REDUCED = 1.3
"""Microseconds of a sum over features, which lie in main memory."""
REDUCING = 12
"""The instructions of a lane for a number of a value in shared memory that it reduces, as an estimate."""
MOST_THREADS = 1024
"""The most threads of a block."""


@dataclass(frozen=True)
class GridForm(LoopForm):
    """A plan's step, and how a group of blocks runs it.

    owners: the division of the step among units. own: the units of a block.
    numbers: the format in which tensor cores multiply float32; None for products without them.
    groups: the number of groups that run at once and read weights, by which the time is estimated.
    slowness: of main memory, by that of instructions, beside an H100's.
    """

    owners: Ownership
    own: int
    numbers: Precision | None = None
    groups: int = 1
    slowness: float = 1.0

    @computed_once
    def share(self) -> GridShare:
        """The division of the step among the blocks."""
        return GridShare(self.owners, self.own)

    @computed_once
    def statements(self) -> Statements:
        """The statements of the step."""
        return self.owners.statements

    @computed_once
    def placed(self) -> tuple[tuple[StoredValue, ...], Areas | TileAreas, int, int]:
        """The places of stored values and of the operands of products, and the bytes of shared memory and of
        scratch memory of a group. What does not fit beside them are weights alone.
        """
        values, used, scratch = list[StoredValue](), ALIGNMENT, COUNTER
        for value in stored_values(self.statements):
            count = aligned(self.group_rows * value.size * np.dtype(value.dtype).itemsize)
            is_owned = value.number in self.owners.owned
            times = 2 if is_owned or value.number in self.statements.memories else 1
            values.append(replace(value, offset=scratch if is_owned else used, is_shared=not is_owned))
            used, scratch = (used, scratch + times * count) if is_owned else (used + times * count, scratch)
        areas, used = self.areas(used) if self.numbers is None else self.tile_areas(used, self.numbers)
        return tuple(values), areas, used, scratch

    def areas(self, used: int) -> tuple[Areas, int]:
        """Returns the places of the operands of products without tensor cores, and the bytes until their end.

        used: the bytes of shared memory before them.
        """
        net, weights, nodes = self.body, dict[int, int](), products_of(self.statements)
        lefts, used = self.left_places(used, lambda length: length)
        for right in dict.fromkeys(right for node in nodes for right in node.sides[1]):
            length, columns = net.type_of(right).shape
            count = 16 * -(-length // 4) * self.share.own_columns(columns)
            if used + count <= self.shared:
                weights[right] = used
                used += count
        return Areas(lefts, weights), used

    def left_places(self, used: int, stride: Callable[[int], int]) -> tuple[dict[int, int], int]:
        """Returns the places in shared memory of left sides, and the bytes until their end. Those that are
        multiplied in other phases have the same places.

        used: the bytes before them. stride: from a vector of a length to the next one.
        """
        net, places, ends, end = self.body, dict[int, int](), dict[int, int](), used
        for phase in self.owners.plan[0]:
            lefts = lefts_of(net, phase.statements)
            at = max((ends[left] for left in lefts if left in ends), default=used)
            for left in lefts:
                if left not in places:
                    type_, places[left] = net.type_of(left), at
                    length = type_.shape[-1]
                    at += aligned(4 * self.group_rows * type_.size // length * stride(length))
                    ends[left] = at
            end = max(end, at)
        return places, end

    def tile_areas(self, used: int, numbers: Precision) -> tuple[TileAreas, int]:
        """Returns the places of the operands of products on tensor cores, and the bytes until their end.

        used: the bytes of shared memory before them. numbers: the format in which float32 is multiplied.
        """
        net, weights = self.body, dict[tuple[int, int], int]()
        products, tiles = grid_products(self.statements), dict[int, GridTiles]()
        lefts, used = self.left_places(used, left_stride)
        for product in products:
            lengths = tuple(net.type_of(left).shape[-1] for left in product.lefts)
            own = self.share.own_columns(product.columns)
            vectors = self.group_rows * product.lead
            tiles[product.key] = GridTiles(len(product.rights), own, vectors, lengths, numbers)
        most = max(each.streamed.sums_bytes for each in tiles.values())
        for product in products:
            its = tiles[product.key]
            counts = [its.weight_bytes(length) for length in its.lengths]
            if used + sum(counts) + aligned(max(most, its.sums_bytes)) > self.shared:
                tiles[product.key] = its.streamed
                continue
            most = max(most, its.sums_bytes)
            for place, count in enumerate(counts):
                weights[product.key, place] = used
                used += count
        return TileAreas(lefts, used, weights, tiles), used + aligned(most)

    @computed_once
    def found(self) -> dict[int, int]:
        """The places in scratch memory of the blocks' partial reductions of long vectors, by node."""
        net, split = self.body, sorted(self.owners.split)
        operands = dict.fromkeys(net.nodes[number].inputs[0] for number in split)
        return {number: self.placed[3] + place * self.found_bytes for place, number in enumerate(operands)}

    @property
    def found_count(self) -> int:
        """The numbers that all warps of a row find in a long vector, of all blocks."""
        return self.share.blocks * (self.threads // self.group_rows // LANES)

    @property
    def found_bytes(self) -> int:
        """The bytes for the numbers and their places, in two places that steps use in turn."""
        return 2 * aligned(16 * self.group_rows * self.found_count)

    @property
    def scratch(self) -> int:
        """The bytes of a group in main memory: the counter, values of units, and results of long vectors."""
        return self.placed[3] + len(self.found) * self.found_bytes

    @property
    def times(self) -> dict[str, float]:
        """Estimates of the microseconds of a step, by the resource that takes them."""
        net, (phases, at_end) = self.body, self.owners.plan
        meetings = sum(phase.meets + bool(self.owners.split_of(phase)) for phase in phases) + at_end
        reduced = [each for phase in phases for each in found_together(net, phase.statements)]
        lefts = (left for node in products_of(self.statements) for left in node.sides[0])
        depth = sum(net.type_of(left).shape[-1] for left in lefts)
        return {
            "the loop": STEP,
            "meetings of blocks": MEETING * meetings,
            "reads of left operands": 4 * self.group_rows * depth / READS,
            "products": self.multiplied,
            "reductions": sum(map(self.reduction_time, reduced)),
        }

    def reduction_time(self, statement: Statement) -> float:
        """Estimates the microseconds of a reduction of values in main memory or in shared memory, or of long
        vectors, of which each block reduces a part.
        """
        lanes, is_owned = self.threads // self.group_rows, self.owners.is_owned(statement)
        if statement.number in self.owners.split:
            return 2 * reduced_time(self.statements, statement, lanes, self.share.blocks)
        if self.owners.read_of_others(statement) and not is_owned:
            return REDUCED
        return reduced_time(self.statements, statement, lanes, self.share.blocks if is_owned else 1)

    @property
    def microseconds(self) -> float:
        """An estimate of the time of a step."""
        return sum(self.times.values())

    @property
    def bound(self) -> str:
        """The name of the resource that takes the longest."""
        name = max(self.times, key=lambda name: self.times[name])
        areas = self.placed[1]
        is_read = isinstance(areas, TileAreas) and not all(each.is_kept for each in areas.tiles.values())
        return f"{name}, with weights that are read at each step" if is_read and name == "products" else name

    @property
    def multiplied(self) -> float:
        """An estimate of the time of the products of a step, with the reads of their weights."""
        net, areas, share = self.body, self.placed[1], self.share
        if isinstance(areas, TileAreas):
            blocks = share.blocks * self.groups
            return tiles_time([*areas.tiles.values()], self.threads, blocks, self.slowness)
        nodes = products_of(self.statements)
        away = sum(
            4 * prod(net.type_of(r).shape) / share.blocks
            for node in nodes
            for r in node.sides[1]
            if r not in areas.weights
        )
        return away / READS + sum(map(self.chain_time, nodes))

    def chain_time(self, node: Node) -> float:
        """Estimates the microseconds of the chains of a product."""
        shape, share = node.types[0].shape, self.share
        vectors = self.group_rows * prod(shape[:-1])
        columns = share.own_columns(shape[-1])
        abreast = vectors_of_thread(vectors, columns, len(node.types))
        turns = ceil(vectors // abreast * columns / self.threads)
        depth = sum(self.body.type_of(left).shape[-1] for left in node.sides[0])
        return turns * depth * (LINK + FUSED * abreast * len(node.types))


def reduced_time(statements: Statements, statement: Statement, threads: int, blocks: int = 1) -> float:
    """Estimates the microseconds of a reduction of a value in shared memory, with a barrier. Nothing of it
    was measured. threads: of a sequence. blocks: that share the value, or the results.
    """
    net = statements.net
    node = net.nodes[statement.number]
    lanes = LANES if is_by_warps(net, node) else 1
    each, results = reduced_count(net, node) / lanes, statement.size
    each, results = (each / blocks, results) if results == 1 else (each, results / blocks)
    return H100.barrier + H100.warp * REDUCING * ceil(each) * ceil(results * lanes / threads)


def found_together(net: Net, statements: Iterable[Statement]) -> list[Statement]:
    """Lists the reductions among the statements of a level. The largest numbers of a value and their places
    are one reduction.
    """
    found = dict[Hashable, Statement]()
    for statement in statements:
        if statement.kind == "reduce":
            found.setdefault(found_with(net, statement), statement)
    return list(found.values())


def aligned(count: int) -> int:
    """Returns a number of bytes, rounded up so that what follows is aligned."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def ownership(statements: Statements) -> Ownership | None:
    """Returns the division of a step among units; None if it cannot be divided."""
    units = units_of(statements)
    return Ownership(statements, units) if units else None


def grid_form(
    plan: Plan,
    group_rows: int,
    facts: DeviceFacts,
    threads: int = 256,
    own: int | None = None,
    flag: int | None = None,
    numbers: Precision | None = None,
    owners: Ownership | None = None,
    groups: int = 1,
) -> GridForm | None:
    """Returns the form of a plan's loop for a group of blocks; None if its step cannot be divided among
    blocks of the device.

    group_rows: the sequences that a group runs at a time: a power of two. threads: the number of threads of a
    block.
    own: the units of a block; None for as few as there are multiprocessors for.
    flag: the position of the bool memory that ends a sequence early, if one does.
    numbers: the format in which tensor cores multiply float32; None for products without them.
    owners: the division of the step among units, if it is known. groups: the number of groups that run at
        once.
    """
    owners = owners or ownership(LoopForm(plan, group_rows, threads, facts.shared).statements)
    if owners is None:
        return None
    if owners.statements.uses_warps:
        threads = max(threads, group_rows * LANES)
    if group_rows > threads:
        return None
    own = own or max(4, -(-owners.units // facts.multiprocessors))
    row = facts_of(facts)
    slowness = row.slowness_of_memory / row.slowness
    form = GridForm(
        plan, group_rows, threads, facts.shared, owners, own, numbers, groups, slowness, flag=flag
    )
    fits = form.placed[2] <= facts.shared and form.share.blocks <= facts.multiprocessors
    return form if fits and threads <= MOST_THREADS else None
