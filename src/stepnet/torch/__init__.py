"""Steps written with PyTorch: `trace` makes a recurrence of a cell module, or of a function on tensors.

Importing this imports PyTorch, which importing stepnet alone does not.
"""

from stepnet.torch.trace import trace

__all__ = ["trace"]


def __dir__() -> list[str]:
    return sorted(__all__)
