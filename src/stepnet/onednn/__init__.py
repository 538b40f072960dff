"""Recurrences of oneDNN as functions on ragged sequences, with weights in Paddle's or any other layout.

`fusion_gru`, `multi_gru` and `fusion_lstm` have the arguments of Paddle's operators of these names. `layer`
makes a layer from weights in any layout, and `augru` a GRU with attention. They need oneDNN: `pip install
"stepnet[onednn]"` on Linux on x86-64, or set STEPNET_ONEDNN to the path of the library. `counters` returns
cache statistics.
"""

from stepnet.compiler.targets.calibration import Calibration
from stepnet.compiler.targets.onednn.cache import Counts
from stepnet.onednn.accuracy import Accuracy
from stepnet.onednn.attention import augru
from stepnet.onednn.caches import clear, counters
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
