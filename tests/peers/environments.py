"""Which script asks which framework, and in which environment: .venv, or one of its own in .peers."""

from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SCRIPTS = {
    "torch_layers": ".venv",
    "keras_layers": ".venv",
    "onnxruntime_nodes": ".venv",
    "openvino_operators": ".peers/openvino",
    "tensorflow_cells": ".peers/tensorflow",
    "jax_cells": ".peers/jax",
    "paddle_layers": ".peers/paddle",
    "mxnet_layers": ".peers/mxnet",
    "mlx_layers": ".peers/mlx",
    "ncnn_layers": ".peers/ncnn",
    "chainer_links": ".peers/chainer",
    "flashrnn_functions": ".peers/flashrnn",
}


def python(script: str) -> Path:
    """The interpreter that a script runs in."""
    return ROOT / SCRIPTS[script] / "bin" / "python"


def saved(script: str) -> Path:
    """What a script gave when it last ran, kept so that no framework is needed to check the layouts."""
    return HERE / "saved" / f"{script}.npz"
