"""Layers whose recurrences have precisions, one for each recurrence in the order that it runs."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stepnet.compiler.net.encodings import OF_WEIGHTS, Precision
from stepnet.model.compose import Bidirectional, Stack
from stepnet.model.layers import Layer
from stepnet.model.recurrence import RNN

Kind = TypeVar("Kind", RNN, Stack, Bidirectional)


def in_precisions(layer: Layer, precisions: Sequence[Precision | None], report: Any) -> Any:
    """Returns a copy of layers whose recurrences compute in these precisions, with a report of the choice.

    layer: an `RNN`, or layers or directions that run as one.
    precisions: one for each recurrence, in the order they run; None leaves a recurrence as it is.
    report: the report of `quantize`.
    """
    given = iter(precisions)

    def changed(rnn: RNN) -> RNN:
        """Returns a recurrence of the layers in the next of the chosen precisions; unchanged if that is None.
        A recurrence that is the whole model also gets the report of `quantize`.
        """
        precision = next(given)
        own = report if rnn is layer else None
        return rnn if precision is None else rnn.in_precision(precision, own)

    return with_recurrences(layer, changed, report)


def with_rounded_weights(rnn: RNN, dtype: str, exact: tuple[str, ...] = ()) -> RNN:
    """Returns a copy of a recurrence whose products round the weights alone, and not the values that they
    multiply: to bfloat16, or to int8 with a scale for each column. Sums are float32.

    dtype: "bfloat16" or "int8". Parameters are given as before, in float32, bfloat16 or float16; they are
    rounded where machine code is bound to them. exact: the names of parameters that are not rounded.
    """
    return rnn.in_precision(Precision(OF_WEIGHTS[dtype], exact=exact))


def with_recurrences(layer: Any, change: Callable[[RNN], RNN], report: Any = None) -> Any:
    """Returns a copy of layers with changed recurrences.

    layer: an `RNN`, or layers or directions that run as one.
    change: makes the recurrence of the copy from one of the original.
    report: the report of a quantization for the copy as a whole.
    """
    if isinstance(layer, RNN):
        return change(layer)
    return layer.with_layers([with_recurrences(part, change) for part in layer.layers], report)
