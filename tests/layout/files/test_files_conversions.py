"""Files of TensorFlow and of Keras 1 and 2, converted by the command line, against what these computed."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from command_line import refusal, stepnet
from saved_arrays import saved_arrays
from tolerance import assert_close
from torch import nn

from stepnet.layout.files import read, weights
from tests.layout.files.test_files_checkpoint import entry, floats, save

DATA = Path(__file__).parent / "data"
TENSORFLOW, KERAS = saved_arrays(DATA / "checkpoints.npz"), saved_arrays(DATA / "keras.npz")
HIDDEN, INPUTS, TIME = 3, 2, 5
Array = np.ndarray[Any, np.dtype[Any]]


def convert(source: Path, target: str, out: Path, *options: str) -> Path:
    """A converted file, which computes what its source does."""
    code, text, errors = stepnet("convert", source, "--to", target, "-o", out, "--verify", *options)
    assert (code, errors) == (0, "")
    assert "): largest difference " in text or "verified: largest difference " in text
    return out


def in_torch(
    path: Path, cell: type[nn.RNNBase], x: Array, front: str = "", **options: Any
) -> tuple[Array, Any]:
    """The results of torch for a state dict, or for a part of it: the outputs, and the last states."""
    state = torch.load(path, weights_only=True)
    state = {name.removeprefix(front): value for name, value in state.items() if name.startswith(front)}
    module = cell(x.shape[-1], HIDDEN, batch_first=True, **options)
    module.load_state_dict(state)
    with torch.no_grad():
        outputs, states = module(torch.from_numpy(x))
    return outputs.numpy(), states


def in_onnxruntime(path: Path, x: Array) -> Array:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["output"], {"input": x})[0])


def ours(path: Path, x: Array, semantics: Mapping[str, Any], name: str | None = None) -> Array:
    """The results of stepnet for a module of a file."""
    model = read(path)
    (module,) = model.modules if name is None else [model.chosen(name)]
    side = weights(replace(module, layouts=module.layouts[:1], semantics={**module.semantics, **semantics}))
    return side.layers()(x)[0]


def close(found: Array, outputs: Array) -> None:
    assert_close(found, outputs, length=TIME, width=INPUTS + HIDDEN, dtype=np.float32)


# ---- TensorFlow checkpoints --------------------------------------------------------------------------------

LSTMS = ("tf1.basic_lstm", "tf1.lstm", "tf1.lstm_block", "tf1.cudnn_compatible_lstm")
GRUS = ("tf1.gru", "tf1.gru_block_v2")
FOUND = {
    "basic_lstm": {"rnn/basic_lstm_cell/": LSTMS},
    "lstm": {"model/rnn/lstm_cell/": ("tf1.lstm_projection",)},
    "gru": {"bidirectional_rnn/bw/gru_cell/": GRUS, "bidirectional_rnn/fw/gru_cell/": GRUS},
    "gru_2": {"model/layer_with_weights-0": ("keras2.gru",)},
    "kinds": {},
}
FILES = {
    "basic_lstm": ["basic_lstm", "basic_lstm.index", "basic_lstm.data-00000-of-00001", "basic_lstm_v1"],
    "lstm": ["lstm", "lstm.index", "lstm_v1"],
    "gru": ["gru", "gru.index", "gru.data-00001-of-00002"],
    "gru_2": ["gru_2", "gru_2.index"],
    "kinds": ["kinds.index", "kinds_v1"],
}


@pytest.mark.parametrize(("name", "file"), [(name, file) for name in FILES for file in FILES[name]])
def test_cells_are_found_in_every_file_of_a_checkpoint(name: str, file: str):
    model = read(DATA / file)
    assert {module.name: module.layouts for module in model.modules} == FOUND[name]
    start = f"{name}/"
    known = {key.removeprefix(start): TENSORFLOW[key] for key in TENSORFLOW if key.startswith(start)}
    taken = {given for module in model.modules for given in module.names.values()}
    assert taken | set(model.rest) == known.keys()
    assert not taken & set(model.rest)
    for module in model.modules:
        for own, given in module.names.items():
            np.testing.assert_array_equal(module.arrays[own], known[given])


@pytest.mark.parametrize("file", ["basic_lstm.index", "basic_lstm_v1"])
def test_a_basic_lstm_runs_in_torch(tmp_path: Path, file: str):
    said = ("--from", "tf1.basic_lstm", "--semantics", "forget_bias=1")
    out = convert(DATA / file, "torch", tmp_path / "out.pt", *said)
    found, _ = in_torch(out, nn.LSTM, TENSORFLOW["basic_lstm:inputs"])
    close(found, TENSORFLOW["basic_lstm:outputs"])
    out = convert(DATA / file, "torch", tmp_path / "none.pt", *said[:3], "forget_bias=0")
    other, _ = in_torch(out, nn.LSTM, TENSORFLOW["basic_lstm:inputs"])
    with pytest.raises(
        AssertionError, match=r"away, where .* is allowed"
    ):  # it is in no checkpoint, and matters
        close(other, TENSORFLOW["basic_lstm:outputs"])


@pytest.mark.parametrize("file", ["lstm.index", "lstm_v1"])
def test_peepholes_and_a_projection_in_pieces(tmp_path: Path, file: str):
    x, outputs = TENSORFLOW["lstm:inputs"], TENSORFLOW["lstm:outputs"]
    close(ours(DATA / file, x, {"forget_bias": 0.5}), outputs)
    out = convert(DATA / file, "tflite", tmp_path / "out.npz", "--semantics", "forget_bias=0.5")
    close(ours(out, x, {"cell_clip": 0.0, "projection_clip": 0.0}), outputs)


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_each_direction_of_a_gru_runs_in_onnxruntime(tmp_path: Path, way: str):
    module = f"bidirectional_rnn/{way[0]}w/gru_cell"
    said = ("--from", "tf1.gru", "--module", module)
    out = convert(DATA / "gru.index", "onnx", tmp_path / "out.onnx", *said)
    turn = slice(None, None, -1 if way == "backward" else 1)
    found = in_onnxruntime(out, np.ascontiguousarray(TENSORFLOW["gru:inputs"][:, turn]))
    close(found[:, turn], TENSORFLOW[f"gru:{way}"])


def test_a_checkpoint_of_tensorflow_2_runs_in_torch(tmp_path: Path):
    said = ("--semantics", "gate_activation=sigmoid", "--semantics", "candidate_activation=tanh")
    out = convert(DATA / "gru_2.index", "torch", tmp_path / "out.pt", *said)
    close(in_torch(out, nn.GRU, TENSORFLOW["gru_2:inputs"])[0], TENSORFLOW["gru_2:outputs"])


def test_what_a_checkpoint_does_not_tell_is_asked_for(tmp_path: Path):
    source, out = DATA / "basic_lstm.index", tmp_path / "out.pt"
    said = refusal("convert", source, "--to", "torch", "-o", out)
    assert said.startswith(f"{source}: ")
    assert f"fit {' and '.join(LSTMS)}, which shapes do not distinguish" in said
    said = refusal("convert", source, "--to", "torch", "-o", out, "--from", "tf1.lstm")
    assert "the arrays do not determine forget_bias" in said
    said = refusal("convert", DATA / "gru.index", "--to", "torch", "-o", out, "--from", "tf1.gru")
    assert "the source resets before the recurrent product and torch.gru after it" in said
    both = refusal(
        "convert", DATA / "gru.index", "--to", "onnx", "-o", tmp_path / "o.onnx", "--from", "tf1.gru"
    )
    assert both == (
        f"{DATA / 'gru.index'}: {tmp_path / 'o.onnx'} would run bidirectional_rnn/fw/gru_cell over the "
        "outputs of bidirectional_rnn/bw/gru_cell; the file does not say that it takes them: say --stack "
        "(Python: stack=True) if it does, or take one by itself, say --module NAME (Python: module=NAME)"
    )
    assert not list(tmp_path.iterdir())


def test_a_dense_layer_is_no_cell(tmp_path: Path):
    """Its kernel and bias have the shapes of a cell's."""

    def rows(front: str, start: int) -> dict[bytes, bytes]:
        shapes = {"kernel": (5, 12), "bias": (12,)}
        found = {"bias": entry(shapes["bias"], start, 48), "kernel": entry(shapes["kernel"], start + 48, 240)}
        return {f"{front}/{name}".encode(): value for name, value in found.items()}

    made = save(tmp_path, {**rows("dense", 0), **rows("rnn/basic_lstm_cell", 288)}, floats(*range(144)))
    model = read(made.with_suffix(".index"))
    assert [module.name for module in model.modules] == ["rnn/basic_lstm_cell/"]
    assert sorted(model.rest) == ["dense/bias", "dense/kernel"]
    made = save(tmp_path, rows("own/name", 0), floats(*range(72)))
    named = made.with_suffix(".index")
    assert read(named).modules == ()
    assert [module.name for module in read(named, "tf1").modules] == ["own/name/"]
    assert [module.name for module in read(named, None, {"own/name": "tf1.lstm"}).modules] == ["own/name/"]


