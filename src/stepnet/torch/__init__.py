"""PyTorch: its recurrent layers, run by stepnet, and steps written with it.

`GRU`, `LSTM` and `RNN`, and the cells of each, stand in the place of those of torch.nn, and `accelerate` puts
them there in a model; with `linear=` it makes linear layers a `Linear`, with weights in fewer bits.
`Recurrence` is the module of any other cell that is written with PyTorch, and `ready` has some from papers;
`Scan` is the module of a recurrence whose step is written with NumPy's functions. `trace` makes a recurrence
of a cell module, or of a function on tensors, and `graph` a `stepnet.Graph` of a whole module.
`decompositions` makes exported programs that run without stepnet. Importing this imports PyTorch, which
importing stepnet alone does not.
"""

from stepnet.torch import ready
from stepnet.torch.accelerate import accelerate
from stepnet.torch.decompositions import decompositions
from stepnet.torch.explain import explain
from stepnet.torch.layers import GRU, LSTM, RNN
from stepnet.torch.linear import Linear
from stepnet.torch.module_graph import graph
from stepnet.torch.recurrence import Recurrence
from stepnet.torch.scan import Scan
from stepnet.torch.steps import GRUCell, LSTMCell, RNNCell
from stepnet.torch.trace import trace

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "GRUCell",
    "LSTMCell",
    "Linear",
    "RNNCell",
    "Recurrence",
    "Scan",
    "accelerate",
    "decompositions",
    "explain",
    "graph",
    "ready",
    "trace",
]

__dir__ = __all__.copy
