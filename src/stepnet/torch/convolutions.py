"""Convolutions and pooling over steps in the trace of a module, as nodes of its graph.

conv1d(x, W, padding="same")          ->   stepnet::convolved(x, W, window)
conv1d(pad(x, (2, 0)), W)             ->   stepnet::convolved(x, W, window)     a causal convolution
max_pool1d(x, 2)                      ->   stepnet::pooled(x, "max", window)
conv_transpose1d(x, W)[..., :-2]      ->   stepnet::cut(stepnet::convolved_transposed(x, W), 2, 0, 2, 1)
pad(x, (2, 0), mode="reflect")        ->   stepnet::extended(x, 2, 0, "reflect")
interpolate(x, scale_factor=2)        ->   stepnet::repeated(x, 2, 2)

A result with another number of steps has a symbolic size of its own, named by the axis that is derived from
the steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.windows import Lengths, Window, derived_axis
from stepnet.errors import ModelError, StepError
from stepnet.importers.aten.windows import numbers_of, window_from
from stepnet.importers.axes import is_steps
from stepnet.importers.convolving import window_of
from stepnet.torch.aten_nodes import in_words
from stepnet.torch.pytorch import pytorch
from stepnet.torch.rewritten import pad as with_numbers

torch: Any = pytorch("torch")
ZEROS = "stepnet_zeros"
"""The attribute of a padded tensor with the tensor before padding, the numbers of zeros ahead and behind, and
the values of both tensors. Other values later tell that a tensor was changed in place.
"""


def padded_steps(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Replaces `torch.nn.functional.pad` in the trace of a module. A convolution of the result reads zeros
    around the steps of x; no other operation takes more steps than a sequence has. By reflection and
    replication the result has these steps.

    pad: pairs of numbers of elements, from the last axis on. value: the number to pad with; None is 0. Raises
    `StepError` for other modes along the steps, and for numbers of steps that there cannot be.
    """
    if mode != "constant" and not isinstance(x.shape[-1], int):
        extension = Extension(pad[0], pad[1], mode) if len(pad) == 2 else None
        reason = f"a padding of {mode!r} has two numbers" if extension is None else extension.refusal
        if reason is not None:
            raise StepError(f"{reason} (torch.nn.functional.pad, or padding_mode of a convolution)")
        if not any(pad):
            return x
        return torch.ops.stepnet.extended(x, *pad, mode)
    made = with_numbers(x, pad, mode, value)
    over_steps = not isinstance(x.shape[-1], int) and len(pad) == 2 and not value
    if over_steps and min(pad) >= 0:
        setattr(made, ZEROS, (x, *pad, value_of(made), value_of(x)))
    return made


def value_of(tensor: Any) -> Any:
    """Returns the tensor that a tensor of the trace stands for now: another one after a change in place."""
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor.elem)


def without_zeros(padded: Any) -> tuple[Any, int, int]:
    """Returns the tensor from which `padded_steps` made the tensor `padded` by putting zeros around its
    steps, and the numbers of zeros ahead and behind; any other tensor itself, and 0 and 0.

    Raises `StepError` if one of both tensors was changed in place since then.
    """
    x, before, after, *values = getattr(padded, ZEROS, (padded, 0, 0))
    if values and not (values[0] is value_of(padded) and values[1] is value_of(x)):
        raise StepError(
            "steps of zeros are put around a tensor, and then one of both is changed in place: a convolution "
            "reads the tensor without them; make a new tensor, as by torch.relu(x)"
        )
    return x, before, after


def single(number: Any) -> Any:
    """Returns the only entry of a tuple or list, as PyTorch takes settings of one axis; others unchanged."""
    several: Any = number
    return several[0] if isinstance(number, tuple | list) else number


