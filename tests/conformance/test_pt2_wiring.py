"""Programs of torch.export are run as their graphs say, or refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from tolerance import assert_close
from torch_code import Code

import stepnet as sn
from stepnet.errors import FileError, LayoutError, ModelError
from stepnet.layout.files import LayoutChoice, convert_file, read
from stepnet.model.file import read_model

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings(
    "ignore:The tensor attributes", "ignore:LSTM with projections is not supported with oneDNN"
)  # of torch.export and of torch.nn
LENGTHS = (1, 2, 7, 20)
DYNAMIC = torch.export.Dim.DYNAMIC


def gru(inputs: int = 4, **options: Any) -> Any:
    return nn.GRU(inputs, 4, batch_first=True, **options)


def saved(path: Path, model: Any, *, dynamic: int | None = None, train: bool = False) -> Path:
    """A file of the exported model; dynamic: the axis of the batch, if its size is not fixed."""
    shapes = {"x": {dynamic: DYNAMIC}} if dynamic is not None else None
    program = torch.export.export(model.train(train), (torch.randn(2, 3, 4),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


def edited(path: Path, old: bytes, new: bytes) -> None:
    """Replaces text in the program of a file."""
    with ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(old, new) if name.endswith("/models/model.json") else data)


def first(value: Any) -> Any:
    """The first of several outputs."""
    return first(value[0]) if isinstance(value, tuple) else value


def check_same(path: Path, model: Any, batch_axis: int = 0, **options: Any) -> None:
    """Asserts that the file gives what PyTorch gives for each sequence alone, in one ragged batch."""
    layer = read_model(path, **options).model
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(length, 4)).astype("float32") for length in LENGTHS]
    outputs = layer(sn.Ragged.from_list(xs))[0]
    for x, found in zip(xs, outputs, strict=True):
        with torch.inference_mode():
            right = first(model(torch.tensor(x).unsqueeze(batch_axis))).squeeze(batch_axis).numpy()
        assert_close(found, right, len(x), 16)


A, B = gru(), gru()
RIGHT: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "one of two": (lambda s, x: s.a(x)[0], {"a": A, "b": B}),
    "a then b": (lambda s, x: s.b(s.a(x)[0])[0], {"a": A, "b": B}),
    "b then a": (lambda s, x: s.a(s.b(x)[0])[0], {"a": A, "b": B}),
    "three, not in order": (
        lambda s, x: s.b(s.a(s.c(x)[0])[0])[0],
        {"a": nn.LSTM(4, 6, 2, batch_first=True), "b": gru(6), "c": gru()},
    ),
    "an LSTM, then a GRU of two layers": (
        lambda s, x: s.b(s.a(x)[0])[0],
        {"a": nn.LSTM(4, 4, batch_first=True), "b": gru(num_layers=2)},
    ),
    "both directions, and a row on them": (
        lambda s, x: s.b(s.a(x)[0])[0],
        {"a": gru(bidirectional=True, num_layers=2), "b": gru(8)},
    ),
    "a projection": (lambda s, x: s.a(x)[0], {"a": nn.LSTM(4, 5, proj_size=2, batch_first=True)}),
    "a projection in both directions": (
        lambda s, x: s.a(x)[0],
        {"a": nn.LSTM(4, 5, 2, proj_size=2, batch_first=True, bidirectional=True, bias=False)},
    ),
    "no biases": (lambda s, x: s.b(s.a(x)[0])[0], {"a": gru(bias=False), "b": gru(bias=False)}),
    "relu": (lambda s, x: s.a(x)[0], {"a": nn.RNN(4, 4, nonlinearity="relu", batch_first=True)}),
    "tanh on relu": (
        lambda s, x: s.b(s.a(x)[0])[0],
        {
            "a": nn.RNN(4, 4, nonlinearity="relu", batch_first=True),
            "b": nn.RNN(4, 4, nonlinearity="tanh", batch_first=True),
        },
    ),
    "dropout between": (
        lambda s, x: s.b(s.d(s.a(x)[0]).contiguous())[0],
        {"a": A, "b": B, "d": nn.Dropout(0.5)},
    ),
    "a layer whose outputs are not used": (lambda s, x: (s.a(x)[0], s.b(s.a(x)[0]))[0], {"a": A, "b": B}),
    "an output of None": (lambda s, x: (s.a(x)[0], None), {"a": A}),
    "stated zeros": (lambda s, x: s.a(x, torch.zeros(1, x.shape[0], 4))[0], {"a": A}),
    "new_zeros": (lambda s, x: s.a(x, x.new_zeros(1, x.shape[0], 4))[0], {"a": A}),
    "full of zero": (lambda s, x: s.a(x, torch.full((1, x.shape[0], 4), 0.0))[0], {"a": A}),
    "expanded zeros": (lambda s, x: s.a(x, torch.zeros(1, 1, 4).expand(1, x.shape[0], 4))[0], {"a": A}),
    "moved zeros": (
        lambda s, x: s.a(x, torch.zeros(x.shape[0] * 4).view(x.shape[0], 1, 4).permute(1, 0, 2))[0],
        {"a": A},
    ),
}


@pytest.mark.long(every=5)
@pytest.mark.parametrize("dynamic", [None, 0])
@pytest.mark.parametrize("name", RIGHT)
def test_a_program_is_run_as_its_graph_says(tmp_path: Path, name: str, dynamic: int | None):
    code, modules = RIGHT[name]
    model = Code(code, **modules)
    path = saved(tmp_path / "m.pt2", model, dynamic=dynamic)
    check_same(path, model)
    check_same(path, model, choice=LayoutChoice(stack=True))
    check_same(path, model, choice=LayoutChoice(stack=True), recurrent_only=True)


@pytest.mark.parametrize("dynamic", [None, 1])
def test_layers_with_the_steps_first(tmp_path: Path, dynamic: int | None):
    model = Code(lambda s, x: s.b(s.a(x)[0])[0], a=nn.GRU(4, 5), b=nn.LSTM(5, 3))
    check_same(saved(tmp_path / "m.pt2", model, dynamic=dynamic), model, batch_axis=1)


def test_dropout_of_nothing_in_training_has_no_effect(tmp_path: Path):
    model = Code(lambda s, x: s.a(x)[0], a=gru(num_layers=2))
    check_same(saved(tmp_path / "m.pt2", model, train=True), model)


def ones(s: Any, x: Any) -> Any:
    return s.a(x, torch.ones(1, x.shape[0], 4))[0]


def changed(s: Any, x: Any) -> Any:
    return s.a(x, torch.zeros(1, x.shape[0], 4).fill_(1))[0]


def in_place(s: Any, x: Any) -> Any:
    y = s.a(x)[0]
    y.mul_(2)
    return y


def by_other_weights(s: Any, x: Any) -> Any:
    weights = [s.a.weight_hh_l0, s.a.weight_ih_l0, s.a.bias_ih_l0, s.a.bias_hh_l0]
    return torch.gru(x, torch.zeros(1, x.shape[0], 4), weights, True, 1, 0.0, False, False, True)[0]


class Held(nn.Module):
    """A GRU whose initial state is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.h = gru(), nn.Parameter(torch.zeros(1, 2, 4))

    def forward(self, x: Any) -> Any:
        return self.a(x, self.h)[0]


