"""Convolutions and pooling over the steps of each sequence, in models of whole sequences.

    windows of x [size, in]  --as one vector @ weight as a matrix-->  outputs [out]      conv1d
    x [in]  --@ weight as a matrix-->  [size, out]  --overlap-->  outputs [out]          conv_transpose1d

So gradients of any order follow from the gradients of windows and of matrix products.
"""

from collections.abc import Collection
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.extensions import MODES, Extension
from stepnet.compiler.net.windows import LARGEST, Lengths, Window, derived_axis
from stepnet.compiler.trace.lines import refuse
from stepnet.compiler.trace.traced import Traced, apply, lifted, reshaped, transposed
from stepnet.compiler.values.arguments import checked_integer, is_integer, is_one_of, short_repr
from stepnet.errors import InputError, NetError

PADDINGS = ("causal", "same", "valid")


def conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int = 1,
    dilation: int = 1,
    padding: Any = "causal",
    groups: int = 1,
) -> Traced:
    """Computes a convolution over the steps of each sequence of a model, as if it were alone.

    Its result at index t is the sum over j of weight[:, :, j] @ x[t * stride - before + j * dilation], plus
    the bias. Steps outside of the sequence count as zeros. This is what PyTorch's
    `torch.nn.functional.conv1d` computes; a mathematician calls it a cross-correlation.

    Args:
        x: Sequences of a `Graph` model, with features [in] at each step.
        weight: A parameter [out, in / groups, kernel], as in PyTorch.
        bias: A parameter [out]; None for none.
        stride: The number of steps from the first one that a result reads to the first one of the next.
        dilation: The number of steps from one that is read to the next.
        padding: The steps of zeros around each sequence. "causal": a step reads itself and earlier steps,
            before = (kernel - 1) * dilation. "same": it lies in the middle,
            before = (kernel - 1) * dilation // 2; with a stride there is one result for every `stride` steps,
            and the zeros depend on the length of the sequence, as in TensorFlow. "valid": none. Numbers: so
            many ahead of each sequence and behind it, or (before, after).
        groups: The number of groups into which the features are divided; each result reads one group.

    Returns:
        Sequences with features [out]. With a stride of 1 and zeros that make up for the kernel they have as
        many steps as x, else (n + before + after - (kernel - 1) * dilation - 1) // stride + 1. A sequence
        that is too short for one result has no steps, and neither has one without steps, whatever the zeros.

    Raises:
        StepError: For values that are no sequences of a model, as in a step of a recurrence, and for shapes
            and settings that do not fit.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> sequences = sn.Ragged.from_list([np.float32([[1], [2], [3]]), np.float32([[4]])])
    >>> model = sn.Graph(lambda x, weight: sn.conv1d(x, weight), np.float32([[[1, 10]]]))
    >>> model(sequences).to_list()
    [array([[10.],
           [21.],
           [32.]], dtype=float32), array([[40.]], dtype=float32)]
    >>> model = sn.Graph(lambda x, weight: sn.conv1d(x, weight, stride=2, padding=1), np.float32([[[1, 10]]]))
    >>> model(sequences).lengths
    array([2, 1])
    """
    builder = model_of(x, "conv1d")
    weight = Traced(builder, lifted(builder, weight, ()))
    stride, dilation = positive(stride, "stride"), positive(dilation, "dilation")
    groups = positive(groups, "groups")
    check_shapes(x, weight, groups)
    window = window_of(weight.type.shape[2], stride, dilation, padding, PADDINGS)
    return convolution(x, weight, bias_of(bias, builder, weight.type.shape[0]), window, groups)


