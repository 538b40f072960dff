"""Keras: its recurrent layers, run by stepnet.

`SimpleRNN`, `LSTM`, `GRU`, `RNN`, `Bidirectional` and `TimeDistributed` stand in the place of those of Keras,
and `accelerate` makes stepnet run Keras' own. `report` and `counters` say what ran compiled, and what ran by
Keras' own loop. Importing this imports Keras, which importing stepnet alone does not.
"""

from typing import Any

from stepnet.keras.accelerate import accelerate
from stepnet.keras.installed import installed
from stepnet.keras.layers import GRU, LSTM, RNN, Bidirectional, SimpleRNN, TimeDistributed
from stepnet.keras.records import counters
from stepnet.keras.report import report

StackedRNNCells: Any = installed().layers.StackedRNNCells
"""Keras' own: an `RNN` over it runs all its cells as one step."""

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


def __dir__() -> list[str]:
    return sorted(__all__)
