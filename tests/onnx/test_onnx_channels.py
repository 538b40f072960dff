"""Operators over channels and sorts of the sequences, against onnxruntime."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import ModelError
from tests.onnx.onnx_models import (
    assert_as_theirs,
    helper,
    model_of,
    node,
    numpy_helper,
    random,
    stepnet_onnx,
    theirs,
    value,
)

Array = np.ndarray
X = value("x", "N", 4, "T")
WORDS = {"scale": random(4), "shift": random(4)}
Y3, Y4 = value("y", "N", None, None), value("y", "N", None, None, None)
INT64 = 7


def at_opset(opset: int, made: Any, arrays: dict[str, Array]) -> Any:
    """A model of one node, in a version of the operators."""
    initial = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([made], "made", [X], [Y3], initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


OPERATORS: dict[str, tuple[Any, dict[str, Array], int]] = {
    "scales of channels": (node("GroupNormalization", "x scale shift", num_groups=2, epsilon=0.1), WORDS, 21),
    "a group for each channel": (node("InstanceNormalization", "x scale shift"), WORDS, 17),
    "a mean of all steps": (node("GlobalAveragePool", "x"), {}, 17),
    "a maximum of all steps": (node("GlobalMaxPool", "x"), {}, 17),
    "an einsum over features": (node("Einsum", "x w", equation="nct,dc->ntd"), {"w": random(5, 4)}, 17),
    "an einsum over steps": (node("Einsum", "x x", equation="...ct,...dt->...cd"), {}, 17),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_over_channels_computes_what_onnxruntime_computes(name: str):
    made, arrays, opset = OPERATORS[name]
    assert_as_theirs(at_opset(opset, made, arrays), {"x": random(2, 4, 7)})


def test_scales_of_groups_are_repeated_for_their_channels():
    """onnxruntime has the operator since opset 21 alone, so that the numbers are repeated for it."""
    arrays = {"scale": random(2), "shift": random(2)}
    made = node("GroupNormalization", "x scale shift", num_groups=2)
    older = at_opset(18, made, arrays)
    newer = at_opset(21, made, {name: np.repeat(array, 2) for name, array in arrays.items()})
    x = random(1, 4, 7)
    found = loaded(older)(sn.Ragged.from_list([x[0].T])).to_list()[0]
    assert_close(found, theirs(newer, {"x": x})[0][0].T, 10, 30)


def test_steps_of_the_piece_before_are_put_ahead_and_given_back():
    nodes = [
        node("Concat", "cache x", "all", axis=2),
        node("Conv", "all w", "y"),
        node("Slice", "all b e a", "last"),
    ]
    cache = value("cache", "N", 4, 3)
    arrays = {"w": random(5, 4, 3), "b": np.array([-3]), "e": np.array([2**63 - 1]), "a": np.array([2])}
    model = model_of(nodes, [X, cache], [Y3, value("last", "N", 4, 3)], arrays)
    for steps in (7, 1):
        assert_as_theirs(model, {"x": random(2, 4, steps), "cache": random(2, 4, 3)})


# ---- sorts -------------------------------------------------------------------------------------------------


def packed(undone: bool = True) -> Any:
    """A GRU over sequences that are sorted by their lengths, as torch.onnx.export writes packed sequences."""
    nodes = [
        node("Shape", "lengths", "count"),
        node("TopK", "lengths count", "sorted order", axis=0),
        node("Gather", "x order", "in_order", axis=1),
        node("Cast", "sorted", "lens", to=6),
        node("GRU", "in_order W R - lens", "h last", hidden_size=3),
        node("Squeeze", "last first", "state"),
        node("Squeeze", "count first", "n"),
        node("Range", "zero n one", "places"),
        node("ConstantOfShape", "count", "none", value=helper.make_tensor("v", INT64, [1], [0])),
        node("ScatterElements", "none order places", "inverse", axis=0),
        node("Gather", "state inverse" if undone else "state order", "y", axis=0),
    ]
    arrays = {"W": random(1, 9, 4), "R": random(1, 9, 3), "first": np.array([0])}
    arrays |= {"zero": np.array(0), "one": np.array(1)}
    inputs = [value("x", "T", "N", 4), value("lengths", "N", kind=INT64)]
    return model_of(nodes, inputs, [value("y", "N", 3)], arrays)


def test_a_sort_of_the_sequences_changes_nothing():
    model, lengths = packed(), np.array([2, 5, 3])
    x = random(5, 3, 4)
    graph = loaded(model)
    found = graph(sn.Ragged.from_list([x[:length, row] for row, length in enumerate(lengths)]))
    assert_close(found, theirs(model, {"x": x, "lengths": lengths})[0], 5, 20)


def loaded(model: Any) -> Any:
    """The graph of a model, from a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "made.onnx"
        path.write_bytes(model.SerializeToString())
        is_sorted = any(each.name == "lengths" for each in model.graph.input)
        return stepnet_onnx.load(path, axes={"x": "TN"} if is_sorted else None)


def changed(model: Any, place: int, **to: Any) -> Any:
    """A model in which one node is another."""
    model.graph.node[place].CopyFrom(node(**to))
    return model


REFUSED: dict[str, tuple[Any, str]] = {
    "a sort that is not undone": (
        lambda: changed(packed(), 10, op="Identity", inputs="state"),
        r"output 'y' has the sequences in the order of their lengths: \[sequences \(sorted\), 3\]",
    ),
    "a sort that is done twice": (
        lambda: packed(undone=False),
        r"an order of sequences is applied to axis 0 of \[sequences \(sorted\), 3\]",
    ),
    "the largest numbers of features": (
        lambda: model_of(
            [node("TopK", "x k", "z i", axis=1), node("Identity", "z")], [X], [Y3], {"k": np.array([2])}
        ),
        "a TopK of a model sorts the sequences by their lengths, or undoes that",
    ),
    "numbers at places": (
        lambda: model_of(
            [node("ScatterElements", "x i x", axis=1)], [X], [Y3], {"i": np.zeros((2, 4, 7), "int64")}
        ),
        "it writes numbers at places, which only an order of the sequences may be undone by",
    ),
    "places as numbers": (
        lambda: changed(packed(), 10, op="Cast", inputs="order", outputs="y", to=1),
        "it reads the places of the sequences in their batch, which a model does not know",
    ),
    "an axis that is named twice": (
        lambda: model_of([node("Einsum", "x x", equation="nct,nct->nctt")], [X], [Y4]),
        "its equation 'nct,nct->nctt' does not fit operands of 3, 3 axes, or names an axis twice",
    ),
    "an equation of one operand": (
        lambda: model_of([node("Einsum", "x x", equation="nct->nt")], [X], [Y3]),
        "its equation 'nct->nt' is not one of 2 operands",
    ),
    "features behind the steps": (
        lambda: model_of([node("Concat", "x s", "y", axis=2)], [X, value("s", "N", 4, 3)], [Y3]),
        r"it joins \[sequences, 4, steps\] and \[sequences, 4, 3\] along axis 2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused(name: str):
    make, words = REFUSED[name]
    with pytest.raises(ModelError, match=words):
        loaded(make())
