"""Everything that a file holds is accounted for: nothing is taken by its shape, joined by guess, or lost."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from command_line import refusal, stepnet
from tolerance import assert_close
from torch import nn

os.environ["KERAS_BACKEND"] = "torch"
import keras

from stepnet.layout.files import LayoutChoice, interchange, read, weights, write

# Keras on PyTorch, with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")

Array = np.ndarray[Any, np.dtype[Any]]
INPUTS, HIDDEN, TIME = 3, 4, 6
X = np.random.default_rng(0).normal(size=(2, TIME, INPUTS)).astype("float32")


def saved(path: Path, module: nn.Module) -> Path:
    torch.save(module.state_dict(), path)
    return path


def savez(path: Path, **arrays: Any) -> None:
    """Writes a .npz file."""
    np.savez(path, **arrays)


def account(*arguments: object) -> dict[str, Any]:
    """The account of a conversion."""
    code, stdout, stderr = stepnet("convert", *arguments, "--json")
    assert (code, stderr) == (0, "")
    return json.loads(stdout)["account"]


# ---- cells


CELLS: dict[str, tuple[type[nn.RNNCellBase], dict[str, Any], tuple[str, ...]]] = {
    "gru": (nn.GRUCell, {}, ()),
    "lstm": (nn.LSTMCell, {}, ()),
    "rnn": (nn.RNNCell, {"nonlinearity": "relu"}, ("--semantics", "activation=relu")),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_of_pytorch_is_that_with_all_its_biases(tmp_path: Path, name: str, bias: bool):
    kind, options, said = CELLS[name]
    torch.manual_seed(1)
    cell = kind(INPUTS, HIDDEN, bias=bias, **options)
    source, out = saved(tmp_path / "cell.pt", cell), tmp_path / "cell.npz"
    (module,) = read(source).modules
    assert module.layout == f"torch.{name}_cell"
    stated = account(source, "--to", f"keras.{name}", "-o", out, "--verify", *said)
    assert stated["left"] == []
    assert set(stated["converted"][""]) == set(cell.state_dict())
    state = None
    for step in range(TIME):
        state = cell(torch.from_numpy(X[:, step]), state)
    last = state[0] if isinstance(state, tuple) else state
    assert last is not None
    semantics = {"candidate_activation": "relu"} if name == "rnn" else {}
    (written,) = read(out, f"keras.{name}").modules
    side = weights(type(written)(**{**vars(written), "semantics": semantics}))
    found = side.layers()(X, last_only=True)[0]
    assert_close(found, last.detach().numpy(), length=TIME, width=INPUTS + HIDDEN)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(INPUTS, HIDDEN)
        self.decoder = nn.LSTMCell(INPUTS, HIDDEN)
        self.head = nn.Linear(HIDDEN, 2)


def test_cells_beside_layers_do_not_vanish(tmp_path: Path):
    source = saved(tmp_path / "mixed.pt", Mixed())
    stated = account(source, "--to", "keras", "-o", tmp_path / "out.npz")
    assert list(stated["converted"]) == ["encoder.", "decoder."]
    assert stated["left"] == ["head.weight", "head.bias"]
    stated = account(source, "--to", "keras", "-o", tmp_path / "one.npz", "--module", "decoder")
    assert stated["layers"] == ["encoder. (torch.lstm)"]
    assert len(stated["left"]) == 6


# ---- names, not shapes


def test_what_other_frameworks_call_alike_is_told_by_all_its_names(tmp_path: Path):
    random = np.random.default_rng(2)
    arrays = {
        "kernel": random.normal(size=(INPUTS, 3 * HIDDEN)),
        "recurrent_kernel": random.normal(size=(HIDDEN, 3 * HIDDEN)),
        "bias": random.normal(size=3 * HIDDEN),
    }
    savez(tmp_path / "haste.npz", **arrays, recurrent_bias=random.normal(size=3 * HIDDEN))
    assert read(tmp_path / "haste.npz").modules[0].layout == "haste.gru"
    savez(tmp_path / "keras.npz", **arrays)
    assert read(tmp_path / "keras.npz").modules[0].layout == "keras.gru_reset_before"


def test_an_lstm_that_two_frameworks_call_alike_is_asked_about(tmp_path: Path):
    """haste and Keras have the same names and shapes, and the gates in another order."""
    arrays = {"kernel": np.ones((INPUTS, 4 * HIDDEN)), "recurrent_kernel": np.ones((HIDDEN, 4 * HIDDEN))}
    savez(tmp_path / "lstm.npz", **arrays, bias=np.ones(4 * HIDDEN))
    said = refusal("convert", tmp_path / "lstm.npz", "--to", "torch", "-o", tmp_path / "out.pt")
    assert "keras.lstm" in said
    assert "haste.lstm" in said
    assert "--from" in said
    for layout in ("keras", "haste"):
        (module,) = LayoutChoice(layout).modules(read(tmp_path / "lstm.npz", layout))
        assert module.layout == f"{layout}.lstm"


def test_dense_layers_are_no_recurrent_ones(tmp_path: Path):
    dense = {"dense/kernel": np.ones((7, 3)), "dense/bias": np.ones(3)}
    savez(tmp_path / "dense.npz", **dense)
    assert read(tmp_path / "dense.npz").modules == ()
    mlp = nn.Sequential(nn.Linear(7, 12), nn.ReLU(), nn.Linear(12, 3))
    assert read(saved(tmp_path / "mlp.pt", mlp)).modules == ()
    gru = {f"gru/{name}": array for name, array in GRU.items()}
    savez(tmp_path / "both.npz", **dense, **gru)
    assert [module.name for module in read(tmp_path / "both.npz").modules] == ["gru/"]


GRU = {"kernel": np.ones((3, 12)), "recurrent_kernel": np.ones((4, 12)), "bias": np.ones((2, 12))}


# ---- what a layer has besides


class Peepholes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(INPUTS, HIDDEN)
        self.rnn.register_parameter("weight_ci_l0", nn.Parameter(torch.ones(HIDDEN)))
        self.rnn.add_module("ln", nn.LayerNorm(HIDDEN))


def test_what_a_layer_has_besides_its_layout_is_an_error_unless_it_is_named(tmp_path: Path):
    source, out = saved(tmp_path / "peepholes.pt", Peepholes()), tmp_path / "out.npz"
    said = refusal("convert", source, "--to", "keras", "-o", out)
    assert said == (
        f"{source}: rnn has rnn.weight_ci_l0, rnn.ln.weight, rnn.ln.bias, which torch.lstm does not have: "
        "say --from LAYOUT (Python: layout=LAYOUT) if the layer has another "
        "layout, or --drop NAME (Python: drop=[NAME]) to leave an array out"
    )
    drop = ("--drop", "rnn.weight_ci_l0", "--drop", "rnn.ln.weight")
    assert "rnn has rnn.ln.bias, which" in refusal("convert", source, "--to", "keras", "-o", out, *drop)
    stated = account(source, "--to", "keras", "-o", out, *drop, "--drop", "rnn.ln.bias")
    assert stated["left"] == ["rnn.weight_ci_l0", "rnn.ln.weight", "rnn.ln.bias"]
    said = refusal("convert", source, "--to", "keras", "-o", out, "--force", "--drop", "rnn.nothing")
    assert said.endswith(
        "no unconverted array is called 'rnn.nothing': there is nothing for --drop to leave out"
    )


RUNS = {
    "verify": ("verify", "{file}", "{file}"),
    "verify a layout": ("verify", "keras.lstm", "{file}"),
    "run": ("run", "--recurrent-only", "{file}", "--input", "{x}", "-o", "{y}"),
    "explain": ("explain", "--recurrent-only", "{file}"),
}


def held_by(command: str, tmp_path: Path, source: Path, drop: tuple[str, ...]) -> str:
    """The message of a command that runs a file whose layer has more, before that is left out by name."""
    if not (tmp_path / "x.parquet").exists():
        parquet.write_table(pa.table({"x": X.tolist()}), tmp_path / "x.parquet")
    places = {"file": source, "x": tmp_path / "x.parquet", "y": tmp_path / "y.parquet"}
    arguments = [part.format(**places) for part in RUNS[command]]
    said = refusal(*arguments)
    converted = refusal("convert", source, "--to", "keras", "-o", tmp_path / "out.npz")
    assert said == converted.replace(
        ", or --rest copy (Python: rest='copy') if they are not part of the layer", ""
    )
    assert not (tmp_path / "y.parquet").exists()
    wrong = refusal(*arguments, "--drop", "nothing.at_all")
    assert "no unconverted array is called 'nothing.at_all'" in wrong
    left = [part for name in drop for part in ("--drop", name)]
    code, _, stderr = stepnet(*arguments, *left)
    assert (code, stderr) == (0, "")
    (tmp_path / "y.parquet").unlink(missing_ok=True)
    return said


@pytest.mark.parametrize("command", RUNS)
def test_what_runs_a_file_accounts_for_it_as_a_conversion_does(tmp_path: Path, command: str):
    names = ("rnn.weight_ci_l0", "rnn.ln.weight", "rnn.ln.bias")
    said = held_by(command, tmp_path, saved(tmp_path / "peepholes.pt", Peepholes()), names)
    assert "rnn has rnn.weight_ci_l0, rnn.ln.weight, rnn.ln.bias, which torch.lstm does not have" in said
    flat = nn.LSTM(INPUTS, HIDDEN)
    flat.add_module("head", nn.Linear(HIDDEN, 2))
    said = held_by(command, tmp_path, saved(tmp_path / "flat.pt", flat), ("head.weight", "head.bias"))
    assert said.endswith("or --drop NAME (Python: drop=[NAME]) to leave an array out")


def test_verify_drops_what_either_file_has(tmp_path: Path):
    here, there = saved(tmp_path / "here.pt", Peepholes()), tmp_path / "there.npz"
    names = ("rnn.weight_ci_l0", "rnn.ln.weight", "rnn.ln.bias")
    drop = [part for name in names for part in ("--drop", name)]
    assert stepnet("convert", here, "--to", "torch", "-o", there, *drop)[0] == 0
    assert "rnn.ln.bias, which" in refusal("verify", there, here, *drop[:4])
    assert stepnet("verify", there, here, *drop)[0] == 0


def test_the_activation_of_an_rnn_is_asked_for(tmp_path: Path):
    source = saved(tmp_path / "rnn.pt", nn.RNN(INPUTS, HIDDEN, nonlinearity="relu"))
    said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "out.npz")
    assert "do not determine candidate_activation" in said
    assert "--semantics candidate_activation=VALUE" in said


# ---- layers in a row


def model(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((TIME, INPUTS)), *layers])


def keras_lstm(**options: Any) -> Any:
    return keras.layers.LSTM(HIDDEN, return_sequences=True, **options)


BETWEEN: dict[str, list[Any]] = {
    "a norm": [keras_lstm(name="below"), keras.layers.LayerNormalization(), keras_lstm(name="above")],
    "a dense layer": [keras_lstm(name="below"), keras.layers.Dense(7), keras_lstm(name="above")],
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("ending", [".onnx", ".tflite", ".keras"])
def test_what_lies_between_two_layers_is_not_lost(tmp_path: Path, name: str, ending: str):
    source, out = tmp_path / "model.keras", tmp_path / f"out{ending}"
    model(*BETWEEN[name]).save(source)
    target = {".onnx": "onnx", ".tflite": "tflite"}.get(ending, "keras")
    said = refusal("convert", source, "--to", target, "-o", out)
    assert f"{out} would run above over the outputs of below; it takes " in said
    assert "instead: take one by itself, say --module NAME" in said
    assert not out.exists()
    stated = account(source, "--to", target, "-o", out, "--module", "above")
    assert len(stated["layers"]) == 2
    assert stated["layers"][1] == "below (keras.lstm)"


def test_branches_are_no_row(tmp_path: Path):
    entrance = keras.Input((TIME, INPUTS))
    left, right = (keras_lstm(name=name)(entrance) for name in ("left", "right"))
    keras.Model(entrance, keras.layers.Add()([left, right])).save(tmp_path / "branches.keras")
    said = refusal("convert", tmp_path / "branches.keras", "--to", "onnx", "-o", tmp_path / "out.onnx")
    assert "would run right over the outputs of left" in said
    coder = nn.ModuleDict({"encoder": nn.GRU(INPUTS, HIDDEN), "decoder": nn.GRU(HIDDEN, HIDDEN)})
    source = saved(tmp_path / "coder.pt", coder)
    said = refusal("convert", source, "--to", "onnx", "-o", tmp_path / "out.onnx")
    assert "the file does not say that it takes them: say --stack (Python: stack=True) if it does" in said
    stated = account(source, "--to", "onnx", "-o", tmp_path / "out.onnx", "--stack", "--verify")
    assert stated["left"] == []


def test_layers_in_a_row_are_one_model_which_runs_as_keras_runs_it(tmp_path: Path):
    import onnxruntime

    made = model(keras_lstm(), keras.layers.Dropout(0.5), keras_lstm(), keras.layers.Dense(2))
    source, out = tmp_path / "row.keras", tmp_path / "row.onnx"
    made.save(source)
    stated = account(source, "--to", "onnx", "-o", out, "--verify")
    assert [name.partition(" ")[2] for name in stated["layers"]] == [
        "(Dropout, which changes nothing in use)",
        "(Dense)",
    ]
    inner = keras.Model(made.inputs[0], made.layers[2].output)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    found = np.asarray(session.run(["output"], {"input": X})[0])
    right = keras.ops.convert_to_numpy(inner(X))
    assert_close(found, right, length=2 * TIME, width=INPUTS + HIDDEN)


# ---- verification


@pytest.mark.parametrize("ending", [".onnx", ".keras", ".npz"])
def test_verification_is_of_the_file_that_was_written(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
):
    source = saved(tmp_path / "gru.pt", nn.GRU(INPUTS, HIDDEN))

    def spoilt(path: Any, modules: Any, *arguments: Any, **options: Any) -> None:
        (module,) = modules
        name, array = next(iter(module.arrays.items()))
        changed = type(module)(**{**vars(module), "arrays": {**module.arrays, name: array + 0.01}})
        write(path, (changed,), *arguments, **options)

    monkeypatch.setattr(interchange, "write", spoilt)
    target = "onnx" if ending == ".onnx" else "keras"
    code, _, stderr = stepnet("convert", source, "--to", target, "-o", tmp_path / f"out{ending}", "--verify")
    assert code == 1
    assert "the difference is more than rounding" in stderr


def test_layouts_are_said_by_module_and_by_family(tmp_path: Path):
    arrays = {f"a/{name}": array for name, array in GRU.items()}
    arrays |= {"b/linear/w": np.ones((7, 16)), "b/linear/b": np.ones(16)}
    savez(tmp_path / "two.npz", **arrays)
    assert [module.name for module in read(tmp_path / "two.npz").modules] == ["a/"]
    both = read(tmp_path / "two.npz", None, {"b": "haiku.lstm"}).modules
    assert [module.name for module in both] == ["b/", "a/"]
    assert [module.layout for module in both] == ["haiku.lstm", "keras.gru"]
    out = tmp_path / "out.npz"
    options = ("--to", "torch", "-o", out, "--module", "a", "--from", "keras2")
    asked = refusal("convert", tmp_path / "two.npz", *options)
    assert "keras2.gru: the arrays do not determine gate_activation (its name there: recurrent" in asked
    options = (*options, "--semantics", "recurrent_activation=sigmoid")
    assert account(tmp_path / "two.npz", *options)["left"] == ["b/linear/w", "b/linear/b"]
    assert "no framework is called 'kreas'" in refusal(
        "convert", tmp_path / "two.npz", "--to", "torch", "-o", tmp_path / "other.npz", "--from", "kreas"
    )
