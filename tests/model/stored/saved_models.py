"""Models of every kind that a file can hold, each with a call of it.

`python -m tests.model.stored.saved_models` writes golden files of new models and of a new version of the
format, with tests/support on the path.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors import safe_open
from zoo import normal, rnn_of, sequences, simple

import stepnet as sn
from stepnet.compiler.values import leaves

X = sequences([5, 2, 0, 3], 3)


class Point(NamedTuple):
    """A memory of two parts, as a user's class."""

    h: Any
    c: Any


class Case(NamedTuple):
    """A model and the arguments of a call."""

    model: sn.Model
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = MappingProxyType({})

    def call(self, model: Any) -> Any:
        """Calls a model with these arguments."""
        return model(*self.arguments, **self.options)


def gru() -> Case:
    return Case(rnn_of("gru", 3, 4), (X,))


def unrolled_in_float64() -> Case:
    params = {"W": normal(3, 4, dtype="float64"), "R": normal(4, 4, dtype="float64")}
    return Case(
        sn.RNN(simple, params, memory=4, reverse=True, unroll=2), (sequences([4, 3], 3, dtype="float64"),)
    )


def bfloat16() -> Case:
    return Case(
        rnn_of("gru", 3, 4, dtype=ml_dtypes.bfloat16), (sequences([5, 2], 3, dtype=ml_dtypes.bfloat16),)
    )


def float16_inputs() -> Case:
    """Inputs of a storage dtype alone, so that the parameters give the outputs theirs."""
    return Case(rnn_of("gru", 3, 4), (sequences([5, 2], 3, dtype="float16"),))


def structures() -> Case:
    """A memory of a named tuple, inputs and statics of dicts, the index of the step, constants, an int32."""
    scale, bias = normal(4, seed=1), np.float32(0.25)

    def step(x: Any, memory: Any, params: Any, statics: Any, index: Any) -> Any:
        gate = sn.sigmoid(x["left"] @ params["gates"][0] + statics["speaker"] + bias)
        h = (
            gate * memory.h
            + (1 - gate) * scale * params["table"][x["word"]] * np.cos(index.astype(np.float32))[:, None]
        )
        c = np.where(h > 0, memory.c * params["gates"][1], h[:, ::-1] ** 1.5)
        count = memory.h[:, :1].astype(np.int32)
        return {"h": h, "parts": [c[:, 1:3], count]}, Point(h, np.where(np.isnan(c), 0, c))

    rnn = sn.RNN(
        step,
        {"gates": (normal(2, 4, seed=2), normal(4, seed=3)), "table": normal(7, 4)},
        memory=Point(4, sn.Spec(4, "float32")),
    )
    x = {"word": sn.Ragged.from_list([np.array([1, 6, 0]), np.array([2])]), "left": sequences([3, 1], 2)}
    return Case(rnn, (x,), {"statics": {"speaker": normal(2, 4)}, "begun": 3})


def attention() -> Case:
    """A static that is a sequence: keys that each step attends to."""

    def step(query: Any, h: Any, params: Any, statics: Any) -> Any:
        weights = sn.softmax_over_steps(np.sum(statics * sn.expand(query @ params, statics), axis=-1))
        h = np.tanh(h + sn.reduce(statics * weights[:, None], "sum"))
        return h, h

    return Case(sn.RNN(step, normal(3, 2), memory=2), (X,), {"statics": sequences([3, 1, 2, 4], 2, seed=1)})


def inner_sequences() -> Case:
    """A recurrence in a step, over inner sequences, in another dtype of products."""
    frames = rnn_of("gru", 3, 4)

    def step(words: Any, h: Any, params: Any) -> Any:
        _, said = frames(words, initial="zeros")
        h = np.tanh(said @ params["W"] + h @ params["R"])
        return h, h

    speakers = sn.Ragged.from_list([[normal(2, 3), normal(4, 3, seed=1)], [normal(1, 3, seed=2)]])
    return Case(sn.RNN(step, {"W": normal(4, 5), "R": normal(5, 5)}, memory=5), (speakers,))


