"""Keras models that are read whole: each class of the table as Keras computes it, wiring, and refusals."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

import numpy as np
import pytest
from tolerance import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers, ops

import stepnet as sn
from stepnet.errors import FileError, LayoutError, ModelError

FEATURES, HIDDEN, TIME = 3, 4, 6
EVERY: Any = {"return_sequences": True}
X = np.random.default_rng(0).normal(size=(2, TIME, FEATURES)).astype("float32")
TOKENS = np.random.default_rng(0).integers(0, 7, (2, TIME))
pytestmark = pytest.mark.filterwarnings("ignore")  # .h5 is called legacy
registered = keras.saving.register_keras_serializable("whole")


def entrance(*sizes: int, **options: Any) -> Any:
    return keras.Input((None, *(sizes or (FEATURES,))), **options)


def row(*made: Any) -> Any:
    return keras.Sequential([entrance(), *made])


def over_gru(made: Callable[[Any], Any]) -> Any:
    """A model of a function of a GRU's outputs."""
    x = entrance()
    return keras.Model(x, made(layers.GRU(HIDDEN, **EVERY)(x)))


def asked(layer: Callable[[Any], Any]) -> Any:
    """A model of an attention layer, whose query is a recurrent layer's final state and has no steps."""
    x = entrance()
    y, state = layers.GRU(HIDDEN, **EVERY, return_state=True)(x)
    return keras.Model(x, layer([layers.Reshape((1, HIDDEN))(state), y]))


def saved(made: Any, path: Path) -> Path:
    """A file of a model with random weights; what a variance or a count is called is positive."""
    rng = np.random.default_rng(1)
    for variable in made.variables:
        if "seed" not in variable.path:
            array = rng.normal(0, 0.5, variable.shape)
            variable.assign(np.abs(array) + 0.5 if "var" in variable.path.split("/")[-1] else array)
    made.save(path)
    return path


def check(made: Any, path: Path, x: Any = X, statics: Any = None, inputs: Any = None) -> sn.Graph:
    """Asserts that stepnet computes from a file what the model computes, and returns the graph."""
    graph: Any = sn.load(saved(made, path))
    assert isinstance(graph, sn.Graph)
    found, right = graph(x, statics=statics), made.predict(x if inputs is None else inputs, verbose=0)
    if not isinstance(found, dict):
        found, right = {"": found}, [right]
    for actual, array in zip(found.values(), right, strict=True):
        assert_close(actual, array, TIME, 2 * FEATURES + 2 * HIDDEN)
    return graph


