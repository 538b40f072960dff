"""The dtypes that values have, and what to call a dtype."""

from typing import Any

import numpy as np

DTYPES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "bool": "bool"}
"""By name, how nets write them."""


def dtype_text(dtype: Any) -> str:
    """The name of a dtype; what was given, as text, where NumPy knows none of that name.

    >>> dtype_text(np.float32), dtype_text("half a float")
    ('float32', "'half a float'")
    """
    if isinstance(dtype, np.dtype):
        return dtype.name
    try:
        return np.dtype(dtype).name
    except (TypeError, ValueError, SyntaxError, DeprecationWarning):  # NumPy's ways to say that it is none
        return repr(dtype)
