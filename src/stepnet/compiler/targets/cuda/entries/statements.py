"""The statements of an entry: which values are stored, and the levels in which they are computed.

A value of an entry is an expression of its operands' elements, except where something reads other elements of
it: then it is stored, and a barrier stands between its statement and those that read it.

    level 0     p = h @ R               all columns                     statement "product"
    barrier
    level 1     h = tanh(x + p)         each element, in one loop       statement "elementwise"
    barrier
"""

from collections.abc import Hashable, Iterable
from dataclasses import field, replace
from functools import cached_property
from math import prod
from typing import Literal

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.cuda.entries.selections import selections_of
from stepnet.compiler.values.records import dataclass

Kind = Literal["elementwise", "product", "scales", "reduce", "scan", "concatenate"]
Signature = tuple[Hashable, ...]
EXPENSIVE = 10
"""The operations of an element from which it is stored rather than computed twice."""
FEW = 4
"""The most terms of a sum over features that is part of an expression."""
MOST_READ = 256
"""The most elements that an expression reads or computes, with all that it is made of."""
LONG, NARROW, NARROW_ROWS = 32, 8, 128
"""A warp computes a result of at least LONG elements if there are at most NARROW results, or NARROW_ROWS if
the elements of each lie side by side.
"""


@dataclass(frozen=True)
class Statement:
    """A loop over the elements of a value of an entry.

    number: the node, of which all elements are computed. size: their number. level: when it runs.
    memory: the memory to which it copies the value, after all else; None for others.
    """

    kind: Kind
    number: int
    size: int
    level: int = 0
    memory: int | None = None


