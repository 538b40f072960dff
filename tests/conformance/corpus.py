"""The models of tests/conformance/data, and what their frameworks computed."""

import json
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"
PER_SEQUENCE = ("context", "lengths", "state")
ROWS = 3
STATES = {"h_n", "c_n"}
"""Outputs that are the last states of a recurrent layer of PyTorch's."""


@dataclass(frozen=True)
class Model:
    """A line of a manifest; data/recording.py says what the fields are."""

    archive: str
    name: str
    kind: str
    file: str
    framework: str
    version: str
    about: str
    around: dict[str, str]
    inputs: dict[str, str]
    outputs: list[str]
    axes: str
    limits: str

    @property
    def title(self) -> str:
        return f"{self.archive}/{self.name}"

    @property
    def sequences(self) -> str:
        """The name of the first input that has steps."""
        return next(name for name, kind in self.inputs.items() if kind not in PER_SEQUENCE)

    @property
    def names(self) -> set[str]:
        """The names of which a refusal has to give one.

        They are those of what stands around the recurrence, and their classes or types; of its outputs, which
        in Keras are the names of layers; and of its inputs, if there are several.
        """
        outputs = (
            {name.rstrip("_0123456789") for name in self.outputs} if "keras" in self.kind else set[str]()
        )
        inputs = set(self.inputs) if len(self.inputs) > 1 else set[str]()
        return {*self.around, *self.around.values(), *outputs, *inputs}


MODELS = [
    Model(path.stem, **line) for path in sorted(DATA.glob("*.json")) for line in json.loads(path.read_text())
]


@dataclass(frozen=True)
class Call:
    """The inputs and the outputs of each sequence, by their names."""

    inputs: list[dict[str, np.ndarray]]
    outputs: list[dict[str, np.ndarray]]


def unpack(folder: Path) -> None:
    """Unpacks all archives, each into a folder of its own name."""
    for path in DATA.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder / path.name.removesuffix(".tar.xz"), filter="data")


def of_row(array: np.ndarray, row: int, states: bool, axes: str) -> np.ndarray:
    """The part of an array that belongs to a sequence: PyTorch's states have their axis of layers first."""
    axis = 1 if states or (axes == "time" and array.ndim > 1) else 0
    return array.take(row, axis)


def calls(model: Model, folder: Path) -> dict[str, Call]:
    """The results of a framework: `ragged`, of each sequence alone, and `padded`, of the batch, if any.

    Of a model that takes lengths, the batch is no sequences of equal length, and so is left out.
    """
    states = {name for name, kind in model.inputs.items() if kind == "state"} | STATES
    with np.load(folder / model.archive / f"{model.name}.npz") as saved:
        arrays = dict(saved)  # each is unpacked when it is taken
        ragged = [(f"alone/{row}", 0) for row in range(ROWS) if f"alone/{row}/in/{model.sequences}" in arrays]
        whole = f"padded/in/{model.sequences}" in arrays and "lengths" not in model.inputs.values()
        padded = [("padded", row) for row in range(ROWS)] if whole else []

        def read(
            places: list[tuple[str, int]], part: str, names: Iterable[str]
        ) -> list[dict[str, np.ndarray]]:
            return [
                {
                    name: of_row(arrays[f"{call}/{part}/{name}"], row, name in states, model.axes)
                    for name in names
                }
                for call, row in places
            ]

        return {
            title: Call(read(places, "in", model.inputs), read(places, "out", model.outputs))
            for title, places in (("ragged", ragged), ("padded", padded))
            if places
        }


def named(said: str, names: set[str]) -> set[str]:
    """The names that occur in a message, as words of their own."""
    return {name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said)}
