"""Haiku: VanillaRNN, GRU and LSTM. The LSTM adds 1 to its forget gate. The GRU resets before the recurrent
product, and its z writes.
"""

from stepnet.layout.record import Evidence, Record

EVIDENCE = Evidence("haiku/_src/recurrent.py of dm-haiku 0.0.17", "dm-haiku 0.0.17", "0.0.3 and later")
SIMPLE = {
    "linear/w": "W[x h]",
    "linear/b": "b[h]",
    "linear_1/w": "R[k h]",
    "linear_1/b?": "d[h]",
}
RECORDS = (
    Record("haiku.rnn", "rnn", SIMPLE, {"candidate_activation": "relu"}, EVIDENCE, mark="rnn"),
    Record(
        "haiku.gru",
        "gru",
        {"w_i": "W[x (g:zrn h)]", "w_h": "R[k (g:zrn h)]", "b": "b[(g:zrn h)]"},
        {"reset": "before", "update": "write"},
        EVIDENCE,
    ),
    Record(
        "haiku.lstm",
        "lstm",
        {"linear/w": "W[x (g:igfo h)] / R[k (g:igfo h)]", "linear/b": "b[(g:igfo h)]"},
        {"forget_bias": 1.0},
        EVIDENCE,
        mark="lstm",
    ),
)
