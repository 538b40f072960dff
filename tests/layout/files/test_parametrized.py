"""Weights that a PyTorch file holds as others: made as PyTorch makes them, which is said, or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import refusal, stepnet
from tolerance import assert_close
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from stepnet.errors import ConversionError
from stepnet.layout.files import LayoutChoice, convert_file, read

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")

INPUTS, HIDDEN = 3, 4


class Model(nn.Module):
    """A layer of which a test parametrizes something, and a head."""

    def __init__(self, kind: Callable[..., nn.RNNBase] = nn.LSTM, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn: Any = kind(INPUTS, HIDDEN, **options)
        self.head = nn.Linear(HIDDEN, 2)


WEIGHT_NORMS: dict[str, Callable[[nn.Module, str, Any], Any]] = {
    "old": lambda layer, name, dim: nn.utils.weight_norm(layer, name, dim),
    "new": lambda layer, name, dim: parametrizations.weight_norm(layer, name, dim),
}
PARTS = {
    "old": ("rnn.{}_g", "rnn.{}_v"),
    "new": tuple(f"rnn.parametrizations.{{}}.original{i}" for i in (0, 1)),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("way", WEIGHT_NORMS)
def test_weight_norm(tmp_path: Path, way: str, dim: int | None, dtype: torch.dtype):
    model = Model().to(dtype)
    with torch.no_grad():
        model.rnn.weight_hh_l0.mul_(1.7)
    WEIGHT_NORMS[way](model.rnn, "weight_hh_l0", dim)
    parts = [name.format("weight_hh_l0") for name in PARTS[way]]
    state = dict(model.state_dict())
    state[parts[0]] = state[parts[0]] * 1.3  # so that g is not |v|
    model.load_state_dict(state)
    torch.save(state, tmp_path / "model.pt")
    done = convert_file(tmp_path / "model.pt", "torch", tmp_path / "lstm.pt", check=True)
    found = torch.load(tmp_path / "lstm.pt", weights_only=True)
    g, v = (state[name].double().numpy().astype(np.longdouble) for name in parts)
    axes = None if dim is None else 1 - dim
    right = g * v / np.sqrt((v * v).sum(axis=axes, keepdims=True))
    unit = torch.finfo(dtype).eps
    away = np.abs(found["weight_hh_l0"].double().numpy() - right).max()
    assert away <= unit / 2 * np.abs(right).max()
    model.rnn(torch.zeros(1, 1, INPUTS, dtype=dtype))  # which makes it, where it is old
    its = model.rnn.weight_hh_l0.detach().double().numpy()
    assert np.abs(its - right).max() <= 4 * unit * np.abs(right).max()
    report = done.reports["rnn."]
    (made,) = report.made
    assert made.of == tuple(parts)
    assert made.rounding is not None
    assert abs(made.rounding - away) <= 1e-3 * unit
    assert (report.exact, report.rounding) == (False, made.rounding)
    assumed = {"old": "", "new": ", assumed to be weight_norm as the file does not name the parametrization"}
    text = f"rnn.weight_hh_l0: g v / |v|{assumed[way]}, of {parts[0]}, {parts[1]}: rounded once, by "
    assert text in str(report)
    assert set(parts) < set(done.account.converted["rnn."])
    assert "rnn.weight_hh_l0" not in done.account.converted["rnn."]
    assert set(done.account.left) == {"head.weight", "head.bias"}
    with pytest.raises(
        ConversionError,
        match=r"rnn\.weight_hh_l0: g v / \|v\|.*, which --exact \(Python: exact=True\) refuses",
    ):
        convert_file(tmp_path / "model.pt", "torch", tmp_path / "exact.pt", exact=True)


def test_every_weight_and_bias_may_be_normed_and_the_command_line_says_so(tmp_path: Path):
    model = Model(nn.GRU, bidirectional=True, num_layers=2)
    names = [name for name, _ in model.rnn.named_parameters()]
    for name in names:
        parametrizations.weight_norm(model.rnn, name)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    code, stdout, stderr = stepnet(
        "convert", tmp_path / "model.pt", "--to", "keras", "-o", tmp_path / "x.npz", "--json"
    )
    assert (code, stderr) == (0, "")
    said = json.loads(stdout)
    assert len(said["modules"]["rnn."]["made"]) == len(names)
    assert len(said["account"]["converted"]["rnn."]) == 2 * len(names)
    code, stdout, _ = stepnet("show", tmp_path / "model.pt")
    assert code == 0
    said = "rnn.weight_hh_l1_reverse: g v / |v|, assumed to be weight_norm"
    assert said in " ".join(stdout.split())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("way", ["old", "new"])
def test_a_torchscript_archive_has_its_weights_computed_as_a_state_dict_has(tmp_path: Path, way: str):
    model, x = Model(nn.LSTM), torch.randn(1, 4, INPUTS)
    norm = nn.utils.weight_norm if way == "old" else parametrizations.weight_norm
    for weight in ("weight_hh_l0", "weight_ih_l0"):
        norm(model.rnn, weight)
    model.rnn(x)
    traced: Any = torch.jit.trace(model.rnn, (x,))
    traced.save(tmp_path / "script.pt")
    torch.save(model.rnn.state_dict(), tmp_path / "state.pt")
    script, state = (read(tmp_path / file).modules[0] for file in ("script.pt", "state.pt"))
    assert len(script.made) == len(state.made) == 2
    for name, array in state.arrays.items():
        assert np.array_equal(script.arrays[name], array)
        its = getattr(model.rnn, name).detach().numpy()
        assert_close(array, its, length=1, width=INPUTS)


def test_what_no_layer_takes_keeps_its_names(tmp_path: Path):
    arrays = {"a.weight_hh_l0_g": torch.ones(4, 1), "a.weight_hh_l0_v": torch.ones(4, 2)}
    state = {**nn.GRU(INPUTS, HIDDEN).state_dict(prefix="rnn."), **arrays}
    torch.save(state, tmp_path / "x.pt")
    done = convert_file(tmp_path / "x.pt", "keras", tmp_path / "x.npz", rest="copy")
    assert set(done.account.copied) == set(arrays)


# ---- WeightDropout


class WeightDropout(nn.Module):
    """As WeightDropout of fastai 1 (`both`) and 2, and of Salesforce's AWD-LSTM (`inner`)."""

    def __init__(self, module: Any, both: bool = False, inner: bool = False) -> None:
        super().__init__()
        self.module = module
        raw = module.weight_hh_l0
        del module._parameters["weight_hh_l0"]
        owner = module if inner else self
        owner.register_parameter("weight_hh_l0_raw", nn.Parameter(raw.data))
        if both:
            module._parameters["weight_hh_l0"] = nn.functional.dropout(raw.data, 0.5, training=True)


