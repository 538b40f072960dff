"""Rules for ATen operations along the steps of sequences, each over a sequence's own steps."""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.rnn.counting import length_of, running_total
from stepnet.rnn.nested import expand, reduce, softmax_over_steps
from stepnet.torch.rules import as_bool
from stepnet.trace.traced import refuse

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np


def total(x: Any, **_: Any) -> Any:
    """The sum."""
    return reduce(x, "sum").astype(x.dtype)


def mean(x: Any, **_: Any) -> Any:
    """The mean."""
    return reduce(x, "mean")


def largest(x: Any, **_: Any) -> Any:
    """The largest."""
    if x.dtype == np.bool_:
        return reduce(x.astype(np.int64), "max") > 0
    return reduce(x, "max")


def smallest(x: Any, **_: Any) -> Any:
    """The smallest."""
    return -reduce(-x, "max")


def any_true(x: Any, **_: Any) -> Any:
    """Whether any is true, or not zero."""
    return largest(as_bool(x))


def without_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives the place too, which is not known."""

    def rule(x: Any, **_: Any) -> tuple[Any, None]:
        return function(x), None

    return rule


def variance(x: Any, *, correction: Any = None, **_: Any) -> Any:
    """The variance."""
    away = x - expand(reduce(x, "mean"), x)
    count = length_of(x).astype(x.dtype) - (1 if correction is None else correction)
    return total(away * away) / numpy.reshape(count, (count.shape[0], *[1] * len(x.type.shape)))


def variance_and_mean(x: Any, **options: Any) -> tuple[Any, Any]:
    """The variance and the mean."""
    return variance(x, **options), mean(x)


def norm(x: Any, *, ord: Any = 2, **_: Any) -> Any:  # noqa: A002 - PyTorch's names
    """The norm of order 2."""
    if ord != 2:
        raise refuse(f"a norm of order {ord} over steps is not an operation of a model")
    return np.sqrt(total(x * x))


def softmax(x: Any, **_: Any) -> Any:
    """The softmax."""
    return softmax_over_steps(x)


def log_softmax(x: Any, **_: Any) -> Any:
    """The logarithm of the softmax."""
    away = x - expand(reduce(x, "max"), x)
    return away - expand(np.log(reduce(np.exp(away), "sum")), x)


def cumulated(x: Any, **_: Any) -> Any:
    """The sum of each step and all before it."""
    return running_total(x)
