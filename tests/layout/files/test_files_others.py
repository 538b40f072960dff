"""`--rest copy`: dense layers and embeddings of which it is certain what they are compute the same in the
other framework, and of all others the report says that they are as they were.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import stepnet
from torch import nn

os.environ["KERAS_BACKEND"] = "torch"
import keras

from stepnet.layout.files import read
from stepnet.layout.files.others import CONVENTIONS, others

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
INPUTS, HIDDEN = 3, 4
Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


def account(*arguments: object) -> dict[str, Any]:
    code, stdout, stderr = stepnet("convert", *arguments, "--rest", "copy", "--json")
    assert (code, stderr) == (0, "")
    return json.loads(stdout)["account"]


def place(name: str, transposed: bool = False) -> dict[str, Any]:
    return {"name": name, "transposed": transposed}


class Model(nn.Module):
    """A head whose axes differ, and what cannot be told from something else by names and shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, INPUTS)
        self.rnn = nn.LSTM(INPUTS, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.square = nn.Linear(HIDDEN, HIDDEN)
        self.bare = nn.Linear(HIDDEN, 2, bias=False)
        self.head = nn.Linear(HIDDEN, 5)


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Model]:
    torch.manual_seed(2)
    made = Model()
    torch.save(made.state_dict(), tmp_path / "model.pt")
    return tmp_path / "model.pt", made


