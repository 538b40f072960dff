"""Layers of no inputs, or of no units, are refused by what reads and what writes them."""

import json
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
from command_line import refusal

from stepnet.errors import StepnetError
from stepnet.layout import Sizes, find, record
from stepnet.layout.files import Module, write
from stepnet.layout.files.formats import by_ending

WIDTHS = [(0, 3), (2, 0), (0, 0)]
ENDINGS = (".pt", ".safetensors", ".npz", ".msgpack", ".pdparams", ".params")
LAYOUTS = ("torch.lstm", "torch.gru_cell", "keras.gru", "flax.lstm", "paddle.gru", "mxnet.lstm")
TARGETS = (("torch", ".pt"), ("keras", ".keras"), ("keras", ".npz"), ("onnx", ".onnx"), ("tflite", ".tflite"))


def arrays_of(layout: str, inputs: int, hidden: int) -> dict[str, Any]:
    """The arrays of a layout, of 5 inputs and 7 units, cut down to these widths."""
    whole = Sizes(5, 7)
    widths = {5: inputs, 7: hidden, 21: 3 * hidden, 28: 4 * hidden}
    shapes = record(layout).shapes(whole)
    return {name: np.zeros([widths.get(n, n) for n in shape], "f4") for name, shape in shapes.items()}


def refused_everywhere(source: Path, *said: str) -> None:
    """Whatever it is converted to, it is refused in one line, and nothing is written."""
    for target, ending in TARGETS:
        out = source.parent / f"out{ending}"
        assert refusal("convert", source, "--to", target, "-o", out, *said)
        assert not out.exists()
    assert refusal("explain", source, *said)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_by_name(tmp_path: Path, layout: str, widths: tuple[int, int]):
    arrays = arrays_of(layout, *widths)
    assert find({f"rnn.{name}": array.shape for name, array in arrays.items()}) == ()
    module = Module("rnn", (layout,), arrays)
    for ending in ENDINGS[:: 1 if layout == "torch.lstm" else len(ENDINGS) - 1]:
        source = tmp_path / f"model{ending}"
        write(source, (module,), {}, force=True)
        refused_everywhere(source)
        refused_everywhere(source, "--from", layout)


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_model_is_not_written(tmp_path: Path, widths: tuple[int, int]):
    for layout, ending in (("keras.lstm", ".keras"), ("keras.lstm", ".weights.h5"), ("onnx.lstm", ".onnx"),
                           ("keras2.lstm", ".h5"), ("tflite.lstm", ".tflite")):  # fmt: skip
        path = tmp_path / f"model{ending}"
        assert by_ending(path)
        semantics = {"gate_activation": "sigmoid"}
        module = Module("rnn", (layout,), arrays_of(layout, *widths), semantics=semantics)
        with pytest.raises(StepnetError):
            write(path, (module,))
        assert not path.exists()


@pytest.mark.parametrize(("inputs", "hidden"), WIDTHS)
def test_a_keras_file(tmp_path: Path, inputs: int, hidden: int):
    weights = BytesIO()
    with h5py.File(weights, "w") as file:
        for place, shape in enumerate([(inputs, 4 * hidden), (hidden, 4 * hidden), (4 * hidden,)]):
            file[f"layers/lstm/cell/vars/{place}"] = np.zeros(shape, "f4")
    config = {"name": "lstm", "units": hidden, "return_sequences": True}
    layers = [{"class_name": "LSTM", "module": "keras.layers", "config": config}]
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        whole = {"class_name": "Sequential", "config": {"layers": layers}}
        archive.writestr("config.json", json.dumps(whole))
        archive.writestr("metadata.json", '{"keras_version": "3.5.0"}')
        archive.writestr("model.weights.h5", weights.getvalue())
    refused_everywhere(tmp_path / "model.keras")


@pytest.mark.parametrize(("inputs", "hidden"), WIDTHS)
def test_an_onnx_file(tmp_path: Path, inputs: int, hidden: int):
    shapes = {"W": (1, 4 * hidden, inputs), "R": (1, 4 * hidden, hidden), "B": (1, 8 * hidden)}
    made = onnx.helper
    tensors = [onnx.numpy_helper.from_array(np.zeros(shape, "f4"), name) for name, shape in shapes.items()]
    node = made.make_node("LSTM", ["x", *shapes], ["y"], hidden_size=hidden)
    x, y = (made.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy")
    onnx.save(made.make_model(made.make_graph([node], "graph", [x], [y], tensors)), tmp_path / "model.onnx")
    refused_everywhere(tmp_path / "model.onnx")
