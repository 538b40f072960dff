"""Tells which layers compute each row separately, so that the steps of sequences can be joined with the rows.

    class, configuration, rank of its input    -->    True: proved by an entry of `KINDS`; False: not known

The proof is the class of the layer with its settings: an axis, an equation, an array, a function. A function
of the user may read across rows, so layers with one are not known.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from stepnet.keras.installed import installed

keras: Any = installed()
Shape = Sequence[int | None]
Rule = Callable[[Any, Shape], bool]
"""A function that tells whether a layer computes each row of inputs of a shape separately."""


def always(layer: Any, shape: Shape) -> bool:
    """Returns True: the rule for layers that always compute each row separately."""
    return True


def over_features(layer: Any, shape: Shape) -> bool:
    """Tells whether a layer computes each row separately: no `axis` of it may be the first one, the rows."""
    axis_setting: Any = layer.axis
    axes: list[Any] = [*axis_setting] if isinstance(axis_setting, list | tuple) else [axis_setting]
    return all(isinstance(axis, int) and axis % len(shape) != 0 for axis in axes)


def has_fewer_axes(*names: str) -> Rule:
    """Makes the rule for layers with settings that are numbers or arrays: tells whether these have fewer axes
    than the inputs, so that they are the same for all rows. names: the attributes with the settings.

    Keras may broadcast a setting that has axes to three of them.
    """

    def rule(layer: Any, shape: Shape) -> bool:
        """Tells whether each of the settings is a number, or has fewer axes than the inputs."""
        ranks = [np.ndim(getattr(layer, name)) for name in names]
        return all(rank == 0 or max(3, rank) < len(shape) for rank in ranks)

    return rule


def keeps_rows(layer: Any, shape: Shape) -> bool:
    """Tells whether an `EinsumDense` computes rows separately, for inputs of a shape: in its equation, the
    first letter of the input occurs once, is the first of the output, and is not in the kernel or the bias.
    "..." may stand for axes.
    """
    equation = layer.equation.replace(" ", "")
    letters = equation.partition(",")[0].replace("...", "")
    text = equation.replace("...", "" if len(letters) == len(shape) else ".")
    inputs, kernel, output = text.replace("->", ",").split(",")
    rows = inputs[0]
    once = inputs.count(rows) == output.count(rows) == 1
    return once and output[0] == rows and rows not in kernel + (layer.bias_axes or "")


def has_known_activation(layer: Any, shape: Shape) -> bool:
    """Tells whether the activation of a layer computes each row separately, for inputs of a shape."""
    return is_rowwise_function(layer.activation, layer.compute_output_shape(shape))


def is_rowwise_function(function: Any, shape: Shape) -> bool:
    """Tells whether an activation is known to compute each row of inputs of a shape separately: one of Keras'
    own in `ACTIVATIONS`, or a layer that does so in training.
    """
    if isinstance(function, keras.layers.Layer):
        return is_rowwise(function, shape, training=True)
    return any(function is known for known in ACTIVATIONS)


def einsum_rule(layer: Any, shape: Shape) -> bool:
    """Tells whether an `EinsumDense` and its activation compute each row of inputs of a shape separately."""
    return keeps_rows(layer, shape) and has_known_activation(layer, shape)


def has_own_cell(layer: Any, shape: Shape) -> bool:
    """Tells whether a recurrent layer computes each row of inputs of a shape separately, outside training: it
    has one of Keras' own cells with known activations, begins with zeros, and returns only outputs.
    """
    cell, state = layer.cell, (shape[0], None)
    if type(cell) not in CELLS or layer.stateful or layer.return_state:
        return False
    gates = getattr(cell, "recurrent_activation", cell.activation)
    return is_rowwise_function(cell.activation, state) and is_rowwise_function(gates, state)


def has_own_cell_without_dropout(layer: Any, shape: Shape) -> bool:
    """Tells whether a recurrent layer computes each row of inputs of a shape separately, in training: it has
    one of Keras' own cells, as for `has_own_cell`, without dropout.
    """
    return not (layer.cell.dropout or layer.cell.recurrent_dropout) and has_own_cell(layer, shape)


NAMES = """
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu linear log_sigmoid
    log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus
    sparse_sigmoid sparsemax squareplus tanh tanh_shrink threshold
