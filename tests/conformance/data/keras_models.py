"""Models as users of Keras write them: recurrent layers alone, and with all that stands around them.

Each function builds one; its decorator says which inputs it takes, in order, and what is saved.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import keras
from keras import layers, ops
from recording import CONTEXT, FEATURES, STEPS, WORDS

EVERY = {"return_sequences": True}


@dataclass(frozen=True)
class Maker:
    """How to make a model, of what inputs, and which results it can give.

    around: what is no layer and yet not Keras' own, such as an activation.
    """

    build: Callable[[], keras.Model]
    inputs: tuple[str, ...] = ("frames",)
    suffix: str = ".keras"
    around: dict[str, str] = field(default_factory=dict)
    results: str = "padded, alone"
    limits: str = ""


MAKERS: list[Maker] = []


def model(*inputs: str, **options) -> Callable:
    """Adds a function to the table."""

    def adding(build: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
        MAKERS.append(Maker(build, inputs or ("frames",), **options))
        return build

    return adding


def frames(name: str = "frames", features: int = FEATURES):
    return keras.Input((None, features), name=name)


def words(name: str = "tokens"):
    return keras.Input((None,), name=name, dtype="int32")


def row(*parts) -> keras.Sequential:
    """Layers over frames, one after another."""
    return keras.Sequential([frames(), *parts])


def texts(*parts) -> keras.Sequential:
    """Layers over tokens, one after another."""
    return keras.Sequential([words(), *parts])


# ---- recurrent layers alone --------------------------------------------------------------------------------


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


# ---- texts -------------------------------------------------------------------------------------------------


@model("gapped tokens")
def sentiment():
    """Embedding with mask_zero, LSTM, Dense: a classifier of texts."""
    lstm = layers.LSTM(6, dropout=0.2)
    return texts(layers.Embedding(WORDS, 5, mask_zero=True), lstm, layers.Dense(1, activation="sigmoid"))


@model("gapped tokens")
def sentiment_averaged():
    """Embedding with mask_zero, a GRU in both directions, the mean of steps that are not masked, Dense."""
    return texts(
        layers.Embedding(WORDS, 4, mask_zero=True),
        layers.SpatialDropout1D(0.2),
        layers.Bidirectional(layers.GRU(4, **EVERY)),
        layers.GlobalAveragePooling1D(),
        layers.Dropout(0.5),
        layers.Dense(3, activation="softmax"),
    )


@model("gapped tokens")
def tagger():
    """Embedding with mask_zero, an LSTM in both directions, TimeDistributed Dense with softmax."""
    both = layers.Bidirectional(layers.LSTM(4, **EVERY))
    tags = layers.TimeDistributed(layers.Dense(5, activation="softmax"))
    return texts(layers.Embedding(WORDS, 5, mask_zero=True), both, tags)


@model("tokens", suffix=".h5")
def characters():
    """Embedding without a mask, two GRUs, Dense: a model of characters, as .h5."""
    grus = (layers.GRU(6, **EVERY), layers.GRU(6, **EVERY))
    return texts(layers.Embedding(WORDS, 4), *grus, layers.Dense(WORDS))


@model("tokens", "tokens")
def tagger_of_two_inputs():
    """Embeddings of words and of parts of speech, side by side, an LSTM in both directions, Dense."""
    word, part = words("words"), words("parts")
    x = layers.Concatenate()([layers.Embedding(WORDS, 4)(word), layers.Embedding(WORDS, 2)(part)])
    y = layers.Bidirectional(layers.LSTM(4, **EVERY))(x)
    return keras.Model([word, part], layers.Dense(4, activation="softmax")(y))


@model("tokens", "tokens")
def siamese():
    """One Embedding and one LSTM over two texts, the distance of their last outputs, Dense."""
    first, second = words("first"), words("second")
    embedding, lstm = layers.Embedding(WORDS, 4), layers.LSTM(5)
    ends = [lstm(embedding(one)) for one in (first, second)]
    away = ops.absolute(layers.Subtract()(ends))
    return keras.Model([first, second], layers.Dense(1, activation="sigmoid")(away))


@model("context", "tokens")
def captions():
    """A Dense of an image's features as the first state of a GRU over embedded tokens, Dense: captions."""
    image, text = keras.Input((CONTEXT,), name="image"), words("text")
    state = layers.Dense(6, activation="tanh")(image)
    y = layers.GRU(6, **EVERY)(layers.Embedding(WORDS, 4)(text), initial_state=state)
    return keras.Model([image, text], layers.Dense(WORDS, activation="softmax")(y))


@model("tokens", "tokens")
def translator():
    """An encoder whose states a decoder begins with, and Dense: sequence to sequence."""
    source, target = words("source"), words("target")
    _, *states = layers.LSTM(5, return_state=True)(layers.Embedding(WORDS, 4)(source))
    y = layers.LSTM(5, **EVERY)(layers.Embedding(WORDS, 4)(target), initial_state=states)
    return keras.Model([source, target], layers.Dense(WORDS, activation="softmax")(y))


