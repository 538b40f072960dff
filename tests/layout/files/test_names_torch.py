"""The names of layers in files of PyTorch whose model was wrapped, copied or saved whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import refusal, stepnet
from torch import nn
from torch.optim.swa_utils import AveragedModel

from stepnet.errors import LayoutError
from stepnet.layout.files import LayoutChoice, convert_file, read
from stepnet.layout.files.pickles.torch import read as arrays_of

# torch.compile imports what PyTorch itself says is old.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

INPUTS, HIDDEN = 3, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"rnn": nn.GRU(INPUTS, HIDDEN)})
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder["rnn"](x)[0])


def trained(model: nn.Module) -> Any:
    """An optimiser after one step."""
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 1, INPUTS)).sum().backward()
    optimizer.step()
    return optimizer


def of_lightning(model: nn.Module) -> dict[str, Any]:
    """The contents of Lightning's checkpoints (dump_checkpoint)."""
    optimizer = trained(model)
    return {
        "epoch": 1,
        "global_step": 2,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": model.state_dict(prefix="model."),
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
    }


def averaged(model: nn.Module) -> dict[str, Any]:
    made: Any = AveragedModel(model)
    made.update_parameters(model)
    return made.state_dict()


def prefixed(front: str) -> Callable[[nn.Module], dict[str, Any]]:
    return lambda model: model.state_dict(prefix=front)


def compiled(model: Any) -> dict[str, Any]:
    found: Any = torch.compile(model)
    return found.state_dict()


WRAPPED: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "lightning": (of_lightning, "state_dict.model."),
    "data parallel": (lambda model: nn.DataParallel(model).state_dict(), "module."),
    "compiled": (compiled, "_orig_mod."),
    "averaged": (averaged, "module."),
    "compiled and parallel": (prefixed("module._orig_mod."), "module._orig_mod."),
    "fsdp": (prefixed("_fsdp_wrapped_module."), "_fsdp_wrapped_module."),
    "nothing": (prefixed(""), ""),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_a_wrapper_need_not_be_named_stays_in_the_names_and_can_be_stripped(tmp_path: Path, wrapper: str):
    torch.manual_seed(0)
    model = Model()
    saved, front = WRAPPED[wrapper]
    torch.save(saved(model), tmp_path / "model.ckpt")
    name = f"{front}encoder.rnn."
    for said in ("encoder.rnn", f"{front}encoder.rnn", name, f"module.{front}encoder.rnn"):
        assert read(tmp_path / "model.ckpt").chosen(said).name == name
    options = ("--to", "torch", "--rest", "copy", "--json", "--module", "encoder.rnn")
    code, stdout, _ = stepnet("convert", tmp_path / "model.ckpt", "-o", tmp_path / "new.pt", *options)
    assert code == 0
    account = json.loads(stdout)["account"]
    old, new = arrays_of(tmp_path / "model.ckpt"), arrays_of(tmp_path / "new.pt")
    optimiser = {each for each in old if each.startswith("optimizer_states.")}
    assert (list(account["converted"]), {*account["left"]}) == ([name], optimiser)
    assert old.keys() - optimiser == new.keys()
    assert all(np.array_equal(old[key], new[key]) for key in new)
    code, _, stderr = stepnet(
        "convert", tmp_path / "model.ckpt", "-o", tmp_path / "plain.pt", *options, "--strip", front
    )
    assert (code, stderr) == (0, "")
    state = torch.load(tmp_path / "plain.pt", weights_only=True)
    other = Model()
    other.load_state_dict({key: state[key] for key in other.state_dict()})
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in other.state_dict().items())
    others = {key for key in new if not key.startswith(front)}
    assert others == state.keys() - model.state_dict().keys()


def test_a_wrapper_of_a_part_need_not_be_named_either(tmp_path: Path):
    state = nn.GRU(INPUTS, HIDDEN).state_dict(prefix="encoder._fsdp_wrapped_module.rnn.")
    torch.save(state, tmp_path / "x.pt")
    assert read(tmp_path / "x.pt").chosen("encoder.rnn").name == "encoder._fsdp_wrapped_module.rnn."


