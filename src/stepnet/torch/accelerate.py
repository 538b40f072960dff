"""`accelerate`: makes stepnet run the recurrences of a PyTorch model, in place."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from stepnet.compiler.targets import Order, checked_engine
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.model.program import Asked
from stepnet.torch.bound import BOUND
from stepnet.torch.layers import GRU, LSTM, RNN
from stepnet.torch.linear import Linear, Weights
from stepnet.torch.linear_layers import checked_weights, linear_layers
from stepnet.torch.patches import Origin, Patch, patches
from stepnet.torch.pytorch import pytorch
from stepnet.torch.sequences import dtypes_refused
from stepnet.torch.steps import GRUCell, LSTMCell, RNNCell
from stepnet.torch.trace import described

torch: Any = pytorch("torch")

OURS: dict[Any, Any] = {
    getattr(torch.nn, ours.__name__): ours for ours in (GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell)
}
OF_LINEAR = "weights", BOUND
"""The attributes that stepnet adds to a linear layer, besides its engine."""
ALREADY = "it is stepnet's already"
OWN_FORWARD = "its forward was replaced on the layer itself, and may compute something else"


@dataclass(frozen=True)
class Accelerated:
    """Record of `accelerate`: which layers of a model it replaced, and why it left others. Can undo the
    change.

    Attributes:
        replaced: The layers that stepnet runs now, by their names in the model.
        left: The reasons why other recurrent layers were not replaced, by their names in the model; for
            functions of layers of transformers, by the name of the layer and of the function.
    """

    replaced: dict[str, Any]
    left: dict[str, str]

    def undo(self) -> None:
        """Gives the replaced layers their classes of torch.nn or transformers back, in place, and removes the
        attributes of stepnet: the engines, the weights of linear layers in fewer bits, and prepared calls of
        layers of transformers.
        """
        for module in self.replaced.values():
            origin, is_linear = origin_of(type(module)), isinstance(module, Linear)
            module.__class__ = as_theirs(cast("Any", type(module)))
            for name in ("engine", *(origin.state if origin is not None else OF_LINEAR * is_linear)):
                module.__dict__.pop(name, None)

    def __str__(self) -> str:
        """Lists the replaced layers, then the layers that were left and why, one a line."""
        lines = [f"{name or 'the model'}: {title(module)}" for name, module in self.replaced.items()]
        lines += [f"{name or 'the model'}: left, {why}" for name, why in self.left.items()]
        return "\n".join(lines) or nothing_replaced(patches())


def nothing_replaced(known: Iterable[Patch]) -> str:
    """Returns the report on a model in which `accelerate` replaced nothing. known: the patches that were
    tried, which replace layers of other libraries.

    >>> print(nothing_replaced([]))
    nothing was replaced: the model has no layer or cell of torch.nn that is recurrent, and no patches for
    layers of other libraries are installed; a recurrence of your own is a stepnet.torch.Recurrence
    """
    others = ", ".join(f"no {patch.layers}" for patch in known)
    return (
        "nothing was replaced: the model has no layer or cell of torch.nn that is recurrent, and "
        f"{others or 'no patches for layers of other libraries are installed'}; "
        "a recurrence of your own is a stepnet.torch.Recurrence"
    )


def title(module: Any) -> str:
    """Returns the text for a replaced layer in a report: its class, and in brackets, for a layer of another
    library than torch.nn, the names of its functions that stepnet runs, for a linear layer its weights.
    """
    kind = cast("Any", type(module))
    if isinstance(module, Linear):
        return f"{kind.__name__} ({module.weights})"
    origin = origin_of(kind)
    return kind.__name__ if origin is None else f"{kind.__name__} ({', '.join(origin.runs)})"


def origin_of(kind: Any) -> Origin | None:
    """Returns the `Origin` (original class, replaced functions) of a class `kind` that a patch derived from
    one of another library than torch.nn; None for all other classes.
    """
    return getattr(kind, "stepnets", None)


def as_theirs(kind: Any) -> Any:
    """Returns the class of torch.nn or transformers that one of stepnet's classes (`kind`) replaced, to undo
    that; `kind` itself if it is none of stepnet's.

    PyTorch may have derived a class for a single module from stepnet's, as `torch.nn.utils.parametrize` does.
    Then a class with the same members is derived from the class of torch.nn.
    """
    theirs: dict[Any, Any] = {ours: theirs for theirs, ours in OURS.items()}
    theirs[Linear] = torch.nn.Linear
    theirs |= {base: base.stepnets.theirs for base in (kind, *kind.__bases__) if "stepnets" in vars(base)}
    if kind in theirs:
        return theirs[kind]
    bases: tuple[Any, ...] = tuple(theirs.get(base, base) for base in kind.__bases__)
    if bases == kind.__bases__:
        return kind
    members: dict[str, Any] = dict(kind.__dict__)
    members.pop("__dict__", None)
    return type(kind.__name__, bases, members)


def accelerate(model: Any, *, engine: Asked = "auto", linear: Weights | None = None) -> Accelerated:
    """Replaces, in place, the layers torch.nn.GRU, LSTM and RNN of a model, and the cells GRUCell, LSTMCell
    and RNNCell, by stepnet's, and returns a record of the replaced layers. A cell still runs one step per
    call.

    In models of Hugging Face transformers, stepnet runs the recurrences of state spaces and delta rules in
    `forward`, in `generate` and in training: the functions that transformers falls back to without kernels.
    Other models of the same classes are not changed.

    The layers stay the same objects, with their parameters, hooks and names, so optimisers and state_dicts
    remain valid. Layers that cannot be replaced are left unchanged, with the reason.

    Args:
        model: A torch.nn.Module.
        engine: The engine that runs the replaced layers, or several in order of preference, as for `GRU`.
            Layers that are stepnet's already get it too, unless it is "auto".
        linear: "bfloat16" or "int8" makes every torch.nn.Linear a `stepnet.torch.Linear`, whose product
            reads weights in that dtype: for `generate`, as reading weights takes most of the time of a token.
            These layers run without gradients. By default linear layers are left as they are.

    Raises:
        InputError: If `model` is no module, and for an engine or a `linear` that is not known. With `linear`
            for a model without linear layers, and for int8 if a weight is NaN or infinity.

    >>> import torch, stepnet.torch
    >>> small = torch.nn.LSTM(4, 4).to(torch.float8_e4m3fn)
    >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 3), torch.nn.GRU(3, 4), small)
    >>> done = stepnet.torch.accelerate(model)
    >>> print(done)
    1: GRU
    2: left, its parameters are torch.float8_e4m3fn: only float32, float64, float16 and bfloat16 are supported
    >>> isinstance(model[1], stepnet.torch.GRU)
    True
    >>> done.undo()
    >>> isinstance(model[1], stepnet.torch.GRU)
    False
    >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 10))
    >>> print(stepnet.torch.accelerate(model, linear="int8"))
    1: Linear (int8)
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"accelerate takes a torch.nn.Module, not {described(model)}")
    if any(kind.__module__.partition(".")[0] == "keras" for kind in type(model).__mro__):
        raise InputError("this is a model of Keras, whose layers stepnet.keras.accelerate() replaces")
    order, weights = checked_engine(engine), checked_weights(linear)
    by_name: dict[str, Any] = dict(model.named_modules())
    replaced, left, known = dict[str, Any](), dict[str, str](), patches()
    linears = {} if weights is None else linear_layers(by_name, weights)
    for name in (name for name, why in linears.items() if why is None):
        by_name[name].__class__, by_name[name].weights = (
            Linear,
            weights,
        )  # first, as blocks ask for their class
    for name, module in by_name.items():
        if name in linears:
            why = linears[name]
            kind, reasons = (Linear, {}) if why is None else (None, {"": why})
        elif isinstance(module, Linear):
            kind, reasons = None, {"": with_engine(module, order) + with_weights(module, weights)}
        elif isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase):
            why = refusal(module)
            kind, reasons = (OURS[type(module)], {}) if why is None else (None, {"": why})
        else:
            kind, reasons = other_layer(module, by_name[name.rpartition(".")[0]], known)
        if reasons == {"": ALREADY}:
            reasons = {"": with_engine(module, order)}
        left |= {f"{name}.{function}".strip("."): why for function, why in reasons.items()}
        if kind is not None:
            module.__class__ = kind
            if order != "auto":
                module.engine = order
            replaced[name] = module
    return Accelerated(replaced, left)


