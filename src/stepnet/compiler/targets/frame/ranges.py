"""The largest magnitudes of the values of a step, from samples: what static scales are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.interpret import within
from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.calibration import FrameSamples
from stepnet.compiler.targets.frame.step import KEEPING, FrameRanges, ModelStep

Array = np.ndarray


def calibrated(step: ModelStep, given: FrameSamples) -> ModelStep:
    """Returns a step with the largest magnitude of each value of its net: runs the samples in the dtypes of
    the model, all sequences of a sample side by side.
    """
    largest = [0.0] * len(step.net.nodes)
    known = dict(step.constants)
    with np.errstate(all="ignore"):
        for number, node in enumerate(step.net.nodes):
            if number not in known and node.operation != "input" and is_constant(node):
                known[number] = within(node, [known[operand] for operand in node.inputs])
        for inputs, lengths in zip(given.samples, given.lengths, strict=True):
            measure(step, known, inputs, lengths, largest)
    return replace(step, ranges=FrameRanges(given.activations, tuple(largest)))


def is_constant(node: Node) -> bool:
    """Tells whether a value follows from parameters alone."""
    return all(type_.extent == CONST for type_ in node.types)


def measure(
    step: ModelStep, known: Mapping[int, Array], inputs: Sequence[Array], lengths: Array, largest: list[float]
) -> None:
    """Runs the sequences of a sample side by side, and raises the largest magnitudes where theirs are larger.

    known: the constants, by number. inputs: the arrays of the inputs, with all sequences end to end.
    """
    order = np.argsort(-lengths, kind="stable")
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])[order]
    memories = [begun(step, each.before, each.begin, len(order)) for each in step.memories]
    for at in range(int(lengths.max(initial=0))):
        count = int((lengths > at).sum())
        values: dict[int, Any] = dict(known)
        for end, array in zip(step.inputs, inputs, strict=True):
            values[end.number] = array[starts[:count] + at]
        for memory, array in zip(step.memories, memories, strict=True):
            values[memory.before] = array[:count]
        for number, node in enumerate(step.net.nodes):
            if number not in values and node.operation != "input":
                operands = [values[operand] for operand in node.inputs]
                values[number] = operands[0] if node.operation in KEEPING else within(node, operands)
            note(largest, number, values.get(number))
        memories = [
            np.broadcast_to(values[each.after], (count, *step.net.type_of(each.before).shape))
            for each in step.memories
        ]


def begun(step: ModelStep, number: int, begin: Array | None, count: int) -> Array:
    """Returns what a memory begins with, for each of so many sequences. number: that of the memory."""
    type_ = step.net.type_of(number)
    return np.broadcast_to(np.zeros((), type_.dtype) if begin is None else begin, (count, *type_.shape))


def note(largest: list[float], number: int, value: Any) -> None:
    """Raises the largest magnitude of a value, if it has finite floats with larger ones."""
    array = np.asarray(value) if value is not None and not isinstance(value, tuple) else np.zeros(0)
    if array.dtype.kind == "f" and array.size:
        sizes = np.abs(array[np.isfinite(array)])
        largest[number] = max(largest[number], float(sizes.max(initial=0)))
