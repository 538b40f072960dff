"""Calls of modules with gradients whose kind came before: what the first call found out is kept.

    first call     all checks of shapes, dtypes and tools; a net, its passes, the positions of the steps
    later calls    the kind of the call, as one key; the forward pass

The kind has what these depend on: settings of the module, the dtype, shape and device of the data, and which
tensors need a gradient. Dtypes, shapes and devices of weights are checked by the forward pass. In small steps
of training the checks take longer than the machine code.
"""

import operator
from typing import Any

from stepnet.model.gradients.pieces import checked_checkpoint, checked_saved
from stepnet.torch.arrays import PLAIN
from stepnet.torch.bound import DifferentiableLayers
from stepnet.torch.function import APPLY
from stepnet.torch.places import ON_HOST, place_on
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_watched, wanted_of
from stepnet.torch.sequences import PLACES
from stepnet.torch.tensor_calls import OtherTensorsError, ResultLayout, TensorCall

torch: Any = pytorch("torch")
KNOWN = "_known_calls"
"""The attribute in which a module keeps the `TensorCall` of each kind, with the memories that it begins with:
None for each."""
MOST_KINDS = 16
"""The largest number of kinds of calls that a module keeps. Beyond it all are dropped."""
FACTS = operator.attrgetter("dtype", "shape", "requires_grad", "device", "layout")
NEEDS_GRADIENT = operator.attrgetter("requires_grad")
Kind = tuple[Any, ...]
Found = tuple[list[Any], Kind]
"""The weights of a module, and the kind of a call."""
IS_WRAPPED: Any = torch._C._functorch.is_functorch_wrapped_tensor


def found_kind(module: Any, data: Any) -> Found | None:
    """Returns the weights of a module, and the kind of a call on a tensor of data, without initial states.
    None for calls that are not of a kind: under a tool of PyTorch that sees operations, on tensors that are
    no plain ones, and on a GPU.
    """
    if type(module.engine) is not str or type(data) not in PLAIN or is_watched():
        return None
    if (found := module.tensors_and_settings()) is None:
        return None
    weights, settings = found
    if not PLAIN.issuperset(map(type, weights)) or IS_WRAPPED(data) or data.is_nested:
        return None
    if place_on(data.device, module.engine) is not ON_HOST:
        return None
    how = module.engine, module.checkpoint, module.saved, module.batch_first
    return weights, (*how, *settings, FACTS(data), *map(NEEDS_GRADIENT, weights))


def run_known(module: Any, data: Any) -> tuple[Any, Found | None]:
    """Runs a call of a module with gradients, if one of its kind came before; returns its outputs and last
    states, or else None, and the weights and the kind for `noted`.
    """
    if (found := found_kind(module, data)) is None:
        return None, None
    weights, kind = found
    calls: dict[Kind, tuple[TensorCall, list[None]]] | None = module.__dict__.get(KNOWN)
    if calls is None or (known := calls.get(kind)) is None:
        return None, found
    call, zeros = known
    try:
        return APPLY(call, data, *zeros, *weights), found
    except OtherTensorsError:
        return None, found


def noted(
    module: Any, layers: DifferentiableLayers, data: Any, found: Found, kinds: int = 0
) -> list[Any] | None:
    """Notes a kind of calls, with its passes, and runs the first call: it saves the same tensors as
    later ones, as activation checkpointing needs. Returns the outputs and last states.

    layers: those of the module, compiled. found: the weights, and the kind. kinds: as of
    `ResultLayout`. None for calls without gradients, of half precision, of no steps and on tensors that are
    not dense, which are none of these. Raises `InputError` for weights of other shapes or dtypes than the
    layers have.
    """
    weights, kind = found
    zeros = [None] * layers.net.memories
    tensors = [data, *zeros, *weights]
    if not (wanted := wanted_of(tensors)) or layers.net.program.rounded is not None or not data.numel():
        return None
    calls = module.__dict__.setdefault(KNOWN, {})
    if len(calls) >= MOST_KINDS:
        calls.clear()
    positions = layers.positions(PLACES["batch" if module.batch_first else "time"], tensors)
    net, checkpoint = layers.net.saving(checked_saved(module.saved)), checked_checkpoint(module.checkpoint)
    passes = ON_HOST.passes(net, wanted, checkpoint, module.engine)
    layout = ResultLayout(tuple(data.shape[:2]), layers.net.outputs, kinds)
    call, _ = calls[kind] = TensorCall.of(passes, positions, tensors, layout), zeros
    try:
        return [*APPLY(call, *tensors)]
    except OtherTensorsError:
        return None
