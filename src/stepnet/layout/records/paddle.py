"""PaddlePaddle: nn.SimpleRNN, nn.GRU and nn.LSTM of version 2 on, and the operators gru, lstm and fusion_gru
of version 1.

The recurrent weights of the old GRU operators are declared as [hidden, 3 hidden]. They are two buffers end to
end: [hidden, 2 hidden] of the gates and [hidden, hidden] of the candidate. The operator's attribute
origin_mode says whether the update gate keeps the old memory; the user states it.

Paddle saves each parameter of a layer under two names, `weight_ih_l0` and that of its cell,
`0.cell.weight_ih`. For an LSTM with a projection the former are wrong: Paddle spreads four names over five
arrays, so that `weight_ih_l0_reverse` is the forward direction's projection. The names by cell are right.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.records.torch import REVERSE, arrays, of_cell
from stepnet.layout.semantics import Setting, same

EVIDENCE = Evidence("python/paddle/nn/layer/rnn.py of PaddlePaddle", "PaddlePaddle 3.3.1", "2 and later")
OPERATORS = Evidence(
    "paddle/fluid/operators/gru_op.cc, lstm_op.cc and fused/fusion_gru_op.cc of PaddlePaddle",
    versions="1 and 2",
)
LOADED = (
    "set_state_dict warns of the second name that Paddle has for each parameter, which is not in a file made "
    "here; all parameters are set nevertheless",
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
        notes=LOADED,
    ),
    Record("paddle.gru", "gru", arrays("rzn"), {"reset": "after"}, EVIDENCE, REVERSE, notes=LOADED),
    Record("paddle.lstm", "lstm", arrays("ifgo"), {}, EVIDENCE, REVERSE, notes=LOADED),
    Record(
        "paddle.lstm_projection",
        "lstm",
        {
            **{f"{{L}}.cell{{D}}.{name}": notation for name, notation in of_cell("ifgo").items()},
            "{L}.cell{D}.weight_ho": "P[h y]",
        },
        {},
        EVIDENCE,
        ("_fw", "_bw"),
        lone_direction="",
        notes=LOADED,
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
