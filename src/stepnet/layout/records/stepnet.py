"""stepnet's own named cells (cells.py): what everything becomes before it runs."""

from typing import Any

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import GATES, Setting

EVIDENCE = Evidence("stepnet/cells.py", "the tests compare with PyTorch, Keras and onnxruntime")


def record(name: str, cell: str, semantics: dict[str, Any], further: dict[str, str] | None = None) -> Record:
    """The record of a named cell: all gates side by side, in the order of `GATES`."""
    gates = GATES[cell]
    arrays = {"W": f"W[x (g:{gates} h)]", "R": f"R[k (g:{gates} h)]"}
    arrays |= {"b?": f"b[(g:{gates} h)]", "d?": f"d[(g:{gates} h)]"}
    return Record(f"stepnet.{name}", cell, arrays | (further or {}), semantics, EVIDENCE)


SIMPLE = {"candidate_activation": Setting("cell", {"tanh": "simple_rnn", "relu": "simple_rnn_relu"}, "tanh")}
RECORDS = (
    record("rnn", "rnn", SIMPLE),
    record("gru", "gru", {"reset": "after"}),
    record("gru_reset_before", "gru", {"reset": "before"}),
    record("mgu", "mgu", {"reset": "before", "update": "write"}),
    record("lstm", "lstm", {}),
    record("lstm_peephole", "lstm", {}, {"p": "p[g:ifo h]"}),
    record("lstm_projection", "lstm", {}, {"P": "P[h y]"}),
)
