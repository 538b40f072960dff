"""Keras' names in files: of classes, of settings, of groups and arrays, in Keras 1, 2 and 3.

The settings and arrays of each layout, with the names of activations, are in `layout/records/keras.py`.

Sources: keras/src/layers/ of 3.15; tf_keras 2.21; keras/engine/topology.py of 1.2.2.
"""

from typing import Any

# ---- classes -----------------------------------------------------------------------------------------------

BIDIRECTIONAL, STACKED, TIMED, INPUT = "Bidirectional", "StackedRNNCells", "TimeDistributed", "InputLayer"
SPECTRAL = "SpectralNormalization"
"""The layer around another one whose kernel it has normalised in training."""
WRAPPERS = (TIMED, SPECTRAL)
"""The layers that run one layer, which is no recurrent one of their own."""
MODELS = ("Sequential", "Functional", "Model")
"""The classes of models whose configuration is all that they compute."""
LAYERS = {
    "SimpleRNN": "rnn",
    "GRU": "gru",
    "LSTM": "lstm",
    "CuDNNGRU": "cudnn_gru",
    "CuDNNLSTM": "cudnn_lstm",
}
"""The recurrent layers, with the cell in the names of layouts."""
CELLS = {**LAYERS, "SimpleRNNCell": "rnn", "GRUCell": "gru", "LSTMCell": "lstm"}
"""The recurrent layers and cells, with the cell in the names of layouts."""
CLASSES = {"gru_reset_before": "GRU", **{cell: name for name, cell in LAYERS.items()}}
"""The recurrent layer of each cell in the names of layouts."""
RUNNERS = {"RNN", BIDIRECTIONAL}
"""The layers that run other layers or cells."""
OWN = {*CELLS, *RUNNERS, STACKED, TIMED}
"""The classes whose parts are known."""
LOOKED_THROUGH = {
    *("Dropout", "SpatialDropout1D", "GaussianDropout", "GaussianNoise", "AlphaDropout"),
    *("ActivityRegularization", "Identity"),
}
"""The layers that return their input in inference."""
PARTS = {"Dense": ("dense", 2), "Embedding": ("embedding", 1)}
"""The layers whose arrays are moved to other frameworks: their kind, and the most arrays that they have."""

# ---- arrays ------------------------------------------------------------------------------------------------

KERNELS = ("kernel", "recurrent_kernel", "bias")
VARIABLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CELLS, KERNELS),
    **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), KERNELS),
    **dict.fromkeys(("Dense", "Conv1D", "Conv2D", "Conv3D"), ("kernel", "bias")),
    "Embedding": ("embeddings",),
}
"""The names of the numbered arrays of a class in Keras 3's files."""
GATES = {"SimpleRNN": 1, "GRU": 3, "LSTM": 4}
"""The number of blocks side by side in the kernel of a layer of Keras 3."""
GROUPED = ("GroupQueryAttention", "GroupedQueryAttention")
"""The names of one class: in .keras files, and in its code and .h5 files."""
WITH_CELLS = {*GATES, "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"}
"""The classes whose arrays belong to a cell in them."""
WEIGHTED = {
    *("BatchNormalization", "EinsumDense", "MultiHeadAttention", "PReLU"),
    *GROUPED,
    *(f"{kind}{axes}" for kind in ("SeparableConv", "DepthwiseConv") for axes in ("1D", "2D")),
    *(f"Conv{axes}Transpose" for axes in ("1D", "2D", "3D")),
}
"""Further classes that always have arrays."""
SETTINGS_OF_WEIGHTS = {
    "LayerNormalization": ("center", "scale", "rms_scaling"),
    "GroupNormalization": ("center", "scale"),
}
"""The classes that have arrays unless all of these settings are off."""

# ---- groups ------------------------------------------------------------------------------------------------

DIRECTIONS = {"forward_layer": "forward", "backward_layer": "backward"}
"""The groups of the directions of a Bidirectional, with their names in layouts."""
UNNAMED = ("cell", "layer", "layers")
"""The groups that no part of a layer is named after."""
INNER = {*DIRECTIONS, "cell", "cells", "layer"}
"""The groups within a layer's group."""
NO_LAYERS = {"optimizer", "metrics", "loss", "vars", "_loss_tracker", "_compile_metrics", "_compile_loss"}
"""The outermost groups that are no layers."""
NO_WEIGHTS = "seed_generator"
"""The group of a state that is no weight."""

# ---- settings ----------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "": {"activation": "tanh", "return_sequences": False, "return_state": False, "go_backwards": False},
    "SimpleRNN": {},
    "GRU": {"recurrent_activation": "sigmoid", "reset_after": True},
    "LSTM": {"recurrent_activation": "sigmoid"},
}
"""The settings of all recurrent layers and of each, with Keras' defaults, but those for training alone."""
ACTIVATIONS = {"activation": "activation", "inner_activation": "recurrent_activation"}
"""The settings of activations: their names in Keras 1, with those since Keras 2."""
DROPOUTS = ("dropout", "recurrent_dropout", "dropout_W", "dropout_U")
MERGES = {"concat": "concat", "sum": "sum", "mul": "product", "ave": "average"}
"""The values of merge_mode, with the names of layouts."""
NOTES = {
    "stateful": "it keeps its state from one call to the next (stateful): here every call starts from zeros, "
    "and a stream keeps it",
    "time_major": "it takes time before batch (time_major)",
    "zero_output_for_mask": "it gives zeros at masked steps (zero_output_for_mask)",
}
"""The settings that no layout has, with the note on each."""
EXACT = ("", "float32", "float64")
"""The dtype policies in which every number of a layer is computed."""
