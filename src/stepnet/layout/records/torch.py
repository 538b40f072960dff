"""PyTorch: nn.RNN, nn.GRU, nn.LSTM; the names are those of a state dict."""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting, same

EVIDENCE = Evidence("torch/nn/modules/rnn.py of PyTorch 2.13", "PyTorch 2.13.0 on the CPU", "0.4 and later")
REVERSE = ("", "_reverse")


def arrays(gates: str) -> dict[str, str]:
    """The arrays that all three kinds of layer have."""
    return {
        "weight_ih_l{L}{D}": f"W[(g:{gates} h) x]",
        "weight_hh_l{L}{D}": f"R[(g:{gates} h) k]",
        "bias_ih_l{L}{D}?": f"b[(g:{gates} h)]",
        "bias_hh_l{L}{D}?": f"d[(g:{gates} h)]",
    }


RNN = Record(
    "torch.rnn",
    "rnn",
    arrays("n"),
    {"candidate_activation": Setting("nonlinearity", same("tanh", "relu"), usual="tanh")},
    EVIDENCE,
    REVERSE,
)
GRU = Record("torch.gru", "gru", arrays("rzn"), {"reset": "after", "update": "keep"}, EVIDENCE, REVERSE)
LSTM = Record("torch.lstm", "lstm", arrays("ifgo"), {}, EVIDENCE, REVERSE)
PROJECTED = Record(
    "torch.lstm_projection",
    "lstm",
    {**arrays("ifgo"), "weight_hr_l{L}{D}": "P[y h]"},
    {},
    EVIDENCE,
    REVERSE,
)
RECORDS = (RNN, GRU, LSTM, PROJECTED)