REFUSED: dict[str, tuple[Any, str]] = {
    "one twice": (Code(lambda s, x: s.a(s.a(x)[0])[0], a=A), "it has a (aten.gru.input), called again;"),
    "side by side": (Code(lambda s, x: s.a(x)[0] + s.b(x)[0], a=A, b=B), "it has add (aten.add.Tensor);"),
    "two outputs": (
        Code(lambda s, x: (s.a(x)[0], s.b(s.a(x)[0])[0]), a=A, b=B),
        "it has a (aten.gru.input), called again, getitem (an output);",
    ),
    "one output twice": (Code(lambda s, x: (s.a(x)[0],) * 2, a=A), "it has getitem (an output);"),
    "a number as an output": (Code(lambda s, x: (s.a(x)[0], 3), a=A), "it has a number (an output);"),
    "final state as an output": (Code(lambda s, x: s.a(x), a=A), "it has getitem_1 (an output);"),
    "final state alone": (Code(lambda s, x: s.a(x)[1], a=A), "it has getitem_1 (an output);"),
    "final state as an initial state": (
        Code(lambda s, x: (lambda y, h: s.b(y, h)[0])(*s.a(x)), a=A, b=B),
        "it has the initial state of b (aten.gru.input);",
    ),
    "final state as a sequence": (
        Code(lambda s, x: s.b(s.a(x)[1])[0], a=A, b=B),
        "b over the outputs of a; it takes the final states of a (aten.gru.input) instead",
    ),
    "zeros as a sequence": (
        Code(lambda s, x: s.a(torch.zeros(x.shape[0], 3, 4))[0], a=A),
        "a: it takes what zeros (aten.zeros.default) computes",
    ),
    "ones at the start": (
        Code(ones, a=A),
        "it has ones (aten.ones.default), the initial state of a (aten.gru.input);",
    ),
    "zeros changed in place": (
        Code(changed, a=A),
        "it has fill_ (aten.fill_.Scalar), the initial state of a (aten.gru.input);",
    ),
    "a parameter at the start": (Held(), "it has the initial state of a (aten.gru.input);"),
    "outputs changed in place": (Code(in_place, a=A), "it has mul_ (aten.mul_.Tensor);"),
    "other weights": (
        Code(by_other_weights, a=A),
        "it has the weights of getitem (aten.gru.input), which are not those of a layer of torch.nn;",
    ),
    "batch first and not": (
        Code(lambda s, x: s.b(s.a(x)[0])[0], a=A, b=nn.GRU(4, 4)),
        "it has the batch_first of b (aten.gru.input), which is not that of a (aten.gru.input);",
    ),
    "moved between": (
        Code(lambda s, x: s.b(s.a(x)[0].transpose(0, 1))[0], a=A, b=nn.GRU(4, 4)),
        "it has transpose (aten.transpose.int), the batch_first of b",
    ),
    "cells": (Code(lambda s, x: s.a(x[:, 0]), a=nn.GRUCell(4, 4)), "gru_cell (aten.gru_cell.default);"),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_row_of_layers_does_not_express_is_refused_by_name(tmp_path: Path, name: str):
    """Of a file that is asked for as a row of layers."""
    model, words = REFUSED[name]
    path = saved(tmp_path / "m.pt2", model)
    with pytest.raises(LayoutError) as raised:
        read_model(path, LayoutChoice(stack=True))
    assert words in str(raised.value)


STATES = "its initial states are not [layers, sequences, features] with as many sequences"
NOT_WHOLE = {
    "a number as an output": "output 'a number' is a number, which is not a value of a model",
    "zeros changed in place": "fill_ (aten.fill_.Scalar) is an operation that stepnet does not support",
    "a parameter at the start": STATES,
    "zeros as a sequence": REFUSED["zeros as a sequence"][1],
    "final state as a sequence": REFUSED["final state as a sequence"][1],
    "batch first and not": "with batch_first=False is called with a tensor [sequences, steps, 4]",
    "cells": "gru_cell (aten.gru_cell.default) is an operation that stepnet does not support",
}
"""Models of the table above that are not read whole either, and the words of the refusal."""


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_read_whole_or_refused_by_name(tmp_path: Path, name: str):
    model, path = REFUSED[name][0], saved(tmp_path / "m.pt2", REFUSED[name][0])
    if name in NOT_WHOLE:
        with pytest.raises((ModelError, LayoutError)) as raised:
            read_model(path)
        assert NOT_WHOLE[name] in str(raised.value)
        assert str(path) in str(raised.value)
        return
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(length, 4)).astype("float32") for length in LENGTHS]
    found = read_model(path, any_steps=True).model(sn.Ragged.from_list(xs))
    for place, x in enumerate(xs):
        with torch.inference_mode():
            right = model(torch.tensor(x)[None])
        pairs = list(zip(found.values(), right, strict=True)) if isinstance(found, dict) else [(found, right)]
        for ours, theirs in pairs:
            values = ours.to_list() if isinstance(ours, sn.Ragged) else ours
            assert_close(values[place].ravel(), theirs.numpy().ravel(), len(x), 16)


