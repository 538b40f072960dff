"""haste: GRU and LSTM layers, without zoneout and layer normalisation."""

from stepnet.layout.record import Evidence, Record

EVIDENCE = Evidence("frameworks/pytorch/gru.py and lstm.py of haste", versions="0.4 and later")
RECORDS = (
    Record(
        "haste.gru",
        "gru",
        {
            "kernel": "W[x (g:zrn h)]",
            "recurrent_kernel": "R[k (g:zrn h)]",
            "bias": "b[(g:zrn h)]",
            "recurrent_bias": "d[(g:zrn h)]",
        },
        {"reset": "after"},
        EVIDENCE,
    ),
    Record(
        "haste.lstm",
        "lstm",
        {"kernel": "W[x (g:igfo h)]", "recurrent_kernel": "R[k (g:igfo h)]", "bias": "b[(g:igfo h)]"},
        {},
        EVIDENCE,
    ),
)
