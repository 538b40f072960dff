"""Group and instance norms in traces: of a module as nodes of its graph, of a step by basic operations.

group_norm(x, 4, W, b)   ->   stepnet::group_normed(x, 4, W, b)     each sequence's own steps
instance_norm(x)         ->   stepnet::group_normed(x, channels)

PyTorch's functions ask for the numbers of sequences and steps, and join channels with steps.
"""

from collections.abc import Callable
from typing import Any

from stepnet.errors import StepError
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


def group_norm(
    input: Any,  # noqa: A002 - PyTorch's name
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """Replaces `torch.nn.functional.group_norm` in the trace of a module: adds a graph node, and returns its
    result, for which groups of channels get mean 0 and variance 1. cudnn_enabled: ignored.
    """
    return torch.ops.stepnet.group_normed(input, num_groups, weight, bias, eps)


def group_norm_of_features(
    input: Any,  # noqa: A002 - PyTorch's name
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """Computes `torch.nn.functional.group_norm` in the trace of a step, whose rows have features alone, from
    basic operations. cudnn_enabled: ignored.
    """
    groups = input.reshape(input.shape[0], num_groups, -1)
    centred = groups - groups.mean(-1, keepdim=True)
    deviation = torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps)
    normal = (centred / deviation).reshape(input.shape)
    of_channels = (-1, *[1] * (input.dim() - 2))
    normal = normal if weight is None else normal * weight.reshape(of_channels)
    return normal if bias is None else normal + bias.reshape(of_channels)


def instance_norm(grouped: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the function that replaces `torch.nn.functional.instance_norm` in traces. grouped: the function
    that replaces a group norm.
    """

    def rule(
        input: Any,  # noqa: A002 - PyTorch's name
        running_mean: Any = None,
        running_var: Any = None,
        weight: Any = None,
        bias: Any = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        """Normalises by groups of one channel, or calls PyTorch's batch norm if the module keeps statistics.
        momentum: not read. Raises `StepError` for a module that is to update its statistics.
        """
        if not use_input_stats:
            return torch.nn.functional.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
        if running_mean is not None:
            raise StepError("an instance norm in training changes its running statistics: call .eval() on it")
        return grouped(input, input.shape[1], weight, bias, eps)

    return rule


def normed_shapes(input: Any, *_: Any) -> Any:  # noqa: A002 - PyTorch's name
    """Returns an empty tensor like the result of the operator `group_normed`, for traces."""
    return torch.empty_like(input)
