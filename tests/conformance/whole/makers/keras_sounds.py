"""Models of sound as users of Keras write them: speech, words, speakers, voice, vocoders."""

import keras
from keras import layers, ops
from keras_table import whole


def frames(size: int = 6, length: int | None = None, name: str = "frames"):
    return keras.Input((length, size), name=name)


@whole("DeepSpeech 2: convolutions with strides over time and frequency, two bidirectional GRUs, Dense")
def deep_speech_2():
    x = layers.Reshape((-1, 8, 1))(inputs := frames(8, name="spectrogram"))
    for number, (kernel, stride) in enumerate((((5, 4), (2, 2)), ((3, 3), (1, 2))), 1):
        x = layers.Conv2D(3, kernel, strides=stride, padding="same", use_bias=False, name=f"conv_{number}")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Reshape((-1, x.shape[-2] * x.shape[-1]))(x)
    for _ in range(2):
        gru = layers.GRU(5, return_sequences=True, reset_after=True)
        x = layers.Dropout(0.5)(layers.Bidirectional(gru)(x))
    x = layers.Dropout(0.5)(layers.ReLU()(layers.Dense(8)(x)))
    return keras.Model(inputs, layers.Dense(7, activation="softmax")(x))


@whole("Deep Speech: TimeDistributed Dense with ReLU up to 20, a bidirectional SimpleRNN, sums of directions")
def deep_speech():
    x = inputs = frames()
    for _ in range(3):
        x = layers.TimeDistributed(layers.ReLU(max_value=20))(layers.TimeDistributed(layers.Dense(8))(x))
    x = layers.Bidirectional(layers.SimpleRNN(6, activation="relu", return_sequences=True), merge_mode="sum")(
        x
    )
    x = layers.Dense(8, activation="relu6")(x)
    return keras.Model(inputs, layers.TimeDistributed(layers.Dense(5, activation="softmax"))(x))


@whole(
    "a reader of lines of text: Conv2D and MaxPooling2D, Reshape, two bidirectional LSTMs",
    lengths=(12, 8, 20),
)
def lines_of_text():
    inputs = keras.Input((None, 8, 1), name="image")
    x = layers.Conv2D(3, 3, activation="relu", padding="same")(inputs)
    x = layers.MaxPooling2D((2, 2))(x)
    x = layers.Conv2D(4, 3, activation="relu", padding="same")(x)
    x = layers.MaxPooling2D((2, 2))(x)
    x = layers.Dense(6, activation="relu")(layers.Reshape((-1, 8))(x))
    for _ in range(2):
        x = layers.Bidirectional(layers.LSTM(4, return_sequences=True, dropout=0.25))(x)
    return keras.Model(inputs, layers.Dense(9, activation="softmax", name="letters")(x))


@whole("keyword spotting: depthwise and pointwise convolutions, BatchNormalization, mean over time")
def keywords():
    x = layers.Conv1D(6, 4, strides=2, padding="same", use_bias=False)(inputs := frames())
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for _ in range(2):
        x = layers.DepthwiseConv1D(3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv1D(6, 1, use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.4)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, layers.Dense(4, activation="softmax")(x))


