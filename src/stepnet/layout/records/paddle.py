"""PaddlePaddle: nn.SimpleRNN, nn.GRU and nn.LSTM of version 2 on, and the operators gru, lstm and fusion_gru
of version 1.

The recurrent weights of the old GRU operators are declared as [hidden, 3 hidden], and are the buffer of
[hidden, 2 hidden], the gates, with that of [hidden, hidden], the candidate, behind it. origin_mode says
whether the update gate keeps the old memory; it is an attribute of the operator and is asked for.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.records.torch import REVERSE, arrays
from stepnet.layout.semantics import Setting, same

EVIDENCE = Evidence("python/paddle/nn/layer/rnn.py of PaddlePaddle", "PaddlePaddle 3.3.1", "2 and later")
OPERATORS = Evidence(
    "paddle/fluid/operators/gru_op.cc, lstm_op.cc and fused/fusion_gru_op.cc of PaddlePaddle",
    versions="1 and 2",
)
CANDIDATE = ("tanh", "sigmoid", "relu", "linear")
GRU = {
    "reset": "before",
    "update": Setting("origin_mode", {"keep": True, "write": False}),
    "gate_activation": Setting("gate_activation", same("sigmoid", "tanh", "relu", "linear"), "sigmoid"),
    "candidate_activation": Setting("activation", same(*CANDIDATE), "tanh"),
}
LSTM = {
    "gate_activation": Setting("gate_activation", same("sigmoid", "tanh", "relu", "linear"), "sigmoid"),
    "candidate_activation": Setting("candidate_activation", same(*CANDIDATE), "tanh"),
    "output_activation": Setting("cell_activation", same(*CANDIDATE), "tanh"),
}
RECURRENT = "R[k (g:zr h)]; R_n[k h] : k (3 h)"

RECORDS = (
    Record(
        "paddle.rnn",
        "rnn",
        arrays("n"),
        {"candidate_activation": Setting("activation", same("tanh", "relu"))},
        EVIDENCE,
        REVERSE,
    ),
    Record("paddle.gru", "gru", arrays("rzn"), {"reset": "after"}, EVIDENCE, REVERSE),
    Record("paddle.lstm", "lstm", arrays("ifgo"), {}, EVIDENCE, REVERSE),
    Record(
        "paddle.lstm_projection",
        "lstm",
        {**arrays("ifgo"), "weight_ho_l{L}{D}": "P[h y]"},
        {},
        EVIDENCE,
        REVERSE,
    ),
    Record(
        "paddle.fusion_gru",
        "gru",
        {"WeightX": "W[x (g:zrn h)]", "WeightH": RECURRENT, "Bias?": "b[1 (g:zrn h)]"},
        GRU,
        OPERATORS,
    ),
    Record(
        "paddle.dynamic_gru",
        "gru",
        {"fc/Weight": "W[x (g:zrn h)]", "Weight": RECURRENT, "Bias?": "b[1 (g:zrn h)]"},
        GRU,
        OPERATORS,
        notes=("the inputs' weights are those of the fully connected layer before the operator gru",),
    ),
    Record(
        "paddle.dynamic_lstm",
        "lstm",
        {
            "fc/Weight": "W[x (g:gifo h)]",
            "Weight": "R[k (g:gifo h)]",
            "Bias": "b[1 (g:gifo h)] | p[1 (g:ifo h)]",
        },
        LSTM,
        OPERATORS,
        notes=("use_peepholes=True, which is usual; the inputs' weights are those of the layer before it",),
    ),
    Record(
        "paddle.dynamic_lstm_no_peepholes",
        "lstm",
        {"fc/Weight": "W[x (g:gifo h)]", "Weight": "R[k (g:gifo h)]", "Bias": "b[1 (g:gifo h)]"},
        LSTM,
        OPERATORS,
    ),
)
