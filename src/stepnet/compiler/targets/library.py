"""Libraries for C as values: the call that a target builds one of, and the files that it gives.

CallSpecification   the schedule, the parameters and the arrays of a model's call
BuiltLibrary        the files of the library, with its description
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.meanings import OUTSIDE
from stepnet.compiler.net.types import ROWS, STEPS, Type
from stepnet.compiler.net.windows import derived_length
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.base import Engine
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
RESULTS = ("output", "final")
"""The kinds of the arrays that a call writes."""
ERRORS = {
    "OK": "done",
    "NULL": "an argument is NULL that must not be",
    "NEGATIVE": "the number of sequences is negative",
    "OFFSETS": "the offsets do not begin at 0, or one of them is smaller than the one before it",
    "TOO_LARGE": "there are more sequences or steps than memory can hold",
    "MEMORY": "there is not enough memory",
    "INDEX": OUTSIDE,
    "OTHER_WEIGHTS": "the weights are of another model or processor, or no whole file of weights",
    "DAMAGED_WEIGHTS": "the weights are damaged",
    "FILE": "the file of weights cannot be read",
    "PROCESSOR": "this processor lacks instructions that the library was built for",
    "TOO_SHORT": "a sequence has fewer steps than the model's padding by reflection reads",
}
"""The name and the text of each code that the functions of a library return, in the order of the codes."""
CODES = {name: number for number, name in enumerate(ERRORS)}
"""The number of each code, by its name."""


@dataclass(frozen=True)
class ArrayArgument:
    """An array that a call of a model takes or gives.

    name: its name. kind: "sequence", "initial" or "static" for an input; "output" or "final" for a result.
    index: the index of its value among the inputs or results of the net. type: the type of the value.
    optional: it may be left out, which means zeros for an initial memory, and an unwanted result.
    title: the name that the model or its file has for it, if that is another one.
    """

    name: str
    kind: str
    index: int
    type: Type
    optional: bool
    title: str = ""

    @property
    def by_row(self) -> bool:
        """True if the array has one value per sequence, not per step."""
        return self.type.extent == ROWS

    @property
    def is_result(self) -> bool:
        """True if the call writes the array: it is an output or a final memory."""
        return self.kind in RESULTS


@dataclass(frozen=True)
class CallSpecification:
    """A call of a model for inputs of fixed features: all that a target needs to compile it as a whole.

    schedule: the parts of the model, in the order they run. params: the parameters, in the order of the net.
    arguments: the arrays that the call takes and gives.
    """

    schedule: Schedule
    params: tuple[Array, ...]
    arguments: tuple[ArrayArgument, ...]

    @property
    def net(self) -> Net:
        """The net (graph of operations) of the whole model."""
        return self.schedule.net

    @property
    def least_steps(self) -> int:
        """The number of steps that a sequence has at least, unless it has none: more than one if padding by
        reflection reads more.
        """
        least, net = 1, self.net
        for node in net.nodes:
            if node.operation == "extend":
                axis, own = net.type_of(node.inputs[0]).extent[-1], Extension.of(node.attributes).least
                most = least
                while derived_length(axis, most) < own:
                    most *= 2
                least += bisect_left(range(least, most), own, key=partial(derived_length, axis))
        return least


def steps_function(name: str, output: str) -> str:
    """Returns the name of the function, in a library for C, that gives the number of steps of an output.

    name: the prefix of the library's functions. output: the name of the output.

    >>> steps_function("speech", "y")
    'speech_y_steps'
    """
    return f"{name}_{output}_steps"


@dataclass(frozen=True)
class ArrayText:
    """The description of an array argument, for the library's JSON text. name: its C name. kind: "sequence",
    "initial" or "static" for an input, "output" or "final" for a result. dtype, shape: those of one value.
    axis: the axis along which there are values: "rows" for one per sequence, "steps" for one per step, or
    the name of a derived axis, as "steps[+0/2]" after a stride. optional: it may be NULL. title: the name
    that the model or its file has for it, if that is another one.
    """

    name: str
    kind: str
    dtype: str
    shape: Sequence[int]
    axis: str
    optional: bool
    title: str = ""

    @classmethod
    def of(cls, argument: ArrayArgument) -> "ArrayText":
        """Describes an array argument of the library's C function `run`, for the library's JSON text."""
        type_ = argument.type
        axis = type_.extent[-1]
        shared = argument.optional, argument.title
        return cls(argument.name, argument.kind, type_.dtype, type_.shape, axis, *shared)

    @property
    def by_row(self) -> bool:
        """True if there is one value per sequence, not per step."""
        return self.axis == ROWS[-1]

    @property
    def is_counted(self) -> bool:
        """True if there is another number of values than steps, which a function of the library gives."""
        return self.axis not in (ROWS[-1], STEPS[-1])

    @property
    def is_result(self) -> bool:
        """True if the library writes the array: it is an output or a final memory."""
        return self.kind in RESULTS

    @property
    def size(self) -> int:
        """The number of elements of one value: of one step, or of one sequence."""
        return prod(self.shape)


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
    def read(cls, text: bytes) -> "Description":
        """Parses the JSON text that a library holds about itself; the inverse of `text`."""
        fields: dict[str, Any] = json.loads(text)
        fields["arrays"] = tuple(ArrayText(**array_fields) for array_fields in fields["arrays"])
        return cls(**fields)

    def text(self, indent: int | None = None) -> str:
        """Formats the description of a library as JSON, for the library itself and for its manifest."""
        return json.dumps(asdict(self), indent=indent)


@dataclass(frozen=True)
class BuiltLibrary:
    """The files of a library, as bytes. about: its description. static, shared: the two libraries. weights:
    the weights file; empty if the library holds the weights.
    """

    about: Description
    static: bytes
    shared: bytes
    weights: bytes


@runtime_checkable
class LibraryEngine(Engine, Protocol):
    """Engine whose code runs without Python, so that it builds libraries for C."""

    def library(self, call: CallSpecification, name: str, platform: str, beside: bool) -> BuiltLibrary:
        """Builds a library that runs the call of a model.

        name: the prefix of its functions. platform: the name of the processor to build for. beside: the
        weights go into a file of their own. Raises `InputError` for another platform, and for weights that
        are too large to be inside; `RefusedError` for a model with a part that is not machine code.
        """
        ...

    def library_name(self, data: bytes) -> str:
        """Reads the prefix of the function names of a shared library, given the bytes of its file.

        Raises `FileError` for bytes that are no library of this engine, that are incomplete, or that are for
        another processor.
        """
        ...
