"""`accelerate`: makes stepnet run the recurrences of a PyTorch model, in place."""

from dataclasses import dataclass
from typing import Any, cast

from stepnet.errors import InputError
from stepnet.torch.checks import dtypes_refused
from stepnet.torch.layers import GRU, LSTM, RNN
from stepnet.torch.pytorch import pytorch
from stepnet.torch.seams import modules as seams
from stepnet.torch.steps import GRUCell, LSTMCell, RNNCell
from stepnet.torch.trace import described

torch: Any = pytorch("torch")

OURS: dict[Any, Any] = {
    getattr(torch.nn, ours.__name__): ours for ours in (GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell)
}


NOTHING = (
    "nothing was replaced: the model has no layer or cell of torch.nn that is recurrent, and no layer of "
    "transformers that runs over steps; a recurrence of your own is a stepnet.torch.Recurrence"
)


@dataclass(frozen=True)
class Accelerated:
    """Record of `accelerate`: which layers of a model it replaced, and why it left others. Can undo the
    change.

    Attributes:
        replaced: The layers that stepnet runs now, by their names in the model.
        left: The reasons why other recurrent layers were not replaced, by their names in the model; for
            single
            functions of layers of transformers, by the name of the layer and of the function.
    """

    replaced: dict[str, Any]
    left: dict[str, str]

    def undo(self) -> None:
        """Gives the replaced layers their classes of torch.nn or transformers back, in place."""
        for module in self.replaced.values():
            module.__class__ = as_theirs(cast("Any", type(module)))
            module.__dict__.pop(seams.KEPT, None)

    def __str__(self) -> str:
        lines = [f"{name or 'the model'}: {title(module)}" for name, module in self.replaced.items()]
        lines += [f"{name or 'the model'}: left, {why}" for name, why in self.left.items()]
        return "\n".join(lines) or NOTHING


def title(module: Any) -> str:
    """Describes a replaced layer for people: its class, and for a layer of transformers also the functions
    that stepnet runs in it.
    """
    kind = cast("Any", type(module))
    if not hasattr(kind, "stepnets"):
        return str(kind.__name__)
    known = seams.seams_of(kind.stepnets)
    return f"{kind.__name__} ({', '.join([*known.run, *['tokens'] * known.tokens])})"


def as_theirs(kind: Any) -> Any:
    """Returns the class of torch.nn or transformers that one of stepnet's classes replaced.

    PyTorch may have derived a class for a single module from stepnet's, as `torch.nn.utils.parametrize` does.
    Then an equal class is derived from the class of torch.nn.
    """
    theirs: dict[Any, Any] = {ours: theirs for theirs, ours in OURS.items()}
    theirs |= {base: base.stepnets for base in (kind, *kind.__bases__) if "stepnets" in vars(base)}
    if kind in theirs:
        return theirs[kind]
    bases: tuple[Any, ...] = tuple(theirs.get(base, base) for base in kind.__bases__)
    if bases == kind.__bases__:
        return kind
    own: dict[str, Any] = dict(kind.__dict__)
    own.pop("__dict__", None)
    return type(kind.__name__, bases, own)


def accelerate(model: Any) -> Accelerated:
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

    Raises:
        InputError: If `model` is no module.

    >>> import torch, stepnet.torch
    >>> half = torch.nn.LSTM(4, 4, dtype=torch.float16)
    >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 3), torch.nn.GRU(3, 4), half)
    >>> done = stepnet.torch.accelerate(model)
    >>> print(done)
    1: GRU
    2: left, its parameters are torch.float16: float32 and float64 are run
    >>> isinstance(model[1], stepnet.torch.GRU)
    True
    >>> done.undo()
    >>> isinstance(model[1], stepnet.torch.GRU)
    False
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"accelerate takes a torch.nn.Module, not {described(model)}")
    modules: list[tuple[str, Any]] = list(model.named_modules())
    replaced, left, by_name = dict[str, Any](), dict[str, str](), dict(modules)
    for name, module in modules:
        if not isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase):
            put_in(name, module, by_name[name.rpartition(".")[0]], replaced, left)
            continue
        why = refusal(module)
        if why is None:
            module.__class__ = OURS[type(module)]
            replaced[name] = module
        else:
            left[name] = why
    return Accelerated(replaced, left)


def put_in(name: str, module: Any, holder: Any, replaced: dict[str, Any], left: dict[str, str]) -> None:
    """Replaces the functions that stepnet knows in one layer of transformers.

    Adds the layer to `replaced`, or the reasons why it or some of its functions stay to `left`, both by
    `name`. holder: the module that contains the layer; the layer itself if it is the whole model.
    """
    kind = cast("Any", type(module))
    known = seams.seams_of(getattr(kind, "stepnets", kind))
    why = seams.refusal(module, holder) if known else None
    if why is not None:
        left[name] = why
        return
    if not known and not known.left and (why := left_whole(module)) is not None:
        left[name] = why
    for function, reason in known.left.items():
        left[f"{name}.{function}".lstrip(".")] = reason
    if known:
        module.__class__ = seams.accelerated(kind)
        replaced[name] = module
        if (reason := seams.tokens_left(module)) is not None:
            left[f"{name}.forward".lstrip(".")] = reason


def left_whole(module: Any) -> str | None:
    """Returns the reason why a recurrent layer that is no layer of torch.nn, and that stepnet knows no
    functions of, is left as it is; None for modules that are not recurrent.
    """
    kind = cast("Any", type(module))
    known = {theirs.__name__ for theirs in OURS}
    if getattr(module, "original_name", kind.__name__) in known:  # the class of what torch.jit.script makes
        return f"{kind.__module__}.{kind.__qualname__} is not the class of this name in torch.nn"
    return seams.without_seams(kind)


def refusal(module: Any) -> str | None:
    """Returns the reason why a layer of torch.nn cannot be replaced by stepnet's; None if it can."""
    kind = cast("Any", type(module))
    if kind in OURS.values():
        return "it is stepnet's already"
    if kind not in OURS:
        return f"{kind.__name__} is a subclass, whose forward may compute something else"
    return dtypes_refused(module.parameters())
