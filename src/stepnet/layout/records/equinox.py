"""Equinox: nn.GRUCell and nn.LSTMCell."""

from stepnet.layout.record import Evidence, Record

EVIDENCE = Evidence("equinox/nn/_rnn.py of Equinox 0.13.8", "Equinox 0.13.8", "0.5 and later")
RECORDS = (
    Record(
        "equinox.gru",
        "gru",
        {
            "weight_ih": "W[(g:rzn h) x]",
            "weight_hh": "R[(g:rzn h) k]",
            "bias?": "b[(g:rzn h)]",
            "bias_n?": "d_n[h]",
        },
        {"reset": "after"},
        EVIDENCE,
    ),
    Record(
        "equinox.lstm",
        "lstm",
        {"weight_ih": "W[(g:ifgo h) x]", "weight_hh": "R[(g:ifgo h) k]", "bias?": "b[(g:ifgo h)]"},
        {},
        EVIDENCE,
    ),
)
