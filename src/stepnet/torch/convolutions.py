"""Convolutions over steps in the trace of a module: nodes of its graph, which keep the number of steps.

conv1d(x, W, padding="same")          ->   stepnet::convolved(x, W, before)
conv1d(pad(x, (2, 0)), W)             ->   stepnet::convolved(x, W, 2)     a causal convolution
"""

from collections.abc import Sequence
from typing import Any

from stepnet.compiler.net.windows import Window
from stepnet.errors import ModelError, StepError
from stepnet.importers.convolving import convolve, window_of
from stepnet.importers.placed import Placed
from stepnet.torch.pytorch import pytorch
from stepnet.torch.replay import ReplayedNode
from stepnet.torch.rewritten import pad as with_numbers

torch: Any = pytorch("torch")
ZEROS = "stepnet_zeros"
"""The attribute of a padded tensor that has the tensor without zeros, and their numbers ahead and behind."""


def padded_steps(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Replaces `torch.nn.functional.pad` in the trace of a module. A convolution of the result reads zeros
    around the steps of x; no other operation takes more steps than a sequence has.

    pad: pairs of numbers of elements, from the last axis on. value: the number; None is 0.
    """
    made = with_numbers(x, pad, mode, value)
    over_steps = not isinstance(x.shape[-1], int) and len(pad) == 2 and not value
    if over_steps and min(pad) >= 0:
        setattr(made, ZEROS, (x, *pad))
    return made


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
    """Replaces `torch.conv1d` in the trace of a module: adds a graph node, and returns its result. Raises
    `StepError` for a convolution that does not keep the number of steps.
    """
    x, before, after = getattr(input, ZEROS, (input, 0, 0))
    size, dilation, number = weight.shape[-1], single(dilation), single(padding)
    reach = (size - 1) * dilation
    named = {"same": (reach // 2, reach - reach // 2), "valid": (0, 0)}
    own: Any = named.get(number, (number, number))
    try:
        window = window_of(size, single(stride), dilation, before + own[0], after + own[1])
    except ModelError as error:
        raise StepError(str(error)) from None
    return torch.ops.stepnet.convolved(x, weight, bias, window.before, dilation, groups)


def convolved_shapes(x: Any, weight: Any, bias: Any, before: int, dilation: int, groups: int) -> Any:
    """Returns an empty tensor like the result of the operator `convolved`; only x and weight are read."""
    return x.new_empty(*x.shape[:-2], weight.shape[0], x.shape[-1])


def convolved(call: ReplayedNode) -> Placed:
    """Evaluates a `convolved` node of a PyTorch graph on values with named axes."""
    x, weight, bias, before, dilation, groups = call.arguments.values()
    return convolve(x, weight, bias, Window(weight.features[-1], dilation, before), groups)
