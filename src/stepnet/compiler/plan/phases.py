"""The phases of a stage: lists of nodes that run without synchronisation between unit blocks.

Within a phase every element depends only on elements of its own unit, so the phase runs unit block by unit
block. A new phase starts wherever a result is needed across unit blocks: by a product with results of the
same step, by a reduction over features, or by a view that reorders features. Work on a matrix that a step
carries stays in one phase as long as it stays within the fibers of the matrix (`compiler/plan/fibers.py`).
"""

from collections.abc import Callable, Mapping

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.plan.fibers import Fibers
from stepnet.compiler.plan.passes.rewrite import value_read, view_chain


def is_of_recurrence(net: Net, number: int) -> bool:
    """Tells whether node `number` picks a result of a recurrence: its readers must wait for all threads."""
    node = net.nodes[number]
    return node.operation == "result" and net.nodes[node.inputs[0]].operation == "recur"


def phases(net: Net, numbers: list[int], fibers: Fibers | None = None) -> tuple[tuple[int, ...], ...]:
    """Divides the nodes of a stage (the work before, in or after the loop over steps) into phases, so that
    threads need to wait for one another only between phases. Views and inputs are in no phase, as nothing is
    computed for them.

    numbers: the nodes of the stage, in order.
    fibers: for a step, how its matrices are cut into fibers, the elements that are summed for one unit
        (result); None for other stages.
    """
    phase = phase_of_nodes(fibers or Fibers(net), numbers)
    levels = sorted(set(phase.values()))
    return tuple(tuple(n for n in numbers if phase.get(n) == level) for level in levels)


def phase_of_nodes(fibers: Fibers, numbers: list[int]) -> dict[int, int]:
    """Maps each node to the index of its phase (nodes that run without waiting for other threads), such that
    work on matrices is in few phases.

        1  S' = S + k * v                       1  ended = any(h > 1)
           ended = any(h > 1)              ->   2  S' = S + k * v;  S'' = where(ended, S, S')
        2  S'' = where(ended, S, S')

    An update of a matrix is postponed until everything that another update in the same pass needs is known.

    fibers: how the matrices are cut into fibers, one for each unit (result of a sum). numbers: the nodes, in
        order.
    """
    phase = untorn_phases(fibers, numbers, {})
    matrices = [number for number in phase if number in fibers.indices]
    for first in sorted({phase[number] for number in matrices})[1:]:
        waiting = untorn_phases(fibers, numbers, dict.fromkeys(matrices, first))
        if len({waiting[n] for n in matrices}) < len({phase[n] for n in matrices}):
            phase = waiting
    return phase


def untorn_phases(fibers: Fibers, numbers: list[int], earliest: Mapping[int, int]) -> dict[int, int]:
    """Maps each of the nodes `numbers` to a phase (nodes that threads run without waiting), so that no node
    reads a value that another thread computes in the same phase. fibers: how matrices are cut by unit (one
    result of a sum). earliest: for some nodes, the earliest phase.
    """
    later = set[int]()
    while torn := torn_nodes(fibers, phase := phase_of_each(fibers, numbers, later, earliest)):
        later |= torn
    return postponed(fibers, numbers, phase)


def phase_of_each(
    fibers: Fibers, numbers: list[int], later: set[int], earliest: Mapping[int, int]
) -> dict[int, int]:
    """Maps each node to the index of its phase: the phase of its latest operand, or the next one if each unit
    of the node reads other units of the operand, which other threads may compute.

    fibers: how the matrices of the step are cut into fibers, the elements combined for one unit (a result of
        a sum). numbers: the nodes, in order.
    later: nodes that start a phase after all that they read. earliest: for some nodes, the earliest phase.
    """
    net, phase = fibers.net, dict[int, int]()
    inside = set(numbers)
    for number in numbers:
        node = net.nodes[number]
        if node.is_view or node.operation in ("expand", "index"):
            continue
        if node.operation == "result":
            phase[number] = phase[node.inputs[0]]
            continue
        own_phase = earliest.get(number, 0)
        for operand in node.inputs:
            root = value_read(net, operand)
            if root in phase and root in inside:
                along = number not in later and joins(fibers, operand, number)
                own_phase = max(own_phase, phase[root] + (0 if along else 1))
        phase[number] = own_phase
    return phase


