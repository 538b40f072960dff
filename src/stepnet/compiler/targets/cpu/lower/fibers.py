"""The execution order of a phase's work on fibers, and the memory order of fibers; see
`compiler/plan/fibers.py`.

    level 0    elementwise work on the units
    level 1    for each depth: the elements of the fibers are computed, added to sums, stored
    level 2    elementwise work on the units, which reads the sums
    level 3    for each depth ...

A group of units, some vectors wide, goes through all levels before the next group begins. In memory its
fibers are interleaved, depth by depth:

    [group of units][depth][unit]
"""

from collections.abc import Container
from dataclasses import field
from functools import cached_property

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.plan.fibers import Fibers
from stepnet.compiler.plan.passes.rewrite import readers_of, view_chain
from stepnet.compiler.plan.phases import joins, sharing
from stepnet.compiler.values.records import dataclass

ABREAST = (4, 2, 1)
"""The numbers of vectors in a group of units, in order of preference: independent sums hide latency."""
CHEAP = 4
"""The largest number of operations for which a value is recomputed on a later level, not stored and loaded.
"""
Array = np.ndarray


def group_width(fibers: Fibers, units: int, width: int) -> int:
    """Chooses how many units are computed together as a group, in whole vectors: the number for which most
    values are read by one load, because the units of a group read the same element or contiguous ones.

    fibers: the fibers of a step, each the elements of a matrix that are summed to one result, a unit. units:
        the number of units. width: the number of elements of a vector.
    """
    vectors = -(-units // width)
    widths = [width * count for count in ABREAST if vectors % count == 0]
    read = fibers.first_indices(units)
    return max(
        widths, key=lambda group: (sum(runs_in_groups(read_indices, group) for read_indices in read), group)
    )


def runs_in_groups(indices: Array, group: int) -> bool:
    """Tells whether each group of units (results of sums) reads one element, or contiguous ones, as one load
    can do.

    indices: the index of the element that each unit reads.

    >>> runs_in_groups(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 4), runs_in_groups(np.array([0, 0, 1, 1]), 4)
    (True, False)
    """
    steps = np.diff(in_groups(indices[None], group)[:, 0], axis=1)
    return bool(np.all((steps == 0).all(axis=1) | (steps == 1).all(axis=1)))


@dataclass(frozen=True, eq=False)
class FiberStorage:
    """Memory order of a matrix that is cut into fibers (the elements that a reduction combines for one unit).

    indices: the index of its element at each depth and unit, [depth, units].
    group: the units of a group.
    """

    indices: Array
    group: int

    @cached_property
    def order(self) -> Array:
        """For each position in memory, where the matrix is stored fiber by fiber (the elements that a sum
        combines together), the index of the element that is stored there. Padding repeats the last unit.
        """
        return in_groups(self.indices, self.group).ravel()

    @cached_property
    def index(self) -> Array:
        """For each element of the matrix, in C order, its position in memory. The matrix is stored fiber by
        fiber; a fiber is the elements that one sum combines.
        """
        depth, units = self.indices.shape
        index = np.empty(depth * units, np.int64)
        numbers = np.arange(depth * units, dtype=np.int64).reshape(depth, units)
        stored = in_groups(numbers, self.group).ravel()
        # Padding repeats the last unit: of equal entries the first is the element.
        first = np.full(depth * units, -1)
        first[stored[::-1]] = np.arange(len(stored))[::-1]
        index[self.indices.ravel()] = first
        return index


def in_groups(numbers: Array, group: int) -> Array:
    """Rearranges an array [depth, units] to [groups, depth, units of a group], the order in which a matrix is
    stored in memory. The last group is padded with copies of the last unit.

    group: the number of units of a group, whose fibers (elements summed to one result, a unit) are worked on
        together.
    """
    depth, units = numbers.shape
    groups = -(-units // group)
    padded = np.concatenate([numbers, np.repeat(numbers[:, -1:], groups * group - units, axis=1)], axis=1)
    return padded.reshape(depth, groups, group).swapaxes(0, 1)


@dataclass(eq=False)
class FiberWork:
    """Work on fibers, the elements of a matrix that a reduction combines for one unit: nodes of one
    phase with the same number of units, which are computed level by level for a group of units at a
    time.

    units: the number of units.
    members: the nodes.
    stored: the nodes that are read outside.
    level: for each node its level: even for elementwise work on units, odd for work on fibers.
    again: for each level, the nodes that are recomputed there.
    """

    fibers: Fibers
    units: int
    members: tuple[int, ...]
    stored: Container[int]
    level: dict[int, int] = field(init=False, default_factory=dict[int, int])
    again: dict[int, set[int]] = field(init=False, default_factory=dict[int, set[int]])

    def __post_init__(self) -> None:
        """Assigns each member its level, the position in the order of work: even for work on units, odd for
        work on fibers (matrix elements summed to one result, a unit). Finds the nodes to be recomputed.

        Levels are as late as possible. Nodes on fibers are recomputed where a later level reads them, if
        cheap.
        """
        self.net, self.users = self.fibers.net, self.fibers.net.users()
        for number in self.members:
            self.level[number] = self.earliest(number)
        for number in reversed(self.members):
            self.level[number] = self.latest(number)
        for number in self.members:
            for root in self.read_by(number):
                self.compute_again(root, self.level[number])

    def is_deep(self, number: int) -> bool:
        """Tells whether a node's value is a matrix cut into fibers (elements summed for one unit)."""
        return number in self.fibers.indices

    def read_by(self, number: int) -> list[int]:
        """Lists those nodes of this work (`members`) whose values a node reads, directly or through views."""
        roots = (view_chain(self.net, operand)[0] for operand in self.net.nodes[number].inputs)
        return [root for root in roots if root in self.level]

    def earliest(self, number: int) -> int:
        """Returns the first level (position in the order of work) on which a node can be computed: even for
        work on units, odd for work on fibers (elements summed to one result, a unit).
        """
        is_odd = self.is_deep(number) or number in self.fibers.sums
        level = int(is_odd)
        for root in self.read_by(number):
            computed = self.level[root]
            if self.is_deep(root):
                level = max(level, computed)
            else:  # a value on units is available on the next even level
                available = computed + computed % 2
                level = max(level, available + is_odd)
        return level

    def latest(self, number: int) -> int:
        """Returns the last level (position in the order of work) on which a node may be computed. A node on
        fibers (elements summed to one result, a unit) may wait for the first of its readers, if all are of
        this work; others keep their level.
        """
        users = self.readers[number]
        if not self.is_deep(number) or number in self.stored or not users or not users <= self.level.keys():
            return self.level[number]
        return max(self.level[number], min(self.level[user] for user in users))

    @cached_property
    def readers(self) -> dict[int, set[int]]:
        """For each node of this work (`members`), the nodes that read it, also by views."""
        return {number: readers_of(self.net, self.users, number) for number in self.members}

    def compute_again(self, number: int, level: int) -> None:
        """Marks a node on fibers (elements summed to one result, a unit) to be recomputed on a level
        (position in the order of work), with its operands.

        This is done only if it takes at most `CHEAP` (4) operations for an element; the value then need not
        be stored and loaded again.
        """
        if not self.is_deep(number) or self.level[number] == level or number in self.again.get(level, ()):
            return
        if level % 2 and self.cost(number) <= CHEAP:
            self.again.setdefault(level, set()).add(number)
            for root in self.read_by(number):
                self.compute_again(root, level)

    def cost(self, number: int) -> int:
        """Counts the operations to compute an element of a matrix in fibers once more."""
        flops = self.net.nodes[number].row.flops
        return flops + sum(self.cost(root) for root in self.read_by(number) if self.is_deep(root))

    def has_on_registers(self, operand: int, user: int, level: int | None = None) -> bool:
        """Tells whether an operand is in a register, not in memory, when node `user` is computed.

        level: the level (position in the order of work) on which `user` is computed or recomputed; None for
            the one on which it is first computed.
        """
        root, _ = view_chain(self.net, operand)
        if root not in self.level or not joins(self.fibers, operand, user):
            return False
        level = self.level[user] if level is None else level
        return not self.is_deep(root) or self.level[root] == level or root in self.again.get(level, ())

    def leaves_in_place(self, memory: int, following: int) -> bool:
        """Tells whether the next value of a memory (recurrent state) may overwrite the old one, because no
        node reads the old one later. memory, following: the nodes of the old and the next value.
        """
        last = self.level[following]

        def reads_early(user: int, operand: int) -> bool:
            """Tells whether a node reads the memory, by `operand`, before its next value is stored."""
            if self.net.nodes[user].is_view:
                return all(reads_early(reader, user) for reader in self.users[user])
            is_late = user in self.level and max(self.levels_of(user)) > last
            return user in self.level and not is_late and joins(self.fibers, operand, user)

        return all(reads_early(user, memory) for user in self.users[memory])

    def levels_of(self, number: int) -> list[int]:
        """Lists the levels (positions in the order of work) on which a node is computed, or recomputed."""
        return [self.level[number], *(level for level, again in self.again.items() if number in again)]

    def nodes_at(self, level: int) -> list[int]:
        """Lists the elementwise nodes to compute on a level, operands before the nodes that read them."""
        nodes = {n for n, at in self.level.items() if at == level and n not in self.fibers.sums}
        return sorted(nodes | self.again.get(level, set()))

    def is_fused(self, number: int) -> bool:
        """Tells whether a node is a product of elements of fibers (summed to one result, a unit) that a
        single sum of the same level (position in the order of work) reads, so that both become a fused
        multiply-add.
        """
        node, users = self.net.nodes[number], self.readers[number]
        has_one_sum = len(users) == 1 and users <= self.fibers.sums.keys() and users <= self.level.keys()
        (user,) = users if has_one_sum else (number,)
        return (
            has_one_sum
            and number not in self.stored
            and self.level[user] == self.level[number]
            and self.net.nodes[user].operation == "sum"
            and node.operation == "multiply"
            and has_operand_dtype(self.net.nodes[user], node)
            and all(has_operand_dtype(node, self.net.nodes[operand]) for operand in node.inputs)
        )


def work_on_fibers(
    fibers: Fibers, phases: tuple[tuple[int, ...], ...], stored: Container[int]
) -> dict[int, FiberWork]:
    """Groups nodes on fibers (matrix elements summed to one result, a unit) by phase (nodes between two
    barriers) and number of units.

    phases: the nodes of each phase.
    stored: the nodes that results read, which therefore must be stored.

    Returns, for each node, the work that it belongs to.
    """
    if not fibers:
        return {}
    phase_of = {number: index for index, numbers in enumerate(phases) for number in numbers}
    shared, together = sharing(fibers, phase_of), dict[tuple[int, int], list[int]]()
    for number, phase in phase_of.items():
        kind, units = shared(number)
        if kind == "fibers":
            together.setdefault((phase, units), []).append(number)
    works = (FiberWork(fibers, units, tuple(n), stored) for (_, units), n in together.items())
    return {number: work for work in works for number in work.members}


def has_operand_dtype(node: Node, operand: Node) -> bool:
    """Tells whether a floating-point node and its operand have one dtype, as fusing them requires."""
    return node.type.is_float and node.type.dtype == operand.type.dtype
