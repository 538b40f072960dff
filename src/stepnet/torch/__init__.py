"""PyTorch: its recurrent layers, run by stepnet, and steps written with it.

`GRU`, `LSTM` and `RNN` stand in the place of those of torch.nn; `trace` makes a recurrence of a cell module,
or of a function on tensors. Importing this imports PyTorch, which importing stepnet alone does not.
"""

from stepnet.torch.layers import GRU, LSTM, RNN
from stepnet.torch.trace import trace

__all__ = ["GRU", "LSTM", "RNN", "trace"]


def __dir__() -> list[str]:
    return sorted(__all__)
