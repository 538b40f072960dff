"""MXNet: gluon.rnn layers and cells as separate arrays, and the vector of the operator RNN and FusedRNNCell.

The directions are l and r. The vector has cuDNN's layout, projections included. A layer has two spellings:

    l0_i2h_weight, r0_i2h_weight        after the layer's prefix, lstm0_: save_params, export, MXNet 2
    _unfused.0.l_cell.i2h_weight        after the block's path: save_parameters of MXNet 1.3 to 1.9; with one
                                        direction _unfused.0.i2h_weight

Cells, also of the module mx.rnn, have i2h_weight after their prefix or path. BidirectionalCell has
l_cell.i2h_weight.
"""

from dataclasses import replace
from typing import Any

from stepnet.layout.record import Evidence, Record
from stepnet.layout.records.cudnn import weight_space
from stepnet.layout.semantics import Setting, same

EVIDENCE = Evidence(
    "python/mxnet/gluon/rnn/rnn_layer.py and rnn_cell.py, src/operator/rnn-inl.h of MXNet",
    "MXNet 1.9.1 on the CPU",
    "1.0 to 2.0",
)
UNFUSED = replace(EVIDENCE, versions="1.3 to 1.9")
UNRUN = replace(EVIDENCE, run="")  # MXNet runs projections only on a GPU, except in a cell
ACTIVATION = {"candidate_activation": Setting("activation", same("relu", "tanh"))}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rnn": ("rnn", "n", ACTIVATION),
    "gru": ("gru", "rzn", {"reset": "after"}),
    "lstm": ("lstm", "ifgo", {}),
    "lstm_projection": ("lstm", "ifgo", {}),
}
FUNCTIONS = same("tanh", "relu", "sigmoid", "softsign")
GATES = {"gate_activation": Setting("recurrent_activation", FUNCTIONS, "sigmoid")}
CANDIDATE = {"candidate_activation": Setting("activation", FUNCTIONS, "tanh")}
OF_CELLS: dict[str, dict[str, Any]] = {
    "rnn": {"candidate_activation": Setting("activation", FUNCTIONS)},
    "gru": {"reset": "after", **GATES, **CANDIDATE},
    "lstm": {**GATES, **CANDIDATE, "output_activation": Setting("activation", FUNCTIONS, "tanh")},
    "lstm_projection": {},
}


def arrays(kind: str, front: str) -> dict[str, str]:
    """Returns, for the records of MXNet's layers, the notation of each array (the parameter that it holds,
    and its axes), by array name.

    "W[(g:rzn h) x]" is the inputs' weights W with the axes (gates g times hidden h) and inputs x; R the
    recurrent weights, with the axis k of the previous output; b and d the input and the recurrent bias; P the
    projection of h to y. kind: a key of `KINDS`, such as "lstm". front: the prefix of the names, with {L} and
    {D} for the number of the layer and the direction.
    """
    gates = KINDS[kind][1]
    return {
        f"{front}i2h_weight": f"W[(g:{gates} h) x]",
        f"{front}h2h_weight": f"R[(g:{gates} h) k]",
        f"{front}i2h_bias": f"b[(g:{gates} h)]",
        f"{front}h2h_bias": f"d[(g:{gates} h)]",
        **({f"{front}h2r_weight": "P[y h]"} if kind == "lstm_projection" else {}),
    }


def vector(kind: str) -> dict[str, str]:
    """Returns {"parameters": the notation of MXNet's vector of all weights of a layer}. kind: the cell."""
    projection = "; P[y h]" if kind == "lstm_projection" else ""
    return {"parameters": weight_space(KINDS[kind][1], "bd", projection)["weight_space"]}


def evidence_for(kind: str, evidence: Evidence = EVIDENCE) -> Evidence:
    """Returns where the layout (arrangement of weights) of a kind of layer was read and how it was verified:
    `evidence`, or `UNRUN` for LSTMs with a projection, which MXNet runs only on a GPU.
    """
    return UNRUN if kind == "lstm_projection" else evidence


def of_cells(name: str, kind: str, front: str, semantics: dict[str, Any], evidence: Evidence) -> Record:
    """Returns the layout (arrangement of weights) of a cell, or of a layer whose arrays have the names of its
    cells' arrays.

    name: the name of the layout, without "mxnet.". kind: a key of `KINDS`. front: the prefix of the arrays'
    names. semantics: values or settings by field of `Semantics`. evidence: where the layout was read, and how
    it was verified.
    """
    both = ("l_cell.", "r_cell.")
    cell, notations = KINDS[kind][0], arrays(kind, f"{front}{{D}}")
    return Record(f"mxnet.{name}", cell, notations, semantics, evidence, both, lone_direction="")


RECORDS = (
    *(
        Record(f"mxnet.{kind}", cell, arrays(kind, "{D}{L}_"), known, evidence_for(kind), ("l", "r"))
        for kind, (cell, _, known) in KINDS.items()
    ),
    *(
        of_cells(f"{kind}_unfused", kind, "_unfused.{L}.", known, evidence_for(kind, UNFUSED))
        for kind, (_, _, known) in KINDS.items()
    ),
    *(of_cells(f"{kind}_cell", kind, "", known, EVIDENCE) for kind, known in OF_CELLS.items()),
    *(
        Record(f"mxnet.{kind}_flat", cell, vector(kind), known, evidence_for(kind))
        for kind, (cell, _, known) in KINDS.items()
    ),
)
