"""Functions that torch.compile must not trace: the internals that run a net."""

import sys
from collections.abc import Callable
from typing import Any

from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


APART = dict[Callable[..., Any], Callable[..., Any]]()
"""The functions that are never traced."""


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for a call that makes no graph: where torch.compile is in use, one that is never traced.

    It goes on behind what it could not trace, and would trace the insides of what runs a net. To make such a
    function imports PyTorch's compiler.
    """
    if "torch._dynamo" not in sys.modules:
        return function
    if function not in APART:
        APART[function] = torch.compiler.disable(function)
    return APART[function]
