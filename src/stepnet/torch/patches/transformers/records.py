"""The entries of the tables: functions of transformers that stepnet runs, and layers whose tokens are one
step.

transformers writes the same functions into the file of every model that uses them, and the `forward` of a
layer reads them as globals of its file. So functions and layers are found by name. `check` compares each with
stepnet's before it is replaced.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from stepnet.compiler.trace.functions import sigmoid, silu
from stepnet.compiler.values.records import dataclass
from stepnet.torch.arrays import HALVES, PLAIN
from stepnet.torch.patches.transformers.scan import Step
from stepnet.torch.pytorch import pytorch
from stepnet.torch.sequences import COMPUTED

torch: Any = pytorch("torch")
LINEAR: tuple[str, ...] = ("torch.nn.modules.linear.Linear", "stepnet.torch.linear.Linear")
CONVOLUTION: tuple[str, ...] = ("torch.nn.modules.conv.Conv1d",)
"""The classes of parts that all layers have."""
FILES = "transformers.models."
"""The package with the files of models. In files from elsewhere the same names may mean other things."""
MISSING = object()
GATES = {"silu": silu, "swish": silu, "sigmoid": sigmoid}
"""The functions of gates that are options of a step, by their names in configurations."""
HOOKS = "_forward_hooks", "_forward_pre_hooks"
class_of: Callable[[Any], Any] = cast("Any", type)


@dataclass(frozen=True)
class FunctionPatch:
    """Table entry of a function or method of transformers that stepnet replaces.

    Attributes:
        ours: The function of stepnet that replaces it, with the same arguments.
        sizes: The tensors with which `check` calls both, each as name:axes, with a letter for each axis. All
            numbers along an axis with a capital letter are equal, and the axis t has the steps.
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
        """Makes an empty cache for a model with a configuration. file: transformers' file with the layer."""
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
        parts: The layers that it is made of, by name: the classes that each may have, with their modules. A
            part stands before its own parts. Layers of other libraries may be called Linear as well, as those
            of quantized weights are.
        config: The sizes of a small layer, for `check`.
        cached: The part whose states are in the cache.
        arguments: The arguments with which `check` makes a small layer, besides its configuration.
        states: The states that a cache has of the layer, in the order of the step's memories.
        returns_state: Whether the layer returns its last state, too.
        has_own_products: Whether some products read parameters of the layer itself, and not of linear layers.
        model: The class of models whose part the small layer of `check` is, and its path there, for a layer
            that its model completes; None for one that is made alone.
        widens: The attribute that says whether a layer of 16 bits returns float32, and takes it; "" if no
            layer does.
    """

    step: Callable[..., Step]
    options: tuple[tuple[str, str], ...]
    names: dict[str, tuple[str, str]]
    parts: dict[str, tuple[str, ...]]
    config: dict[str, Any]
    cached: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()
    states: CachedStates = CachedStates()
    returns_state: bool = False
    has_own_products: bool = False
    model: tuple[str, str] | None = None
    widens: str = ""

    def refusal(self, module: Any) -> str | None:
        """Returns the reason why the tokens of a layer cannot run as one step; None if they can: its parts
        must be of the known classes, without hooks, with the activation silu, and with plain parameters.
        """
        for name, wanted in self.parts.items():
            parent, _, last = name.rpartition(".")
            part = part_of(module, parent)._modules.get(last)
            kind = class_of(part)
            if f"{kind.__module__}.{kind.__qualname__}" not in wanted:
                return f"{name} is a {kind.__module__}.{kind.__qualname__}, not a {wanted[0]}"
            if any(part.__dict__[hooks] for hooks in HOOKS) or "forward" in part.__dict__:
                return f"{name} has hooks or a forward of its own"
        for name in ("", *self.parts):
            activation = part_of(module, name).__dict__.get("activation", "silu")
            known = GATES if (name, "activation") in self.options else ("silu", "swish")
            if activation not in known:
                return f"its activation is {activation}"
        if len(found := set(self.weights_of(module).values()) - {None}) > 1:
            return f"its linear layers have weights in {' and '.join(sorted(found))}, not all in one"
        if self.has_own_products and found:
            return "some of its products are no linear layers, and so have no weights in fewer bits"
        for part, name in self.names.values():
            absent = None if class_of(part_of(module, part)) is torch.nn.Identity else MISSING
            tensor = holder_of(module, part, name).get(name, absent)
            if tensor is not None and type(tensor) not in PLAIN:
                return f"{f'{part}.{name}'.lstrip('.')} is no plain parameter"
            if tensor is not None and tensor.is_inference():
                return "its parameters were made in inference mode, where PyTorch counts no changes"
        return None

    def weights_of(self, module: Any) -> dict[str, Any]:
        """Returns the dtype in which each linear layer of a layer (`module`) reads its weights, by the name
        of the step's parameter: that of a `stepnet.torch.Linear`, None for a layer of torch.nn.
        """
        return {
            key: getattr(part_of(module, part), "weights", None)
            for key, (part, name) in self.names.items()
            if self.parts.get(part) == LINEAR and name == "weight"
        }

    def rounding(self, module: Any) -> tuple[str | None, tuple[str, ...]]:
        """Returns the dtype to which products of the step round the weights of a layer (`module`) without a
        `refusal`, None for weights as they are; and the parameters that are exact besides rounded ones.
        """
        dtypes = self.weights_of(module)
        weights: str | None = next((dtype for dtype in dtypes.values() if dtype), None)
        return weights, tuple(key for key, dtype in dtypes.items() if dtype is None and weights)

    def options_of(self, module: Any) -> tuple[Any, ...]:
        """Returns the options of a layer's step, such as its norm's eps, by attributes; None for missing
        ones.
        """
        return tuple(getattr(part_of(module, part), name, None) for part, name in self.options)

    def parameters(self, module: Any) -> dict[str, Any]:
        """Returns the step's parameters by name, as tensors of a layer; leaves out missing ones."""
        named = {key: holder_of(module, part, name).get(name) for key, (part, name) in self.names.items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def has_dtypes(self, module: Any, x: Any, states: Sequence[Any]) -> bool:
        """Tells whether the step takes the dtypes of a token x, of a layer (`module`) and of its states: all
        float32, all float64, or 16 bits with some numbers in float32.
        """
        named = self.parameters(module)
        own = named["in_proj"].dtype
        if own not in HALVES:
            return own in COMPUTED and {own} == {each.dtype for each in (x, *named.values(), *states)}
        linear = {
            named[key].dtype
            for key, (part, _) in self.names.items()
            if self.parts.get(part) == LINEAR and key in named
        }
        others = {each.dtype for each in (*named.values(), *states)}
        takes = {own, torch.float32} if self.widens else {own}
        return x.dtype in takes and linear == {own} and others <= {own, torch.float32}

    def dtype_of_output(self, module: Any, x: Any) -> Any:
        """Returns the dtype of the output of a layer (`module`) for a token x."""
        if x.dtype in HALVES and self.widens and getattr(module, self.widens):
            return torch.float32
        return x.dtype


def part_of(module: Any, path: str) -> Any:
    """Returns the submodule of a layer of PyTorch at a path of names joined by dots; the layer for ""."""
    for name in path.split(".") if path else ():
        module = module._modules[name]
    return module


def holder_of(module: Any, path: str, name: str) -> dict[str, Any]:
    """Returns the dict of the submodule of a layer at a path that has the name: its buffers or parameters."""
    part = part_of(module, path)
    return part._buffers if name in part._buffers else part._parameters