def conv_transpose1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int = 1,
    dilation: int = 1,
    padding: Any = 0,
    output_padding: int = 0,
    groups: int = 1,
) -> Traced:
    """Computes a transposed convolution over the steps of each sequence of a model, as if it were alone.

    For each t and j, x[t] @ weight[:, :, j] is added to the result at t * stride - before + j * dilation, and
    the bias to every result. This is what PyTorch's `torch.nn.functional.conv_transpose1d` computes.

    Args:
        x: Sequences of a `Graph` model, with features [in] at each step.
        weight: A parameter [in, out / groups, kernel], as in PyTorch.
        bias: A parameter [out]; None for none.
        stride: The number of results from the first one that a step adds to, to the first one of the next.
        dilation: The number of results from one that a step adds to, to the next.
        padding: The number of results that are left out at both ends, or (before, after).
        output_padding: The number of further results at the end; less than the stride or the dilation.
        groups: The number of groups into which the features are divided.

    Returns:
        Sequences of (n - 1) * stride + (kernel - 1) * dilation + 1 - before - after + output_padding steps,
        with features [out]; of no steps where x has none.

    Raises:
        StepError: For values that are no sequences of a model, and for shapes and settings that do not fit.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> model = sn.Graph(lambda x, weight: sn.conv_transpose1d(x, weight, stride=2), np.float32([[[1, 10]]]))
    >>> model(np.float32([[[1], [2]]])).tolist()
    [[[1.0], [10.0], [2.0], [20.0]]]
    """
    builder = model_of(x, "conv_transpose1d")
    weight = Traced(builder, lifted(builder, weight, ()))
    stride, dilation = positive(stride, "stride"), positive(dilation, "dilation")
    groups = positive(groups, "groups")
    if len(x.type.shape) != 1 or not weight.is_constant or len(weight.type.shape) != 3:
        raise refuse(f"weight is a parameter [in, out / groups, kernel], not {weight.type}, for {x.type}")
    inputs, own, size = weight.type.shape
    if x.type.shape != (inputs,) or inputs % groups or not size:
        raise refuse(f"weight is {weight.type.element}, which {groups} groups and {x.type} do not fit")
    before, after = padded(padding, 0)
    more = whole(output_padding, "output_padding")
    if more >= max(stride, dilation):
        raise refuse(f"output_padding is less than the stride or the dilation, not {more}")
    window = Window(size, dilation, before, stride, (size - 1) * dilation - before - after)
    steps = with_lengths(x, Lengths(window.reach + 1 - stride - before - after + more, stride, True))
    width = inputs // groups
    parts = list[Traced]()
    for group in range(groups):
        features = ((group * width, (group + 1) * width, 1),)
        rows = (*features, (0, own, 1), (0, size, 1))
        part, rows_of_part = apply("slice", x, slices=features), apply("slice", weight, slices=rows)
        matrix = reshaped(transposed(rows_of_part, (0, 2, 1)), (width, size * own))
        parts.append(reshaped(part @ matrix, (size, own)))
    values = parts[0] if groups == 1 else apply("concatenate", *parts, axis=-1)
    made = apply("overlap", values, **window.attributes, steps=steps)
    bias = bias_of(bias, builder, own * groups)
    return made if bias is None else made + bias


def max_pool1d(
    x: Any, size: int, *, stride: int | None = None, dilation: int = 1, padding: Any = 0
) -> Traced:
    """Returns the largest of the values at `size` steps, for each window of steps of each sequence.

    Args:
        x: Sequences of a `Graph` model, with any features at each step.
        size: The number of steps of a window.
        stride: The number of steps from one window to the next; `size` by default.
        dilation: The number of steps from one of a window to its next.
        padding: The number of steps that the first window begins ahead of a sequence, and the last one may
            end behind it, (before, after), or "same" as for `conv1d`. Only steps of the sequence count.

    Returns:
        Sequences of (n + before + after - (size - 1) * dilation - 1) // stride + 1 steps, as `conv1d`.

    Raises:
        StepError: For values that are no sequences of a model, and for settings that do not fit.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> sn.Graph(lambda x, params: sn.max_pool1d(x, 2))(np.float32([[[1], [3], [2], [0]]])).tolist()
    [[[3.0], [2.0]]]
    """
    return windowed_max(x, pool_window(x, "max_pool1d", size, stride, dilation, padding))


