"""ONNX models written by hand, and judged by onnxruntime."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import uniform

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed")
ort: Any = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
stepnet_onnx: Any = pytest.importorskip("stepnet.onnx")
helper: Any = onnx.helper
numpy_helper: Any = onnx.numpy_helper
Array = np.ndarray
FLOAT = 1
OPSET = [helper.make_opsetid("", 17)]


def value(name: str, *sizes: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, list(sizes))


def model_of(
    nodes: Any, inputs: Any, outputs: Any, arrays: dict[str, Array] | None = None, opset: int = 17
) -> Any:
    initial = [numpy_helper.from_array(array, name) for name, array in (arrays or {}).items()]
    graph = helper.make_graph(nodes, "made", inputs, outputs, initial)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def theirs(model: Any, inputs: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, inputs)


def read(model: Any, axes: dict[str, str] | None = None) -> Any:
    """The graph of a model, read from a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "made.onnx"
        path.write_bytes(model.SerializeToString())
        return stepnet_onnx.load(path, axes=axes)


def assert_as_theirs(model: Any, inputs: dict[str, Array], length: int = 10, width: int = 30) -> None:
    made = stepnet_onnx.Backend.run_model(model, inputs, engine="interpret")
    for actual, right in zip(made, theirs(model, inputs), strict=True):
        assert_close(actual, right, length, width)


random = partial(uniform, seed=0)


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    names = [[name.strip("-") for name in text.split()] for text in (inputs, outputs)]  # - is left out
    return helper.make_node(op, *names, **attributes)
