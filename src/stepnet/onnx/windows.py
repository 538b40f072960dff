"""Writes windows of steps as ONNX: a Gather of the steps that each window reads, and its adjoint.

    x [time, batch, in]   -->   [windows, batch, size, in], zeros where a window reads beyond its sequence

Windows without such zeros are written as slices, which `stepnet.onnx.load` reads too.

So every net with windows can be written. What computes a convolution or a pooling, for which ONNX has
operators, is written as these instead (`convolutions.py`).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepnet.compiler.net.types import STEPS
from stepnet.compiler.net.windows import Window
from stepnet.onnx.operators import Rule, WrittenOperation
from stepnet.onnx.scope import BATCH, OnnxValue, Scope

Array = np.ndarray
END = np.iinfo(np.int64).max
"""The end of a Slice that goes on to the last step."""


def windows(call: WrittenOperation) -> OnnxValue:
    """Writes the operation `windows` as ONNX, which gives each step its neighbouring steps as features: a
    Slice for each entry of windows without zeros around the sequence, else a Gather of the steps that each
    window reads.
    """
    window, source = Window.of(call.node.attributes), call.x.type.extent[-1]
    if not window.same and window.before == 0 and window.lost == window.reach:
        return sliced(call, window)
    scope, entries = call.scope, window.dilation * np.arange(window.size)
    begins = scope.counted("Mul", scope.positions(call.type.extent[-1]), window.stride)
    firsts = scope.counted("Sub", begins, befores(scope, window, source))
    steps = scope.node("Add", scope.node("Unsqueeze", firsts, np.array([2])), entries)
    return gathered(call, steps, within(scope, steps, source), call.x.type.shape)


def sliced(call: WrittenOperation, window: Window) -> OnnxValue:
    """Writes windows without zeros around the sequence: for each entry the steps that it reads, side by side.

    window: the entries that are read at each step.
    """
    scope, entries = call.scope, [*range(0, window.reach + 1, window.dilation)]
    bounds = [(first, first - window.reach or END) for first in entries]
    parts = [
        scope.node("Slice", call.x, *(np.array([each]) for each in (first, end, 0, window.stride)))
        for first, end in bounds
    ]
    apart = [scope.node("Unsqueeze", part, np.array([len(STEPS)])) for part in parts]
    return call.result("Concat", *apart, axis=len(STEPS))


def overlap(call: WrittenOperation) -> OnnxValue:
    """Writes the operation `overlap` as ONNX, the adjoint of `windows`: for each step, the sum of the entries
    of all windows that were read from it.
    """
    window, source, own = Window.of(call.node.attributes), call.x.type.extent[-1], call.type.extent[-1]
    scope, entries = call.scope, np.arange(window.size)
    begins = scope.counted("Add", scope.positions(own), befores(scope, window, own))
    begins = scope.node("Unsqueeze", begins, np.array([2]))
    distances = scope.node("Sub", begins, window.dilation * entries)
    numbers = scope.node("Div", distances, np.array(window.stride))
    is_begin = scope.node("Equal", scope.node("Mul", numbers, np.array(window.stride)), distances)
    inside = scope.node("And", is_begin, within(scope, numbers, source))
    values = gathered(call, numbers, inside, call.type.shape, entries)
    return call.result("ReduceSum", values, np.array([2]), keepdims=0)


def befores(scope: Scope, window: Window, axis: str) -> str | int:
    """Returns the number of zeros ahead of a sequence in its first window: an integer or, where it follows
    from the lengths of sequences along `axis`, the name of the numbers, [batch] or [1].
    """
    if not window.same:
        return window.before
    counts = scope.step_counts(axis)
    made = scope.following(window.lengths, counts)
    reached = scope.counted(
        "Add", scope.counted("Mul", made, window.stride), window.reach + 1 - window.stride
    )
    zeros = scope.counted("Max", scope.counted("Sub", reached, counts), 0)
    return scope.counted("Div", scope.counted("Add", zeros, int(window.same == "lower")), 2)


def within(scope: Scope, places: str, axis: str) -> str:
    """Adds nodes that tell which indices of steps lie within their own sequence; returns the name of the
    result. places: the name of the indices, [time, batch or 1, size]. axis: the axis of the steps.
    """
    counts = scope.shared(("counts", axis), "Unsqueeze", scope.step_counts(axis), np.array([1]))
    begun = scope.node("GreaterOrEqual", places, np.array(0))
    return scope.node("And", begun, scope.node("Less", places, counts))


def gathered(
    call: WrittenOperation, places: str, inside: str, shape: tuple[int, ...], entries: Array | None = None
) -> OnnxValue:
    """Adds nodes that read a value at places along its axis of steps; returns the result, [time, batch, size]
    and the features, with zeros where there is nothing to read.

    call: the operation that reads its first operand. places, inside: the names of the places and of whether
    they are read, [time, batch or 1, size]. shape: the features of what is read. entries: the entry of a
    window that is read at each place; None for steps.
    """
    scope = call.scope
    rows = scope.shared("row", "Range", np.array(0), scope.scalar(BATCH), np.array(1))
    rows = scope.shared("rows", "Unsqueeze", rows, np.array([0, 2]))
    index = scope.node("Add", scope.node("Mul", places, scope.size(BATCH)), rows)
    if entries is not None:
        index = scope.node("Add", scope.node("Mul", index, np.array(len(entries))), entries)
    index = scope.node("Where", inside, index, np.array(0))
    flat = scope.node("Reshape", call.x, np.array([-1, *shape], np.int64))
    size = Window.of(call.node.attributes).size
    value = scope.apply("Gather", replace(call.type, shape=(size, *shape)), flat, index, axis=0)
    mask = scope.node("Unsqueeze", inside, 3 + np.arange(len(shape))) if shape else inside
    return scope.chosen(mask, value, OnnxValue.of(0, value.type.dtype))


WINDOWS: Mapping[str, Rule] = {"windows": windows, "overlap": overlap}
"""The rule of each operation on windows of steps."""
