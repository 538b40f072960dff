"""The layers that work row by row: a step of a sequence may then stand among the rows of a batch.

    class, configuration, rank of its input    -->    True: proved by a row of `KINDS`; False: not known

A layer is known by its class, and by what it was given: an axis, an equation, an array, a function. A
function of the user's own may read all rows, so it is not known.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from stepnet.keras.installed import installed

keras: Any = installed()
Shape = Sequence[int | None]
Rule = Callable[[Any, Shape], bool]
"""Whether a layer works row by row on inputs of this shape."""


def always(layer: Any, shape: Shape) -> bool:
    """True."""
    return True


def over_features(layer: Any, shape: Shape) -> bool:
    """Whether the axes of a layer are none of the rows."""
    given: Any = layer.axis
    axes: list[Any] = [*given] if isinstance(given, list | tuple) else [given]
    return all(isinstance(axis, int) and axis % len(shape) != 0 for axis in axes)


def of_numbers(*names: str) -> Rule:
    """Whether these settings have fewer axes than the inputs. Keras may give three to those that have any."""

    def rule(layer: Any, shape: Shape) -> bool:
        ranks = [np.ndim(getattr(layer, name)) for name in names]
        return all(rank == 0 or max(3, rank) < len(shape) for rank in ranks)

    return rule


def keeps_rows(layer: Any, shape: Shape) -> bool:
    """Whether the first axis of an einsum's input is that of its output, and of nothing else."""
    equation = layer.equation.replace(" ", "")
    letters = equation.partition(",")[0].replace("...", "")
    text = equation.replace("...", "" if len(letters) == len(shape) else ".")
    inputs, kernel, output = text.replace("->", ",").split(",")
    rows = inputs[0]
    once = inputs.count(rows) == output.count(rows) == 1
    return once and output[0] == rows and rows not in kernel + (layer.bias_axes or "")


def known_function(layer: Any, shape: Shape) -> bool:
    """Whether the activation of a layer works row by row."""
    return is_known(layer.activation, layer.compute_output_shape(shape))


def is_known(function: Any, shape: Shape) -> bool:
    """Whether an activation is one of Keras', or a layer, that works row by row on values of this shape."""
    if isinstance(function, keras.layers.Layer):
        return is_rowwise(function, shape, training=True)
    return any(function is known for known in ACTIVATIONS)


def einsum_rule(layer: Any, shape: Shape) -> bool:
    """Whether an einsum and its activation work row by row."""
    return keeps_rows(layer, shape) and known_function(layer, shape)


def of_own_cell(layer: Any, shape: Shape) -> bool:
    """Whether a recurrent layer runs one of Keras' cells, from zeros, and gives outputs alone."""
    cell, state = layer.cell, (shape[0], None)
    if type(cell) not in CELLS or layer.stateful or layer.return_state:
        return False
    gates = getattr(cell, "recurrent_activation", cell.activation)
    return is_known(cell.activation, state) and is_known(gates, state)


def of_own_cell_without_dropout(layer: Any, shape: Shape) -> bool:
    """The same for a layer that is trained."""
    return not (layer.cell.dropout or layer.cell.recurrent_dropout) and of_own_cell(layer, shape)


NAMES = """
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu linear log_sigmoid
    log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus
    sparse_sigmoid sparsemax squareplus tanh tanh_shrink threshold
"""
ACTIVATIONS = [getattr(keras.activations, name) for name in NAMES.split() if hasattr(keras.activations, name)]
"""Keras' functions of each number, or of the last axis."""

CELLS = (keras.layers.SimpleRNNCell, keras.layers.LSTMCell, keras.layers.GRUCell)
RECURRENT = (keras.layers.SimpleRNN, keras.layers.LSTM, keras.layers.GRU)

ALWAYS: dict[Rule, str] = {
    always: """
        PReLU Identity Flatten Reshape Permute RepeatVector Embedding
        MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D
        GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
        GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
        ZeroPadding1D ZeroPadding2D ZeroPadding3D Cropping1D Cropping2D Cropping3D
        UpSampling1D UpSampling2D UpSampling3D
    """,
    known_function: """
        Activation Dense Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose
        DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D
    """,
    over_features: "Softmax LayerNormalization RMSNormalization UnitNormalization",
    einsum_rule: "EinsumDense",
    of_numbers("scale", "offset"): "Rescaling",
    of_numbers("mask_value"): "Masking",
    of_numbers("alpha"): "ELU",
    of_numbers("negative_slope"): "LeakyReLU",
    of_numbers("max_value", "negative_slope", "threshold"): "ReLU",
}
"""Layers of Keras by the rule that says whether they work row by row."""

NOT_TRAINING: dict[Rule, str] = {
    always: """
        Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D
        GaussianNoise GaussianDropout AlphaDropout ActivityRegularization
    """,
    over_features: "BatchNormalization GroupNormalization",
}
"""Layers that may do so where they are not trained: there, they draw numbers or mix rows."""


def by_kind(*tables: dict[Rule, str]) -> dict[Any, Rule]:
    """The rule of each layer that this version of Keras has."""
    return {
        getattr(keras.layers, name): rule
        for table in tables
        for rule, text in table.items()
        for name in text.split()
        if hasattr(keras.layers, name)
    }


KINDS = {
    True: {**by_kind(ALWAYS), **dict.fromkeys(RECURRENT, of_own_cell_without_dropout)},
    False: {**by_kind(ALWAYS, NOT_TRAINING), **dict.fromkeys(RECURRENT, of_own_cell)},
}
"""The rule of each layer, by whether it is trained."""

MASKS = (keras.layers.Masking, keras.layers.Embedding)
"""Layers that may make masks, which a `Softmax` behind them would add to its input from the right."""


def is_rowwise(layer: Any, shape: Shape, training: bool) -> bool:
    """Whether a layer is known to work row by row on inputs [rows, ...] of this shape.

    >>> is_rowwise(keras.layers.Dense(4), (None, 3), training=True)
    True
    >>> is_rowwise(keras.layers.Softmax(axis=0), (None, 3), training=True)
    False
    >>> is_rowwise(keras.layers.BatchNormalization(), (None, 3), training=True)
    False
    """
    if type(layer) is keras.Sequential:
        return all_rowwise(layer.layers, shape, training)
    rule = KINDS[training].get(kept_class(layer))
    if (
        rule is None
        or not has_its_axes(layer, shape)
        or getattr(layer, "quantization_mode", None) is not None
    ):
        return False  # a quantised layer may scale by all rows
    return rule(layer, shape) and len(layer.compute_output_shape(shape)) > 1


def has_its_axes(layer: Any, shape: Shape) -> bool:
    """Whether there are axes behind the rows, and as many as a layer is for: Keras does not look here."""
    ranks = [getattr(spec, "ndim", None) for spec in keras.tree.flatten(layer.input_spec)]
    return len(shape) > 1 and all(rank in (None, len(shape)) for rank in ranks)


def all_rowwise(layers: Sequence[Any], shape: Shape, training: bool) -> bool:
    """Whether layers that run one behind the other work row by row."""
    kinds: set[Any] = {type(part) for layer in layers for part in layer._flatten_layers()}
    if keras.layers.Softmax in kinds and kinds.intersection(MASKS):
        return False
    for layer in layers:
        if not is_rowwise(layer, shape, training):
            return False
        shape = layer.compute_output_shape(shape)
    return True


def kept_class(layer: Any) -> Any:
    """The class of a layer; of one of stepnet's, Keras' class whose loop it replaces."""
    kind = cast("Any", type(layer))
    return kind.__mro__[1] if kind.__module__ == "stepnet.keras.layers" else kind
