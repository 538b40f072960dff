"""The arrays that a kernel takes: where the sequences lie, and the operands of the recurrence.

This file and those that run on the machine with the GPU do without stepnet.
"""

from dataclasses import dataclass

import numpy as np

ROWS = 8
"""The sequences of a group of blocks: the columns of a product of the tensor cores."""
COUNTER_BYTES = 128
"""The bytes of the counter of a group: a line of the second cache, which no other group writes to."""

Array = np.ndarray


@dataclass(frozen=True)
class Signature:
    """The arguments of a kernel: the sizes of its values, and of the memory of a group.

    sequences, memories, outputs: how many, each of `width` units. constants: the shapes of the parameters.
    exchange_floats: the numbers of the memory through which the blocks of a group exchange values.
    """

    width: int
    sequences: int
    memories: int
    outputs: int
    constants: tuple[tuple[int, ...], ...]
    exchange_floats: int


@dataclass(frozen=True)
class Inputs:
    """The operands of a recurrence, of sequences of any lengths.

    lengths: the steps of each sequence. sequences: [all steps, width]. memories: [sequences, width].
    constants: parameters, in the order of the step's.
    """

    lengths: Array
    sequences: list[Array]
    memories: list[Array]
    constants: list[Array]


@dataclass(frozen=True)
class Arranged:
    """The arrays of a call, in the order in which a kernel takes them, and how its results are found in them.

    order: the number of the sequence in each place; sequences of like length share a group.
    """

    signature: Signature
    inputs: Inputs
    arrays: list[Array]
    groups: int
    order: Array

    @property
    def results(self) -> int:
        """The number of arrays that are results: the last ones."""
        return self.signature.outputs + self.signature.memories

    def found(self, arrays: list[Array]) -> tuple[list[Array], list[Array]]:
        """Returns outputs [all steps, width] and last memories [sequences, width] out of the results of a
        call.
        """
        back = np.argsort(self.order)
        outputs = self.signature.outputs
        return arrays[:outputs], [array[: len(self.order)][back] for array in arrays[outputs:]]


def arranged(signature: Signature, inputs: Inputs) -> Arranged:
    """Returns the arrays of a call, with results poisoned by NaN."""
    lengths = inputs.lengths
    order = np.argsort(-lengths, kind="stable")
    groups = -(-len(lengths) // ROWS)
    empty = groups * ROWS - len(order)
    firsts = np.cumsum(lengths) - lengths
    starts, counts = (
        np.concatenate([a[order], np.zeros(empty, "i8")]).astype("i8") for a in (firsts, lengths)
    )
    padded = [np.concatenate([m[order], np.zeros((empty, signature.width), "f4")]) for m in inputs.memories]
    steps, width = len(inputs.sequences[0]), signature.width
    arrays = [
        starts,
        counts,
        counts.reshape(groups, ROWS).max(1),
        np.full(max(1, groups * signature.exchange_floats), np.nan, "f4"),
        np.zeros(groups * COUNTER_BYTES // 4, "i4"),
        *(np.ascontiguousarray(each, "f4") for each in (*inputs.sequences, *padded, *inputs.constants)),
        *(np.full((steps, width), np.nan, "f4") for _ in range(signature.outputs)),
        *(np.full((groups * ROWS, width), np.nan, "f4") for _ in padded),
    ]
    return Arranged(signature, inputs, arrays, groups, order)


def drawn(signature: Signature, lengths: list[int], seed: int = 0) -> Inputs:
    """Returns random operands for sequences of some lengths: uniform numbers, the same everywhere."""
    chance = np.random.default_rng(seed)

    def uniform(shape: tuple[int, ...], most: float) -> Array:
        """Returns numbers between -most and most."""
        return (chance.random(shape, dtype=np.float32) * 2 - 1) * np.float32(most)

    width = signature.width
    constants = [uniform(shape, width**-0.5 if len(shape) > 1 else 0.5) for shape in signature.constants]
    memories = [uniform((len(lengths), width), 1) for _ in range(signature.memories)]
    sequences = [uniform((int(np.sum(lengths)), width), 1) for _ in range(signature.sequences)]
    return Inputs(np.array(lengths), sequences, memories, constants)