def conv1d(
    input: Any,  # noqa: A002 - PyTorch's name
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Replaces `torch.conv1d` in the trace of a module: adds a graph node for the convolution over steps, and
    returns its result. The arguments are PyTorch's. Zeros that `torch.nn.functional.pad` put around the steps
    before become padding of the convolution.
    """
    x, before, after = without_zeros(input)
    size, dilation, number = weight.shape[-1], single(dilation), single(padding)
    reach = (size - 1) * dilation
    named = {"same": (reach // 2, reach - reach // 2), "valid": (0, 0)}
    own: Any = named.get(number, (number, number))
    window = checked_window(size, single(stride), dilation, before + own[0], after + own[1])
    return torch.ops.stepnet.convolved(x, weight, bias, numbers_of(window), groups)


def conv_transpose1d(
    input: Any,  # noqa: A002 - PyTorch's name
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Replaces `torch.conv_transpose1d` in the trace of a module: adds a graph node for the convolution over
    steps; returns its result. The arguments are PyTorch's.
    """
    numbers = [single(number) for number in (stride, dilation, padding, output_padding)]
    return torch.ops.stepnet.convolved_transposed(input, weight, bias, numbers, groups)


def pooled_windows(
    name: str, x: Any, size: Any, stride: Any, padding: Any, *others: Any, **named: Any
) -> Any:
    """Replaces `torch.max_pool1d` and `torch.avg_pool1d`, by name, in the trace of a module, for windows of
    `size` steps; returns the tensor of their maxima or means. Raises `StepError` for `ceil_mode`.

    others, named: the arguments that follow, in PyTorch's order for each function.
    """
    order = ("dilation", "ceil_mode") if name == "max_pool1d" else ("ceil_mode", "count_include_pad")
    given = {**dict(zip(order, others, strict=False)), **named}
    if given.get("ceil_mode"):
        raise StepError(
            "its ceil_mode has windows that end beyond the sequence: pad the steps, or leave it out"
        )
    size, number = single(size), single(padding)
    stride = single(stride) if stride not in (None, (), []) else size
    window = checked_window(size, stride, single(given.get("dilation", 1)), number, number)
    how = (
        "max" if name == "max_pool1d" else "mean" if given.get("count_include_pad", True) else "mean of steps"
    )
    return torch.ops.stepnet.pooled(x, how, numbers_of(window))


def part_of_steps(x: Any, index: Any) -> Any:
    """Replaces the indexing of tensors in the trace of a module: adds a graph node for a slice that leaves
    out steps at the ends, as x[..., :-2] and x[:, 1:]. All other indices are PyTorch's.
    """
    parts: list[Any] = [*index] if type(index) is tuple else [index]
    if any(isinstance(part, torch.Tensor | list) for part in parts):
        return INDEX(x, index)
    given = sum(part is not None and part is not Ellipsis for part in parts)
    dim = 0
    for place, part in enumerate(parts):
        if isinstance(part, slice) and (cuts := cuts_of(x.shape[dim], part)) is not None:
            x = torch.ops.stepnet.cut(x, dim, *cuts)
            parts[place] = slice(None)
        dim += x.dim() - given if part is Ellipsis else part is not None
    return INDEX(x, tuple(parts))


INDEX: Any = torch.Tensor.__getitem__


def cuts_of(size: Any, part: Any) -> tuple[int, int, int] | None:
    """Returns the numbers of steps that a slice leaves out ahead and behind, and its stride; None for a slice
    of features or sequences, for one of all steps, and for the first or the last step.

    size: the size of the axis, an integer for features.
    """
    start, step, stop = part.start or 0, 1 if part.step is None else part.step, part.stop
    if isinstance(size, int) or not is_steps(str(size.node.shape_env.names.get(size.node.expr))):
        return None
    if isinstance(stop, torch.SymInt):
        left = (size - stop).node.expr
        stop = -int(left) if left.is_Integer else 1
    behind = -(stop or 0)
    if not isinstance(start, int) or start < 0 or behind < 0 or (start, behind, step) == (0, 0, 1):
        return None
    return start, behind, step


def interpolated(x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **_: Any) -> Any:
    """Replaces `torch.nn.functional.interpolate` in the trace of a module: repeats each step a whole number
    of times. Raises `StepError` for other arguments, which are PyTorch's.
    """
    count = single(scale_factor)
    is_whole = isinstance(count, int | float) and count == int(count) >= 1
    if x.dim() != 3 or size is not None or not is_whole or mode not in ("nearest", "nearest-exact"):
        raise StepError(
            "interpolate repeats each step of a tensor [sequences, features, steps] a whole number of times: "
            f"give scale_factor=2 and mode='nearest', not size={size}, {scale_factor=} and {mode=}"
        )
    return torch.ops.stepnet.repeated(x, 2, int(count))


def interleaved(x: Any, repeats: Any, dim: Any = None, **named: Any) -> Any:
    """Replaces `torch.repeat_interleave` in a module's trace, with PyTorch's arguments, if of steps."""
    if dim is None or not isinstance(repeats, int) or isinstance(x.shape[dim], int):
        return torch.repeat_interleave(x, repeats, dim, **named)
    return torch.ops.stepnet.repeated(x, dim % x.dim(), repeats)


def checked_window(size: int, stride: int, dilation: int, before: int, after: int) -> Window:
    """Returns the `Window` (the steps that a kernel reads for each result) of a convolution or pooling;
    raises `StepError` for numbers that PyTorch's operators do not have.

    size: the number of steps of the kernel. before, after: the zeros around the sequence.
    """
    try:
        return window_of(size, stride, dilation, before, after)
    except ModelError as error:
        raise StepError(str(error)) from None


# ---- shapes ------------------------------------------------------------------------------------------------


def size_along(x: Any, axis_of: Callable[[str], str], dim: int = -1) -> Any:
    """Returns the symbolic number of steps that a convolution or pooling of x [sequences, features, steps]
    results in.

    dim: the axis of the steps in x. axis_of: returns the name of the result's axis of steps for the name of
    the operand's. Raises `StepError` for an operand without steps.
    """
    environment, steps = x.fake_mode.shape_env, x.shape[dim]
    name = None if isinstance(steps, int) else environment.names.get(steps.node.expr)
    if name is None or not is_steps(name):
        raise StepError(
            "a convolution or pooling of a model is over the steps of a tensor [sequences, features, steps], "
            f"not over an axis of size {in_words(steps, environment.names)}; the layer itself can pad steps"
        )
    return environment.size_of(axis_of(name))


def convolved_shapes(x: Any, weight: Any, bias: Any, window: Sequence[int], groups: int) -> Any:
    """Returns an empty tensor with the shape of the result of the operator `convolved`, for PyTorch's tracer.
    It takes the arguments of the operator. The number of steps of the result follows from the number of steps
    of x.
    """
    made = window_from(window)
    size = x.shape[-1] if made.keeps_lengths else size_along(x, made.axis)
    return x.new_empty(*x.shape[:-2], weight.shape[0], size)


def transposed_shapes(x: Any, weight: Any, bias: Any, numbers: Sequence[int], groups: int) -> Any:
    """Returns an empty tensor with the shape of the result of the operator `convolved_transposed`, for
    PyTorch's tracer. The arguments are those of the operator; numbers: stride, dilation, padding and further
    results at the end.
    """
    stride, dilation, padding, more = numbers
    added = (weight.shape[-1] - 1) * dilation + 1 - stride - 2 * padding + more
    size = size_along(x, lambda axis: derived_axis(axis, Lengths(added, stride, multiplies=True)))
    return x.new_empty(*x.shape[:-2], weight.shape[1] * groups, size)


def pooled_shapes(x: Any, how: str, window: Sequence[int]) -> Any:
    """Returns an empty tensor like the result of the operator `pooled`."""
    return x.new_empty(*x.shape[:-1], size_along(x, window_from(window).axis))


def extended_shapes(x: Any, before: int, after: int, how: str) -> Any:
    """Returns an empty tensor like the result of the operator `extended`, for PyTorch's tracer."""
    return x.new_empty(*x.shape[:-1], size_along(x, Extension(before, after, how).axis))


def cut_shapes(x: Any, dim: int, before: int, after: int, step: int) -> Any:
    """Returns an empty tensor like the result of the operator `cut`, for PyTorch's tracer."""
    axis_of = window_of(before + after + 1, step, 1, 0, 0).axis
    return x.new_empty(*x.shape[:dim], size_along(x, axis_of, dim), *x.shape[dim + 1 :])


def repeated_shapes(x: Any, dim: int, count: int) -> Any:
    """Returns an empty tensor like the result of the operator `repeated`, for PyTorch's tracer."""
    size = size_along(x, lambda axis: derived_axis(axis, Lengths(0, count, multiplies=True)), dim)
    return x.new_empty(*x.shape[:dim], size, *x.shape[dim + 1 :])
