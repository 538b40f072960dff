"""Models of Keras with layers, cells and functions of the user's, and files of weights alone."""

import keras
from keras import layers, ops
from keras_table import EVERY, model, row


@keras.saving.register_keras_serializable("corpus")
def bent(x):
    """An activation of the user's."""
    return x / (1 + ops.absolute(x)) * 1.25


@keras.saving.register_keras_serializable("corpus")
class Scaled(layers.Layer):
    """A layer of the user's: inputs times a vector."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), name="scale")

    def call(self, inputs):
        return inputs * self.scale


@keras.saving.register_keras_serializable("corpus")
class LeakyCell(layers.Layer):
    """A cell of the user's: h' = 0.8 h + 0.2 tanh(x W + h U)."""

    def __init__(self, units, **options):
        super().__init__(**options)
        self.units = self.state_size = self.output_size = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), name="recurrent")

    def call(self, inputs, states):
        h = 0.8 * states[0] + 0.2 * ops.tanh(inputs @ self.kernel + states[0] @ self.recurrent)
        return h, [h]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@model(around={"bent": "activation"})
def lstm_bent():
    """An LSTM with an activation of the user's."""
    return row(layers.LSTM(5, activation=bent, **EVERY))


@model()
def lambda_before():
    """A Lambda layer of Python code, and an LSTM."""
    return row(layers.Lambda(lambda x: x * 0.5 + 1.0), layers.LSTM(5, **EVERY))


@model()
def layer_of_the_user():
    """A layer of the user's class, a GRU, Dense."""
    return row(Scaled(), layers.GRU(5, **EVERY), layers.Dense(2))


@model(around={"LeakyCell": "cell"})
def cell_of_the_user():
    """An RNN of a cell of the user's class."""
    return row(layers.RNN(LeakyCell(5), **EVERY))


@model("images")
def convolution_in_the_cell():
    """ConvLSTM1D over steps of six places with two channels, pooling, Dense."""
    x = keras.Input((None, 6, 2), name="images")
    y = layers.ConvLSTM1D(3, 3, padding="same", **EVERY)(x)
    y = layers.TimeDistributed(layers.GlobalAveragePooling1D())(y)
    return keras.Model(x, layers.Dense(2)(y))


@model(suffix=".weights.h5")
def head_weights():
    """LSTM and Dense, of which only the weights were saved."""
    return row(layers.LSTM(5, **EVERY), layers.Dense(3))


@model(suffix=".weights.h5")
def stack_weights():
    """Two LSTMs, of which only the weights were saved."""
    return row(layers.LSTM(5, **EVERY), layers.LSTM(4, **EVERY))
