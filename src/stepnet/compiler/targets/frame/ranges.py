"""The largest magnitudes of the values of a step, from samples: what static scales are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.interpreter import within
from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.calibration import FrameSamples
from stepnet.compiler.targets.frame.fixed import FRACTIONS, LARGEST, MARGIN, fraction_of
from stepnet.compiler.targets.frame.step import KEEPING, FrameRanges, ModelStep
from stepnet.errors import InputError, RefusedError

Array = np.ndarray
MOST_CODE = 127
"""The largest int8 that activations have."""
MOST = LARGEST * 2.0 ** -FRACTIONS[0] / MARGIN
"""The largest number that integers stand for, with a margin."""


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
    made = replace(step, ranges=FrameRanges(given.activations, tuple(largest)))
    check_inputs(made, given)
    check_values(made, largest)
    return made


def check_inputs(step: ModelStep, given: FrameSamples) -> None:
    """Raises `InputError` for samples of which a few numbers of an input are so large that most of the others
    would be 0, or that no integers hold them; names the input and the sample.
    """
    for place, end in enumerate(step.inputs):
        arrays = [sample[place] for sample in given.samples if step.net.type_of(end.number).is_float]
        sizes = [np.abs(each[each != 0]).astype(np.float64) for each in arrays]
        most = [float(each.max(initial=0)) for each in sizes]
        largest, name = max(most, default=0.0), end.title or end.name
        unit = largest / MOST_CODE if given.activations == "int8" else 2.0 ** -fraction_of(largest)
        small = sum(int((each < unit / 2).sum()) for each in sizes)
        sample = f"the input `{name}` has {largest:.3g} in sample {most.index(largest) if most else 0}"
        if largest > MOST:
            raise InputError(
                f"{sample}, and integers stand for at most {MOST:.3g}: leave it out, or scale it"
            )
        if 2 * small > sum(each.size for each in sizes):
            raise InputError(
                f"{sample}, for which {small} of {sum(each.size for each in sizes)} numbers would be 0 in "
                f"{given.activations}, in steps of {unit:.3g}: leave it out"
            )


def check_values(step: ModelStep, largest: Sequence[float]) -> None:
    """Raises `RefusedError` for a value of the samples that no integers hold, naming its operation."""
    for node, most in zip(step.net.nodes, largest, strict=True):
        if most > MOST:
            what, at = node.name or node.operation, f" (at {node.source})" if node.source else ""
            raise RefusedError(
                f"`{what}` is up to {most:.3g} in the samples{at}, and integers stand for at most "
                f"{MOST:.3g}: scale it down, or quantize without activations"
            )


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
    """Returns the first value of a memory, for each of so many sequences. number: of the memory."""
    type_ = step.net.type_of(number)
    return np.broadcast_to(np.zeros((), type_.dtype) if begin is None else begin, (count, *type_.shape))


def note(largest: list[float], number: int, value: Any) -> None:
    """Raises the largest magnitude of a value, if it has finite floats with larger ones."""
    array = np.asarray(value) if value is not None and not isinstance(value, tuple) else np.zeros(0)
    if array.dtype.kind == "f" and array.size:
        sizes = np.abs(array[np.isfinite(array)])
        largest[number] = max(largest[number], float(sizes.max(initial=0)))
