"""A step as a loop of PyTorch's own operations: how `Recurrence` runs where no engine takes the device.

Rows (the sequences) are sorted by length, the longest first, so that those still running are the first ones.

    lengths 1 3 2:   step 0  rows 1 2 0      step 1  rows 1 2      step 2  row 1
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.ragged.positions import Positions
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
Array = np.ndarray


@dataclass(frozen=True)
class Turns:
    """Order in which a loop over time runs the steps of sequences of different lengths: step by step, the
    longest sequences first.

    order: the numbers of the sequences, longest first.
    counts: for each step of the loop, how many sequences of this order still run.
    places: the index in the data of each step of a sequence, in the order in which the loop runs them.
    """

    order: Array
    counts: list[int]
    places: Array

    @classmethod
    def of(cls, positions: Positions, reverse: bool) -> "Turns":
        """Makes the order in which a loop over time runs the steps of sequences: each turn runs one step of
        every sequence that has not ended, the longest sequences first. reverse: whether each sequence runs
        from its last step backwards.
        """
        lengths, places, begins = positions.lengths, positions.all_step_indices, positions.offsets
        order = np.argsort(-lengths, kind="stable")
        turns = list[Array]()
        for step in range(int(lengths.max(initial=0))):
            rows = order[: np.count_nonzero(lengths > step)]
            turns.append(places[begins[rows] + (lengths[rows] - 1 - step if reverse else step)])
        flat = np.concatenate(turns) if turns else np.zeros(0, np.int64)
        return cls(order, [len(turn) for turn in turns], flat)


def looped(
    step: Callable[..., Any], turns: Turns, data: Any, memory: Any, further: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Runs a step over sequences as a Python loop of PyTorch's operations, for devices other than the CPU.

    Returns the outputs [total, ...] and the last memories [rows, ...], each as a list of tensors.

    step: a function (x, memory, index, **further) -> (output, memory).
    turns: the order in which the steps run. data: the inputs [total, ...].
    memory: the initial memories, any structure of tensors [rows, ...].
    further: the statics (values for all steps), by argument name; structures of tensors [rows, ...].
    """
    order, places = (torch.from_numpy(array).to(data.device) for array in (turns.order, turns.places))
    memories = [tensor.index_select(0, order) for tensor in leaves(memory)]
    statics = [tensor.index_select(0, order) for tensor in leaves(further)]
    ended = [list[Any]() for _ in memories]
    outputs = list[list[Any]]()
    inputs = data.index_select(0, places).split(turns.counts) if turns.counts else [data[:0]]
    for number, x in enumerate(inputs):
        # Memories behind the rows of x belong to sequences that have ended.
        for chunks, tensor in zip(ended, memories, strict=True):
            chunks.append(tensor[len(x) :])
        memories, statics = ([tensor[: len(x)] for tensor in tensors] for tensors in (memories, statics))
        index = order.new_full((len(x),), number)
        output, following = step(x, rebuild(memory, memories), index, **rebuild(further, statics))
        outputs.append(leaves(output))
        memories = leaves(following)
    back = order.argsort()
    last = [
        torch.cat([tensor, *reversed(chunks)]).index_select(0, back)
        for tensor, chunks in zip(memories, ended, strict=True)
    ]
    whole = list[Any]()
    for parts in zip(*outputs, strict=True):
        values = torch.cat(parts)
        whole.append(values.new_zeros(len(data), *values.shape[1:]).index_copy(0, places, values))
    return whole, last
