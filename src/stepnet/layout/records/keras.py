"""Keras: SimpleRNN, GRU and LSTM of Keras 3, 2 and 1, and the layers CuDNNGRU and CuDNNLSTM of Keras 2.

In Keras 2, hard_sigmoid is clip(a / 5 + 1/2), in Keras 3 clip(a / 6 + 1/2): the same weights are different
functions. A Bidirectional prefixes names with the direction: forward/kernel, backward/kernel.
"""

from typing import Any

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import ACTIVATIONS, Setting

KERAS_3 = {name: name for name in ACTIVATIONS if name != "hard_sigmoid_fifth"}
KERAS_2 = {name: name for name in ACTIVATIONS if name != "hard_sigmoid"} | {
    "hard_sigmoid_fifth": "hard_sigmoid"
}

THREE = Evidence("keras/src/layers/rnn/ of Keras 3.15", "Keras 3.15.1 on torch", "3")
TWO = Evidence(
    "tf_keras/layers/rnn/ and saving/legacy/hdf5_format.py of tf_keras 2.21",
    "tf_keras 2.21.0",
    "2, tf.keras",
)
ONE = Evidence("tf_keras/saving/legacy/hdf5_format.py of tf_keras 2.21, which reads it", versions="1")


def arrays(gates: str, bias: str) -> dict[str, str]:
    """Returns, for the records of Keras 2 and 3, the notation of each array of a layer (its parameter and its
    axes), by array name.

    "W[x (g:zrn h)]" is the inputs' weights W with the axes inputs x and (gates g times hidden h); R the
    recurrent weights, with the axis k of the previous h. gates: the gates' letters, in order; "n" for the
    single one of an RNN. bias: the notation of the bias.
    """
    letters = f"(g:{gates} h)" if len(gates) > 1 else "h"
    return {"kernel": f"W[x {letters}]", "recurrent_kernel": f"R[k {letters}]", "bias?": bias}


def semantics(values: dict[str, str], gates: str | None, **fixed: Any) -> dict[str, Any]:
    """Returns the activations of a layer of Keras as settings that its user chooses, by field of `Semantics`,
    with the `fixed` fields, such as reset="after".

    values: Keras' names of activations by stepnet's. gates: the usual activation of the gates; None if the
    user must state it.
    """
    return {
        **fixed,
        "gate_activation": Setting("recurrent_activation", values, gates),
        "candidate_activation": Setting("activation", values, "tanh"),
    }


def lstm(values: dict[str, str], gates: str | None) -> dict[str, Any]:
    """Returns the activations of Keras' LSTM as settings that its user chooses, by field of `Semantics`; the
    candidate and the output share one setting. values: Keras' names of activations by stepnet's. gates: the
    usual activation of the gates; None if the user must state it.
    """
    return semantics(values, gates) | {"output_activation": Setting("activation", values, "tanh")}


def of_version(
    framework: str, values: dict[str, str], gates: str | None, evidence: Evidence
) -> tuple[Record, ...]:
    """Returns the layouts (arrangements of weights) of the layers of Keras 2 or 3.

    framework: the first part of the layouts' names. values: Keras' names of activations by stepnet's.
    gates: the usual activation of gates, None if the user must state it. evidence: the source of the layouts,
    and the versions of Keras.
    """
    simple = {"candidate_activation": Setting("activation", values, "tanh")}
    two_rows, one_row = "b[1 (g:zrn h)] / d[1 (g:zrn h)]", "b[(g:zrn h)]"
    after = semantics(values, gates, reset="after")
    before = semantics(values, gates, reset="before")
    return (
        Record(f"{framework}.rnn", "rnn", arrays("n", "b[h]"), simple, evidence),
        Record(f"{framework}.gru", "gru", arrays("zrn", two_rows), after, evidence),
        Record(f"{framework}.gru_reset_before", "gru", arrays("zrn", one_row), before, evidence),
        Record(f"{framework}.lstm", "lstm", arrays("ifgo", "b[(g:ifgo h)]"), lstm(values, gates), evidence),
    )


def per_gate_arrays(gates: str, letters: str) -> dict[str, str]:
    """Returns, for the records of Keras 1, which has an array per gate, the notation of each array (its
    parameter and its axes), by array name.

    "W_z[x h]" is the inputs' weights W of gate z, with the axes inputs x and hidden h; R the recurrent
    weights (Keras' U), with the axis k of the previous h; b the bias. gates, letters: stepnet's letters of
    the gates, and Keras' letters for them.
    """
    pairs = tuple(zip(gates, letters, strict=True))
    return {
        f"{name}_{letter}": f"{parameter}_{gate}[{axes}]"
        for gate, letter in pairs
        for name, parameter, axes in (("W", "W", "x h"), ("U", "R", "k h"), ("b", "b", "h"))
    }


# The block of each gate, declared as [inputs, hidden], holds the buffer of cuDNN's [hidden, inputs].
CUDNN_GRU = {
    "kernel": "W[x (g:zrn h) ~ h x]",
    "recurrent_kernel": "R[k (g:zrn h) ~ h k]",
    "bias": "b[(g:zrn h)] / d[(g:zrn h)]",
}
CUDNN_LSTM = {
    "kernel": "W[x (g:ifgo h) ~ h x]",
    "recurrent_kernel": "R[k (g:ifgo h) ~ h k]",
    "bias": "b[(g:ifgo h)] / d[(g:ifgo h)]",
}
CUDNN = Evidence(
    "tf_keras/layers/rnn/cudnn_gru.py, cudnn_lstm.py of tf_keras 2.21",
    "what tf_keras 2.21.0 makes of them for its other layers",
    "2",
)

RECORDS = (
    *of_version("keras", KERAS_3, "sigmoid", THREE),
    *of_version("keras2", KERAS_2, None, TWO),
    Record(
        "keras1.rnn",
        "rnn",
        {"W": "W[x h]", "U": "R[k h]", "b": "b[h]"},
        {"candidate_activation": Setting("activation", KERAS_2, "tanh")},
        ONE,
    ),
    Record("keras1.gru", "gru", per_gate_arrays("zrn", "zrh"), semantics(KERAS_2, None, reset="before"), ONE),
    Record("keras1.lstm", "lstm", per_gate_arrays("igfo", "icfo"), lstm(KERAS_2, None), ONE),
    Record("keras.cudnn_gru", "gru", CUDNN_GRU, {"reset": "after"}, CUDNN),
    Record("keras.cudnn_lstm", "lstm", CUDNN_LSTM, {}, CUDNN, lone_bias="d"),
)
