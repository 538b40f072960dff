"""Whether operations are recorded as a graph, and by which tool: results of machine code that runs meanwhile
would be constants of the graph.
"""

from contextvars import ContextVar
from typing import Any

from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
proxies: Any = pytorch("torch.fx.experimental.proxy_tensor")

TRACES = ContextVar("TRACES", default=False)
"""Whether stepnet itself traces a step or a module."""


def makes_graph() -> bool:
    """Whether a graph is made that can hold stepnet's operator: by torch.compile, torch.export or make_fx."""
    # The first of them in front: torch.compile, which traces this line too, goes on no further.
    return torch.compiler.is_compiling() or proxies.get_proxy_mode() is not None


def holds_theirs() -> bool:
    """Whether layers and cells are recorded as those of torch.nn: by torch.jit.trace, and by stepnet."""
    return torch.jit.is_tracing() or (not torch.compiler.is_compiling() and TRACES.get())


def is_recorded() -> bool:
    """Whether any of these records."""
    return makes_graph() or torch.jit.is_tracing()
