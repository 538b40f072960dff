"""Tensors without numbers, which have a shape and a dtype alone: tensors on the device "meta", and tensors of
PyTorch's tracers and transforms. A step is traced with zeros in their place, and results are made like them.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stepnet.compiler.net.types import ROWS, STEPS, Extent, Type
from stepnet.compiler.values.structure import leaves
from stepnet.model.gradients.differentiable import DifferentiableNet
from stepnet.ragged.positions import Positions
from stepnet.torch.pytorch import pytorch
from stepnet.torch.sequences import HOST
from stepnet.torch.trace import tensors_of

torch: Any = pytorch("torch")
fakes: Any = pytorch("torch._subclasses.fake_tensor")
stateless: Any = pytorch("torch.nn.utils.stateless")
META = "meta"
"""The device of PyTorch whose tensors have a shape and a dtype, and no numbers."""


def is_meta(value: Any) -> bool:
    """Tells whether all tensors of an argument are on the device "meta", where they have no numbers."""
    tensors = leaves(value)
    return bool(tensors) and all(getattr(tensor, "is_meta", False) for tensor in tensors)


def has_no_numbers(tensor: Any) -> bool:
    """Tells whether a trace cannot read a tensor's numbers: off the CPU, in torch.export or torch.func."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.device.type != HOST or wrapped or isinstance(tensor, fakes.FakeTensor)


def with_numbers(value: Any) -> Any:
    """Returns a tensor on the CPU as an example: zeros for "meta", else a copy; other values as they are."""
    if not isinstance(value, torch.Tensor) or value.device.type == HOST:
        return value
    return torch.zeros(value.shape, dtype=value.dtype, device=HOST) if value.is_meta else value.cpu()


@contextmanager
def parameters_with_numbers(step: Any) -> Generator[None]:
    """Context in which the parameters and buffers of a step have numbers, to trace it; a function has none.

    In torch.export and in transforms of torch.func they have no numbers, nor on other devices; they are zeros
    then, on the CPU. A compiled step gets its parameters in each call.
    """
    named = dict(tensors_of(step)) if isinstance(step, torch.nn.Module) else {}
    if not any(has_no_numbers(tensor) for tensor in named.values()):
        yield
        return
    zeros = {name: torch.zeros(each.shape, dtype=each.dtype, device=HOST) for name, each in named.items()}
    with torch.device(HOST), stateless._reparametrize_module(step, zeros):
        yield


def empty_results(types: Sequence[Type], lead: Mapping[Extent, Sequence[int]], like: Any) -> list[Any]:
    """Returns empty tensors of some types, made by the tensor `like`: on its device, or without numbers as it
    is. lead: for each extent the sizes of the axes ahead of the features; an extent that it lacks has none.
    """
    return [
        like.new_empty((*lead.get(type_.extent, ()), *type_.shape), dtype=getattr(torch, type_.dtype))
        for type_ in types
    ]


def without_numbers(net: DifferentiableNet, positions: Positions, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the results of a net for tensors on the device "meta", which have no numbers: tensors there, of
    the shapes and dtypes of the results, which have gradients.

    positions: where the steps of the sequences lie.
    inputs: the inputs of the net, inputs per step first; None stands for a memory of zeros.
    """
    floats = [tensor for tensor in inputs if tensor is not None and tensor.is_floating_point()]
    every = sum((tensor.float().sum() for tensor in floats), torch.zeros((), device=META))
    lead = {STEPS: inputs[0].shape[:1], ROWS: (positions.rows,)}
    results = empty_results(net.results, lead, inputs[0])
    return tuple(result + every if result.is_floating_point() else result for result in results)
