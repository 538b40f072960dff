"""Rules for ATen operations along the steps of sequences, each over a sequence's own steps."""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import refuse
from stepnet.importers.reductions import over_steps
from stepnet.model.counting import length_of
from stepnet.model.nested import expand

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np


def without_index(how: str) -> Callable[..., Any]:
    """Makes the function that computes a maximum or minimum over steps, for operations of PyTorch that return
    its position too.

    how: "max" or "min". The function returns (value, None): a net does not compute the position.
    """

    def rule(x: Any, **_: Any) -> tuple[Any, None]:
        """Reduces x over the steps of each sequence; returns the value, and None for its position."""
        return over_steps(x, how), None

    return rule


def variance(x: Any, *, correction: Any = None, **_: Any) -> Any:
    """Computes the variance of x over each sequence's own steps, in place of PyTorch's over a padded axis.

    correction: the number that is subtracted from the number of steps, by which the sum of squares is
        divided; None is 1.
    """
    away = x - expand(over_steps(x, "mean"), x)
    count = length_of(x).astype(x.dtype) - (1 if correction is None else correction)
    return over_steps(away * away, "sum").astype(x.dtype) / numpy.reshape(
        count, (count.shape[0], *[1] * len(x.type.shape))
    )


def variance_and_mean(x: Any, **options: Any) -> tuple[Any, Any]:
    """Computes the variance and the mean over the steps of each sequence, for ATen's `var_mean`."""
    return variance(x, **options), over_steps(x, "mean")


def norm(x: Any, *, ord: Any = 2, **_: Any) -> Any:  # noqa: A002 - PyTorch's names
    """Computes the Euclidean norm of x over the steps of each sequence. ord: its order, which must be 2."""
    if ord != 2:
        raise refuse(f"a norm of order {ord} over steps is not an operation of a model")
    return np.sqrt(over_steps(x * x, "sum").astype(x.dtype))
