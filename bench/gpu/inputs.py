"""The arrays that a kernel takes: where the sequences lie, and the values of the recurrence.

NumPy does the work before the loop, by the plan's own net.
"""

from dataclasses import dataclass

import numpy as np

from bench.gpu.shape import ROWS, Shape
from stepnet.compiler.plan.plan import Plan

Array = np.ndarray


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
    """The arrays of a call in the order of `Shape.argument_names`, and how its results are found in them.

    order: the number of the sequence in each place; sequences of like length share a group.
    """

    arrays: list[Array]
    groups: int
    order: Array
    outputs: int

    def results(self, arrays: list[Array], lengths: Array) -> tuple[list[list[Array]], list[Array]]:
        """Returns the outputs of each sequence, and the last memories, out of the arrays after a call."""
        memories = len(arrays) - self.outputs
        back = np.argsort(self.order)
        outputs = [np.split(array, np.cumsum(lengths)[:-1]) for array in arrays[: self.outputs]]
        return outputs, [array[: len(self.order)][back] for array in arrays[len(arrays) - memories :]]


def hoisted(plan: Plan, params: dict[str, Array], sequences: list[Array]) -> Inputs:
    """Returns the operands of a plan's recurrence for sequences that begin with zeros."""
    net = plan.net
    joined = np.concatenate(sequences)
    values = dict[int, Array | list[Array]]()
    for place, number in enumerate(net.inputs):
        if place in plan.ends.memories:
            values[number] = np.zeros((len(sequences), *net.type_of(number).shape), "f4")
        else:
            values[number] = joined if place in plan.ends.sequences else params[net.nodes[number].name]
    for n, node in enumerate(net.nodes[: plan.recur]):
        if node.operation == "result":
            values[n] = values[node.inputs[0]][node.attributes["of"]]
        elif node.operation != "input":
            values[n] = node.row.meaning(*(values[i] for i in node.inputs), **node.attributes)
    operands = plan.recurrence.recur.operands_by_kind([values[n] for n in plan.recurrence.inputs])
    lengths = np.array([len(each) for each in sequences])
    return Inputs(lengths, operands.sequences, operands.memories, operands.others)


def arranged(shape: Shape, inputs: Inputs) -> Arranged:
    """Returns the arrays of a call, with outputs poisoned by NaN."""
    lengths = inputs.lengths
    order = np.argsort(-lengths, kind="stable")
    groups = -(-len(lengths) // ROWS)
    empty = groups * ROWS - len(order)
    firsts = np.cumsum(lengths) - lengths
    starts, counts = (np.concatenate([a[order], np.zeros(empty, "i8")]).astype("i8") for a in (firsts, lengths))
    padded = [
        np.concatenate([m[order], np.zeros((empty, *m.shape[1:]))]).astype("f4") for m in inputs.memories
    ]
    steps, width = len(inputs.sequences[0]), shape.step.width
    arrays = [
        starts,
        counts,
        counts.reshape(groups, ROWS).max(1),
        np.full(max(1, groups * shape.exchange_floats), np.nan, "f4"),
        np.zeros(groups * 32, "i4"),
        *(np.ascontiguousarray(each, "f4") for each in (*inputs.sequences, *padded, *inputs.constants)),
        *(np.full((steps, width), np.nan, "f4") for _ in shape.step.outputs),
        *(np.full((groups * ROWS, width), np.nan, "f4") for _ in padded),
    ]
    return Arranged(arrays, groups, order, len(shape.step.outputs))
