"""TensorFlow 1: the cells of tf.nn.rnn_cell, tf.contrib.rnn and tf.contrib.cudnn_rnn, as checkpoints name
them.

The forget bias is a constant in the cell's code and is in no checkpoint, so the user states it. The default
was 1.0.
"""

from typing import Any

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import ACTIVATIONS, Setting

CELLS = Evidence(
    "tf_keras/layers/rnn/legacy_cells.py of tf_keras 2.21", "tf_keras 2.21.0", "TensorFlow 1.2 to 1.15"
)
BLOCK = Evidence(
    "tensorflow/contrib/rnn/python/ops/lstm_ops.py and gru_ops.py",
    "the operators under these cells in TensorFlow 2.21.0",
    "TensorFlow 1",
)
CUDNN = Evidence("tensorflow/contrib/cudnn_rnn/python/ops/cudnn_rnn_ops.py", versions="TensorFlow 1")

ACTIVATION = Setting(
    "activation", {name: name for name in ACTIVATIONS if name != "hard_sigmoid_fifth"}, "tanh"
)
FORGET_BIAS = Setting("forget_bias")
LSTM: dict[str, Any] = {
    "forget_bias": FORGET_BIAS,
    "candidate_activation": ACTIVATION,
    "output_activation": ACTIVATION,
}
CLIPPED = {**LSTM, "cell_clip": Setting("cell_clip", usual=0.0)}
KERNEL = {"kernel": "W[x (g:igfo h)] / R[k (g:igfo h)]", "bias": "b[(g:igfo h)]"}
PEEPHOLES = {f"w_{gate}_diag?": f"p_{gate}[h]" for gate in "ifo"}
GATES = {
    "gates/kernel": "W[x (g:rz h)] / R[k (g:rz h)]",
    "gates/bias": "b[(g:rz h)]",
    "candidate/kernel": "W_n[x h] / R_n[k h]",
    "candidate/bias": "b_n[h]",
}
# The build() of GRUBlockCell swaps the names of the two kernels.
BLOCK_GATES = {
    "w_c": "W[x (g:rz h)] / R[k (g:rz h)]",
    "b_ru": "b[(g:rz h)]",
    "w_ru": "W_n[x h] / R_n[k h]",
    "b_c": "b_n[h]",
}
COMPATIBLE_GATES = {
    "gates/kernel": "W[x (g:rz h)] / R[k (g:rz h)]",
    "gates/bias": "b[(g:rz h)]",
    "candidate/input_projection/kernel": "W_n[x h]",
    "candidate/input_projection/bias": "b_n[h]",
    "candidate/hidden_projection/kernel": "R_n[k h]",
    "candidate/hidden_projection/bias": "d_n[h]",
}
BEFORE = {"reset": "before", "candidate_activation": ACTIVATION}

# By default, the scope of a cell has the name of its class: basic_lstm_cell.
RNN_CELL = r"^(?!.*(lstm|gru)_cell).*cell"
LSTM_CELL = r"^(?!.*(rnn|gru)_cell).*cell"

RECORDS = (
    Record(
        "tf1.rnn",
        "rnn",
        {"kernel": "W[x h] / R[k h]", "bias": "b[h]"},
        {"candidate_activation": ACTIVATION},
        CELLS,
        mark=RNN_CELL,
    ),
    Record("tf1.basic_lstm", "lstm", KERNEL, LSTM, CELLS, mark=LSTM_CELL),
    Record("tf1.lstm", "lstm", {**KERNEL, **PEEPHOLES}, CLIPPED, CELLS, mark=LSTM_CELL),
    Record(
        "tf1.lstm_projection",
        "lstm",
        {**KERNEL, **PEEPHOLES, "projection/kernel": "P[h y]"},
        {**CLIPPED, "projection_clip": Setting("proj_clip", usual=0.0)},
        CELLS,
    ),
    Record(
        "tf1.lstm_block",
        "lstm",
        {**KERNEL, **PEEPHOLES},
        {"forget_bias": FORGET_BIAS, "cell_clip": Setting("cell_clip", usual=0.0)},
        BLOCK,
        mark=LSTM_CELL,
    ),
    Record("tf1.cudnn_compatible_lstm", "lstm", KERNEL, {}, CUDNN, mark=LSTM_CELL),
    Record("tf1.gru", "gru", GATES, BEFORE, CELLS),
    Record("tf1.gru_block", "gru", BLOCK_GATES, {"reset": "before"}, BLOCK),
    Record("tf1.gru_block_v2", "gru", GATES, {"reset": "before"}, BLOCK),
    Record("tf1.cudnn_compatible_gru", "gru", COMPATIBLE_GATES, {"reset": "after"}, CUDNN),
)
