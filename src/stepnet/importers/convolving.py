"""Computes convolutions, transposed convolutions and pooling over the steps of each sequence."""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.net.windows import Lengths, Window, derived_axis
from stepnet.compiler.trace.traced import Traced, apply, lifted
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError, StepError
from stepnet.importers.axes import (
    AxesError,
    features_of,
    is_feature,
    is_rows,
    is_time,
    stated_number,
    text_of,
)
from stepnet.importers.padding import check_idle
from stepnet.importers.placed import Placed, Unusable
from stepnet.importers.sizes import STEPS
from stepnet.importers.values import broadcast, first_feature, part_of, reshaped, shape_of
from stepnet.model.convolution import conv_transpose1d, convolution, lowest
from stepnet.model.counting import index_of, length_of
from stepnet.model.nested import expand
from stepnet.model.nested import reduce as over_steps


def window_of(size: int, stride: int, dilation: int, before: int, after: int, same: str = "") -> Window:
    """Returns the `Window` of a convolution or pooling, which says which steps its kernel reads for each
    result; raises `ModelError` if there is no such kernel.

    size: the length of its kernel. before, after: the steps of zeros ahead of a sequence and behind it. same:
    "upper" or "lower" for zeros that follow from the length, as in `Window`.
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


def as_steps(x: Placed) -> Placed:
    """Replaces a placeholder for a value with zeros around its steps, which only a convolution may read, by a
    value that has these zeros as further steps; returns any other value as it is.
    """
    zeros = x.value
    if not isinstance(zeros, ZerosAround):
        return x
    return zero_steps(zeros.source, 1, zeros.before, zeros.after)


def zero_steps(x: Placed, axis: int, before: int, after: int) -> Placed:
    """Puts steps of zeros ahead of each sequence and behind it. axis: the axis of the steps."""
    return at_steps(x, axis, window_of(1, 1, 1, before, after), 0)


def at_steps(x: Placed, axis: int, window: Window, entry: int) -> Placed:
    """Returns one entry of each window of the steps of a value. axis: the axis of the steps."""
    value = apply("windows", traced_steps(x, axis), **window.attributes)[:, entry]
    return x.with_value(value, (*x.axes[:axis], (value.type.extent[-1],), *x.axes[axis + 1 :]))


def repeated(x: Placed, axis: int, count: int) -> Placed:
    """Repeats each entry of an axis, of steps or of a feature, `count` times."""
    if is_feature(x.axes[axis]):
        indices = np.arange(int(x.sizes[axis]) * count) // count
        taken = np.take(x.value, indices, axis=x.feature(axis))
        return x.with_value(taken, (*x.axes[:axis], (len(indices),), *x.axes[axis + 1 :]))
    value = traced_steps(x, axis)
    values = broadcast(reshaped(value, (1, *value.type.shape)), (count, *value.type.shape))
    return split_steps(x.with_value(values, (*x.axes[: axis + 1], (count,), *x.axes[axis + 1 :])), axis)


def join_steps(x: Placed, count: int) -> Placed:
    """Returns a value [batch, steps, ...] with each `count` neighbouring steps as one, and a new axis of
    these `count` behind that of the steps. What is left over at the end of a sequence is left out.
    """
    value = apply("windows", traced_steps(x, 1), **Window(count, 1, 0, count, count - 1).attributes)
    return x.with_value(value, (x.axes[0], (value.type.extent[-1],), (count,), *x.axes[2:]))


def steps_as_feature(x: Placed, axis: int) -> Placed:
    """Turns the steps of each sequence (axis `axis`) into an axis of features, in a model whose file states
    their number. It is NaN for a sequence of another number of steps.

    Raises `AxesError` if the file does not state it.
    """
    count = stated_number(str(x.axes[axis][0]), dict(x.stated)) if is_time(x.axes[axis]) else None
    if not count or features_of(x.axes[:axis]):
        raise AxesError(f"axis {axis} of {text_of(x.axes)} is not a feature")
    window = window_of(count, 1, 1, 0, 0)
    value = over_steps(apply("windows", traced_steps(x, axis), **window.attributes), "first")
    fits = reshaped(length_of(value) == dict(x.stated)[STEPS], (1,) * len(value.type.shape))
    none = np.asarray(np.nan, value.type.dtype)
    return x.with_value(np.where(fits, value, none), (*x.axes[:axis], (count,), *x.axes[axis + 1 :]))


def pool_adaptively(x: Placed, axis: int, count: int, how: str) -> Placed:
    """Pools an axis, of steps or of a feature, to `count` parts that are as equal as can be: part i of n
    entries has those from i n / count, rounded down, to (i + 1) n / count, rounded up.

    how: "max" or "mean". The result has a feature in place of the axis.
    """
    if is_feature(x.axes[axis]):
        size, feature = x.sizes[axis], x.feature(axis)
        bounds = [(part * size // count, -(-(part + 1) * size // count)) for part in range(count)]
        pooled = [
            REDUCED[how](part_of(x.value, feature + len(x.features), slice(*each)), axis=feature)
            for each in bounds
        ]
    else:
        pooled = [part_of_steps(traced_steps(x, axis), part, count, how) for part in range(count)]
    place = len(features_of(x.axes[:axis]))
    wide = [reshaped(each, (*shape_of(each)[:place], 1, *shape_of(each)[place:])) for each in pooled]
    made = wide[0] if count == 1 else np.concatenate(wide, axis=first_feature(wide[0]) + place)
    return x.with_value(made, (*x.axes[:axis], (count,), *x.axes[axis + 1 :]))


REDUCED: dict[str, Any] = {"max": np.max, "mean": np.mean}


def part_of_steps(x: Traced, part: int, count: int, how: str) -> Any:
    """Reduces one of `count` equal parts of the steps of each sequence, at index `part`, for adaptive
    pooling.
    how: "max" or "mean".
    """
    steps, index = length_of(x), index_of(x)
    begin, end = steps * part // count, (steps * (part + 1) + count - 1) // count
    inside = (index >= expand(begin, x)) & (index < expand(end, x))
    inside = reshaped(inside, (1,) * len(x.type.shape))
    others = np.asarray(lowest(x.type.dtype) if how == "max" else 0, x.type.dtype)
    value = over_steps(np.where(inside, x, others), "max" if how == "max" else "sum")
    if how == "max":
        return value
    return value / reshaped((end - begin).astype(x.type.dtype), (1,) * len(x.type.shape))


def traced_steps(x: Placed, axis: int) -> Traced:
    """Returns the traced value of an operand whose axis `axis` is steps, or raises `ModelError`."""
    if not isinstance(x.value, Traced) or not is_time(x.axes[axis]):
        raise ModelError(f"it goes over axis {axis} of {text_of(x.axes)}, which are no steps")
    return x.value


def split_steps(x: Placed, axis: int) -> Placed:
    """Turns the feature axis behind the axis of steps (`axis`) into steps: n entries become n steps."""
    value, (count,) = traced_steps(x, axis), x.axes[axis + 1]
    assert isinstance(count, int)
    assert not features_of(x.axes[:axis])
    window = Window(count, 1, 0, count, count - 1)
    steps = derived_axis(value.type.extent[-1], Lengths(0, count, multiplies=True))
    made = apply("overlap", value, **window.attributes, steps=steps)
    return x.with_value(made, (*x.axes[:axis], (steps,), *x.axes[axis + 2 :]))


def convolve(
    x: Placed, weight: Placed, bias: Placed | None, window: Window, groups: int, padded: bool = False
) -> Placed:
    """Convolves a value [sequences, features, steps] over the steps of each sequence.

    weight, bias: parameters [out, in / groups, kernel] and [out]. window: which steps the kernel reads for
    each result. groups: the number of groups of features. padded: whether the model has padding; if later
    steps are read, the numbers there must be 0.
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

    weight, bias: parameters [in, out / groups, kernel] and [out]. pads: the numbers of results that are left
    out ahead and behind. output_padding: that of further results at the end. groups: that of groups of
    features. padded: whether the model has padding, for which `ModelError` is raised.
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

    how: computes the pooled value from the value of x at each step. padded: whether the model has padding,
    for which `ModelError` is raised.
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

    name: the name of the operation, for messages.
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
    """Returns a parameter as a value of the net to which `value` belongs."""
    return Traced(value.builder, lifted(value.builder, array.value, ()))


def at_windows(x: Placed, made: Traced) -> Placed:
    """Returns a result [sequences, features, windows] of an operand [sequences, features, steps]."""
    return x.with_value(made, (x.axes[0], made.type.shape, (made.type.extent[-1],)))
