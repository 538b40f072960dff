"""Calls of layers with gradients whose kind came before: what the first call found out is kept.

    first call     all checks of shapes, dtypes and tools; a net, its passes, the positions of the steps
    later calls    the kind of the call, as one key; the forward pass

The kind has all that these depend on: settings of the module, and of each tensor its dtype, shape, device and
whether it needs a gradient. In small steps of training the checks take longer than the machine code.
"""

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stepnet.model.gradients.addressed import AddressedNet, OneArray
from stepnet.model.gradients.differentiable import DifferentiableNet, Passes
from stepnet.model.gradients.pieces import checked_checkpoint, checked_saved
from stepnet.ragged.positions import Positions
from stepnet.torch.arrays import (
    PLAIN,
    array_of,
    arrays_of,
    as_tensors,
    carried,
    form_of,
    save_for_backward,
    saved_for_backward,
    tensor_of,
)
from stepnet.torch.bound import DifferentiableLayers
from stepnet.torch.function import is_batched, run_several
from stepnet.torch.mapped import MappedNet
from stepnet.torch.places import ON_HOST, place_on
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_transformed, is_watched, untraced, wanted_of
from stepnet.torch.running import as_inputs
from stepnet.torch.sequences import HOST, PLACES, tensors_named

torch: Any = pytorch("torch")
KNOWN = "_known_calls"
"""The attribute in which a module keeps the `KnownCall` of each kind."""
MOST_KINDS = 16
"""The largest number of kinds of calls that a module keeps. Beyond it all are dropped."""
SETTINGS = operator.attrgetter(
    *("mode", "input_size", "hidden_size", "num_layers", "bias", "bidirectional", "proj_size"),
    *("batch_first", "checkpoint", "saved"),
)
FACTS = operator.attrgetter("dtype", "shape", "requires_grad", "device", "layout")
Kind = tuple[Any, ...]
SMALL = 3 * 2**19
"""The most bytes of the outputs or of a gradient that PyTorch allocates. Memory of larger ones is reused."""
ROOM: Any = partial(torch.empty_like, memory_format=torch.contiguous_format)
"""Allocates a tensor like another one. PyTorch takes half as long as for a shape and a dtype."""
IS_WRAPPED: Any = torch._C._functorch.is_functorch_wrapped_tensor


class KnownCall(NamedTuple):
    """Facts that the calls of a kind have in common.

    net, passes: the net of the layers, and both passes for the gradients that the call needs.
    positions: where the steps of its sequences lie.
    lead: the axes of the sequences and of their steps, in the order of the data.
    memories, kinds: the numbers of memories of the net, and of states of the module (h, and c of an LSTM).
    types: the shape and dtype of the outputs and of each last memory, as the net has them.
    small: both passes on the memory of tensors; None for a call that is not small.
    """

    net: DifferentiableNet
    passes: Passes
    positions: Positions
    lead: tuple[int, int]
    memories: int
    kinds: int
    types: list[tuple[tuple[int, ...], str]]
    small: "SmallCall | None"

    @classmethod
    def of(cls, module: Any, layers: DifferentiableLayers, data: Any, weights: list[Any]) -> "KnownCall":
        """Finds out what a call runs. layers: those of the module, compiled.

        Raises `InputError` for weights of other shapes or dtypes than the layers have.
        """
        net, memories, lead = (
            layers.net.saving(checked_saved(module.saved)),
            layers.net.memories,
            data.shape[:2],
        )
        place = PLACES["batch" if module.batch_first else "time"]
        positions = layers.positions(place, [data, *[None] * memories, *weights])
        wanted = wanted_of([data, *[None] * memories, *weights])
        passes = ON_HOST.passes(net, wanted, checked_checkpoint(module.checkpoint), module.engine)
        counts = lead.numel(), *[positions.rows] * memories
        types = [
            ((count, *type_.shape), type_.dtype) for count, type_ in zip(counts, net.results, strict=True)
        ]
        kinds = 2 if module.mode == "LSTM" else 1
        small = SmallCall.of(passes, positions, [data, *weights], memories, kinds)
        return cls(net, passes, positions, tuple(lead), memories, kinds, types, small)

    def arrays(self, tensors: Sequence[Any]) -> list[Any]:
        """Views the data and the weights as the inputs of the net, None for memories of zeros."""
        data, *weights = arrays_of(tensors)
        return [data.reshape(-1, *data.shape[2:]), *[None] * self.memories, *weights]

    def cotangents(self, given: Sequence[Any]) -> list[Any]:
        """Returns the cotangents of a module's results, which are the outputs and the states, as those of the
        results of the net, which are tensors too. One that is None stays None.
        """
        outputs, *states = given
        every = [None if outputs is None else outputs.reshape(-1, outputs.shape[-1]), *[None] * self.memories]
        for kind, state in enumerate(states, 1):
            if state is not None:
                every[kind :: self.kinds] = state.unbind(0)
        return every


