"""Models of Keras 2, by tf_keras, as users wrote them, and models for TFLite."""

from keras_table import WORDS, whole
from tf_keras import Input, Model, Sequential, layers


def words(name: str = "words"):
    return Input((None,), dtype="int32", name=name)


def series(size: int = 6, length: int | None = None, name: str = "series"):
    return Input((length, size), name=name)


@whole("Embedding with a mask, two LSTMs with dropout, Dense", "keras2", masked=True)
def sentiment():
    return Sequential(
        [
            words(),
            layers.Embedding(WORDS, 6, mask_zero=True),
            layers.LSTM(5, dropout=0.2, recurrent_dropout=0.2, return_sequences=True),
            layers.LSTM(4),
            layers.Dense(1, activation="sigmoid"),
        ]
    )


@whole("a tagger: Embedding with a mask, bidirectional LSTM, TimeDistributed Dense", "keras2", masked=True)
def tagger():
    x = layers.Embedding(WORDS, 6, mask_zero=True)(inputs := words())
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(x)
    return Model(inputs, layers.TimeDistributed(layers.Dense(4, activation="softmax"))(x))


@whole("an encoder gives its states to a decoder, GRU of both, Dense", "keras2", others={"target": (5, 9, 6)})
def translator():
    source, target = series(5, name="source"), series(6, name="target")
    _, h = layers.GRU(7, return_state=True)(source)
    y, _ = layers.GRU(7, return_sequences=True, return_state=True)(target, initial_state=[h])
    return Model([source, target], layers.Dense(6, activation="softmax")(y))


@whole("speech: ZeroPadding1D, Conv1D with strides, BatchNormalization, bidirectional GRUs added", "keras2")
def speech():
    x = layers.Conv1D(6, 5, strides=2, padding="valid")(layers.ZeroPadding1D(2)(inputs := series()))
    x = layers.BatchNormalization(momentum=0.9)(layers.Activation("relu")(x))
    for _ in range(2):
        x = layers.Bidirectional(layers.GRU(5, return_sequences=True), merge_mode="sum")(x)
        x = layers.BatchNormalization()(x)
    return Model(inputs, layers.TimeDistributed(layers.Dense(7, activation="softmax"))(x))


@whole("two texts, one shared GRU, the product and the difference of their ends, Dense", "keras2")
def pairs():
    embedding, gru = layers.Embedding(WORDS, 5), layers.GRU(6, reset_after=False)
    first, second = words("first"), words("second")
    ends = [gru(embedding(one)) for one in (first, second)]
    x = layers.Concatenate()([layers.Multiply()(ends), layers.Subtract()(ends), layers.Dot(1)(ends)])
    return Model([first, second], layers.Dense(1, activation="sigmoid")(x))


@whole("convolutions, LeakyReLU, pooling, dropout, GlobalMaxPooling1D, Dense", "keras2")
def machines():
    x = layers.LeakyReLU(0.1)(layers.Conv1D(6, 3, padding="same")(inputs := series(3)))
    x = layers.MaxPooling1D(2, padding="same")(x)
    x = layers.PReLU(shared_axes=[1])(layers.SeparableConv1D(6, 3, padding="same")(x))
    x = layers.AveragePooling1D(2, strides=1, padding="same")(x)
    return Model(
        inputs, layers.Dense(3, activation="softmax")(layers.GlobalMaxPooling1D()(layers.Dropout(0.3)(x)))
    )


@whole("the last step by a Lambda of the outputs of a GRU", "keras2")
def lambda_last():
    x = layers.GRU(5, return_sequences=True)(inputs := series())
    return Model(inputs, layers.Dense(2)(layers.Lambda(lambda value: value[:, -1])(x)))


@whole("a stateful LSTM in a batch of one, TimeDistributed Dense", "keras2")
def stateful():
    inputs = Input(batch_shape=(1, None, 6), name="series")
    x = layers.LSTM(5, stateful=True, return_sequences=True)(inputs)
    return Model(inputs, layers.TimeDistributed(layers.Dense(2))(x))


def keywords():
    """Keyword spotting: depthwise and pointwise convolutions with BatchNormalization, a mean over time."""
    x = layers.ReLU()(
        layers.BatchNormalization()(layers.Conv1D(6, 4, strides=2, padding="same")(inputs := series(5, 16)))
    )
    x = layers.BatchNormalization()(layers.DepthwiseConv1D(3, padding="same")(x))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv1D(6, 1)(layers.ReLU()(x))))
    return Model(inputs, layers.Dense(4, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


def text_cnn():
    """Embedding, convolutions of two widths, maxima over time, Dense."""
    x = layers.Embedding(WORDS, 5)(inputs := Input((12,), dtype="int32", name="words"))
    found = [layers.GlobalMaxPooling1D()(layers.Conv1D(4, width, activation="relu")(x)) for width in (2, 3)]
    return Model(inputs, layers.Dense(2, activation="softmax")(layers.Concatenate()(found)))


def voice():
    """A causal convolution, a fused LSTM, one number a step."""
    x = layers.Conv1D(6, 3, padding="causal", activation="relu")(inputs := series(5, 12))
    return Model(inputs, layers.Dense(1, activation="sigmoid")(layers.LSTM(6, return_sequences=True)(x)))


def both():
    """A bidirectional LSTM, fused, and Dense with tanh at each step."""
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(inputs := series(5, 10))
    return Model(inputs, layers.Dense(3, activation="tanh")(x))


def wavenet():
    """Causal dilated convolutions, tanh times sigmoid, residuals."""
    x = layers.Conv1D(5, 2, padding="causal")(inputs := series(1, 16))
    for dilation in (1, 2, 4):
        gate = layers.Conv1D(5, 2, padding="causal", dilation_rate=dilation, activation="sigmoid")(x)
        bent = layers.Conv1D(5, 2, padding="causal", dilation_rate=dilation, activation="tanh")(x)
        x = layers.Add()([x, layers.Conv1D(5, 1)(layers.Multiply()([gate, bent]))])
    return Model(inputs, layers.Dense(4)(x))


def autoencoder():
    """Conv1D with strides, Conv1DTranspose: an autoencoder."""
    x = layers.Conv1D(4, 5, strides=2, padding="same", activation="relu")(inputs := series(2, 16))
    x = layers.Conv1DTranspose(4, 5, strides=2, padding="same", activation="relu")(x)
    return Model(inputs, layers.Conv1D(2, 3, padding="same")(x))


def pooled():
    """Conv1D, MaxPooling1D, AveragePooling1D, Flatten, Dense."""
    x = layers.Conv1D(5, 3, activation="relu")(inputs := series(4, 18))
    x = layers.AveragePooling1D(2)(layers.MaxPooling1D(2)(x))
    return Model(inputs, layers.Dense(3, activation="softmax")(layers.Flatten()(x)))


def halves():
    """LSTM and two Dense, weights in float16, LayerNormalization of features."""
    x = layers.LSTM(6, return_sequences=True)(inputs := series(5, 9))
    x = layers.LayerNormalization()(layers.Dense(6, activation="relu")(x))
    return Model(inputs, layers.Dense(2)(x))


TFLITE = (keywords, text_cnn, voice, both, wavenet, autoencoder, pooled, halves)
