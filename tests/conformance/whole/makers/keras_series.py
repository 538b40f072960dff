"""Models of series of numbers as users of Keras write them, and layers of every kind around the steps."""

import keras
from keras import layers, ops
from keras_table import whole

ACTIVATIONS = """
    relu relu6 sigmoid softplus softsign tanh selu elu exponential leaky_relu silu swish gelu hard_sigmoid
    hard_silu hard_swish linear mish log_softmax softmax celu hard_tanh hard_shrink soft_shrink
    tanh_shrink squareplus sparse_plus sparse_sigmoid log_sigmoid sparsemax
"""


def series(size: int = 6, length: int | None = None, name: str = "series"):
    return keras.Input((length, size), name=name)


@whole("the weather of the next hour: LSTM, Dense")
def weather():
    return keras.Sequential([series(7), layers.LSTM(8), layers.Dense(1)])


@whole("three convolutions with BatchNormalization, mean over time, as in Keras' example of motors")
def motors():
    x = inputs = series(1)
    for _ in range(3):
        x = layers.Conv1D(6, 3, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


@whole("an autoencoder of anomalies: Conv1D with strides, Conv1DTranspose; a fixed number of steps")
def anomalies():
    def turned(filters, **options):
        return layers.Conv1DTranspose(filters, 7, padding="same", **options)

    return keras.Sequential(
        [
            series(1, 32),
            layers.Conv1D(6, 7, padding="same", strides=2, activation="relu"),
            layers.Dropout(0.2),
            layers.Conv1D(4, 7, padding="same", strides=2, activation="relu"),
            turned(4, strides=2, activation="relu"),
            layers.Dropout(0.2),
            turned(6, strides=2, activation="relu"),
            turned(1),
        ]
    )


@whole("a Transformer of series: LayerNormalization, MultiHeadAttention, Conv1D, mean over time")
def transformer_of_series():
    x = inputs = series(4)
    for _ in range(2):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.Dropout(0.2)(layers.MultiHeadAttention(key_dim=4, num_heads=2, dropout=0.1)(y, y))
        x = x + y
        y = layers.Conv1D(4, 1, activation="relu")(layers.LayerNormalization(epsilon=1e-6)(x))
        x = x + layers.Conv1D(4, 1)(layers.Dropout(0.2)(y))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


@whole("InceptionTime: a bottleneck, convolutions of three widths, MaxPooling1D of one stride, a shortcut")
def inception():
    inputs = series(4)
    x = layers.Conv1D(4, 1, padding="same", use_bias=False)(inputs)
    found = [layers.Conv1D(3, width, padding="same", use_bias=False)(x) for width in (8, 4, 2)]
    pooled = layers.MaxPool1D(pool_size=3, strides=1, padding="same")(inputs)
    found.append(layers.Conv1D(3, 1, padding="same", use_bias=False)(pooled))
    x = layers.Activation("relu")(layers.BatchNormalization()(layers.Concatenate(axis=2)(found)))
    shortcut = layers.BatchNormalization()(layers.Conv1D(12, 1, padding="same", use_bias=False)(inputs))
    x = layers.Activation("relu")(layers.Add()([shortcut, x]))
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


@whole(
    "a U-Net over time: MaxPooling1D, UpSampling1D, Concatenate, ZeroPadding1D, Cropping1D",
    lengths=(12, 8, 16),
)
def u_net():
    x = layers.ZeroPadding1D(2)(inputs := series(3))
    x = first = layers.Conv1D(4, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling1D(2)(x)
    x = layers.Conv1D(6, 3, padding="same", activation="relu")(x)
    x = layers.Concatenate()([layers.UpSampling1D(2)(x), first])
    x = layers.Conv1D(4, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv1D(2, 1, activation="sigmoid")(layers.Cropping1D(2)(x)))


@whole(
    "N-BEATS: Dense over all steps, Subtract of what is explained, Add of forecasts; a fixed number of steps"
)
def n_beats():
    x = layers.Flatten()(inputs := series(1, 8))
    forecasts = []
    for _ in range(2):
        y = layers.Dense(10, activation="relu")(layers.Dense(10, activation="relu")(x))
        x = layers.Subtract()([x, layers.Dense(8)(y)])
        forecasts.append(layers.Dense(3)(y))
    return keras.Model(inputs, layers.Add(name="forecast")(forecasts))


@whole("quantiles of a forecast: GRU, three Dense as outputs by name, softplus between them")
def quantiles():
    x = layers.GRU(6)(inputs := series())
    middle = layers.Dense(1, name="middle")(x)
    low = layers.Subtract(name="low")([middle, layers.Dense(1, activation="softplus")(x)])
    high = layers.Add(name="high")([middle, layers.Dense(1, activation="softplus")(x)])
    return keras.Model(inputs, {"low": low, "middle": middle, "high": high})


@whole("a masked forecaster: Masking of -1, LSTM in two layers, Dense", masked=True, fill=-1.0)
def gaps():
    return keras.Sequential(
        [
            series(),
            layers.Masking(-1.0),
            layers.LSTM(5, return_sequences=True),
            layers.LSTM(4),
            layers.Dense(2),
        ]
    )


@whole("a mask through Dense, Dropout, Add, Concatenate and BatchNormalization to a GRU", masked=True)
def mask_through_layers():
    x = layers.Masking()(inputs := series())
    y = layers.Dropout(0.1)(layers.Dense(6, activation="elu")(x))
    x = layers.Concatenate()([layers.Add()([x, y]), x])
    x = layers.Activation("tanh")(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.GRU(5, return_sequences=True)(x))


@whole("knowledge tracing: Masking, LSTM, TimeDistributed Dense with sigmoid", masked=True)
def knowledge():
    x = layers.LSTM(6, return_sequences=True)(layers.Masking(0.0)(inputs := series()))
    return keras.Model(inputs, layers.TimeDistributed(layers.Dense(4, activation="sigmoid"))(x))


@whole("RNN of an LSTMCell, a GRUCell and a SimpleRNNCell, and a StackedRNNCells in both directions")
def cells():
    x = layers.RNN([layers.LSTMCell(5), layers.GRUCell(4), layers.SimpleRNNCell(3)], return_sequences=True)(
        inputs := series()
    )
    stacked = layers.StackedRNNCells([layers.GRUCell(3, reset_after=False), layers.LSTMCell(4)])
    return keras.Model(inputs, layers.Bidirectional(layers.RNN(stacked))(x))


@whole("every way to merge two directions, side by side")
def merges():
    inputs, found = series(), []
    for mode in ("concat", "sum", "mul", "ave"):
        found.append(layers.Bidirectional(layers.GRU(4, return_sequences=True), merge_mode=mode)(inputs))
    ahead, back = layers.Bidirectional(layers.LSTM(4, return_sequences=True), merge_mode=None)(inputs)
    return keras.Model(inputs, layers.Dense(3)(layers.Concatenate()([*found, ahead, back])))


@whole("go_backwards: the outputs last step first, through a second LSTM, and as an output themselves")
def backwards():
    x = layers.LSTM(5, go_backwards=True, return_sequences=True, name="first")(inputs := series())
    y = layers.LSTM(4, return_sequences=True, name="second")(layers.Dense(6, activation="relu")(x))
    z = layers.GRU(3, go_backwards=True, name="last")(inputs)
    return keras.Model(inputs, [x, y, z])


@whole("a stateful LSTM in a batch of one, Dense")
def stateful():
    inputs = keras.Input(batch_shape=(1, None, 6), name="series")
    x = layers.LSTM(5, stateful=True, return_sequences=True)(inputs)
    return keras.Model(inputs, layers.Dense(2)(x))


@whole("all outputs and the last states of a GRU, each with a head of its own")
def states():
    y, h = layers.GRU(6, return_sequences=True, return_state=True)(inputs := series())
    return keras.Model(inputs, [layers.Dense(3, name="each")(y), layers.Dense(2, name="whole")(h)])


@whole("every activation of Keras by name, one after another, each with a Dense")
def activations():
    inputs = series()
    found = [layers.Dense(6, activation=name, name=f"{name}_dense")(inputs) for name in ACTIVATIONS.split()]
    return keras.Model(
        inputs, layers.GRU(5, activation="softsign", return_sequences=True)(layers.concatenate(found))
    )


@whole("activations as layers: LeakyReLU, PReLU, ELU, Softmax, ReLU with its three numbers, in a row")
def activation_layers():
    steps = [
        layers.LeakyReLU(negative_slope=0.1),
        layers.PReLU(shared_axes=[1]),
        layers.ELU(alpha=0.5),
        layers.ReLU(max_value=2.0, negative_slope=0.1, threshold=0.2),
        layers.Activation("gelu"),
        layers.Softmax(),
    ]
    row = [layer for step in steps for layer in (layers.Dense(6), step)]
    return keras.Sequential([series(), *row, layers.Dense(2)])


@whole("EinsumDense over features, into heads and back, between LSTMs")
def einsum():
    x = layers.EinsumDense("abc,cd->abd", output_shape=(None, 6), bias_axes="d", activation="relu")(
        inputs := series()
    )
    x = layers.LSTM(6, return_sequences=True)(x)
    x = layers.EinsumDense("abc,cde->abde", output_shape=(None, 2, 4), bias_axes="de")(x)
    x = layers.Activation("tanh")(x)
    return keras.Model(inputs, layers.EinsumDense("abde,dec->abc", output_shape=(None, 5), bias_axes="c")(x))


@whole("noise and dropout of every kind, which do nothing when a model runs, around a GRU")
def noises():
    row = [
        layers.GaussianNoise(0.1),
        layers.GaussianDropout(0.2),
        layers.GRU(5, return_sequences=True, dropout=0.1),
        layers.AlphaDropout(0.1),
        layers.SpatialDropout1D(0.1),
        layers.ActivityRegularization(l2=0.01),
        layers.Identity(),
        layers.Dropout(0.1),
    ]
    return keras.Sequential([series(), *row, layers.Dense(2)])


@whole("normalisations: GroupNormalization, LayerNormalization, UnitNormalization, RMSNormalization, Batch")
def normalisations():
    x = layers.Conv1D(6, 3, padding="same")(inputs := series())
    x = layers.Activation("silu")(layers.GroupNormalization(groups=3)(x))
    x = layers.LayerNormalization(center=False)(layers.Dense(6)(x))
    x = layers.UnitNormalization(axis=-1)(layers.GRU(6, return_sequences=True)(x))
    x = layers.BatchNormalization(scale=False, center=False)(layers.Dense(6)(x))
    return keras.Model(inputs, layers.RMSNormalization()(x))


@whole("operators of keras.ops and of Python between layers: gates, exp, abs, clip, log1p, where")
def operators():
    x = layers.Dense(8)(inputs := series())
    left, right = ops.split(x, 2, axis=-1)
    x = left * ops.sigmoid(right) + ops.tanh(left) / (1.0 + ops.exp(-ops.abs(right)))
    x = ops.where(x > 0, ops.log1p(ops.relu(x)), 0.5 * ops.square(x))
    x = ops.clip(x - ops.mean(x, axis=-1, keepdims=True), -1.0, 1.0)
    y = layers.LSTM(4, return_sequences=True)(ops.concatenate([x, ops.sqrt(ops.softplus(x))], axis=-1))
    return keras.Model(inputs, ops.maximum(y, ops.stack([x, -x], axis=-1)[..., 0]) ** 2)


@whole("operators over time: differences of steps, cumulative sums, the last step, the largest")
def operators_over_time():
    inputs = series()
    changes = inputs[:, 1:] - inputs[:, :-1]
    x = layers.GRU(5, return_sequences=True)(ops.cumsum(changes, axis=1))
    ends = [x[:, -1], ops.max(x, axis=1), ops.mean(x, axis=1), x[:, 0, :]]
    return keras.Model(inputs, layers.Dense(3)(ops.concatenate(ends, axis=-1)))


@whole("AdaptiveAveragePooling1D to four steps, Flatten, Dense")
def adaptive_pooling():
    x = layers.Conv1D(5, 3, padding="same", activation="relu")(inputs := series())
    x = layers.Flatten()(layers.AdaptiveAveragePooling1D(4)(x))
    return keras.Model(inputs, layers.Dense(2)(x))


@whole("SpectralNormalization of Conv1D and Dense, LeakyReLU, GRU")
def spectral():
    x = layers.SpectralNormalization(layers.Conv1D(5, 3, padding="same"))(inputs := series())
    x = layers.SpectralNormalization(layers.Dense(6))(layers.LeakyReLU()(x))
    return keras.Model(inputs, layers.Dense(1)(layers.GRU(4)(x)))


@whole("squeeze and excitation: a mean over time that is kept, two Dense, Multiply with all steps")
def squeeze():
    x = layers.Conv1D(6, 3, padding="same", activation="relu")(inputs := series())
    weights = layers.Dense(3, activation="relu")(layers.GlobalAveragePooling1D(keepdims=True)(x))
    x = layers.Multiply()([x, layers.Dense(6, activation="sigmoid")(weights)])
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalMaxPooling1D()(x)))