UNARY: dict[str, Callable[[Any], Any]] = {
    "Ceil": lambda y: ops.ceil(3 * y),
    "Cos": ops.cos,
    "Expm1": ops.expm1,
    "Floor": lambda y: ops.floor(3 * y),
    "Gelu": ops.gelu,
    "Log1p": ops.log1p,
    "LogSoftmax": ops.log_softmax,
    "Rsqrt": lambda y: ops.rsqrt(ops.exp(y)),
    "Selu": ops.selu,
    "Sign": ops.sign,
    "Silu": ops.silu,
    "Sin": ops.sin,
    "Softplus": ops.softplus,
}
"""Operations of one operand, which one model has all of."""
ROWS: dict[str, Callable[[], Any]] = {
    "ops.Add": lambda: over_gru(lambda y: y + 0.5),
    "ops.Concatenate": lambda: over_gru(lambda y: ops.concatenate([y, ops.exp(y)], -1)),
    "ops.Maximum": lambda: over_gru(lambda y: ops.maximum(y, 0.1)),
    "ops.Minimum": lambda: over_gru(lambda y: ops.minimum(y, 0.1)),
    "ops.Multiply": lambda: over_gru(lambda y: y * 2.5),
    "ops.Softmax": lambda: over_gru(lambda y: ops.softmax(y, 1)),
    "ops.Subtract": lambda: over_gru(lambda y: 1 - y),
    "ops.Absolute": lambda: over_gru(ops.absolute),
    "Activation": lambda: over_gru(layers.Activation("softplus")),
    "ActivityRegularization": lambda: row(
        layers.GRU(4, **EVERY), layers.ActivityRegularization(), layers.ReLU()
    ),
    "Add": lambda: over_gru(lambda y: layers.Add()([y, y])),
    "AlphaDropout": lambda: row(layers.AlphaDropout(0.3), layers.GRU(4, **EVERY), layers.ReLU()),
    "Average": lambda: over_gru(lambda y: layers.Average()([y, layers.ReLU()(y), y])),
    "BatchNormalization": lambda: row(layers.BatchNormalization(), layers.GRU(4, **EVERY)),
    "AveragePooling1D": lambda: row(
        layers.GRU(4, **EVERY), layers.AveragePooling1D(3, strides=2), layers.LSTM(4, **EVERY)
    ),
    "Concatenate": lambda: over_gru(lambda y: layers.Concatenate()([y, layers.ReLU()(y)])),
    "Conv1D": lambda: row(layers.Conv1D(4, 3, padding="same", dilation_rate=2), layers.GRU(4, **EVERY)),
    "Conv1DTranspose": lambda: row(
        layers.Conv1DTranspose(4, 3, strides=2, padding="same", activation="relu"), layers.GRU(4, **EVERY)
    ),
    "DepthwiseConv1D": lambda: row(
        layers.DepthwiseConv1D(3, strides=2, depth_multiplier=2, padding="same"), layers.GRU(4, **EVERY)
    ),
    "MaxPooling1D": lambda: row(layers.Conv1D(4, 2, strides=2), layers.MaxPooling1D(2), layers.GRU(4)),
    "SeparableConv1D": lambda: row(
        layers.ZeroPadding1D(2), layers.SeparableConv1D(4, 3, activation="tanh"), layers.GRU(4, **EVERY)
    ),
    "Dense": lambda: row(layers.LSTM(4), layers.Dense(3, activation="hard_sigmoid")),
    "ops.Divide": lambda: over_gru(lambda y: ops.divide(y, ops.exp(y))),
    "Dropout": lambda: row(layers.Dropout(0.3), layers.GRU(4, **EVERY), layers.ReLU()),
    "ELU": lambda: row(layers.GRU(4, **EVERY), layers.ELU(0.7)),
    "ops.Exp": lambda: over_gru(ops.exp),
    "Flatten": lambda: row(layers.GRU(4), layers.Reshape((2, 2)), layers.Flatten(), layers.Dense(2)),
    "GaussianDropout": lambda: row(layers.GaussianDropout(0.3), layers.GRU(4, **EVERY), layers.ReLU()),
    "GaussianNoise": lambda: row(layers.GaussianNoise(0.3), layers.GRU(4, **EVERY), layers.ReLU()),
    "ops.GetItem": lambda: over_gru(lambda y: y[:, 0, 1:3]),
    "GlobalAveragePooling1D": lambda: row(layers.GRU(4, **EVERY), layers.GlobalAveragePooling1D()),
    "GlobalMaxPooling1D": lambda: row(layers.GRU(4, **EVERY), layers.GlobalMaxPooling1D(keepdims=True)),
    "Identity": lambda: row(layers.Identity(), layers.GRU(4, **EVERY), layers.ReLU()),
    "LayerNormalization": lambda: row(layers.GRU(4, **EVERY), layers.LayerNormalization(center=False)),
    "LeakyReLU": lambda: row(layers.GRU(4, **EVERY), layers.LeakyReLU(0.4)),
    "ops.Log": lambda: over_gru(lambda y: ops.log(ops.exp(y))),
    "ops.Max": lambda: over_gru(lambda y: ops.max(y, axis=1)),
    "Maximum": lambda: over_gru(lambda y: layers.Maximum()([y, layers.Softmax()(y)])),
    "ops.Mean": lambda: over_gru(lambda y: ops.mean(y, axis=[1, 2], keepdims=True)),
    "ops.Min": lambda: over_gru(lambda y: ops.min(y, axis=-1)),
    "Minimum": lambda: over_gru(lambda y: layers.Minimum()([y, layers.Softmax()(y)])),
    "Multiply": lambda: over_gru(lambda y: layers.Multiply()([y, y, y])),
    "ops.Negative": lambda: over_gru(ops.negative),
    "Normalization": lambda: row(layers.Normalization(), layers.GRU(4, **EVERY)),
    "PReLU": lambda: row(layers.GRU(4, **EVERY), layers.PReLU(shared_axes=[1])),
    "Permute": lambda: row(
        layers.GRU(4), layers.Reshape((2, 2, 1)), layers.Permute((2, 1, 3)), layers.Flatten()
    ),
    "ReLU": lambda: row(layers.GRU(4, **EVERY), layers.ReLU(max_value=0.3, negative_slope=0.1)),
    "ops.Relu": lambda: over_gru(ops.relu),
    "Rescaling": lambda: row(layers.Rescaling([0.5, 2.0, 1.0], offset=0.1), layers.GRU(4, **EVERY)),
    "Reshape": lambda: row(layers.GRU(4, **EVERY), layers.Reshape((-1, 2, 2)), layers.Softmax()),
    "ops.Sigmoid": lambda: over_gru(ops.sigmoid),
    "Softmax": lambda: row(layers.GRU(4, **EVERY), layers.Softmax(axis=1)),
    "SpatialDropout1D": lambda: row(layers.SpatialDropout1D(0.3), layers.GRU(4, **EVERY), layers.ReLU()),
    "ops.Sqrt": lambda: over_gru(lambda y: ops.sqrt(ops.exp(y))),
    "ops.Square": lambda: over_gru(ops.square),
    "Subtract": lambda: over_gru(lambda y: layers.Subtract()([layers.ReLU()(y), y])),
    "ops.Sum": lambda: over_gru(lambda y: ops.sum(y, axis=1)),
    "ops.Tanh": lambda: over_gru(ops.tanh),
    "ops.TrueDivide": lambda: over_gru(lambda y: y / 3.0),
    "AdditiveAttention": lambda: asked(layers.AdditiveAttention()),
    "Attention": lambda: asked(layers.Attention(use_scale=True, score_mode="concat")),
    "Cropping1D": lambda: row(layers.Cropping1D(cast(Any, (1, 2))), layers.GRU(4, **EVERY)),
    "Dot": lambda: over_gru(lambda y: layers.Dot(1, normalize=True)([layers.Softmax(1)(y), y[:, 0:] * 2.0])),
    "EinsumDense": lambda: row(
        layers.EinsumDense("abc,cde->abed", (None, 3, 2), bias_axes="d", activation="mish"),
        layers.TimeDistributed(layers.Flatten()),
        layers.GRU(4, **EVERY),
    ),
    "GroupNormalization": lambda: row(layers.GRU(4, **EVERY), layers.GroupNormalization(2)),
    "GroupQueryAttention": lambda: over_gru(lambda y: layers.GroupQueryAttention(3, 4, 2)(y, y)),
    "MultiHeadAttention": lambda: asked(lambda pair: layers.MultiHeadAttention(2, 3, value_dim=2)(*pair)),
    "RMSNormalization": lambda: row(layers.GRU(4, **EVERY), layers.RMSNormalization()),
    "RepeatVector": lambda: row(
        layers.GRU(4),
        layers.RepeatVector(3),
        layers.LSTM(4, **EVERY),
        layers.TimeDistributed(layers.Dense(2)),
    ),
    "UnitNormalization": lambda: row(layers.GRU(4, **EVERY), layers.UnitNormalization()),
    "UpSampling1D": lambda: row(layers.UpSampling1D(2), layers.GRU(4, **EVERY)),
    " ".join(f"ops.{name}" for name in UNARY): lambda: over_gru(
        lambda y: [function(y) for function in UNARY.values()]
    ),
    "ops.Clip": lambda: over_gru(lambda y: ops.clip(y, -0.1, 0.2)),
    "ops.Elu": lambda: over_gru(lambda y: ops.elu(y, 0.4)),
    "ops.Flip": lambda: over_gru(lambda y: layers.GRU(4, **EVERY, go_backwards=True)(ops.flip(y, axis=1))),
    "ops.LeakyRelu": lambda: over_gru(lambda y: ops.leaky_relu(y, 0.3)),
    "ops.Pad": lambda: over_gru(
        lambda y: [
            ops.pad(y, [[0, 0], [2, 1], [0, 0]], mode="reflect"),
            ops.pad(y, [[0, 0], [1, 3], [1, 2]], mode="reflect"),
            ops.pad(y, [[0, 0], [0, 0], [1, 1]], mode="symmetric"),  # 2 are replicated on PyTorch
            ops.pad(y, [[0, 0], [0, 0], [1, 2]], constant_values=0.5),
        ]
    ),
    "ops.Reshape": lambda: over_gru(lambda y: ops.reshape(y[:, 0], (-1, 2, 2))),
    "ops.Squeeze": lambda: over_gru(lambda y: ops.squeeze(y[:, :, :1], -1)),
    "ops.Transpose": lambda: over_gru(lambda y: cast(Any, ops.transpose(y, (0, 2, 1)))[:, :, 0]),
    "ZeroPadding1D": lambda: row(
        layers.ZeroPadding1D(cast(Any, (2, 0))),
        layers.Conv1D(4, 3, activation="relu"),
        layers.GRU(4, **EVERY),
    ),
}
"""A model with each class, or several, of the table, but those over tokens and of masks."""
ENDINGS = (".keras", ".h5")
CASES = [
    pytest.param(name, ending, marks=pytest.mark.long(every=2, of="operations" if "." in name else name))
    for number, name in enumerate(ROWS)
    for ending in (
        ENDINGS[:: (1, -1)[number % 2]]
        if "." not in name or name in ("ops.Add", "ops.GetItem")
        else ENDINGS[:1]
    )
]
"""The models and the endings of their files. Few operations are in both: those of .h5 have no module. Of
what is in both, `make test` has one in turns, and of the operations every second one.
"""


