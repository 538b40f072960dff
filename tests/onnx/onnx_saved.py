"""Graphs saved as ONNX models, beside the interpreter in float64."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import CONST, STEPS, LevelSizes, interpret, widened
from stepnet.compiler.values import leaves
from stepnet.ragged import offsets_of

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed")
ort: Any = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
stepnet_onnx: Any = pytest.importorskip("stepnet.onnx")
Array = np.ndarray
LENGTHS = [5, 0, 3, 1]
RECURRENT = ("GRU", "LSTM", "RNN", "Scan")


def right(graph: sn.Graph, inputs: Sequence[Array], lengths: Sequence[int]) -> list[Array]:
    """The interpreter's results in float64, padded with zeros: [batch, time, ...]."""
    net, own = graph.net, iter(inputs)
    params = iter(graph.program.params)
    is_step = np.arange(max(lengths))[None] < np.array(lengths)[:, None]
    arrays = list[Array]()
    for number in net.inputs:
        extent = net.type_of(number).extent
        array = np.asarray(next(params if extent == CONST else own))
        array = array[:, : max(lengths)][is_step] if extent == STEPS else array
        arrays.append(array.astype("float64") if array.dtype.kind == "f" else array)
    offsets = offsets_of(np.array(lengths))
    made = interpret(widened(net), arrays, LevelSizes(len(lengths), (offsets,)))
    results = list[Array]()
    for number, value in zip(net.results, made, strict=True):
        extent = net.type_of(number).extent
        if len(extent) == len(STEPS):
            own_lengths = np.array(lengths) if extent == STEPS else made_lengths(graph, inputs[0], lengths)
            is_entry = np.arange(max(own_lengths))[None] < own_lengths[:, None]
            padded = np.zeros((*is_entry.shape, *value.shape[1:]), value.dtype)
            padded[is_entry] = value
            value = padded
        results.append(value)
    return results


def made_lengths(graph: sn.Graph, x: Array, lengths: Sequence[int]) -> Array:
    """The lengths of the first sequences with another number of steps that a graph gives."""
    made = graph(sn.Ragged.from_list([each[:length] for each, length in zip(x, lengths, strict=True)]))
    every = (leaf.lengths for leaf in leaves(made) if isinstance(leaf, sn.Ragged))
    return next(own for own in every if list(own) != list(lengths))


def saved(graph: sn.Graph, path: Path, **options: Any) -> Any:
    """The model that was written, after the whole check of onnx."""
    stepnet_onnx.save(graph, path, force=True, **options)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: Any, inputs: Sequence[Array], lengths: Sequence[int] | None = None) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    names = [value.name for value in model.graph.input if value.name != "lengths"]
    given = dict(zip(names, inputs, strict=True))
    return session.run(None, given if lengths is None else given | {"lengths": np.array(lengths, "int32")})


def loaded_again(graph: sn.Graph, inputs: Sequence[Array], path: Path, lengths: Sequence[int]) -> list[Array]:
    """The results of a saved model, loaded as a graph."""
    net = graph.net
    extents = [net.type_of(number).extent for number in net.inputs if net.type_of(number).extent != CONST]
    model = onnx.load(path)
    names = [value.name for value in model.graph.input if value.name != "lengths"]
    axes = {name: "NT" if extent == STEPS else "N" for name, extent in zip(names, extents, strict=True)}
    again = stepnet_onnx.load(path, axes=axes)
    sequences = {n: x for n, x in zip(names, inputs, strict=True) if axes[n] == "NT"}
    statics = {n: x for n, x in zip(names, inputs, strict=True) if axes[n] == "N"}
    x = sequences if len(sequences) > 1 else next(iter(sequences.values()))
    made = again(x, statics=statics or None, lengths=np.array(lengths), engine="interpret")
    return [made[value.name] for value in model.graph.output] if isinstance(made, dict) else [made]


def assert_saved(graph: sn.Graph, inputs: Sequence[Array], path: Path, width: int = 30) -> None:
    """Asserts that a graph and its models agree, in onnxruntime and loaded, with and without lengths."""
    for lengths in ([inputs[0].shape[1]] * len(LENGTHS), LENGTHS):
        stated = lengths if lengths is LENGTHS else None
        made = run(saved(graph, path, lengths=lengths is LENGTHS), inputs, stated)
        again = loaded_again(graph, inputs, path, lengths)
        for actual, loaded, wanted in zip(made, again, right(graph, inputs, lengths), strict=True):
            assert actual.dtype == loaded.dtype == (wanted.dtype if wanted.dtype.kind != "f" else np.float32)
            assert_close(actual, wanted, 5, width)
            assert_close(loaded, wanted, 5, width)


def operators(model: Any) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type in RECURRENT]