# ---- files of Keras 1 and 2 --------------------------------------------------------------------------------

IN_TORCH: dict[str, type[nn.RNNBase]] = {
    "keras1_lstm": nn.LSTM,
    "keras2_lstm": nn.LSTM,
    "keras2_gru": nn.GRU,
    "keras2_cudnn_gru": nn.GRU,
    "keras2_cudnn_lstm": nn.LSTM,
}
BEFORE = ("keras1_gru", "keras1_bidirectional", "keras2_gru_before")


@pytest.mark.parametrize("name", [*IN_TORCH, *BEFORE, "keras2_bidirectional"])
def test_a_layer_runs_as_it_is(name: str):
    found = ours(DATA / f"{name}.h5", KERAS[f"{name}:inputs"], {})
    close(found[:, -1] if name == "keras2_gru_before" else found, KERAS[f"{name}:outputs"])


@pytest.mark.parametrize("name", IN_TORCH)
def test_a_layer_runs_in_torch(tmp_path: Path, name: str):
    out = convert(DATA / f"{name}.h5", "torch", tmp_path / "out.pt")
    close(in_torch(out, IN_TORCH[name], KERAS[f"{name}:inputs"])[0], KERAS[f"{name}:outputs"])


def test_directions_that_are_summed_are_said_to_be(tmp_path: Path):
    name, out = "keras2_bidirectional", tmp_path / "out.pt"
    source = DATA / f"{name}.h5"
    code, text, _ = stepnet("convert", source, "--to", "torch", "-o", out, "--verify")
    assert (code, text.count("largest difference 0 ")) == (0, 1)
    assert "  note: its directions are merged by sum, which the new file does not say\n" in text
    both, _ = in_torch(out, nn.LSTM, KERAS[f"{name}:inputs"], bidirectional=True)
    close(both[..., :HIDDEN] + both[..., HIDDEN:], KERAS[f"{name}:outputs"])
    said = refusal("convert", source, "--to", "onnx", "-o", tmp_path / "out.onnx")
    assert said.endswith("out.onnx: 'bidirectional' merges its directions by 'sum', and ONNX does not")
    again = convert(source, "keras", tmp_path / "out.keras")
    close(ours(again, KERAS[f"{name}:inputs"], {}), KERAS[f"{name}:outputs"])