@whole("an ensemble: Average, Maximum, Minimum of three recurrent layers")
def ensemble():
    inputs = series()
    three = [layer(5, return_sequences=True)(inputs) for layer in (layers.LSTM, layers.GRU, layers.SimpleRNN)]
    merged = [layers.Average()(three), layers.Maximum()(three), layers.Minimum()(three)]
    return keras.Model(inputs, layers.Dense(2, use_bias=False)(layers.Concatenate()(merged)))


@whole(
    "series with facts about them: facts give the state of a GRU, and repeat beside each step",
    statics=("shop",),
)
def facts():
    inputs, about = series(5), keras.Input((3,), name="facts")
    shop = keras.Input((1,), dtype="int32", name="shop")
    known = layers.Concatenate()([about, layers.Flatten()(layers.Embedding(11, 2)(shop))])
    h = layers.Dense(6, activation="tanh")(known)
    x = layers.GRU(6)(inputs, initial_state=h)
    x = layers.GRU(5, return_sequences=True)(layers.RepeatVector(4)(layers.Concatenate()([x, known])))
    return keras.Model([inputs, about, shop], layers.TimeDistributed(layers.Dense(1), name="days")(x))


@whole("features as a grid: Reshape, Permute within features, TimeDistributed Conv2D and Flatten, LSTM")
def grids():
    x = layers.Reshape((-1, 3, 4))(inputs := series(12))
    x = layers.Permute((1, 3, 2))(x)
    x = layers.TimeDistributed(layers.Conv1D(4, 2, activation="relu"))(x)
    x = layers.TimeDistributed(layers.Flatten())(x)
    return keras.Model(inputs, layers.LSTM(5, return_sequences=True)(x))


