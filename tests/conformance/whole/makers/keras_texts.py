"""Models of words as users of Keras write them: classifiers, taggers, translators and pairs of texts."""

import keras
from keras import layers, ops
from keras_table import WORDS, whole


def words(name: str = "words"):
    return keras.Input((None,), dtype="int32", name=name)


def embedded(size: int = 6, masked: bool = True):
    return layers.Embedding(WORDS, size, mask_zero=masked)


@whole("two bidirectional LSTMs over words, as in Keras' example of film reviews")
def reviews():
    x = embedded(6, masked=False)(inputs := words())
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(4))(x)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


@whole("Embedding with a mask, LSTM, Dense: Sequential", masked=True)
def sentiment():
    return keras.Sequential(
        [words(), embedded(), layers.LSTM(6), layers.Dropout(0.3), layers.Dense(3, activation="softmax")]
    )


@whole("convolutions of three widths over words, maxima over time", lengths=(12, 7, 6))
def text_cnn():
    x = embedded(6, masked=False)(inputs := words())
    pools = [
        layers.GlobalMaxPooling1D()(layers.Conv1D(4, width, activation="relu", name=f"conv_{width}")(x))
        for width in (3, 4, 5)
    ]
    x = layers.Dropout(0.5)(layers.Concatenate()(pools))
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(x))


@whole("the mean of embeddings that are not masked, Dense", masked=True)
def bag_of_words():
    return keras.Sequential(
        [words(), embedded(), layers.GlobalAveragePooling1D(), layers.Dense(4, activation="softmax")]
    )


@whole("SpatialDropout1D, bidirectional GRU, maximum and mean over time side by side")
def toxic_comments():
    x = layers.SpatialDropout1D(0.2)(embedded(6, masked=False)(inputs := words()))
    x = layers.Bidirectional(layers.GRU(5, return_sequences=True))(x)
    x = layers.concatenate([layers.GlobalAveragePooling1D()(x), layers.GlobalMaxPooling1D()(x)])
    return keras.Model(inputs, layers.Dense(6, activation="sigmoid")(x))


@whole("a tagger of entities: Embedding with a mask, bidirectional LSTM, TimeDistributed Dense", masked=True)
def entities():
    x = layers.SpatialDropout1D(0.1)(embedded()(inputs := words()))
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True, recurrent_dropout=0.1))(x)
    return keras.Model(inputs, layers.TimeDistributed(layers.Dense(5, activation="softmax"), name="tags")(x))


@whole("words and their letters: TimeDistributed LSTM over the letters of each word, bidirectional LSTM")
def letters_of_words():
    word, letters = words(), keras.Input((None, 4), dtype="int32", name="letters")
    read = layers.TimeDistributed(embedded(3, masked=False))(letters)
    read = layers.TimeDistributed(layers.LSTM(4))(read)
    x = layers.Concatenate()([embedded(5, masked=False)(word), read])
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(x)
    return keras.Model([word, letters], layers.Dense(4, activation="softmax")(x))


@whole("words and their letters: TimeDistributed Conv1D and maximum over the letters of each word, GRU")
def letter_convolutions():
    word, letters = words(), keras.Input((None, 4), dtype="int32", name="letters")
    read = layers.TimeDistributed(embedded(3, masked=False))(letters)
    read = layers.TimeDistributed(layers.Conv1D(4, 3, padding="same", activation="tanh"))(read)
    read = layers.TimeDistributed(layers.GlobalMaxPooling1D())(read)
    x = layers.GRU(5, return_sequences=True)(layers.concatenate([embedded(5, masked=False)(word), read]))
    return keras.Model([word, letters], layers.Dense(4)(x))


@whole("two texts, one shared encoder, the cosine of their last outputs", others={"second": (5, 9, 6)})
def siamese_cosine():
    shared = [embedded(6, masked=False), layers.LSTM(5)]
    first, second = words("first"), words("second")
    ends = [shared[1](shared[0](one)) for one in (first, second)]
    return keras.Model([first, second], layers.Dot(axes=1, normalize=True, name="cosine")(ends))


@whole("two questions, one shared encoder in a model of its own, Subtract and Multiply, Dense")
def same_question():
    encoder = keras.Sequential([words("either"), embedded(6, masked=False), layers.GRU(5)], name="encoder")
    first, second = words("first"), words("second")
    ends = [encoder(first), encoder(second)]
    x = layers.Concatenate()([layers.Subtract()(ends), layers.Multiply()(ends), *ends])
    x = layers.Dense(4, activation="relu")(x)
    return keras.Model([first, second], layers.Dense(1, activation="sigmoid", name="same")(x))


@whole("an encoder gives its states to a decoder: letters, teacher forcing", others={"target": (5, 9, 6)})
def translator():
    source = keras.Input((None, 5), name="source")
    target = keras.Input((None, 6), name="target")
    _, h, c = layers.LSTM(7, return_state=True)(source)
    y, _, _ = layers.LSTM(7, return_sequences=True, return_state=True)(target, initial_state=[h, c])
    return keras.Model([source, target], layers.Dense(6, activation="softmax")(y))


@whole("the encoder of a translator: its last states are the outputs", masked=True)
def translator_encoder():
    inputs = words()
    _, h, c = layers.LSTM(7, return_state=True)(embedded()(inputs))
    return keras.Model(inputs, [h, c])


@whole("the decoder of a translator: words and states in, scores and states out")
def translator_decoder():
    inputs, h, c = words(), keras.Input((7,), name="h"), keras.Input((7,), name="c")
    decoder = layers.LSTM(7, return_sequences=True, return_state=True)
    y, last_h, last_c = decoder(embedded(6, masked=False)(inputs), initial_state=[h, c])
    return keras.Model([inputs, h, c], [layers.Dense(WORDS, activation="softmax")(y), last_h, last_c])


