"""Flax: the cells of linen (flax.*) and of nnx (nnx.*); a path in the tree of parameters is one name.

The recurrent bias of a linen GRU is of the candidate alone, and nnx.GRUCell has none at all.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting, same

LINEN = Evidence("flax/linen/recurrent.py of Flax 0.12.8", "Flax 0.12.8", "0.4 and later")
NNX = Evidence("flax/nnx/nn/recurrent.py of Flax 0.12.8", "Flax 0.12.8", "0.9 to 0.12")
ACTIVATION = {"candidate_activation": Setting("activation_fn", same("tanh", "relu", "sigmoid"), "tanh")}
LSTM = {
    "gate_activation": Setting("gate_fn", same("sigmoid", "hard_sigmoid", "tanh", "relu"), "sigmoid"),
    "candidate_activation": Setting("activation_fn", same("tanh", "relu", "sigmoid"), "tanh"),
    "output_activation": Setting("activation_fn", same("tanh", "relu", "sigmoid"), "tanh"),
}
GRU = {key: LSTM[key] for key in ("gate_activation", "candidate_activation")} | {"reset": "after"}


def lstm(forget: str) -> dict[str, str]:
    """Returns the notation of each array (its parameter and axes) by name, for Flax's LSTM with an array per
    gate.

    "W_i[x h]" is the input's weights W of gate i, with the axes inputs x and hidden h. R has the recurrent
    weights, with the axis k of the previous h; d the recurrent bias. forget: the name of the input's forget
    gate: "if", or "if_" for an attribute, as `if` is a keyword of Python.
    """
    inputs = {f"{forget if gate == 'f' else f'i{gate}'}/kernel": f"W_{gate}[x h]" for gate in "ifgo"}
    kernels = {f"h{gate}/kernel": f"R_{gate}[k h]" for gate in "ifgo"}
    return inputs | kernels | {f"h{gate}/bias": f"d_{gate}[h]" for gate in "ifgo"}


LINEN_GRU = {
    **{f"i{gate}/kernel": f"W_{gate}[x h]" for gate in "rzn"},
    **{f"i{gate}/bias": f"b_{gate}[h]" for gate in "rzn"},
    **{f"h{gate}/kernel": f"R_{gate}[k h]" for gate in "rzn"},
    "hn/bias": "d_n[h]",
}
MGU = {
    "if/kernel": "W_f[x h]",
    "if/bias": "b_f[h]",
    "in/kernel": "W_n[x h]",
    "in/bias": "b_n[h]",
    "hf/kernel": "R_f[k h]",
    "hn/kernel": "R_n[k h]",
    "hn/bias": "d_n[h]",
}
SIMPLE = {"i/kernel": "W[x h]", "i/bias": "b[h]", "h/kernel": "R[k h]"}
NNX_SIMPLE = {"dense_i/kernel": "W[x h]", "dense_i/bias": "b[h]", "dense_h/kernel": "R[k h]"}
NNX_GRU = {
    "dense_i/kernel": "W[x (g:rzn h)]",
    "dense_i/bias": "b[(g:rzn h)]",
    "dense_h/kernel": "R[k (g:rzn h)]",
}
OPTIMIZED = {
    "dense_i/kernel": "W[x (g:ifgo h)]",
    "dense_h/kernel": "R[k (g:ifgo h)]",
    "dense_h/bias": "d[(g:ifgo h)]",
}
NO_BIAS = "there is no recurrent bias, whatever the docstring of GRUCell says (flax#5594)"

RECORDS = (
    Record("flax.rnn", "rnn", SIMPLE, ACTIVATION, LINEN),
    Record("flax.gru", "gru", LINEN_GRU, GRU, LINEN),
    Record("flax.mgu", "mgu", MGU, GRU, LINEN, notes=("reset_gate=True",)),
    Record("flax.lstm", "lstm", lstm("if"), LSTM, LINEN, lone_bias="d"),
    Record("nnx.rnn", "rnn", NNX_SIMPLE, ACTIVATION, NNX),
    Record("nnx.gru", "gru", NNX_GRU, GRU, NNX, notes=(NO_BIAS,)),
    Record("nnx.lstm", "lstm", lstm("if_"), LSTM, NNX, lone_bias="d"),
    Record("nnx.optimized_lstm", "lstm", OPTIMIZED, LSTM, NNX, lone_bias="d"),
)
