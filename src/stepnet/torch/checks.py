"""Checks of the tensors that modules take: a single dtype that stepnet compiles for, on the CPU."""

from collections.abc import Iterable, Sequence
from typing import Any

from stepnet.errors import InputError
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
DTYPES = {torch.float32: "float32", torch.float64: "float64"}


def as_cast(dtype: Any, *tensors: Any) -> Sequence[Any]:
    """Casts tensors to `dtype`, that of the parameters, if autocast is on; else returns them unchanged."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    return [tensor.to(dtype) for tensor in tensors]


def dtypes_refused(parameters: Iterable[Any]) -> str | None:
    """Returns the reason why stepnet cannot run a module with these parameters: dtypes other than float32
    and float64. None if it can.
    """
    dtypes = {str(tensor.dtype) for tensor in parameters if tensor.dtype not in DTYPES}
    if not dtypes:
        return None
    return (
        f"its parameters are {', '.join(sorted(dtypes))}: only {' and '.join(DTYPES.values())} are supported"
    )


def check_tensors(
    title: str, names: Sequence[str], parameters: Sequence[Any], data: Any, states: Sequence[Any]
) -> None:
    """Raises `InputError` unless all tensors of a call are on the CPU and have the same dtype, float32 or
    float64.

    title: the class name of the module. names: those of the parameters. data: the input of the call.
    states: h, and c of an LSTM; may be empty.
    """
    dtype = parameters[0].dtype
    if dtype not in DTYPES:
        raise InputError(
            f"{title} runs in float32 and float64 on the CPU, and its parameters are {dtype}: make them "
            f"float32 with .float(), or use torch.nn.{title}"
        )
    of_states = ("hx[0]", "hx[1]") if len(states) > 1 else ("hx",)
    named = zip((*names, "the input", *of_states), (*parameters, data, *states), strict=False)
    for name, tensor in named:
        if tensor.dtype != dtype or tensor.device.type != "cpu":
            raise InputError(
                f"{name} of {title} is {tensor.dtype} on {tensor.device}, and {names[0]} is {dtype} on cpu; "
                "all tensors must be of one dtype on one device"
            )
