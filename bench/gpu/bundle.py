"""The files that a machine with a GPU needs: kernels as machine code and PTX, operands, expected results.

manifest.json     what is there: a `Compiled` for each kernel, a `Check` for each list of sequences
*.cubin, *.ptx    the kernels, and the microbenchmarks
*.npz             operands and results
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.inputs import Array, Inputs, Signature

STEPS = 1024
"""The steps of a sequence that is timed."""


@dataclass(frozen=True)
class Compiled:
    """A kernel of the bundle, and how it is launched.

    name: of its files. step: the recurrence with its direction and width, such as "gru-128".
    exchange, blocks, numbers, chains, parts, ahead, functions, without: its schedule (`shape.Schedule`).
    threads, shared: of a block. registers: of a thread. resident, operands: how many operands of the tensor
        cores a warp has in registers, and in all.
    """

    name: str
    step: str
    exchange: str
    blocks: int
    numbers: str
    chains: int
    parts: int
    ahead: int
    functions: str
    without: str
    threads: int
    shared: int
    registers: int
    resident: int
    operands: int
    signature: Signature

    @property
    def is_cooperative(self) -> bool:
        """Tells whether all blocks must run at once for the kernel to end."""
        return self.exchange in ("grid", "tagged")


@dataclass(frozen=True)
class Check:
    """Sequences of a recurrence with their expected results, in a file of its name.

    kernels: the names of those that must give these results. tolerance: the most that rounding explains.
    """

    name: str
    kernels: tuple[str, ...]
    tolerance: float


@dataclass(frozen=True)
class Bundle:
    """A folder of kernels, checks, and the results of sequences that are timed."""

    folder: Path
    kernels: dict[str, Compiled]
    checks: tuple[Check, ...]

    @classmethod
    def read(cls, folder: Path) -> "Bundle":
        """Reads the manifest of a folder."""
        found = json.loads((folder / "manifest.json").read_text())
        kernels = [
            Compiled(**{**each, "signature": signature_of(each["signature"])}) for each in found["kernels"]
        ]
        checks = tuple(
            Check(each["name"], tuple(each["kernels"]), each["tolerance"]) for each in found["checks"]
        )
        return cls(folder, {each.name: each for each in kernels}, checks)

    def write(self) -> None:
        """Writes the manifest."""
        contents = {
            "kernels": [asdict(each) for each in self.kernels.values()],
            "checks": list(map(asdict, self.checks)),
        }
        (self.folder / "manifest.json").write_text(json.dumps(contents, indent=1))

    def code(self, name: str, kind: str = "cubin") -> bytes:
        """Returns the machine code or the PTX of a kernel, or of a file of microbenchmarks."""
        return (self.folder / f"{name}.{kind}").read_bytes() + b"\0"

    def of_step(self, step: str) -> list[Compiled]:
        """Lists the kernels of a step."""
        return [each for each in self.kernels.values() if each.step == step]


def signature_of(found: dict[str, Any]) -> Signature:
    """Returns a signature as it was before it was JSON."""
    return Signature(**{**found, "constants": tuple(map(tuple, found["constants"]))})


def write_case(path: Path, inputs: Inputs, outputs: list[Array], last: list[Array]) -> None:
    """Writes the operands of sequences, and the expected results."""
    named = {"sequence": inputs.sequences, "memory": inputs.memories, "constant": inputs.constants}
    named |= {"output": outputs, "last": last}
    arrays = {f"{name}{place}": array for name, each in named.items() for place, array in enumerate(each)}
    np.savez_compressed(path, lengths=inputs.lengths, **arrays)


def read_case(path: Path) -> tuple[Inputs, list[Array], list[Array]]:
    """Reads what `write_case` wrote: operands, outputs and last memories."""
    with np.load(path) as found:

        def listed(name: str) -> list[Array]:
            """Returns the arrays of one kind, in order."""
            return [
                found[f"{name}{place}"] for place in range(sum(key[: len(name)] == name for key in found))
            ]

        inputs = Inputs(found["lengths"], listed("sequence"), listed("memory"), listed("constant"))
        return inputs, listed("output"), listed("last")