# ---- masks over frames -------------------------------------------------------------------------------------


@model("gapped frames")
def masked_classifier():
    """Masking, LSTM, Dense."""
    return row(layers.Masking(0.0), layers.LSTM(6), layers.Dense(3, activation="softmax"))


@model("gapped frames")
def masked_steps():
    """Masking and a GRU with its outputs at every step."""
    return row(layers.Masking(), layers.GRU(5, **EVERY))


@model("gapped frames", suffix=".h5")
def masked_both():
    """Masking, an LSTM in both directions, Dense, as .h5."""
    return row(layers.Masking(), layers.Bidirectional(layers.LSTM(4)), layers.Dense(2))


@model("gapped frames")
def masked_backwards():
    """Masking and a GRU with go_backwards=True and zero_output_for_mask=True."""
    gru = layers.GRU(5, go_backwards=True, zero_output_for_mask=True, **EVERY)
    return row(layers.Masking(), gru)


# ---- sensors and speech ------------------------------------------------------------------------------------


@model()
def sensors():
    """BatchNormalization, Conv1D, ReLU, LSTM, Dense: activities from sensors."""
    return row(
        layers.BatchNormalization(),
        layers.Conv1D(6, 3, padding="same"),
        layers.ReLU(),
        layers.LSTM(5),
        layers.Dense(4, activation="softmax"),
    )


@model()
def voice_activity():
    """Causal Conv1D, BatchNormalization, GRU, Dense with sigmoid at every step."""
    return row(
        layers.Conv1D(6, 3, padding="causal", activation="relu"),
        layers.BatchNormalization(),
        layers.GRU(5, **EVERY),
        layers.Dense(1, activation="sigmoid"),
    )


