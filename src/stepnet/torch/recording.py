"""Tells whether PyTorch records operations as a graph, and with which tool. Results of machine code that runs
meanwhile would become constants of the graph.
"""

from contextvars import ContextVar
from typing import Any

from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
proxies: Any = pytorch("torch.fx.experimental.proxy_tensor")

TRACES = ContextVar("TRACES", default=False)
"""True while stepnet itself traces a step or a module."""


def makes_graph() -> bool:
    """Tells whether torch.compile, torch.export or make_fx makes a graph, which needs stepnet's operator."""
    # is_compiling comes first: torch.compile traces this line too, and cannot trace the other call.
    return torch.compiler.is_compiling() or proxies.get_proxy_mode() is not None


def holds_theirs() -> bool:
    """Tells whether torch.jit.trace or stepnet records operations, so that torch.nn's own layers must run."""
    return torch.jit.is_tracing() or (not torch.compiler.is_compiling() and TRACES.get())


def is_recorded() -> bool:
    """Tells whether any tool of PyTorch records operations now, so that machine code must not run."""
    return makes_graph() or torch.jit.is_tracing()
