"""Writes copies of steps at the ends of sequences as ONNX: a Pad, or, where sequences have lengths, a Gather.

    x [time, batch, features]   -->   [before + time + after, batch, features]

Pad mirrors the steps of an array at its own end. Where sequences have lengths, each step is gathered from its
own sequence. Of a sequence with fewer steps than reflection reads, an index lies outside, which runtimes
refuse, as they do a Pad of more steps than there are.
"""

from collections.abc import Mapping

import numpy as np

from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.types import STEPS
from stepnet.onnx.operators import Rule, WrittenOperation
from stepnet.onnx.scope import BATCH, OnnxValue

MODES = {"reflect": "reflect", "replicate": "edge"}
"""The modes of Pad by those of the operation `extend`."""
OUTSIDE = 2**40
"""An index that is beyond all steps."""


def extend(call: WrittenOperation) -> OnnxValue:
    """Writes the operation `extend` as ONNX, which puts copies of steps ahead of each sequence and behind it:
    a Pad, or, in a model with lengths, a Gather of the steps.
    """
    extension = Extension.of(call.node.attributes)
    if call.scope.lengths:
        return gathered(call, extension)
    pads = np.zeros((2, len(STEPS) + len(call.type.shape)), np.int64)
    pads[:, 0] = extension.before, extension.after
    return call.result("Pad", call.x, pads.ravel(), mode=MODES[extension.how])


def gathered(call: WrittenOperation, extension: Extension) -> OnnxValue:
    """Writes copies of steps at the ends of sequences as a Gather of steps of the same sequence; steps behind
    the end are copies of the first. extension: the numbers of copies, and how they are read.
    """
    scope, (source, own) = call.scope, (each.extent[-1] for each in (call.x.type, call.type))
    places, last = scope.counted("Sub", scope.positions(own), extension.before), scope.last(source)
    if extension.how == "replicate":
        index = scope.node("Min", scope.node("Max", places, np.array(0)), last)
    else:
        behind = scope.node("Abs", scope.node("Sub", last, scope.node("Abs", places)))
        index = scope.node("Sub", last, behind)
        ahead = scope.node("Less", last, scope.node("Neg", places))
        is_short = scope.node("Or", ahead, scope.node("Less", index, np.array(0)))
        index = scope.node("Where", is_short, np.array(OUTSIDE), index)
    inside = scope.node("Less", scope.positions(own), scope.step_counts(own))
    index = scope.node("Where", inside, index, np.array(0))
    rows = scope.shared("row", "Range", np.array(0), scope.scalar(BATCH), np.array(1))
    index = scope.node("Add", scope.node("Mul", index, scope.size(BATCH)), rows)
    flat = scope.node("Reshape", call.x, np.array([-1, *call.type.shape], np.int64))
    return call.result("Gather", flat, index, axis=0)


COPIES: Mapping[str, Rule] = {"extend": extend}
"""The rule of the operation that copies steps to the ends of sequences."""