@whole("keyword spotting: SeparableConv1D, GRU, Dense; a fixed number of steps")
def keywords_by_gru():
    x = layers.SeparableConv1D(8, 5, padding="valid", activation="relu", depth_multiplier=2)(
        inputs := frames(6, 20)
    )
    x = layers.MaxPooling1D(2)(x)
    x = layers.GRU(6)(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


@whole("WaveNet: causal convolutions with growing dilations, tanh times sigmoid, residuals and skips")
def wavenet():
    x = layers.Conv1D(6, 2, padding="causal")(inputs := frames(1, name="wave"))
    skips = []
    for dilation in (1, 2, 4):
        gate = layers.Conv1D(6, 2, padding="causal", dilation_rate=dilation, activation="sigmoid")(x)
        bent = layers.Conv1D(6, 2, padding="causal", dilation_rate=dilation, activation="tanh")(x)
        both = layers.Multiply()([gate, bent])
        skips.append(layers.Conv1D(5, 1)(both))
        x = layers.Add()([x, layers.Conv1D(6, 1)(both)])
    x = layers.ReLU()(layers.Add()(skips))
    return keras.Model(
        inputs, layers.Dense(8, activation="softmax")(layers.Conv1D(5, 1, activation="relu")(x))
    )


@whole("detection of voice: Normalization, a causal convolution, GRU, one number a step")
def voice():
    normal = layers.Normalization(mean=[0.5, -1, 0, 2, 1, 0], variance=[1, 2, 0.5, 1, 4, 3])
    x = layers.Conv1D(6, 3, padding="causal", activation="relu")(normal(inputs := frames()))
    x = layers.GRU(6, return_sequences=True)(x)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid", name="speech")(x))


@whole("RNNoise: three GRUs over concatenated features, gains and voice as two outputs")
def noise_suppression():
    inputs = frames(8, name="bands")
    x = layers.Dense(5, activation="tanh")(inputs)
    voice_gru = layers.GRU(4, activation="tanh", recurrent_activation="sigmoid", return_sequences=True)(x)
    voice_out = layers.Dense(1, activation="sigmoid", name="voice")(voice_gru)
    noise = layers.GRU(6, activation="relu", return_sequences=True)(
        layers.concatenate([x, voice_gru, inputs])
    )
    clean = layers.GRU(7, return_sequences=True)(layers.concatenate([voice_gru, noise, inputs]))
    return keras.Model(inputs, [layers.Dense(6, activation="sigmoid", name="gains")(clean), voice_out])


@whole("x-vector: dilated convolutions, mean and standard deviation over time, Dense", lengths=(20, 17, 25))
def x_vector():
    x = inputs = frames()
    for kernel, dilation in ((5, 1), (3, 2), (3, 3), (1, 1)):
        x = layers.Conv1D(6, kernel, dilation_rate=dilation, activation="relu")(x)
        x = layers.BatchNormalization()(x)
    mean, spread = ops.mean(x, axis=1), ops.std(x, axis=1)
    x = layers.Dense(5, name="embedding")(layers.Concatenate()([mean, spread]))
    return keras.Model(inputs, x)


@whole("d-vector: three LSTMs, the last output, Dense, UnitNormalization")
def d_vector():
    x = inputs = frames()
    for last in (False, False, True):
        x = layers.LSTM(6, return_sequences=not last)(x)
    return keras.Model(inputs, layers.UnitNormalization(name="voice_print")(layers.Dense(5)(x)))


@whole("speakers: residual convolutions with pooling, Flatten, Dense; a fixed number of steps")
def speakers():
    x = inputs = frames(4, 48, name="spectrum")
    for count in (1, 2):
        skip = layers.Conv1D(4 * count, 1, padding="same")(x)
        for _ in range(count):
            x = layers.Activation("relu")(layers.Conv1D(4 * count, 3, padding="same")(x))
        x = layers.Conv1D(4 * count, 3, padding="same")(x)
        x = layers.MaxPool1D(pool_size=2, strides=2)(layers.Activation("relu")(layers.Add()([x, skip])))
    x = layers.Flatten()(layers.AveragePooling1D(pool_size=3, strides=3)(x))
    return keras.Model(inputs, layers.Dense(4, activation="softmax", name="speaker")(x))


@whole("Listen, Attend and Spell's pyramid: bidirectional LSTM, two steps as one, twice", lengths=(12, 8, 20))
def pyramid():
    x = inputs = frames()
    for _ in range(2):
        x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
        x = layers.Reshape((-1, 16))(x)
    return keras.Model(inputs, layers.Dense(7, activation="log_softmax")(x))


@whole(
    "a vocoder: conditions repeated by UpSampling1D, words of the past, GRU, Dense",
    lengths=(12, 8, 4),
    others={"past": (48, 32, 16)},
)
def vocoder():
    conditions, past = frames(5, name="conditions"), keras.Input((None,), dtype="int32", name="past")
    x = layers.UpSampling1D(4)(layers.Conv1D(5, 3, padding="same", activation="tanh")(conditions))
    x = layers.Concatenate()([x, layers.Embedding(11, 4)(past)])
    return keras.Model([conditions, past], layers.Dense(11)(layers.GRU(7, return_sequences=True)(x)))


@whole("a discriminator of waves: grouped convolutions with strides, LeakyReLU", lengths=(48, 30, 33))
def discriminator():
    x = layers.LeakyReLU(negative_slope=0.2)(
        layers.Conv1D(4, 7, padding="same")(inputs := frames(1, name="wave"))
    )
    for filters in (8, 8):
        x = layers.Conv1D(filters, 9, strides=4, groups=4, padding="same")(x)
        x = layers.LeakyReLU(negative_slope=0.2)(x)
    return keras.Model(inputs, layers.Conv1D(1, 3, padding="same", name="real")(x))


@whole("phones: Masking, two bidirectional LSTMs, log of softmax, as .h5", "h5", masked=True)
def phones():
    x = layers.Masking()(inputs := frames())
    for _ in range(2):
        x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    return keras.Model(inputs, layers.Dense(6, activation="log_softmax")(x))


@whole(
    "sounds in levels of 8 bits: Rescaling, LayerNormalization, GRU with a normalised residual, as .h5", "h5"
)
def levels():
    x = layers.Rescaling(1 / 4, offset=-0.5)(inputs := frames(5))
    x = layers.Dense(6)(layers.LayerNormalization()(x))
    for _ in range(2):
        x = layers.Add()([x, layers.GRU(6, return_sequences=True)(layers.LayerNormalization()(x))])
    return keras.Model(inputs, layers.Dense(2, activation="softplus")(x))


@whole("causal separable convolutions with residuals, mean over time, as .h5", "h5")
def small_tcn():
    x = layers.Conv1D(6, 1)(inputs := frames())
    for dilation in (1, 2, 4):
        y = layers.Conv1D(6, 3, padding="causal", dilation_rate=dilation)(x)
        y = layers.SpatialDropout1D(0.1)(layers.Activation("relu")(layers.LayerNormalization()(y)))
        x = layers.Add()([x, y])
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(x)))
