"""Where tensors lie in objects of a program's own classes: what torch.save(model) writes, and TorchScript.

1  An object is a `Call` with a state: its attributes by name. Its class is a name, which nobody looks up.
2  A module of torch.nn holds `_parameters`, `_buffers` and `_modules`; the keys in these are the names that a
   state dict has. TorchScript has the same as attributes of the object itself.
3  What a recurrent module is set to is in its other attributes; of TorchScript only what is not constant is.
4  Tensors that only other attributes hold come behind these, by the attributes' names.

Source: torch/nn/modules/module.py and torch/jit/_pickle.py of PyTorch 2.13.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stepnet.files.pickles.values import Call, Inside, Pairs, children, leaves, parts

REGISTERED = ("_parameters", "_buffers", "_modules")
SCRIPTED = "__torch__."  # before the names of TorchScript's classes
TYPED = "torch.jit._pickle."  # a value of TorchScript with its type
AGAIN = "_flat_weights"  # where torch.nn.GRU, LSTM and RNN hold their parameters a second time
NONLINEARITY = {"RNN_TANH": "tanh", "RNN_RELU": "relu"}  # by torch.nn.RNN's mode, as older versions have it


@dataclass(frozen=True)
class Held:
    """What a file of torch.save holds: arrays by name, and what its whole recurrent modules are set to, by
    what is before the names of their arrays and by PyTorch's own names. classes: of those that are a
    program's own, by what is before the names of their arrays.
    """

    arrays: dict[str, np.ndarray]
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    classes: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], root: object) -> "Held":
        """Arrays with what a pickle's value says of the modules that they are of."""
        return cls(arrays, settings(root), by_front(root, own_class))


def settings(root: object) -> dict[str, dict[str, str]]:
    """What recurrent modules in a pickle's value are set to, by what is before the names of their arrays.

    >>> none, weights = Pairs([]), Pairs([("weight_ih_l0", 1)])
    >>> state = [("mode", "RNN_RELU"), ("_parameters", weights), ("_buffers", none), ("_modules", none)]
    >>> settings(Pairs([("rnn", Call("torch.nn.modules.rnn.RNN", (), Pairs(state)))]))
    {'rnn.': {'nonlinearity': 'relu'}}
    """
    return {front: {"nonlinearity": said} for front, said in by_front(root, nonlinearity).items()}


def by_front(root: object, said: Callable[[object], str]) -> dict[str, str]:
    """What is said of modules in a pickle's value, where it is anything, by what is before the names of
    their arrays.
    """
    return {
        f"{name}." if name else "": said(module)
        for inside in (everything(), registered)
        for name, module in leaves(root, lambda value: bool(said(value)), inside)
    }


def own_class(value: object) -> str:
    """The class of what has a recurrent module's weights, where it is none of PyTorch's; else nothing.

    >>> none, weights = Pairs([]), Pairs([("weight_ih_l0", 1)])
    >>> state = Pairs([("_parameters", weights), ("_buffers", none), ("_modules", none)])
    >>> own_class(Call("speech.Custom", (), state)), own_class(Call("torch.nn.modules.rnn.LSTM", (), state))
    ('speech.Custom', '')
    """
    if not isinstance(value, Call) or not has_weights(value):
        return ""
    name = value.name.removeprefix(SCRIPTED)
    return "" if name.startswith("torch.") else name


def has_weights(value: Call) -> bool:
    """Whether an object has weights that are called as those of recurrent modules are."""
    if not isinstance(value.state, Pairs | tuple):
        return False
    names = [name for name, _ in registered(value) if isinstance(name, str)]
    return any(name.startswith("weight_ih") for name in names)


def nonlinearity(value: object) -> str:
    """What a recurrent module's nonlinearity is; nothing of what is none, or has none."""
    if not isinstance(value, Call) or not has_weights(value):
        return ""
    known = {name: item for name, item in attributes(value) if isinstance(item, str)}
    said = known.get("nonlinearity", NONLINEARITY.get(known.get("mode", "")))
    return said if said in ("tanh", "relu") else ""


def registered(value: object) -> Iterable[tuple[object, object]]:
    """What a state dict of a value has: of a module, what is registered in it; of any other object, nothing.

    >>> none = Pairs([])
    >>> state = Pairs([("_parameters", Pairs([("weight", 1)])), ("_buffers", none), ("_modules", none)])
    >>> registered(Call("torch.nn.modules.linear.Linear", (), state))
    [('weight', 1)]
    """
    if not isinstance(value, Call):
        return children(value)
    held = attributes(value)
    if value.name.startswith(SCRIPTED):
        return [(name, item) for name, item in held if name != AGAIN]
    groups = {name: item.items for name, item in held if name in REGISTERED and isinstance(item, Pairs)}
    return [pair for name in REGISTERED for pair in groups[name]] if len(groups) == len(REGISTERED) else []


def everything() -> Inside:
    """What gives all that objects hold, of each object once, as they often hold one another."""
    seen: set[int] = set()

    def inside(value: object) -> Iterable[tuple[object, object]]:
        if id(value) in seen:
            return []
        seen.add(id(value))
        if not isinstance(value, Call):
            return children(value)
        if value.name.startswith(TYPED):
            return children(value.arguments[0]) if value.arguments else []
        others = [(name, item) for name, item in attributes(value) if name not in REGISTERED]
        return [
            *registered(value),
            *enumerate(value.arguments),
            *value.items,
            *unless(others, registered(value)),
        ]

    return inside


def unless(
    items: list[tuple[object, object]], already: Iterable[tuple[object, object]]
) -> list[tuple[object, object]]:
    """The items that are not among others."""
    there = {id(item) for _, item in already}
    return [(name, item) for name, item in items if id(item) not in there]


def attributes(value: Call) -> Iterable[tuple[object, object]]:
    """The attributes that an object's state sets: a dictionary, or one and another of its slots."""
    states = parts(value.state) or (value.state,)
    if all(state is None or isinstance(state, Pairs) for state in states):
        return [pair for state in states if isinstance(state, Pairs) for pair in state.items]
    return children(value.state)
