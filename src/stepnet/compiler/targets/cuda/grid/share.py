"""The shares of the blocks of a group in a step: which elements a block computes, and when blocks meet.

The units of a recurrence are divided among the blocks. An element of a value whose size is a multiple of the
number of units belongs to the block of its unit, its index modulo the number of units:

    units          0 1 | 2 3 | 4 5         6 units, 3 blocks
    h              0 1 | 2 3 | 4 5         6 elements
    h @ R          0 1 | 2 3 | 4 5         12 elements
                   6 7 | 8 9 | 10 11

All other values (those of reductions, and of other sizes) every block computes for itself. So blocks meet
only where one reads elements of units that are not its own, such as the left side of a product. A product of
any number of columns, such as the scores of symbols, is divided likewise, and so are long vectors. For the
highest of a long vector each block looks among its own elements, and then among those that all have found.
"""

from collections.abc import Iterable
from functools import cached_property
from math import gcd, prod

import numpy as np

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.cuda.entries.statements import (
    Statement,
    Statements,
    is_by_warps,
    reduced_count,
)
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
LONG = 2048
"""The elements of a vector that is divided among blocks if it is no multiple of the units too."""
MANY = 2**16
"""The numbers that a reduction to several results reads from which blocks divide these."""
FLOATS = "float32", "float64"
"""The dtypes of vectors whose reductions are divided."""


@dataclass(frozen=True)
class Phase:
    """The statements of a level. meets: whether the blocks of the group meet ahead of it."""

    statements: tuple[Statement, ...]
    meets: bool


@dataclass(frozen=True)
class Ownership:
    """The division of the statements of a step among units. units: their number."""

    statements: Statements
    units: int

    @property
    def net(self) -> Net:
        """The net of the step."""
        return self.statements.net

    def is_multiple(self, size: int) -> bool:
        """Tells whether the elements of a value of a size belong to units."""
        return size > 0 and (size % self.units == 0 or size >= LONG)

    @cached_property
    def split(self) -> frozenset[int]:
        """Reductions of long vectors to one number; each block first reduces the elements of its units."""
        net, found = self.net, set[int]()
        for statement in self.statements.all_statements():
            node = net.nodes[statement.number]
            if statement.kind == "reduce" and node.operation in ("max", "argmax") and statement.size == 1:
                type_ = net.type_of(node.inputs[0])
                found |= {statement.number} if type_.size >= LONG and type_.dtype in FLOATS else set()
        return frozenset(found)

    def split_of(self, phase: Phase) -> list[Statement]:
        """Lists the reductions of a phase that are divided."""
        return [s for s in phase.statements if s.kind == "reduce" and s.number in self.split]

    @cached_property
    def uneven(self) -> frozenset[int]:
        """The results of products of several vectors whose columns are no multiple of the units: their
        elements do not belong to the unit of their column.
        """
        shapes = {
            s.number: self.net.nodes[s.number].type.shape
            for s in self.statements.all_statements()
            if s.kind == "product"
        }
        return frozenset(
            number for number, shape in shapes.items() if prod(shape[:-1]) > 1 and shape[-1] % self.units
        )

    @cached_property
    def owned(self) -> frozenset[int]:
        """The stored values and memories of which a block computes the elements of its units."""
        found = {m for m in self.statements.memories if self.is_multiple(self.net.type_of(m).size)}
        for statement in self.statements.with_levels():
            number = statement.number
            if number in self.statements.stored and statement.memory is None and self.is_owned(statement):
                is_copy = statement.kind == "elementwise" and self.statements.is_produced(number)
                found |= set() if is_copy or number in self.statements.memories else {number}
        return frozenset(found)

    def is_owned(self, statement: Statement) -> bool:
        """Tells whether a block computes only the elements of its units."""
        node = self.net.nodes[statement.number]
        if statement.kind == "product":
            return True
        if statement.kind == "concatenate":
            return self.is_multiple(statement.size) and self.keeps_units(node)
        if statement.kind == "reduce":
            terms = 0 if is_by_warps(self.net, node) else statement.size * reduced_count(self.net, node)
            return terms >= MANY and self.is_multiple(statement.size)
        is_divided = self.is_multiple(statement.size) and statement.number not in self.reduced_alone
        return statement.kind == "elementwise" and is_divided

    @cached_property
    def reduced_alone(self) -> frozenset[int]:
        """The short stored values that reductions alone read: each block computes all of them, so that blocks
        need not meet before the reduction.
        """
        statements, read = self.statements, dict[int, set[str]]()
        listed = statements.all_statements()
        for statement in listed:
            kind = "split" if statement.number in self.split else statement.kind
            for number, _ in statements.read_by(statement):
                if number != statement.number:
                    read.setdefault(number, set()).add(kind)
        others = statements.roots | statements.memories.keys() | set(statements.memories.values())
        return frozenset(
            s.number
            for s in listed
            if s.kind == "elementwise" and s.size < LONG
            if s.number not in others and read.get(s.number) == {"reduce"}
        )

    def keeps_units(self, node: Node) -> bool:
        """Tells whether the elements of the parts of a concatenation belong to the same units in it."""
        shapes = [self.net.type_of(operand).shape for operand in node.inputs]
        if not all(self.is_multiple(prod(shape)) for shape in shapes):
            return False
        parts = [np.arange(prod(shape)).reshape(shape) % self.units for shape in shapes]
        joined = np.concatenate(parts, axis=int(node.attributes["axis"])).ravel()
        return bool((joined == np.arange(joined.size) % self.units).all())

    # ---- what is read of other blocks

    def read_of_others(self, statement: Statement) -> set[int]:
        """Returns the values, owned by blocks, of which a statement reads elements of other units."""
        if statement.memory is not None:
            return set()
        is_split = statement.kind == "reduce" and statement.number in self.split
        reads_all = statement.kind == "product" or (statement.kind == "reduce" and not is_split)
        if reads_all or (not self.is_owned(statement) and not is_split):
            return {number for number, _ in self.statements.read_by(statement)} & self.owned
        node, number = self.net.nodes[statement.number], statement.number
        if is_split:
            return self.crossed(node.inputs[0], np.arange(self.net.type_of(node.inputs[0]).size))
        if statement.kind == "concatenate":
            return set[int]().union(
                *(self.crossed(n, np.arange(self.net.type_of(n).size)) for n in node.inputs)
            )
        if number in self.statements.sources or self.statements.is_produced(number):
            return set()
        return self.inside(number, np.arange(statement.size))

    def crossed(self, number: int, at: Array) -> set[int]:
        """Returns the values of which elements of other units are read for elements of a node.

        at: for each element of a statement the flat index of the node's element that it reads.
        """
        if number in self.uneven:
            return {number}
        if number in self.owned:
            return set() if (at % self.units == np.arange(at.size) % self.units).all() else {number}
        if number in self.statements.stored or number in self.statements.sources:
            return set()
        return self.inside(number, at)

    def inside(self, number: int, at: Array) -> set[int]:
        """Returns the same for the expression of a node."""
        node, found = self.net.nodes[number], set[int]()
        for operand in node.inputs:
            shape = self.net.type_of(operand).shape
            places = np.arange(prod(shape)).reshape(shape)
            if node.kind == "pointwise":
                shown = np.broadcast_to(places, node.type.shape)
            elif node.operation in ("reshape", "expand"):
                shown = places
            elif node.operation == "slice":
                slices = node.attributes["slices"]
                cuts = [slice(*each) for each in slices]
                shown = places[(..., *cuts)] if all(each[2] > 0 for each in slices) else None
            else:
                shown = None
            if shown is None or shown.size != node.type.size:
                found |= {n for n, _ in self.statements.expression([(operand, ())])} & self.owned
            else:
                found |= self.crossed(operand, shown.ravel()[at])
        return found

    # ---- phases

    @cached_property
    def plan(self) -> tuple[tuple[Phase, ...], bool]:
        """The levels of a step, and whether the blocks meet at its end."""
        listed, phases = self.statements.with_levels(), list[Phase]()
        written, crossing = set[int](), set[int]()
        dirty = set[int]()
        for level in sorted({statement.level for statement in listed}):
            together = tuple(s for s in listed if s.level == level)
            read = set[int]().union(*map(self.read_of_others, together))
            crossing |= read & self.statements.memories.keys()
            meets = bool(written & read)
            if meets:
                written, dirty = set[int](), set[int]()
            phases.append(Phase(together, meets))
            for statement in together:
                written.add(statement.number)
                dirty |= self.memories_of(statement)
        return tuple(phases), bool(dirty & crossing)

    def memories_of(self, statement: Statement) -> set[int]:
        """Returns the memories to which a statement writes."""
        if statement.memory is not None:
            return {statement.memory}
        pairs = self.statements.memories.items()
        return {m for m, f in pairs if f == statement.number and m not in self.statements.late}


