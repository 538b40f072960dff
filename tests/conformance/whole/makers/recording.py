"""Whole models that a framework saved, with its own results, packed as an archive and a list beside it.

A generator of this folder makes a `Recorder` of its kind, adds a model at a time and packs it:
saved/KIND.tar.xz has each model's file, and NAME.npz with what the framework gave; saved/KIND.json lists the
models. Needs NumPy alone, as it runs in the environment of each framework.

Each model is run on a batch (`padded`) and on single sequences of several lengths (`alone/0`, `alone/1` ...).
The keys of NAME.npz are `CALL/in/INPUT` and `CALL/out/OUTPUT`, all with the batch as first axis and the
steps, if any, as second. The sequences of a batch have equal lengths unless the model masks or takes lengths:
then the batch has the single sequences as its rows, padded, and `padded/lengths/INPUT` has the steps of each.
Outputs in the padding are not compared.
"""

import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

SAVED = Path(__file__).parents[1] / "saved"
Arrays = Mapping[str, np.ndarray]
Run = Callable[[dict[str, np.ndarray]], Arrays]


def generator(name: str) -> np.random.Generator:
    """Returns random numbers that depend on a name alone."""
    return np.random.default_rng(list(name.encode()))


class Recorder:
    """The models of one kind of file, in the order in which they were made.

    Args:
        kind: The name of the archive.
        framework: The framework and its version, as the list says.
    """

    def __init__(self, kind: str, framework: str) -> None:
        self.kind, self.framework = kind, framework
        self.rows: list[dict[str, Any]] = []
        self.temporary = TemporaryDirectory()
        self.folder = Path(self.temporary.name)

    def add(
        self,
        name: str,
        file: str,
        about: str,
        run: Run,
        padded: Arrays,
        alone: list[Arrays],
        lengths: Mapping[str, list[int]] | None = None,
        steps: list[str] | None = None,
        width: int = 32,
    ) -> None:
        """Runs a model whose file stands in `folder`, and adds a line about it.

        Args:
            name: A name of its own among the models of the kind.
            file: The name of its file in `folder`.
            about: What the model is, in a sentence without a full stop.
            run: The framework's results of inputs, by their names.
            padded: A batch of inputs by name.
            alone: Single sequences, each as a batch of one.
            lengths: The steps of each row of the batch by input, if they differ; row i is `alone[i]`, padded.
            steps: The inputs that have steps; all of them by default.
            width: The largest number of products that the model adds up, for the tolerance.
        """
        arrays: dict[str, np.ndarray] = {}
        for call, inputs in {"padded": padded, **{f"alone/{i}": one for i, one in enumerate(alone)}}.items():
            outputs = {key: np.asarray(value) for key, value in run(dict(inputs)).items()}
            assert all(np.isfinite(value).all() for value in outputs.values()), f"{name} gives no numbers"
            arrays |= {f"{call}/in/{key}": value for key, value in inputs.items()}
            arrays |= {f"{call}/out/{key}": value for key, value in outputs.items()}
        arrays |= {f"padded/lengths/{key}": np.array(value) for key, value in (lengths or {}).items()}
        np.savez(self.folder / f"{name}.npz", **arrays)
        start = "padded/out/"
        names = {
            "inputs": list(padded),
            "steps": list(padded) if steps is None else steps,
            "outputs": [key.removeprefix(start) for key in arrays if key.startswith(start)],
        }
        facts = {"name": name, "file": file, "about": about, "framework": self.framework, "width": width}
        self.rows.append(facts | names)
        print(f"{self.kind}/{name}", {key: value.shape for key, value in arrays.items() if "padded/o" in key})

    def pack(self) -> None:
        """Writes the archive and the list; the same models give the same bytes of the archive's members."""
        SAVED.mkdir(exist_ok=True)
        with tarfile.open(SAVED / f"{self.kind}.tar.xz", "w:xz", preset=9) as archive:
            for path in sorted(self.folder.iterdir()):
                archive.add(path, path.name, filter=anonymous)
        text = json.dumps(self.rows, indent=1)
        (SAVED / f"{self.kind}.json").write_text(f"{text}\n")
        self.temporary.cleanup()


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Returns a member of an archive without owner and time."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