def test_dropout_in_training_is_refused_by_name(tmp_path: Path):
    model = Code(lambda s, x: s.a(x)[0], a=gru(num_layers=2, dropout=0.5))
    path = saved(tmp_path / "m.pt2", model, train=True)
    with pytest.raises(ModelError, match=r"aten.gru.input: dropout draws random numbers: call .eval\(\)"):
        sn.load(path)
    model = Code(lambda s, x: nn.functional.dropout(s.a(x)[0], 0.5, True), a=gru())
    with pytest.raises(ModelError, match=r"aten.dropout.default: dropout draws random numbers: call .eval"):
        sn.load(saved(tmp_path / "n.pt2", model))


def test_packed_sequences_are_refused_by_name(tmp_path: Path):
    path = saved(tmp_path / "m.pt2", Code(lambda s, x: s.a(x)[0], a=gru()))  # torch.export has no packed ones
    edited(path, b"aten.gru.input", b"aten.gru.data")
    with pytest.raises(ModelError, match=r"getitem \(aten.gru.data\) is an operation that stepnet does not"):
        sn.load(path)
    assert [module.name for module in read(path).modules] == ["a."]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"bidirectional", "arg": {"as_bool": false}', b'"bidirectional", "arg": {"as_bool": true}'),
        (b'"num_layers", "arg": {"as_int": 2}', b'"num_layers", "arg": {"as_int": 1}'),
        (b'"num_layers", "arg": {"as_int": 2}', b'"num_layers", "arg": {"as_int": 999999999999}'),
        (b'"has_biases", "arg": {"as_bool": true}', b'"has_biases", "arg": {"as_bool": false}'),
        (b'{"name": "p_a_weight_hh_l1"}', b'{"name": "p_a_bias_hh_l0"}'),
    ],
)
def test_weights_that_are_not_as_the_operator_says_are_refused(tmp_path: Path, old: bytes, new: bytes):
    path = saved(tmp_path / "m.pt2", Code(lambda s, x: s.a(x)[0], a=gru(num_layers=2)))
    edited(path, old, new)
    with pytest.raises(ModelError, match=r"aten.gru.input: its weights are not those of a layer of torch.nn"):
        sn.load(path)


