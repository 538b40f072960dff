"""A saved program of PaddlePaddle, independent of the format of its file.

    m.pdmodel   a ProgramDesc of Protocol Buffers       inputs by slot, {"X": ["a"], "Y": ["w"]}
    m.json      PIR, the newer representation           inputs in order, ["a", "w"]

Both are read as operations with inputs by slot and with the older names. No code of a file runs.
"""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.compiler.values.records import dataclass
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
class PaddleOperation:
    """An operation of a Paddle program.

    type: its name.
    inputs, outputs: the names of its values, by slot.
    attributes: numbers, texts and lists of these, by name.
    location: its position in the program, for messages.
    """

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Any]
    location: str


@dataclass(frozen=True)
class Variable:
    """An input or a parameter of a Paddle program.

    sizes: the lengths of its axes, 0 if unknown. levels: the number of levels of its sequences (LoD).
    """

    name: str
    sizes: tuple[int, ...]
    dtype: np.dtype[Any]
    levels: int = 0


@dataclass(frozen=True)
class PaddleProgram:
    """A saved program of Paddle.

    path: the file, for messages.
    inputs: the variables that the caller feeds.
    operations: in order of execution.
    outputs: the names of the values that are outputs, by the names under which they are fetched.
    parameters: the variables in the file of parameters.
    """

    path: str
    inputs: tuple[Variable, ...]
    operations: tuple[PaddleOperation, ...]
    outputs: Mapping[str, str]
    parameters: tuple[Variable, ...]


def dtype_of(number: int) -> np.dtype[Any]:
    """Returns the NumPy dtype for a number of Paddle's VarType.Type; `FileError` for other types."""
    if number not in DTYPES:
        raise FileError(f"it has values of Paddle's type {number}, which are no numbers")
    return DTYPES[number]
