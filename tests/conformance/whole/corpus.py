"""The models of saved/, and what their frameworks computed.

An archive KIND.tar.xz has files of models, and NAME.npz beside each, as recording.py says; KIND.json lists
them.
"""

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

SAVED = Path(__file__).parent / "saved"
KINDS = {
    "keras": "Keras 3, `.keras`",
    "h5": "Keras 3, `.h5`",
    "keras2": "Keras 2, `.h5`",
    "tflite": "TFLite",
    "openvino": "OpenVINO",
    "onnx": "ONNX",
    "pt2": "PyTorch, `.pt2`",
    "paddle": "PaddlePaddle, `.json`",
    "paddle_older": "PaddlePaddle, `.pdmodel`",
}
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Example:
    """A model of an archive.

    Attributes:
        kind: The archive, one of `KINDS`.
        file: The file that is loaded.
        about: What the model is.
        framework: The framework that saved it, with its version.
        width: The largest number of products that the model adds up.
        inputs: Names of inputs.
        steps: Those of `inputs` that have steps.
        outputs: Names of outputs, in the order of the framework.
    """

    kind: str
    name: str
    file: str
    about: str
    framework: str
    width: int
    inputs: tuple[str, ...]
    steps: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True)
class Call:
    """The inputs and the outputs of one call of a framework, each with the batch as first axis.

    lengths: for each input with steps, those of each row, where the batch is padded; empty otherwise.
    """

    inputs: Arrays
    outputs: Arrays
    lengths: Arrays


def example(kind: str, row: dict[str, Any]) -> Example:
    """Returns a line of a list as an example."""
    fields: dict[str, Any] = {
        key: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        for key, value in row.items()
    }
    return Example(kind, **fields)


EXAMPLES = [
    example(kind, row)
    for kind in KINDS
    if (SAVED / f"{kind}.json").exists()
    for row in json.loads((SAVED / f"{kind}.json").read_text())
]


def unpack(kind: str, folder: Path) -> Path:
    """Unpacks an archive into a folder of its own below `folder`, once, and returns that."""
    place = folder / kind
    if not place.exists():
        with tarfile.open(SAVED / f"{kind}.tar.xz") as archive:
            archive.extractall(place, filter="data")
    return place


def calls(example: Example, folder: Path) -> dict[str, Call]:
    """Returns what a framework computed: of single sequences (`alone/0` ...), and of a batch (`padded`)."""
    with np.load(folder / f"{example.name}.npz") as saved:
        arrays = dict(saved)
    titles = sorted({key.rsplit("/in/", 1)[0] for key in arrays if "/in/" in key})
    return {
        title: Call(
            {name: arrays[f"{title}/in/{name}"] for name in example.inputs},
            {name: arrays[f"{title}/out/{name}"] for name in example.outputs},
            {name: arrays[key] for name in example.steps if (key := f"{title}/lengths/{name}") in arrays},
        )
        for title in titles
    }
