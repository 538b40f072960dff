"""oneDNN: its recurrences as functions on ragged sequences, with weights in Paddle's layout or any other.

`fusion_gru`, `multi_gru` and `fusion_lstm` are the operators of those names. `layer` makes one recurrence of
weights in any layout, and `augru` one with attention. They need the library: pip install stepnet[onednn], or
STEPNET_ONEDNN. `counters` says what was made, what was found, and which engine ran.
"""

from stepnet.engines.calibration import Calibration
from stepnet.engines.onednn.cache import Counts
from stepnet.onednn.accuracy import Accuracy
from stepnet.onednn.attention import augru
from stepnet.onednn.counters import clear, counters
from stepnet.onednn.layer import Layer, layer
from stepnet.onednn.operators import calibrate, fusion_gru, fusion_lstm, gru_layer, lstm_layer, multi_gru

__all__ = [
    "Accuracy",
    "Calibration",
    "Counts",
    "Layer",
    "augru",
    "calibrate",
    "clear",
    "counters",
    "fusion_gru",
    "fusion_lstm",
    "gru_layer",
    "layer",
    "lstm_layer",
    "multi_gru",
]
