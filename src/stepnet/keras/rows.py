"""Which layers work row by row: a step of a sequence may then stand among the rows of a batch."""

from typing import Any

from stepnet.keras.installed import installed

keras: Any = installed()

ALWAYS = """
    Activation ELU LeakyReLU PReLU ReLU Softmax Identity Flatten Reshape Permute RepeatVector
    Dense EinsumDense Embedding Masking Rescaling LayerNormalization RMSNormalization UnitNormalization
    Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose
    DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D
    MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
    GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    ZeroPadding1D ZeroPadding2D ZeroPadding3D Cropping1D Cropping2D Cropping3D
    UpSampling1D UpSampling2D UpSampling3D InputLayer
"""
"""Layers of Keras that work row by row."""

NOT_TRAINING = """
    BatchNormalization GroupNormalization Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D
    GaussianNoise GaussianDropout AlphaDropout ActivityRegularization
"""
"""Layers that do so where they are not trained: there, they draw numbers or mix rows."""


def named(text: str) -> set[Any]:
    """The layers of these names that this version of Keras has."""
    return {getattr(keras.layers, name) for name in text.split() if hasattr(keras.layers, name)}


KINDS = {True: named(ALWAYS), False: named(ALWAYS + NOT_TRAINING)}
"""The layers that work row by row, by whether they are trained."""


def is_rowwise(layer: Any, training: bool) -> bool:
    """Whether a layer is known to work row by row.

    >>> is_rowwise(keras.layers.Dense(4), training=True)
    True
    >>> is_rowwise(keras.layers.BatchNormalization(), training=True)
    False
    """
    if type(layer) is keras.Sequential:
        return all(is_rowwise(part, training) for part in layer.layers)
    if isinstance(layer, keras.layers.RNN):
        recurrent = type(layer).__name__ in ("SimpleRNN", "LSTM", "GRU") and not layer.stateful
        return recurrent and not (training and (layer.cell.dropout or layer.cell.recurrent_dropout))
    return type(layer) in KINDS[training]
