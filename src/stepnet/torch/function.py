"""A net as a function of PyTorch tensors that has gradients, of any order.

y, h = net(x, h0, W)        the forward pass of a net's `Passes`, which also returns values to save
dx, dW of dy, dh            its backward pass; or, where the gradient must have a gradient itself,
                            the net of the gradient as another such function, of x, h0, W, dy, dh
dy, dh of dx, dh0, dW       forward mode: the net of the tangent as another such function
"""

from collections.abc import Sequence
from typing import Any

from stepnet.compiler.targets import Order
from stepnet.errors import InputError
from stepnet.model.gradients.differentiable import DifferentiableNet, Passes
from stepnet.model.gradients.pieces import Checkpoint
from stepnet.model.program import Asked
from stepnet.ragged.positions import Positions
from stepnet.torch.arrays import (
    carried,
    check_saved,
    save_for_backward,
)
from stepnet.torch.mapped import MappedAxis, MappedNet, mapped
from stepnet.torch.places import ON_HOST, place_of
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_differentiated, is_transformed, untraced, wanted_of
from stepnet.torch.running import as_inputs, count_products, run_backward, run_forward, run_net_on
from stepnet.torch.tensor_calls import TensorCall, is_lent, like_of

torch: Any = pytorch("torch")
NO_FUNCTIONALIZE = (
    "recurrences run under torch.func.functionalize, and not under another transform inside it: exchange the "
    "two, as in grad(functionalize(function))"
)


def differentiated(
    net: DifferentiableNet,
    positions: Positions,
    tensors: Sequence[Any],
    engine: Asked = "auto",
    checkpoint: Checkpoint = None,
) -> tuple[Any, ...]:
    """Runs a net on tensors and returns its results, as tensors that autograd can differentiate.

    positions: where the steps of the sequences lie. tensors: the inputs; None for a memory of zeros.
    engine: an engine, or several in order of preference. checkpoint: the number of steps between memories
        saved for gradients, or None.
    """
    place = place_of(tensors, engine)
    if not is_transformed():
        passes = place.passes(net, wanted_of(tensors), checkpoint, engine)
        return APPLY(call_of(passes, positions, tensors, place is ON_HOST), *tensors)
    order = net.gradient_engines(place.engines(engine))
    if (interpreter := functionalizing()) is not None:
        return functionalized(interpreter, net, positions, tensors, order)
    return applied(MappedNet(net, order, positions, checkpoint), tensors)


def call_of(passes: Passes, positions: Positions, tensors: Sequence[Any], is_on_host: bool) -> TensorCall:
    """Returns the `TensorCall` that a call of a net on tensors runs. It is kept where sequences have the same
    lengths.

    is_on_host: whether the tensors are on the CPU. The other arguments are those of `QuickFunction.forward`.
    """
    if not is_on_host or not positions.is_even or not is_lent(tensors):
        return TensorCall(passes, positions)
    return TensorCall.of(passes, positions, tensors)


def run_tensors(
    net: DifferentiableNet,
    positions: Positions,
    inputs: Sequence[Any],
    engine: Asked = "auto",
    checkpoint: Checkpoint = None,
) -> tuple[Any, ...]:
    """Runs a net on tensors: with gradients if an input requires them, else as a plain call. Returns its
    results as tensors.

    positions: where the steps of the sequences lie.
    inputs: the inputs of the net; None stands for a memory of zeros.
    engine: the engines in order of preference. checkpoint: the number of steps between memories saved for
        gradients, or None.
    """
    if is_differentiated(inputs):
        return differentiated(net, positions, inputs, engine, checkpoint)
    count_products(net, positions)
    return run_net_on(net, positions, inputs, engine)


