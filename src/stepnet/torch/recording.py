"""Tools of PyTorch that record operations as a graph: which of them records now, and what torch.compile must
not trace. Results of machine code that runs meanwhile would become constants of the graph.
"""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from stepnet.errors import InputError
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
proxies: Any = pytorch("torch.fx.experimental.proxy_tensor")
forward_mode: Any = pytorch("torch.autograd.forward_ad")

TRACES = ContextVar("TRACES", default=False)
"""True while stepnet itself traces a step or a module."""

APART = dict[Callable[..., Any], Callable[..., Any]]()
"""The wrapper of each function that torch.compile must not trace."""


def makes_graph() -> bool:
    """Tells whether torch.compile, torch.export or make_fx makes a graph, which needs stepnet's operator."""
    # is_compiling comes first: torch.compile traces this line too, and cannot trace the other call.
    return torch.compiler.is_compiling() or proxies.get_proxy_mode() is not None


def needs_torch_nn() -> bool:
    """Tells whether torch.nn's own layers must run, because torch.jit.trace or stepnet records their
    operations.
    """
    return torch.jit.is_tracing() or (not torch.compiler.is_compiling() and TRACES.get())


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


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that torch.compile does not trace it, for calls into code of stepnet that handles
    arrays and machine code.

    torch.compile would otherwise trace this code after a break of its graph. Without torch.compile in use the
    function is returned as it is: to wrap it would import PyTorch's compiler.
    """
    if "torch._dynamo" not in sys.modules:
        return function
    if function not in APART:
        APART[function] = torch.compiler.disable(function)
    return APART[function]
