"""Calls of a net with gradients on tensors, as functions of autograd run them.

    TensorCall     both passes of a net, where the steps lie, and the form of the results
    SmallCall      both passes on the memory of tensors, which PyTorch allocates

A small call makes no array of a tensor, nor a tensor of an array, and Python reads no address: machine code
takes the list of the tensors. What a call saves besides inputs and results is one tensor.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from stepnet.compiler.targets import RunOn
from stepnet.compiler.values.lending import Place, Spec, TensorList, bytes_of
from stepnet.compiler.values.once import entry_of
from stepnet.model.gradients.addressed import OneArray
from stepnet.model.gradients.differentiable import Passes
from stepnet.ragged.positions import Positions
from stepnet.torch.arrays import PLAIN, array_of, form_of, in_memory
from stepnet.torch.lending import LENDER
from stepnet.torch.pytorch import pytorch
from stepnet.torch.running import run_forward
from stepnet.torch.sequences import COMPUTED, HOST

torch: Any = pytorch("torch")
SMALL = 3 * 2**19
"""The most bytes of a result or of a gradient that PyTorch allocates. Memory of larger ones is reused."""
UNREAD = 1
"""Stands for the address of a memory of zeros that calls do not give: no value is read there."""
like_of: Any = attrgetter("shape", "dtype", "device")
"""Returns the arguments by which `torch.zeros` makes a tensor like another one."""
ROOM: Any = torch.empty_like
"""Allocates a tensor like one that `like` made. PyTorch takes half as long as for a shape and a dtype."""


class OtherTensorsError(Exception):
    """Tensors of another kind than a call was made for. It is raised and caught within a call of a module."""


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
        """Returns the inputs of the net; the first one is the data of the module."""
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

    first, second: the passes, as functions of tensors: of the inputs, results and further values; and of the
        inputs, the saved tensors, the cotangents and the gradients.
    results, gradients: tensors like the results of the module and of the backward pass, without memory.
    places: where each result of the net is in those of the module.
    further: the values that are only saved, as one tensor, and `further_like` one like it, without memory.
    held: the results that are saved too; `further` follows them.
    kept: where each value that the backward pass reads is in the saved tensors, and `specs` its shape and
        dtype.
    forms: the shape and dtype of each tensor that a call saves.
    inputs: the number of inputs.
    by_input: puts the gradients, of which the last is None, to the inputs of the autograd function.
    floats, like: the positions of the results, and their shapes, dtypes and devices.
    """

    first: RunOn
    second: RunOn
    results: list[Any]
    gradients: list[Any]
    places: list[Place]
    further: OneArray
    further_like: Any
    held: list[int]
    kept: list[Place]
    specs: list[Spec]
    forms: list[Any]
    inputs: int
    by_input: Any
    floats: Sequence[int]
    like: list[Any]

    @classmethod
    def of(
        cls, passes: Passes, positions: Positions, tensors: Sequence[Any], layout: ResultLayout
    ) -> "SmallCall | None":
        """Finds out what a call on these tensors allocates; None if it is not small. tensors: the inputs of
        the net, of the dtypes and shapes that it has; None for a memory of zeros.
        """
        net, given = passes.net, [tensor is not None for tensor in tensors]
        if any(type_.dtype not in COMPUTED.values() for type_ in (*net.inputs, *net.results)):
            return None
        both = passes.addressed([not is_given for is_given in given], positions)
        if both is None or not all(each.is_flat for each in both):
            return None
        first, second = both
        own, count = len(net.results), len(tensors)
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
        specs = [first.made[place] for place in passes.saved]
        as_specs = [spec_of(tensor) for tensor in tensors]
        unread = {place: UNREAD for place, is_given in enumerate(given) if not is_given}
        result_specs = [*map(spec_of, results)]
        saved_specs = [*as_specs, *[result_specs[place] for place in held], further.spec]
        zeros = [torch.zeros(each.shape, dtype=each.dtype, device=HOST) for each in results]
        begins = {len(saved_specs) + place: each.data_ptr() for place, each in enumerate(zeros)}
        ends = [(place, 0) for place in range(count)]
        run_first = first.on(
            TensorList(
                LENDER,
                [*as_specs, *result_specs, further.spec],
                [
                    *ends,
                    *shifted(places, count),
                    *[(count + len(results), start) for start in further.starts],
                ],
                unread,
                gaps=[(count + len(results), begin, end) for begin, end in further.gaps],
            )
        )
        run_second = second.on(
            TensorList(
                LENDER,
                [*saved_specs, *result_specs, *map(spec_of, gradients)],
                [
                    *ends,
                    *shifted([places[place] for place in net.floats], len(saved_specs)),
                    *shifted(kept, count),
                    *[(len(saved_specs) + len(results) + place, 0) for place in range(len(gradients))],
                ],
                {**unread, **begins},
                zeros,
            )
        )
        further_like = like(*further.spec)
        forms = [*map(form_of, [*tensors, *[results[place] for place in held], further_like])]
        numbers = [passes.wanted.index(place) if place in passes.wanted else -1 for place in range(count)]
        return cls(
            *(run_first, run_second, results, gradients, places, further, further_like, held, kept, specs),
            *(forms, count, itemgetter(-1, *numbers)),
            *(range(len(results)), [*map(like_of, results)]),
        )

    def forward(self, call: "TensorCall", tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Runs the forward pass; returns results and saved tensors, or raises `OtherTensorsError`."""
        results, further = [*map(ROOM, self.results)], ROOM(self.further_like)
        saved = [*[results[place] for place in self.held], further]
        if are_negated(tensors) or not self.first([*tensors, *results, further]):
            self.forward_of_others(call, tensors, results, further)
        return results, saved

    def forward_of_others(
        self, call: "TensorCall", tensors: Sequence[Any], results: list[Any], further: Any
    ) -> None:
        """Runs the forward pass where machine code took none of the tensors as they are: some have gaps, or
        no call is prepared or free, which runs on arrays and copies what it makes.
        """
        if not is_lent(tensors) or [*map(form_of, tensors)] != self.forms[: self.inputs]:
            raise OtherTensorsError("tensors of another kind")
        if self.first([*map(dense_of, tensors), *results, further]):
            return
        further.zero_()
        begin, begins = further.data_ptr(), [each.data_ptr() for each in results]
        made = [
            *[begins[place] + start for place, start in self.places],
            *[begin + start for start in self.further.starts],
        ]
        tensors = run_forward(call.passes, call.positions, call.layout.flat(tensors))
        for address, array in zip(made, map(array_of, tensors), strict=True):
            ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def backward(self, saved: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...] | None:
        """Runs the backward pass; returns the gradients for the autograd function. None if no call is
        prepared and free, or if a tensor lends no memory.

        saved: the inputs and the saved tensors. cotangents: the cotangents of the module's results; None for
        zeros.
        """
        made, tensors = [*map(ROOM, self.gradients)], [*saved, *cotangents]
        is_done = not are_negated(tensors) and self.second([*tensors, *made])
        if not is_done and not (is_lent(tensors) and self.second([*map(dense_of, tensors), *made])):
            return None
        made.append(None)
        return self.by_input(made)

    def values(self, saved: Sequence[Any]) -> list[Any]:
        """Returns the values that the backward pass reads: views of the saved tensors behind the inputs."""
        return [
            saved[place]
            .reshape(-1)
            .view(torch.uint8)[start : start + bytes_of((shape, dtype))]
            .view(getattr(torch, dtype))
            .view(shape)
            for (place, start), (shape, dtype) in zip(self.kept, self.specs, strict=True)
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
        """Finds out what a call on tensors runs, the inputs of the net; None for a memory of zeros. The
        passes keep it for later calls like it, whose sequences have the same lengths.
        """
        make = partial(SmallCall.of, passes, positions, tensors, layout)
        key = positions.key, layout, *map(form_of, tensors)
        return entry_of(passes.calls, key, lambda: cls(passes, positions, layout, make()))

    @property
    def floats(self) -> Sequence[int]:
        """The positions of the results of the module that have cotangents."""
        layout = self.layout
        return range(layout.outputs + layout.kinds) if layout.kinds else self.passes.net.floats


def shifted(places: Sequence[Place], first: int) -> list[Place]:
    """Returns places in tensors that follow `first` others."""
    return [(first + tensor, start) for tensor, start in places]


def spec_of(tensor: Any) -> Spec:
    """Returns the shape and the name of the dtype of a tensor; of None those of no numbers."""
    return ((), "uint8") if tensor is None else (tuple(tensor.shape), str(tensor.dtype)[len("torch.") :])


def is_lent(tensors: Sequence[Any]) -> bool:
    """Tells whether tensors, but for None, are plain ones on the CPU, whose copies lend memory."""
    return all(
        each is None or (type(each) in PLAIN and each.is_cpu and each.layout is torch.strided)
        for each in tensors
    )


def are_negated(tensors: Sequence[Any]) -> bool:
    """Tells whether the memory of a tensor has its numbers with the other sign, which DLPack does not say."""
    return True in [each.is_neg() for each in tensors if each is not None]


def dense_of(tensor: Any) -> Any:
    """Returns a tensor whose memory has its numbers one after another, and not with the other sign, as parts
    of complex conjugates have; None for None. Raises `InputError` for one without memory.
    """
    if tensor is None or (tensor.is_contiguous() and not tensor.is_neg()):
        return tensor
    return in_memory(tensor).contiguous()


def like(shape: tuple[int, ...], dtype: str) -> Any:
    """Returns a tensor of zeros of a shape and dtype on the CPU, which takes no memory of its own."""
    return torch.zeros((), dtype=getattr(torch, dtype), device=HOST).expand(shape)
