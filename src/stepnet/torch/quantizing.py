"""Stops PyTorch's quantization of modules from leaving stepnet's layers in float silently.

It knows torch.nn's layers by their very classes, and stepnet's are subclasses. So when it reads the attribute
`qconfig` of one of stepnet's layers, and would quantize one of torch.nn, an error is raised.
"""

import inspect
from typing import Any

from stepnet.errors import InputError
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
NAME = "qconfig"
"""Attribute by which PyTorch determines how a module is quantized; None for a module that is not."""
ASKING = "_propagate_qconfig_helper"
"""PyTorch's function that reads the attribute; its local variables tell what is to be quantized."""


class Qconfig:
    """Descriptor for `qconfig` of stepnet's layers, which raises an error if PyTorch would quantize one."""

    def __get__(self, module: Any, kind: Any = None) -> Any:
        """Returns the value that was set for this attribute of a module. Without one, raises `InputError` if
        PyTorch reads it to quantize the layer, and else `AttributeError`, as for an attribute that the module
        does not have.
        """
        if module is not None and NAME in module.__dict__:
            return module.__dict__[NAME]
        caller = inspect.currentframe()
        asking = None if caller is None else caller.f_back
        if module is not None and asking is not None and asking.f_code.co_name == ASKING:
            check(module, asking.f_locals)
        raise AttributeError(NAME)

    def __set__(self, module: Any, value: Any) -> None:
        """Sets the `qconfig` of a module, which tells PyTorch how to quantize it; None tells it not to."""
        module.__dict__[NAME] = value

    def __delete__(self, module: Any) -> None:
        """Deletes the `qconfig` of a module; raises `AttributeError` if it has none."""
        if NAME not in module.__dict__:
            raise AttributeError(NAME)
        del module.__dict__[NAME]


def check(module: Any, caller_locals: dict[str, Any]) -> None:
    """Raises `InputError` if PyTorch is quantizing a model and would quantize a layer of stepnet (`module`)
    if it were one of torch.nn, or a layer of torch.nn in the step of a `Recurrence`.

    caller_locals: the local variables of the function of PyTorch that reads the layer's `qconfig`. They say
        how all layers, and those of some classes of torch.nn, are to be quantized.
    """
    mros = [type(inner).__mro__ for inner in module.modules()]
    kinds = {kind for mro in mros for kind in mro if kind.__module__.startswith("torch.nn")}
    if caller_locals["module_qconfig"] is None and not kinds & caller_locals["qconfig_dict"].keys():
        return
    name, title = type(module).__name__, f"`{caller_locals['prefix']}`" if caller_locals["prefix"] else "it"
    if not hasattr(torch.nn, name):
        raise InputError(
            f"torch.ao.quantization cannot quantize {title}, a stepnet.torch.{name}: leave it as it is, by "
            "inner.qconfig = None for each inner of its modules(). stepnet has int8 of its own: "
            "stepnet.quantize"
        )
    raise InputError(
        f"torch.ao.quantization does not know stepnet.torch.{name}, and would leave "
        f"{title} in float: quantize the model with torch.nn.{name} (undo() of the result of "
        "accelerate brings that back), or leave the layer as it is by layer.qconfig = None. stepnet has int8 "
        "of its own: stepnet.quantize"
    )