@whole("addition of numbers by letters: LSTM, RepeatVector, LSTM, Dense")
def addition():
    return keras.Sequential(
        [
            keras.Input((7, 12), name="digits"),
            layers.LSTM(8),
            layers.RepeatVector(4),
            layers.LSTM(8, return_sequences=True),
            layers.Dense(12, activation="softmax"),
        ]
    )


@whole("a decoder attends to all outputs of its encoder: Attention", others={"target": (5, 9, 6)})
def translator_with_attention():
    source, target = words("source"), words("target")
    memory, h = layers.GRU(6, return_sequences=True, return_state=True)(embedded(5, masked=False)(source))
    y = layers.GRU(6, return_sequences=True)(embedded(5, masked=False)(target), initial_state=h)
    x = layers.Concatenate()([y, layers.Attention()([y, memory])])
    return keras.Model([source, target], layers.Dense(WORDS, activation="softmax")(x))


@whole("AdditiveAttention of a bidirectional GRU over itself, mean over time")
def additive_attention():
    x = layers.Bidirectional(layers.GRU(4, return_sequences=True))(
        embedded(5, masked=False)(inputs := words())
    )
    x = layers.GlobalAveragePooling1D()(layers.AdditiveAttention()([x, x]))
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(x))


@whole("a Transformer's block over words: MultiHeadAttention, LayerNormalization, mean over time")
def transformer_of_texts():
    x = embedded(8, masked=False)(inputs := words())
    attended = layers.Dropout(0.1)(layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, attended]))
    y = layers.Dense(8)(layers.Dense(12, activation="relu")(x))
    x = layers.LayerNormalization(epsilon=1e-6)(x + y)
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


@whole("a small GPT: MultiHeadAttention with a causal mask, Dense")
def causal_transformer():
    x = embedded(8, masked=False)(inputs := words())
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(12, activation="gelu")(x)))
    return keras.Model(inputs, layers.Dense(WORDS)(x))


@whole("attention pooling: scores by Dense, Softmax over time, Dot over time")
def attention_pooling():
    x = layers.Bidirectional(layers.GRU(4, return_sequences=True))(
        embedded(5, masked=False)(inputs := words())
    )
    scores = layers.Dense(1)(layers.Dense(6, activation="tanh")(x))
    weights = layers.Softmax(axis=1, name="weights")(scores)
    x = layers.Flatten()(layers.Dot(axes=(1, 1))([weights, x]))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


@whole("attention pooling as of old: Dense tanh, Flatten, softmax, RepeatVector, Permute, Multiply, sum")
def attention_by_hand():
    x = layers.LSTM(6, return_sequences=True)(inputs := keras.Input((9, 4), name="frames"))
    scores = layers.Activation("softmax")(layers.Flatten()(layers.Dense(1, activation="tanh")(x)))
    scores = layers.Permute([2, 1])(layers.RepeatVector(6)(scores))
    x = ops.sum(layers.Multiply()([x, scores]), axis=1)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


@whole("a recommender of sessions: Embedding with a mask, GRU, scores of all words", masked=True)
def recommender():
    x = layers.GRU(8, reset_after=False)(embedded()(inputs := words()))
    return keras.Model(inputs, layers.Dense(WORDS, activation="softmax", name="next")(x))


@whole("captions: features of a picture and words so far, Add, Dense", masked=True)
def captions():
    picture, caption = keras.Input((8,), name="picture"), words("caption")
    seen = layers.Dense(6, activation="relu")(layers.Dropout(0.5)(picture))
    said = layers.LSTM(6)(layers.Dropout(0.5)(embedded()(caption)))
    x = layers.Dense(6, activation="relu")(layers.add([seen, said]))
    return keras.Model([picture, caption], layers.Dense(WORDS, activation="softmax")(x))


@whole("documents of sentences: bidirectional GRU over words in TimeDistributed, GRU over sentences")
def documents():
    inputs = keras.Input((None, 4), dtype="int32", name="sentences")
    sentence = keras.Input((4,), dtype="int32", name="sentence")
    encoder = keras.Model(sentence, layers.Bidirectional(layers.GRU(3))(embedded(4, masked=False)(sentence)))
    x = layers.GRU(5)(layers.TimeDistributed(encoder)(inputs))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


@whole("a language model of letters: Embedding, two GRUs, logits, as .h5", "h5")
def letters():
    x = embedded(5, masked=False)(inputs := words("letters"))
    x = layers.GRU(7, return_sequences=True)(layers.GRU(7, return_sequences=True)(x))
    return keras.Model(inputs, layers.Dense(WORDS)(x))


@whole("a masked tagger whose directions are added, as .h5", "h5", masked=True)
def tags():
    x = layers.Bidirectional(layers.GRU(5, return_sequences=True), merge_mode="sum")(
        embedded()(words_ := words())
    )
    return keras.Model(words_, layers.TimeDistributed(layers.Dense(4, activation="softmax"))(x))


@whole(
    "an encoder's states, Add of two bidirectional states, decoder, as .h5",
    "h5",
    others={"target": (5, 9, 6)},
)
def both_encoder():
    source, target = words("source"), words("target")
    both = layers.Bidirectional(layers.LSTM(5, return_state=True))
    _, h, c, back_h, back_c = both(embedded(4, masked=False)(source))
    states = [layers.Add()([h, back_h]), layers.Concatenate()([c, back_c])]
    states[1] = layers.Dense(5, activation="tanh")(states[1])
    y = layers.LSTM(5, return_sequences=True)(embedded(4, masked=False)(target), initial_state=states)
    return keras.Model([source, target], layers.Dense(WORDS, activation="softmax")(y))
