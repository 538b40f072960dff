"""The arrays of a stored model by name, as they are collected for a file and found in one."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError

Array = np.ndarray


@dataclass
class Collected:
    """The arrays to be written to a file, each under a name of its own.

    arrays: the arrays by name.
    """

    arrays: dict[str, Array] = field(default_factory=dict[str, Array])

    def add(self, array: Array, name: str) -> str:
        """Adds an array to the arrays of a model's file; returns its name in the file: `name`, with a number
        if an earlier array has this name.
        """
        chosen, count = name, 1
        while chosen in self.arrays:
            count += 1
            chosen = f"{name}#{count}"
        self.arrays[chosen] = array
        return chosen


@dataclass(frozen=True)
class Found:
    """The arrays of a file, by name.

    arrays: the arrays by name, read-only.
    """

    arrays: Mapping[str, Array]

    def get(self, name: Any, what: str) -> Array:
        """Returns an array of a model's file by its name; raises `ModelError` if the file has none or one of
        a foreign dtype.

        what: the word for the array in messages, such as "a parameter".
        """
        if not isinstance(name, str) or name not in self.arrays:
            raise ModelError(f"{what} is the array {short_repr(name)}, which the file does not have")
        array = self.arrays[name]
        if array.dtype.name not in DTYPES:
            raise ModelError(f"{what}, {name!r}, is of dtype {array.dtype}, which models do not have")
        return array