AS_THEY_ARE = [
    "table.weight",
    *(f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    *("square.weight", "square.bias", "bare.weight"),
]
X = np.random.default_rng(1).normal(size=(6, HIDDEN)).astype("float32")


@pytest.mark.parametrize(
    ("target", "ending", "weight", "sign"),
    [
        ("keras", ".npz", "kernel", "/"),
        ("flax", ".msgpack", "kernel", "/"),
        ("paddle", ".pdparams", "weight", "."),
        ("haiku", ".npz", "w", "/"),
        ("mxnet", ".safetensors", "weight", "."),
    ],
)
def test_a_dense_layer_is_as_the_other_framework_has_it(
    tmp_path: Path, model: tuple[Path, Model], target: str, ending: str, weight: str, sign: str
):
    source, made = model
    out = tmp_path / f"out{ending}"
    stated = account(source, "--to", target, "-o", out)
    bias = "b" if target == "haiku" else "bias"
    turned = target != "mxnet"
    expected = {"head.weight": place(f"head{sign}{weight}", turned), "head.bias": place(f"head{sign}{bias}")}
    assert (stated["moved"], stated["copied"]) == (expected, AS_THEY_ARE)
    assert (stated["not_converted_to"], stated["left"]) == (target, [])
    rest = read(out).rest
    matrix = rest[f"head{sign}{weight}"]
    found = X @ (matrix if turned else matrix.T) + rest[f"head{sign}{bias}"]
    np.testing.assert_allclose(found, made.head(torch.from_numpy(X)).detach().numpy(), rtol=1e-6)
    for name in AS_THEY_ARE:
        np.testing.assert_array_equal(rest[name], made.state_dict()[name].numpy())


def test_the_report_names_what_was_moved_and_what_was_not(tmp_path: Path, model: tuple[Path, Model]):
    source, _ = model
    _, text, _ = stepnet("convert", source, "--to", "keras", "-o", tmp_path / "out.npz", "--rest", "copy")
    lines = text.splitlines()
    assert "moved: head.weight -> head/kernel (transposed), head.bias -> head/bias" in lines
    copied = (
        f"copied as they are: {', '.join(AS_THEY_ARE[:8])} and 1 more; not converted to keras's convention"
    )
    assert copied in lines
    assert lines[-1].endswith("1 recurrent layer, and 11 other arrays")


def test_in_its_own_framework_all_is_copied_as_it_is(tmp_path: Path, model: tuple[Path, Model]):
    source, made = model
    stated = account(source, "--to", "torch", "-o", tmp_path / "out.pt")
    assert (stated["moved"], stated["not_converted_to"]) == ({}, "")
    back = torch.load(tmp_path / "out.pt", weights_only=True)
    again = Model()
    again.load_state_dict(back)
    assert torch.equal(again.head(torch.from_numpy(X)), made.head(torch.from_numpy(X)))
    _, text, _ = stepnet(
        "convert", source, "--to", "torch", "-o", tmp_path / "out.pt", "--rest", "copy", "--force"
    )
    assert "not converted" not in text


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_what_keras_says_of_its_layers_is_certain_whatever_their_shapes(tmp_path: Path, ending: str):
    layers = [
        keras.layers.Embedding(7, INPUTS, name="table"),
        keras.layers.LSTM(HIDDEN, name="rnn"),
        keras.layers.Dense(HIDDEN, name="square"),
        keras.layers.Dense(2, name="bare", use_bias=False),
        keras.layers.LayerNormalization(name="norm"),
    ]
    made = keras.Sequential([keras.Input((6,)), *layers])
    source, out = tmp_path / f"model{ending}", tmp_path / "out.pt"
    made.save(source)
    stated = account(source, "--to", "torch", "-o", out)
    assert sorted(stated["moved"].values(), key=lambda moved: moved["name"]) == [
        place("bare.weight", True),
        place("square.bias"),
        place("square.weight", True),
        place("table.weight"),
    ]
    assert (len(stated["copied"]), stated["not_converted_to"]) == (2, "torch")
    state = torch.load(out, weights_only=True)
    square, bare, table = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2, False), nn.Embedding(7, INPUTS)
    for name, layer in (("square", square), ("bare", bare), ("table", table)):
        layer.load_state_dict(
            {key.partition(".")[2]: value for key, value in state.items() if key.startswith(f"{name}.")}
        )
    right = numbers(layers[3](layers[2](X)))
    np.testing.assert_allclose(
        bare(square(torch.from_numpy(X))).detach().numpy(), right, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(table.weight.detach().numpy(), numbers(layers[0].embeddings))


def numbers(value: Any) -> Any:
    """The results of Keras."""
    return keras.ops.convert_to_numpy(value)


def named(name: str, *shape: int) -> Arrays:
    return {name: np.arange(np.prod(shape), dtype="float32").reshape(shape)}


UNCERTAIN: dict[str, Arrays] = {
    "the other way round, as Conv1D of transformers": named("a.weight", 3, 5) | named("a.bias", 5),
    "square": named("a.weight", 4, 4) | named("a.bias", 4),
    "no bias": named("a.weight", 5, 3),
    "a third array": named("a.weight", 5, 3) | named("a.bias", 5) | named("a.scale", 5),
    "no matrix": named("a.weight", 5, 3, 3) | named("a.bias", 5),
    "a bias for each": named("a.weight", 5, 3) | named("a.bias", 5, 3),
    "no layer": named("weight", 5, 3) | named("bias", 5),
}


@pytest.mark.parametrize("kind", UNCERTAIN)
def test_what_is_not_certain_is_not_moved(kind: str):
    rest = UNCERTAIN[kind]
    done = others(rest, {}, "torch", "keras", "/")
    assert (done.arrays, done.moved, done.foreign) == (rest, {}, "keras")


def test_two_arrays_that_would_have_one_name_keep_their_own():
    rest = named("a.weight", 5, 3) | named("a.bias", 5) | named("a/kernel", 2)
    assert others(rest, {}, "torch", "keras", "/").arrays == rest


@pytest.mark.parametrize("source", CONVENTIONS)
@pytest.mark.parametrize("target", CONVENTIONS)
def test_there_and_back(source: str, target: str):
    here = CONVENTIONS[source]
    matrix = (5, 3) if here.outputs_first else (3, 5)
    rest = named(f"a{here.signs[-1]}{here.weight}", *matrix) | named(f"a{here.signs[-1]}{here.bias}", 5)
    done = others(rest, {}, source, target, CONVENTIONS[target].signs[-1])
    back = others(done.arrays, {}, target, source, here.signs[-1])
    assert back.arrays.keys() == rest.keys()
    assert all(np.array_equal(back.arrays[name], array) for name, array in rest.items())


def test_the_page_names_every_key_of_the_json(tmp_path: Path, model: tuple[Path, Model]):
    source, _ = model
    out = tmp_path / "out.npz"
    _, text, _ = stepnet(
        "convert", source, "--to", "keras", "-o", out, "--rest", "copy", "--verify", "--json"
    )
    said = json.loads(text)
    page = (Path(__file__).parents[3] / "docs" / "interchange.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    keys = {key for row in rows for key in re.findall("`([^`]+)`", row.split("|")[1])}
    (report,) = said["modules"].values()
    assert said.keys() <= keys | {"account"}
    assert {f"account.{key}" for key in said["account"]} <= keys
    assert {key if f"modules.*.{key}" not in keys else f"modules.*.{key}" for key in report} <= keys
