"""The arrays of a saved .npz, which is closed again: what stays open is a warning whenever it is found."""

from pathlib import Path
from typing import Any

import numpy as np


def saved_arrays(path: Path) -> dict[str, Any]:
    """Every array of a file by its name."""
    with np.load(path) as file:
        return dict(file)