def windowed_max(x: Traced, window: Window) -> Traced:
    """Returns the largest of the values of each window of x; steps outside of a sequence do not count."""
    values = windows_of(x, window)
    if has_zeros(window):
        values = np.where(step_mask(x, window), values, np.asarray(lowest(x.type.dtype), x.type.dtype))
    return apply("max", values, axes=(-1 - len(x.type.shape),))


def lowest(dtype: str) -> Any:
    """Returns the number of a dtype that no other is below: -inf, the least integer, or False."""
    if dtype == "bool":
        return False
    return np.iinfo(dtype).min if "int" in dtype else -np.inf


def avg_pool1d(
    x: Any, size: int, *, stride: int | None = None, padding: Any = 0, count_include_pad: bool = True
) -> Traced:
    """Returns the mean of the values at `size` steps, for each window of steps of each sequence.

    Args:
        x: Sequences of a `Graph` model, with any floating-point features at each step.
        size: The number of steps of a window.
        stride: The number of steps from one window to the next; `size` by default.
        padding: The number of zeros ahead of each sequence and behind it, (before, after), or "same" as for
            `conv1d`.
        count_include_pad: Whether these zeros count, as in PyTorch; if not, only steps of the sequence do.

    Returns:
        Sequences of (n + before + after - size) // stride + 1 steps, as `conv1d`.

    Raises:
        StepError: For values that are no sequences of a model, and for settings that do not fit.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> sn.Graph(lambda x, params: sn.avg_pool1d(x, 2))(np.float32([[[1], [3], [2], [0]]])).tolist()
    [[[2.0], [1.0]]]
    """
    window = pool_window(x, "avg_pool1d", size, stride, 1, padding)
    if not x.type.is_float:
        raise refuse(f"avg_pool1d takes floating-point values, not {x.type}")
    return windowed_mean(x, window, count_include_pad)


def windowed_mean(x: Traced, window: Window, counts_zeros: bool) -> Traced:
    """Returns the mean of the values of each window (some neighbouring steps) of x.

    counts_zeros: whether steps outside of a sequence count, as zeros.
    """
    axes = (-1 - len(x.type.shape),)
    total = apply("sum", windows_of(x, window), axes=axes)
    if counts_zeros or not has_zeros(window):
        return total / window.size
    return total / apply("sum", step_mask(x, window).astype(x.type.dtype), axes=axes)


def pad_steps(x: Any, padding: Any, *, mode: str = "reflect") -> Traced:
    """Puts copies of steps ahead of each sequence of a model and behind it.

    A convolution with `padding="valid"` then reads these, where it would else read zeros. `conv1d` itself
    puts zeros there.

    Args:
        x: Sequences of a `Graph` model, with any features at each step.
        padding: The number of steps at both ends, or (before, after).
        mode: "reflect" for the steps next to the first and the last one, as in a mirror there: a sequence has
            more steps than are put at an end. "replicate" for the first and the last step again. Both are as
            in PyTorch's `torch.nn.functional.pad`.

    Returns:
        Sequences of before + n + after steps; of none where x has none.

    Raises:
        StepError: For values that are no sequences of a model, and for settings that do not fit. A call
            raises `InputError` for sequences that are too short.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> model = sn.Graph(lambda x, params: sn.pad_steps(x, (2, 1)))
    >>> model(np.float32([[[1], [2], [3]]]))[0, :, 0].tolist()
    [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]
    >>> model = sn.Graph(lambda x, params: sn.pad_steps(x, (2, 1), mode="replicate"))
    >>> model(np.float32([[[1], [2], [3]]]))[0, :, 0].tolist()
    [1.0, 1.0, 1.0, 2.0, 3.0, 3.0]
    """
    model_of(x, "pad_steps")
    if not is_one_of(mode, MODES):
        raise refuse(f"mode is {' or '.join(map(repr, MODES))}, not {short_repr(mode)}")
    return extended(x, Extension(*padded(padding, 0), mode))


