"""Candle: candle_nn::rnn, one layer, in PyTorch's names and order."""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.records.torch import REVERSE, arrays

EVIDENCE = Evidence("candle-nn/src/rnn.rs of Candle", versions="0.3 and later")
RECORDS = (
    Record(
        "candle.gru",
        "gru",
        arrays("rzn"),
        {"reset": "after"},
        EVIDENCE,
        REVERSE,
        notes=("an early release read the update gate's recurrent product where the candidate's belongs",),
    ),
    Record("candle.lstm", "lstm", arrays("ifgo"), {}, EVIDENCE, REVERSE),
)
