"""CNTK: RNNStep, GRU and LSTM of its layers library, without stabilizers."""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting, same

EVIDENCE = Evidence("bindings/python/cntk/layers/blocks.py of CNTK", versions="2")
ACTIVATION = Setting("activation", same("tanh", "relu", "sigmoid"), "tanh")
LSTM = {"W": "W[x (g:igfo h)]", "H": "R[k (g:igfo h)]", "b": "b[(g:igfo h)]"}
PEEPHOLES = {"Ci?": "p_i[h]", "Cf?": "p_f[h]", "Co?": "p_o[h]"}
FUNCTION = {"candidate_activation": ACTIVATION, "output_activation": ACTIVATION}

RECORDS = (
    Record(
        "cntk.rnn",
        "rnn",
        {"W": "W[x h]", "H": "R[k h]", "b": "b[h]"},
        {"candidate_activation": Setting("activation", same("sigmoid", "tanh", "relu"), "sigmoid")},
        EVIDENCE,
    ),
    Record(
        "cntk.gru",
        "gru",
        {"W": "W[x (g:zrn h)]", "H": "R[k (g:zr h)]", "H1": "R_n[k h]", "b": "b[(g:zrn h)]"},
        {"reset": "before", "candidate_activation": ACTIVATION},
        EVIDENCE,
        notes=("the second of the two parameters that CNTK calls H, the candidate's, is called H1 here",),
    ),
    Record("cntk.lstm", "lstm", {**LSTM, **PEEPHOLES}, FUNCTION, EVIDENCE),
    Record("cntk.lstm_projection", "lstm", {**LSTM, **PEEPHOLES, "P": "P[h y]"}, FUNCTION, EVIDENCE),
)
