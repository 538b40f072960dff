"""Keras' recurrent layers, run by stepnet.

`SimpleRNN`, `LSTM`, `GRU`, `RNN`, `Bidirectional` and `TimeDistributed` replace the layers of Keras, and
`accelerate` makes stepnet run Keras' own. `report` and `counters` say which layers ran compiled, and which
ran Keras' own loop. To import this module imports Keras; to import stepnet alone does not.
"""

from typing import Any

from stepnet.keras.accelerate import accelerate
from stepnet.keras.installed import installed
from stepnet.keras.layers import GRU, LSTM, RNN, Bidirectional, SimpleRNN, TimeDistributed
from stepnet.keras.records import counters
from stepnet.keras.report import report

StackedRNNCells: Any = installed().layers.StackedRNNCells
"""Keras' own class: an `RNN` over it runs all its cells as one step."""

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Bidirectional",
    "SimpleRNN",
    "StackedRNNCells",
    "TimeDistributed",
    "accelerate",
    "counters",
    "report",
]

__dir__ = __all__.copy