def early_ends() -> Case:
    """A condition that ends sequences, which has constants of its own."""
    limit = np.float32(0.4)

    def until(output: Any, memory: Any) -> Any:
        return np.max(np.abs(output["h"]), axis=-1) > limit

    def step(x: Any, h: Any, params: Any) -> Any:
        h, _ = simple(x, h, params)
        return {"h": h}, h

    rnn = sn.RNN(step, {"W": normal(3, 4), "R": normal(4, 4)}, memory=4, until=until)
    return Case(rnn, (sequences([9, 7], 3),))


def masked() -> Case:
    x = normal(2, 4, 3)
    mask = np.array([[True, False, True, True], [False, True, True, False]])
    return Case(rnn_of("lstm", 3, 4), (x,), {"mask": mask, "masked": "zero", "lengths": [4, 3]})


def stack() -> Case:
    both = sn.Bidirectional(rnn_of("gru", 4, 2), rnn_of("gru", 4, 2, seed=1, reverse=True), merge="sum")
    return Case(sn.Stack([rnn_of("lstm", 3, 4), both, sn.Stack([rnn_of("gru", 2, 3)])]), (X,))


def two_directions() -> Case:
    shared = rnn_of("gru", 3, 4)
    return Case(
        sn.Bidirectional(shared, rnn_of("gru", 3, 4, reverse=True), merge=None), (X,), {"last_only": True}
    )


def one_layer_twice() -> Case:
    """A recurrence at two places, for inputs of two dtypes."""
    total = sn.RNN(lambda x, h, p: (h + x.astype(np.float64), h + x), memory=sn.Spec(2, "float64"))
    return Case(sn.Stack([total, total]), (sequences([3, 2], 2),))


def graph() -> Case:
    """A graph with an embedding, two layers, attention over the steps, statics and captured arrays."""
    layers = sn.Stack([rnn_of("gru", 8, 6), rnn_of("lstm", 6, 6)])
    bias = normal(40, seed=5)

    def model(words: Any, params: Any, statics: Any) -> Any:
        h, _ = layers(params["table"][words])
        scores = np.sum(h * sn.expand(statics, h), axis=-1)
        weights = sn.softmax_over_steps(scores)
        pooled = sn.reduce(h * weights[:, None], "sum")
        return {"each": h, "class": sn.softmax(pooled @ params["W"] + bias)}

    params = {"table": normal(20, 8), "W": normal(6, 40)}
    words = sn.Ragged.from_list([np.array([3, 14, 15]), np.array([9, 2])])
    return Case(sn.Graph(model, params), (words,), {"statics": normal(2, 6)})


def convolution() -> Case:
    """A graph with a causal convolution between two layers."""
    below, above = rnn_of("gru", 3, 4), rnn_of("gru", 6, 4, seed=1)
    model = sn.Graph(lambda x, params: above(sn.conv1d(below(x)[0], params, dilation=2))[0], normal(6, 4, 3))
    return Case(model, (X,))


def strides() -> Case:
    """A graph with fewer steps, by a stride and pooling, a recurrence over them, and more steps again."""
    layer = rnn_of("gru", 4, 4)

    def model(x: Any, params: Any) -> Any:
        fewer = sn.max_pool1d(sn.conv1d(x, params["down"], stride=2, padding="same"), 2, stride=1)
        h, _ = layer(fewer)
        return {
            "fewer": h,
            "more": sn.conv_transpose1d(h, params["up"], stride=3),
            "mean": sn.reduce(h, "mean"),
        }

    params = {"down": normal(4, 3, 3), "up": normal(4, 2, 3)}
    return Case(sn.Graph(model, params), (sequences([9, 4], 3),))


def self_attention() -> Case:
    """A graph with attention of the steps of a sequence to one another."""
    layer = rnn_of("gru", 3, 4)

    def model(x: Any, params: Any) -> Any:
        h, _ = layer(x)
        q, k, v = (h @ params[name] for name in "qkv")
        return sn.attention(q, k, v, heads=2, causal=True) + sn.attention(q, k, v)

    return Case(sn.Graph(model, {name: normal(4, 6, seed=seed) for seed, name in enumerate("qkv")}), (X,))


