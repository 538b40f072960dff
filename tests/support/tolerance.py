"""Comparison of two arrays up to rounding, by the one formula."""

from typing import Any

import numpy as np

from stepnet.compiler.net.tolerance import tolerance


def distance(actual: Any, right: Any) -> float:
    """The largest |actual - right| / max(1, |right|); infinite where just one is NaN or infinite."""
    a, r = np.asarray(actual, np.float64), np.asarray(right, np.float64)
    same = (a == r) | (np.isnan(a) & np.isnan(r))
    with np.errstate(invalid="ignore"):
        away = np.where(same, 0, np.abs(a - r) / np.maximum(1, np.abs(r)))
    return float(np.where(np.isfinite(away), away, np.inf).max(initial=0))


def assert_close(actual: Any, right: Any, length: int = 1, width: int = 1, dtype: Any = None) -> None:
    """Asserts that two arrays agree: floats within the tolerance of `dtype` (actual's own by default), all
    others exactly.
    """
    a, r = np.asarray(actual), np.asarray(right)
    assert a.shape == r.shape, f"shape {a.shape} is not {r.shape}"
    wanted = np.dtype(a.dtype if dtype is None else dtype)
    if wanted.kind != "f" and wanted != "bfloat16":
        np.testing.assert_array_equal(a, r)
        return
    away, most = distance(a, r), tolerance(wanted, length, width)
    assert away <= most, f"{away:.3g} away, where {most:.3g} is allowed:\n{a}\nis not\n{r}"
