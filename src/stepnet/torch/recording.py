"""Tools of PyTorch that record operations, as a graph or for gradients: which of them records now, and what
torch.compile must not trace. Results of machine code that runs meanwhile would become constants of the graph.
"""

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from stepnet.errors import InputError
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
fx: Any = pytorch("torch.fx")
symbolic: Any = pytorch("torch.fx._symbolic_trace")
proxies: Any = pytorch("torch.fx.experimental.proxy_tensor")
forward_mode: Any = pytorch("torch.autograd.forward_ad")
onnx_flags: Any = pytorch("torch.onnx._internal.exporter._flags")

Function = TypeVar("Function", bound=Callable[..., Any])
TRACES = ContextVar("TRACES", default=False)
"""True while stepnet itself traces a step or a module."""

PRE_DISPATCH: Any = torch._C.DispatchKey.PreDispatch
"""Set while make_fx and torch.export record operations ahead of autograd."""
APART = dict[Callable[..., Any], Callable[..., Any]]()
"""The wrapper of each function that torch.compile must not trace."""


def makes_graph() -> bool:
    """Tells whether torch.compile, torch.export or make_fx makes a graph, which needs stepnet's operator."""
    # is_compiling comes first: torch.compile traces this line too, and cannot trace the other call.
    return torch.compiler.is_compiling() or proxies.get_proxy_mode() is not None


def exports_to_onnx() -> bool:
    """Tells whether torch.onnx.export makes a graph now. Raises `InputError` if it records with
    torch.jit.trace, as with dynamo=False, which has no operators for a `Recurrence`.
    """
    if not in_onnx_export():
        return False
    if not makes_graph():
        raise InputError(
            "torch.onnx.export(dynamo=False) cannot export a stepnet.torch.Recurrence: give dynamo=True, "
            "which makes it a Scan of ONNX"
        )
    return True


def in_onnx_export() -> bool:
    """Tells whether torch.onnx.export runs, also to the tracer of torch.compile, for which
    `is_in_onnx_export` is constantly False.
    """
    if torch.compiler.is_dynamo_compiling():
        return onnx_flags._is_onnx_exporting
    return torch.onnx.is_in_onnx_export()


def called(module: Any, *arguments: Any, **named: Any) -> Any:
    """Calls a module of stepnet with its hooks. It is the method `_call_impl` of these modules, which
    PyTorch calls.

    While torch.fx.symbolic_trace records a module that holds this one, the call becomes a node of its graph,
    as that of a layer of torch.nn does; hooks run when the graph runs. In records of torch.profiler the call
    has the name of the module's class.
    """
    call = torch.nn.Module._call_impl
    if torch.compiler.is_compiling():
        return call(module, *arguments, **named)
    if symbolic.is_fx_symbolic_tracing() and (proxies := fx_proxies((arguments, named))):
        tracer = proxies[0].tracer
        return tracer.create_proxy("call_module", tracer.path_of_module(module), arguments, named)
    if not torch.autograd._profiler_enabled():
        return call(module, *arguments, **named)
    with torch.profiler.record_function(f"stepnet.torch.{type(module).__name__}"):
        return call(module, *arguments, **named)


def run_pre_hooks(params: Any) -> None:
    """Runs the hooks that run ahead of the forward of parameters in a dict, which has no forward that would
    run them: torch.nn.utils.prune and spectral_norm compute a parameter in such a hook.

    params: a `ParameterDict`, which may contain others; a parameter alone or None, which have no hooks.
    Raises `InputError` for a module that was put in its place.
    """
    if not isinstance(params, torch.nn.Module):
        return
    if not isinstance(params, torch.nn.ParameterDict):
        raise InputError(
            f"the parameters of a Scan or a Recurrence are a {type(params).__name__}, which was put in the "
            "place of a ParameterDict, as adapters of PEFT are: give these the linear layers of a cell, "
            "target_modules=, in a Recurrence of the cell"
        )
    if not (params._forward_pre_hooks or params._modules):
        return  # at once, as the search below takes microseconds in each call
    for part in params.modules():
        for hook in part._forward_pre_hooks.values():
            hook(part, ())


