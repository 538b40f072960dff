"""stepnet's own named cells, by their names in `stepnet.cells`."""

from typing import Any

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import GATES

EVIDENCE = Evidence("stepnet/cells", "the tests compare with PyTorch, Keras and onnxruntime")


def record(name: str, cell: str, semantics: dict[str, Any], further: dict[str, str] | None = None) -> Record:
    """Returns the layout (arrangement of weights) of one of stepnet's named cells: W of the inputs x, R of
    the previous h (axis k) and the optional biases b and d, each with its gates side by side, in the order of
    `GATES`.

    name: the layout's, without "stepnet.". cell: the kind of cell, such as "gru".
    semantics: values by field of `Semantics`. further: the layout text of other arrays, by name.
    """
    gates = GATES[cell]
    arrays = {"W": f"W[x (g:{gates} h)]", "R": f"R[k (g:{gates} h)]"}
    arrays |= {"b?": f"b[(g:{gates} h)]", "d?": f"d[(g:{gates} h)]"}
    return Record(f"stepnet.{name}", cell, arrays | (further or {}), semantics, EVIDENCE)


RECORDS = (
    record("simple_rnn", "rnn", {"candidate_activation": "tanh"}),
    record("simple_rnn_relu", "rnn", {"candidate_activation": "relu"}),
    record("gru", "gru", {"reset": "after"}),
    record("gru_reset_before", "gru", {"reset": "before"}),
    record("minimal_gated_unit", "mgu", {"reset": "before", "update": "write"}),
    record("lstm", "lstm", {}),
    record("lstm_peephole", "lstm", {}, {"p": "p[g:ifo h]"}),
    record("lstm_projection", "lstm", {}, {"P": "P[h y]"}),
)