@whole("films: TimeDistributed Conv2D, MaxPooling2D and Flatten, LSTM, Dense")
def films():
    inputs = keras.Input((None, 6, 6, 1), name="film")
    x = layers.TimeDistributed(layers.Conv2D(3, 3, activation="relu"))(inputs)
    x = layers.TimeDistributed(layers.MaxPooling2D())(x)
    x = layers.LSTM(5)(layers.TimeDistributed(layers.Flatten())(x))
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(x))


@whole("ConvLSTM1D over rows of numbers, TimeDistributed Flatten, Dense")
def convolution_in_the_cell():
    inputs = keras.Input((None, 5, 2), name="rows")
    x = layers.ConvLSTM1D(3, 3, padding="same", return_sequences=True)(inputs)
    return keras.Model(inputs, layers.Dense(2)(layers.TimeDistributed(layers.Flatten())(x)))


@whole("LSTNet: Conv1D, GRU, and a linear model of the last four steps, as .h5", "h5")
def lst_net():
    x = layers.Conv1D(6, 3, activation="relu")(inputs := series(4, 12))
    x = layers.Dense(4)(layers.Dropout(0.2)(layers.GRU(5)(x)))
    line = layers.Cropping1D((8, 0))(inputs)
    line = layers.Reshape((4,))(layers.Dense(1)(layers.Permute((2, 1))(line)))
    return keras.Model(inputs, layers.Add()([x, line]))
