"""cuDNN's weight space: one vector, all matrices of all layers and directions first, then all biases.

The order of the gates is that of linLayerID. NVIDIA documents the places only through
cudnnGetRNNWeightParams; JAX, PyTorch, MXNet and Paddle rely on the order here. TensorFlow gives cuDNN a lone
bias as the recurrent bias, with zeros for the input bias; so does this record.
"""

from typing import Any

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting

EVIDENCE = Evidence(
    "jax/experimental/rnn.py of JAX, aten/src/ATen/native/cudnn/RNN.cpp of PyTorch, "
    "python/mxnet/gluon/rnn/rnn_layer.py of MXNet",
    versions="cuDNN 7 and later; CUDNN_DOUBLE_BIAS",
)
UNSURE = Evidence(
    "the bias modes of cudnnRNNBiasMode_t; that the biases left out take no room is not documented",
    versions="cuDNN 8 and later",
)
MODE = Setting("cellMode", {"tanh": "CUDNN_RNN_TANH", "relu": "CUDNN_RNN_RELU"})
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "rnn": ("n", {"candidate_activation": MODE}),
    "gru": ("rzn", {"reset": "after", "update": "keep"}),
    "lstm": ("ifgo", {}),
}
BIASES = {"": "bd", "_no_bias": "", "_input_bias": "b", "_recurrent_bias": "d"}


def weight_space(gates: str, biases: str, projection: str = "") -> dict[str, str]:
    """Returns, for the records of cuDNN, the notation of its vector of all weights (the parameters in it, in
    order), by the vector's name.

    Parts between braces are repeated for each direction D of each layer L: the inputs' weights W, with the
    axes (gates g times hidden h) and inputs x; the recurrent weights R, with the axis k of the previous
    output; then the biases. gates: the gates' letters, in order. biases: the letters of the biases, "b" of
    the input and "d" of the recurrence; "" for none. projection: the text to add for a projection of h to y,
    such as "; P[y h]".
    """
    matrices = f"{{L D: W[(g:{gates} h) x]; R[(g:{gates} h) k]{projection}}}"
    vectors = "; ".join(f"{bias}[(g:{gates} h)]" for bias in biases)
    return {"weight_space": matrices + (f"; {{L D: {vectors}}}" if biases else "")}


RECORDS = (
    *(
        Record(
            f"cudnn.{cell}{suffix}",
            cell,
            weight_space(gates, biases),
            semantics,
            EVIDENCE if len(biases) == 2 else UNSURE,
            lone_bias="d",
        )
        for cell, (gates, semantics) in CELLS.items()
        for suffix, biases in BIASES.items()
    ),
    Record(
        "cudnn.lstm_projection", "lstm", weight_space("ifgo", "bd", "; P[y h]"), {}, EVIDENCE, lone_bias="d"
    ),
)
