"""`TimeDistributed` of every layer of Keras, with each axis, equation and kind of function, gives what Keras
gives, or raises where that does.
"""

from collections.abc import Callable, Iterator
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib import NumpyVersion
from tolerance import assert_close

import stepnet.keras
from tests.keras.keras_cases import keras

Make = Callable[[], Any]
Shape = tuple[int, ...]
layers: Any = keras.layers
ops: Any = keras.ops
BATCH, TIME, UNITS = 2, 3, 6
SHAPES: list[Shape] = [(4,), (6, 6), (6, 6, 6), (6, 6, 6, 3)]
"""Of a row. Some sizes are that of all steps, so that wrong axes do fit."""

SIX = {"filters": UNITS, "kernel_size": 2}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "Activation": [{"activation": "tanh"}],
    "AveragePooling1D AveragePooling2D AveragePooling3D": [{"pool_size": 2}],
    "Dense": [{"units": 4}],
    "EinsumDense": [{"equation": "ab,bc->ac", "output_shape": 4}],
    "ActivityRegularization": [{"l1": 0.1}],
    "AlphaDropout": [{"rate": 0.5, "seed": 1}],
    "CategoryEncoding": [{"num_tokens": 9, "output_mode": mode} for mode in ("multi_hot", "count")],
    "CenterCrop": [{"height": 2, "width": 2}],
    "Dropout": [{"rate": 0.5, "seed": 1}, {"rate": 0.5, "noise_shape": (1, None), "seed": 1}],
    "Embedding": [{"input_dim": 9, "output_dim": 4}, {"input_dim": 9, "output_dim": 4, "mask_zero": True}],
    "GaussianDropout": [{"rate": 0.5, "seed": 1}],
    "GaussianNoise": [{"stddev": 0.5, "seed": 1}],
    "GroupNormalization": [{"groups": 1, "axis": axis} for axis in range(-4, 4)],
    "Masking": [{}, {"mask_value": np.arange(6.0)}],
    "Permute": [{"dims": (1,)}, {"dims": (2, 1)}],
    "PReLU": [{}, {"shared_axes": [1]}],
    "RepeatVector": [{"n": 3}],
    "Rescaling": [
        {"scale": 2.0, "offset": 1.0},
        {"scale": np.arange(6.0)},
        {"scale": np.arange(2.0)[:, None]},
        {"scale": 1.0, "offset": np.arange(12.0).reshape(2, 6, 1)},
        {"scale": np.arange(2.0)[:, None, None, None]},
    ],
    "Reshape": [{"target_shape": ()}, {"target_shape": (-1, 2)}],
    "Resizing": [{"height": 3, "width": 3}],
    "ReversibleEmbedding": [{"input_dim": 9, "output_dim": 4}],
    "Conv1D Conv2D Conv3D": [SIX, {**SIX, "data_format": "channels_first"}],
    "Conv1DTranspose Conv2DTranspose Conv3DTranspose SeparableConv1D SeparableConv2D": [SIX],
    "DepthwiseConv1D DepthwiseConv2D": [{"kernel_size": 2}],
    "SpatialDropout1D SpatialDropout2D SpatialDropout3D": [{"rate": 0.5, "seed": 1}],
    "SimpleRNN LSTM GRU": [{"units": UNITS}, {"units": UNITS, "return_state": True}],
    "AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D": [{"output_size": 2}],
    "AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D": [{"output_size": 2}],
}
"""The options of layers."""

AXES = ("Softmax", "LayerNormalization", "RMSNormalization", "UnitNormalization", "BatchNormalization")
AXES_OPTIONS: list[Any] = [*range(-4, 4), None, *(list(pair) for pair in combinations((0, 1, 2, -1, -2), 2))]
INTEGERS = ("Embedding", "CategoryEncoding", "ReversibleEmbedding")
"""Layers of whole numbers."""

NOT_ALONE: dict[str, str] = {
    "takes several inputs": "Add AdditiveAttention Attention Average Concatenate Dot GroupedQueryAttention "
    "Maximum Minimum MultiHeadAttention Multiply Subtract",
    "is a cell, with states": "GRUCell LSTMCell SimpleRNNCell StackedRNNCells",
    "takes what it is made of": "Bidirectional FlaxLayer JaxLayer Lambda Layer Pipeline RNN "
    "SpectralNormalization TFSMLayer TimeDistributed TorchModuleWrapper Wrapper",
    "is an input": "InputLayer",
    "warns that its input is not contiguous": "Discretization",
    "takes words, or needs TensorFlow": "HashedCrossing Hashing IntegerLookup StringLookup TextVectorization",
    "takes images with labels or boxes": "CutMix MaxNumBoundingBoxes MixUp",
    "works on five axes, or waves": "ConvLSTM1D ConvLSTM2D ConvLSTM3D MelSpectrogram STFTSpectrogram",
    "changes images, with random numbers": "AugMix AutoContrast ContrastLimitedAdaptiveHistogramEqualization "
    "Equalization RandAugment RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast "
    "RandomCrop RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue "
    "RandomInvert RandomPerspective RandomPosterization RandomRotation RandomSaturation RandomSharpness "
    "RandomShear RandomTranslation RandomZoom Solarization",
    "is adapted to data": "Normalization",
}
"""Layers that are not run here, and why; none of them is in the table of those that work row by row."""


