"""Modules of PyTorch that are written as a function and the layers it calls."""

from collections.abc import Callable
from typing import Any

import pytest

nn: Any = pytest.importorskip("torch").nn


class Code(nn.Module):
    """A model of given modules and a given forward."""

    def __init__(self, forward: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.code = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Any) -> Any:
        return self.code(self, x)