@pytest.mark.parametrize("kind", ["fastai 1", "fastai 2", "salesforce"])
def test_weight_dropout_is_the_raw_weight(tmp_path: Path, kind: str):
    torch.manual_seed(0)
    layer = nn.LSTM(INPUTS, HIDDEN)
    right = {name: value.clone() for name, value in layer.state_dict().items()}
    dropped = WeightDropout(layer, kind == "fastai 1", kind == "salesforce")
    model = nn.ModuleDict({"rnns": nn.ModuleList([dropped])})
    torch.save(model.state_dict(), tmp_path / "model.pth")
    raw = "rnns.0.module.weight_hh_l0_raw" if kind == "salesforce" else "rnns.0.weight_hh_l0_raw"
    assert raw in model.state_dict()
    done = convert_file(tmp_path / "model.pth", "torch", tmp_path / "x.pt", exact=True)
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    assert all(torch.equal(found[name], value) for name, value in right.items())
    front = "rnns.0.module."
    assert set(done.account.converted[front]) == {
        raw, *(f"{front}{name}" for name in right if name != "weight_hh_l0")
    }  # fmt: skip
    assert f"{front}weight_hh_l0: as it is without the dropout of training, of {raw}: bit-exact" in str(
        done.reports[front]
    )
    reason = f"{front}weight_hh_l0 is computed from {raw} whenever the layer runs"
    assert done.account.spare == ({f"{front}weight_hh_l0": reason} if kind == "fastai 1" else {})
    assert done.account.left == ()


