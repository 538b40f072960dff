"""Haiku: VanillaRNN, GRU and LSTM. The LSTM adds 1 to its forget gate; the GRU's z writes, and resets
before.
"""

from stepnet.layout.record import Evidence, Record

EVIDENCE = Evidence("haiku/_src/recurrent.py of dm-haiku 0.0.17", versions="0.0.3 and later")
SIMPLE = {
    "input_to_hidden/w": "W[x h]",
    "input_to_hidden/b": "b[h]",
    "hidden_to_hidden/w": "R[k h]",
    "hidden_to_hidden/b?": "d[h]",
}
RECORDS = (
    Record("haiku.rnn", "rnn", SIMPLE, {"candidate_activation": "relu"}, EVIDENCE),
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
    ),
)
