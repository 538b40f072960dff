"""A net run for each entry of a mapped axis of its inputs: the rule of torch.vmap.

    x [n, steps, ...], W [...]       the entries of all n join one batch, which runs at once
    dy [n, steps, ...] -> dW [n, ..] one batch too: a sum over the batch is one over each sequence instead
    x [n, steps, ...], W [n, ...]    one run for each entry, as each has its own parameters

The result of each sequence is the same in all ways.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.net.types import CONST
from stepnet.model.differentiable import DifferentiableNet
from stepnet.ragged.positions import Positions
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


def mapped(
    apply: Callable[..., tuple[Any, ...]],
    net: DifferentiableNet,
    count: int,
    dims: Sequence[int | None],
    positions: Positions,
    tensors: Sequence[Any],
) -> tuple[Any, ...]:
    """Runs a net for each entry of the mapped axes; returns its results, with an axis of these entries first.

    apply: runs a net on positions and tensors.
    net: the net.
    count: the number of entries.
    dims: the mapped axis of each input; None for one that all entries share.
    positions, tensors: where the steps of the sequences lie, and the inputs of the net; None for a memory of
        zeros.
    """
    first = [t if dim is None else t.movedim(dim, 0) for t, dim in zip(tensors, dims, strict=True)]
    if (joint := joint_net(net, dims, positions)) is not None:
        joined = [
            joined_rows(tensor, dim, count) if type_.extent != CONST else tensor
            for tensor, dim, type_ in zip(first, dims, net.inputs, strict=True)
        ]
        results = apply(joint, repeated(positions, count), *joined)
        return tuple(
            tensor if type_.extent == CONST else tensor.unflatten(0, (count, tensor.shape[0] // count))
            for tensor, type_ in zip(results, net.results, strict=True)
        )
    runs = [
        apply(net, positions, *(t if dim is None else t[entry] for t, dim in zip(first, dims, strict=True)))
        for entry in range(count)
    ]
    return tuple(map(torch.stack, zip(*runs, strict=True)))


def joint_net(
    net: DifferentiableNet, dims: Sequence[int | None], positions: Positions
) -> DifferentiableNet | None:
    """Returns the net that runs the entries of mapped axes as one batch; None if they must run one by one.

    They are one batch if no parameter has such an axis, and rows have no further sequences. Where a result
    is a sum over the batch, such as the gradient of a parameter, the net is one that sums over each sequence
    instead, and each entry must be one sequence.
    """
    pairs = zip(net.inputs, dims, strict=True)
    plain = not positions.inner and not positions.beside
    if not plain or any(type_.extent == CONST and dim is not None for type_, dim in pairs):
        return None
    if all(type_.extent != CONST for type_ in net.results):
        return net
    return net.per_sequence() if positions.rows == 1 else None


def joined_rows(tensor: Any, dim: int | None, count: int) -> Any:
    """Joins the rows or steps of all entries in one axis; those of a tensor without a mapped axis are
    repeated. None, a memory of zeros, stays None.
    """
    if tensor is None:
        return None
    return (tensor if dim is not None else tensor.expand(count, *tensor.shape)).flatten(0, 1)


def repeated(positions: Positions, count: int) -> Positions:
    """Returns the positions of `count` batches whose data lie one after the other."""
    starts = positions.starts + positions.total * np.arange(count, dtype=np.int64)[:, None]
    lengths = np.tile(positions.lengths, count)
    return Positions(starts.reshape(-1), lengths, positions.total * count, positions.steps)