def test_copies_of_a_model_are_told_apart(tmp_path: Path):
    torch.manual_seed(0)
    model, ema = Model(), Model()
    state = {**model.state_dict(prefix="model."), **ema.state_dict(prefix="ema_model.module.")}
    source = tmp_path / "model.pt"
    torch.save({"state_dict": state}, source)
    names = ["state_dict.model.encoder.rnn.", "state_dict.ema_model.module.encoder.rnn."]
    done = convert_file(source, "keras", tmp_path / "both.npz")
    assert list(done.account.converted) == names
    message = refusal("convert", source, "--to", "keras", "-o", tmp_path / "x.npz", "--module", "encoder.rnn")
    assert message.endswith(
        f"'encoder.rnn' may be any of {names[0]!r}, {names[1]!r}: "
        "say --module NAME (Python: module=NAME) for one of these"
    )
    chosen = LayoutChoice(module="state_dict.ema_model.module.encoder.rnn")
    done = convert_file(source, "torch", tmp_path / "ema.pt", choice=chosen)
    found = torch.load(tmp_path / "ema.pt", weights_only=True)
    encoder: Any = ema.encoder
    assert torch.equal(found["weight_hh_l0"], encoder["rnn"].weight_hh_l0)
    assert set(arrays_of(source)) == {*done.account.left, *done.account.converted[names[1]]}


def test_a_checkpoint_of_lightning_that_averages(tmp_path: Path):
    """By data/make_lightning.py: the state dict is the average, and what is trained lies beside it."""
    source = Path(__file__).parent / "data" / "lightning.ckpt"
    names = ["state_dict.model.rnn.", "current_model_state.model.rnn."]
    for said in ("rnn", "model.rnn"):
        message = refusal("convert", source, "--to", "keras", "-o", tmp_path / "x.npz", "--module", said)
        assert message.endswith(
            f"may be any of {names[0]!r}, {names[1]!r}: "
            "say --module NAME (Python: module=NAME) for one of these"
        )
    done = convert_file(source, "keras", tmp_path / "both.npz", check=True)
    assert list(done.account.converted) == names
    chosen = LayoutChoice(module="state_dict.model.rnn")
    done = convert_file(
        source, "torch", tmp_path / "x.pt", choice=chosen, rest="copy", strip="state_dict.model."
    )
    state = torch.load(tmp_path / "x.pt", weights_only=True)
    right = torch.load(source, weights_only=False)
    model = {name.removeprefix("model."): value for name, value in right["state_dict"].items()}
    assert all(torch.equal(state[name], value) for name, value in model.items())
    assert "optimizer_states.0.state.0.momentum_buffer" in done.account.left
    held = set(arrays_of(source))
    account = done.account
    assert held == {*account.copied, *account.moved, *account.left, *account.converted[names[0]]}
    assert account.moved["state_dict.model.head.weight"].name == "head.weight"
    assert set(done.account.left) == {
        name for name in held if name.startswith((names[1], "optimizer_states."))
    }


def test_what_cannot_be_stripped(tmp_path: Path):
    source, out = tmp_path / "model.pt", tmp_path / "new.pt"
    torch.save(nn.GRU(INPUTS, HIDDEN).state_dict(prefix="module.rnn."), source)
    message = refusal("convert", source, "--to", "torch", "-o", out, "--strip", "model.")
    assert message == f"{source}: no name that is written begins with 'model.': there is nothing to strip"
    both = {"module.a": torch.ones(1), "a": torch.ones(1)}
    torch.save({**torch.load(source), **both}, source)
    message = refusal("convert", source, "--to", "torch", "-o", out, "--rest", "copy", "--strip", "module.")
    assert message == f"{source}: two arrays would be called the same without 'module.'"
    layers = {f"{front}{name}": value for front in ("", "module.") for name, value in GRU.items()}
    torch.save(layers, source)
    message = refusal("convert", source, "--to", "torch", "-o", out, "--strip", "module.")
    assert "two arrays would be called 'rnn.weight_ih_l0'" in message
    assert not out.exists()


GRU = nn.GRU(INPUTS, HIDDEN).state_dict(prefix="rnn.")


# ---- whole modules


