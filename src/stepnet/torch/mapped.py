"""A net run for each entry of mapped axes of its inputs: the rule of torch.vmap.

    x [n, steps, ...], W [...]       the entries of all n join one batch, which runs at once
    dy [n, steps, ...] -> dW [n, ..] one batch too: a sum over the batch is one over each sequence instead
    x [n, steps, ...], W [n, ...]    one run for each entry, as each has its own parameters

The result of each sequence is the same in all ways. What the forward pass of a gradient saves stays with the
run of each entry, for its backward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import product, repeat
from typing import Any

import numpy as np

from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets import Order
from stepnet.compiler.values.records import dataclass
from stepnet.model.gradients.differentiable import DifferentiableNet, Passes
from stepnet.model.gradients.pieces import Checkpoint
from stepnet.ragged.positions import Positions
from stepnet.torch.places import place_of
from stepnet.torch.pytorch import pytorch
from stepnet.torch.running import count_products, run_backward, run_forward, run_net_on

torch: Any = pytorch("torch")


@dataclass(frozen=True)
class MappedAxis:
    """A mapped axis of a number of entries, and where it is in each input; None for one that all share."""

    count: int
    dims: tuple[int | None, ...]

    def of_first(self, count: int) -> "MappedAxis":
        """Returns the same axis of the first inputs alone, a number of them."""
        return MappedAxis(self.count, self.dims[:count])

    @property
    def is_shared(self) -> bool:
        """Tells whether all entries share all inputs."""
        return all(dim is None for dim in self.dims)


@dataclass(eq=False)
class Saved:
    """The values that a forward pass saves for a backward pass.

    wanted: the positions of the inputs that get gradients.
    before: the number of axes that had joined the batch already. Gradients are sums over these.
    passes: both passes of the net; None before the forward pass.
    joined, axes: the mapped axes of the forward pass, as `MappedNet` has them.
    each: the saved tensors by the entries of the axes, and their versions, which tell whether they were
        changed in place.
    """

    wanted: tuple[int, ...]
    before: int
    passes: Passes | None = None
    joined: tuple[MappedAxis, ...] = ()
    axes: tuple[MappedAxis, ...] = ()
    each: dict[tuple[int, ...], tuple[list[Any], list[int]]] = field(
        default_factory=dict[tuple[int, ...], tuple[list[Any], list[int]]]
    )

    def add(self, entry: tuple[int, ...], tensors: list[Any]) -> None:
        """Keeps an entry's saved values, except tensors of inference mode, whose changes are not counted."""
        if not any(tensor.is_inference() for tensor in tensors):
            # Detached, as a result refers to the graph, which refers to what is kept here.
            kept = [tensor.detach() for tensor in tensors]
            self.each[entry] = kept, [tensor._version for tensor in kept]

    def of(self, entry: tuple[int, ...]) -> list[Any] | None:
        """Returns the tensors of an entry; None if there are none, or if one has changed since."""
        tensors, versions = self.each.get(entry, ([], [-1]))
        return tensors if [tensor._version for tensor in tensors] == versions else None