@pytest.mark.parametrize("name", ["", "y", "p_a"])
def test_an_input_that_nothing_computes_is_refused(tmp_path: Path, name: str):
    path = saved(tmp_path / "m.pt2", Code(lambda s, x: s.a(x)[0], a=gru()))
    edited(
        path,
        b'"input", "arg": {"as_tensor": {"name": "x"}}',
        b'"input", "arg": {"name": "%s"}' % name.encode(),
    )
    with pytest.raises(FileError, match=r"m.pt2: an operation has an argument of kind 'name', which is not"):
        sn.load(path)
    path = saved(tmp_path / "n.pt2", Code(lambda s, x: s.a(s.d(x))[0], a=gru(), d=nn.Dropout(0.5)))
    edited(
        path,
        b'"input", "arg": {"as_tensor": {"name": "x"}}',
        b'"input", "arg": {"name": "%s"}' % name.encode(),
    )
    with pytest.raises(FileError, match=r"n.pt2: an operation has an argument of kind 'name', which is not"):
        sn.load(path)
    path = saved(tmp_path / "o.pt2", Code(lambda s, x: s.a(s.d(x))[0], a=gru(), d=nn.Dropout(0.5)))
    edited(
        path,
        b'"input", "arg": {"as_tensor": {"name": "x"}}',
        b'"input", "arg": {"as_tensor": {"name": "%s"}}' % name.encode(),
    )
    with pytest.raises(FileError, match=rf"o.pt2: an operation reads '{name}', which is not computed before"):
        sn.load(path)


# ---- what is stated ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tanh", "relu"])
@pytest.mark.parametrize("only", [False, True])
def test_another_activation_than_the_files_is_refused(tmp_path: Path, name: str, only: bool):
    model = Code(lambda s, x: s.a(x)[0], a=nn.RNN(4, 4, nonlinearity=name, batch_first=True))
    path, other = saved(tmp_path / "m.pt2", model), {"tanh": "relu", "relu": "tanh"}[name]
    said = f"the file says candidate_activation={name} of a, and not {other} as --semantics says"
    for field in ("candidate_activation", "a:candidate_activation"):
        check_same(path, model, choice=LayoutChoice(semantics={field: name}), recurrent_only=only)
        with pytest.raises(LayoutError, match=said):
            read_model(path, LayoutChoice(semantics={field: other}), recurrent_only=only)


def test_another_order_than_the_files_is_refused(tmp_path: Path):
    path = saved(tmp_path / "m.pt2", Code(lambda s, x: s.a(s.b(x)[0])[0], a=A, b=B))
    with pytest.raises(LayoutError, match=r"a takes the outputs of b, which .* would run after it"):
        read_model(path, LayoutChoice(order=("a", "b"), stack=True))
    assert read_model(path, LayoutChoice(order=("b", "a"), stack=True)).left_out == ()


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("candle.gru", "a is torch.gru by the file's program, and not candle.gru as --from says"),
        ("torch.lstm", "--from says torch.lstm, which fits none of its layers: a is torch.gru"),
    ],
)
def test_another_layout_than_the_files_is_refused(tmp_path: Path, layout: str, words: str):
    path = saved(tmp_path / "m.pt2", Code(lambda s, x: s.a(x)[0], a=gru()))
    for only in (False, True):
        with pytest.raises(LayoutError, match=words):
            read_model(path, LayoutChoice(layout=layout), recurrent_only=only)


def test_a_row_is_converted_in_the_order_of_the_graph(tmp_path: Path):
    model = Code(lambda s, x: s.a(s.b(x)[0])[0], a=A, b=nn.LSTM(4, 4, batch_first=True))
    done = convert_file(saved(tmp_path / "m.pt2", model), "keras", tmp_path / "m.keras", check=True)
    assert [*done.reports] == ["b.", "a."]
    check_same(tmp_path / "m.keras", model)


def test_a_module_that_a_program_does_not_use_is_none_of_the_models(tmp_path: Path):
    path = saved(tmp_path / "m.pt2", Code(lambda s, x: s.a(x)[0], a=A, b=B))
    model = read(path)
    assert [module.name for module in model.modules] == ["a."]
    assert [*model.rest] == [f"b.{name}" for name in B.state_dict()]
    assert read_model(path).left_out == ()
    assert read_model(path, recurrent_only=True).left_out == tuple(model.rest)
    with pytest.raises(LayoutError, match="no recurrent module is called 'b'"):
        read_model(path, LayoutChoice(module="b"))
    done = convert_file(path, "keras", tmp_path / "m.keras")
    assert [*done.reports] == ["a."]
