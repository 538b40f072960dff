"""Convolutions over steps in the trace of a module: nodes of its graph, which keep the number of steps.

conv1d(x, W, padding="same")          ->   stepnet::convolved(x, W, before)
conv1d(pad(x, (2, 0)), W)             ->   stepnet::convolved(x, W, 2)     a causal convolution
"""

from collections.abc import Sequence
from typing import Any

from stepnet.errors import ModelError, StepError
from stepnet.importers.convolving import convolve, window_of
from stepnet.importers.placed import Placed
from stepnet.torch.pytorch import pytorch
from stepnet.torch.replay import ReplayedNode
from stepnet.torch.rewritten import pad

torch: Any = pytorch("torch")
ZEROS = "stepnet_zeros"
"""The attribute of a padded tensor that has the tensor without zeros, and their numbers ahead and behind."""


def padded_steps(x: Any, sizes: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Replaces `torch.nn.functional.pad` in the trace of a module. A convolution of the result reads zeros
    around the steps of x; no other operation takes more steps than a sequence has.

    sizes: pairs of numbers of elements, from the last axis on. value: the number; None is 0.
    """
    made = pad(x, sizes, mode, value)
    over_steps = not isinstance(x.shape[-1], int) and len(sizes) == 2 and not value
    if over_steps and min(sizes) >= 0:
        setattr(made, ZEROS, (x, *sizes))
    return made


def single(number: Any) -> Any:
    """Returns the only entry of a tuple or list, as PyTorch takes settings of one axis; others unchanged."""
    return number[0] if isinstance(number, tuple | list) else number


def conv1d(
    input: Any,  # noqa: A002 - PyTorch's name
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Replaces `torch.conv1d` in the trace of a module: adds a graph node, and returns its result. Raises
    `StepError` for a convolution that does not keep the number of steps.
    """
    x, before, after = getattr(input, ZEROS, (input, 0, 0))
    size, dilation, padding = weight.shape[-1], single(dilation), single(padding)
    reach = (size - 1) * dilation
    own = (reach // 2, reach - reach // 2) if padding == "same" else (0, 0) if padding == "valid" else None
    first, last = own or (padding, padding)
    try:
        window = window_of(size, single(stride), dilation, before + first, after + last)
    except ModelError as error:
        raise StepError(str(error)) from None
    return torch.ops.stepnet.convolved(x, weight, bias, window.before, dilation, groups)


def convolved_shapes(x: Any, weight: Any, bias: Any, before: int, dilation: int, groups: int) -> Any:
    """Returns an empty tensor like the result of the operator `convolved`; only x and weight are read."""
    return x.new_empty(*x.shape[:-2], weight.shape[0], x.shape[-1])


def convolved(call: ReplayedNode) -> Placed:
    """Evaluates a `convolved` node of a PyTorch graph on values with named axes."""
    weight: Placed = call.arguments["weight"]
    dilation, before = call.arguments["dilation"], call.arguments["before"]
    reach = (weight.axes[-1][0] - 1) * dilation  # type: ignore[operator]
    window = window_of(weight.axes[-1][0], 1, dilation, before, reach - before)  # type: ignore[arg-type]
    arguments = call.arguments
    return convolve(arguments["x"], weight, arguments["bias"], window, arguments["groups"])