@pytest.mark.parametrize(("name", "ending"), CASES)
def test_a_class_computes_what_keras_computes(tmp_path: Path, name: str, ending: str):
    check(ROWS[name](), tmp_path / f"model{ending}")


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_tokens_are_rows_of_a_table(tmp_path: Path, dtype: str):
    made = [keras.Input((None,), dtype=dtype), layers.Embedding(7, 5), layers.LSTM(4), layers.Dense(2)]
    check(keras.Sequential(made), tmp_path / "m.keras", TOKENS.astype(dtype))


ACTIVATIONS = (
    *("celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh"),
    *(
        "leaky_relu",
        "linear",
        "log_sigmoid",
        "log_softmax",
        "mish",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "silu",
    ),
    *(
        "soft_shrink",
        "softmax",
        "softplus",
        "softsign",
        "sparse_plus",
        "sparse_sigmoid",
        "squareplus",
        "tanh",
    ),
    *("sparsemax", "tanh_shrink", layers.ReLU(max_value=0.2), layers.ReLU(1.0, 0.1, 0.2)),
)


def test_activations_compute_what_keras_computes(tmp_path: Path):
    made = over_gru(lambda y: [layers.Dense(4, activation=name)(y) for name in ACTIVATIONS])
    check(made, tmp_path / "m.keras")


