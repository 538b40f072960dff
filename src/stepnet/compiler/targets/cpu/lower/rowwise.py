"""The loops that compute values row by row: reductions, scans, gathers, and copies of features."""

import math
from itertools import pairwise

import numpy as np

from stepnet.compiler.net.types import Type
from stepnet.compiler.targets.cpu.lower.loops import CopyLoop, GatherLoop, ReduceLoop, ScanLoop
from stepnet.compiler.targets.cpu.lower.stage import StageLowering
from stepnet.compiler.targets.cpu.products.constants import Elements


def reduction(stage: StageLowering, number: int) -> ReduceLoop:
    """Lowers a reduction (node `number`) over the first (-2) or the last of a value's two axes to a loop."""
    node = stage.net.nodes[number]
    source, start = stage.run_of(node.inputs[0])
    shape = stage.net.type_of(node.inputs[0]).shape
    leading = node.attributes["axes"] == (-2,)
    return ReduceLoop(node.operation, source, start, (shape[0], shape[1]), leading, stage.targets(number))


def scan(stage: StageLowering, number: int) -> ScanLoop:
    """Lowers a scan (prefix sums or products) along any axis to a loop.

    Its shape is [before, axis, after]: the numbers of elements before, along and after the axis.
    """
    node = stage.net.nodes[number]
    source, start = stage.run_of(node.inputs[0])
    axis: int = node.attributes["axis"] % len(node.type.shape)
    before, after = node.type.shape[:axis], node.type.shape[axis + 1 :]
    shape = (math.prod(before), node.type.shape[axis], math.prod(after))
    return ScanLoop(node.operation, source, start, shape, stage.targets(number))


def gather(stage: StageLowering, number: int) -> GatherLoop:
    """Lowers a gather (node `number`), of rows of a parameter at computed indices, to a loop."""
    node = stage.net.nodes[number]
    table, index = node.inputs
    shape = stage.net.type_of(table).shape
    row_size = int(np.prod(shape[1:], dtype=np.int64))
    offset = stage.constants.add(Elements(stage.constant(table), None, 1))
    operand = stage.operand(index, stage.net.type_of(index), number)
    return GatherLoop(
        offset, shape[0], row_size, operand, stage.net.type_of(index).size, stage.targets(number)
    )


def concatenation(stage: StageLowering, number: int) -> list[CopyLoop]:
    """Lowers a concatenation (node `number`) to copies of those operands that are not stored into its field
    (place in memory) directly.
    """
    node, inside = stage.net.nodes[number], stage.pieces_inside(number)
    axis: int = node.attributes["axis"] % len(node.type.shape)
    indices = np.arange(node.type.size).reshape(node.type.shape)
    loops: list[CopyLoop] = []
    begin = 0
    for operand in node.inputs:
        size = stage.net.type_of(operand).shape[axis]
        index = [slice(None)] * len(node.type.shape)
        index[axis] = slice(begin, begin + size)
        if (operand, begin) not in inside:
            loops += operand_copies(stage, operand, indices[tuple(index)], number)
        begin += size
    return loops


def operand_copies(stage: StageLowering, operand: int, indices: np.ndarray, user: int) -> list[CopyLoop]:
    """Makes the copies of one operand of a concatenation into the result, one per contiguous run of elements.

    operand: the number of the operand's node.
    indices: for each element of the operand, its index in the result.
    user: the number of the concatenation's node.
    """
    type_ = stage.net.type_of(operand)
    if not type_.size:
        return []
    flat = indices.ravel()
    cuts = [0, *(np.flatnonzero(np.diff(flat) != 1) + 1), type_.size]
    loops: list[CopyLoop] = []
    for start, stop in pairwise(cuts):
        run = Type(type_.extent, (int(stop - start),), type_.dtype)
        source = stage.operand(operand, run, user, np.arange(start, stop))
        loops += [CopyLoop(run.size, source, target, int(flat[start])) for target in stage.targets(user)]
    return loops