class NetFunction(torch.autograd.Function):
    """Autograd function of a net under the transforms of torch.func and in forward mode. Its gradients and
    its tangents are nets, and so functions of the same kind: all of them have gradients, tangents and vmap.

    It saves its inputs, as each transform sees other values of them. The values saved by the net's forward
    pass are in the `Saved` of the run: no further derivative reads them, as the derivative of a gradient
    is computed from the inputs of the gradient.
    """

    @staticmethod
    def forward(run: MappedNet, *tensors: Any) -> Any:
        """Runs the net on tensors, and returns its results. run: the net, with the axes that are mapped."""
        return run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Stores in `ctx` the arguments of `forward` (`inputs`), and the shapes of its results (`output`)."""
        ctx.run, *tensors = inputs
        ctx.net = ctx.run.net
        ctx.save_for_forward(*tensors)
        keep(ctx, ctx.net.floats, tensors, output, ())

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Returns the gradients of the arguments of `forward`, computed by the net of the gradient; None for
        arguments without one. cotangents: of the results; None for zeros.
        """
        run: MappedNet = ctx.run
        wanted = tuple(place for place, is_needed in enumerate(ctx.needs_input_grad[1:]) if is_needed)
        tensors = ctx.saved_tensors
        inputs = [*tensors, *carried(known_cotangents(ctx, cotangents))]
        each = run_several(run.gradient(wanted), inputs)
        gradients = map(run.of_input, wanted, each)
        return None, *by_place(ctx, wanted, as_inputs([*gradients], tensors, wanted))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        """Returns the tangents of the results of `forward`, computed by the net of the tangent; None for
        results without one. tangents: of the arguments; None for zeros.
        """
        run: MappedNet = ctx.run
        given = {place: tensor for place, tensor in enumerate(tangents[1:]) if tensor is not None}
        made = run_several(run.tangent((*given,)), [*ctx.saved_tensors, *carried(given.values())])
        typed = (tensor.to(dtype) for tensor, (_, dtype, _) in zip(made, ctx.like, strict=True))
        known = dict(zip(run.net.floats, typed, strict=True))
        return tuple(known.get(place) for place in range(len(run.net.results)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, run: MappedNet, *tensors: Any) -> tuple[Any, Any]:
        """Runs the net for each entry of the mapped axes of its inputs; returns the results, with these
        entries first, and where that axis is.

        info: the number of entries. in_dims: the mapped axis of each argument, None for one without.
        """
        results = mapped(applied, run, MappedAxis(info.batch_size, in_dims[1:]), tensors)
        return results, (0,) * len(results)


def applied(run: MappedNet, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Runs a net once: as `NetFunction` where a transform or autograd sees it, which takes PyTorch about as
    long as a small net; else as a plain call. Returns its results.
    """
    if not is_differentiated(tensors):
        return run(tensors)
    wanted = wanted_of(tensors) if torch.is_grad_enabled() else ()
    return NetFunction.apply(run.saving(wanted), *tensors)


class QuickFunction(torch.autograd.Function):
    """Autograd function like `NetFunction`, for calls outside of torch.func's transforms. It saves the values
    that the backward pass reads.

    It has no `setup_context`: PyTorch takes 40 microseconds to bind the arguments of a function that has one.
    """

    @staticmethod
    def forward(ctx: Any, call: TensorCall, *tensors: Any) -> tuple[Any, ...]:
        """Runs the net's forward pass; returns its results in the form of the call.

        call: both passes, and where the steps of the sequences lie. tensors: the inputs of the net.
        """
        ctx.call, small, net = call, call.small, call.passes.net
        count_products(net, call.positions)
        if small is not None:
            results, saved = small.forward(call, tensors)
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*tensors, *saved)
            return (*results,)
        made = run_forward(call.passes, call.positions, call.layout.flat(tensors))
        results = call.layout.of_module(made[: len(net.results)])
        keep(ctx, call.floats, tensors, results, [made[place] for place in call.passes.saved])
        return (*results,)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Runs the backward pass, hidden from torch.compile, which would trace it."""
        return untraced(gradients)(ctx, cotangents)


APPLY: Any = super(torch.autograd.Function, QuickFunction).apply  # type: ignore[misc]
"""`QuickFunction.apply` without its search for transforms of torch.func, under which it does not run."""


def gradients(ctx: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the gradients of the arguments of `QuickFunction.forward`; None for those without one.

    ctx: of the call, with what it saved. cotangents: of its results; None for zeros. Gradients that must have
    gradients themselves, or that a transform sees, are those of the net of the gradient, whose arguments
    PyTorch tracks.
    """
    call: TensorCall = ctx.call
    every = ctx.saved_tensors  # read once, as activation checkpointing needs it
    small, is_differentiated = call.small, torch.is_grad_enabled() or is_transformed()
    if not (is_differentiated or small is None) and (made := small.backward(every, cotangents)) is not None:
        count_products(call.passes.net, call.positions, call.passes.wanted)
        return made
    kept = small or ctx
    check_saved(every, kept.forms)
    (passes, positions, layout, _), wanted, tensors = call, call.passes.wanted, every[: kept.inputs]
    known, flat = layout.of_net(known_cotangents(kept, cotangents)), layout.flat(tensors)
    if is_differentiated or any(map(is_batched, known)):
        gradient = MappedNet(passes.net, passes.engine, positions).gradient(wanted)
        made = as_inputs(run_several(gradient, [*flat, *carried(known)]), flat, wanted)
    else:
        count_products(passes.net, positions, wanted)
        saved = every[kept.inputs :]
        saved = saved if small is None else small.values(saved)
        made = run_backward(passes, positions, flat, known, saved)
    if layout.lead and wanted[0] == 0:
        made = [made[0].view(tensors[0].shape), *made[1:]]
    return None, *by_place(kept, wanted, made)


# ---- what both functions do --------------------------------------------------------------------------------


def keep(
    ctx: Any, floats: Sequence[int], tensors: Sequence[Any], output: Sequence[Any], saved: Sequence[Any]
) -> None:
    """Stores in the context of a function what its backward pass reads.

    floats: the positions of the results that have cotangents.
    tensors, output: the inputs and results of the function. saved: further values that are saved.
    """
    ctx.set_materialize_grads(False)
    ctx.inputs, ctx.floats = len(tensors), floats
    save_for_backward(ctx, [*tensors, *saved])
    ctx.like = [like_of(output[place]) for place in floats]


def known_cotangents(kept: Any, cotangents: Sequence[Any]) -> list[Any]:
    """Returns the cotangents of floating-point results; zeros for None. kept: of `keep`, or a `SmallCall`."""
    given = [cotangents[place] for place in kept.floats]
    return [
        torch.zeros(shape, dtype=dtype, device=device) if tensor is None else tensor
        for tensor, (shape, dtype, device) in zip(given, kept.like, strict=True)
    ]


def run_several(run: MappedNet, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Runs the net of a gradient or a tangent on tensors that PyTorch tracks. Some of them may stand for
    several, as the cotangents of `is_grads_batched=True` of torch.autograd.grad do; then so do the results.
    """
    dims = tuple(0 if tensor is not None and is_batched(tensor) else None for tensor in inputs)
    if all(dim is None for dim in dims):
        return applied(run, inputs)
    torch._C._vmapmode_increment_nesting()
    level = torch._C._vmapmode_decrement_nesting()
    several = [
        tensor if dim is None else torch._remove_batch_dim(tensor, level, 0, 0)
        for tensor, dim in zip(inputs, dims, strict=True)
    ]
    count = next(len(tensor) for tensor, dim in zip(several, dims, strict=True) if dim is not None)
    results = mapped(applied, run, MappedAxis(count, dims), several)
    return tuple(torch._add_batch_dim(tensor, 0, level) for tensor in results)


def by_place(kept: Any, wanted: Sequence[int], gradients: Sequence[Any]) -> tuple[Any, ...]:
    """Returns gradients by the inputs of a net; None for those without a gradient. wanted: the positions of
    the inputs that have gradients. kept: as of `known_cotangents`.
    """
    each = [None] * kept.inputs
    for place, gradient in zip(wanted, gradients, strict=True):
        each[place] = gradient
    return (*each,)


# ---- transforms of PyTorch ---------------------------------------------------------------------------------


def functionalizing() -> Any:
    """Returns PyTorch's interpreter of torch.func.functionalize if that is the innermost transform; None if
    it is not active.

    Raises `InputError` if it is around another transform, for which PyTorch has no rule.
    """
    kind = torch._C._functorch.TransformType.Functionalize
    stack: Sequence[Any] = torch._C._functorch.get_interpreter_stack() or []
    if all(interpreter.key() != kind for interpreter in stack):
        return None
    if stack[-1].key() != kind:
        raise InputError(NO_FUNCTIONALIZE)
    return pytorch("torch._functorch.pyfunctorch").retrieve_current_functorch_interpreter()


def functionalized(
    interpreter: Any, net: DifferentiableNet, positions: Positions, tensors: Sequence[Any], engine: Order
) -> tuple[Any, ...]:
    """Runs a net under torch.func.functionalize, which has nothing to replace in it: a net changes no tensor
    in place.

    interpreter: the interpreter of the transform. The other arguments are those of `differentiated`.
    """
    api = pytorch("torch._subclasses.functional_tensor").FunctorchFunctionalizeAPI(interpreter)
    with api.redispatch_to_next():
        made = differentiated(net, positions, api.unwrap_tensors((*tensors,)), engine)
    return api.wrap_tensors(made)


def is_batched(tensor: Any) -> bool:
    """Tells whether a tensor stands for several, as those of torch.autograd.grad with is_grads_batched do."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)
