"""A net as a function of PyTorch tensors that has gradients, of any order.

y, h = net(x, h0, W)        the forward half of a `GradientRun`, which also returns values to save
dx, dW of dy, dh            its backward half; or, where the gradient must have a gradient itself,
                            the net of both as another such function, of x, h0, W, dy, dh
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets import Call, Order, gradient_order
from stepnet.errors import InputError
from stepnet.model.batch import Batch
from stepnet.model.gradient_runs import GradientRun, Halved, gradient_net
from stepnet.model.gradient_strategy import gradient_run
from stepnet.model.gradients import GradientPrograms
from stepnet.model.nets import run_net
from stepnet.model.pieces import Checkpoint
from stepnet.model.program import Asked, NetProgram
from stepnet.model.reading import call_of
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import untraced

torch: Any = pytorch("torch")
Array = np.ndarray
NO_FORWARD_MODE = (
    "recurrences have no forward-mode derivatives: use reverse mode (backward, torch.func.grad or vjp), or "
    "the layers of torch.nn"
)
NO_VMAP = (
    "recurrences cannot run under torch.vmap: give all sequences as one batch, or use the layers of torch.nn"
)


class Differentiable:
    """Net (graph of operations) as a function of tensors with gradients, with a cache of its compiled
    programs.

    Attributes:
        net: The net.
        kept: The cache of forward and backward programs, by the positions of the inputs that get gradients.
        floats: The positions of the floating-point results, which have cotangents.
    """

    def __init__(self, net: Net) -> None:
        """Starts with an empty cache; programs are compiled at their first use."""
        self.net, self.kept = net, GradientPrograms()
        self.floats = [place for place, number in enumerate(net.results) if net.type_of(number).is_float]

    def run(
        self, wanted: tuple[int, ...], checkpoint: Checkpoint = None, engine: Order = "auto"
    ) -> GradientRun:
        """Returns the net's compiled forward and backward passes for gradients of the inputs at positions
        `wanted`; cached.

        checkpoint: the number of steps between saved memories; None saves the values of all steps.
        engine: the engines in order of preference.
        """
        return gradient_run(self.kept, None, self.net, wanted, checkpoint, engine)

    def halves(self, wanted: tuple[int, ...]) -> Halved:
        """Returns the net's forward and backward pass for gradients of the inputs at positions `wanted`, for
        graphs of PyTorch; cached.

        The forward pass saves everything, as a graph must know the shapes of the saved values.
        """
        return self.kept.get(("halves", wanted), lambda: Halved.of(self.net, wanted))

    def gradient(self, wanted: tuple[int, ...]) -> "Differentiable":
        """Returns the gradients of the inputs at positions `wanted` as a function that has gradients itself,
        for second derivatives; cached.

        Its inputs are all inputs of the net, followed by the cotangents of all results.
        """
        return self.kept.get(("gradient", wanted), lambda: Differentiable(gradient_net(self.net, wanted)))

    def __call__(
        self,
        batch: Batch,
        wanted: tuple[int, ...],
        tensors: Sequence[Any],
        checkpoint: Checkpoint = None,
        engine: Asked = "auto",
    ) -> tuple[Any, ...]:
        """Runs the net on tensors and returns its results, as tensors that autograd can differentiate.

        batch: the positions of the sequences. wanted: positions of the inputs that get gradients.
        tensors: the inputs; None for a memory of zeros. checkpoint: the steps between saved memories, or
        None. engine: an engine, or several in order of preference; `gradient_order` says which of them run.
        """
        function = NetFunction if is_transformed() else QuickFunction
        order = gradient_order(engine)
        return function.apply(self, batch, wanted, checkpoint, order, *tensors)[: len(self.net.results)]


@dataclass(frozen=True)
class NetRun:
    """Object that runs a net (graph of operations) over tensors: with gradients if an input requires them,
    else as a plain call.

    program: the compiled net, for plain calls. differentiable: the same net, for calls with gradients.
    """

    program: NetProgram
    differentiable: Differentiable

    def __call__(
        self, batch: Batch, inputs: Sequence[Any], engine: Order = "auto", checkpoint: Checkpoint = None
    ) -> tuple[Any, ...]:
        """Runs the net and returns its results as tensors.

        batch: the positions of the sequences.
        inputs: the inputs of the net; None stands for a memory of zeros.
        engine: the engines in order of preference. checkpoint: the number of steps between memories saved for
            gradients, or None.
        """
        transformed = is_transformed()
        wanted: tuple[int, ...] = ()
        if transformed:  # only each transform knows what requires a gradient
            wanted = floats_of(inputs)
        elif torch.is_grad_enabled():
            wanted = wanted_of(inputs)
        if transformed or wanted:
            return self.differentiable(batch, wanted, inputs, checkpoint, engine)
        arrays = arrays_of(inputs)
        # 1: the first output gets a buffer of its own, and all others may lie in one buffer.
        return as_tensors(run_net(self.program, arrays, call_in(batch), engine, 1), arrays)


class NetFunction(torch.autograd.Function):
    """Autograd function of a net. All its inputs, outputs and saved values are tensors that PyTorch tracks,
    so it works under the transforms of torch.func and has gradients of any order.
    """

    @staticmethod
    def forward(
        differentiable: Differentiable,
        batch: Batch,
        wanted: tuple[int, ...],
        checkpoint: Checkpoint,
        engine: Order,
        *tensors: Any,
    ) -> Any:
        """Runs the net's forward pass; returns its results, then the values saved for backward.

        differentiable: the net. batch: the positions of the sequences. wanted: positions of the tensors that
            get gradients. checkpoint: steps between saved memories, or None. engine: the engines of both
            passes. tensors: the net's inputs.
        """
        return run_forward(differentiable.run(wanted, checkpoint, engine), batch, tensors, engine)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Stores in `ctx` the arguments of `forward` (`inputs`), and the values of its result (`output`) that
        the backward pass reads.
        """
        ctx.differentiable, ctx.batch, ctx.wanted, ctx.checkpoint, ctx.engine, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[len(ctx.differentiable.net.results) :])
        ctx.count = len(tensors)
        saved = [
            output[place] for place in ctx.differentiable.run(ctx.wanted, ctx.checkpoint, ctx.engine).saved
        ]
        ctx.save_for_backward(*tensors, *saved)
        ctx.like = [(output[place].shape, output[place].dtype) for place in ctx.differentiable.floats]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Computes the gradients of the arguments of `forward` from the cotangents of its results, of which
        None is zeros. Returns None for arguments that get none.
        """
        differentiable, wanted = ctx.differentiable, ctx.wanted
        every = ctx.saved_tensors  # read once, as activation checkpointing needs it
        tensors, saved = every[: ctx.count], every[ctx.count :]
        given = [cotangents[place] for place in differentiable.floats]
        known = [
            torch.zeros(shape, dtype=dtype) if tensor is None else tensor
            for tensor, (shape, dtype) in zip(given, ctx.like, strict=True)
        ]
        if torch.is_grad_enabled():  # the gradients must have gradients themselves
            inputs = [*tensors, *known]
            gradient = differentiable.gradient(wanted)
            gradients = gradient(ctx.batch, wanted_of(inputs), inputs, engine=ctx.engine)
        else:
            run = differentiable.run(wanted, ctx.checkpoint, ctx.engine)
            gradients = run_backward(run, ctx.batch, tensors, known, saved, ctx.engine)
        by_place = dict(zip(wanted, gradients, strict=True))
        return None, None, None, None, None, *(by_place.get(place) for place in range(ctx.count))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Raises `InputError`: forward-mode derivatives are not supported."""
        raise InputError(NO_FORWARD_MODE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        """Raises `InputError`: torch.vmap is not supported."""
        raise InputError(NO_VMAP)


class QuickFunction(torch.autograd.Function):
    """Autograd function like `NetFunction`, for calls outside of torch.func's transforms.

    It has no `setup_context`: PyTorch takes 40 microseconds to bind the arguments of a function that has one.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Runs `NetFunction.forward` and stores in `ctx` what the backward pass reads. PyTorch calls such
        a function faster than one with a separate `setup_context`.
        """
        output = NetFunction.forward(*inputs)
        NetFunction.setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Runs `NetFunction.backward`, hidden from torch.compile, which would trace it."""
        return untraced(NetFunction.backward)(ctx, *cotangents)


def wanted_of(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Returns the positions of the tensors that require a gradient, which a call must compute."""
    return tuple(place for place, tensor in enumerate(tensors) if tensor is not None and tensor.requires_grad)


def floats_of(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Returns the positions of the floating-point tensors, those that can require a gradient."""
    return tuple(
        place for place, tensor in enumerate(tensors) if tensor is not None and tensor.is_floating_point()
    )


def is_transformed() -> bool:
    """Tells whether a torch.func transform or forward mode is active, so that PyTorch tracks all values."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


# ---- tensors and arrays ------------------------------------------------------------------------------------


def run_forward(run: GradientRun, batch: Batch, tensors: Sequence[Any], engine: Order) -> tuple[Any, ...]:
    """Runs a net's forward pass (of `run`) on tensors; returns its results, then the saved values.

    batch: the positions of the sequences. tensors: the net's inputs; None for a memory of zeros.
    engine: the engines in order of preference.
    """
    arrays = arrays_of(tensors)
    return as_tensors(run.forward(arrays, call_in(batch), engine), arrays)


def run_backward(
    run: GradientRun,
    batch: Batch,
    tensors: Sequence[Any],
    cotangents: Sequence[Any],
    saved: Sequence[Any],
    engine: Order,
) -> tuple[Any, ...]:
    """Runs a net's backward pass (of `run`); returns the gradients as tensors.

    batch: the positions of the sequences. tensors: the net's inputs. cotangents: those of its floating-point
        results. saved: the values that its forward pass saved. engine: the engines in order of preference.
    """
    arrays, kept, known = arrays_of(tensors), *(list(map(array_of, kind)) for kind in (saved, cotangents))
    gradients = run.backward(arrays, known, kept, call_in(batch), engine)
    return as_tensors(gradients, [*arrays, *known, *kept])


def call_in(batch: Batch) -> Call:
    """Makes the `Call` that tells an engine the positions of a batch's sequences; it has no arrays, which are
    passed beside it.
    """
    return call_of(batch, [], [], False, None, None)


def arrays_of(tensors: Sequence[Any]) -> list[Any]:
    """Views tensors as arrays, without a copy where they are contiguous; None stays None."""
    return [None if tensor is None else view_of(tensor) for tensor in tensors]


def as_tensors(arrays: Sequence[Array], known: Sequence[Array | None]) -> tuple[Any, ...]:
    """Makes tensors of the results of a net (`arrays`), each with memory of its own, as callers may change
    them in place.

    An array is copied if it is, or is a view of, an earlier result or an array of `known`, the net's inputs.
    This suffices: an engine writes each result into memory that no other array uses. Memory is shared only
    where a run returns one array for several results, or an input, as it is or reshaped.
    """
    taken, tensors = {id(array) for array in known if array is not None}, list[Any]()
    for array in arrays:
        # The base of a view is the original array, also of a view of a view.
        shared = id(array) in taken or id(array.base) in taken
        tensors.append(tensor_of(array.copy() if shared else array))
        taken.add(id(array))
    return tuple(tensors)


def array_of(tensor: Any) -> Array:
    """Returns a tensor's numbers as a C-contiguous array, without a copy if the tensor is contiguous."""
    return tensor.detach().contiguous().numpy()


def view_of(tensor: Any) -> Array:
    """Returns a tensor's numbers as a C-contiguous array, whose memory PyTorch may free later.

    After `tensor.numpy()` PyTorch can never free the memory, which FSDP does with whole parameters.
    """
    return np.from_dlpack(tensor.detach().contiguous())


def tensor_of(array: Array) -> Any:
    """Makes a tensor that shares an array's memory; a copy if the array is read-only or has gaps."""
    flags = array.flags
    if not (flags.c_contiguous and flags.writeable):
        array = array.copy("C")
    return torch.from_numpy(array)