"""
ACTIVATIONS = [getattr(keras.activations, name) for name in NAMES.split() if hasattr(keras.activations, name)]
"""Keras' activations that map each number, or the last axis."""

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
    has_known_activation: """
        Activation Dense Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose
        DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D
    """,
    over_features: "Softmax LayerNormalization RMSNormalization UnitNormalization",
    einsum_rule: "EinsumDense",
    has_fewer_axes("scale", "offset"): "Rescaling",
    has_fewer_axes("mask_value"): "Masking",
    has_fewer_axes("alpha"): "ELU",
    has_fewer_axes("negative_slope"): "LeakyReLU",
    has_fewer_axes("max_value", "negative_slope", "threshold"): "ReLU",
}
"""Names of Keras' layers, by the rule that tells if they compute each row separately."""

NOT_TRAINING: dict[Rule, str] = {
    always: """
        Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D
        GaussianNoise GaussianDropout AlphaDropout ActivityRegularization
    """,
    over_features: "BatchNormalization GroupNormalization",
}
"""Names of layers whose rule holds only outside training, where they draw no numbers and mix no rows."""


def rules_by_class(*tables: dict[Rule, str]) -> dict[Any, Rule]:
    """Maps each layer class that this version of Keras has to its rule, the function that tells whether such
    a layer computes each row separately. tables: the names of the classes, separated by spaces, by rule.
    """
    return {
        getattr(keras.layers, name): rule
        for table in tables
        for rule, names in table.items()
        for name in names.split()
        if hasattr(keras.layers, name)
    }


KINDS = {
    True: {**rules_by_class(ALWAYS), **dict.fromkeys(RECURRENT, has_own_cell_without_dropout)},
    False: {**rules_by_class(ALWAYS, NOT_TRAINING), **dict.fromkeys(RECURRENT, has_own_cell)},
}
"""The rule of each layer class, in training (True) and outside it (False)."""

MASKS = (keras.layers.Masking, keras.layers.Embedding)
"""Layers that may make masks, which a `Softmax` behind them would add to its input, aligned at the right."""


def is_rowwise(layer: Any, shape: Shape, training: bool) -> bool:
    """Tells whether a layer is known to compute each row of its inputs separately. shape: [rows, ...].

    >>> is_rowwise(keras.layers.Dense(4), (None, 3), training=True)
    True
    >>> is_rowwise(keras.layers.Softmax(axis=0), (None, 3), training=True)
    False
    >>> is_rowwise(keras.layers.BatchNormalization(), (None, 3), training=True)
    False
    """
    if type(layer) is keras.Sequential:
        return all_rowwise(layer.layers, shape, training)
    rule = KINDS[training].get(keras_class(layer))
    if (
        rule is None
        or not has_required_axes(layer, shape)
        or getattr(layer, "quantization_mode", None) is not None
    ):
        return False  # a quantised layer may compute its scale from all rows
    return rule(layer, shape) and len(layer.compute_output_shape(shape)) > 1


def has_required_axes(layer: Any, shape: Shape) -> bool:
    """Tells whether a shape [rows, ...] has further axes, and as many axes as a layer requires."""
    ranks = [getattr(spec, "ndim", None) for spec in keras.tree.flatten(layer.input_spec)]
    return len(shape) > 1 and all(rank in (None, len(shape)) for rank in ranks)


def all_rowwise(layers: Sequence[Any], shape: Shape, training: bool) -> bool:
    """Tells whether each layer of a chain is known to compute each row of its inputs separately. A `Softmax`
    in a chain with a layer of `MASKS` is not known.

    shape: the shape of the first layer's inputs. training: whether the layers are in training.
    """
    kinds: set[Any] = {type(part) for layer in layers for part in layer._flatten_layers()}
    if keras.layers.Softmax in kinds and kinds.intersection(MASKS):
        return False
    for layer in layers:
        if not is_rowwise(layer, shape, training):
            return False
        shape = layer.compute_output_shape(shape)
    return True


def keras_class(layer: Any) -> Any:
    """Returns the class of a layer in Keras; for stepnet's own classes the class that they extend."""
    kind = cast("Any", type(layer))
    return kind.__mro__[1] if kind.__module__ == "stepnet.keras.layers" else kind
