"""A net as a function of tensors that has gradients, of any order.

y, h = net(x, h0, W)        the forward half of the net's gradient, and what it saves
dx, dW of dy, dh            the backward half; or, where that is to have a gradient itself,
                            the net of both as such a function of x, h0, W, dy, dh
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepnet.engines import checked_engine
from stepnet.errors import InputError
from stepnet.grad.gradient import vjp
from stepnet.grad.halves import halves
from stepnet.net.ir import Net
from stepnet.net.types import STEPS
from stepnet.plan.passes.prune import prune
from stepnet.rnn.batch import Batch
from stepnet.rnn.gradients import Programs, run_net
from stepnet.rnn.program import NetProgram
from stepnet.rnn.reading import call_of
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
Array = np.ndarray
AUTO = checked_engine("auto")
NO_FORWARD_MODE = (
    "recurrences have no forward-mode derivatives: use reverse mode (backward, torch.func.grad or vjp), or "
    "the layers of torch.nn"
)
NO_VMAP = (
    "recurrences cannot run under torch.vmap: give all sequences as one batch, or use the layers of torch.nn"
)


@dataclass(frozen=True)
class Half:
    """The programs of a gradient.

    saved: for each value that the backward one reads of the forward one, the place of the forward one's
    result. apart: how many results of each step are the net's own; those that are only saved live equally
    long.
    """

    forward: NetProgram
    backward: NetProgram
    saved: tuple[int, ...]
    apart: int

    def run_forward(self, batch: Batch, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results, and behind them what is saved."""
        return run(self.forward, batch, tensors, self.apart)


class Differentiable:
    """A net whose results have gradients: those of the inputs at these places are wanted at each call."""

    def __init__(self, net: Net) -> None:
        self.net, self.kept = net, Programs()

    def halves(self, wanted: tuple[int, ...]) -> Half:
        """The programs for gradients of these inputs."""
        return self.kept.get(wanted, lambda: two_programs(self.net, wanted))

    def gradient(self, wanted: tuple[int, ...]) -> "Differentiable":
        """The gradients of these inputs, as a function of all inputs and the cotangents of all results."""

        def made() -> Differentiable:
            both = vjp(self.net, wanted)
            return Differentiable(prune(replace(both, results=both.results[len(self.net.results) :])))

        return self.kept.get(("gradient", wanted), made)

    def __call__(self, batch: Batch, wanted: tuple[int, ...], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results. batch: where the sequences lie. tensors: the inputs; None is a memory of zeros."""
        return NetFunction.apply(self, batch, wanted, *tensors)[: len(self.net.results)]


def two_programs(net: Net, wanted: tuple[int, ...]) -> Half:
    """The programs of both halves. What is saved and a result too is one result of the forward half."""
    parts = halves(vjp(net, wanted), len(net.inputs), len(net.results))
    own = len(net.results)
    results, saved = list(parts.forward.results[:own]), list[int]()
    for number in parts.forward.results[own:]:
        if number not in results:
            results.append(number)
        saved.append(results.index(number))
    forward = replace(parts.forward, results=tuple(results))
    apart = sum(net.type_of(number).extent == STEPS for number in net.results)
    return Half(NetProgram(forward), NetProgram(parts.backward), tuple(saved), apart)


class NetFunction(torch.autograd.Function):
    """What PyTorch runs. Everything that it is given or gives, and what is saved, is known to PyTorch."""

    @staticmethod
    def forward(made: Differentiable, batch: Batch, wanted: tuple[int, ...], *tensors: Any) -> Any:
        """The results, and behind them what is saved."""
        return made.halves(wanted).run_forward(batch, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Saves the inputs, and what the backward half reads."""
        ctx.made, ctx.batch, ctx.wanted, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[len(ctx.made.net.results) :])
        ctx.count = len(tensors)
        saved = [output[place] for place in ctx.made.halves(ctx.wanted).saved]
        ctx.save_for_backward(*tensors, *saved)
        ctx.like = [(one.shape, one.dtype) for one in output[: len(ctx.made.net.results)]]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """The gradients of the inputs; None for those that are not wanted."""
        made, wanted = ctx.made, ctx.wanted
        every = ctx.saved_tensors  # read once, as activation checkpointing needs it
        tensors, saved = every[: ctx.count], every[ctx.count :]
        known = [
            torch.zeros(shape, dtype=dtype) if one is None else one
            for one, (shape, dtype) in zip(cotangents, ctx.like, strict=False)
        ]
        if torch.is_grad_enabled():  # they are to have a gradient themselves
            inputs = [*tensors, *known]
            found = made.gradient(wanted)(ctx.batch, wanted_of(inputs), inputs)
        else:
            found = run(made.halves(wanted).backward, ctx.batch, [*tensors, *known, *saved])
        gradients = dict(zip(wanted, found, strict=True))
        return None, None, None, *(gradients.get(place) for place in range(ctx.count))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refused."""
        raise InputError(NO_FORWARD_MODE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        """Refused."""
        raise InputError(NO_VMAP)


def wanted_of(tensors: Sequence[Any]) -> tuple[int, ...]:
    """The places of tensors that require a gradient."""
    return tuple(place for place, one in enumerate(tensors) if one is not None and one.requires_grad)


def is_transformed() -> bool:
    """Whether a transform of torch.func is under way, or forward-mode differentiation."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


# ---- tensors and arrays ------------------------------------------------------------------------------------


def run(
    program: NetProgram, batch: Batch, tensors: Sequence[Any], apart: int | None = None
) -> tuple[Any, ...]:
    """The results of a net as tensors, of which no two share numbers.

    apart: how many of the outputs have memory of their own; the others live equally long.
    """
    arrays = [None if one is None else view_of(one) for one in tensors]
    results = run_net(program, arrays, call_of(batch, [], [], False, None, None), AUTO, apart)
    taken = {id(one) for one in arrays if one is not None}
    tensors = list[Any]()
    for array in results:
        # A view has the array that it is of as its base, and all else lies in memory of its own.
        shared = id(array) in taken or id(array.base) in taken
        tensors.append(tensor_of(array.copy() if shared else array))
        taken.add(id(array))
    return tuple(tensors)


def array_of(tensor: Any) -> Array:
    """The numbers of a tensor, C-contiguous; where it is that, they are not copied."""
    return tensor.detach().contiguous().numpy()


def view_of(tensor: Any) -> Array:
    """As `array_of`, for memory that PyTorch may free afterwards, as FSDP does with whole parameters.

    A tensor whose `numpy()` was asked for once can never be freed so.
    """
    return np.from_dlpack(tensor.detach().contiguous())


def tensor_of(array: Array) -> Any:
    """A tensor with an array's memory."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