# ---- what is refused


def spoilt(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A model with weight_norm, of which something was changed."""
    model = Model()
    nn.utils.weight_norm(model.rnn, "weight_hh_l0")
    state = dict(model.state_dict())
    change(state)
    torch.save(state, tmp_path / "model.pt")
    return tmp_path / "model.pt"


G, V = "rnn.weight_hh_l0_g", "rnn.weight_hh_l0_v"
REFUSED: dict[str, Callable[[dict[str, Any]], Any]] = {
    f"rnn.weight_hh_l0 is computed from {G} by code that the file does not have: "
    "torch.nn.utils.remove_weight_norm(layer, name) turns it": lambda state: state.pop(V),
    f"rnn.weight_hh_l0 is computed from {V} by code": lambda state: state.pop(G),
    f"{G} has shape (15, 1) and {V} (16, 4): weight_norm has one length": (
        lambda state: state.update({G: torch.ones(15, 1)})
    ),
    f"{G} has shape (16, 4) and {V} (16, 4): weight_norm": lambda state: state.update({G: state[V]}),
    f"{G} has shape (16,) and {V} (16, 4)": lambda state: state.update({G: torch.ones(16)}),
    f"{G} has shape (1, 1) and {V} (16, 4)": lambda state: state.update({G: torch.ones(1, 1)}),
    f"{G} is float64 and {V} float32: cast both": lambda state: state.update({G: state[G].double()}),
    f"{G} is int8 and {V} int8: cast": (
        lambda state: state.update({G: state[G].char(), V: state[V].char()})
    ),
    "the file holds rnn.weight_hh_l0 in two parametrizations that contradict each other": (
        lambda state: state.update({"rnn.weight_hh_l0": torch.ones(16, 5)})
    ),
    "rnn.weight_ih_l0 is computed from rnn.weight_ih_l0_g, rnn.weight_ih_l0_raw by code": (
        lambda state: state.update(
            {f"rnn.weight_ih_l0_{part}": state["rnn.weight_ih_l0"] for part in ("g", "raw")}
        ) or state.pop("rnn.weight_ih_l0")
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_parts_that_do_not_fit(tmp_path: Path, said: str):
    source = spoilt(tmp_path, REFUSED[said])
    message = refusal("convert", source, "--to", "keras", "-o", tmp_path / "x.npz")
    assert message.startswith(f"{source}: {said}")
    assert not (tmp_path / "x.npz").exists()


def test_a_raw_weight_of_another_shape(tmp_path: Path):
    state = nn.ModuleDict({"0": WeightDropout(nn.LSTM(INPUTS, HIDDEN))}).state_dict()
    torch.save({**state, "0.weight_hh_l0_raw": torch.ones(3, 3)}, tmp_path / "x.pt")
    message = refusal("convert", tmp_path / "x.pt", "--to", "keras", "-o", tmp_path / "x.npz")
    assert "torch.rnn comes nearest" in message
    assert "0.module.weight_hh_l0 has shape (3, 3)" in message


OTHERS: dict[str, tuple[Callable[[nn.Module], Any], str, str]] = {
    "spectral norm": (
        lambda layer: parametrizations.spectral_norm(layer, "weight_hh_l0"),
        "rnn.parametrizations.weight_hh_l0.0._u, rnn.parametrizations.weight_hh_l0.0._v, "
        "rnn.parametrizations.weight_hh_l0.original",
        "torch.nn.utils.parametrize.remove_parametrizations(layer, name)",
    ),
    "old spectral norm": (
        lambda layer: nn.utils.spectral_norm(layer, "weight_hh_l0"),
        "rnn.weight_hh_l0_orig, rnn.weight_hh_l0_u, rnn.weight_hh_l0_v",
        "torch.nn.utils.remove_spectral_norm(layer, name)",
    ),
    "orthogonal": (
        lambda layer: parametrizations.orthogonal(layer, "weight_hh_l0"),
        "rnn.parametrizations.weight_hh_l0.0.base, rnn.parametrizations.weight_hh_l0.original",
        "torch.nn.utils.parametrize.remove_parametrizations(layer, name)",
    ),
    "pruned": (
        lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", 2),
        "rnn.weight_hh_l0_mask, rnn.weight_hh_l0_orig",
        "torch.nn.utils.prune.remove(layer, name)",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_code_could_make_is_refused_with_what_to_do(tmp_path: Path, name: str):
    change, parts, advice = OTHERS[name]
    model = Model()
    change(model.rnn)
    state = dict(reversed(model.state_dict().items()))
    torch.save({**state, **nn.GRU(INPUTS, HIDDEN).state_dict(prefix="other.")}, tmp_path / "x.pt")
    said = f"rnn.weight_hh_l0 is computed from {parts} by code that the file does not have: {advice} turns it"
    for more in ((), ("--module", "rnn")):
        assert said in refusal("convert", tmp_path / "x.pt", "--to", "keras", "-o", tmp_path / "x.npz", *more)
    convert_file(tmp_path / "x.pt", "keras", tmp_path / "x.npz", choice=LayoutChoice(module="other"))


def test_a_list_of_parametrizations_that_is_out_of_order_or_has_gaps(tmp_path: Path):
    model = Model()
    parametrizations.weight_norm(model.rnn, "weight_hh_l0")
    assert parametrize.is_parametrized(model.rnn)
    state = model.state_dict()
    torch.save(dict(reversed(state.items())), tmp_path / "x.pt")
    torch.save(state, tmp_path / "y.pt")
    found = [read(tmp_path / name).modules[0].arrays["weight_hh_l0"] for name in ("x.pt", "y.pt")]
    assert np.array_equal(found[0], found[1])
    front = "rnn.parametrizations.weight_hh_l0.original"
    state[f"{front}2"] = state.pop(f"{front}1")
    torch.save(state, tmp_path / "z.pt")
    message = refusal("convert", tmp_path / "z.pt", "--to", "keras", "-o", tmp_path / "x.npz")
    assert f"is computed from {front}0, {front}2 by code that the file does not have" in message


def test_what_a_layer_has_beside_its_weight_is_none_of_its_parts(tmp_path: Path):
    model = Model()
    model.rnn.register_buffer("weight_hh_l0_mask", torch.ones(16, 4))
    torch.save(model.state_dict(), tmp_path / "x.pt")
    message = refusal("convert", tmp_path / "x.pt", "--to", "keras", "-o", tmp_path / "x.npz")
    assert "rnn has rnn.weight_hh_l0_mask, which torch.lstm does not have" in message


class Scaled(nn.Module):
    """A parametrization of somebody's own, of two tensors of the same shape."""

    def forward(self, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return scale * weight

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full_like(weight, 2), weight / 2


class Lengths(Scaled):
    """The same, whose tensors have the shapes of weight_norm's."""

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((len(weight), 1), 2.0), weight / 2


def test_a_parametrization_of_two_tensors_is_weight_norm_by_its_shapes_alone_and_that_is_said(tmp_path: Path):
    model = Model()
    parametrize.register_parametrization(model.rnn, "weight_hh_l0", Scaled())
    torch.save(model.state_dict(), tmp_path / "x.pt")
    message = refusal("convert", tmp_path / "x.pt", "--to", "keras", "-o", tmp_path / "x.npz")
    assert "weight_norm has one length for each" in message
    model = Model()
    parametrize.register_parametrization(model.rnn, "weight_hh_l0", Lengths())
    torch.save(model.state_dict(), tmp_path / "y.pt")
    done = convert_file(tmp_path / "y.pt", "keras", tmp_path / "y.npz")
    assert "assumed to be weight_norm" in str(done.reports["rnn."])


def test_weights_of_single_gates_are_no_parts_of_a_weight(tmp_path: Path):
    cell = {f"cell.weight_{side}_{gate}": torch.ones(4, 4) for side in ("ih", "hh") for gate in "ifgo"}
    torch.save({**cell, **nn.LSTM(INPUTS, HIDDEN).state_dict(prefix="rnn.")}, tmp_path / "x.pt")
    done = convert_file(tmp_path / "x.pt", "keras", tmp_path / "x.npz")
    assert set(done.account.left) == set(cell)
