"""The names under which PaddlePaddle saves layers: files of Paddle 3.3.1, by data/make_paddle.py."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import stepnet
from tolerance import assert_close

from stepnet.layout.files import convert_file, read
from stepnet.layout.files.pickles import paddle

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

DATA = Path(__file__).parent / "data"
INPUTS, HIDDEN, PROJECTED, TIME = 2, 4, 3, 5
with np.load(DATA / "paddle.npz") as arrays:
    GAVE: dict[str, Any] = dict(arrays)


def outputs(path: Path, prefix: str, kind: Callable[..., torch.nn.RNNBase], **options: Any) -> Any:
    """The results of PyTorch for the layer behind a prefix of a file."""
    module = kind(INPUTS, HIDDEN, batch_first=True, num_layers=2, **options)
    state = torch.load(path, weights_only=True)
    module.load_state_dict({name.removeprefix(prefix): value for name, value in state.items()})
    with torch.no_grad():
        return module(torch.from_numpy(GAVE["x"]))[0].numpy()


@pytest.mark.parametrize("name", ["paddle_gru", "paddle_checkpoint"])
def test_each_parameter_is_converted_once_and_its_other_name_is_accounted_for(tmp_path: Path, name: str):
    source, out = DATA / f"{name}.pdparams", tmp_path / "gru.pt"
    front = "model." if name == "paddle_checkpoint" else ""
    code, stdout, stderr = stepnet("convert", source, "--to", "torch", "-o", out, "--json")
    assert (code, stderr) == (0, "")
    account = json.loads(stdout)["account"]
    assert list(account["converted"]) == [f"{front}encoder."]
    assert account["left"] == [f"{front}head.weight", f"{front}head.bias"]
    assert account["spare"][f"{front}encoder.1.cell.bias_hh"] == (
        f"the same array as {front}encoder.bias_hh_l1"
    )
    held = [*account["left"], *account["spare"], *account["converted"][f"{front}encoder."]]
    assert sorted(held) == sorted(paddle.read(source))
    assert_close(outputs(out, "", torch.nn.GRU), GAVE[name], length=TIME, width=HIDDEN, dtype="float32")


def test_a_projection_is_read_by_the_names_of_the_cells_as_those_of_the_layer_are_shifted(tmp_path: Path):
    source, out = DATA / "paddle_projection.pdparams", tmp_path / "lstm.pt"
    held = paddle.read(source)
    assert held["encoder.weight_ih_l0_reverse"].shape == (HIDDEN, PROJECTED)  # the forward projection
    done = convert_file(source, "torch", out, rest="copy", check=True)
    assert done.reports["encoder."].target == "torch.lstm_projection"
    assert done.reports["encoder."].exact
    assert len(done.account.converted["encoder."]) == 20
    assert done.account.spare["encoder.weight_ih_l0_reverse"] == (
        "the same array as encoder.0.cell_fw.weight_ho"
    )
    assert {name: str(place) for name, place in done.account.moved.items()} == {
        "head.weight": "head.weight (transposed)",
        "head.bias": "head.bias",
    }
    state = torch.load(out, weights_only=True)
    assert sum(name.startswith("encoder.") for name in state) == 20
    torch.save({n: v for n, v in state.items() if "head" not in n}, tmp_path / "layer.pt")
    found = outputs(tmp_path / "layer.pt", "encoder.", torch.nn.LSTM, proj_size=PROJECTED, bidirectional=True)
    assert_close(found, GAVE["paddle_projection"], length=TIME, width=HIDDEN, dtype="float32")
    back = tmp_path / "back.pdparams"
    convert_file(out, "paddle", back, rest="copy", check=True)
    again = paddle.read(back)
    assert sorted(again) == sorted({*held} - {*done.account.spare})
    assert all(again[name].tobytes() == held[name].tobytes() for name in again)


@pytest.mark.parametrize(("options", "name"), [({}, "cell"), ({"bidirectional": True}, "cell_bw")])
def test_a_projection_of_pytorch_gets_the_names_of_paddles_cells(
    tmp_path: Path, options: dict[str, Any], name: str
):
    layer = torch.nn.LSTM(INPUTS, HIDDEN, proj_size=PROJECTED, **options)
    torch.save(layer.state_dict(), tmp_path / "lstm.pt")
    convert_file(tmp_path / "lstm.pt", "paddle", tmp_path / "lstm.pdparams")
    found = paddle.read(tmp_path / "lstm.pdparams")
    suffix = "_reverse" if options else ""
    right = layer.state_dict()[f"weight_hr_l0{suffix}"].numpy().T
    assert np.array_equal(found[f"0.{name}.weight_ho"], right)


def test_arrays_that_paddle_calls_one_and_that_differ_are_two(tmp_path: Path):
    held = paddle.read(DATA / "paddle_gru.pdparams")
    held["encoder.0.cell.weight_hh"] = held["encoder.0.cell.weight_hh"] + 1
    paddle.write(tmp_path / "two.pdparams", held)
    model = read(tmp_path / "two.pdparams")
    assert model.spare == {}
    assert [module.name for module in model.modules] == ["encoder.", "encoder.0.cell.", "encoder.1.cell."]


def test_two_layers_that_share_some_arrays_are_both_kept(tmp_path: Path):
    cell = torch.nn.GRUCell(INPUTS, HIDDEN)
    layer = torch.nn.GRU(INPUTS, HIDDEN)
    layer.weight_ih_l0 = cell.weight_ih
    layer.add_module("inner", cell)
    torch.save(layer.state_dict(), tmp_path / "tied.pt")
    model = read(tmp_path / "tied.pt")
    assert [(module.name, len(module.arrays)) for module in model.modules] == [("", 4), ("inner.", 4)]
    assert (model.rest, model.spare) == ({}, {})
