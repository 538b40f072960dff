"""Sequences as modules of PyTorch get them, read where they lie."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from stepnet.errors import InputError
from stepnet.ragged.offsets import offsets_of
from stepnet.ragged.torch import packed_lengths
from stepnet.rnn.batch import Batch
from stepnet.torch.function import array_of
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
PackedSequence: Any = torch.nn.utils.rnn.PackedSequence
MOST_KEPT = 64


@dataclass(frozen=True)
class Sequences:
    """What a module is given. data: [total, features...], or [time, batch, features...] and the like. batch:
    where each sequence lies in it. form: outputs that lie as the data do, in the form of the sequences.
    order, back: in which order the rows of a state stand in the data, and the way back; None for as they are.
    """

    data: Any
    batch: Batch
    form: Callable[[Any], Any]
    order: Any = None
    back: Any = None

    @classmethod
    def of(cls, value: Any, batch_first: bool) -> "Sequences":
        """A tensor, a `PackedSequence` or a jagged nested tensor; raises `InputError` for damaged ones."""
        if isinstance(value, PackedSequence):
            return packed(value)
        if value.is_nested:
            return nested(value)
        return cls(value, dense_batch(*value.shape[:2], not batch_first), same)


def same(outputs: Any) -> Any:
    """Outputs that have their form."""
    return outputs


@lru_cache(MOST_KEPT)
def dense_batch(first: int, second: int, time_major: bool) -> Batch:
    """Where sequences of one length lie."""
    return Batch.of(np.empty((first, second, 0), np.float32), None, time_major)


def packed(value: Any) -> Sequences:
    """The sequences of a `PackedSequence`, the longest first."""
    data, sizes, order, back = value
    counts, total = array_of(sizes), len(data)
    lengths = packed_lengths(counts, total)
    rows = np.arange(len(lengths), dtype=np.int64)
    batch = Batch(None, [], [1], rows, lengths, total, (total,), offsets_of(counts)[:-1])
    return Sequences(
        data, batch, lambda outputs: PackedSequence(outputs, sizes, order, back), order=order, back=back
    )


def nested(value: Any) -> Sequences:
    """The sequences of a jagged nested tensor [batch, steps, features...]."""
    if value.layout != torch.jagged or value.dim() < 2 or isinstance(value.shape[1], int):
        raise InputError(
            "a nested tensor of sequences is made with layout=torch.jagged, and is [batch, steps, features]"
        )
    data, offsets, lengths = value.values(), value.offsets(), value.lengths()
    starts = array_of(offsets).astype(np.int64)[:-1]
    counts = (np.diff(array_of(offsets)) if lengths is None else array_of(lengths)).astype(np.int64)
    if (starts < 0).any() or (counts < 0).any() or (starts + counts > len(data)).any():
        raise InputError(
            f"the nested tensor is damaged: its lengths or offsets go beyond its {len(data)} values"
        )
    batch = Batch(None, [], [1], starts, counts, len(data), (len(data),))
    return Sequences(
        data, batch, lambda outputs: torch.nested.nested_tensor_from_jagged(outputs, offsets, lengths)
    )
