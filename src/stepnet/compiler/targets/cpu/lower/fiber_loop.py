"""Lowering of work on fibers (matrix elements that a reduction combines for one unit) to a loop.

The loop says what is loaded, computed, accumulated and stored at each depth of the fibers.
"""

from dataclasses import replace

import numpy as np

from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.fibers import summed_indices
from stepnet.compiler.plan.passes.rewrite import view_chain
from stepnet.compiler.targets.cpu.lower.fibers import FiberWork, group_width, in_groups
from stepnet.compiler.targets.cpu.lower.loops import (
    Along,
    Broadcast,
    Computed,
    DeepOperand,
    FiberLoop,
    FiberPass,
    FiberSum,
    Operand,
    Register,
)
from stepnet.compiler.targets.cpu.lower.stage import StageLowering
from stepnet.compiler.targets.cpu.machine.records import Field
from stepnet.compiler.targets.cpu.products.constants import ConstantNode, Elements

Array = np.ndarray
Stores = tuple[tuple[Operand, Field], ...]
NEAR_BYTES = 32 * 1024
"""The bytes of fibers that stay in the L1 cache."""


def fiber_loop(stage: StageLowering, work: FiberWork) -> FiberLoop:
    """Lowers the work of a phase (between two barriers) on fibers (matrix elements summed to one result, a
    unit) to a loop over groups of units (results of sums).

    Work is ordered by levels, which run in turn: even levels are elementwise work on units, odd levels work
    on fibers. The loop has a pass (a traversal of the fibers) for each odd level and each length of fibers
    there.
    """
    width = group_width(work.fibers, work.units, stage.width)
    passes = tuple(
        lower_pass(stage, work, level, depth, width if index == 0 else 0)
        for level in sorted({level for level in work.level.values() if level % 2})
        for index, depth in enumerate(depths(work, level))
    )
    last = max(work.level.values())
    units = () if last % 2 else unit_nodes(stage, work, last, width)
    of_units = [number for number in work.members if not work.is_deep(number)]
    loop = FiberLoop(work.units, width, passes, units, stores(stage, of_units))
    return in_tiles(stage, loop) if len(passes) == 1 and loop.reads_only_fibers else loop


