"""Calls of layers with gradients whose kind came before: what the first call found out is kept.

    first call     all checks of shapes, dtypes and tools; a net, its passes, the positions of the steps
    later calls    the kind of the call, as one key; the forward pass

The kind has all that these depend on: settings of the module, and of each tensor its dtype, shape, device and
whether it needs a gradient. In small steps of training the checks take longer than the machine code.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stepnet.model.gradients.differentiable import DifferentiableNet, Passes
from stepnet.model.gradients.pieces import checked_saved
from stepnet.ragged.positions import Positions
from stepnet.torch.arrays import PLAIN, array_of, arrays_of, as_tensors, carried
from stepnet.torch.bound import DifferentiableLayers
from stepnet.torch.function import is_batched, run_several
from stepnet.torch.mapped import MappedNet
from stepnet.torch.places import ON_HOST, place_on
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_transformed, untraced, wanted_of
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


class KnownCall(NamedTuple):
    """Facts that the calls of a kind have in common.

    net, passes: the net of the layers, and both passes for the gradients that the call needs.
    positions: where the steps of its sequences lie.
    lead: the axes of the sequences and of their steps, in the order of the data.
    memories, kinds: the numbers of memories of the net, and of states of the module (h, and c of an LSTM).
    types: the shape and dtype of the outputs and of each last memory, as the net has them.
    """

    net: DifferentiableNet
    passes: Passes
    positions: Positions
    lead: tuple[int, int]
    memories: int
    kinds: int
    types: list[tuple[tuple[int, ...], str]]

    @classmethod
    def of(cls, module: Any, layers: DifferentiableLayers, data: Any, weights: list[Any]) -> "KnownCall":
        """Finds out what a call runs that has passed all checks. layers: those of the module, compiled."""
        positions = PLACES["batch" if module.batch_first else "time"].positions(data)
        net, memories, lead = (
            layers.net.saving(checked_saved(module.saved)),
            layers.net.memories,
            data.shape[:2],
        )
        wanted = wanted_of([data, *[None] * memories, *weights])
        passes = ON_HOST.passes(net, wanted, module.checkpoint, module.engine)
        counts = lead.numel(), *[positions.rows] * memories
        types = [
            ((count, *type_.shape), type_.dtype) for count, type_ in zip(counts, net.results, strict=True)
        ]
        kinds = 2 if module.mode == "LSTM" else 1
        return cls(net, passes, positions, tuple(lead), memories, kinds, types)

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


class KnownFunction(torch.autograd.Function):
    """Autograd function of a module's call of a known kind, of its data and weights. Its results are those of
    the module, without views between them and the net.
    """

    @staticmethod
    def forward(ctx: Any, call: KnownCall, *tensors: Any) -> tuple[Any, ...]:
        """Runs the forward pass; returns the outputs, laid out as the data, and the states."""
        arrays = call.arrays(tensors)
        first, *others = call.passes.forward(arrays, call.positions)
        made = as_tensors([first.reshape(*call.lead, *first.shape[1:]), *others], arrays)
        ctx.call, ctx.count = call, len(tensors)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *[made[place] for place in call.passes.saved])
        last = made[1 : 1 + call.memories]
        return made[0], *[torch.stack(last[kind :: call.kinds]) for kind in range(call.kinds)]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Runs the backward pass, hidden from torch.compile, which would trace it."""
        return untraced(gradients)(ctx, cotangents)


def gradients(ctx: Any, given: Sequence[Any]) -> tuple[Any, ...]:
    """Computes the gradients of the data and the weights of a call; None for those that need none.

    ctx: of the call, with what it saved. given: the cotangents of its results, of which None is zeros.
    Gradients that must have gradients themselves are those of the net of the gradient.
    """
    call: KnownCall = ctx.call
    every = ctx.saved_tensors  # read once, as activation checkpointing needs it
    tensors, saved = every[: ctx.count], every[ctx.count :]
    known, wanted = call.cotangents(given), call.passes.wanted
    if (
        torch.is_grad_enabled()
        or is_transformed()
        or any(map(is_batched, [each for each in known if each is not None]))
    ):
        made = tracked_gradients(call, tensors, known)
    else:
        zeros = (
            np.zeros(*type_) if each is None else None for each, type_ in zip(known, call.types, strict=True)
        )
        of_results = [
            array_of(each) if none is None else none for each, none in zip(known, zeros, strict=True)
        ]
        arrays, kept = call.arrays(tensors), [*map(array_of, saved)]
        results = call.passes.backward(arrays, of_results, kept, call.positions)
        made = as_tensors(results, [*arrays, *of_results, *kept])
    by_place = dict(zip(wanted, made, strict=True))
    if 0 in by_place:
        by_place[0] = by_place[0].reshape(tensors[0].shape)
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
    if (
        type(data) not in PLAIN
        or data.is_nested
        or is_transformed()
        or torch._C._len_torch_dispatch_stack()
        or (module.training and module.dropout)
        or type(module.engine) is not str
        or torch.is_autocast_enabled(HOST)
    ):
        return None
    weights = tensors_named(module, module._flat_weights_names)
    tensors = [data, *weights]
    if not (set(map(type, tensors)) <= PLAIN and all(map(operator.is_, weights, module._flat_weights))):
        return None
    if place_on(data.device, module.engine) is not ON_HOST:
        return None
    return weights, (module.engine, *SETTINGS(module), *map(FACTS, tensors))


def run_known(module: Any, data: Any) -> tuple[Any, tuple[list[Any], Kind] | None]:
    """Runs a call of a module with gradients, if one of its kind came before; returns its outputs and last
    states, as torch.nn does, or else None, and the weights and the kind for `note_call`.
    """
    if (found := weights_and_kind(module, data)) is None:
        return None, None
    weights, kind = found
    calls: dict[Kind, KnownCall] | None = module.__dict__.get(KNOWN)
    if calls is None or (call := calls.get(kind)) is None:
        return None, found
    outputs, *states = KnownFunction.apply(call, data, *weights)
    return (outputs, tuple(states) if call.kinds == 2 else states[0]), found


def note_call(module: Any, layers: DifferentiableLayers, data: Any, weights: list[Any], kind: Kind) -> None:
    """Notes what calls of a kind run, after the first one has passed all checks.

    Calls without gradients, of half precision and of no steps are none of these.
    """
    wanted = any(tensor.requires_grad for tensor in (data, *weights))
    if not wanted or layers.net.program.rounded is not None or data.dim() != 3 or not data.numel():
        return
    calls = module.__dict__.setdefault(KNOWN, {})
    if len(calls) >= MOST_KINDS:
        calls.clear()
    calls[kind] = KnownCall.of(module, layers, data, weights)
