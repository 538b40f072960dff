"""Operations as loops, or as views of the same array: one function for each form."""

from collections.abc import Sequence
from math import prod
from typing import cast

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.frame.drafts import (
    FrameValue,
    GatherDraft,
    ReductionDraft,
    Root,
    Shape,
)
from stepnet.compiler.targets.frame.float_functions import FUNCTIONS, fmod_routine, routine_of
from stepnet.compiler.targets.frame.recorder import (
    FMODS,
    FrameRegister,
    Recorder,
    operation_result,
)
from stepnet.compiler.targets.frame.step_lowering import StepLowering

Array = np.ndarray


def elementwise(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers an elementwise operation, or a call of a routine."""
    operands, dtype = lowering.operands(node), node.type.dtype
    if dtype in FMODS and node.operation in ("remainder", "floor_divide"):
        lowering.called(fmod_routine(dtype))
    if node.operation in FUNCTIONS or node.operation == "power":
        exponent = node.attributes.get("exponent")
        routine = routine_of(node.operation, dtype, None if exponent is None else float(exponent))
        name = lowering.called(routine)

        def record(code: Recorder, given: list[FrameRegister]) -> FrameRegister:
            """Records the call, on an operand of the dtype of the result."""
            (x,) = given
            x = x if x.dtype == dtype else code.record("convert", dtype, x)
            return code.record(name, dtype, x)
    else:

        def record(code: Recorder, given: list[FrameRegister]) -> FrameRegister:
            """Records the operation."""
            return operation_result(code, node, given)

    about = node.operation
    lowering.values[number] = lowering.drafts.pointwise(node.type.shape, dtype, operands, record, about)


def kept(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers an operation whose result is its operand."""
    lowering.values[number] = lowering.value(node.inputs[0])


def sliced(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers a slice along each axis: a view."""
    (x,) = lowering.operands(node)
    offset, strides, shape = x.offset, list[int](), node.type.shape
    for (start, _, step), stride in zip(node.attributes["slices"], x.strides, strict=True):
        offset += start * stride
        strides.append(step * stride)
    lowering.values[number] = FrameValue(x.root, offset, tuple(strides), shape)


def reshaped(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers another shape of the same elements: a view of elements that lie one after the other."""
    x = lowering.drafts.contiguous(lowering.operands(node)[0])
    whole = FrameValue.of(x.root, node.type.shape)
    lowering.values[number] = FrameValue(x.root, x.offset, whole.strides, whole.shape)


def transposed(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers another order of axes: a view."""
    (x,), order = lowering.operands(node), cast("Shape", node.attributes["order"])
    axes = [axis % len(x.shape) for axis in order]
    strides, shape = tuple(x.strides[axis] for axis in axes), tuple(x.shape[axis] for axis in axes)
    lowering.values[number] = FrameValue(x.root, x.offset, strides, shape)


def broadcast(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers a repetition along axes: a view with strides of 0."""
    lowering.values[number] = lowering.operands(node)[0].broadcast(node.type.shape)


def taken(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers elements at constant indices of an axis: a copy of each."""
    (x,), indices = lowering.operands(node), cast("Shape", node.attributes["indices"])
    axis = int(node.attributes["axis"]) % len(x.shape)
    parts = [
        FrameValue(
            x.root,
            x.offset + (index % x.shape[axis]) * x.strides[axis],
            x.strides,
            (*x.shape[:axis], 1, *x.shape[axis + 1 :]),
        )
        for index in indices
    ]
    lowering.values[number] = joined(lowering, parts, axis, node)


def concatenated(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers arrays end to end along an axis: a copy of each."""
    parts = [lowering.as_dtype(each, node.type.dtype) for each in lowering.operands(node)]
    axis = node.attributes["axis"] % len(node.type.shape)
    lowering.values[number] = joined(lowering, parts, axis, node)


def joined(lowering: StepLowering, parts: Sequence[FrameValue], axis: int, node: Node) -> FrameValue:
    """Copies values to one array, one after the other along an axis; returns it. node: the node of the
    result.
    """
    root = Root("scratch", parts[0].dtype, node.type.size, scale=parts[0].root.scale)
    whole, first = FrameValue.of(root, node.type.shape), 0
    for part in parts:
        offset = first * whole.strides[axis]
        lowering.drafts.copy(part, FrameValue(root, offset, whole.strides, part.shape))
        first += part.shape[axis]
    return whole


def reduced(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers a reduction of some axes."""
    (x,) = lowering.operands(node)
    x = lowering.as_dtype(x, x.dtype if node.operation == "argmax" else node.type.dtype)
    axes = sorted(axis % len(x.shape) for axis in node.attributes["axes"])
    others = [axis for axis in range(len(x.shape)) if axis not in axes]
    shape, inner = (tuple(x.shape[axis] for axis in some) for some in (others, axes))
    read = FrameValue(x.root, x.offset, tuple(x.strides[axis] for axis in (*others, *axes)), (*shape, *inner))
    root = Root("scratch", node.type.dtype, prod(shape))
    draft = ReductionDraft(node.operation, shape, inner, read, FrameValue.of(root, shape), node.operation)
    lowering.drafts.add(draft, root)
    lowering.values[number] = FrameValue.of(root, node.type.shape)


def scanned(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers a prefix sum or product along one axis."""
    x = lowering.as_dtype(lowering.operands(node)[0], node.type.dtype)
    axis = node.attributes["axis"] % len(x.shape)
    root = Root("scratch", node.type.dtype, node.type.size)
    whole = FrameValue.of(root, node.type.shape)
    order = [*(place for place in range(len(x.shape)) if place != axis), axis]

    def last(value: FrameValue) -> FrameValue:
        """Returns a value with the axis as its last one."""
        strides, shape = (tuple(some[place] for place in order) for some in (value.strides, value.shape))
        return FrameValue(value.root, value.offset, strides, shape)

    read = last(x)
    draft = ReductionDraft(
        node.operation, read.shape[:-1], read.shape[-1:], read, last(whole), node.operation
    )
    lowering.drafts.add(draft, root)
    lowering.values[number] = whole


def picked(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers the choice of one of several results."""
    lowering.values[number] = lowering.several[node.inputs[0]][node.attributes["of"]]


def gathered(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers rows of a table at the indices of a value."""
    lowering.values[number] = rows_of(lowering, node, lowering.known[node.inputs[0]])


def rows_of(lowering: StepLowering, node: Node, table: Array, scale: float | None = None) -> FrameValue:
    """Adds rows of a table at the indices of a value; returns them. node: the operation. scale: what integers
    of the table are multiplied by.
    """
    index = lowering.value(node.inputs[1])
    name = lowering.name(node.inputs[0])
    rows, width = table.shape[0], prod(table.shape[1:])
    root = Root("scratch", table.dtype.name, node.type.size, scale=scale)
    own = lowering.table(table, name)
    write = FrameValue.of(root, (*index.shape, width))
    lowering.drafts.add(GatherDraft(own, rows, index, write, f"rows of {name or 'a table'}"), root)
    return FrameValue.of(root, node.type.shape)
