"""Fibers: a per-row matrix cut into the elements that a reduction combines for one unit.

    memory C [K, V]                      unit u has the fiber C[:, u]
    r = sum(C * k, axis 0)
    C = C + k * (v - r)            ->    for each unit:  r, then its fiber of C, then its part of y
    y = sum(C * q, axis 0)

A step of linear attention passes over its matrix several times, and each pass needs a sum over the whole
matrix first. For one unit, however, it needs only that unit's fiber. So the whole step is one phase: a fiber
stays in the L1 cache, and only the next memory is written.

The elements of a node may lie in any order; the fibers map each depth and unit to the index of an element. So
a matrix that is summed over its last axis needs no transposition: its memory is stored fiber by fiber, and so
is a static.

Matrices that are not part of a memory have fibers where this saves writing and reading them: those computed
from a static of the same size, and those much larger than the values that they are computed from.

    a [I, J], b [J, K]                   the terms [J, I, K] of a product of two matrices of a row are
    sum(a.T[:, :, None] * b[:, None], 0)    added up as they are computed
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

import numpy as np

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.plan.load import FiberCosts
from stepnet.compiler.plan.passes.rewrite import readers_of, view_chain
from stepnet.compiler.plan.views import reads_along, view_indices
from stepnet.compiler.values.records import dataclass

Array = np.ndarray

SUMS = ("sum", "max", "min")
"""Reductions over fibers."""


@dataclass(frozen=True, eq=False)
class Fibers:
    """The fibers of the matrices in a step: a fiber is the elements that a reduction combines for one unit.

    net: the body of the step.
    indices: for each node that is cut into fibers, the index of its element at each depth and unit, [depth,
        units].
    sums: the reductions over fibers, with their numbers of units.
    known, read: caches of `along` and `first_indices`.
    """

    net: Net
    indices: dict[int, Array] = field(default_factory=dict[int, Array])
    sums: dict[int, int] = field(default_factory=dict[int, int])
    known: dict[tuple[int, int], bool] = field(default_factory=dict[tuple[int, int], bool])
    read: dict[int, list[Array]] = field(default_factory=dict[int, list[Array]])

    def __bool__(self) -> bool:
        """Tells whether there are reductions over fibers, that is, whether any matrix is cut."""
        return bool(self.sums)

    def units(self, number: int) -> int | None:
        """Returns the number of units of a node that is computed by fibers, by which threads divide its work;
        None for any other node. A unit is one result of a reduction over a matrix. For a matrix that is its
        number of fibers, as a fiber has the elements that a reduction combines for one unit; for a reduction
        over fibers, its number of results.
        """
        if number in self.indices:
            return self.indices[number].shape[1]
        return self.sums.get(number)

    def first_indices(self, units: int) -> list[Array]:
        """Lists the elements that neighbouring units (results of reductions over a matrix) read, to choose
        how many units are loaded as one vector. Each array belongs to a value that is not cut into fibers
        (the elements that a reduction combines for one unit), but that a matrix with `units` fibers reads.
        For each unit, it has the flat index of the element that the first element of the unit's fiber reads.
        """
        if units not in self.read:
            net, own = self.net, {n: at for n, at in self.indices.items() if at.shape[1] == units}
            self.read[units] = [
                indices_read(net, operand, net.nodes[number])[at[0]]
                for number, at in own.items()
                for operand in net.nodes[number].inputs
                if net.nodes[number].operation != "input"
                and (root := view_chain(net, operand)[0]) not in self.indices
                and net.type_of(root).extent == ROWS
            ]
        return self.read[units]

    def along(self, operand: int, user: int) -> bool:
        """Tells whether each unit of node `user` (a unit is one result of a reduction over a matrix) reads
        only elements of `operand` of the same unit, so that both can run in one pass over the units. If
        `operand` is cut into fibers (the elements of one unit), each element must also be read at its own
        position in the fiber. Cached.
        """
        if (operand, user) not in self.known:
            self.known[operand, user] = self.reads_along(operand, user)
        return self.known[operand, user]

    def reads_along(self, operand: int, user: int) -> bool:
        """Computes `along` without its cache: whether each element of node `user` reads elements of `operand`
        for its own unit only (a unit is one result of a reduction over a matrix), and, if `operand` is cut
        into fibers, the elements of one unit, at its own position in the fiber.
        """
        net = self.net
        root, node = view_chain(net, operand)[0], net.nodes[user]
        if user in self.sums:
            return root in self.indices and np.array_equal(summed_indices(net, user), self.indices[root])
        if user not in self.indices:
            return root not in self.indices and node.kind == "pointwise" and reads_along(net, operand, node)
        read = indices_read(net, operand, node)[self.indices[user]]
        if root in self.indices:
            return np.array_equal(read, self.indices[root])
        size = net.type_of(root).size
        return read.shape[1] == size and bool(np.all(read == np.arange(size, dtype=np.int64)))


def summed_indices(net: Net, number: int) -> Array:
    """Returns the flat indices of the elements that a reduction of a matrix (over one of two axes) combines,
    as [depth, units]: column u has the elements of result u. number: the reduction.
    """
    node = net.nodes[number]
    indices = view_indices(net, node.inputs[0])
    return indices if node.attributes["axes"] == (-2,) else indices.T


def indices_read(net: Net, operand: int, node: Node) -> Array:
    """Returns, for each element of a flattened node, the flat index of the element of `operand` it reads."""
    return np.broadcast_to(view_indices(net, operand), node.type.shape).ravel()


def are_contiguous(indices: Array) -> bool:
    """Tells whether neighbouring units (results of a reduction over a matrix) read adjacent elements at each
    depth (position among the elements of one unit), so that these can be loaded as vectors. indices: the flat
    indices of the elements, [depth, units].
    """
    return bool(np.all(np.diff(indices, axis=1) == 1))


def are_close(indices: Array) -> bool:
    """Tells whether most neighbouring units (results of a reduction over a matrix) read equal or adjacent
    elements, so that few loads are needed.

    indices: the flat indices of the elements, [depth, units], of which only those at depth 0 are examined.
    """
    steps = np.diff(indices[0])
    return 2 * int(np.count_nonzero((steps == 0) | (steps == 1))) >= len(steps)


def is_permutation(indices: Array, size: int) -> bool:
    """Tells whether an array of indices is a permutation of 0, ..., size - 1."""
    if indices.size != size:
        return False
    is_there = np.zeros(size, bool)
    is_there[indices] = True
    return bool(is_there.all())


def fibers(net: Net, following: Mapping[int, int], statics: Collection[int], costs: FiberCosts) -> Fibers:
    """Finds the fibers in a step: of matrices that are memories, of statics, and of values computed from
    them. A fiber is the elements of a matrix that a reduction combines for one unit, that is, one result.

    following: for each memory, the node of its next value.
    statics: the inputs with one value per row.
    costs: the sizes from which it pays to cut matrices.
    """
    every, search = Fibers(net), Search(net, following, statics, costs)
    groups = [group for number in search.reductions() if (group := search.group(number)) is not None]
    # If reductions want fibers along different axes of a matrix, the group with more reductions wins.
    for group in sorted(groups, key=lambda group: -len(group.sums)):
        if not group.indices.keys() & every.indices.keys():
            every.indices.update(group.indices)
            every.sums.update(group.sums)
    for static in statics:
        indices = search.indices_of_static(static, every.indices)
        if indices is not None:
            every.indices[static] = indices
    return every


@dataclass
class Search:
    """Search for matrices of a step whose fibers, the elements that a reduction sums for one unit, agree.

    following: for each memory, the node of its next value.
    statics: the inputs with one value per row.
    costs: the sizes from which it pays to cut matrices.
    """

    net: Net
    following: Mapping[int, int]
    statics: Collection[int]
    costs: FiberCosts

    def __post_init__(self) -> None:
        """Finds the readers of each node, and the memory for each next value."""
        self.users = self.net.users()
        self.memory_of = {after: memory for memory, after in self.following.items()}

    def reductions(self) -> list[int]:
        """Lists the reductions of a step that may combine fibers (the elements of a matrix for one result),
        by node number: those of a matrix to a smaller value with at least `costs.fewest_units` results, so
        that the results fill vectors.
        """
        return [
            number
            for number, node in enumerate(self.net.nodes)
            if node.operation in SUMS
            and node.type.extent == ROWS
            and node.type.size >= self.costs.fewest_units
            and self.net.type_of(node.inputs[0]).size > node.type.size
        ]

    def group(self, reduction: int) -> Fibers | None:
        """Finds all matrices that must be cut into fibers like the operand of a reduction. A fiber is the
        elements that it combines for one unit (result), which are stored together. Returns them with the
        reductions that the cut suits.

        Returns None if they do not agree, or if this does not pay: because units would read distant elements,
        or because no memory is among the matrices and `pays_alone` is false.
        """
        root, indices = (
            view_chain(self.net, self.net.nodes[reduction].inputs[0])[0],
            summed_indices(self.net, reduction),
        )
        if not self.can_have_fibers(root) or not is_permutation(indices, self.net.type_of(root).size):
            return None
        group, waiting = dict[int, Array](), [(root, indices)]
        while waiting:
            number, indices = waiting.pop()
            if number in group:
                if not np.array_equal(group[number], indices):
                    return None
                continue
            group[number] = indices
            waiting += self.neighbours(number, indices)
        carries = not group.keys().isdisjoint(self.following)
        if self.is_scattered(group) or not (carries or self.pays_alone(group)):
            return None
        units = self.net.nodes[reduction].type.size
        sums = {
            number: units
            for number in self.reductions()
            if (read := view_chain(self.net, self.net.nodes[number].inputs[0])[0]) in group
            and np.array_equal(summed_indices(self.net, number), group[read])
        }
        return Fibers(self.net, group, sums)

    def is_scattered(self, group: Mapping[int, Array]) -> bool:
        """Tells whether matrices cut into fibers (for each unit, which is one result of a sum, the elements
        that it combines) would make neighbouring units read distant elements of a value outside the group
        that is as large as its matrices.

        group: for each matrix that would have fibers, flat indices [depth, units]. Each element would then be
            loaded by itself. Fibers of fewer than `costs.long` elements pay in spite of it; for longer ones
            it is better to have none, so that vectors run along the axis that is reduced.
        """
        net, size = self.net, max(indices.size for indices in group.values())
        return any(
            net.type_of(root).size == size
            and not are_close(indices_read(net, operand, net.nodes[number])[indices])
            for number, indices in group.items()
            if len(indices) >= self.costs.long
            for operand in net.nodes[number].inputs
            if (root := view_chain(net, operand)[0]) not in group
            if net.type_of(root).extent == ROWS and root not in self.statics
        )

    def pays_alone(self, group: Mapping[int, Array]) -> bool:
        """Tells whether it pays to cut matrices that are not part of a memory into fibers, one for each unit
        (result of a reduction), whose elements are combined.

        group: for each matrix, the flat indices of its elements, [depth, units]. It pays if the group is much
            larger than the values that it is computed from, not counting statics (values that a sequence has
            once) of its size, which are stored in the order in which they are read.
        """
        net, size = self.net, max(indices.size for indices in group.values())
        read = {(view_chain(net, operand)[0], operand, n) for n in group for operand in net.nodes[n].inputs}
        others = {root for root, _, _ in read if root not in group and net.type_of(root).extent == ROWS}
        read_size = sum(net.type_of(n).size for n in others - {*self.statics})
        if size < self.costs.large or size <= self.costs.larger * read_size:
            return False
        return all(
            net.type_of(root).size < size
            or are_contiguous(indices_read(net, operand, net.nodes[reader])[group[reader]])
            or self.indices_of_static(root, group) is not None
            for root, operand, reader in read
            if root in self.statics
        )

    def indices_of_static(self, static: int, indices: Mapping[int, Array]) -> Array | None:
        """Returns the fibers (elements combined for one unit, that is, one result of a reduction) of a
        static, an input per row, that only matrices with agreeing fibers read, each element once, as flat
        indices [depth, units]; None for any other static.

        indices: the fibers of these matrices.
        """
        size, own = self.net.type_of(static).size, list[Array]()
        for reader, operand in self.readers(static):
            node = self.net.nodes[reader]
            if reader not in indices or node.type.size != size:
                return None
            read = indices_read(self.net, operand, node)
            if not is_permutation(read, size):
                return None
            own.append(read[indices[reader]])
        agree = own and all(np.array_equal(own[0], part_indices) for part_indices in own[1:])
        return own[0] if agree and not self.is_read_otherwise(static) else None

    def is_read_otherwise(self, number: int) -> bool:
        """Tells whether a static (a value per sequence that all steps read) must stay whole, and is not cut
        into fibers (the elements that a reduction combines for one result): because it is a result, or
        because a node that is not pointwise reads it.
        """
        users = (self.net.nodes[user] for user in readers_of(self.net, self.users, number))
        results = {view_chain(self.net, result)[0] for result in self.net.results}
        return number in results or any(user.kind != "pointwise" for user in users)

    def can_have_fibers(self, number: int) -> bool:
        """Tells whether a matrix may be cut into fibers, the elements that a reduction combines for one unit
        (result): the value of a pointwise node may, and a memory whose next value a pointwise node computes.
        """
        if number in self.following:
            after = self.net.nodes[self.following[number]]
            return after.kind == "pointwise"
        node = self.net.nodes[number]
        return node.kind == "pointwise" and node.type.extent == ROWS

    def neighbours(self, number: int, indices: Array) -> Iterable[tuple[int, Array]]:
        """Yields the nodes that must be cut into fibers (the elements that a reduction combines for one unit,
        or result) if node `number` is, with the flat indices [depth, units] of their elements.

        These are operands and readers that correspond to it element by element, and the next or previous
        value of a memory. indices: the indices of the node's own elements.
        """
        net, size = self.net, self.net.type_of(number).size
        if number in self.following:
            yield self.following[number], indices
        else:
            for operand in net.nodes[number].inputs:
                root = view_chain(net, operand)[0]
                read = indices_read(net, operand, net.nodes[number])
                if self.can_have_fibers(root) and is_permutation(read, net.type_of(root).size):
                    yield root, read[indices]
        if number in self.memory_of and self.can_have_fibers(self.memory_of[number]):
            yield self.memory_of[number], indices
        for reader, operand in self.readers(number):
            node = net.nodes[reader]
            read = indices_read(net, operand, node)
            if node.type.size == size and self.can_have_fibers(reader) and is_permutation(read, size):
                inverse = np.empty_like(read)
                inverse[read] = np.arange(size)
                yield reader, inverse[indices]

    def readers(self, number: int) -> Iterable[tuple[int, int]]:
        """Yields the pointwise nodes that read a value, directly or through views, as pairs (reader,
        operand): the operand is the value itself or a view of it.
        """
        for user in self.users[number]:
            node = self.net.nodes[user]
            if node.is_view:
                yield from self.readers(user)
            elif node.kind == "pointwise":
                yield user, number
