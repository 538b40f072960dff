"""MXNet: gluon.rnn layers, array by array, and the one vector of the operator RNN and of FusedRNNCell.

The directions are l and r in the names, in front of the layer. The vector is cuDNN's, projections included.
"""

from typing import Any

from stepnet.layout.record import Evidence, Record
from stepnet.layout.records.cudnn import weight_space
from stepnet.layout.semantics import Setting, same

EVIDENCE = Evidence(
    "python/mxnet/gluon/rnn/rnn_layer.py and rnn_cell.py, src/operator/rnn-inl.h of MXNet",
    versions="1.0 to 2.0",
)
ACTIVATION = {"candidate_activation": Setting("activation", same("relu", "tanh"))}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "rnn": ("n", ACTIVATION),
    "gru": ("rzn", {"reset": "after"}),
    "lstm": ("ifgo", {}),
}


def arrays(gates: str) -> dict[str, str]:
    """The arrays of a gluon layer."""
    return {
        "{D}{L}_i2h_weight": f"W[(g:{gates} h) x]",
        "{D}{L}_h2h_weight": f"R[(g:{gates} h) k]",
        "{D}{L}_i2h_bias": f"b[(g:{gates} h)]",
        "{D}{L}_h2h_bias": f"d[(g:{gates} h)]",
    }


def vector(gates: str, projection: str = "") -> dict[str, str]:
    """The one vector."""
    return {"parameters": weight_space(gates, "bd", projection)["weight_space"]}


PROJECTED = {**arrays("ifgo"), "{D}{L}_h2r_weight": "P[y h]"}
RECORDS = (
    *(
        Record(f"mxnet.{c}", c, arrays(gates), known, EVIDENCE, ("l", "r"))
        for c, (gates, known) in CELLS.items()
    ),
    Record("mxnet.lstm_projection", "lstm", PROJECTED, {}, EVIDENCE, ("l", "r")),
    *(Record(f"mxnet.{c}_flat", c, vector(gates), known, EVIDENCE) for c, (gates, known) in CELLS.items()),
    Record("mxnet.lstm_projection_flat", "lstm", vector("ifgo", "; P[y h]"), {}, EVIDENCE),
)
