"""The entries of the tables: functions of transformers that stepnet runs, and layers whose tokens are one
step.

transformers writes the same functions into the file of every model that uses them, and the `forward` of a
layer reads them as globals of its file. So functions and layers are found by name. `check` compares each with
stepnet's before it is replaced.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from stepnet.torch.arrays import PLAIN
from stepnet.torch.patches.transformers.scan import Step
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
FILES = "transformers.models."
"""The package with the files of models. In files from elsewhere the same names may mean other things."""
MISSING = object()
HOOKS = "_forward_hooks", "_forward_pre_hooks"
class_of: Callable[[Any], Any] = cast("Any", type)


@dataclass(frozen=True)
class FunctionPatch:
    """Table entry of a function or method of transformers that stepnet replaces.

    Attributes:
        ours: The function of stepnet that replaces it, with the same arguments.
        sizes: The tensors with which `check` calls both, each as name:axes, with a letter for each axis. All
            numbers along an axis with a capital letter are equal, and the axis t is that of steps.
        options: The other arguments of that call.
        runs: Tells from the arguments of a call whether stepnet runs it; None if it runs all calls. Other
            calls go to the function of transformers.
        config: The configuration of the layer of that call, for a method that reads its layer.
        arguments: The arguments with which that layer is made, besides its configuration.
        variants: Arguments besides `options`, of one call each.
        is_token: Whether layers call it for single tokens alone.
        is_half_refused: Whether the function of transformers raises for 16-bit tensors. Of the others, single
            tokens in 16 bits go to the function of transformers, which takes less time.
    """

    ours: Callable[..., Any]
    sizes: str
    options: tuple[tuple[str, Any], ...] = ()
    runs: Callable[..., bool] | None = None
    config: tuple[tuple[str, Any], ...] = ()
    arguments: tuple[tuple[str, Any], ...] = ()
    variants: tuple[tuple[tuple[str, Any], ...], ...] = ((),)
    is_token: bool = False
    is_half_refused: bool = False


@dataclass(frozen=True)
class CachedStates:
    """The states of a layer in a cache of transformers, and how such a cache is made for `check`.

    kinds: the kinds of states that the cache has of the layer, in the order of the step's memories.
    """

    kinds: tuple[str, ...] = ("conv", "recurrent")

    def of(self, cache: Any, number: int) -> list[Any]:
        """Returns the states of the layer with this `number` in a cache; None among them for what is not
        there yet, or if the cache keeps past states for a later `crop`.
        """
        if cache.is_recording_past(number):
            return [None]
        return [getattr(cache, f"get_{kind}_state")(number, state_idx=0) for kind in self.kinds]

    def cache(self, file: Any, config: Any) -> Any:
        """Makes an empty cache for a model with a configuration. file: the file of transformers that has the
        layer.
        """
        return file.DynamicCache(config=config)


@dataclass(frozen=True)
class TokenLayer:
    """Table entry of a layer of transformers whose single tokens, as in generation, run as one step.

    Parts are named by their paths in the layer; the layer itself is "".

    Attributes:
        step: Makes the step of a layer from its options. The step takes the input [rows, features]; its
            memory is the last inputs of the convolution, and the state.
        options: The attributes that are the options, each as the part that has it and its name.
        names: The parameters of the step, each as the part that has it and its name there, as a parameter or
            buffer. The columns of `in_proj` are the features of the input.
        parts: The classes of the layers that it is made of, with their modules, by name; a part stands before
            its own parts. Layers of other libraries may be called Linear as well, as those of quantized
            weights are.
        config: The sizes of a small layer, for `check`.
        cached: The part whose states are in the cache.
        arguments: The arguments with which `check` makes a small layer, besides its configuration.
        states: The states that a cache has of the layer, in the order of the step's memories.
        returns_state: Whether the layer returns its last state, too.
    """

    step: Callable[..., Step]
    options: tuple[tuple[str, str], ...]
    names: dict[str, tuple[str, str]]
    parts: dict[str, str]
    config: dict[str, Any]
    cached: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()
    states: CachedStates = CachedStates()
    returns_state: bool = False

    def refusal(self, module: Any) -> str | None:
        """Returns the reason why the tokens of a layer cannot run as one step; None if they can: its parts
        must be of the known classes, without hooks, with the activation silu, and with plain parameters.
        """
        for name, wanted in self.parts.items():
            parent, _, last = name.rpartition(".")
            part = part_of(module, parent)._modules.get(last)
            kind = class_of(part)
            if f"{kind.__module__}.{kind.__qualname__}" != wanted:
                return f"{name} is a {kind.__module__}.{kind.__qualname__}, not a {wanted}"
            if any(part.__dict__[hooks] for hooks in HOOKS) or "forward" in part.__dict__:
                return f"{name} has hooks or a forward of its own"
        for name in ("", *self.parts):
            activation = part_of(module, name).__dict__.get("activation", "silu")
            if activation not in ("silu", "swish"):
                return f"its activation is {activation}"
        for part, name in self.names.values():
            tensor = holder_of(module, part, name).get(name, MISSING)
            if tensor is not None and type(tensor) not in PLAIN:
                return f"{f'{part}.{name}'.lstrip('.')} is no plain parameter"
            if tensor is not None and tensor.is_inference():
                return "its parameters were made in inference mode, where PyTorch counts no changes"
        return None

    def options_of(self, module: Any) -> tuple[Any, ...]:
        """Returns the options of a layer's step, such as the eps of its norm, from the layer's attributes."""
        return tuple(getattr(part_of(module, part), name) for part, name in self.options)

    def parameters(self, module: Any) -> dict[str, Any]:
        """Returns the step's parameters by name, as tensors of a layer; those that it lacks are left out."""
        named = {key: holder_of(module, part, name)[name] for key, (part, name) in self.names.items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def part_of(module: Any, path: str) -> Any:
    """Returns the submodule of a layer of PyTorch at a path of names joined by dots; the layer for ""."""
    for name in path.split(".") if path else ():
        module = module._modules[name]
    return module


def holder_of(module: Any, path: str, name: str) -> dict[str, Any]:
    """Returns the buffers of the submodule of a layer at a path if one of them has this name, else its
    parameters.
    """
    part = part_of(module, path)
    return part._buffers if name in part._buffers else part._parameters
