"""Runs nets on tensors where they lie: a plain call, and the two passes of a gradient."""

from collections.abc import Sequence
from typing import Any

from stepnet.compiler.targets import checked_engine
from stepnet.model.gradients.differentiable import DifferentiableNet, Passes
from stepnet.model.program import Asked
from stepnet.ragged.positions import Positions
from stepnet.torch.arrays import carried
from stepnet.torch.places import place_of
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
dispatch: Any = pytorch("torch.utils._python_dispatch")
FLOP_COUNTER = "torch.utils.flop_counter"
"""The module of PyTorch's counter of floating-point operations, `FlopCounterMode`."""


def run_net_on(
    net: DifferentiableNet, positions: Positions, tensors: Sequence[Any], engine: Asked
) -> tuple[Any, ...]:
    """Runs a net on tensors where they lie; returns its results as tensors, without gradients.

    positions: where the steps of the sequences lie. tensors: the inputs; None for a memory of zeros.
    engine: the engines in order of preference.
    """
    place = place_of(tensors, engine)
    with place.running():
        arrays = place.arrays(tensors)
        return place.tensors(net(arrays, positions, checked_engine(place.engines(engine))), arrays)


def run_forward(passes: Passes, positions: Positions, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Runs a net's forward pass on tensors; returns its results, then the saved values. positions: where the
    steps of the sequences lie. tensors: the net's inputs; None for a memory of zeros.
    """
    place = place_of(tensors, passes.engine)
    with place.running():
        arrays = place.arrays(tensors)
        return place.tensors(passes.forward(arrays, positions), arrays)


def run_backward(
    passes: Passes,
    positions: Positions,
    tensors: Sequence[Any],
    cotangents: Sequence[Any],
    saved: Sequence[Any],
) -> tuple[Any, ...]:
    """Runs a net's backward pass; returns the gradients as tensors.

    positions: where the steps of the sequences lie. tensors: the net's inputs. cotangents: the cotangents of
    its floating-point results. saved: the values that its forward pass saved.
    """
    place = place_of(tensors, passes.engine)
    with place.running():
        arrays = place.arrays(place.filled(tensors, passes.net.inputs, positions.rows))
        given = cotangents if passes.is_stored else carried(cotangents)
        kept, known = (place.kept(kind) for kind in (saved, given))
        gradients = passes.backward(arrays, known, kept, positions)
        made = place.tensors(gradients, [*arrays, *known, *kept])
    return tuple(as_inputs(made, tensors, passes.wanted))


def as_inputs(gradients: Sequence[Any], tensors: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
    """Returns gradients in the dtypes of their inputs: for inputs of half precision they are computed in
    float32. tensors: all inputs of a net. wanted: the positions of the inputs that get gradients.
    """
    pairs = zip(gradients, wanted, strict=True)
    return [gradient.to(tensors[place].dtype) for gradient, place in pairs]


def count_products(
    net: DifferentiableNet, positions: Positions, wanted: tuple[int, ...] | None = None
) -> None:
    """Adds the matrix products of a call of a net to the counters `FlopCounterMode` of PyTorch that are
    active, which count operators of PyTorch: by an operator that does nothing.

    positions: where the steps of the sequences lie. wanted: the positions of the inputs that get gradients,
    for the products of the backward pass; None for those of the net.
    """
    if not torch._C._len_torch_dispatch_stack():
        return
    modes: Sequence[Any] = dispatch._get_current_dispatch_mode_stack()
    if any(type(mode).__module__ == FLOP_COUNTER for mode in modes):
        torch.ops.stepnet.products(torch.empty(0), net.products(positions, wanted))