def names() -> list[str]:
    """The layers of Keras, each by one of its names."""
    kinds = {value for value in vars(layers).values() if isinstance(value, type)}
    return sorted(kind.__name__ for kind in kinds if issubclass(kind, layers.Layer))


def left_out() -> set[str]:
    return {name for text in NOT_ALONE.values() for name in text.split()}


def made_with(name: str) -> list[dict[str, Any]]:
    """The options that a layer is made with."""
    if name in AXES:
        return [{"axis": axis} for axis in AXES_OPTIONS]
    return next((options for text, options in OPTIONS.items() if name in text.split()), [{}])


def tried(make: Make, shape: Shape, whole: bool, training: bool) -> Any:
    """The results of a layer's steps, as arrays, or an error."""
    random = np.random.default_rng(5)
    drawn = (
        random.integers(0, 9, (BATCH, TIME, *shape))
        if whole
        else random.normal(size=(BATCH, TIME, *shape)) + 0.5
    )
    keras.utils.set_random_seed(3)
    try:
        layer = layers.TimeDistributed(make())
        y = layer(torch.tensor(drawn, dtype=torch.int64 if whole else torch.float32), training=training)
    except (ArithmeticError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        return error
    return y.detach().numpy()


def compared(make: Make, shape: Shape, whole: bool = False) -> int:
    """Asserts that a layer gives the same with stepnet; in how many ways it gave anything."""
    gave = 0
    for training in (False, True):
        theirs = tried(make, shape, whole, training)
        with stepnet.keras.accelerate():
            ours = tried(make, shape, whole, training)
        if isinstance(theirs, Exception):
            assert isinstance(ours, Exception), f"{theirs!r} is {ours.shape}"
            continue
        if isinstance(ours, Exception):
            raise ours
        assert_close(ours, theirs, 2, 2 * 6**3)
        gave += 1
    return gave


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", [name for name in names() if name not in left_out()])
def test_every_layer(name: str):
    if name == "Resizing" and NumpyVersion(keras.__version__) < "3.9.0":
        pytest.importorskip("torchvision", reason="torchvision, with which Keras 3.8 resizes")
    kind, whole = getattr(layers, name), name in INTEGERS
    makes = [lambda one=one: kind(**one) for one in made_with(name)]
    assert sum(compared(make, shape, whole) for make in makes for shape in SHAPES)


def test_layers_that_are_left_out_are_known():
    """A new layer of Keras is to be tried."""
    from stepnet.keras.rows import KINDS

    there = {getattr(layers, name) for name in left_out() if hasattr(layers, name)}
    assert not there.intersection(KINDS[False])


# ---- functions


def sums_of_rows(x: Any) -> Any:
    return x / (1 + ops.sum(ops.abs(x), axis=0, keepdims=True))


def of_all_rows(x: Any) -> Any:
    return ops.softmax(x, axis=0)


FUNCTIONS: dict[str, Any] = {
    **{name: name for name in ("tanh", "softmax", "log_softmax", "sparsemax", "glu", "relu", "hard_sigmoid")},
    "sums of rows": sums_of_rows,
    "softmax of rows": of_all_rows,
    "a lambda": lambda x: x - ops.max(x, axis=0, keepdims=True),
    "a layer of rows": layers.Softmax(axis=0),
    "a layer of features": layers.LeakyReLU(),
}
HOLDERS: dict[str, tuple[Callable[[Any], Any], Shape]] = {
    "Activation": (lambda f: layers.Activation(f), (6,)),
    "Dense": (lambda f: layers.Dense(4, activation=f), (6,)),
    "Conv1D": (lambda f: layers.Conv1D(4, 2, activation=f), (6, 4)),
    "SeparableConv1D": (lambda f: layers.SeparableConv1D(4, 2, activation=f), (6, 4)),
    "EinsumDense": (lambda f: layers.EinsumDense("ab,bc->ac", 4, activation=f), (6,)),
    "EinsumDense of one axis": (lambda f: layers.EinsumDense("ab,b->a", (), activation=f), (6,)),
    "within several": (
        lambda f: keras.Sequential([layers.Dense(4), layers.Activation(f), layers.Dense(2)]),
        (6,),
    ),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("holder", HOLDERS)
def test_functions_of_layers(holder: str):
    make, shape = HOLDERS[holder]
    assert sum(compared(lambda f=f: make(f), shape) for f in FUNCTIONS.values())


RECURRENT: dict[str, Callable[[Any], Any]] = {
    "GRU": lambda f: layers.GRU(3, activation=f),
    "gates of a GRU": lambda f: layers.GRU(3, recurrent_activation=f),
    "LSTM": lambda f: layers.LSTM(3, activation=f),
    "SimpleRNN": lambda f: layers.SimpleRNN(3, activation=f),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", ["softmax", "softmax of rows", "a layer of rows"])
@pytest.mark.parametrize("holder", RECURRENT)
def test_functions_of_recurrent_layers(holder: str, name: str):
    assert compared(lambda: RECURRENT[holder](FUNCTIONS[name]), (2, 4))


# ---- equations


KERNELS = {"ab": "b bc bcd ac ab cd", "abc": "c cd bd bcd"}
ELLIPSES = """
    ...x,xy->...y ...ab,bc->...ac ...ab,bc->...cb ...ab,bc->...ca
    a...,ab->b... ab...,bc->ac... ab...,bc->ca...
"""


def equations(inputs: str, kernel: str) -> Iterator[str]:
    """Products of rows `a` and features with a kernel, in every order of what is kept."""
    letters = sorted({*inputs, *kernel})
    for count in range(1, len(letters) + 1):
        yield from (f"{inputs},{kernel}->{''.join(output)}" for output in permutations(letters, count))


def sizes_of(equation: str) -> Shape:
    """The sizes of an output, whose first axis is left out."""
    output = equation.partition("->")[2].replace("...", ".")
    return tuple(6 for _ in output[1:])


@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    ("inputs", "kernel"), [(inputs, kernel) for inputs, text in KERNELS.items() for kernel in text.split()]
)
def test_equations(inputs: str, kernel: str):
    shape = (6,) * (len(inputs) - 1)
    for one in equations(inputs, kernel):
        compared(lambda one=one: layers.EinsumDense(one, sizes_of(one)), shape)


@pytest.mark.parametrize("equation", ELLIPSES.split())
def test_equations_with_an_ellipsis(equation: str):
    for rank in (1, 2):
        compared(lambda: layers.EinsumDense(equation, sizes_of(equation)), (6,) * rank)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("axes", [None, "c", "a", "ac"])
@pytest.mark.parametrize("equation", ["ab,bc->ac", "ab,bc->cb", "ab,bc->ca"])
def test_equations_with_biases(equation: str, axes: str | None):
    compared(lambda: layers.EinsumDense(equation, 6, bias_axes=axes), (6,))


# ---- several layers

SEVERAL: dict[str, tuple[Make, Shape]] = {
    "a mask for a softmax": (
        lambda: keras.Sequential([layers.Masking(), layers.Softmax()]),
        (6, 6),
    ),
    "a mask within, for a softmax": (
        lambda: keras.Sequential([keras.Sequential([layers.Masking()]), layers.Softmax()]),
        (2, 2),
    ),
    "a mask for a recurrence": (lambda: keras.Sequential([layers.Masking(), layers.GRU(3)]), (6, 4)),
    "an axis that is taken away": (
        lambda: keras.Sequential([layers.Reshape(()), layers.Softmax()]),
        (1,),
    ),
    "rows within": (lambda: keras.Sequential([layers.Dense(3), layers.Softmax(axis=0)]), (4,)),
    "a lambda": (lambda: layers.Lambda(lambda x: x - ops.mean(x, axis=0)), (4,)),
    "a stateful layer": (lambda: layers.GRU(3, stateful=True), (4, 3)),
    "a whole of Keras'": (lambda: Recurrent(), (4, 3)),
}


class Recurrent(layers.RNN):
    """A layer with the name of one of Keras', and a cell of its own."""

    def __init__(self) -> None:
        super().__init__(Mixing(3))


class Mixing(layers.SimpleRNNCell):
    """A cell that looks along the rows."""

    def call(self, sequence: Any, states: Any, training: bool = False) -> Any:
        output, states = super().call(sequence, states, training)
        return output - ops.mean(output, axis=0, keepdims=True), states


Recurrent.__name__ = "GRU"


@pytest.mark.parametrize("case", SEVERAL)
def test_several_layers(case: str):
    compared(*SEVERAL[case])