@model()
def deep_speech():
    """Rescaling, Conv1D, BatchNormalization, two GRUs in both directions, TimeDistributed Dense, Softmax."""
    return row(
        layers.Rescaling(0.5, offset=-0.1),
        layers.Conv1D(6, 5, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(max_value=20),
        layers.Bidirectional(layers.GRU(4, **EVERY)),
        layers.Bidirectional(layers.GRU(4, **EVERY), merge_mode="sum"),
        layers.TimeDistributed(layers.Dense(6)),
        layers.Softmax(),
    )


@model()
def forecaster():
    """Normalization, LSTM, Dense: the next values of a series."""
    return row(layers.Normalization(), layers.LSTM(8), layers.Dense(3))


@model()
def standardised():
    """Normalization with the numbers of its configuration, and a GRU."""
    normalization = layers.Normalization(mean=[0.1, -0.2, 0.3, 0.4], variance=[0.5, 1.5, 2.0, 0.8])
    return row(normalization, layers.GRU(5, **EVERY))


@model()
def rescaled():
    """Rescaling and an LSTM: nothing else has weights."""
    return row(layers.Rescaling(0.1), layers.LSTM(5, **EVERY))


@model()
def normalised_stack():
    """Two LSTMs, each with LayerNormalization, and Dense."""
    return row(
        layers.LSTM(6, **EVERY),
        layers.LayerNormalization(),
        layers.LSTM(5),
        layers.LayerNormalization(epsilon=1e-5),
        layers.Dense(2),
    )


@model()
def residual():
    """Dense, and GRUs whose outputs are added to their inputs, with LayerNormalization between."""
    x = frames()
    y = layers.Dense(5)(x)
    y = layers.LayerNormalization()(layers.Add()([y, layers.GRU(5, **EVERY)(y)]))
    y = layers.Add()([y, layers.GRU(5, **EVERY)(y)])
    return keras.Model(x, y)


@model()
def dense_before():
    """TimeDistributed Dense, Dropout, LSTM, Dense with relu, Dense with softmax."""
    return row(
        layers.TimeDistributed(layers.Dense(6, activation="relu")),
        layers.Dropout(0.3),
        layers.LSTM(5),
        layers.Dense(6, activation="relu"),
        layers.Dense(3, activation="softmax"),
    )


@model()
def leaky():
    """Dense, PReLU over features, SimpleRNN, LeakyReLU, Dense, Softmax."""
    return row(
        layers.Dense(5),
        layers.PReLU(shared_axes=[1]),
        layers.SimpleRNN(5, **EVERY),
        layers.LeakyReLU(0.2),
        layers.Dense(3),
        layers.Softmax(),
    )


@model(results="padded, row 0", limits="7 steps, as pooling leaves none of one step")
def pooled():
    """Conv1D, MaxPooling1D, LSTM, Dense."""
    x = keras.Input((STEPS, FEATURES), name="frames")
    y = layers.MaxPooling1D(2)(layers.Conv1D(6, 3, activation="relu")(x))
    return keras.Model(x, layers.Dense(2)(layers.LSTM(5)(y)))


@model()
def padded_convolution():
    """ZeroPadding1D, Conv1D, GRU, GaussianNoise, Dense."""
    return row(
        layers.ZeroPadding1D((2, 0)),
        layers.Conv1D(5, 3, activation="tanh"),
        layers.GRU(5, **EVERY),
        layers.GaussianNoise(0.1),
        layers.Dense(2, activation="tanh"),
    )


@model()
def pictures_of_lines():
    """Conv2D, MaxPooling2D over frames as columns of a picture, LSTM in both directions, Dense: a CRNN."""
    x = frames(features=8)
    y = layers.Conv2D(3, 3, padding="same", activation="relu")(layers.Reshape((-1, 8, 1))(x))
    y = layers.Reshape((-1, 12))(layers.MaxPooling2D((1, 2))(y))
    y = layers.Bidirectional(layers.LSTM(4, **EVERY))(y)
    return keras.Model(x, layers.Dense(6, activation="softmax")(y))


# ---- attention, sequence to sequence, several outputs ------------------------------------------------------


@model()
def attention_pooling():
    """An LSTM in both directions, the mean of its outputs weighted by a Dense and a softmax, Dense."""
    x = frames()
    y = layers.Bidirectional(layers.LSTM(4, **EVERY))(x)
    weight = layers.Softmax(axis=1)(layers.Dense(1, activation="tanh")(y))
    mean = ops.sum(layers.Multiply()([y, weight]), axis=1)
    return keras.Model(x, layers.Dense(2)(mean))


@model()
def attention():
    """LSTM, Attention of its outputs to themselves, GlobalAveragePooling1D, Dense."""
    x = frames()
    y = layers.LSTM(5, **EVERY)(x)
    y = layers.GlobalAveragePooling1D()(layers.Attention()([y, y]))
    return keras.Model(x, layers.Dense(2)(y))


@model()
def heads():
    """GRU, MultiHeadAttention with a residual, LayerNormalization, GlobalMaxPooling1D, Dense."""
    x = frames()
    y = layers.GRU(6, **EVERY)(x)
    y = layers.LayerNormalization()(layers.Add()([y, layers.MultiHeadAttention(2, 3)(y, y)]))
    return keras.Model(x, layers.Dense(2)(layers.GlobalMaxPooling1D()(y)))


@model()
def autoencoder():
    """LSTM, RepeatVector, LSTM, TimeDistributed Dense: four steps of any sequence."""
    return row(
        layers.LSTM(6),
        layers.RepeatVector(4),
        layers.LSTM(6, **EVERY),
        layers.TimeDistributed(layers.Dense(FEATURES)),
    )


@model("frames", "context")
def frames_and_context():
    """An LSTM over frames and a Dense over numbers of the sequence, side by side, Dense."""
    x, context = frames(), keras.Input((CONTEXT,), name="context")
    ends = layers.Concatenate()([layers.LSTM(5)(x), layers.Dense(4, activation="relu")(context)])
    return keras.Model([x, context], layers.Dense(2)(ends))


@model()
def two_outputs():
    """A GRU, Dense at every step, and an LSTM with Dense over the whole: two outputs."""
    x = frames()
    y = layers.GRU(5, **EVERY)(x)
    steps = layers.Dense(3, activation="softmax", name="steps")(y)
    whole = layers.Dense(1, activation="sigmoid", name="whole")(layers.LSTM(4)(y))
    return keras.Model(x, [steps, whole])


@model(suffix=".h5")
def head_h5():
    """LSTM, Dropout, Dense with relu, Dense, as .h5."""
    return row(layers.LSTM(5), layers.Dropout(0.2), layers.Dense(4, activation="relu"), layers.Dense(1))


@model()
def model_in_model():
    """A model of a GRU and a Dense as a layer of another."""
    inside = keras.Sequential([frames("inside"), layers.GRU(5, **EVERY), layers.Dense(4)], name="encoder")
    return row(layers.BatchNormalization(), inside, layers.LSTM(3))


@model(results="padded", limits="batches of three sequences; its state was reset before each")
def stateful_head():
    """A stateful GRU with a batch of three, and Dense."""
    x = keras.Input(batch_shape=(3, None, FEATURES), name="frames")
    return keras.Model(x, layers.Dense(2)(layers.GRU(5, stateful=True, **EVERY)(x)))


@model(results="padded, row 0", limits="7 steps")
def flattened():
    """LSTM, Permute, Flatten, Dense."""
    x = keras.Input((STEPS, FEATURES), name="frames")
    y = layers.Permute((2, 1))(layers.LSTM(4, **EVERY)(x))
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(y)))


@model()
def only_one_step():
    """The last step of a GRU by a slice, and Dense."""
    x = frames()
    return keras.Model(x, layers.Dense(2)(layers.GRU(5, **EVERY)(x)[:, -1]))


# ---- code of users, and other recurrent layers -------------------------------------------------------------


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
