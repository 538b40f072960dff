"""Models of Keras of nothing but recurrent layers."""

import keras
from keras import layers
from keras_table import EVERY, frames, model, row
from recording import FEATURES, STEPS


@model()
def lstm_steps():
    """An LSTM with its outputs at every step."""
    return row(layers.LSTM(5, **EVERY))


@model()
def lstm_last():
    """An LSTM with its last output."""
    return row(layers.LSTM(6))


@model()
def gru_steps():
    """A GRU with its outputs at every step."""
    return row(layers.GRU(5, **EVERY))


@model()
def gru_reset_before():
    """A GRU with reset_after=False."""
    return row(layers.GRU(5, reset_after=False, **EVERY))


@model()
def simple_rnn_steps():
    """A SimpleRNN with its outputs at every step."""
    return row(layers.SimpleRNN(6, **EVERY))


@model()
def simple_rnn_relu_last():
    """A SimpleRNN of relu with its last output."""
    return row(layers.SimpleRNN(4, activation="relu"))


@model()
def lstm_both_concat():
    """An LSTM in both directions, side by side."""
    return row(layers.Bidirectional(layers.LSTM(4, **EVERY)))


@model()
def gru_both_sum():
    """A GRU in both directions, added."""
    return row(layers.Bidirectional(layers.GRU(5, **EVERY), merge_mode="sum"))


@model()
def simple_rnn_both_mul():
    """A SimpleRNN in both directions, multiplied."""
    return row(layers.Bidirectional(layers.SimpleRNN(5, **EVERY), merge_mode="mul"))


@model()
def lstm_both_ave_last():
    """The last outputs of an LSTM in both directions, averaged."""
    return row(layers.Bidirectional(layers.LSTM(4), merge_mode="ave"))


@model()
def gru_both_apart():
    """A GRU in both directions that are not merged: two outputs."""
    x = frames()
    return keras.Model(x, layers.Bidirectional(layers.GRU(4, **EVERY), merge_mode=None)(x))


@model()
def lstm_forward_gru_backward():
    """Two directions of different layers."""
    back = layers.GRU(4, go_backwards=True, **EVERY)
    return row(layers.Bidirectional(layers.LSTM(4, **EVERY), backward_layer=back))


@model()
def lstm_stack_last():
    """Two LSTMs, of which the second gives its last output."""
    return row(layers.LSTM(5, **EVERY), layers.LSTM(4))


@model()
def mixed_stack():
    """A GRU, an LSTM in both directions and a SimpleRNN."""
    both = layers.Bidirectional(layers.LSTM(3, **EVERY))
    return row(layers.GRU(5, **EVERY), both, layers.SimpleRNN(4, **EVERY))


@model()
def lstm_backwards():
    """An LSTM with go_backwards=True, whose outputs are in reverse order."""
    return row(layers.LSTM(5, go_backwards=True, **EVERY))


@model()
def gru_backwards_last():
    """A GRU with go_backwards=True and its last output."""
    return row(layers.GRU(5, go_backwards=True))


@model()
def lstm_states():
    """An LSTM with its outputs and its states: three outputs."""
    x = frames()
    return keras.Model(x, layers.LSTM(5, return_state=True, **EVERY)(x))


@model()
def rnn_of_cells():
    """An RNN of two cells."""
    return row(layers.RNN([layers.LSTMCell(5), layers.GRUCell(4)], **EVERY))


@model()
def lstm_hard():
    """An LSTM of relu with hard_sigmoid gates and no forget bias."""
    lstm = layers.LSTM(
        4, activation="relu", recurrent_activation="hard_sigmoid", unit_forget_bias=False, **EVERY
    )
    return row(lstm)


@model()
def gru_without_bias():
    """A GRU without biases, trained with dropout of both kinds."""
    return row(layers.GRU(6, use_bias=False, dropout=0.3, recurrent_dropout=0.2, **EVERY))


@model(results="row 0", limits="batches of one sequence; its state was reset")
def lstm_stateful():
    """A stateful LSTM with a batch of one."""
    x = keras.Input(batch_shape=(1, None, FEATURES), name="frames")
    return keras.Model(x, layers.LSTM(5, stateful=True, **EVERY)(x))


@model(results="padded, row 0", limits="7 steps, unrolled")
def gru_unrolled():
    """A GRU unrolled over seven steps."""
    x = keras.Input((STEPS, FEATURES), name="frames")
    return keras.Model(x, layers.GRU(5, unroll=True, **EVERY)(x))


@model(suffix=".h5")
def gru_stack_h5():
    """Two GRUs with outputs at every step, as .h5."""
    return row(layers.GRU(5, **EVERY), layers.GRU(4, **EVERY))