def postponed(fibers: Fibers, numbers: list[int], phase: dict[int, int]) -> dict[int, int]:
    """Returns the phase (nodes that threads run without waiting) of each node after moving pointwise nodes to
    the phase of their first readers, if they read no value of their own phase, and if no node would then have
    to wait for another thread.

        1  a = f * C                     1
        2  C' = a + k * v        ->      2  a = f * C;  C' = a + k * v

    fibers: how the matrices of the step are cut by unit (one result of a sum). numbers: the nodes, in order.
    A value that is read only in a later phase has to be stored and loaded again. If C is a matrix per row,
    this is most of a step's memory traffic.
    """
    net, readers = fibers.net, dict[int, list[tuple[int, int]]]()
    for number in numbers:
        if not net.nodes[number].is_view:
            for operand in net.nodes[number].inputs:
                readers.setdefault(view_chain(net, operand)[0], []).append((number, operand))
    for number in reversed(numbers):
        node, reads = net.nodes[number], readers.get(number, [])
        if node.kind != "pointwise" or not reads or any(reader not in phase for reader, _ in reads):
            continue
        first = min(phase[reader] for reader, _ in reads)
        stays = any(
            phase.get(view_chain(net, operand)[0]) == phase[number] and joins(fibers, operand, number)
            for operand in node.inputs
        )
        along = all(joins(fibers, operand, reader) for reader, operand in reads if phase[reader] == first)
        moved = {**phase, number: first}
        if first > phase[number] and along and not stays and not torn_nodes(fibers, moved):
            phase = moved
    return phase


def torn_nodes(fibers: Fibers, phase: dict[int, int]) -> set[int]:
    """Returns the pointwise nodes that read, within their own phase (nodes that run without waits), a value
    that threads divide in another way, so that another thread may compute it. They must move to a later
    phase. fibers: how the matrices of the step are cut by unit (one result of a sum). phase: for each node,
    its phase.
    """
    net, shared = fibers.net, sharing(fibers, phase)
    return {
        number
        for number in phase
        if net.nodes[number].kind == "pointwise"
        for operand in net.nodes[number].inputs
        if (root := view_chain(net, operand)[0]) in phase
        and phase[root] == phase[number]
        and shared(root) != shared(number)
    }


def sharing(fibers: Fibers, phase: dict[int, int]) -> Callable[[int], tuple[str, int]]:
    """Makes a function that tells how threads divide the work of a node of a step, to find nodes that would
    read values of other threads. It returns the kind of division ("rows", "units" or "fibers") and the number
    of units, 0 for rows.

    fibers: how the matrices of the step are cut by unit.
    phase: for each node, the index of its phase; threads wait for one another between phases.

    Products, and pointwise nodes of their size, are divided by unit. Fibers, and pointwise nodes with their
    number of units, are divided by unit too, but at other boundaries. All other nodes are divided by row.
    """
    net, none = fibers.net, ("rows", 0)

    def size_of(number: int) -> tuple[int, object, int]:
        """Returns phase, extent and size of a node; nodes that agree in all three can be divided alike."""
        type_ = net.nodes[number].types[0]
        return phase[number], type_.extent, type_.size

    products = {size_of(number) for number in phase if net.nodes[number].kind == "matmul"}
    fibered = {(phase[n], ROWS, units) for n in phase if (units := fibers.units(n)) is not None}

    def shared(number: int) -> tuple[str, int]:
        """Returns how threads divide the work of a node, "rows", "units" or "fibers" (elements that a sum
        combines for a unit), and its number of units; 0 if it has none.
        """
        node, units = net.nodes[number], fibers.units(number)
        if units is not None:
            return "fibers", units
        if size_of(number) in products:
            by_unit = node.kind in ("pointwise", "matmul") or node.operation == "result"
            return ("units", node.types[0].size) if by_unit else none
        along = node.kind == "pointwise" and size_of(number) in fibered
        return ("fibers", node.type.size) if along else none

    return shared


def units_are_alone(fibers: Fibers, phase: tuple[int, ...], memories: Mapping[int, int]) -> bool:
    """Tells whether each unit of a step (one feature of a memory, or the elements of a matrix that are summed
    for one result) depends only on the memories of the same unit, in a step that is one phase. If so, threads
    that divide the units need not wait for each other between steps.

    fibers: how the matrices of the step are cut by unit. phase: the nodes of the step. memories: for each
        memory, the node of its next value.
    """
    net, shared = fibers.net, sharing(fibers, dict.fromkeys(phase, 0))
    readers = [(number, operand) for number in phase for operand in net.nodes[number].inputs]
    return (
        all(shared(number)[0] != "units" for number in phase)
        and all(after in phase for after in memories.values())
        and all(
            joins(fibers, operand, number)
            for number, operand in readers
            if view_chain(net, operand)[0] in memories
        )
    )


def joins(fibers: Fibers, operand: int, user: int) -> bool:
    """Tells whether node `user` may run in the same phase (work between two waits of the threads) as the
    value that it reads through `operand`: each thread then reads only what it has computed itself, and waits
    for no other. Values that repeat or reduce sequences, and results of recurrences inside the step, end
    their phase.

    fibers: how the matrices of the step are cut by unit (one result of a sum), by which threads share the
        work.
    """
    net = fibers.net
    root, _ = view_chain(net, operand)
    ends = net.nodes[root].operation in ("expand", "reduce") or is_of_recurrence(net, root)
    return not ends and fibers.along(operand, user)