def reduced_axes(net: Net, node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the kept and the reduced axes of a reduction's operand, counted from the front."""
    rank = len(net.type_of(node.inputs[0]).shape)
    reduced = {axis % rank for axis in node.attributes["axes"]}
    return tuple(a for a in range(rank) if a not in reduced), tuple(sorted(reduced))


def reduced_count(net: Net, node: Node) -> int:
    """Returns the number of elements that a reduction combines for one result."""
    shape = net.type_of(node.inputs[0]).shape
    return prod(shape[axis] for axis in reduced_axes(net, node)[1])


def is_by_warps(net: Net, node: Node) -> bool:
    """Tells whether a warp computes each result of a reduction or a product, and not a thread. It depends on
    nothing but the net: neither on threads nor on rows, so that the bits of a result do not.
    """
    if node.kind == "reduce":
        beside = reduced_axes(net, node)[1][-1:] == (len(net.type_of(node.inputs[0]).shape) - 1,)
        most = NARROW_ROWS if beside else NARROW
        return reduced_count(net, node) >= LONG and node.type.size <= most
    product = net.nodes[node.inputs[0]] if node.operation == "result" else node
    long = max(net.type_of(left).shape[-1] for left in product.sides[0]) >= LONG
    return long and node.type.size <= NARROW and product.attributes.get("weights") != "int8"


def found_with(net: Net, statement: Statement) -> Hashable:
    """Returns the key of reductions found together: a value's largest numbers, and their places."""
    node = net.nodes[statement.number]
    is_largest = statement.kind == "reduce" and node.operation in ("max", "argmax")
    return ("largest", node.inputs, reduced_axes(net, node)) if is_largest else ("alone", statement.number)


@dataclass
class Statements:
    """The statements of some values of an entry.

    sources: the nodes whose elements can be read: arrays, constants and memories.
    wanted: the nodes whose elements go to arrays.
    memories: for each memory, by node, the node of its next value. Memories are sources.
    """

    net: Net
    sources: frozenset[int]
    wanted: tuple[int, ...]
    memories: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        """Finds the stored values and the statements."""
        self.selections = selections_of(self.net)
        self.steps = dict[int, list[tuple[int, Signature]]]()
        self.known = dict[Hashable, set[tuple[int, Signature]]]()
        self.stored = set[int]()
        self.late = set[int]()
        self.forced()
        before = None
        while before != (len(self.stored), len(self.late)):
            before = len(self.stored), len(self.late)
            self.stored |= self.worth_storing()
            self.rewrite_early()

    # ---- what is stored

    @property
    def roots(self) -> set[int]:
        """The nodes of which all elements go to arrays or, as soon as they are computed, to memories."""
        early = {f for m, f in self.memories.items() if m not in self.late and f != m}
        return {*self.wanted, *early}

    @cached_property
    def needed(self) -> set[int]:
        """The nodes that are computed, or read."""
        reached, waiting = set[int](), [*self.wanted, *self.memories.values()]
        while waiting:
            number = waiting.pop()
            if number not in reached:
                reached.add(number)
                waiting += [] if number in self.sources else self.net.nodes[number].inputs
        return reached

    def is_produced(self, number: int) -> bool:
        """Tells whether a node has a statement of its own kind, which is not elementwise."""
        return number not in self.sources and self.producer_kind(number) is not None

    def producer_kind(self, number: int) -> Kind | None:
        """Returns the kind of the statement that computes a node; None for an elementwise one."""
        node = self.net.nodes[number]
        if node.kind == "matmul" or (node.operation == "result" and self.reads_products(node)):
            return "product"
        if node.kind == "reduce":
            few = reduced_count(self.net, node) <= FEW and node.operation != "argmax"
            return None if few else "reduce"
        if node.kind == "scan":
            return "scan"
        return "concatenate" if node.operation == "concatenate" else None

    def reads_products(self, node: Node) -> bool:
        """Tells whether a `result` node picks one of several sums of products."""
        return self.net.nodes[node.inputs[0]].operation == "products"

    def forced(self) -> None:
        """Marks the values that other threads read: results of products, reductions, scans, and left sides
        of products. Marks values of expressions that would be too long too, as of short sums of short sums.
        """
        self.scaled = set[int]()
        for number in sorted(self.needed - self.sources):
            node = self.net.nodes[number]
            if self.is_produced(number) and node.operation != "products":
                self.stored.add(number)
            if node.kind == "matmul":
                for left in node.sides[0]:
                    base = self.base(left)
                    if base not in self.memories:
                        self.stored.add(base)
                    if node.attributes.get("weights") == "int8":
                        self.scaled.add(left)
            can_be_stored = node.kind in ("pointwise", "reduce") and node.type.extent != CONST
            if can_be_stored and len(self.expression([(number, ())])) > MOST_READ:
                self.stored.add(number)

    def base(self, number: int) -> int:
        """Returns the value that a node shows: that behind its views."""
        while self.net.nodes[number].is_view and number not in self.sources | self.stored:
            number = self.net.nodes[number].inputs[0]
        return number

    # ---- what statements read

    def operands(self, number: int, signature: Signature) -> Iterable[tuple[int, Signature]]:
        """Returns what an element of an expression reads, each with the steps that led from the place of the
        statement's element to its place: none for the same flat index.
        """
        if number not in self.steps:
            self.steps[number] = [*self.steps_of(number)]
        return [(operand, signature + steps) for operand, steps in self.steps[number]]

    def steps_of(self, number: int) -> Iterable[tuple[int, Signature]]:
        """Yields what an element of a node reads, with the steps from its place."""
        node = self.net.nodes[number]
        if (selection := self.selections.get(number)) is not None:
            yield selection.index, (self.net.type_of(selection.index).shape,)
            yield selection.value, (number,)
        elif node.kind == "pointwise":
            for operand in node.inputs:
                type_ = self.net.type_of(operand)
                yield operand, () if type_.size == node.type.size else (type_.shape,)
        elif node.kind == "reduce":
            for term in range(reduced_count(self.net, node)):
                yield node.inputs[0], (number, term)
        elif node.operation in ("expand", "reshape"):
            yield node.inputs[0], ()
        elif node.operation == "gather":
            yield node.inputs[0], (number, "table")
            same = node.type.size == self.net.type_of(node.inputs[1]).size
            yield node.inputs[1], () if same else (number,)
        else:
            for operand in node.inputs:
                yield operand, (number,)

    def expression(self, numbers: Iterable[tuple[int, Signature]]) -> set[tuple[int, Signature]]:
        """Returns the nodes of expressions with their places. It ends at stored values and sources."""
        seen, waiting = set[tuple[int, Signature]](), list(numbers)
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                if one[0] not in self.stored and one[0] not in self.sources:
                    waiting += self.operands(*one)
        return seen

    def read_by(self, statement: Statement) -> set[tuple[int, Signature]]:
        """Returns the nodes that a statement reads or computes, with their places."""
        key = statement.kind, statement.number, statement.memory, len(self.stored)  # which only grows
        if key not in self.known:
            self.known[key] = self.found_by(statement)
        return self.known[key]

    def found_by(self, statement: Statement) -> set[tuple[int, Signature]]:
        """Returns the nodes that a statement reads or computes, for what is stored now."""
        number, node = statement.number, self.net.nodes[statement.number]
        if statement.memory is not None:
            return {(number, ())}
        if statement.kind == "scales":
            return self.expression([(number, ("in", number))])
        if statement.kind == "elementwise":
            if number in self.sources or self.is_produced(number):
                return {(number, ())}
            return {(number, ()), *self.expression(self.operands(number, ()))}
        if node.operation == "result":
            node = self.net.nodes[node.inputs[0]]
        inside = [(operand, ("in", number)) for operand in node.inputs]
        return self.expression(inside)

    # ---- levels

    def all_statements(self) -> list[Statement]:
        """Lists the statements in the order of their nodes, without levels."""
        found = list[Statement]()
        for number in sorted(self.stored | self.roots | self.scaled):
            node = self.net.nodes[number]
            if number in self.stored and self.is_produced(number):
                kind = self.producer_kind(number)
                assert kind is not None
                found.append(Statement(kind, number, node.type.size))
                if number in self.roots:
                    found.append(Statement("elementwise", number, node.type.size))
            elif number in self.stored | self.roots:
                found.append(Statement("elementwise", number, node.type.size))
            if number in self.scaled:
                found.append(Statement("scales", number, prod(node.type.shape[:-1])))
        return found

    @property
    def uses_warps(self) -> bool:
        """Tells whether a warp computes some result, so that each row needs whole warps."""
        return any(
            is_by_warps(self.net, self.net.nodes[statement.number])
            for statement in self.all_statements()
            if statement.kind in ("reduce", "product")
        )

    def with_levels(self) -> list[Statement]:
        """Lists the statements with their levels: after all that they read of other threads."""
        made, known, scales = list[Statement](), dict[int, Statement](), dict[int, int]()
        for statement in self.all_statements():
            level = 0
            if statement.kind == "product":
                level = max((scales[left] + 1 for left in self.lefts(statement) if left in scales), default=0)
            for number, signature in self.read_by(statement):
                other = known.get(number)
                if other is None or (number == statement.number and statement.kind == other.kind):
                    continue
                along = (
                    not signature
                    and other.kind == statement.kind == "elementwise"
                    and other.size == statement.size
                )
                level = max(level, other.level + (0 if along else 1))
            placed = replace(statement, level=level)
            made.append(placed)
            if statement.kind == "scales":
                scales[statement.number] = level
            elif statement.number in self.stored:
                known.setdefault(statement.number, placed)
        last = max((s.level for s in made), default=-1) + 1
        for memory in sorted(self.late):
            following = self.memories[memory]
            made.append(Statement("elementwise", following, self.net.type_of(following).size, last, memory))
        return made

    def lefts(self, statement: Statement) -> tuple[int, ...]:
        """Returns the left sides of the product of a statement that need scales."""
        node = self.net.nodes[statement.number]
        product = self.net.nodes[node.inputs[0]] if node.operation == "result" else node
        return product.sides[0] if product.attributes.get("weights") == "int8" else ()

    def worth_storing(self) -> set[int]:
        """Returns the nodes that would be computed more than once, at a cost, if they were not stored."""
        times = dict[int, int]()
        groups = dict[Hashable, list[Statement]]()
        for at, statement in enumerate(self.with_levels()):
            key: Hashable = found_with(self.net, statement) if statement.kind == "reduce" else at
            if statement.kind == "elementwise":
                key = statement.level, statement.size
            groups.setdefault(key, []).append(statement)
        for group in groups.values():
            apart = group[:1] if group[0].kind == "reduce" else group
            read = set[tuple[int, Signature]]().union(*map(self.read_by, apart))
            for number, _ in read:
                if number not in self.stored and number not in self.sources:
                    times[number] = times.get(number, 0) + self.elements_read(group[0])
        found = set[int]()
        for number, count in times.items():
            node = self.net.nodes[number]
            if node.kind in ("pointwise", "gather") and node.type.extent != CONST:
                repeated = count / max(node.type.size, 1)
                if repeated >= 1.5 and self.cost(number) >= EXPENSIVE:
                    found.add(number)
        return {n for n in found if not any(n in self.inside(m) for m in found - {n})}

    def elements_read(self, statement: Statement) -> int:
        """Returns the number of elements of an expression that a statement computes."""
        if statement.kind == "elementwise":
            return statement.size
        node = self.net.nodes[statement.number]
        return max((self.net.nodes[operand].types[0].size for operand in node.inputs), default=0)

    def cost(self, number: int) -> int:
        """Returns the operations of one element of an expression."""
        return sum(self.net.nodes[n].row.flops for n in self.inside(number) | {number})

    def inside(self, number: int) -> set[int]:
        """Returns the nodes of a node's expression, without the node itself and without stored nodes."""
        return {
            n
            for n, _ in self.expression(self.operands(number, ()))
            if n not in self.stored and n not in self.sources
        }

    # ---- memories

    def rewrite_early(self) -> None:
        """Marks the memories that other statements still read when their next value is computed: the next
        values are stored, and copied after all else.
        """
        statements = self.with_levels()
        for memory, following in self.memories.items():
            own = [s for s in statements if s.number == following and s.kind == "elementwise"]
            if (
                memory not in self.late
                and following != memory
                and self.is_read_later(memory, own[0], statements)
            ):
                self.late.add(memory)
                if following not in self.sources:
                    self.stored.add(following)

    def is_read_later(self, memory: int, own: Statement, statements: list[Statement]) -> bool:
        """Tells whether a statement reads a memory when, or after, its next value is written, other than each
        element ahead of its own new one. own: the statement of the next value.
        """
        for other in statements:
            read = {signature for number, signature in self.read_by(other) if number == memory}
            same_loop = (other.kind, other.level, other.size) == (own.kind, own.level, own.size)
            if read and not (other.level < own.level or (same_loop and read == {()})):
                return True
        return False
