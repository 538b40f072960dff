"""Frame programs over whole sequences, in NumPy: all sequences side by side, one frame after the other.

numbers --codes_of--> integers --FrameRun--> integers --numbers_of--> numbers
"""

from collections.abc import Sequence

import numpy as np

from stepnet.compiler.targets.frame.numpy_run import FrameRun
from stepnet.compiler.targets.frame.program import FrameBuffer
from stepnet.errors import InputError
from stepnet.ragged.positions import Positions

Array = np.ndarray


def over_sequences(
    run: FrameRun, positions: Positions, sequences: Sequence[Array], statics: Sequence[Array]
) -> list[tuple[Array, Array]]:
    """Runs frames over sequences. Returns for each output its numbers at all steps, [total, size], and at
    the last step of each sequence, [batch, size]; zeros where there is none.

    run: the program, with a state for each sequence. positions: the positions of the steps in the arrays.
    sequences, statics: numbers, [total, features...] and [batch, features...], which are given to each frame.
    Raises `InputError` for numbers that are NaN or do not fit the integers of an input, and
    `IndexOutsideError` for an index outside of its table.
    """
    inputs, outputs = run.program.of("input"), run.program.of("output")
    pairs = zip(inputs, (*sequences, *statics), strict=True)
    given = [codes_of(buffer, array) for buffer, array in pairs]
    lengths, count = np.asarray(positions.lengths), len(sequences)
    order = np.argsort(-lengths, kind="stable")
    at_steps = [np.zeros((positions.total, each.size), each.dtype) for each in outputs]
    at_ends = [np.zeros((len(order), each.size), each.dtype) for each in outputs]
    for step in range(int(lengths.max(initial=0))):
        rows = order[: int((lengths > step).sum())]
        places = positions.starts[rows] + (step if positions.steps is None else positions.steps[step])
        frame = [array[places if place < count else rows] for place, array in enumerate(given)]
        for made, steps, ends in zip(run.frames(frame), at_steps, at_ends, strict=True):
            steps[places], ends[rows] = made, made
    return [
        (numbers_of(buffer, steps), numbers_of(buffer, ends))
        for buffer, steps, ends in zip(outputs, at_steps, at_ends, strict=True)
    ]


def codes_of(buffer: FrameBuffer, numbers: Array) -> Array:
    """Returns the integers that stand for numbers in the buffer of an input, as the header's macro computes
    them: the nearest integer, of two equally near ones that with the larger magnitude. Numbers beyond the
    range become its ends.
    """
    if buffer.scale is None:
        codes = numbers.astype(buffer.dtype)
        if (codes != numbers).any():
            raise InputError(f"a number of the input `{buffer.title or buffer.name}` is no {buffer.dtype}")
        return codes
    if np.isnan(numbers).any():
        raise InputError(f"the input `{buffer.title or buffer.name}` has NaN, which is no {buffer.dtype}")
    most = np.iinfo(buffer.dtype).max
    numbers = numbers.astype(np.float64)
    nearest = np.trunc(numbers / buffer.scale + np.where(numbers < 0, -0.5, 0.5))
    return np.clip(nearest, -most, most).astype(buffer.dtype)


def numbers_of(buffer: FrameBuffer, codes: Array) -> Array:
    """Returns the numbers that the integers of an output are: in float64, unless they are whole numbers."""
    return codes if buffer.scale is None else codes * buffer.scale