@dataclass(frozen=True)
class GridShare:
    """Division of a step's units among blocks. own: the units of a block; the last one may have fewer."""

    owners: Ownership
    own: int

    @property
    def units(self) -> int:
        """The number of units in all."""
        return self.owners.units

    @property
    def blocks(self) -> int:
        """The blocks of a group."""
        return -(-self.units // self.own)

    def own_columns(self, columns: int) -> int:
        """Returns the number of columns of a matrix in a block, columns of absent units included."""
        return -(-columns // self.units) * self.own


def lefts_of(net: Net, statements: Iterable[Statement]) -> tuple[int, ...]:
    """Returns the left sides of the products among some statements, each once."""
    found = dict[int, None]()
    for statement in statements:
        if statement.kind == "product":
            node = net.nodes[statement.number]
            product = net.nodes[node.inputs[0]] if node.operation == "result" else node
            found |= dict.fromkeys(product.sides[0])
    return tuple(found)


def products_of(statements: Statements) -> list[Node]:
    """Lists the nodes of products in the statements of a step, each once."""
    net, found = statements.net, dict[int, Node]()
    for statement in statements.all_statements():
        if statement.kind == "product":
            node = net.nodes[statement.number]
            number = node.inputs[0] if node.operation == "result" else statement.number
            found[number] = net.nodes[number]
    return list(found.values())


def units_of(statements: Statements) -> int:
    """Returns the number of units of a step: that of the memories which are multiplied, or else the largest
    number that divides the columns of all products and the lengths of their left sides. Returns 0 for a step
    whose products cannot be divided: one without products, with few columns of which warps add up each, of
    other numbers than float32, or with matrices that are not constant.
    """
    net, found, units = statements.net, 0, 0
    products = [net.nodes[s.number] for s in statements.all_statements() if s.kind == "product"]
    if any(is_by_warps(net, node) for node in products):
        return 0
    for node in products_of(statements):
        lefts, rights = node.sides
        if node.attributes.get("weights") is not None or any(t.dtype != "float32" for t in node.types):
            return 0
        if any(net.type_of(n).dtype != "float32" for n in (*lefts, *rights)):
            return 0
        if any(net.type_of(right).extent != CONST for right in rights):
            return 0
        lengths = {left: net.type_of(left).shape[-1] for left in lefts}
        found = gcd(found, *lengths.values(), node.types[0].shape[-1])
        units = gcd(units, *(lengths[left] for left in lefts if statements.base(left) in statements.memories))
    return units or found
