"""A net as a function of PyTorch tensors that has gradients, of any order.

y, h = net(x, h0, W)        the forward pass of a net's `Passes`, which also returns values to save
dx, dW of dy, dh            its backward pass; or, where the gradient must have a gradient itself,
                            the net of both as another such function, of x, h0, W, dy, dh
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.errors import InputError
from stepnet.model.differentiable import ModelNet, Passes
from stepnet.model.pieces import Checkpoint
from stepnet.ragged.positions import Positions
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import untraced

torch: Any = pytorch("torch")
Array = np.ndarray
NO_FORWARD_MODE = (
    "recurrences have no forward-mode derivatives: use reverse mode (backward, torch.func.grad or vjp), or "
    "the layers of torch.nn"
)
NO_BATCHES = (
    "recurrences take one cotangent at a time, and not is_grads_batched=True: call torch.autograd.grad for "
    "each, with retain_graph=True, or use the layers of torch.nn"
)
NO_VMAP = (
    "recurrences cannot run under torch.vmap: give all sequences as one batch, or use the layers of torch.nn"
)


def differentiated(passes: Passes, positions: Positions, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Runs a net on tensors and returns its results, as tensors that autograd can differentiate.

    passes: the net, and the inputs that get gradients. positions: where the steps of the sequences lie.
    tensors: the inputs; None for a memory of zeros.
    """
    function = NetFunction if is_transformed() else QuickFunction
    return function.apply(passes, positions, *tensors)[: len(passes.net.results)]


def run_tensors(
    net: ModelNet,
    positions: Positions,
    inputs: Sequence[Any],
    engine: Order = "auto",
    checkpoint: Checkpoint = None,
) -> tuple[Any, ...]:
    """Runs a net on tensors: with gradients if an input requires them, else as a plain call. Returns its
    results as tensors.

    positions: where the steps of the sequences lie.
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
        return differentiated(net.passes(wanted, checkpoint, engine), positions, inputs)
    arrays = arrays_of(inputs)
    return as_tensors(net(arrays, positions, engine), arrays)


class NetFunction(torch.autograd.Function):
    """Autograd function of a net. All its inputs, outputs and saved values are tensors that PyTorch tracks,
    so it works under the transforms of torch.func and has gradients of any order.
    """

    @staticmethod
    def forward(passes: Passes, positions: Positions, *tensors: Any) -> Any:
        """Runs the net's forward pass; returns its results, then the values saved for backward.

        passes: both passes of the net. positions: where the steps of the sequences lie. tensors: the net's
            inputs.
        """
        return run_forward(passes, positions, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Stores in `ctx` the arguments of `forward` (`inputs`), and the values of its result (`output`) that
        the backward pass reads.
        """
        ctx.passes, ctx.positions, *tensors = inputs
        net = ctx.passes.net
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[len(net.results) :])
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors, *(output[place] for place in ctx.passes.saved))
        ctx.like = [(output[place].shape, output[place].dtype) for place in net.floats]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Computes the gradients of the arguments of `forward` from the cotangents of its results, of which
        None is zeros. Returns None for arguments that get none.
        """
        if any(tensor is not None and is_batched(tensor) for tensor in cotangents):
            raise InputError(NO_BATCHES)
        passes: Passes = ctx.passes
        every = ctx.saved_tensors  # read once, as activation checkpointing needs it
        tensors, saved = every[: ctx.count], every[ctx.count :]
        given = [cotangents[place] for place in passes.net.floats]
        known = [
            torch.zeros(shape, dtype=dtype) if tensor is None else tensor
            for tensor, (shape, dtype) in zip(given, ctx.like, strict=True)
        ]
        if torch.is_grad_enabled():  # the gradients must have gradients themselves
            inputs = [*tensors, *known]
            gradient = passes.net.gradient(passes.wanted).passes(wanted_of(inputs), engine=passes.engine)
            gradients = differentiated(gradient, ctx.positions, inputs)
        else:
            gradients = run_backward(passes, ctx.positions, tensors, known, saved)
        by_place = dict(zip(passes.wanted, gradients, strict=True))
        return None, None, *(by_place.get(place) for place in range(ctx.count))

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


def is_batched(tensor: Any) -> bool:
    """Tells whether a tensor stands for several, as those of torch.autograd.grad with is_grads_batched do."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


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


def run_forward(passes: Passes, positions: Positions, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Runs a net's forward pass on tensors; returns its results, then the saved values.

    positions: where the steps of the sequences lie. tensors: the net's inputs; None for a memory of zeros.
    """
    arrays = arrays_of(tensors)
    return as_tensors(passes.forward(arrays, positions), arrays)


def run_backward(
    passes: Passes,
    positions: Positions,
    tensors: Sequence[Any],
    cotangents: Sequence[Any],
    saved: Sequence[Any],
) -> tuple[Any, ...]:
    """Runs a net's backward pass; returns the gradients as tensors.

    positions: where the steps of the sequences lie. tensors: the net's inputs. cotangents: those of its
        floating-point results. saved: the values that its forward pass saved.
    """
    arrays, kept, known = arrays_of(tensors), *(list(map(array_of, kind)) for kind in (saved, cotangents))
    gradients = passes.backward(arrays, known, kept, positions)
    return as_tensors(gradients, [*arrays, *known, *kept])


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
