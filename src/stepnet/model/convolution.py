"""Convolutions over the steps of each sequence, in models of whole sequences.

    windows of x at each step [size, in]  --as one vector @ weight as a matrix-->  outputs [out]

So their gradients, of any order, are those of windows and of products.
"""

from typing import Any

from stepnet.compiler.net.windows import LARGEST, Window
from stepnet.compiler.trace.lines import refuse
from stepnet.compiler.trace.traced import Traced, apply, lifted, reshaped, transposed
from stepnet.compiler.values.arguments import checked_integer, is_one_of, short_repr
from stepnet.errors import InputError

PADDINGS = ("causal", "same")


def conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    dilation: int = 1,
    padding: str = "causal",
    groups: int = 1,
) -> Traced:
    """Computes a convolution over the steps of each sequence of a model, as if it were alone, with one result
    per step.

    At step t it is the sum over j of weight[:, :, j] @ x[t - before + j * dilation], plus the bias. Steps
    outside of the sequence count as zeros. This is what PyTorch's `torch.nn.functional.conv1d` computes; a
    mathematician calls it a cross-correlation.

    Args:
        x: Sequences of a `Graph` model, with features [in] at each step.
        weight: A parameter [out, in / groups, kernel], as in PyTorch.
        bias: A parameter [out]; None for none.
        dilation: The number of steps from one that is read to the next.
        padding: "causal": a step reads itself and earlier steps, before = (kernel - 1) * dilation. "same":
            it lies in the middle, before = (kernel - 1) * dilation // 2.
        groups: The number of groups into which the features are divided; each result reads one group.

    Raises:
        StepError: For values that are no sequences of a model, as in a step of a recurrence, and for shapes
            and settings that do not fit.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> model = sn.Graph(lambda x, weight: sn.conv1d(x, weight), np.float32([[[1, 10]]]))
    >>> model(sn.Ragged.from_list([np.float32([[1], [2], [3]]), np.float32([[4]])])).to_list()
    [array([[10.],
           [21.],
           [32.]], dtype=float32), array([[40.]], dtype=float32)]
    """
    if not isinstance(x, Traced) or len(x.type.extent) < 2:
        raise refuse("conv1d takes sequences of a model, which sn.Graph runs")
    builder = x.builder
    if not builder.is_model:
        raise refuse(
            "conv1d is for models, as sn.Graph runs them: a step of a recurrence has one step at a time"
        )
    weight = Traced(builder, lifted(builder, weight, ()))
    dilation, groups = positive(dilation, "dilation"), positive(groups, "groups")
    check_shapes(x, weight, groups)
    outputs, _, size = weight.type.shape
    if not is_one_of(padding, PADDINGS):
        raise refuse(f"padding is one of {', '.join(PADDINGS)}, not {short_repr(padding)}")
    reach = (size - 1) * dilation
    window = Window(size, dilation, reach if padding == "causal" else reach // 2)
    if bias is not None:
        bias = Traced(builder, lifted(builder, bias, ()))
        if not bias.is_constant or bias.type.shape != (outputs,):
            raise refuse(f"bias is a parameter [{outputs}], one number per output, not {bias.type}")
    return convolution(x, weight, bias, window, groups)


def positive(value: Any, name: str) -> int:
    """Returns an argument that is a positive whole number; raises `StepError` for any other."""
    try:
        return checked_integer(value, f"{name} is a whole number from 1 to {LARGEST}", 1, LARGEST)
    except InputError as error:
        raise refuse(str(error)) from None


def convolution(x: Traced, weight: Traced, bias: Traced | None, window: Window, groups: int) -> Traced:
    """Computes a convolution over the steps of each sequence, as `conv1d` does; raises `StepError` for shapes
    that do not fit.

    window: the steps that it reads. groups: the number of groups into which the features are divided.
    """
    check_shapes(x, weight, groups)
    values = apply("windows", x, size=window.size, dilation=window.dilation, before=window.before)
    made = convolved(values, weight, groups)
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
    """Multiplies windows [size, in] by the weight [out, in / groups, size] of a convolution; returns [out].

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
    """Convolves each feature by itself: windows [size, in] and a weight [out, 1, size], with out / in outputs
    for each feature. Sums of so few products are no work for a product of matrices.
    """
    size, inputs = values.type.shape
    own = weight.type.shape[0] // inputs
    by_entry = reshaped(transposed(weight, (2, 0, 1)), (size, inputs, own))
    products = reshaped(values, (size, inputs, 1)) * by_entry
    return reshaped(apply("sum", products, axes=(-3,)), (inputs * own,))
