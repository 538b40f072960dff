"""PyTorch: nn.RNN, nn.GRU, nn.LSTM and their cells; with the names of a state dict.

A state dict does not say whether the nonlinearity of an nn.RNN is tanh or relu, so the user states it.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting, same

EVIDENCE = Evidence("torch/nn/modules/rnn.py of PyTorch 2.13", "PyTorch 2.13.0 on the CPU", "0.4 and later")
REVERSE = ("", "_reverse")


def arrays(gates: str) -> dict[str, str]:
    """Returns, for the table of how PyTorch's layers store weights, the notation of each array (its parameter
    and its axes),
    by the template of its name: {L} is the number of the layer in a stack, {D} the direction.

    "W[(g:rzn h) x]" is the inputs' weights W with the axes (gates g times hidden h) and inputs x; R the
    recurrent weights, with the axis k of the previous output; b and d the input and the recurrent bias.
    gates: the gates' letters, in order.
    """
    return {
        "weight_ih_l{L}{D}": f"W[(g:{gates} h) x]",
        "weight_hh_l{L}{D}": f"R[(g:{gates} h) k]",
        "bias_ih_l{L}{D}?": f"b[(g:{gates} h)]",
        "bias_hh_l{L}{D}?": f"d[(g:{gates} h)]",
    }


def of_cell(gates: str) -> dict[str, str]:
    """Returns a cell's notation in PyTorch by array, as {"weight_ih": "W[(g:rzn h) x]"}. gates: letters."""
    return {name.replace("_l{L}{D}", ""): notation for name, notation in arrays(gates).items()}


NONLINEARITY = {"candidate_activation": Setting("nonlinearity", same("tanh", "relu"))}
RNN = Record(
    "torch.rnn",
    "rnn",
    arrays("n"),
    NONLINEARITY,
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
CELLS = (
    Record("torch.rnn_cell", "rnn", of_cell("n"), NONLINEARITY, EVIDENCE),
    Record("torch.gru_cell", "gru", of_cell("rzn"), {"reset": "after", "update": "keep"}, EVIDENCE),
    Record("torch.lstm_cell", "lstm", of_cell("ifgo"), {}, EVIDENCE),
)
RECORDS = (RNN, GRU, LSTM, PROJECTED, *CELLS)
