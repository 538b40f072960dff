"""Computes convolutions, transposed convolutions and pooling over the steps of each sequence."""

from collections.abc import Callable
from dataclasses import dataclass

from stepnet.compiler.net.windows import Window
from stepnet.compiler.trace.traced import Traced, lifted
from stepnet.errors import ModelError, StepError
from stepnet.importers.axes import is_feature, is_rows, is_time, text_of
from stepnet.importers.padding import check_idle
from stepnet.importers.placed import Placed, Unusable
from stepnet.model.convolution import conv_transpose1d, convolution


def window_of(size: int, stride: int, dilation: int, before: int, after: int, same: str = "") -> Window:
    """Returns the steps that a kernel reads; raises `ModelError` if there is no such kernel.

    size: the length of its kernel. before, after: the steps of zeros ahead of a sequence and behind it.
    same: "upper" or "lower" for zeros that follow from the length, as in `Window`.
    """
    reach = (size - 1) * dilation
    if same and stride == 1:
        before, same = (reach + (same == "lower")) // 2, ""
        after = reach - before
    lost = 0 if same else reach - before - after
    window = Window(size, dilation, 0 if same else before, stride, lost, same)
    if window.refusal is not None or min(before, after) < 0:
        raise ModelError(
            f"there is no kernel of {size} with a stride of {stride}, a dilation of {dilation}, and {before} "
            f"and {after} steps of zeros"
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
    value = sequences_of(x, "convolution")
    if padded and not window.keeps_lengths:
        raise changed_lengths("convolution")
    if window.after:
        check_idle(x, "sum", padded)
    own = None if bias is None else parameter(value, bias)
    return at_windows(x, convolution(value, parameter(value, weight), own, window, groups))


def convolve_transposed(
    x: Placed,
    weight: Placed,
    bias: Placed | None,
    stride: int,
    dilation: int,
    pads: tuple[int, int],
    output_padding: int,
    groups: int,
    padded: bool = False,
) -> Placed:
    """Computes a transposed convolution of a value [sequences, features, steps] over steps.

    weight, bias: parameters [in, out / groups, kernel] and [out]. The others are those of `conv_transpose1d`.
    padded: whether the model has padding, for which `ModelError` is raised.
    """
    value = sequences_of(x, "transposed convolution")
    if padded:
        raise changed_lengths("transposed convolution")
    own = None if bias is None else parameter(value, bias)
    try:
        made = conv_transpose1d(
            value,
            parameter(value, weight),
            own,
            stride=stride,
            dilation=dilation,
            padding=pads,
            output_padding=output_padding,
            groups=groups,
        )
    except StepError as error:
        raise ModelError(str(error)) from None
    return at_windows(x, made)


def pool(x: Placed, how: Callable[[Traced], Traced], padded: bool = False) -> Placed:
    """Pools a value [sequences, features, steps] over windows of the steps of each sequence.

    how: the pooling. padded: whether the model has padding, for which `ModelError` is raised.
    """
    value = sequences_of(x, "pooling")
    if padded:
        raise changed_lengths("pooling")
    try:
        return at_windows(x, how(value))
    except StepError as error:
        raise ModelError(str(error)) from None


def sequences_of(x: Placed, name: str) -> Traced:
    """Returns the value of an operand [sequences, features, steps]; raises `ModelError` for other axes.

    name: that of the operation, for messages.
    """
    rows, features, steps = x.axes if len(x.axes) == 3 else ((), (), ())
    if not is_time(steps) or not is_feature(features) or len(rows) != 1 or not is_rows(rows[0]):
        raise ModelError(
            f"a {name} of a model is over the steps of a tensor [sequences, features, steps], not of "
            f"{text_of(x.axes)}"
        )
    if not isinstance(x.value, Traced) or len(x.value.type.extent) < 2:
        raise ModelError(f"a {name} is of a constant, which has no steps")
    return x.value


def changed_lengths(name: str) -> ModelError:
    """Makes the error for an operation that gives other numbers of steps, in a model with lengths."""
    return ModelError(
        f"a {name} reads windows of steps, or gives other numbers of them, in a model with padding, where it "
        "is not known which results are padding: leave the lengths out, and give sequences of any length"
    )


def parameter(value: Traced, array: Placed) -> Traced:
    """Returns a parameter as a value of the net that `value` is of."""
    return Traced(value.builder, lifted(value.builder, array.value, ()))


def at_windows(x: Placed, made: Traced) -> Placed:
    """Returns a result [sequences, features, windows] of an operand [sequences, features, steps]."""
    return x.with_value(made, (x.axes[0], made.type.shape, (made.type.extent[-1],)))
