"""Model files that a framework saved, and what its recurrent layers made of inputs: an archive for each.

A script of a framework fills a folder with files and calls `pack`; the tests call `unpack`. Needs NumPy
alone, as it runs in the environment of each framework.
"""

import json
import tarfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
INPUTS, HIDDEN, PROJECTED, ROWS, STEPS = 2, 3, 2, 2, 5
RANDOM = np.random.RandomState(11)
Numbers = dict[str, tuple[Any, Any]]  # by module: inputs and outputs, [rows, steps, features]


def random(*shape: int) -> Any:
    """Weights, or inputs: normal numbers in float32."""
    return (RANDOM.normal(size=shape) * 0.6).astype("float32")


@dataclass(frozen=True)
class Specimen:
    """A saved file, or folder, and its recurrent layers.

    numbers: what each layer makes of inputs, by its name in the file, every step at its own place. options:
    what has to be said of the file on the command line.
    """

    file: str
    what: str
    numbers: Numbers
    options: tuple[str, ...] = ()


@dataclass
class Specimens:
    """The specimens of one framework, in the order in which they were made."""

    versions: dict[str, str]
    made: list[Specimen] = field(default_factory=list)

    def add(self, file: str, what: str, numbers: Numbers, *options: str) -> None:
        """Adds the file of that name in the folder."""
        self.made.append(Specimen(file, what, numbers, options))


def pack(framework: str, folder: Path, specimens: Specimens) -> None:
    """Writes the archive of a framework: the folder's files, what they are, and all inputs and outputs."""
    arrays: dict[str, Any] = {}
    for one in specimens.made:
        for name, pair in one.numbers.items():
            for part, array in zip(("inputs", "outputs"), pair, strict=True):
                arrays[f"{one.file}|{name}|{part}"] = np.asarray(array, "float32")
    index = [{**asdict(one), "numbers": list(one.numbers)} for one in specimens.made]
    (folder / "specimens.json").write_text(json.dumps({"versions": specimens.versions, "made": index}))
    np.savez(folder / "numbers.npz", **arrays)
    with tarfile.open(HERE / "saved" / f"{framework}.tar.xz", "w:xz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)


def unpack(framework: str, folder: Path) -> Specimens:
    """The contents of an archive, unpacked into a folder."""
    with tarfile.open(HERE / "saved" / f"{framework}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    index = json.loads((folder / "specimens.json").read_text())
    found = Specimens(index["versions"])
    with np.load(folder / "numbers.npz") as arrays:
        for one in index["made"]:
            numbers = {
                name: (arrays[f"{one['file']}|{name}|inputs"], arrays[f"{one['file']}|{name}|outputs"])
                for name in one["numbers"]
            }
            found.add(one["file"], one["what"], numbers, *one["options"])
    return found
