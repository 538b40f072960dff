"""Inputs, memories and parameters for each cell of `stepnet.cells.FORMS`, in small sizes."""

from typing import Any

import numpy as np

from stepnet.cells import FORMS
from stepnet.cells.forms import axes_of

SIZES = {"c": 5, "d": 6, "g": 2, "h": 4, "k": 3, "l": 2, "m": 2, "n": 3, "p": 2, "v": 5, "w": 3}
DECAYS = {"g", "w", "A", "A_re"}
POSITIVE = {"dt", "den"}
FRACTIONS = {"beta", "eta"}
UNIT = {"k"}
LARGE = {"n"}


def numbers(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers that an array of a name has in models: decays as negative logarithms, keys of length one."""
    if name in DECAYS:
        return -random.uniform(0.05, 2, shape)
    if name in POSITIVE:
        return random.uniform(0.05, 1.5, shape)
    if name in FRACTIONS:
        return random.uniform(0.1, 0.9, shape)
    if name in LARGE:
        return random.uniform(1, 2.5, shape)
    values = random.normal(size=shape) * 0.6
    return values / np.linalg.norm(values, axis=-1, keepdims=True) if name in UNIT else values


def drawn(cell: str, text: str, lead: tuple[int, ...], seed: int, dtype: str) -> Any:
    """Arrays for one column of a row of `FORMS`, behind these first axes; None for no arrays."""
    random = np.random.default_rng([seed, *cell.encode()])
    made = {
        name.removesuffix("?"): numbers(
            random, name.removesuffix("?"), (*lead, *(SIZES[letter] for letter in letters))
        ).astype(dtype)
        for name, letters in axes_of(text).items()
    }
    return made.get("", made) if made else None


def inputs(cell: str, rows: int, steps: int, dtype: str = "float64") -> Any:
    """Inputs [rows, steps, ...] by name."""
    return drawn(cell, FORMS[cell].inputs, (rows, steps), 1, dtype)


def initial(cell: str, rows: int, dtype: str = "float64") -> Any:
    """The memory before the first step, [rows, ...]."""
    return drawn(cell, FORMS[cell].memory, (rows,), 2, dtype)


def parameters(cell: str, dtype: str = "float64") -> Any:
    """The parameters by name, also those that may be left out."""
    return drawn(cell, FORMS[cell].parameters, (), 3, dtype)


def memory(cell: str) -> Any:
    """The features of the memory, as `RNN` takes them."""
    shapes = {
        name: tuple(SIZES[letter] for letter in letters)
        for name, letters in axes_of(FORMS[cell].memory).items()
    }
    return shapes.get("", shapes)