def extended(x: Traced, extension: Extension) -> Traced:
    """Returns sequences with copies of their steps at their ends; raises `StepError` for numbers of steps
    that there cannot be, and for other values than steps of sequences.
    """
    if not (extension.before or extension.after):
        return x
    try:
        return apply("extend", x, **extension.attributes)
    except NetError as error:
        raise refuse(str(error)) from None


# ---- arguments ---------------------------------------------------------------------------------------------


def model_of(x: Any, name: str) -> Any:
    """Returns the builder of the model that has the sequences x; raises `StepError` for other values.

    name: the name of the function in messages.
    """
    if not isinstance(x, Traced) or len(x.type.extent) < 2:
        raise refuse(f"{name} takes sequences of a model, which sn.Graph runs")
    if not x.builder.is_model:
        raise refuse(
            f"{name} is for models, as sn.Graph runs them: a step of a recurrence has one step at a time"
        )
    return x.builder


def positive(value: Any, name: str) -> int:
    """Returns an argument that is a positive whole number; else raises `StepError`. name: the argument's."""
    return whole(value, name, 1)


def whole(value: Any, name: str, least: int = 0) -> int:
    """Returns an argument that is a whole number from `least` on, or raises `StepError`. name: its name."""
    try:
        return checked_integer(value, f"{name} is a whole number from {least} to {LARGEST}", least, LARGEST)
    except InputError as error:
        raise refuse(str(error)) from None


