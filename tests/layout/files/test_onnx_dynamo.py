"""ONNX models of torch.onnx.export(dynamo=True): layers are nodes, or refused as written out step by step."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from command_line import refusal, stepnet
from tolerance import assert_close
from torch import nn

from stepnet.layout.files import read

pytest.importorskip("onnxscript")
INPUTS, HIDDEN, ROWS, TIME = 2, 3, 4, 5
X = torch.randn(ROWS, TIME, INPUTS, generator=torch.Generator().manual_seed(0))


class First(nn.Module):
    """Layers in a row, each without its final state, or the last output of the last one alone."""

    def __init__(self, *layers: Any, last_only: bool = False) -> None:
        super().__init__()
        self.layers, self.last_only = nn.ModuleList(layers), last_only

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)[0]
        return x[:, -1] if self.last_only else x


class Stepped(nn.Module):
    """A cell with the loop outside."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(INPUTS, HIDDEN)

    def forward(self, x: Any) -> Any:
        h = x.new_zeros(len(x), HIDDEN)
        for step in range(x.shape[1]):
            h = self.cell(x[:, step], h)
        return h


def exported(path: Path, model: nn.Module) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), (X,), path, dynamo=True, verbose=False)
    return path


# Every pair of two of them: class, layers, both directions, batch first, biases, the last output alone; and
# each of them in every second one.
CASES = [
    ("GRU", 1, False, True, True, True),
    ("GRU", 2, True, True, False, False),
    ("GRU", 2, True, False, True, False),
    ("LSTM", 1, True, True, True, False),
    ("LSTM", 2, False, True, False, True),
    ("LSTM", 1, True, False, False, False),
]


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("name", "count", "both", "batch_first", "bias", "last_only"), CASES)
def test_a_layer_becomes_the_same_again(
    tmp_path: Path, name: str, count: int, both: bool, batch_first: bool, bias: bool, last_only: bool
):
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_layers": count, "bidirectional": both, "bias": bias}
    layer, again = (getattr(nn, name)(INPUTS, HIDDEN, batch_first=batch_first, **options) for _ in range(2))
    model = First(layer, last_only=last_only)
    source = exported(tmp_path / "model.onnx", model)
    command = ("convert", source, "--verify", "-o")
    assert stepnet(*command, tmp_path / "x.pt", "--to", "torch")[0] == 0
    again.load_state_dict(torch.load(tmp_path / "x.pt", weights_only=True))
    with torch.no_grad():
        expected = layer(X)[0]
        torch.testing.assert_close(again(X)[0], expected, rtol=0, atol=0)
    assert stepnet(*command, tmp_path / "x.onnx", "--to", "onnx")[0] == 0
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    x, y = (one.numpy() if batch_first else one.numpy().swapaxes(0, 1) for one in (X, expected))
    found = np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])
    assert_close(found, y, length=max(ROWS, TIME), width=INPUTS + HIDDEN, dtype=np.float32)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("bias", [True, False])
def test_what_is_written_out_step_by_step_is_refused(tmp_path: Path, bias: bool):
    source = exported(tmp_path / "model.onnx", First(nn.RNN(INPUTS, HIDDEN, bias=bias, batch_first=True)))
    said = refusal("convert", source, "--to", "torch", "-o", tmp_path / "x.pt")
    assert "layers.0 is a torch.nn.RNN that its exporter wrote out step by step" in said
    assert "export it with dynamo=False, which makes nodes of it, or convert its state dict" in said


def test_a_cell_that_is_written_out_is_refused(tmp_path: Path):
    source = exported(tmp_path / "model.onnx", Stepped())
    said = refusal("convert", source, "--to", "torch", "-o", tmp_path / "x.pt")
    assert "cell is a torch.nn.GRUCell that its exporter wrote out step by step" in said
    assert "dynamo=False" not in said


def test_a_layer_beside_one_that_is_written_out(tmp_path: Path):
    layers = nn.GRU(INPUTS, HIDDEN, batch_first=True), nn.RNN(HIDDEN, HIDDEN, batch_first=True)
    source = exported(tmp_path / "model.onnx", First(*layers))
    command = ("convert", source, "--to", "torch", "-o", tmp_path / "x.pt")
    assert "layers.1 is a torch.nn.RNN that its exporter wrote out" in refusal(*command)
    assert "layers.1 is a torch.nn.RNN that its exporter wrote out" in refusal(
        "explain", "--recurrent-only", source
    )
    (gru,) = read(source).modules
    assert stepnet(*command, "--module", gru.name)[0] == 0
    again = nn.GRU(INPUTS, HIDDEN, batch_first=True)
    again.load_state_dict(torch.load(tmp_path / "x.pt", weights_only=True))
    torch.testing.assert_close(again(X)[0], layers[0](X)[0], rtol=0, atol=0)