@pytest.mark.parametrize("name", BEFORE)
def test_a_reset_before_the_product_runs_in_onnxruntime(tmp_path: Path, name: str):
    source = DATA / f"{name}.h5"
    said = refusal("convert", source, "--to", "torch", "-o", tmp_path / "out.pt")
    assert "the source resets before the recurrent product and torch.gru after it" in said
    found = in_onnxruntime(convert(source, "onnx", tmp_path / "out.onnx"), KERAS[f"{name}:inputs"])
    close(found, KERAS[f"{name}:outputs"])


@pytest.mark.parametrize("file", ["keras2_nested.h5", "keras2_nested.keras"])
def test_a_model_in_a_model_runs_in_torch(tmp_path: Path, file: str):
    """Its three layers, with the dense layer between them, and one's last states as another's first."""
    out, x = convert(DATA / file, "torch", tmp_path / "out.pt"), KERAS["keras2_nested:inputs"]
    kernel, bias = dense_of(DATA / file)
    first, states = in_torch(out, nn.LSTM, x, "lstm_2.")
    second, _ = in_torch(out, nn.GRU, first, "inner/gru_2.")
    last = nn.LSTM(2, HIDDEN, batch_first=True)
    state = torch.load(out, weights_only=True)
    last.load_state_dict(
        {name.removeprefix("lstm_3."): state[name] for name in state if name.startswith("lstm_3.")}
    )
    with torch.no_grad():
        outputs, _ = last(torch.from_numpy(second @ kernel + bias), states)
    assert_close(
        outputs[:, -1].numpy(), KERAS["keras2_nested:outputs"][:, :HIDDEN], length=3 * TIME, width=2 + HIDDEN
    )


def dense_of(path: Path) -> tuple[Array, Array]:
    rest = {name: array for name, array in read(path).rest.items() if "dense" in name}
    kernel, bias = sorted(rest.values(), key=lambda array: -array.ndim)
    return kernel, bias


def test_a_layer_that_goes_backwards_is_said_to(tmp_path: Path):
    """A file of arrays does not say so, one of ONNX does."""
    h5py: Any = import_module("h5py")
    source = tmp_path / "backwards.h5"
    source.write_bytes((DATA / "keras2_lstm.h5").read_bytes())
    with h5py.File(source, "r+") as file:
        config = file.attrs["model_config"]
        text = config.decode() if isinstance(config, bytes) else config
        assert text.count('"go_backwards": false') == 1
        file.attrs["model_config"] = text.replace('"go_backwards": false', '"go_backwards": true')
    code, text, _ = stepnet("convert", source, "--to", "torch", "-o", tmp_path / "out.npz", "--verify")
    assert (code, text.count("largest difference 0 ")) == (0, 1)
    assert "  note: it runs from each sequence's last step, which the new file does not say\n" in text
    out = tmp_path / "out.onnx"
    assert refusal("convert", source, "--to", "onnx", "-o", out) == (
        f"{source}: lstm runs from the last step and returns its outputs last step first; {out} would return "
        "them each at its own step: write a file of arrays instead, as .npz or .safetensors"
    )
    with h5py.File(source, "r+") as file:
        config = file.attrs["model_config"]
        text = config.decode() if isinstance(config, bytes) else config
        file.attrs["model_config"] = text.replace('"return_sequences": true', '"return_sequences": false')
    x = np.ascontiguousarray(KERAS["keras2_lstm:inputs"][:, ::-1])
    found = in_onnxruntime(convert(source, "onnx", out), x)
    close(found, KERAS["keras2_lstm:outputs"][:, -1])