def padded(padding: Any, reach: int, names: Collection[str] = ()) -> tuple[int, int]:
    """Returns the numbers of zeros ahead of a sequence and behind it; raises `StepError` for other settings.

    reach: the number of steps from the first one that a result reads to the last one.
    names: the names of `PADDINGS` that are possible besides numbers.
    """
    if is_one_of(padding, names):
        before = {"causal": reach, "same": reach // 2, "valid": 0}[padding]
        return before, 0 if padding == "valid" else reach - before
    if is_integer(padding):
        return whole(padding, "padding"), whole(padding, "padding")
    several = cast("tuple[Any, ...]", padding) if isinstance(padding, tuple | list) else ()
    if len(several) == 2:
        before, after = several
        return whole(before, "padding"), whole(after, "padding")
    raise refuse(
        f"padding is {''.join(f'{n}, ' for n in names)}a number or (before, after), not {short_repr(padding)}"
    )


def bias_of(bias: Any, builder: Any, outputs: int) -> Traced | None:
    """Returns the bias of a convolution as a value of the model; None if there is none. Raises `StepError`
    for another shape.

    builder: the builder of the model. outputs: the number of features of the results.
    """
    if bias is None:
        return None
    bias = Traced(builder, lifted(builder, bias, ()))
    if not bias.is_constant or bias.type.shape != (outputs,):
        raise refuse(f"bias is a parameter [{outputs}], one number per output, not {bias.type}")
    return bias


def pool_window(x: Any, name: str, size: Any, stride: Any, dilation: Any, padding: Any) -> Window:
    """Returns the `Window` of a pooling, which says which steps it reads for each result; raises `StepError`
    for values and settings that do not fit.

    name: the name of the function in messages. The others are the settings of the pooling.
    """
    model_of(x, name)
    size, dilation = positive(size, "size"), positive(dilation, "dilation")
    stride = size if stride is None else positive(stride, "stride")
    window = window_of(size, stride, dilation, padding, ("same",))
    most = max(window.before, window.reach - window.before - window.lost)
    if not window.same and most > window.reach:
        raise refuse(f"padding is at most {window.reach}, so that each window has a step, not {most}")
    return window


def window_of(size: int, stride: int, dilation: int, padding: Any, names: Collection[str]) -> Window:
    """Returns the `Window`, which says which steps a convolution or a pooling reads for each result; raises
    `StepError` for another padding.

    size: the number of steps that a result reads. stride: the steps from the start of one window to the start
    of the next. dilation: the distance between the steps of one window. names: the names of `PADDINGS` that
    are possible besides numbers.
    """
    if is_one_of(padding, names) and padding == "same" and stride > 1:
        return Window(size, dilation, 0, stride, same="upper")
    reach = (size - 1) * dilation
    before, after = padded(padding, reach, names)
    return Window(size, dilation, before, stride, reach - before - after)


def has_zeros(window: Window) -> bool:
    """Tells whether some windows of a convolution or a pooling may reach beyond their sequence."""
    return bool(window.same or window.before or window.lost < window.reach)


# ---- operations --------------------------------------------------------------------------------------------


def with_lengths(x: Traced, lengths: Lengths) -> str:
    """Returns the axis whose lengths follow from x's by `lengths`; raises `StepError` if none does."""
    try:
        return derived_axis(x.type.extent[-1], lengths)
    except NetError as error:
        raise refuse(str(error)) from None


def windows_of(x: Traced, window: Window) -> Traced:
    """Returns the windows of the steps of x, [size, features...] at each."""
    return apply("windows", x, **window.attributes)


def step_mask(x: Traced, window: Window) -> Traced:
    """Returns a mask [size, 1...] for each window of x: true for steps of the sequence, false for padding."""
    ones = Traced(x.builder, x.builder.constant(np.ones((1,) * len(x.type.shape), bool)))
    return apply("windows", apply("expand", ones, extent=x.type.extent), **window.attributes)


def convolution(x: Traced, weight: Traced, bias: Traced | None, window: Window, groups: int) -> Traced:
    """Computes a convolution over the steps of each sequence, as `conv1d` does; raises `StepError` for shapes
    that do not fit.

    window: the steps that it reads. groups: the number of groups into which the features are divided.
    """
    check_shapes(x, weight, groups)
    made = convolved(windows_of(x, window), weight, groups)
    return made if bias is None else made + bias


def check_shapes(x: Traced, weight: Traced, groups: int) -> None:
    """Raises `StepError` unless the sequences and the weight of a convolution fit each other.

    groups: the number of groups into which the features are divided.
    """
    if len(x.type.shape) != 1:
        raise refuse(f"conv1d takes sequences with one axis of features, not {x.type}")
    if not weight.is_constant or len(weight.type.shape) != 3 or not weight.type.shape[2]:
        raise refuse(f"weight is a parameter [out, in / groups, kernel], not {weight.type}")
    outputs, read, _ = weight.type.shape
    (inputs,) = x.type.shape
    if outputs % groups or read * groups != inputs:
        raise refuse(
            f"weight is {weight.type.element}, [out, in / groups, kernel], which {groups} groups and "
            f"sequences with {inputs} features do not fit"
        )


def convolved(values: Traced, weight: Traced, groups: int) -> Traced:
    """Multiplies windows [size, in] (the features of the steps that a result reads) by the weight [out, in /
    groups, size] of a convolution; returns [out].

    groups: the number of groups of features; each output reads one of them.
    """
    size, inputs = values.type.shape
    outputs, read, _ = weight.type.shape
    if read == 1:
        return by_feature(values, weight)
    if groups == 1:
        matrix = reshaped(transposed(weight, (2, 1, 0)), (size * inputs, outputs))
        return reshaped(values, (size * inputs,)) @ matrix
    own = outputs // groups
    parts = list[Traced]()
    for group in range(groups):
        features = ((0, size, 1), (group * read, (group + 1) * read, 1))
        rows = ((group * own, (group + 1) * own, 1), (0, read, 1), (0, size, 1))
        part = apply("slice", values, slices=features), apply("slice", weight, slices=rows)
        parts.append(convolved(*part, groups=1))
    return apply("concatenate", *parts, axis=-1)


def by_feature(values: Traced, weight: Traced) -> Traced:
    """Convolves each feature by itself: windows [size, in] (the steps that a result reads) and a weight [out,
    1, size], with out / in outputs for each feature. Sums of so few products are no work for a product of
    matrices.
    """
    size, inputs = values.type.shape
    own = weight.type.shape[0] // inputs
    by_entry = reshaped(transposed(weight, (2, 0, 1)), (size, inputs, own))
    products = reshaped(values, (size, inputs, 1)) * by_entry
    return reshaped(apply("sum", products, axes=(-3,)), (inputs * own,))