def test_sequences_of_other_lengths_are_computed_alone(tmp_path: Path):
    made = row(layers.Bidirectional(layers.LSTM(4, **EVERY)), layers.Dense(2, activation="softmax"))
    graph: Any = check(made, tmp_path / "m.keras")
    whole = graph(X)
    for index, array in enumerate(graph(sn.Ragged.from_list([X[0], X[1, :2]])).to_list()):
        assert_close(array, made.predict(X[index : index + 1, : len(array)], verbose=0)[0], TIME, 8)
    assert_close(graph(X[:1]), whole[:1])


def with_states(x: Any) -> Any:
    """A bidirectional layer whose final states begin another one, and are outputs themselves."""
    y, *states = layers.Bidirectional(layers.LSTM(HIDDEN, **EVERY, return_state=True))(x)
    above = layers.Bidirectional(layers.LSTM(HIDDEN, **EVERY))(y, initial_state=states)
    return [layers.Dense(2)(above), states[0], states[3]]


def called_twice(x: Any) -> Any:
    """An inner model and a layer, each called twice."""
    inside = entrance(HIDDEN)
    inner = keras.Model(inside, layers.Dense(HIDDEN)(layers.GRU(HIDDEN, **EVERY)(inside)), name="inner")
    dense = layers.Dense(HIDDEN)
    return inner(dense(inner(dense(layers.Dense(HIDDEN)(x)))))


