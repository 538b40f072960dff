"""A step of a model in integers alone: as `node_lowering.py`, with int16 for all floats.

samples --ranges--> the largest magnitude of each value --> digits behind its point --> FrameProgram

An operation has a row in `ELEMENTWISE` or `FORMS`, or is refused.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.targets.calibration import FrameSamples
from stepnet.compiler.targets.frame import forms
from stepnet.compiler.targets.frame.drafts import FrameValue, ReductionDraft, Root
from stepnet.compiler.targets.frame.fixed import LARGEST, WIDE, refitted, stored
from stepnet.compiler.targets.frame.integer_operations import ELEMENTWISE, elementwise
from stepnet.compiler.targets.frame.integer_products import added, matmul
from stepnet.compiler.targets.frame.integer_step import IntegerLowering, fraction, no_integers
from stepnet.compiler.targets.frame.node_lowering import FORMS as FLOAT_FORMS
from stepnet.compiler.targets.frame.node_lowering import finished, lowered
from stepnet.compiler.targets.frame.program import FrameProgram
from stepnet.compiler.targets.frame.ranges import measured
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder
from stepnet.compiler.targets.frame.step import KEEPING, ModelStep
from stepnet.compiler.targets.frame.step_lowering import StepLowering
from stepnet.errors import RefusedError

Array = np.ndarray


def in_integers(step: ModelStep, samples: FrameSamples) -> FrameProgram:
    """Lowers a step of a model to a frame program without floats, with scales from samples.

    Raises `RefusedError` for an operation without a form in integers, naming it and saying what to do.
    """
    nodes = tuple(without_weights(node) for node in step.net.nodes)
    plain = replace(step, net=Net(nodes, step.net.inputs, step.net.results))
    largest = measured(plain, samples)
    return finished(IntegerLowering(plain, largest=largest, activations=samples.activations), lowered_node)


def without_weights(node: Node) -> Node:
    """Returns a node without the mark of weights in fewer bits: here all weights are int8."""
    return replace(node, pairs=tuple(pair for pair in node.pairs if pair[0] != "weights"))


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


FORMS: dict[str, Callable[[IntegerLowering, int, Node], None]] = {
    **{name: FLOAT_FORMS[name] for name in (*KEEPING, "slice", "reshape", "transpose", "broadcast", "take")},
    "concatenate": concatenated,
    **dict.fromkeys(("sum", "max", "min", "argmax"), reduced),
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "add": added,
    "matmul": matmul,
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
    if form is None or (node.operation in ELEMENTWISE and not all(type_.is_float for type_ in types)):
        raise RefusedError(
            no_integers(node, "compute it outside of the model, or quantize without activations")
        )
    form(lowering, number, node)
