"""The description of a library: the prefix of its functions, its processor, and the arrays of a call.

The library contains it as text; the manifest, a JSON file, repeats it for people and other tools.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepnet.build.model import ArrayArgument, BuiltModel
from stepnet.build.platforms import Platform
from stepnet.compiler.values.version import __version__


@dataclass(frozen=True)
class ArrayText:
    """The description of an array argument, for the library's JSON text. name: its C name. kind: "sequence",
    "initial" or "static" for an input, "output" or "final" for a result. dtype, shape: those of one value.
    by_row: there is one value per sequence, not per step. optional: it may be NULL.
    """

    name: str
    kind: str
    dtype: str
    shape: Sequence[int]
    by_row: bool
    optional: bool

    @classmethod
    def of(cls, argument: ArrayArgument) -> "ArrayText":
        """Describes an array argument of the library's C function `run`, for the library's JSON text."""
        type_ = argument.type
        return cls(argument.name, argument.kind, type_.dtype, type_.shape, argument.by_row, argument.optional)


@dataclass(frozen=True)
class Description:
    """The description of a library, which the library contains as JSON text. stepnet: the version that built
    it. name: the prefix of its functions. target: the name of the processor that the user gave. machine: the
    family of processors. needs: the features that a processor must have. weights: the name of the weights
    file; None if the library holds them. digest: SHA-256 of code and weights.
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
    def of(cls, model: BuiltModel, platform: Platform, name: str, beside: bool, digest: str) -> "Description":
        """Describes a library that is being built. name: the prefix of its functions. beside: the weights are
        in a file name.weights. digest: SHA-256 of code and weights.
        """
        arrays = tuple(map(ArrayText.of, model.arguments))
        weights = f"{name}.weights" if beside else None
        return cls(
            __version__, name, platform.name, platform.machine, platform.needs, weights, digest, arrays
        )

    @classmethod
    def read(cls, text: bytes) -> "Description":
        """Parses the JSON text that a library holds about itself; the inverse of `text`."""
        fields: dict[str, Any] = json.loads(text)
        fields["arrays"] = tuple(ArrayText(**array_fields) for array_fields in fields["arrays"])
        return cls(**fields)

    def text(self, indent: int | None = None) -> str:
        """Formats the description of a library as JSON, for the library itself and for its manifest."""
        return json.dumps(asdict(self), indent=indent)
