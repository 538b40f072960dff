"""Makes onnx.tar.xz and onnx.json: models that both exporters of PyTorch wrote, and what ONNX Runtime gives.

Each result is compared with PyTorch's own. Runs in the environment of the tests:
python tests/conformance/data/make_onnx.py
"""

import logging
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from recording import STEPS, Arrays, Corpus, turned
from torch_making import about, batch, called, filled
from torch_models import MODELS, Made

RECURRENT = ("LSTM", "GRU", "RNN")
DYNAMO = [
    "lstm",
    "lstm_steps",
    "lstm_stack_both",
    "gru_stack",
    "gru_both_steps",
    "rnn_tanh",
    "by_last_state",
    "by_last_output",
    "tagger",
    "language",
    "lines",
    "voice",
    "translator",
    "residual",
    "pooled",
    "streaming",
    "sensors",
    "two_outputs",
    "conditioned",
]
LEGACY = [name for name in MODELS if name not in ("lstm_projected", "lstm_without_bias", "gru_time_major")]
"""Models by the exporter that writes them: neither writes projections that ONNX has."""


def axes(name: str, made: Made) -> dict[int, str]:
    """The open axes of an input."""
    kind = made.inputs[name]
    if kind == "state":
        return {1: "batch"}
    if kind in ("context", "lengths"):
        return {0: "batch"}
    return {0: "batch", 1: "time"} if made.axes == "batch" else {0: "time", 1: "batch"}


def legacy(module: torch.nn.Module, made: Made, given: Arrays, path: Path) -> None:
    """Writes a file by the exporter of TorchScript."""
    torch.onnx.export(
        module,
        tuple(map(torch.from_numpy, given.values())),
        path,
        dynamo=False,
        input_names=list(given),
        output_names=list(made.outputs),
        dynamic_axes={name: axes(name, made) for name in given},
    )


def dynamo(module: torch.nn.Module, made: Made, given: Arrays, path: Path) -> None:
    """Writes a file by the exporter of torch.export."""
    open_axes = {axis: torch.export.Dim(axis) for axis in ("batch", "time")}
    shapes = tuple({place: open_axes[axis] for place, axis in axes(name, made).items()} for name in given)
    torch.onnx.export(
        module,
        tuple(map(torch.from_numpy, given.values())),
        path,
        dynamo=True,
        input_names=list(given),
        output_names=list(made.outputs),
        dynamic_shapes=shapes,
        external_data=False,
        verbose=False,
    )


def around(model: onnx.ModelProto) -> dict[str, str]:
    """The operators of a model but its recurrent ones and its constants, by the names of their nodes."""
    return {
        node.name or node.output[0]: node.op_type
        for node in model.graph.node
        if node.op_type not in (*RECURRENT, "Constant")
    }


def example(name: str) -> Arrays:
    """Inputs to export a model with, the first axis first."""
    made = MODELS[name]
    return turned(batch(name, made), made.inputs, made.axes)


def write(name: str, exporter: str, path: Path) -> None:
    """Writes the file of one model by one exporter."""
    silence()
    {"legacy": legacy, "dynamo": dynamo}[exporter](filled(name), MODELS[name], example(name), path)


def add(corpus: Corpus, name: str, exporter: str) -> None:
    """Runs one model that has been written."""
    made, module = MODELS[name], filled(name)
    title = f"{name}_{exporter}"
    path = corpus.folder / f"{title}.onnx"
    session = onnxruntime.InferenceSession(path)
    taken = [one.name for one in session.get_inputs()]
    names = [one.name for one in session.get_outputs()]
    fixed = STEPS in session.get_inputs()[0].shape

    def run(given: Arrays) -> Arrays:
        results = dict(zip(names, session.run(None, {key: given[key] for key in taken}), strict=True))
        for right, found in zip(called(module, made, given).values(), results.values(), strict=True):
            np.testing.assert_allclose(found, right, atol=2e-5, rtol=2e-5)
        return results

    corpus.add(
        run,
        batch(name, made),
        results="padded, row 0" if fixed else "padded, alone",
        name=title,
        kind="onnx",
        file=path.name,
        about=f"{about(name)}; torch.onnx.export, dynamo={exporter == 'dynamo'}",
        around=around(onnx.load(path)),
        inputs=made.inputs,
        axes=made.axes,
        limits="7 steps, as the exporter fixed them" if fixed else "",
    )


def silence() -> None:
    """Leaves out what the exporters say about their own working."""
    warnings.simplefilter("ignore")
    logging.disable()
    onnxruntime.set_default_logger_severity(4)


def main() -> None:
    silence()
    version = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
    corpus = Corpus("PyTorch and ONNX Runtime", version)
    for name in LEGACY:
        write(name, "legacy", corpus.folder / f"{name}_legacy.onnx")
    # torch.export leaves the number of steps open in the first model of a process alone.
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:
        paths = [corpus.folder / f"{name}_dynamo.onnx" for name in DYNAMO]
        list(pool.map(write, DYNAMO, ["dynamo"] * len(DYNAMO), paths))
    for exporter, names in (("legacy", LEGACY), ("dynamo", DYNAMO)):
        for name in names:
            add(corpus, name, exporter)
    corpus.pack("onnx")


if __name__ == "__main__":
    main()
