"""The linear layers of a model that `accelerate` makes layers with weights in fewer bits, and why it leaves
others as they are.
"""

from collections.abc import Mapping
from typing import Any, cast, get_args

from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import InputError
from stepnet.torch.arrays import PLAIN
from stepnet.torch.linear import DTYPES, Linear, Weights
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recurrence import Recurrence
from stepnet.torch.scan import Scan
from stepnet.torch.sequences import HOST

torch: Any = pytorch("torch")
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
ADAPTED = "base_layer"
"""The name that adapters, such as those of PEFT, give the layer that they adapt."""
STEP_SIZE = "dt_proj"
"""The name of the linear layer of Mamba's step sizes, whose weight a mixer multiplies by itself."""


def checked_weights(linear: Any) -> Weights | None:
    """Returns the argument `linear=` of `accelerate`; raises `InputError` for one that is not known."""
    known = get_args(Weights)
    if linear is not None and linear not in known:
        names = ", ".join(map(repr, known))
        raise InputError(
            f"linear is {short_repr(linear)}: it is one of {names}, or None for layers as they are"
        )
    return linear


def linear_layers(modules: Mapping[str, Any], weights: Weights) -> dict[str, str | None]:
    """Finds the linear layers of a model that are not stepnet's, by name, with the reason why each is left as
    it is; None for a layer that can have weights in fewer bits.

    modules: all modules of the model, by name. weights: the dtype of the weights.

    Raises `InputError` if there are none, and for weights that int8 cannot represent.
    """
    found = {name: module for name, module in modules.items() if is_linear(module)}
    if not found:
        raise InputError(
            f"linear={weights!r} is for layers torch.nn.Linear, and the model has none: leave it out"
        )
    others = {name: module for name, module in found.items() if type(module) is not Linear}
    reasons = {name: refusal(name, module, modules) for name, module in others.items()}
    for name, module in found.items():
        weight = module.weight if reasons.get(name) is None and weights == "int8" else None
        if weight is not None and not bool(torch.isfinite(weight.detach()).all()):
            raise InputError(
                f"the weight of {name or 'the model'} has NaN or infinity, for which int8 has no numbers: "
                "mend it, or give linear='bfloat16', which has them"
            )
    return reasons


def is_linear(module: Any) -> bool:
    """Tells whether a module is a linear layer: of torch.nn, or of another library that calls it Linear."""
    named = cast("Any", type(module)).__name__.endswith("Linear") and ADAPTED not in module._modules
    return isinstance(module, torch.nn.Linear) or named


def refusal(name: str, module: Any, modules: Mapping[str, Any]) -> str | None:
    """Returns the reason why a linear layer is left as it is; None if it can have weights in fewer bits.

    Only the very class torch.nn.Linear is replaced, where nothing but its own forward reads or changes its
    weights. name, modules: that of the layer, and all modules of the model by name.
    """
    kind = cast("Any", type(module))
    if not isinstance(module, torch.nn.Linear):
        return f"{kind.__module__}.{kind.__qualname__} is not torch.nn.Linear"
    if kind is not torch.nn.Linear:
        return f"{kind.__name__} is a subclass, whose forward may compute something else"
    attributes = cast("dict[str, Any]", vars(module))
    if any(attributes[hooks] for hooks in HOOKS):
        return "it has hooks, which may change its weights"
    if "forward" in attributes:
        return "its forward was replaced on the layer itself, and may compute something else"
    return reader(name, modules) or refusal_of_parameters(list(module.parameters()))


def reader(name: str, modules: Mapping[str, Any]) -> str | None:
    """Returns the reason why a linear layer is left as it is if a module that contains it reads or changes
    its weights itself; None if there is none. name, modules: as for `refusal`.
    """
    outer, _, last = name.rpartition(".")
    holder = modules[outer] if name else None
    if last == ADAPTED:
        return f"{type(holder).__name__} adapts it, and may change its weights where PyTorch counts no change"
    if last == STEP_SIZE:
        return f"layers of Mamba multiply by the weight of {STEP_SIZE} themselves"
    if isinstance(holder, torch.nn.TransformerEncoderLayer):
        return "a TransformerEncoderLayer reads its weights itself"
    while name:
        name = name.rpartition(".")[0]
        if isinstance(modules[name], Recurrence | Scan):
            return f"it is computed in the step of a {type(modules[name]).__name__}"
    return None


def refusal_of_parameters(parameters: list[Any]) -> str | None:
    """Returns the reason why a linear layer with these parameters is left as it is: their class, device,
    dtype or sizes; None if there is none.
    """
    first = parameters[0]
    if any(type(tensor) not in PLAIN for tensor in parameters):
        return "its parameters are no plain tensors"
    if any(tensor.device.type != HOST for tensor in parameters):
        return (
            f"its parameters are on {first.device}: linear layers in fewer bits run on the CPU; move the "
            "model there first"
        )
    if len({tensor.dtype for tensor in parameters}) > 1 or first.dtype not in DTYPES:
        *others, last = DTYPES.values()
        dtypes = ", ".join(sorted({str(tensor.dtype) for tensor in parameters}))
        return f"its parameters are {dtypes}: only those in {', '.join(others)} or {last} are rounded"
    if any(tensor.is_inference() for tensor in parameters):
        return "its parameters were made in inference mode, where PyTorch counts no changes"
    return None if first.numel() else "it has no weights"
