"""The model in a file: its whole graph if it has one, else its recurrent layers."""

from pathlib import Path

from stepnet.files.layers import layers_of
from stepnet.graph.graph import Graph
from stepnet.onnx import load as load_onnx
from stepnet.paddle import load as load_paddle
from stepnet.rnn.compose import Layer
from stepnet.values.arguments import file_path


def model_of(path: str | Path) -> Graph | Layer:
    """The graph in a file, or its recurrent layers if it has no graph.

    Raises `FileError` for a file that cannot be read, and `LayoutError` if the file does not specify what its
    arrays mean.
    """
    file = file_path(path, "model")
    graph = whole_graph(file)
    return layers_of(file)[0] if graph is None else graph


def whole_graph(file: Path) -> Graph | None:
    """The graph in a file of ONNX or PaddlePaddle; None for files of other kinds."""
    if file.suffix == ".onnx":
        return load_onnx(file)
    if file.suffix in (".pdmodel", ".json") and file.with_suffix(".pdiparams").exists():
        return load_paddle(file)
    return None
