"""Where tensors lie in objects of a program's own classes: what torch.save(model) writes, and TorchScript.

1  An object is a `Call` with a state: its attributes by name. Its class is a name, which nobody looks up.
2  A module of torch.nn holds `_parameters`, `_buffers` and `_modules`; the keys in these are the names that a
   state dict has. TorchScript has the same as attributes of the object itself.
3  Tensors that only other attributes hold come behind these, by the attributes' names.

Source: torch/nn/modules/module.py and torch/jit/_pickle.py of PyTorch 2.13.
"""

from collections.abc import Iterable

from stepnet.files.pickles.values import Call, Inside, Pairs, children, parts

REGISTERED = ("_parameters", "_buffers", "_modules")
SCRIPTED = "__torch__."  # before the names of TorchScript's classes
TYPED = "torch.jit._pickle."  # a value of TorchScript with its type
AGAIN = "_flat_weights"  # where torch.nn.GRU, LSTM and RNN hold their parameters a second time


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
