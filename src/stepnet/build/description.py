"""The description of a library: the prefix of its functions, its processor, and the arrays of a call.

The library contains it as text; the manifest, a JSON file, repeats it for people and other tools.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepnet.build.model import Argument, BuiltModel
from stepnet.build.targets import BuildTarget
from stepnet.values.version import __version__


@dataclass(frozen=True)
class ArrayText:
    """One array: its name, what it is (see `Argument`), its dtype, and the features of one value.

    by_row: whether there is one value for each sequence. optional: whether NULL may stand for it.
    """

    name: str
    kind: str
    dtype: str
    shape: Sequence[int]
    by_row: bool
    optional: bool

    @classmethod
    def of(cls, argument: Argument) -> "ArrayText":
        """The description of an argument."""
        type_ = argument.type
        return cls(argument.name, argument.kind, type_.dtype, type_.shape, argument.by_row, argument.optional)


@dataclass(frozen=True)
class Description:
    """What a library is. machine: the family of processors; needs: the features of one that runs it.

    weights: the name of the file of weights; None where the library holds them. digest: of code and weights.
    """

    stepnet: str
    name: str
    target: str
    machine: str
    needs: Sequence[str]
    weights: str | None
    digest: str
    arrays: Sequence[ArrayText]

    @classmethod
    def of(
        cls, model: BuiltModel, target: BuildTarget, name: str, beside: bool, digest: str
    ) -> "Description":
        """The description of a library that is being built."""
        arrays = tuple(map(ArrayText.of, model.arguments))
        weights = f"{name}.weights" if beside else None
        return cls(__version__, name, target.name, target.machine, target.needs, weights, digest, arrays)

    @classmethod
    def read(cls, text: bytes) -> "Description":
        """The description read from the text in a library."""
        made: dict[str, Any] = json.loads(text)
        made["arrays"] = tuple(ArrayText(**each) for each in made["arrays"])
        return cls(**made)

    def text(self, indent: int | None = None) -> str:
        """The description as JSON."""
        return json.dumps(asdict(self), indent=indent)
