"""Functions that torch.compile must not trace: the internals that run a net."""

import sys
from collections.abc import Callable
from typing import Any

from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


APART = dict[Callable[..., Any], Callable[..., Any]]()
"""The wrapper of each function that torch.compile must not trace."""


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that torch.compile does not trace it, for calls into stepnet's internals.

    torch.compile would otherwise trace these internals after a graph break. Without torch.compile in use the
    function is returned as it is: to wrap it would import PyTorch's compiler.
    """
    if "torch._dynamo" not in sys.modules:
        return function
    if function not in APART:
        APART[function] = torch.compiler.disable(function)
    return APART[function]