def of_cells(x: Any) -> Any:
    cells = [layers.GRUCell(HIDDEN), layers.LSTMCell(HIDDEN)]
    return layers.Dense(2)(layers.RNN(cells, **EVERY)(x))


def last_from_the_end(x: Any) -> Any:
    return layers.Dense(2)(layers.GRU(HIDDEN, go_backwards=True)(x))


def steps_last_first(x: Any) -> Any:
    """Two layers from the end, of which the second turns the steps around again, and a mean in between."""
    y = layers.LSTM(HIDDEN, go_backwards=True, **EVERY)(x)
    mean = layers.GlobalAveragePooling1D()(layers.Dense(3)(y))
    return [layers.GRU(HIDDEN, go_backwards=True, **EVERY)(layers.LayerNormalization()(y)), mean]


def outputs_last_first(x: Any) -> Any:
    """Outputs last step first: as they are, added to steps in order, and read in their order."""
    y = layers.GRU(HIDDEN, go_backwards=True, **EVERY)(x)
    both = layers.Add()([layers.LSTM(HIDDEN, **EVERY)(x), y])
    return [layers.Dense(2)(y), both, layers.Conv1D(4, 3)(y), layers.GRU(3)(both)]


def apart(x: Any) -> Any:
    """Both directions, which are not merged, with their final states."""
    return layers.Bidirectional(layers.LSTM(HIDDEN, **EVERY, return_state=True), merge_mode=cast(Any, None))(
        x
    )


def two_kinds(x: Any) -> Any:
    """Directions of two classes, of stacked cells, and of two sizes."""
    y = layers.Bidirectional(
        layers.LSTM(HIDDEN, **EVERY),
        backward_layer=layers.GRU(HIDDEN, **EVERY, go_backwards=True),
        merge_mode="mul",
    )(x)
    y = layers.Bidirectional(layers.RNN([layers.GRUCell(3), layers.LSTMCell(2)], **EVERY))(y)
    return layers.Bidirectional(layers.GRU(2), backward_layer=layers.GRU(3, go_backwards=True))(y)


def each_step(x: Any) -> Any:
    """Layers and a model that run at each step."""
    inner = keras.Sequential([keras.Input((HIDDEN,)), layers.Dense(6, "relu"), layers.Reshape((2, 3))])
    y = layers.TimeDistributed(inner)(layers.GRU(HIDDEN, **EVERY)(x))
    y = layers.TimeDistributed(layers.BatchNormalization())(layers.TimeDistributed(layers.Flatten())(y))
    return layers.TimeDistributed(layers.Softmax())(layers.TimeDistributed(layers.PReLU())(y))