def with_engine(module: Any, engine: Order) -> str:
    """Sets the engine of a layer that is stepnet's already, unless it is "auto"; returns the report on it."""
    before = getattr(module, "engine", "auto")  # patches of other libraries need not have it
    if engine in ("auto", before):
        return ALREADY + (f", with engine={before!r}" if before != "auto" else "")
    module.engine = engine
    return f"{ALREADY}; its engine is now {engine!r}, and was {before!r}"


def with_weights(module: Linear, weights: Weights | None) -> str:
    """Sets the dtype of the weights of a linear layer that is stepnet's already, unless it is None; returns
    what the report adds for a change.
    """
    before = module.weights
    if weights in (None, before):
        return ""
    module.weights = weights
    return f"; its weights are now in {weights}, and were in {before}"


def other_layer(module: Any, holder: Any, known: Iterable[Patch]) -> tuple[Any, Mapping[str, str]]:
    """Finds out how to replace a module that is not a layer of torch.nn, from the patches, which know layers
    of other libraries.

    Returns (class, reasons): the class to give the module, or None to leave it; and the reasons why functions
    of the module are left unchanged, by name, where the name "" stands for the whole module. There are no
    reasons for a module that is not recurrent.

    module: the module, such as a Mamba layer of transformers. holder: the module that contains it; for the
    whole model the model itself. known: the patches. The first that knows the module decides.
    """
    kind = cast("Any", type(module))
    if origin_of(kind) is not None:
        return None, {"": ALREADY}
    answers = (patch.patched(module, holder) for patch in known)
    if (answer := next((answer for answer in answers if answer is not None), None)) is not None:
        is_own = answer.kind is not None and "forward" in vars(module)
        return (None, {"": OWN_FORWARD}) if is_own else (answer.kind, answer.left)
    if getattr(module, "original_name", kind.__name__) in {theirs.__name__ for theirs in OURS}:
        # torch.jit.script stores the name of the original class in original_name.
        return None, {"": f"{kind.__module__}.{kind.__qualname__} is not the class of this name in torch.nn"}
    return None, {}


def refusal(module: Any) -> str | None:
    """Returns the reason why `accelerate` cannot replace a layer of torch.nn by stepnet's; None if it can.

    Only the very classes of torch.nn are replaced, with parameters of a dtype in `DTYPES`.
    """
    kind = cast("Any", type(module))
    if kind in OURS.values():
        return ALREADY
    if kind not in OURS:
        return f"{kind.__name__} is a subclass, whose forward may compute something else"
    if "forward" in vars(module):
        return OWN_FORWARD
    return dtypes_refused(module.parameters())