class Whole(nn.Module):
    """A model of recurrent modules with and without a nonlinearity, in a wrapper that has one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.nonlinearity = "tanh"
        self.relu = nn.RNN(INPUTS, HIDDEN, 2, nonlinearity="relu", bidirectional=True)
        self.tanh = nn.RNN(INPUTS, HIDDEN)
        self.cell = nn.RNNCell(INPUTS, HIDDEN, nonlinearity="relu")
        self.lstm = nn.LSTM(INPUTS, HIDDEN, proj_size=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(x)[0]


RELU, TANH = {"candidate_activation": "relu"}, {"candidate_activation": "tanh"}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("front", ["", "net."])
def test_a_whole_module_says_its_nonlinearity(tmp_path: Path, front: str, zipped: bool):
    saved = {"net": Whole()} if front else Whole()
    torch.save(saved, tmp_path / "whole.pt", _use_new_zipfile_serialization=zipped)
    found = {module.name: module.semantics for module in read(tmp_path / "whole.pt").modules}
    expected: Any = {"relu.": RELU, "tanh.": TANH, "cell.": RELU, "lstm.": {}}
    assert found == {f"{front}{name}": said for name, said in expected.items()}


def test_an_rnn_alone_is_converted_with_nothing_asked(tmp_path: Path):
    torch.save(nn.RNN(INPUTS, HIDDEN, nonlinearity="relu"), tmp_path / "rnn.pt")
    done = convert_file(tmp_path / "rnn.pt", "keras", tmp_path / "rnn.npz", check=True)
    assert done.reports[""].settings == {"activation": "relu"}
    chosen = LayoutChoice(semantics={"candidate_activation": "tanh"})  # who says another one means it
    done = convert_file(tmp_path / "rnn.pt", "keras", tmp_path / "tanh.npz", choice=chosen)
    assert done.reports[""].settings == {"activation": "tanh"}


def test_an_older_rnn_says_its_mode(tmp_path: Path):
    rnn: Any = nn.RNN(INPUTS, HIDDEN, nonlinearity="relu")
    del rnn.__dict__["nonlinearity"]
    torch.save(rnn, tmp_path / "mode.pt")
    assert read(tmp_path / "mode.pt").modules[0].semantics == RELU
    rnn.mode = "LSTM"
    torch.save(rnn, tmp_path / "none.pt")
    with pytest.raises(LayoutError, match="do not determine candidate_activation"):
        convert_file(tmp_path / "none.pt", "keras", tmp_path / "none.npz")


class Custom(nn.LSTM):
    """A program's own layer, which computes something else."""

    def forward(self, *inputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(2 * inputs[0], *inputs[1:])


@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_module_of_another_class_is_said_to_be_one(tmp_path: Path, zipped: bool):
    model = nn.ModuleDict({"own": Custom(INPUTS, HIDDEN), "its": nn.LSTM(INPUTS, HIDDEN)})
    torch.save(model, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    done = convert_file(tmp_path / "x.pt", "keras", tmp_path / "x.npz")
    note = f"it is a {__name__}.Custom, taken for torch.lstm by its arrays' names; its forward may do more"
    assert done.notes == {"own.": (note,), "its.": ()}
    torch.save(model["own"], tmp_path / "alone.pt")
    assert convert_file(tmp_path / "alone.pt", "keras", tmp_path / "y.npz").notes == {"": (note,)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_says_the_nonlinearity_of_a_layer(tmp_path: Path):
    script: Any = torch.jit.script(Whole())
    script.save(str(tmp_path / "script.pt"))
    found = {module.name: module.semantics for module in read(tmp_path / "script.pt").modules}
    assert found == {"relu.": RELU, "tanh.": TANH, "cell.": {}, "lstm.": {}}  # a cell's is a constant in code


# ---- arrays of NumPy's


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_numpys_arrays_are_read_as_tensors_are(tmp_path: Path, zipped: bool, protocol: int):
    rng = np.random.default_rng(0)
    layer = nn.GRU(INPUTS, HIDDEN)
    weights = {name: value.numpy() for name, value in layer.state_dict().items()}
    mean = rng.normal(size=(2, 3))
    others = {
        "mean": mean,
        "turned": np.asfortranarray(mean),
        "big": mean.astype(">f4"),
        "halves": mean.astype("f2"),
        "counts": np.arange(3, dtype="u2"),
        "flags": np.array([True, False]),
        "number": np.array(3.0),
        "mean again": mean,
    }
    words = {"names": np.array(["a"]), "objects": np.array([None, {}]), "scalar": np.float64(3)}
    torch.save(
        {"rnn": weights, "stats": others, "vocabulary": words},
        tmp_path / "x.pt",
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=zipped,
    )
    held = arrays_of(tmp_path / "x.pt")
    assert held.keys() == {*(f"rnn.{name}" for name in weights), *(f"stats.{name}" for name in others)}
    for name, array in others.items():
        assert held[f"stats.{name}"].dtype == array.dtype.newbyteorder("=")
        assert np.array_equal(held[f"stats.{name}"], array)
    assert np.shares_memory(held["stats.mean"], held["stats.mean again"])
    done = convert_file(tmp_path / "x.pt", "keras", tmp_path / "x.npz", check=True)
    assert list(done.account.converted) == ["rnn."]
    assert set(done.account.left) == {f"stats.{name}" for name in others}


def test_an_array_of_numpys_that_is_cut_short(tmp_path: Path):
    torch.save({"mean": np.arange(6.0)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    data = (tmp_path / "x.pt").read_bytes()
    shape = data.replace(b"K\x06\x85", b"K\x07\x85", 1)
    assert shape != data
    (tmp_path / "x.pt").write_bytes(shape)
    with pytest.raises(
        Exception, match=r"'mean' of shape \(7,\) and dtype float64 needs 56 bytes and has 48"
    ):
        arrays_of(tmp_path / "x.pt")
