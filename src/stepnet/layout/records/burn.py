"""Burn: nn::Gru and nn::Lstm, two linear layers per gate.

Releases before 0.17 reset before the recurrent product. The arrays do not tell: the user states `reset`.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting

GRU = Evidence("crates/burn-core/src/nn/rnn/gru.rs of Burn", versions="0.9 and later")
LSTM = Evidence(
    "crates/burn-core/src/nn/rnn/lstm.rs of Burn; the names of its fields were not read", versions="0.9 on"
)


def gate(name: str, letter: str) -> dict[str, str]:
    """Returns, for the records of Burn's layers, the notation of each array of a gate's two linear layers
    (the parameter that it holds, and its axes), by array name.

    "W_z[x h]" is the inputs' weights W of gate z, with the axes inputs x and hidden h; R the recurrent
    weights, with the axis k of the previous h; b and d are the biases of both. name, letter: the gate in Burn
    and in stepnet, such as "update_gate" and "z".
    """
    return {
        f"{name}.input_transform.weight": f"W_{letter}[x h]",
        f"{name}.input_transform.bias?": f"b_{letter}[h]",
        f"{name}.hidden_transform.weight": f"R_{letter}[k h]",
        f"{name}.hidden_transform.bias?": f"d_{letter}[h]",
    }


RECORDS = (
    Record(
        "burn.gru",
        "gru",
        {**gate("update_gate", "z"), **gate("reset_gate", "r"), **gate("new_gate", "n")},
        {"reset": Setting("reset_after", {"after": True, "before": False})},
        GRU,
    ),
    Record(
        "burn.lstm",
        "lstm",
        {
            **gate("input_gate", "i"),
            **gate("forget_gate", "f"),
            **gate("output_gate", "o"),
            **gate("cell_gate", "g"),
        },
        {},
        LSTM,
    ),
)
