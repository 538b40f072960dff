"""Model files of a framework, with its own results, as an archive and a manifest beside it.

A script of a framework adds models to a `Corpus` and packs it: FRAMEWORK.tar.xz has the files and, for each
model, NAME.npz with its inputs and outputs; FRAMEWORK.json lists the models. Needs NumPy alone, as it runs in
the environment of each framework.

Every model is run on one batch of sequences of 7, 4 and 1 steps, padded to 7 with zeros (`padded`), and on
each sequence alone (`alone/0` to `alone/2`). The keys of NAME.npz are `lengths`, `padded/in/INPUT`,
`padded/out/OUTPUT`, `alone/0/in/INPUT`, `alone/0/out/OUTPUT` and so on.
"""

import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

HERE = Path(__file__).parent
LENGTHS = (7, 4, 1)
STEPS = max(LENGTHS)
FEATURES, WORDS, CONTEXT = 4, 12, 3
PER_SEQUENCE = ("context", "lengths", "state")
Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Model:
    """A line of a manifest.

    around: layers or operators around the recurrence, by name, with the class or the type of each. inputs:
    the kind of each input, by its name. axes: `batch` or `time`, the first axis of sequences. limits: for
    which inputs alone the model is made, so that there are fewer results; empty if there are all.
    """

    name: str
    kind: str
    file: str
    framework: str
    version: str
    about: str
    around: dict[str, str]
    inputs: dict[str, str]
    outputs: list[str]
    axes: str = "batch"
    limits: str = ""


def generator(name: str) -> np.random.Generator:
    """Random numbers that depend on a name alone."""
    return np.random.default_rng(list(name.encode()))


def weights(name: str, array_name: str, shape: tuple[int, ...], scale: float = 0.5) -> np.ndarray:
    """Weights that no two arrays have alike; what a variance or a scale is called is positive."""
    draw = generator(f"{name}/{array_name}")
    positive = any(word in array_name.rsplit("/", 1)[-1] for word in ("var", "gamma", "scale"))
    found = draw.uniform(0.5, 1.6, shape) if positive else draw.normal(0, scale, shape)
    return found.astype(np.float32)


def padded(name: str, kind: str, shape: tuple[int, ...] = (FEATURES,)) -> np.ndarray:
    """A batch of an input.

    kind: frames, images, tokens, context (numbers of a sequence), state (a memory to begin with, with its
    axis of layers first) or lengths. `gapped` ahead of frames and tokens: the third step of the first
    sequence is zero, and so is masked.
    """
    draw, rows = generator(f"{name}/{kind}"), len(LENGTHS)
    if kind == "lengths":
        return np.array(LENGTHS, np.int64)
    if kind == "context":
        return draw.normal(size=(rows, *shape)).astype(np.float32)
    if kind == "state":
        return draw.normal(size=(shape[0], rows, *shape[1:])).astype(np.float32)
    tokens = kind.endswith("tokens")
    full = draw.integers(1, WORDS, (rows, STEPS)) if tokens else draw.normal(size=(rows, STEPS, *shape))
    if kind.startswith("gapped"):
        full[0, 2] = 0
    for row, length in zip(full, LENGTHS, strict=True):
        row[length:] = 0
    return full.astype(np.int64 if tokens else np.float32)


def alone(batch: Arrays, kinds: dict[str, str], row: int) -> Arrays:
    """One sequence of a batch, as a batch of its own length."""
    found: Arrays = {}
    for name, array in batch.items():
        if kinds[name] == "state":
            found[name] = array[:, row : row + 1]
        elif kinds[name] in PER_SEQUENCE:
            found[name] = array[row : row + 1]
        else:
            found[name] = array[row : row + 1, : LENGTHS[row]]
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def turned(arrays: Arrays, kinds: dict[str, str], axes: str) -> Arrays:
    """The same inputs with the first axis that the model takes."""
    if axes == "batch":
        return arrays
    whole = {"state", *PER_SEQUENCE}
    return {
        name: array if kinds[name] in whole else np.ascontiguousarray(array.swapaxes(0, 1))
        for name, array in arrays.items()
    }


@dataclass
class Corpus:
    """The models of one framework, in the order in which they were made."""

    framework: str
    version: str
    models: list[Model] = field(default_factory=list)
    folder: Path = field(default_factory=lambda: Path(mkdtemp()))

    def add(self, run: Run, batch: Arrays, *, results: str = "padded, alone", **line: Any) -> Model:
        """Runs a model, of which the folder has the file already, and keeps its results and its line.

        batch: the padded inputs, batch first. results: `padded`, `alone`, both, or `row 0`: of those
        alone the longest.
        """
        kinds, axes = line["inputs"], line.get("axes", "batch")
        calls = {"padded": batch} if "padded" in results else {}
        if "alone" in results:
            calls |= {f"alone/{row}": alone(batch, kinds, row) for row in range(len(LENGTHS))}
        elif "row 0" in results:
            calls["alone/0"] = alone(batch, kinds, 0)
        arrays: Arrays = {"lengths": np.array(LENGTHS)}
        outputs: list[str] = []
        for call, given in calls.items():
            given = turned(given, kinds, axes)
            made = run(given)
            outputs = list(made)
            assert all(np.isfinite(array).all() for array in made.values()), (line["name"], call)
            arrays |= {f"{call}/in/{name}": array for name, array in given.items()}
            arrays |= {f"{call}/out/{name}": np.asarray(array) for name, array in made.items()}
        np.savez(self.folder / f"{line['name']}.npz", **arrays)
        common = {"framework": self.framework, "version": self.version, "outputs": outputs}
        self.models.append(Model(**{**common, **line}))
        print(f"{line['name']:32} {outputs} {' '.join(self.models[-1].around.values())}", flush=True)
        return self.models[-1]

    def pack(self, archive: str) -> None:
        """Writes ARCHIVE.tar.xz and ARCHIVE.json beside this file."""
        assert len({one.name for one in self.models}) == len(self.models)
        with tarfile.open(HERE / f"{archive}.tar.xz", "w:xz") as packed:
            for path in sorted(self.folder.iterdir()):
                packed.add(path, path.name)
        lines = [json.dumps(asdict(one)) for one in self.models]
        (HERE / f"{archive}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
        shutil.rmtree(self.folder)
