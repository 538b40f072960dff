"""Writes values per sequence and per step as ONNX: `expand` and `reduce` as operators of ONNX."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepnet.compiler.net.types import STEPS
from stepnet.errors import ModelError
from stepnet.onnx.operators import Rule, WrittenOperation
from stepnet.onnx.scope import OnnxValue

FIRST = np.array([0], np.int64)


def expand(call: WrittenOperation) -> OnnxValue:
    """Writes a repetition along one more axis as ONNX: of a value per sequence at each step, or of a constant
    for each sequence.

    If the operation has the attribute "how" ("first" or "last"), only the first or last step gets the value,
    and the others are 0; raises `ModelError` where it would be the first or last sequence of the batch.
    """
    repeated = call.scope.expanded(call.x, call.type.extent)
    how = call.node.attributes.get("how")
    if how is not None and len(call.type.extent) != len(STEPS):
        raise ModelError("it writes to a single sequence of the batch, which an ONNX model cannot do")
    return repeated if how is None else call.scope.masked(repeated, how)


def reduce(call: WrittenOperation) -> OnnxValue:
    """Writes a reduction of the steps of each sequence to one value as ONNX, such as a sum or the last step.
    Booleans are computed as integers. Raises `ModelError` for a reduction over all sequences of a batch.
    """
    how = call.attribute("how")
    if len(call.x.type.extent) != len(STEPS):
        raise ModelError(f"a {how} over all sequences of a batch cannot be an output per sequence")
    if call.type.dtype != "bool":
        return REDUCTIONS[how](call)
    numbers = replace(call.type, dtype="int32")  # ONNX does not reduce booleans
    inner = replace(call.node, types=(numbers,))
    result = REDUCTIONS[how](WrittenOperation(call.scope, inner, (call.scope.typed(call.x, "int32"),)))
    return call.scope.typed(result, "bool")


def total(call: WrittenOperation) -> OnnxValue:
    """Writes the sum over the steps of each sequence as ONNX, without padding if the model has lengths."""
    x = call.scope.masked(call.x, "steps") if call.scope.lengths else call.x
    return call.result("ReduceSum", x, FIRST, keepdims=0)


def mean(call: WrittenOperation) -> OnnxValue:
    """Writes the mean over the steps of each sequence as ONNX. In a model with lengths, padding is left out,
    and it is 0 for an empty sequence.
    """
    scope, dtype = call.scope, call.type.dtype
    if not scope.lengths:
        return call.result("ReduceMean", call.x, axes=[0], keepdims=0)
    axis = call.x.type.extent[-1]
    most = scope.counted("Max", scope.step_counts(axis), 1)
    count = scope.shared(("count", dtype, axis), "Cast", most, to=scope.kind(dtype))
    if call.x.rank:
        axes = 1 + np.arange(call.x.rank)
        count = scope.shared(("count", dtype, axis, call.x.rank), "Unsqueeze", count, axes)
    return call.result("Div", total(call), count)


def largest(call: WrittenOperation) -> OnnxValue:
    """Writes the maximum over the steps of each sequence as ONNX. In a model with lengths, padding is left
    out, and it is 0 for an empty sequence.
    """
    if not call.scope.lengths:
        return call.result("ReduceMax", call.x, axes=[0], keepdims=0)
    dtype = np.dtype(call.type.dtype)
    lowest = -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
    maximum = call.result("ReduceMax", call.scope.masked(call.x, "steps", lowest), axes=[0], keepdims=0)
    return call.scope.masked(maximum, "rows", axis=call.x.type.extent[-1])


def end(how: str) -> Rule:
    """Makes the function that writes the "first" or "last" (`how`) step of each sequence as ONNX."""

    def rule(call: WrittenOperation) -> OnnxValue:
        """Writes the first or last step of each sequence as ONNX; with lengths, 0 for an empty sequence."""
        scope = call.scope
        if not scope.lengths:
            return call.result("Gather", call.x, np.array(0 if how == "first" else -1), axis=0)
        if how == "first":
            first = call.result("Gather", call.x, np.array(0), axis=0)
            return scope.masked(first, "rows", axis=call.x.type.extent[-1])
        return call.result("ReduceSum", scope.masked(call.x, "last"), FIRST, keepdims=0)

    return rule


REDUCTIONS: Mapping[str, Rule] = {
    "sum": total,
    "mean": mean,
    "max": largest,
    "first": end("first"),
    "last": end("last"),
}


EXTENTS: Mapping[str, Rule] = {"expand": expand, "reduce": reduce}
"""The rule of each operation that changes the extent of a value."""
