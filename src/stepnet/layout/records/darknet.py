"""DarkNet: the layers gru and lstm in a .weights file: connected layers without batch normalisation.

A connected layer stores its biases, then its weights. The candidate of a GRU is logistic unless tanh=1 is
set. The user states which.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting

EVIDENCE = Evidence(
    "src/gru_layer.c, lstm_layer.c and parser.c of DarkNet", versions="AlexeyAB's and pjreddie's"
)


def connected(parameter: str, bias: str, gates: str) -> list[str]:
    """Returns the notation, as "b_z[h]; W_z[h x]", of the fully connected layer of each gate in DarkNet's
    file of weights: its bias, then its weights, with the axes hidden h and inputs x, or k for the previous h.

    parameter, bias: "W" and "b" for layers that read the input, "R" and "d" for those that read the state.
    gates: the gates' letters, in order.
    """
    axis = "x" if parameter == "W" else "k"
    return [f"{bias}_{gate}[h]; {parameter}_{gate}[h {axis}]" for gate in gates]


RECORDS = (
    Record(
        "darknet.gru",
        "gru",
        {"weights": "; ".join([*connected("W", "b", "zrn"), *connected("R", "d", "zrn")])},
        {
            "reset": "before",
            "candidate_activation": Setting("tanh", {"tanh": 1, "sigmoid": 0}),
        },
        EVIDENCE,
    ),
    Record(
        "darknet.lstm",
        "lstm",
        {"weights": "; ".join([*connected("R", "d", "figo"), *connected("W", "b", "figo")])},
        {},
        EVIDENCE,
    ),
)