class SmallCall(NamedTuple):
    """Both passes of a small call on the memory of tensors, which PyTorch allocates.

    first, second: the passes, as functions of addresses.
    outputs, gradients: tensors like the outputs of the module, and like the results of the backward pass.
    states: tensors like its states of each kind: zeros, the cotangents of states that get none.
    offsets: for each last memory of the net, the kind of its state, and where it begins in that, in bytes.
    further: the values that are only saved, as one tensor.
    kept: for each value that the backward pass reads, its position in `further`; -1 for the outputs.
    forms: the shape and dtype of each tensor that a call saves.
    """

    first: AddressedNet
    second: AddressedNet
    outputs: Any
    gradients: list[Any]
    states: list[Any]
    offsets: list[tuple[int, int]]
    further: OneArray
    kept: list[int]
    forms: list[Any]

    @classmethod
    def of(
        cls, passes: Passes, positions: Positions, tensors: Sequence[Any], memories: int, kinds: int
    ) -> "SmallCall | None":
        """Finds out what a call on these tensors, the data and the weights, allocates, given other fields of
        `KnownCall`; None if it is not small, or its backward pass reads last memories, which are parts of
        states.
        """
        missing = [0 < place <= memories for place in range(len(passes.net.inputs))]
        if (both := passes.addressed(missing, positions)) is None or not all(each.is_flat for each in both):
            return None
        first, second = both
        made, gradients = ([like(*spec) for spec in each.made] for each in both)
        own = [made[0], *gradients]
        if any(each.numel() * each.itemsize > SMALL for each in own):
            return None
        if any(0 < place <= memories for place in passes.saved):
            return None
        of_kinds, (shape, dtype) = made[1 : 1 + kinds], first.made[0]
        states = [ROOM(each.expand(memories // kinds, *each.shape)).zero_() for each in of_kinds]
        offsets = [(place % kinds, place // kinds * made[1 + place].nbytes) for place in range(memories)]
        outputs = like((*tensors[0].shape[:2], *shape[1:]), dtype)
        further = OneArray(first.made[1 + memories :], dtype)
        kept = [place - 1 - memories if place else -1 for place in passes.saved]
        saved = [*[outputs] * (-1 in kept), tensor_of(further.new())]
        forms = [*map(form_of, [*tensors, *saved])]
        return cls(first, second, outputs, gradients, states, offsets, further, kept, forms)

    def forward(self, call: KnownCall, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Runs the forward pass; returns the module's results, and the saved tensors."""
        room = self.further.new()
        outputs, states, further = ROOM(self.outputs), [*map(ROOM, self.states)], tensor_of(room)
        data, *weights = [dense_of(tensor) for tensor in tensors]
        begin = further.data_ptr()
        inputs = [data.data_ptr(), *[0] * call.memories, *[each.data_ptr() for each in weights]]
        results = [
            outputs.data_ptr(),
            *self.of_memories(states),
            *[begin + each for each in self.further.starts],
        ]
        if not self.first(inputs, results):
            self.copy(call, tensors, [outputs, *states], room)
        return [outputs, *states], [*[outputs] * (-1 in self.kept), further]

    def copy(self, call: KnownCall, tensors: Sequence[Any], results: Sequence[Any], room: np.ndarray) -> None:
        """Runs the forward pass on arrays, and copies what it makes to the tensors of the module's results
        and to the array with the other saved values: no call is prepared, or none is free.
        """
        arrays = call.arrays(tensors)
        first, *others = map(tensor_of, call.passes.forward(arrays, call.positions))
        outputs, *states = results
        outputs.copy_(first.view(outputs.shape))
        for place, memory in enumerate(others[: call.memories]):
            states[place % call.kinds][place // call.kinds] = memory
        for own, made in zip(self.further.arrays(room), others[call.memories :], strict=True):
            own[...] = array_of(made)

    def of_memories(self, states: Sequence[Any]) -> list[int]:
        """Lists the addresses of the last memories of the net in the states of the module."""
        begins = [state.data_ptr() for state in states]
        return [begins[kind] + offset for kind, offset in self.offsets]

    def backward(
        self, call: KnownCall, tensors: Sequence[Any], given: Sequence[Any], saved: Sequence[Any]
    ) -> list[Any] | None:
        """Runs the backward pass; returns the gradients. None if no call is prepared and free, or if a tensor
        has no memory of its own. given: the cotangents of the module's results, of which None is zeros.
        """
        outputs, *states = given
        first = ROOM(self.outputs).zero_() if outputs is None else dense_of(outputs)
        last = [
            zeros if state is None else dense_of(state)
            for state, zeros in zip(states, self.states, strict=True)
        ]
        every = [dense_of(each) for each in (*tensors, first, *last, *saved)]
        if not (set(map(type, every)) <= PLAIN and all(each.is_cpu for each in every)):
            return None
        begins = [each.data_ptr() for each in every]
        if not all(begins):
            return None
        count, starts = len(tensors), self.further.starts
        kept = [begins[-2] if place < 0 else begins[-1] + starts[place] for place in self.kept]
        cotangents = [begins[count], *self.of_memories(last)]
        inputs = [begins[0], *[0] * call.memories, *begins[1:count], *cotangents, *kept]
        made = [*map(ROOM, self.gradients)]
        return made if self.second(inputs, [each.data_ptr() for each in made]) else None

    def arrays_saved(self, saved: Sequence[Any]) -> list[np.ndarray]:
        """Views what was saved as the arrays that the backward pass reads."""
        *outputs, further = map(array_of, saved)
        every = [*self.further.arrays(further), *[each.reshape(-1, each.shape[-1]) for each in outputs]]
        return [every[place] for place in self.kept]


def dense_of(tensor: Any) -> Any:
    """Returns a tensor whose memory has its numbers one after another, and not with the other sign, as parts
    of complex conjugates have.
    """
    is_dense = tensor.is_contiguous() and not tensor.is_neg()
    return tensor if is_dense else tensor.resolve_neg().contiguous()


def like(shape: tuple[int, ...], dtype: str) -> Any:
    """Returns a tensor of zeros of a shape and dtype on the CPU, which takes no memory of its own."""
    return torch.zeros((), dtype=getattr(torch, dtype), device=HOST).expand(shape)


class KnownFunction(torch.autograd.Function):
    """Autograd function of a module's call of a known kind, of its data and weights. Its results are those of
    the module, without views between them and the net.
    """

    @staticmethod
    def forward(ctx: Any, call: KnownCall, *tensors: Any) -> tuple[Any, ...]:
        """Runs the forward pass; returns the outputs, laid out as the data, and the states."""
        ctx.call, ctx.count = call, len(tensors)
        ctx.set_materialize_grads(False)
        if (small := call.small) is not None:
            results, saved = small.forward(call, tensors)
            ctx.save_for_backward(*tensors, *saved)
            ctx.forms = small.forms
            return (*results,)
        arrays = call.arrays(tensors)
        first, *others = call.passes.forward(arrays, call.positions)
        made = as_tensors([first.reshape(*call.lead, *first.shape[1:]), *others], arrays)
        save_for_backward(ctx, [*tensors, *[made[place] for place in call.passes.saved]])
        last = made[1 : 1 + call.memories]
        return made[0], *[torch.stack(last[kind :: call.kinds]) for kind in range(call.kinds)]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Runs the backward pass, hidden from torch.compile, which would trace it."""
        return untraced(gradients)(ctx, cotangents)


APPLY: Any = super(torch.autograd.Function, KnownFunction).apply  # type: ignore[misc]
"""`KnownFunction.apply` without its search for transforms of torch.func: their calls are of no kind."""


def gradients(ctx: Any, given: Sequence[Any]) -> tuple[Any, ...]:
    """Computes the gradients of the data and the weights of a call; None for those that need none.

    ctx: of the call, with what it saved. given: the cotangents of its results, of which None is zeros.
    Gradients that must have gradients themselves are those of the net of the gradient.
    """
    call: KnownCall = ctx.call
    every = saved_for_backward(ctx)
    tensors, saved = every[: ctx.count], every[ctx.count :]
    tracks = torch.is_grad_enabled() or is_transformed()
    if tracks or any(is_batched(each) for each in given if each is not None):
        made = tracked_gradients(call, tensors, call.cotangents(given))
    elif call.small is None or (made := call.small.backward(call, tensors, given, saved)) is None:
        cotangents = [
            np.zeros(*type_) if each is None else array_of(each)
            for each, type_ in zip(call.cotangents(given), call.types, strict=True)
        ]
        arrays = call.arrays(tensors)
        kept = [*map(array_of, saved)] if call.small is None else call.small.arrays_saved(saved)
        results = call.passes.backward(arrays, cotangents, kept, call.positions)
        made = as_tensors(results, [*arrays, *cotangents, *kept])
    by_place = dict(zip(call.passes.wanted, made, strict=True))
    if 0 in by_place:
        by_place[0] = by_place[0].view(tensors[0].shape)
    return None, by_place.get(0), *map(by_place.get, range(1 + call.memories, ctx.count + call.memories))


def tracked_gradients(call: KnownCall, tensors: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Computes the gradients of a call of tensors as results that PyTorch tracks. known: the cotangents of
    the net's results, of which None is zeros.
    """
    data, *weights = tensors
    flat = [data.flatten(0, 1), *[None] * call.memories, *weights]
    filled = [
        data.new_zeros(shape) if each is None else each
        for each, (shape, _) in zip(known, call.types, strict=True)
    ]
    gradient = MappedNet(call.net, call.passes.engine, call.positions).gradient(call.passes.wanted)
    return as_inputs(run_several(gradient, [*flat, *carried(filled)]), flat, call.passes.wanted)


# ---- which calls -------------------------------------------------------------------------------------------


def weights_and_kind(module: Any, data: Any) -> tuple[list[Any], Kind] | None:
    """Returns the weights of a module, and the kind of a call on a tensor of data, without initial states.
    None for calls that are not of a kind: under a tool of PyTorch that sees operations, on tensors that are
    no plain ones, and on a GPU.
    """
    if type(module.engine) is not str or (module.training and module.dropout) or is_watched():
        return None
    weights = tensors_named(module, module._flat_weights_names)
    tensors = [data, *weights]
    if (
        not set(map(type, tensors)) <= PLAIN
        or not all(map(operator.is_, weights, module._flat_weights))
        or IS_WRAPPED(data)
        or data.is_nested
    ):
        return None
    if place_on(data.device, module.engine) is not ON_HOST:
        return None
    return weights, (module.engine, *SETTINGS(module), *map(FACTS, tensors))


def run_known(module: Any, data: Any) -> tuple[Any, tuple[list[Any], Kind] | None]:
    """Runs a call of a module with gradients, if one of its kind came before; returns its outputs and last
    states, as torch.nn does, or else None, and the weights and the kind for `noted`.
    """
    if (found := weights_and_kind(module, data)) is None:
        return None, None
    weights, kind = found
    calls: dict[Kind, KnownCall] | None = module.__dict__.get(KNOWN)
    if calls is None or (call := calls.get(kind)) is None:
        return None, found
    outputs, *states = APPLY(call, data, *weights)
    return (outputs, tuple(states) if call.kinds == 2 else states[0]), found


def noted(
    module: Any, layers: DifferentiableLayers, data: Any, weights: list[Any], kind: Kind
) -> list[Any] | None:
    """Notes what calls of a kind run, and runs the first one: it saves the same tensors as later ones, as
    activation checkpointing needs. Returns the outputs and last states.

    None for calls without gradients, of half precision and of no steps, which are none of these.
    """
    wanted = any(tensor.requires_grad for tensor in (data, *weights))
    if not wanted or layers.net.program.rounded is not None or data.dim() != 3 or not data.numel():
        return None
    calls = module.__dict__.setdefault(KNOWN, {})
    if len(calls) >= MOST_KINDS:
        calls.clear()
    call = calls[kind] = KnownCall.of(module, layers, data, weights)
    return [*APPLY(call, data, *weights)]
