"""A step of a model in integers alone: as `node_lowering.py`, with int16 for all floats.

samples --ranges.py--> the largest magnitude of each value --> digits behind its point --> FrameProgram

An operation has a row in `ELEMENTWISE` or `FORMS`, or is refused.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.frame import forms
from stepnet.compiler.targets.frame.drafts import FrameValue, ReductionDraft, Root
from stepnet.compiler.targets.frame.fixed import LARGEST, WIDE, bounded_fraction, refitted, stored
from stepnet.compiler.targets.frame.integer_operations import ELEMENTWISE, cast, elementwise
from stepnet.compiler.targets.frame.integer_products import added, matmul, sliced
from stepnet.compiler.targets.frame.integer_step import IntegerLowering, fraction, no_integers, scale_of_codes
from stepnet.compiler.targets.frame.node_lowering import FORMS as FLOAT_FORMS
from stepnet.compiler.targets.frame.node_lowering import finished, lowered
from stepnet.compiler.targets.frame.program import FrameProgram
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder
from stepnet.compiler.targets.frame.step import KEEPING, FrameRanges, ModelStep
from stepnet.compiler.targets.frame.step_lowering import StepLowering
from stepnet.errors import RefusedError


def in_integers(step: ModelStep, ranges: FrameRanges) -> FrameProgram:
    """Lowers a step of a model to a frame program without floats, with scales from ranges.

    Raises `RefusedError` for an operation without a form in integers, naming it and saying what to do.
    """
    for number, array in step.constants.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            name = step.net.nodes[number].name
            raise RefusedError(f"the parameter `{name}` has NaN or infinity, which integers do not hold")
    lowering = IntegerLowering(step, largest=ranges.largest, activations=ranges.activations)
    return finished(lowering, lowered_node)


def concatenated(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers arrays end to end along an axis: a copy of each, with the same digits."""
    parts = [lowering.refit(each, lowering.digits(number)) for each in lowering.operands(node)]
    lowering.values[number] = forms.joined(
        lowering, parts, node.attributes["axis"] % len(node.type.shape), node
    )


def reduced(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers a sum or an extreme over axes, in int32."""
    (x,) = lowering.operands(node)
    axes = sorted(axis % len(x.shape) for axis in node.attributes["axes"])
    others = [axis for axis in range(len(x.shape)) if axis not in axes]
    scale, whole = x.root.scale, lowering.as_dtype(x, "int32")
    shape, inner = (tuple(whole.shape[axis] for axis in some) for some in (others, axes))
    strides = tuple(whole.strides[axis] for axis in (*others, *axes))
    read = FrameValue(whole.root, whole.offset, strides, (*shape, *inner))
    dtype = node.type.dtype if node.operation == "argmax" else "int32"
    root = Root("scratch", dtype, prod(shape), scale=None if node.operation == "argmax" else scale)
    draft = ReductionDraft(node.operation, shape, inner, read, FrameValue.of(root, shape), node.operation)
    lowering.drafts.add(draft, root)
    result = FrameValue.of(root, node.type.shape)
    if node.operation != "argmax":
        largest = LARGEST * (prod(inner) if node.operation == "sum" else 1)
        if largest > WIDE:
            raise RefusedError(no_integers(node, f"it adds {prod(inner)} numbers; add fewer"))
        digits, own = lowering.digits(number), fraction(result)

        def record(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
            """Records the number with the digits of the result."""
            return stored(code, refitted(code, operands[0], own, digits, largest))

        result = lowering.elementwise(number, node.type.shape, [result], record)
    lowering.values[number] = result


def gathered(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers rows of a table, which is in the dtype of activations with one scale."""
    table = lowering.known[node.inputs[0]].astype(np.float64)
    largest = float(np.abs(table).max(initial=0))
    scale = scale_of_codes(largest) if lowering.activations == "int8" else 2.0 ** -bounded_fraction(largest)
    codes = np.rint(table / scale).astype(lowering.activations)
    lowering.values[number] = forms.rows_of(lowering, node, codes, scale)


FORMS: dict[str, Callable[[IntegerLowering, int, Node], None]] = {
    **{name: FLOAT_FORMS[name] for name in (*KEEPING, "reshape", "transpose", "broadcast", "take")},
    "concatenate": concatenated,
    **dict.fromkeys(("sum", "max", "min", "argmax"), reduced),
    "gather": gathered,
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "cast": cast,
    "add": added,
    "matmul": matmul,
    "slice": sliced,
}
"""The functions that lower operations on floats to integers. Others have no form in integers."""


def lowered_node(lowering: StepLowering, number: int, node: Node) -> None:
    """Adds the loops of a node: of integers as they are, of floats in int16."""
    assert isinstance(lowering, IntegerLowering)
    types = [*node.types, *(lowering.step.net.type_of(operand) for operand in node.inputs)]
    if not any(type_.is_float for type_ in types):
        lowered(lowering, number, node)
        return
    form = FORMS.get(node.operation)
    if form is None:
        raise RefusedError(
            no_integers(node, "compute it outside of the model, or quantize without activations")
        )
    form(lowering, number, node)
