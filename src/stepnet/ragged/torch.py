"""Sequences as PyTorch holds them: `PackedSequence`, and nested tensors of layout `torch.jagged`.

Tensors are detached, so gradients do not flow through, and moved to the CPU.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepnet.compiler.values.arguments import flag
from stepnet.compiler.values.bfloat16 import BFLOAT16
from stepnet.compiler.values.entry_points import imported
from stepnet.errors import InputError, pip_command
from stepnet.ragged.offsets import Array, ValuesAndOffsets, offsets_of, positions_of


def _torch() -> Any:
    """Imports and returns torch; raises `InputError` if it is not installed."""
    try:
        return imported("torch")
    except ImportError as error:
        raise InputError(
            f"sequences in PyTorch's form need torch: {pip_command('stepnet[torch]')}"
        ) from error


def from_packed(packed: Any) -> ValuesAndOffsets:
    """Converts a PyTorch `PackedSequence` to (values of all steps, offsets of sequences), for `Ragged`:
    copied, in the order before packing. Raises `InputError` for anything else, and for a damaged one.
    """
    torch = _torch()
    if not isinstance(packed, torch.nn.utils.rnn.PackedSequence):
        raise InputError(f"from_packed takes a torch PackedSequence, not a {type(packed).__name__}")
    data, sizes = _to_numpy(packed.data), _to_numpy(packed.batch_sizes)
    lengths = packed_lengths(sizes, len(data))
    batch = len(lengths)
    ranks = np.arange(batch)  # the position of each sequence in the order by length
    if packed.unsorted_indices is not None:
        ranks = _to_numpy(packed.unsorted_indices)
        if not np.array_equal(np.sort(ranks), np.arange(batch)):
            raise InputError(
                f"the PackedSequence is damaged: unsorted_indices is no order of its {batch} sequences"
            )
    lengths = lengths[ranks]
    steps = positions_of(np.zeros_like(lengths), lengths)
    return data[offsets_of(sizes)[steps] + np.repeat(ranks, lengths)], (offsets_of(lengths),)


def packed_lengths(sizes: Array, total: int) -> NDArray[np.int64]:
    """Computes the lengths of the sequences of a `PackedSequence`, the longest first, from its batch_sizes:
    `sizes[t]` sequences have a step t. Raises `InputError` unless these are valid for `total` steps of data.
    """
    if (sizes < 1).any() or (sizes[1:] > sizes[:-1]).any() or sizes.sum() != total:
        raise InputError(
            "the PackedSequence is damaged: batch_sizes must be positive, never rise, and add up to its data"
        )
    rows = np.arange(int(sizes[0]) if len(sizes) else 0)
    return len(sizes) - np.searchsorted(sizes[::-1], rows, side="right")


def to_packed(values: Array, offsets: NDArray[np.int64], enforce_sorted: bool) -> Any:
    """Converts values of all steps and offsets of sequences to a PyTorch `PackedSequence` with copied data.

    enforce_sorted: whether lengths must not rise; the order of the sequences is then not stored.
    """
    torch, enforce_sorted = _torch(), flag(enforce_sorted, "enforce_sorted")
    lengths = np.diff(offsets)
    if not len(lengths):
        raise InputError("a torch PackedSequence holds one sequence or more, and there are no sequences")
    if not lengths.all():
        raise InputError(
            f"sequence {int(lengths.argmin())} is empty, and a torch PackedSequence cannot hold it"
        )
    rises = lengths[1:] > lengths[:-1]
    if enforce_sorted and rises.any():
        first = int(rises.argmax()) + 1
        raise InputError(
            f"sequence {first} is longer than the sequence before it; pass enforce_sorted=False, or sort them"
        )
    order = np.argsort(-lengths, kind="stable")
    sizes = len(lengths) - np.searchsorted(lengths[order[::-1]], np.arange(int(lengths.max())), side="right")
    sequences = order[positions_of(np.zeros_like(sizes), sizes)]
    steps = np.repeat(np.arange(len(sizes)), sizes)
    data = _to_tensor(torch, values[offsets[sequences] + steps])
    indices = None if enforce_sorted else torch.from_numpy(order)
    return torch.nn.utils.rnn.PackedSequence(data, torch.from_numpy(sizes), indices)


def from_nested(nested: Any) -> ValuesAndOffsets:
    """Converts a jagged nested tensor of PyTorch to (values of all steps, offsets of sequences), for
    `Ragged`. The values share its memory, and are copied only to leave out gaps between sequences. Raises
    `InputError` for other tensors, and for bounds beyond the values.
    """
    torch = _torch()
    if not isinstance(nested, torch.Tensor) or not nested.is_nested or nested.layout != torch.jagged:
        kind = (
            f"a {nested.layout} tensor" if isinstance(nested, torch.Tensor) else f"a {type(nested).__name__}"
        )
        raise InputError(f"from_nested takes a nested tensor made with layout=torch.jagged, not {kind}")
    if isinstance(nested.shape[1], int):
        raise InputError(
            f"the nested tensor is {tuple(nested.shape)}; transpose it, so that the steps come second"
        )
    values, bounds = _to_numpy(nested.values()), _to_numpy(nested.offsets()).astype(np.int64)
    lengths = np.diff(bounds) if nested.lengths() is None else _to_numpy(nested.lengths()).astype(np.int64)
    if np.array_equal(bounds[:-1] + lengths, bounds[1:]):
        return values[bounds[0] : bounds[-1]], (bounds - bounds[0],)
    if (lengths < 0).any() or (bounds[:-1] < 0).any() or (bounds[:-1] + lengths > len(values)).any():
        raise InputError(
            f"the nested tensor is damaged: its lengths or offsets go beyond its {len(values)} values"
        )
    return values[positions_of(bounds[:-1], lengths)], (offsets_of(lengths),)


def to_nested(values: Array, offsets: NDArray[np.int64]) -> Any:
    """Converts values of all steps and offsets of sequences to a jagged nested tensor of PyTorch, which
    shares memory with the values if they are contiguous and writable.
    """
    torch = _torch()
    return torch.nested.nested_tensor_from_jagged(_to_tensor(torch, values), torch.from_numpy(offsets.copy()))


def _to_numpy(tensor: Any) -> Array:
    """Converts a tensor to an array, which shares the tensor's memory if that is on the CPU."""
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        return tensor.view(_torch().int16).numpy().view(BFLOAT16)
    return tensor.numpy()


def _to_tensor(torch: Any, values: Array) -> Any:
    """Converts an array to a tensor, which shares the array's memory if that is contiguous and writable.

    Other arrays are copied; torch has no read-only tensors. Raises `InputError` for a dtype that torch lacks.
    """
    values = np.require(values, requirements=["C", "W"])
    # In NumPy an axis of length 1 may have any stride, in torch not: reshaping makes it contiguous.
    values = values.reshape(1, *values.shape)[0]
    if values.dtype == BFLOAT16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(values)
    except TypeError as error:
        raise InputError(
            f"torch has no {values.dtype}; convert the values first, with_values(...)"
        ) from error
