"""The results of a framework for files that stepnet wrote, in its own environment: jobs in, outputs out.

    python torch_judge.py jobs.npz outputs.npz

A job is a written file and its parts; a part is a recurrent layer of it, with the inputs that it is to take.
"""

import json
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Part:
    """A recurrent layer of a written file, as the report of its conversion says it is to be set there.

    front: what is before the names of its arrays. reverse: it runs from the last step. merge: what becomes
    of the outputs of both directions.
    """

    front: str
    layout: str
    settings: dict[str, Any]
    sizes: dict[str, int]
    reverse: bool = False
    merge: str = "concat"

    def own(self, arrays: Any) -> dict[str, Any]:
        """Its arrays, by their names in it."""
        return {name[len(self.front) :]: arrays[name] for name in arrays if name.startswith(self.front)}

    def through(self, run: Any, x: Any) -> Any:
        """The outputs for its inputs, by a framework's layer that runs forward and merges nothing."""
        turn = slice(None, None, -1 if self.reverse else 1)
        y = np.asarray(run(np.ascontiguousarray(x[:, turn])))[:, turn]
        if self.merge == "concat" or self.sizes["directions"] == 1:
            return y
        one, other = np.split(y, 2, -1)
        return {"sum": one + other, "average": (one + other) / 2, "product": one * other}[self.merge]

    def over_cells(self, arrays: Any, load: Any) -> Any:
        """A function that runs it where the framework has cells alone: one per direction of each layer.

        load: a cell made of its arrays by name and of the number of its inputs, which runs over all steps.
        """
        layers, own = self.sizes["layers"], self.own(arrays)
        ways = ("forward/", "backward/") if self.sizes["directions"] == 2 else ("",)
        width, cells = self.sizes["inputs"], []
        for layer in range(layers):
            fronts = [(f"{layer}/" if layers > 1 else "") + way for way in ways]
            each = [
                {name[len(front) :]: own.pop(name) for name in list(own) if name.startswith(front)}
                for front in fronts
            ]
            cells.append([load(held, width) for held in each])
            width = len(ways) * self.sizes["output"]
        assert not own, f"there are {', '.join(own)} besides"

        def run(x: Any) -> Any:
            for each in cells:
                turned = [
                    np.asarray(cell(x[:, ::step]))[:, ::step]
                    for cell, step in zip(each, (1, -1), strict=False)
                ]
                x = np.concatenate(turned, -1)
            return x

        return run


@dataclass(frozen=True)
class Job:
    """A written file, its parts, and the inputs of each; one alone where the file is a model of a row."""

    path: str
    parts: list[Part]
    inputs: list[Any] = field(default_factory=list)

    def outputs(self, load: Any) -> Any:
        """The outputs of each part for its inputs. load: makes what runs a part (`Part.through`)."""
        for part, x in zip(self.parts, self.inputs, strict=True):
            yield part.through(load(part), x)


def save(path: Any, jobs: list[Job]) -> None:
    """Writes jobs for a judge."""
    said = [{"path": job.path, "parts": [vars(part) for part in job.parts]} for job in jobs]
    arrays = {f"{place}|{n}": x for place, job in enumerate(jobs) for n, x in enumerate(job.inputs)}
    np.savez(path, said=np.array(json.dumps(said)), **arrays)


def load(path: Any) -> list[Job]:
    """The jobs of a file."""
    with np.load(path) as file:
        said = json.loads(str(file["said"]))
        return [
            Job(
                one["path"],
                [Part(**part) for part in one["parts"]],
                [file[f"{place}|{n}"] for n in range(len(one["parts"])) if f"{place}|{n}" in file.files],
            )
            for place, one in enumerate(said)
        ]


def main(judged: Any, versions: dict[str, str]) -> None:
    """Runs every job; judged: gives the outputs for each of a job's inputs.

    What a framework cannot load is a result as well, in its own words: whatever it raises.
    """
    arrays: dict[str, Any] = {}
    for place, job in enumerate(load(sys.argv[1])):
        try:
            for n, y in enumerate(judged(job)):
                arrays[f"{place}|{n}"] = np.asarray(y, "float32")
        except Exception as error:
            arrays[f"{place}|wrong"] = np.array(f"{type(error).__name__}: {error}")
    np.savez(sys.argv[2], versions=np.array(json.dumps(versions)), **arrays)
