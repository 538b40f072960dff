"""Computes convolutions over the steps of each sequence, which keep the number of steps."""

from dataclasses import dataclass
from typing import Any

from stepnet.compiler.net.windows import Window
from stepnet.compiler.trace.traced import Traced, lifted
from stepnet.errors import ModelError
from stepnet.importers.axes import TIME, is_feature, is_rows, text_of
from stepnet.importers.padding import check_idle
from stepnet.importers.placed import Placed, Unusable
from stepnet.model.convolution import convolution


def window_of(size: int, stride: int, dilation: int, before: int, after: int) -> Window:
    """Returns the steps that a convolution reads; raises `ModelError` unless it has one result per step.

    size: the length of its kernel. before, after: the steps of zeros ahead of a sequence and behind it.
    """
    if stride != 1:
        raise ModelError(
            f"a convolution with a stride of {stride} has fewer results than steps: a model keeps the number "
            "of steps"
        )
    window = Window(size, dilation, before)
    if Window(size, dilation, 0).refusal is not None:
        raise ModelError(f"a convolution has no kernel of {size} with a dilation of {dilation}")
    if before < 0 or after != window.after:
        what = f"a convolution with a kernel of {size} and a dilation of {dilation}"
        raise ModelError(
            f"{what} has one result per step with {window.reach} steps of zeros around a sequence, not with "
            f"{before} ahead and {after} behind"
        )
    return window


@dataclass(frozen=True)
class ZerosAround(Unusable):
    """Placeholder for a value with steps of zeros around each sequence, which only a convolution reads.

    source: the value without them. before, after: their numbers ahead of a sequence and behind it.
    """

    source: Placed
    before: int
    after: int


def with_zeros(x: Placed, before: int, after: int) -> Placed:
    """Returns the placeholder for a value with steps of zeros ahead of each sequence and behind it."""
    reason = "steps of zeros are put around sequences, which only a convolution may read"
    return x.with_value(ZerosAround(reason, x, before, after))


def convolve(
    x: Placed, weight: Placed, bias: Placed | None, window: Window, groups: int, padded: bool = False
) -> Placed:
    """Convolves a value [sequences, features, steps] over the steps of each sequence.

    weight, bias: parameters [out, in / groups, kernel] and [out]. window: the steps that are read.
    groups: the number of groups of features.
    padded: whether the model has padding; if later steps are read, its numbers must be 0.
    """
    rows, features, steps = x.axes if len(x.axes) == 3 else ((), (), ())
    if steps != TIME or not is_feature(features) or len(rows) != 1 or not is_rows(rows[0]):
        raise ModelError(
            f"a convolution of a model is over the steps of a tensor [sequences, features, steps], not of "
            f"{text_of(x.axes)}"
        )
    value = x.value
    if not isinstance(value, Traced) or len(value.type.extent) < 2:
        raise ModelError("a convolution is of a constant, which has no steps")
    if window.after:
        check_idle(x, "sum", padded)

    def parameter(array: Any) -> Traced:
        """Returns a parameter as a value of the net."""
        return Traced(value.builder, lifted(value.builder, array, ()))

    own = None if bias is None else parameter(bias.value)
    made = convolution(value, parameter(weight.value), own, window, groups)
    return x.with_value(made, (rows, made.type.shape, steps))