def states_of_cells(x: Any) -> Any:
    """The states of stacked cells, which begin another layer of such cells."""
    cells = lambda: [layers.GRUCell(HIDDEN), layers.LSTMCell(3)]  # noqa: E731
    _, h, (other, c) = layers.RNN(cells(), return_state=True)(x)
    return layers.RNN(cells(), **EVERY)(x, initial_state=[h, [c, other]])


WIRED: dict[str, Callable[[Any], Any]] = {
    function.__name__: function
    for function in (
        *(with_states, called_twice, of_cells, last_from_the_end, steps_last_first, outputs_last_first),
        *(apart, two_kinds, each_step, states_of_cells),
    )
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("ending", [".keras", ".h5"])
@pytest.mark.parametrize("name", WIRED)
def test_a_model_is_run_however_it_is_wired(tmp_path: Path, name: str, ending: str):
    x = entrance()
    check(keras.Model(x, WIRED[name](x)), tmp_path / f"m{ending}")


def test_a_state_that_is_kept_is_the_memory_of_a_stream(tmp_path: Path):
    kept = layers.GRU(4, stateful=True, **EVERY, name="g")
    made: Any = keras.Sequential([keras.Input(batch_shape=(2, None, 3)), kept, layers.Dense(2)])
    graph = check(made, tmp_path / "m.keras")
    kept.reset_state()
    parts = [made.predict(part, verbose=0) for part in (X[:, :2], X[:, 2:])]
    stream = graph.stream(rows=2)
    found = np.stack([stream.step(X[:, step]) for step in range(TIME)], axis=1)
    assert_close(found, np.concatenate(parts, axis=1), TIME, 2 * FEATURES + 2 * HIDDEN)


def test_an_input_without_steps_is_a_static(tmp_path: Path):
    x, state = entrance(name="x"), keras.Input((2,), name="state")
    y = layers.GRU(HIDDEN)(x, initial_state=layers.Dense(HIDDEN, activation="tanh")(state))
    numbers = np.random.default_rng(2).normal(size=(2, 2)).astype("float32")
    made = keras.Model([x, state], layers.Dense(2)(y))
    check(made, tmp_path / "m.keras", X, {"state": numbers}, inputs=[X, numbers])


def test_outputs_have_the_names_of_their_layers(tmp_path: Path):
    x = entrance()
    y = layers.GRU(HIDDEN, **EVERY)(x)
    graph = check(keras.Model(x, [layers.Dense(1, name=name)(y) for name in "ab"]), tmp_path / "m.keras")
    assert list(graph(X)) == ["a", "b"]


# ---- refusals ----------------------------------------------------------------------------------------------


@registered
class Scaled(layers.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs * 2


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "more results at the end": (
        lambda: row(layers.Conv1DTranspose(4, 2, strides=2, output_padding=1), layers.GRU(4)),
        "its output_padding is",
    ),
    "another axis": (
        lambda: row(
            layers.GRU(4), layers.Reshape((2, 2)), layers.LayerNormalization(axis=1), layers.Flatten()
        ),
        "it normalises over other axes than the last",
    ),
    "attention weights": (
        lambda: over_gru(lambda y: layers.Attention(name="a")([y, y], return_attention_scores=True)[0]),
        "it is called with return_attention_scores, which is not supported\n  at a (Attention)",
    ),
    "a causal mask for a query without steps": (
        lambda: asked(lambda pair: layers.Attention(name="a")(pair, use_causal_mask=True)),
        "it is called with use_causal_mask, and its query or its value has no steps\n  at a (Attention)",
    ),
    "a sliding window": (
        lambda: over_gru(lambda y: layers.GroupQueryAttention(3, 2, 1, sliding_window=2, name="g")(y, y)),
        "its sliding_window is 2: only None is supported\n  at g (GroupQueryAttention)",
    ),
    "an equation that sums": (
        lambda: row(layers.GRU(4, **EVERY), layers.EinsumDense("abc,cd->ad", 5, name="e")),
        "its equation 'abc,cd->ad' is no product with a matrix\n  at e (EinsumDense)",
    ),
    "a step in the middle": (
        lambda: over_gru(lambda y: y[:, 2]),
        "only the first or the last can be selected",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_is_not_supported_is_refused_with_its_layer(tmp_path: Path, name: str):
    made, words = REFUSED[name]
    with pytest.raises(ModelError) as raised:
        sn.load(saved(made(), tmp_path / "m.keras"))
    assert words in str(raised.value)
    assert "axes=" not in str(raised.value)


def test_an_operation_is_no_layer_of_the_same_name(tmp_path: Path):
    path = saved(over_gru(lambda y: ops.average(y, axis=1)), tmp_path / "m.keras")
    with pytest.raises(LayoutError, match=r"it has average\w* \(Average\)"):
        sn.load(path)


def test_a_model_with_another_class_is_refused_as_before(tmp_path: Path):
    path = saved(row(Scaled(name="own"), layers.GRU(4), layers.Dense(2)), tmp_path / "m.keras")
    with pytest.raises(LayoutError, match=r"it has own \(\S+Scaled\), which stepnet does not run; say"):
        sn.load(path)


def test_a_layer_of_a_model_in_a_model_is_named_alone(tmp_path: Path):
    twice = layers.Lambda(lambda x: 2 * x, name="twice")
    inner = keras.Sequential([layers.Dense(3), twice], name="inner")
    path = saved(row(layers.GRU(4, **EVERY), inner, layers.Dense(2)), tmp_path / "m.keras")
    with pytest.raises(LayoutError, match=r"m.keras: it has inner/twice \(Lambda\), which stepnet does not"):
        sn.load(path)


def test_models_in_models_are_not_run_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inner: Any = layers.ReLU()
    for _ in range(4):
        x, own = entrance(HIDDEN), inner
        inner = keras.Model(x, own(own(x)))
    path = saved(over_gru(inner), tmp_path / "m.keras")
    sn.load(path)
    monkeypatch.setattr("stepnet.layout.files.keras.whole.MOST_RUNS", 10)
    with pytest.raises(ModelError, match="layers are called more than 10 times in the model"):
        sn.load(path)


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a .keras file in which the configuration of the model is changed."""
    with ZipFile(path) as source:
        members = {name: source.read(name) for name in source.namelist()}
    config = json.loads(members["config.json"])
    change({layer["name"]: layer for layer in config["config"]["layers"]} | {"": config["config"]})
    with ZipFile(target := path.with_name("edited.keras"), "w") as out:
        for name, data in (members | {"config.json": json.dumps(config).encode()}).items():
            out.writestr(name, data)
    return target


def fed_by(name: str, call: int = 0, output: int = 0) -> Callable[[dict[str, Any]], object]:
    """Makes the Dense read another tensor."""

    def change(nodes: dict[str, Any]) -> None:
        nodes["d"]["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = [name, call, output]

    return change


def setting(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda nodes: nodes["d"]["config"].update(values)


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a circle": (fed_by("d"), "'d' takes what is computed from it"),
    "a layer that is missing": (fed_by("z"), "call 0 of 'z' is missing"),
    "an output that is missing": (fed_by("g", output=3), "'g' has 1 outputs, and output 3 is read"),
    "another activation": (setting(activation={"class_name": "X"}), "its activation is .* should be a text"),
    "an activation of another name": (setting(activation="mine"), "its activation 'mine' is not supported"),
    "no bias": (setting(use_bias=False), "its arrays are kernel, bias, not kernel"),
    "no number": (setting(use_bias="yes"), "its use_bias is 'yes', and should be true or false"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_configuration_is_an_error_of_its_layer(tmp_path: Path, name: str):
    change, words = DAMAGED[name]
    x = entrance()
    made = keras.Model(x, layers.Dense(2, name="d")(layers.GRU(HIDDEN, **EVERY, name="g")(x)))
    path = edited(saved(made, tmp_path / "m.keras"), change)
    with pytest.raises((ModelError, FileError), match=words):
        sn.load(path)
