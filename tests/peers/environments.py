"""The scripts that ask frameworks, and their environments: .venv, or one of its own in .peers."""

import sys
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
CELL_SCRIPTS = {"cell_functions": ".peers/fla"}
"""The scripts that are asked about cells; the others are asked about layouts."""


def python(environment: str) -> Path:
    """The interpreter of an environment; that of .venv is the one that runs the tests."""
    return Path(sys.executable) if environment == ".venv" else ROOT / environment / "bin" / "python"


def saved(script: str) -> Path:
    """The results of a script's last run, kept so that no framework is needed to check the layouts."""
    return HERE / "saved" / f"{script}.npz"