def half_graph() -> Case:
    """A graph of bfloat16, whose outputs are rounded."""
    layer = rnn_of("gru", 3, 4, dtype=ml_dtypes.bfloat16)
    weights = normal(4, 2, dtype=ml_dtypes.bfloat16)
    model = sn.Graph(lambda x, params: layer(x)[0] @ params, weights)
    return Case(model, (sequences([5, 2], 3, dtype=ml_dtypes.bfloat16),))


def quantized(dtype: str) -> Case:
    return Case(sn.quantize(rnn_of("gru", 8, 16), [normal(4, 6, 8)], dtype), (normal(3, 5, 8, seed=1),))


def int8() -> Case:
    return quantized("int8")


def products_in_bfloat16() -> Case:
    return quantized("bfloat16")


def matrices_in_float16() -> Case:
    return quantized("float16")


def graph_in_float16() -> Case:
    """A graph with a table and captured matrices of numbers of float16."""
    layers = sn.Stack([rnn_of("gru", 8, 16), rnn_of("lstm", 16, 8)])
    params = {"table": normal(20, 8), "D": normal(8, 3)}
    model = sn.Graph(lambda words, p: layers(p["table"][words])[0] @ p["D"], params)
    words = sn.Ragged.from_list([np.array([3, 14, 15]), np.array([9, 2])])
    return Case(sn.quantize(model, [words], "float16"), (words,))


def quantized_stack() -> Case:
    layers = sn.Stack([rnn_of("gru", 8, 16), rnn_of("lstm", 16, 8)])
    return Case(sn.quantize(layers, [normal(4, 6, 8)]), (normal(3, 5, 8, seed=1),))


def quantized_graph() -> Case:
    layers = sn.Stack([rnn_of("gru", 8, 16), rnn_of("gru", 16, 8)])
    model = sn.Graph(lambda x, params: sn.reduce(layers(x)[0], "mean") @ params, normal(8, 2))
    return Case(sn.quantize(model, [normal(4, 6, 8)], "int8", engine=["llvm"]), (normal(3, 5, 8, seed=1),))


def integers() -> Case:
    """A model in integers alone, with its calibration: with a window."""
    lstm = rnn_of("lstm", 8, 6)

    def model(x: Any, params: Any) -> Any:
        y = lstm(np.tanh(sn.conv1d(x, params["w"], padding="causal")))[0]
        return {"y": y, "scores": sn.softmax(y @ params["D"])}

    graph = sn.Graph(model, {"w": normal(8, 8, 2), "D": normal(6, 3)})
    made = sn.quantize(graph, [normal(4, 6, 8)], "int8", activations="int8")
    return Case(made, (normal(3, 5, 8, seed=1),))


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        gru,
        unrolled_in_float64,
        bfloat16,
        float16_inputs,
        structures,
        attention,
        inner_sequences,
        early_ends,
        masked,
        stack,
        two_directions,
        one_layer_twice,
        graph,
        convolution,
        strides,
        self_attention,
        half_graph,
        int8,
        products_in_bfloat16,
        quantized_stack,
        quantized_graph,
        integers,
        matrices_in_float16,
        graph_in_float16,
    )
}

GOLDEN = Path(__file__).parent / "golden"
"""Files of models as versions of the format were first written, and the results of their calls."""


def write_golden() -> None:
    """Writes the files of the latest version that are not there yet; those that are there never change."""
    for name, case in CASES.items():
        made = case()
        results = made.call(made.model)
        made.model.save(GOLDEN / "new.stepnet", force=True)
        folder = GOLDEN / f"version_{version_of(GOLDEN / 'new.stepnet')}"
        folder.mkdir(exist_ok=True)
        if not (folder / f"{name}.stepnet").exists():
            (GOLDEN / "new.stepnet").rename(folder / f"{name}.stepnet")
            np.savez(folder / f"{name}.npz", *map(values_of, leaves(results)))
    (GOLDEN / "new.stepnet").unlink(missing_ok=True)


def version_of(path: Path) -> int:
    """The version of the format of a file."""
    with safe_open(path, "numpy") as file:  # type: ignore[reportCallIssue]
        return json.loads(file.metadata()["stepnet"])["version"]


def values_of(leaf: Any) -> Any:
    """The values of a result, in a dtype that .npz files have."""
    array = leaf.values if isinstance(leaf, sn.Ragged) else leaf
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


if __name__ == "__main__":
    write_golden()
