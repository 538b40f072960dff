"""Libraries built and loaded for a test, and what they give beside what Python gives."""

from pathlib import Path
from typing import Any

import numpy as np
from same_bits import assert_same_bits

from stepnet.build import Library, build, load
from stepnet.compiler.values import leaves

Array = np.ndarray
LENGTHS = ([5, 3, 0, 2], [1], [0], [], [9, 0, 70, 1, *[3] * 80])
"""Of batches: several sequences, one, empty ones, none, and more than there are lanes."""


def library_of(model: Any, folder: Path, **options: Any) -> Library:
    """A library of a model, built and loaded."""
    return load(build(model, folder, **options).shared, trust=True)


def given(library: Library, x: Any, initial: Any = None, statics: Any = None) -> dict[str, Any]:
    """The arguments of a call in Python as a library takes them, by name."""
    made = dict[str, Any]()
    for kind, structure in (("sequence", x), ("initial", initial), ("static", statics)):
        names = [each.name for each in library.about.arrays if each.kind == kind]
        if structure is not None:
            made |= dict(zip(names, leaves(structure), strict=True))
    return made


def assert_as_in_python(
    library: Library, expected: Any, x: Any, initial: Any = None, statics: Any = None
) -> None:
    """Asserts that a call of a library gives the same bits as one in Python, which gave `expected`."""
    assert_same_bits(list(library(given(library, x, initial, statics)).values()), leaves(expected))
