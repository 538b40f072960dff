"""Models as users of Keras write them: recurrent layers, and what stands around them."""

import keras
from keras import layers, ops
from keras_table import EVERY, frames, model, row, texts, words
from recording import CONTEXT, FEATURES, STEPS, WORDS

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
