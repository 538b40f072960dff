"""A saved program of PaddlePaddle as a value, whichever format it was saved in.

    m.pdmodel   a ProgramDesc of Protocol Buffers       inputs by slot, {"X": ["a"], "Y": ["w"]}
    m.json      PIR, the newer representation           inputs in order, ["a", "w"]

Both are read as operations with inputs by slot, under the older names. Nothing of a file is run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.errors import FileError

Array = np.ndarray
DTYPES: Mapping[int, np.dtype[Any]] = {
    0: np.dtype(np.bool_),
    1: np.dtype(np.int16),
    2: np.dtype(np.int32),
    3: np.dtype(np.int64),
    4: np.dtype(np.float16),
    5: np.dtype(np.float32),
    6: np.dtype(np.float64),
    20: np.dtype(np.uint8),
    21: np.dtype(np.int8),
    22: np.dtype(ml_dtypes.bfloat16),
}
"""The dtypes of framework.proto's VarType.Type."""


@dataclass(frozen=True)
class Operation:
    """An operation of a program.

    inputs, outputs: the names of its values by slot. attributes: numbers, texts and lists of these. place:
    where it stands, for messages.
    """

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Any]
    place: str


@dataclass(frozen=True)
class Variable:
    """A value of a program that the caller gives, or that the file of parameters has.

    sizes: of its axes, 0 for those that are not stated. levels: how many levels of sequences it has.
    """

    name: str
    sizes: tuple[int, ...]
    dtype: np.dtype[Any]
    levels: int = 0


@dataclass(frozen=True)
class Program:
    """A saved program: what it is fed, its operations in order, the names of what it gives, by the names that
    they are fetched by, and its parameters.
    """

    path: str
    inputs: tuple[Variable, ...]
    operations: tuple[Operation, ...]
    outputs: Mapping[str, str]
    parameters: tuple[Variable, ...]


def dtype_of(number: int) -> np.dtype[Any]:
    """The dtype of a number of VarType.Type; raises `FileError`, without the path, for others."""
    if number not in DTYPES:
        raise FileError(f"it has values of Paddle's type {number}, which are no numbers")
    return DTYPES[number]