def fx_proxies(arguments: Any) -> list[Any]:
    """Lists the proxies of torch.fx.symbolic_trace, which stand for tensors, in the arguments of a call."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(arguments) if isinstance(leaf, fx.Proxy)]


def check_no_proxy(value: Any) -> None:
    """Raises `InputError` for a proxy of torch.fx.symbolic_trace, which a module gets if it is traced itself:
    it has no operations of PyTorch for a graph.
    """
    if isinstance(value, fx.Proxy):
        raise InputError(
            "torch.fx.symbolic_trace cannot record a module of stepnet.torch itself, which has no operations "
            "of PyTorch: trace a module that holds and calls it, such as torch.nn.Sequential(module), and it "
            "is a leaf of the graph"
        )


def constant_in_graphs(function: Function) -> Function:
    """Marks a function whose result torch.compile takes as a constant of the graph, without tracing its code:
    it takes and returns numbers, texts and tuples of them.

    torch.compiler.assume_constant_result sets this mark too, and imports PyTorch's compiler.
    """
    cast("Any", function)._dynamo_marked_constant = True
    return function


def needs_torch_nn() -> bool:
    """Tells whether torch.nn's own layers must run: torch.jit.trace or stepnet records their operations."""
    return torch.jit.is_tracing() or stepnet_traces()


def stepnet_traces() -> bool:
    """Tells whether stepnet itself traces a step or a module; torch.compile does not trace this question."""
    return not torch.compiler.is_compiling() and TRACES.get()


def refuse_script(module: Any) -> Any:
    """Raises `InputError`: torch.jit.script compiles the code of methods, and cannot compile machine code.

    It calls the method `__prepare_scriptable__` of a module first; that of stepnet's modules is this.
    """
    raise InputError(
        f"torch.jit.script cannot compile stepnet.torch.{type(module).__name__}, which is machine code: "
        "record the model with torch.jit.trace or torch.export, or script it with layers of torch.nn, "
        "which undo() of what `accelerate` returned gives back"
    )


def is_recorded() -> bool:
    """Tells whether any tool of PyTorch records operations now, so that machine code must not run."""
    return makes_graph() or torch.jit.is_tracing()


def check_forward_mode() -> None:
    """Raises `InputError` in forward mode. It is called where a recurrence is added to a graph of PyTorch or
    runs in one: its operator has no rule for forward mode, so PyTorch would take its tangents as zeros.
    """
    if forward_mode._current_level >= 0:
        raise InputError(
            "recurrences in graphs of make_fx, torch.compile and torch.export have no forward mode, and "
            "torch.func.linearize makes such a graph: use torch.func.jvp of a function that runs the module "
            "itself"
        )


def wanted_of(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Returns the positions of the tensors that require a gradient, which a call must compute."""
    return tuple(place for place, tensor in enumerate(tensors) if tensor is not None and tensor.requires_grad)


def is_differentiated(tensors: Sequence[Any]) -> bool:
    """Tells whether autograd or a transform may differentiate what is computed of these tensors. Under a
    transform that is not known: only the transform knows what requires a gradient.
    """
    return is_transformed() or (torch.is_grad_enabled() and bool(wanted_of(tensors)))


def is_transformed() -> bool:
    """Tells whether a torch.func transform or forward mode is active, so that PyTorch tracks all values."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_mode._current_level >= 0


def is_watched() -> bool:
    """Tells whether a tool of PyTorch sees operations or changes them now: one that makes a graph, but for
    torch.compile, torch.jit.trace, a mode, autocast, a transform; or whether stepnet itself traces.
    """
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._dispatch_tls_is_dispatch_key_included(PRE_DISPATCH)
        or torch._C._is_tracing()
        or torch.is_autocast_enabled("cpu")
        or is_transformed()
        or TRACES.get()
    )


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that torch.compile does not trace it, for calls into code of stepnet that handles
    arrays and machine code.

    torch.compile would otherwise trace this code after a break of its graph. Where it does not run, the
    function is returned as it is: to wrap it would import PyTorch's compiler, and takes a microsecond a call.
    """
    if "torch._dynamo" not in sys.modules:
        return function
    # torch.compile would trace the second question. Without a callback it does not trace what is called next.
    if not torch.compiler.is_compiling() and torch._C._dynamo.eval_frame.get_eval_frame_callback() is None:
        return function
    if function not in APART:
        APART[function] = torch.compiler.disable(function)
    return APART[function]