@dataclass(frozen=True)
class MappedNet:
    """A net with the mapped axes of its inputs; its results have these axes first.

    engine: the engines in order of preference. positions: where the steps of the sequences lie.
    checkpoint: the number of steps between saved memories, or None.
    joined: the axes whose entries joined the batch, the last one first. axes: the axes whose entries run one
        by one, the outermost first.
    is_gradient: whether the net computes a gradient, whose own backward pass rarely runs.
    saves: where the values that a backward pass reads are kept; None if there will be none.
    reads: the values that the forward pass saved, if this net computes the gradient; else None.
    """

    net: DifferentiableNet
    engine: Order
    positions: Positions
    checkpoint: Checkpoint = None
    joined: tuple[MappedAxis, ...] = ()
    axes: tuple[MappedAxis, ...] = ()
    is_gradient: bool = False
    saves: Saved | None = None
    reads: Saved | None = None

    def saving(self, wanted: tuple[int, ...]) -> "MappedNet":
        """Returns this run, saving what gradients at positions `wanted` read, unless it saves already."""
        if self.is_gradient or self.saves is not None or not wanted:
            return self
        return replace(self, saves=Saved(wanted, len(self.joined)))

    def gradient(self, wanted: tuple[int, ...]) -> "MappedNet":
        """Returns the run of the gradients of the inputs at the positions `wanted`, of the same inputs and
        the cotangents of the floating-point results. They have the mapped axes first.
        """
        saved, more = self.saves, (0,) * len(self.net.floats)
        return replace(
            self,
            net=self.net.gradient(wanted),
            axes=tuple(MappedAxis(axis.count, axis.dims + more) for axis in self.axes),
            is_gradient=True,
            saves=None,
            reads=saved if saved is not None and saved.wanted == wanted else None,
        )

    def tangent(self, moved: tuple[int, ...]) -> "MappedNet":
        """Returns a run for tangents of floating-point results, from inputs and tangents at `moved`."""
        axes = (MappedAxis(a.count, a.dims + tuple(a.dims[place] for place in moved)) for a in self.axes)
        return replace(self, net=self.net.tangent(moved), axes=tuple(axes), saves=None, reads=None)

    def of_input(self, place: int, gradient: Any) -> Any:
        """Returns the gradient of the input at the position `place` from those of all entries, which have the
        mapped axes first: their sum where the entries share the input.
        """
        for at, axis in reversed([*enumerate(self.axes)]):
            dim = axis.dims[place]
            gradient = gradient.sum(at) if dim is None else gradient.movedim(at, at + dim)
        return gradient

    # ---- runs ----------------------------------------------------------------------------------------------

    def __call__(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Runs the net as plain calls, one for each entry of the axes; returns the results."""
        passes = self.passes_for(tensors)
        if not self.axes:
            return self.run(passes, (), tensors)
        counts = [axis.count for axis in self.axes]
        if not all(counts):
            made = self.run(None, (), [*of_no_entry(self.axes, tensors)])
            return tuple(each.new_empty(*counts, *each.shape) for each in made)
        entries = zip(product(*map(range, counts)), split(self.axes, tensors), strict=True)
        runs = [self.run(passes, entry, given) for entry, given in entries]
        return tuple(torch.stack(each).unflatten(0, counts) for each in zip(*runs, strict=True))

    def passes_for(self, tensors: Sequence[Any]) -> Passes | None:
        """Returns the passes of which one runs in place of the net: the forward pass where values are saved,
        the backward pass where they are read. None if the net itself runs.
        """
        if (saved := self.saves) is not None:
            if self.wanted_parameters and len(self.joined) > saved.before:
                passes = self.net.halves(saved.wanted, self.engine, is_each=True)
            else:
                place = place_of(tensors, self.engine)
                passes = place.passes(self.net, saved.wanted, self.checkpoint, self.engine)
            saved.passes, saved.joined, saved.axes = passes, self.joined, self.axes
            return passes
        if (saved := self.reads) is None or saved.passes is None:
            return None
        count = len(saved.passes.net.inputs)
        joined = tuple(axis.of_first(count) for axis in self.joined)
        axes = tuple(own for own in (axis.of_first(count) for axis in self.axes) if not own.is_shared)
        return saved.passes if (joined, axes) == (saved.joined, saved.axes) else None

    def saves_each(self, rows: int) -> bool:
        """Tells whether the entries of an axis can join the batch of the forward pass of a gradient: no
        parameter gets a gradient, which is a sum over the batch, or there is one for each sequence and
        entries are single sequences. rows: the number of sequences of an entry.
        """
        wanted = self.wanted_parameters
        return not wanted or (rows == 1 and self.net.gradient(wanted).per_sequence() is not None)

    def joining(self) -> "MappedNet":
        """Returns this run without saving where that would keep single sequences from joining one batch: the
        gradient of a parameter has no form for each sequence, as that of a table. The backward pass then
        computes the forward pass again.
        """
        wanted = self.wanted_parameters
        if not wanted or self.positions.rows > 1 or self.saves_each(1):
            return self
        return replace(self, saves=None)

    @property
    def wanted_parameters(self) -> tuple[int, ...]:
        """The positions of the parameters whose gradients read what this run saves."""
        wanted = () if self.saves is None else self.saves.wanted
        return tuple(place for place in wanted if self.net.inputs[place].extent == CONST)

    def run(self, passes: Passes | None, entry: tuple[int, ...], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Runs one entry; returns its results. passes: the forward and backward pass, one of which it runs;
        or None.
        """
        if passes is not None and self.saves is not None:
            count_products(self.net, self.positions)
            made = run_forward(passes, self.positions, tensors)
            self.saves.add(entry, [made[place] for place in passes.saved])
            return made[: len(self.net.results)]
        if passes is not None and self.reads is not None:
            count = len(passes.net.inputs)
            own = tuple(
                n for n, axis in zip(entry, self.axes, strict=True) if not axis.of_first(count).is_shared
            )
            if (saved := self.reads.of(own)) is not None:
                count_products(passes.net, self.positions, passes.wanted)
                return run_backward(passes, self.positions, tensors[:count], tensors[count:], saved)
        count_products(self.net, self.positions)
        return run_net_on(self.net, self.positions, tensors, self.engine)


def split(axes: Sequence[MappedAxis], tensors: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yields the inputs of each entry of mapped axes. axes: the outermost first."""
    if not axes:
        yield tensors
        return
    axis, *others = axes
    parts = (repeat(t) if dim is None else t.unbind(dim) for t, dim in zip(tensors, axis.dims, strict=True))
    for _, *entry in zip(range(axis.count), *parts, strict=False):
        yield from split(others, entry)


def of_no_entry(axes: Sequence[MappedAxis], tensors: Sequence[Any]) -> Iterator[Any]:
    """Yields zeros of the shapes of one entry's inputs, for the shapes of results without entries."""
    for place, tensor in enumerate(tensors):
        shape = [] if tensor is None else [*tensor.shape]
        for axis in axes:
            if (dim := axis.dims[place]) is not None:
                del shape[dim]
        yield None if tensor is None else tensor.new_zeros(shape)


# ---- one more axis -----------------------------------------------------------------------------------------


def mapped(
    apply: Callable[[MappedNet, Sequence[Any]], tuple[Any, ...]],
    run: MappedNet,
    axis: MappedAxis,
    tensors: Sequence[Any],
) -> tuple[Any, ...]:
    """Returns the results of a net for each entry of one more mapped axis of its inputs, with that axis
    first. The axis lies outside of the mapped axes that the net has already.

    apply: runs a net on tensors.
    run: the net.
    axis: the added axis.
    tensors: the inputs of the net; None for a memory of zeros.
    """
    run = run.joining()
    if (joint := joint_net(run, axis)) is None:
        return apply(replace(run, axes=(axis, *run.axes)), tensors)
    inside = len(run.axes)
    ahead = [
        axes_first(run.axes, tensor, place, axis, type_.extent != CONST)
        for place, (tensor, type_) in enumerate(zip(tensors, run.net.inputs, strict=True))
    ]
    joined = replace(
        run,
        net=joint,
        positions=repeated(run.positions, axis.count),
        joined=(axis, *run.joined),
        axes=tuple(
            MappedAxis(a.count, tuple(None if dim is None else 0 for dim in a.dims)) for a in run.axes
        ),
    )
    results = apply(joined, ahead)
    return tuple(
        tensor.unflatten(inside, (axis.count, tensor.shape[inside] // axis.count)).movedim(inside, 0)
        for tensor in results
    )


def joint_net(run: MappedNet, axis: MappedAxis) -> DifferentiableNet | None:
    """Returns the net that runs the entries of a further axis as one batch; None if they must run one by one.

    They are one batch if there are entries, no parameter has such an axis, and rows have no further
    sequences. Where a result is a sum over the batch, such as the gradient of a parameter, the net is one
    that sums over each sequence instead, and each entry must be one sequence; the forward pass of such a
    gradient is one batch if that is.
    """
    net, positions = run.net, run.positions
    pairs = zip(net.inputs, axis.dims, strict=True)
    plain = not positions.inner and not positions.beside
    if not plain or not axis.count or any(type_.extent == CONST and dim is not None for type_, dim in pairs):
        return None
    if all(type_.extent != CONST for type_ in net.results):
        return net if run.saves is None or run.saves_each(positions.rows) else None
    return net.per_sequence() if positions.rows == 1 else None


def axes_first(
    axes: Sequence[MappedAxis], tensor: Any, place: int, further: MappedAxis, is_joined: bool
) -> Any:
    """Moves the mapped axes of an input ahead of its others; returns the tensor, or None as it is.

    axes, further: the axes of a run, and one outside of them. place: the position of the input.
    is_joined: whether the entries of the further axis join the rows or steps of the input, which is repeated
        if it has no such axis.
    """
    if tensor is None:
        return None
    ahead = 0
    for dim in (further.dims[place], *(axis.dims[place] for axis in axes)):
        if dim is not None:
            tensor, ahead = tensor.movedim(ahead + dim, ahead), ahead + 1
    if not is_joined:
        return tensor
    if further.dims[place] is None:
        tensor = tensor.unsqueeze(0).expand(further.count, *tensor.shape)
    else:
        ahead -= 1
    return tensor.movedim(0, ahead).flatten(ahead, ahead + 1)


def repeated(positions: Positions, count: int) -> Positions:
    """Returns the positions of `count` batches whose data lie one after the other."""
    starts = positions.starts + positions.total * np.arange(count, dtype=np.int64)[:, None]
    lengths = np.tile(positions.lengths, count)
    return Positions(starts.reshape(-1), lengths, positions.total * count, positions.steps)
