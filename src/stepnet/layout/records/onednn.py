"""oneDNN: the memories of its RNN primitives, of all layers and directions, in the formats ldigo and ldgoi.

oneDNN calls the gates of a GRU u r o, and the fourth bias of lbr_gru u'. All layers of a primitive have as
many inputs as outputs. A first layer with another number of inputs needs a separate primitive.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting

EVIDENCE = Evidence("doc/primitives/rnn.md of oneDNN", versions="oneDNN 1 to 3")
ACTIVATION = Setting(
    "activation", {"tanh": "eltwise_tanh", "relu": "eltwise_relu", "sigmoid": "eltwise_logistic"}
)
LSTM_BIAS = {"bias": "b[L D g:ifgo h]"}


def weights(gates: str) -> dict[str, str]:
    """Returns the notation of both arrays of weights by name, with the axes in oneDNN's order ldigo: layers
    L, directions D, input (x, or k for the previous output), gates g, output h. W are the inputs' weights, R
    the recurrent ones. gates: the gates' letters, in order.
    """
    return {"weights_layer": f"W[L D x g:{gates} h]", "weights_iter": f"R[L D k g:{gates} h]"}


def transposed(gates: str) -> dict[str, str]:
    """Returns the notation of both arrays of weights by name, with the axes in the order ldgoi that oneDNN on
    a CPU often requires: layers L, directions D, gates g, output h, input (x, or k for the previous output).
    W are the inputs' weights, R the recurrent ones. gates: the gates' letters, in order.
    """
    return {"weights_layer": f"W[L D g:{gates} h x]", "weights_iter": f"R[L D g:{gates} h k]"}


RECORDS = (
    Record(
        "onednn.rnn",
        "rnn",
        {"weights_layer": "W[L D x 1 h]", "weights_iter": "R[L D k 1 h]", "bias": "b[L D 1 h]"},
        {"candidate_activation": ACTIVATION},
        EVIDENCE,
    ),
    *(
        record
        for suffix, weights_of in (("", weights), ("_ldgoi", transposed))
        for record in (
            Record(
                f"onednn.gru{suffix}",
                "gru",
                weights_of("zrn") | {"bias": "b[L D g:zrn h]"},
                {"reset": "before"},
                EVIDENCE,
            ),
            Record(
                f"onednn.lbr_gru{suffix}",
                "gru",
                weights_of("zrn") | {"bias": "b[L D g:zrn h] /2 d_n[L D 1 h]"},
                {"reset": "after"},
                EVIDENCE,
            ),
            Record(f"onednn.lstm{suffix}", "lstm", weights_of("ifgo") | LSTM_BIAS, {}, EVIDENCE),
        )
    ),
    Record(
        "onednn.lstm_peephole",
        "lstm",
        {**weights("ifgo"), "weights_peephole": "p[L D g:ifo h]", **LSTM_BIAS},
        {},
        EVIDENCE,
    ),
    Record(
        "onednn.lstm_projection",
        "lstm",
        {**weights("ifgo"), "weights_projection": "P[L D h y]", **LSTM_BIAS},
        {},
        EVIDENCE,
    ),
)
