"""Names that a program chose stay as they are, and what is called like something else is not taken for it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import refusal
from torch import nn

from stepnet.errors import StepnetError
from stepnet.layout.files import LayoutChoice, convert_file, read

INPUTS, HIDDEN = 3, 4
TANH = LayoutChoice(semantics={"candidate_activation": "tanh"})


def saved(path: Path, state: Any) -> Path:
    torch.save(state, path)
    return path


@pytest.mark.parametrize("names", [("rnn_", "rnn"), ("a + b", "b"), ("x + y", "x_y"), ("_rnn", "rnn_._")])
def test_a_layer_keeps_its_name(tmp_path: Path, names: tuple[str, ...]):
    model = nn.ModuleList([nn.LSTM(INPUTS, HIDDEN) for _ in names])
    state = {
        f"{name}.{key}": value
        for name, one in zip(names, model, strict=True)
        for key, value in one.state_dict().items()
    }
    source = saved(tmp_path / "x.pt", {**state, "head.weight": torch.ones(2, 4)})
    done = convert_file(source, "torch", tmp_path / "y.pt", rest="copy", check=True)
    assert done.account.layers == ()
    found = torch.load(tmp_path / "y.pt", weights_only=True)
    assert found.keys() == {*state, "head.weight"}
    assert all(torch.equal(found[name], value) for name, value in state.items())


# ---- arrays that are there twice


class Skipping(nn.RNN):
    """A layer with another that has one of its weights."""

    def __init__(self) -> None:
        super().__init__(HIDDEN, HIDDEN)
        self.skip: Any = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.skip.weight = self.weight_hh_l0


def test_a_tied_array_is_needed_by_both_its_names(tmp_path: Path):
    model = Skipping()
    source, out = saved(tmp_path / "x.pt", model.state_dict()), tmp_path / "y.pt"
    said = refusal("convert", source, "--to", "torch", "-o", out, "--semantics", "activation=tanh")
    assert "has skip.weight, which torch.rnn does not have" in said
    done = convert_file(source, "torch", out, choice=TANH, rest="copy")
    assert (done.account.copied, done.account.spare) == (("skip.weight",), {})
    model.load_state_dict(torch.load(out, weights_only=True))
    named = saved(tmp_path / "named.pt", model.state_dict(prefix="rnn."))
    said = refusal("convert", named, "--to", "torch", "-o", out, "--rest", "copy", "--force")
    assert "rnn has rnn.skip.weight, which torch.rnn does not have" in said


def test_what_a_layer_without_a_name_normalises_is_no_part_of_another_layer(tmp_path: Path):
    state = nn.LSTMCell(INPUTS, HIDDEN).state_dict()
    state |= nn.LayerNorm(4 * HIDDEN).state_dict(prefix="layernorm_i.")
    source, out = saved(tmp_path / "x.pt", state), tmp_path / "y.npz"
    for more in ((), ("--rest", "copy")):
        said = refusal("convert", source, "--to", "keras", "-o", out, *more)
        assert "has layernorm_i.weight, layernorm_i.bias, which torch.lstm_cell does not have" in said
    dropped = ("layernorm_i.weight", "layernorm_i.bias")
    assert convert_file(source, "keras", out, choice=LayoutChoice(drop=dropped)).account.left == dropped


def test_what_is_behind_another_layer_is_none_of_a_layer_without_a_name(tmp_path: Path):
    state = {**nn.LSTM(INPUTS, HIDDEN).state_dict(), **nn.GRU(INPUTS, HIDDEN).state_dict(prefix="b.")}
    source = saved(tmp_path / "x.pt", {**state, "b.h0": torch.ones(4)})
    done = convert_file(source, "keras", tmp_path / "x.npz", choice=LayoutChoice(drop=["b.h0"]))
    assert done.account.left == ("b.h0",)
    said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "y.npz")
    assert "b has b.h0, which" in said


# ---- what optimisers keep


@pytest.mark.parametrize("name", ["optimizer", "opt_state", "optimizer_states"])
def test_a_learned_optimiser_is_a_layer(tmp_path: Path, name: str):
    model = nn.ModuleDict({name: nn.LSTM(INPUTS, HIDDEN), "rnn": nn.LSTM(INPUTS, HIDDEN)})
    source = saved(tmp_path / "x.pt", model.state_dict())
    done = convert_file(source, "torch", tmp_path / "y.pt")
    assert list(done.account.converted) == [f"{name}.", "rnn."]
    again = torch.load(tmp_path / "y.pt", weights_only=True)
    model.load_state_dict(again)


def test_what_an_optimiser_keeps_is_no_layer_unless_somebody_says_so(tmp_path: Path):
    kept = {f"optimizer.{name}": one for name, one in nn.LSTM(INPUTS, HIDDEN).state_dict().items()}
    state = {"state_dict.head.weight": torch.ones(2, 4), **kept}
    source, out = saved(tmp_path / "x.pt", state), tmp_path / "y.pt"
    assert read(source).modules == ()
    said = refusal("convert", source, "--to", "torch", "-o", out)
    assert (
        "say --from optimizer=torch.lstm (Python: layouts={'optimizer': 'torch.lstm'}) if it is a layer"
        in said
    )
    convert_file(source, "torch", out, choice=LayoutChoice(layouts={"optimizer": "torch.lstm"}))
    found = torch.load(out, weights_only=True)
    assert all(torch.equal(found[name.removeprefix("optimizer.")], one) for name, one in kept.items())


def test_the_state_of_an_optimiser_is_not_copied(tmp_path: Path):
    model = nn.ModuleDict({"rnn": nn.LSTM(INPUTS, HIDDEN), "head": nn.Linear(HIDDEN, 2)})
    adam = torch.optim.Adam(model.parameters())
    model["head"](model["rnn"](torch.ones(1, 4, INPUTS))[0]).sum().backward()
    adam.step()
    source = saved(tmp_path / "x.pt", {"state_dict": model.state_dict(), "optimizer": adam.state_dict()})
    done = convert_file(source, "torch", tmp_path / "y.pt", rest="copy")
    state = [name for name in done.account.left if name.startswith("optimizer.state.")]
    assert (len(state), done.account.left) == (3 * len([*model.parameters()]), tuple(state))
    again = torch.load(tmp_path / "y.pt", weights_only=True)
    assert again.keys() == {f"state_dict.{name}" for name in model.state_dict()}


def test_a_name_that_is_said_and_not_there(tmp_path: Path):
    source = saved(tmp_path / "x.pt", nn.LSTM(INPUTS, HIDDEN).state_dict(prefix="rnn."))
    said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "x.npz", "--from", "lstm=torch.lstm")
    assert said == "no array has a name of a layer 'lstm', whose layout is stated as torch.lstm"


# ---- names that begin without something


@pytest.mark.parametrize("target", ["torch", "flax"])
def test_the_account_has_the_names_that_were_written(tmp_path: Path, target: str):
    state: dict[str, Any] = {}
    for name, layer in {"rnn": nn.LSTM(INPUTS, HIDDEN), "gru": nn.GRU(INPUTS, HIDDEN)}.items():
        state |= layer.state_dict(prefix=f"module.{name}.")
    state |= nn.Linear(HIDDEN, 2).state_dict(prefix="module.head.")
    source = saved(tmp_path / "x.pt", {**state, "module.scale": torch.ones(2), "epoch": torch.ones(1)})
    out = tmp_path / ("y.pt" if target == "torch" else "y.msgpack")
    done = convert_file(source, target, out, rest="copy", strip="module.", check=True)
    written = read(out)
    assert [module.name.rstrip("./") for module in written.modules] == ["rnn", "gru"]
    assert list(done.verdicts) == ["module.rnn.", "module.gru."]
    account = done.account
    assert account.copied == ("epoch",)
    assert {*account.copied, *(place.name for place in account.moved.values())} == written.rest.keys()
    assert account.moved["module.scale"].name == "scale"


# ---- what is said, in the words of who reads it


def test_a_tensor_that_has_still_to_be_negated(tmp_path: Path):
    state = nn.LSTM(INPUTS, HIDDEN).state_dict()
    state["weight_ih_l0"] = torch._neg_view(state["weight_ih_l0"])  # pyright: ignore[reportPrivateImportUsage]
    said = refusal("show", saved(tmp_path / "x.pt", state))
    assert "'weight_ih_l0' has still to be negated; save tensor.resolve_neg()" in said


def test_another_merge_than_the_files_is_refused(tmp_path: Path):
    source = saved(tmp_path / "x.pt", nn.LSTM(INPUTS, HIDDEN, bidirectional=True).state_dict())
    for choice, said in (("sum", "merges its directions by concat, and not by sum"), ("foo", "merge is ")):
        with pytest.raises(StepnetError, match=said):
            convert_file(
                source, "keras", tmp_path / "x.npz", choice=LayoutChoice(semantics={"merge": choice})
            )


def test_a_layer_without_a_name_cannot_be_named(tmp_path: Path):
    source = saved(tmp_path / "x.pt", nn.LSTM(INPUTS, HIDDEN).state_dict())
    said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "x.npz", "--module", "rnn")
    assert said.endswith("no recurrent module is called 'rnn'; the only one has no name, leave --module away")


def test_numbers_that_are_not_finite_are_said_and_not_compared(tmp_path: Path):
    state = nn.LSTM(INPUTS, HIDDEN).state_dict(prefix="rnn.")
    state["rnn.weight_hh_l0"][0, 0] = float("nan")
    source = saved(tmp_path / "x.pt", state)
    done = convert_file(source, "onnx", tmp_path / "x.onnx", check=True)
    assert done.notes == {"rnn.": ("NaN or infinite numbers are in rnn.weight_hh_l0",)}
    assert {own.difference for own in done.verdicts[""].own} == {None}
    assert all("NaN or infinite" in str(own.reason) for own in done.verdicts[""].own)
    assert not done.verdicts[""].agrees
    assert str(done.verdicts[""]).startswith("not verified: ")
