"""Calls of a net with gradients on tensors, as functions of autograd run them.

    TensorCall     both passes of a net, where the steps lie, and the form of the results
    SmallCall      both passes on the memory of tensors, which PyTorch allocates

A small call makes no array of a tensor, nor a tensor of an array. What it saves besides inputs and results is
one tensor.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from stepnet.model.gradients.addressed import AddressedNet, OneArray
from stepnet.model.gradients.differentiable import Passes
from stepnet.ragged.positions import Positions
from stepnet.torch.arrays import PLAIN, array_of, form_of, tensor_of
from stepnet.torch.pytorch import pytorch
from stepnet.torch.running import run_forward
from stepnet.torch.sequences import COMPUTED, HOST

torch: Any = pytorch("torch")
SMALL = 3 * 2**19
"""The most bytes of a result or of a gradient that PyTorch allocates. Memory of larger ones is reused."""
like_of: Any = attrgetter("shape", "dtype", "device")
"""Returns what `torch.zeros` makes a tensor like another one of."""
ROOM: Any = partial(torch.empty_like, memory_format=torch.contiguous_format)
"""Allocates a tensor like another one. PyTorch takes half as long as for a shape and a dtype."""
Place = tuple[int, int]
"""The place of a value: the number of a tensor, and where the value begins in it, in bytes."""


Spec = tuple[tuple[int, ...], str]
"""The shape of a value, and its dtype."""


class ResultLayout(NamedTuple):
    """The form in which a module gives the results of a net.

    lead: the axes of the sequences and of their steps, in the order of the data, which are one axis in the
        net; none for the net's own results.
    outputs: the number of outputs, which have these axes.
    kinds: the number of states (h, and c of an LSTM) in which the last memories of layers are stacked; 0 for
        memories that are not stacked.
    """

    lead: tuple[int, ...] = ()
    outputs: int = 0
    kinds: int = 0

    def flat(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the inputs of the net, of which the first is the data of the module."""
        data, *others = tensors
        return [data.flatten(0, 1), *others] if self.lead else [data, *others]

    def of_module(self, made: Sequence[Any]) -> list[Any]:
        """Returns the results of the net as the module gives them, without views."""
        outputs, last = made[: self.outputs], made[self.outputs :]
        states = [torch.stack(last[kind :: self.kinds]) for kind in range(self.kinds)] or last
        return [*(each.view(*self.lead, *each.shape[1:]).detach() for each in outputs), *states]

    def of_net(self, given: Sequence[Any]) -> list[Any]:
        """Returns the cotangents of the module's results as those of the net's."""
        outputs, states, lead = given[: self.outputs], given[self.outputs :], len(self.lead)
        flat = [each.reshape(-1, *each.shape[lead:]) for each in outputs]
        if not self.kinds:
            return [*flat, *states]
        layers = zip(*(state.unbind(0) for state in states), strict=True)
        return [*flat, *[memory for layer in layers for memory in layer]]

    def placed(self, specs: Sequence[Spec]) -> tuple[list[Any], list[Place]]:
        """Returns tensors like the results of the module, and where each result of the net is in them. specs:
        the shapes and dtypes of the net's.
        """
        own = [((*self.lead, *shape[1:]), dtype) for shape, dtype in specs[: self.outputs]]
        last, kinds, first = specs[self.outputs :], self.kinds or len(specs), len(own)
        if self.kinds:
            own += [((len(last) // kinds, *shape), dtype) for shape, dtype in last[:kinds]]
        else:
            own += last
        places = [(first + place % kinds, place // kinds * bytes_of(spec)) for place, spec in enumerate(last)]
        return [like(*spec) for spec in own], [*((place, 0) for place in range(first)), *places]


OF_NET = ResultLayout()
"""The form of the net's own results."""


class SmallCall(NamedTuple):
    """Both passes of a small call on the memory of tensors.

    first, second: the passes, as functions of addresses.
    results, gradients: tensors like the results of the module and of the backward pass, without memory.
    places: where each result of the net is in those of the module.
    further: the values that are only saved, as one tensor.
    held: the results that are saved too; `further` follows them.
    kept: where each value that the backward pass reads is in the saved tensors.
    forms: the shape and dtype of each tensor that a call saves.
    floats, like: the positions of the results, and their shapes, dtypes and devices.
    zeros: cotangents of results that get none, by position.
    missing: the number of inputs that calls do not give.
    """

    first: AddressedNet
    second: AddressedNet
    results: list[Any]
    gradients: list[Any]
    places: list[Place]
    further: OneArray
    held: list[int]
    kept: list[Place]
    forms: list[Any]
    floats: Sequence[int]
    like: list[Any]
    zeros: dict[int, Any]
    missing: int

    @classmethod
    def of(
        cls, passes: Passes, positions: Positions, tensors: Sequence[Any], layout: ResultLayout
    ) -> "SmallCall | None":
        """Finds out what a call on these tensors allocates; None if it is not small. tensors: the inputs of
        the net, of the dtypes and shapes that it has; None for a memory of zeros.
        """
        net, missing = passes.net, [tensor is None for tensor in tensors]
        if any(type_.dtype not in COMPUTED.values() for type_ in (*net.inputs, *net.results)):
            return None
        if (both := passes.addressed(missing, positions)) is None or not all(each.is_flat for each in both):
            return None
        first, second = both
        own = len(net.results)
        results, places = layout.placed(first.made[:own])
        shapes = [tensors[place].shape for place in passes.wanted]
        gradients = [like(shape, dtype) for shape, (_, dtype) in zip(shapes, second.made, strict=True)]
        if any(each.numel() * each.itemsize > SMALL for each in (*results, *gradients)):
            return None
        further = OneArray(first.made[own:], first.made[0][1])
        held = [*dict.fromkeys(places[place][0] for place in passes.saved if place < own)]
        kept = [
            (held.index(places[place][0]), places[place][1])
            if place < own
            else (len(held), further.starts[place - own])
            for place in passes.saved
        ]
        saved = [*[results[place] for place in held], tensor_of(further.new())]
        forms = [*map(form_of, [*tensors, *saved])]
        like_results = [*map(like_of, results)]
        every = first, second, results, gradients, places, further, held, kept, forms
        return cls(*every, range(len(results)), like_results, {}, sum(missing))

    def forward(self, call: "TensorCall", tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Runs the forward pass; returns the module's results, and the saved tensors."""
        results, further = [*map(ROOM, self.results)], tensor_of(self.further.new())
        dense = [None if each is None else dense_of(each) for each in tensors]
        begin, begins = further.data_ptr(), [each.data_ptr() for each in results]
        made = [
            *[begins[place] + start for place, start in self.places],
            *[begin + start for start in self.further.starts],
        ]
        given = [0 if each is None else each.data_ptr() for each in dense]
        if given.count(0) > self.missing or not self.first(given, made):
            # No call is prepared, or none is free, or a tensor has no memory of its own: runs on arrays, and
            # copies what it makes.
            tensors = run_forward(call.passes, call.positions, call.layout.flat(tensors))
            for address, array in zip(made, map(array_of, tensors), strict=True):
                ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return results, [*[results[place] for place in self.held], further]

    def backward(
        self, tensors: Sequence[Any], given: Sequence[Any], saved: Sequence[Any]
    ) -> list[Any] | None:
        """Runs the backward pass; returns the gradients. None if no call is prepared and free, or if a tensor
        has no memory of its own. tensors, saved: the saved ones. given: the cotangents of the module's
        results, of which None is zeros.
        """
        cotangents = [self.zeros_at(place) if each is None else each for place, each in enumerate(given)]
        every = [None if each is None else dense_of(each) for each in (*tensors, *cotangents, *saved)]
        if not all(each is None or (type(each) in PLAIN and each.is_cpu) for each in every):
            return None
        begins = [0 if each is None else each.data_ptr() for each in every]
        if not all(begin or each is None for begin, each in zip(begins, every, strict=True)):
            return None
        count, after = len(tensors), len(tensors) + len(given)
        inputs = [
            *begins[:count],
            *[begins[count + place] + start for place, start in self.places],
            *[begins[after + place] + start for place, start in self.kept],
        ]
        made = [*map(ROOM, self.gradients)]
        return made if self.second(inputs, [each.data_ptr() for each in made]) else None

    def zeros_at(self, place: int) -> Any:
        """Returns zeros like the result at a position, made once."""
        if place not in self.zeros:
            self.zeros[place] = ROOM(self.results[place]).zero_()
        return self.zeros[place]

    def values(self, passes: Passes, saved: Sequence[Any]) -> list[Any]:
        """Returns the values that the backward pass reads as parts of what was saved."""
        specs = [self.first.made[place] for place in passes.saved]
        return [
            saved[place]
            .reshape(-1)
            .view(torch.uint8)[start : start + bytes_of((shape, dtype))]
            .view(getattr(torch, dtype))
            .view(shape)
            for (place, start), (shape, dtype) in zip(self.kept, specs, strict=True)
        ]


class TensorCall(NamedTuple):
    """Facts that calls of a net with gradients have in common.

    passes: both passes of the net. positions: where the steps of the sequences lie.
    layout: the form of the results. small: both passes on the memory of tensors; None for other calls.
    """

    passes: Passes
    positions: Positions
    layout: ResultLayout = OF_NET
    small: SmallCall | None = None

    @classmethod
    def of(
        cls, passes: Passes, positions: Positions, tensors: Sequence[Any], layout: ResultLayout = OF_NET
    ) -> "TensorCall":
        """Finds out what a call on tensors runs, the inputs of the net; None for a memory of zeros."""
        return cls(passes, positions, layout, SmallCall.of(passes, positions, tensors, layout))

    @property
    def floats(self) -> Sequence[int]:
        """The positions of the results of the module that have cotangents."""
        layout = self.layout
        return range(layout.outputs + layout.kinds) if layout.kinds else self.passes.net.floats


def dense_of(tensor: Any) -> Any:
    """Returns a tensor whose memory has its numbers one after another, and not with the other sign, as parts
    of complex conjugates have.
    """
    is_dense = tensor.is_contiguous() and not tensor.is_neg()
    return tensor if is_dense else tensor.resolve_neg().contiguous()


def bytes_of(spec: Spec) -> int:
    """Returns the size in bytes of a value of a shape and a dtype."""
    shape, dtype = spec
    return prod(shape) * getattr(torch, dtype).itemsize


def like(shape: tuple[int, ...], dtype: str) -> Any:
    """Returns a tensor of zeros of a shape and dtype on the CPU, which takes no memory of its own."""
    return torch.zeros((), dtype=getattr(torch, dtype), device=HOST).expand(shape)