def in_tiles(stage: StageLowering, loop: FiberLoop) -> FiberLoop:
    """Divides a loop with one pass over fibers (matrix elements summed to one result, a unit) into tiles of
    depth, a range of positions in the fibers, if the fibers do not fit the L1 cache; returns it unchanged if
    they do.

    The work at one depth does not need the sums over all depths, so one tile runs through all steps before
    the next tile begins.
    """
    (only_pass,) = loop.passes
    bytes_ = sum(loop.width * target.itemsize for _, target in only_pass.stores)
    tile = max(1, NEAR_BYTES // bytes_) if bytes_ else only_pass.depth
    if tile >= only_pass.depth:
        return loop
    types = [replace(stage.net.type_of(pass_sum.number), shape=(loop.size,)) for pass_sum in only_pass.sums]
    return replace(loop, tile=tile, partial=tuple(stage.records.field("block", type_) for type_ in types))


def depths(work: FiberWork, level: int) -> list[int]:
    """Lists the distinct lengths of the fibers (elements summed for a unit) on a level: each has a pass."""
    nodes = [*work.nodes_at(level), *sums_at(work, level)]
    return list(dict.fromkeys(depth_of(work, number) for number in nodes))


def depth_of(work: FiberWork, number: int) -> int:
    """Returns the length of the fibers (elements summed to one result) that a node computes or reduces."""
    if number in work.fibers.indices:
        return len(work.fibers.indices[number])
    return len(summed_indices(work.net, number))


def sums_at(work: FiberWork, level: int) -> list[int]:
    """Lists the reductions over fibers (elements summed for one unit) on a level of the order of work."""
    return [n for n, at in work.level.items() if at == level and n in work.fibers.sums]


def lower_pass(stage: StageLowering, work: FiberWork, level: int, depth: int, width: int) -> FiberPass:
    """Lowers work on fibers (elements summed to one result, a unit) to a pass, a loop over their elements. It
    is the work of one level, a position in the order of work, on fibers of one length.

    depth: the length of the fibers that it computes or sums; others of the level have passes of their own.
    width: the number of units of a group, if the pass begins with the work on units of the level before; 0 if
        an earlier pass does that.
    """
    computed = [number for number in work.nodes_at(level) if depth_of(work, number) == depth]
    group = group_width(work.fibers, work.units, stage.width)
    nodes = tuple(
        (number, tuple(deep_operand(stage, work, operand, number, level, group) for operand in inputs))
        for number in computed
        if not work.is_fused(number)
        for inputs in (stage.net.nodes[number].inputs,)
    )
    sums = tuple(
        fiber_sum(stage, work, number, level, group)
        for number in sums_at(work, level)
        if depth_of(work, number) == depth
    )
    first_computed = [number for number in computed if work.level[number] == level]
    units = unit_nodes(stage, work, level - 1, width) if width else ()
    return FiberPass(depth, units, nodes, sums, stores(stage, first_computed))


def fiber_sum(stage: StageLowering, work: FiberWork, number: int, level: int, group: int) -> FiberSum:
    """Lowers a reduction over fibers (matrix elements summed to one result, a unit), node `number`, for one
    pass.

    A product that only it reads becomes its two factors, for a fused multiply-add.

    level: the level of the pass in the order of work, which decides what is in a register.
    group: the number of units of a group, whose fibers are worked on together.
    """
    operand = stage.net.nodes[number].inputs[0]
    root, _ = view_chain(stage.net, operand)
    if root in work.level and work.is_fused(root):
        factors = stage.net.nodes[root].inputs
        return FiberSum(
            number, tuple(deep_operand(stage, work, factor, root, level, group) for factor in factors)
        )
    return FiberSum(number, (deep_operand(stage, work, operand, number, level, group),))


def unit_nodes(stage: StageLowering, work: FiberWork, level: int, width: int) -> Computed:
    """Lists the elementwise nodes on units (one number per unit, no matrices) of an even level, with their
    operands.

    level: the position in the order of work of a group: even levels compute on units, odd ones on fibers
        (elements summed to one result, a unit).
    width: the number of units in a group. Operands are loaded for the whole group, by some vectors.
    """
    return tuple(
        (number, tuple(stage.operand(operand, node.type, number, width=width) for operand in node.inputs))
        for number in work.nodes_at(level)
        for node in (stage.net.nodes[number],)
    )


def stores(stage: StageLowering, numbers: list[int]) -> Stores:
    """Lists the stores of nodes' values: the register of each value, with each field (position in the memory
    of a row) that it is stored in. numbers: the nodes.
    """
    dtypes = {number: stage.net.type_of(number).dtype for number in numbers}
    return tuple(
        (Register(number, dtypes[number]), target) for number in numbers for target in stage.targets(number)
    )


def deep_operand(
    stage: StageLowering, work: FiberWork, operand: int, user: int, level: int, group: int
) -> DeepOperand:
    """Chooses how a node on fibers (matrix elements summed to one result, a unit) reads an operand: register
    or load.

    operand, user: the operand, and the node that reads it.
    level: the level of the pass in the order of work; values that it has computed are in registers.
    group: the number of units of a group, whose fibers are worked on together.
    """
    root, index = stage.value_at(operand)
    dtype = stage.net.type_of(operand).dtype
    if work.has_on_registers(operand, user, level):
        return Register(root, dtype)
    if user in work.fibers.sums:
        return read_along(stage, root, summed_indices(stage.net, user), dtype, group)
    numbers = np.broadcast_to(index, stage.net.nodes[user].type.shape).ravel()
    return read_along(stage, root, numbers[work.fibers.indices[user]], dtype, group)


def read_along(stage: StageLowering, root: int, indices: Array, dtype: str, group: int) -> DeepOperand:
    """Chooses the cheapest way to read elements of a value at each depth of fibers (elements summed to one
    result, a unit).

    A load at each depth is needed only if depths differ.

    root, dtype: the node of the value, and the dtype in which it is read.
    indices: the index of the element at each depth and unit, [depth, units].
    group: the number of units of a group, whose fibers are worked on together.
    """
    node = stage.net.nodes[root]
    if node.types[0].extent == CONST:
        constant = stage.immediate(root)
        return (
            constant
            if constant is not None
            else constants_along(stage, stage.constant(root), indices, dtype, group)
        )
    source, indices = stage.field_of(root), stage.stored_indices(root, indices)
    if np.all(indices == indices[0]):
        return stage.field_operand(source, indices[0], dtype, group)
    return along(
        stage, source, in_groups(indices, group), dtype, slack=not source.is_outside, size=source.size
    )


def constants_along(
    stage: StageLowering, constant: ConstantNode, indices: Array, dtype: str, group: int
) -> DeepOperand:
    """Chooses how loops over fibers (elements summed to one result, a unit) read a parameter at each depth
    and unit, and packs it in that order.

    If all depths read the same elements, they are packed once. If all units read the same element at each
    depth, one number per depth is packed.

    indices: the index of the element at each depth and unit, [depth, units].
    group: the number of units of a group, whose fibers are worked on together.
    """
    if np.all(indices == indices[0]):
        return Broadcast(stage.constants.add(Elements(constant, indices[0], group)), dtype)
    if np.all(indices == indices[:, :1]):
        depths = in_groups(np.broadcast_to(np.arange(len(indices))[:, None], indices.shape), group)
        return along(stage, stage.constants.add(Elements(constant, indices[:, 0], 1)), depths, dtype)
    order = in_groups(indices, group)
    positions = np.arange(order.size).reshape(order.shape)
    return along(stage, stage.constants.add(Elements(constant, order.ravel(), group)), positions, dtype)


def along(
    stage: StageLowering,
    source: Field | int,
    indices: Array,
    dtype: str,
    *,
    slack: bool = True,
    size: int = 0,
) -> Along:
    """Makes the operand by which loops over fibers (elements summed to one result, a unit) read values that
    differ from depth to depth (from position to position in the fibers). Its table of positions is added to
    the constants.

    If the units of a group read one element, which is broadcast, or contiguous ones, the table has a position
    per group and depth, or one per group if depths are a constant stride apart. Otherwise it has one per
    unit.

    source: the field of the values, or the offset of an array among the constants.
    indices: the position of each element, [group of units, depth, unit of the group].
    slack: whether a vector may extend past the last of the `size` elements.
    """
    first, width = indices[:, :, 0], int(indices.shape[2])
    fits = slack or first.max() + width <= size
    if np.all(indices == first[:, :, None]):
        how = "spread"
    elif (
        fits and np.all(indices[:-1] == first[:-1, :, None] + np.arange(width)) and is_padded_run(indices[-1])
    ):
        how = "block"
    else:
        return Along(source, stage.table(indices.ravel()), "element", None, dtype)
    stride = int(first[0, 1] - first[0, 0])
    if np.all(np.diff(first, axis=1) == stride):
        return Along(source, stage.table(first[:, 0]), how, stride, dtype)
    return Along(source, stage.table(first.ravel()), how, None, dtype)


def is_padded_run(indices: Array) -> bool:
    """Tells whether the units (results of sums) of a group read contiguous elements at every depth. The last
    unit may be repeated, as padding. indices: the index of the element that is read, [depth, unit].
    """
    steps = np.diff(indices, axis=1)
    count = 1 + int(np.argmin(np.append(steps[0] == 1, False)))
    return bool(np.all(steps[:, : count - 1] == 1)) and bool(np.all(steps[:, count - 1 :] == 0))
