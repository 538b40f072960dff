"""The tensors in pickled objects: whole modules written by torch.save(model), and TorchScript.

1  An object is a `PickledCall` with a state: its attributes by name. Its class is a name that is never
   imported.
2  A module of torch.nn holds `_parameters`, `_buffers` and `_modules`; the keys in these are the names of a
   state dict. A TorchScript module has its tensors as attributes of the object itself.
3  The settings of a recurrent module are other attributes; TorchScript stores only settings that are not
   constant.
4  Tensors in other attributes follow after the state dict, under the attributes' names.

Source: torch/nn/modules/module.py and torch/jit/_pickle.py of PyTorch 2.13.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.layout.files.model import WEIGHTS, FileContents
from stepnet.layout.files.pickles.program import RecurrentProgram
from stepnet.layout.files.pickles.values import Inside, Pairs, PickledCall, children, leaves, tuple_items
from stepnet.layout.files.pickles.wiring import wired

REGISTERED = ("_parameters", "_buffers", "_modules")
RECIPE = (
    "in Python, torch.export.save(torch.export.export(model.eval(), (example,)), 'm.pt2') writes a file of "
    "the whole model"
)
SCRIPTED = "__torch__."  # before the names of TorchScript's classes
TYPED = "torch.jit._pickle."  # a value of TorchScript with its type
AGAIN = "_flat_weights"  # torch.nn.GRU, LSTM and RNN hold their parameters here a second time
NONLINEARITY = {"RNN_TANH": "tanh", "RNN_RELU": "relu"}  # by the mode of torch.nn.RNN in older versions


@dataclass(frozen=True)
class TorchFile:
    """The contents of a file of torch.save.

    arrays: the arrays by name.
    settings: the settings of whole recurrent modules, by the prefix of their names, then by PyTorch's name.
    classes: the classes of modules that are not PyTorch's, by the prefix of their names.
    program: the program of torch.export in it.
    unspecified: why the file does not specify how its model computes.
    """

    arrays: dict[str, np.ndarray]
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    classes: Mapping[str, str] = field(default_factory=dict[str, str])
    program: RecurrentProgram | None = None
    unspecified: str = WEIGHTS

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], root: object) -> "TorchFile":
        """Makes a `TorchFile` of arrays, and of the modules' settings and classes in a pickle's `root`."""
        return cls(arrays, settings(root), by_prefix(root, own_class), unspecified=why_unspecified(root))

    def wired(self, model: FileContents) -> FileContents:
        """Returns a copy of `model`, a model of this file's arrays, in which the recurrent modules have the
        order and the inputs that the file's torch.export program gives them; `model` itself if the file has
        no program.
        """
        return model if self.program is None else wired(model, self.program, self.arrays)


def why_unspecified(root: object) -> str:
    """Returns why a pickle's value does not specify a computation, for messages: it has weights only, or a
    PyTorch module, whose architecture is code.
    """
    modules = [value for _, value in leaves(root, is_module, everything())]
    names = [value.name for value in modules if isinstance(value, PickledCall)]
    if not names:
        return WEIGHTS
    if names[0].startswith(SCRIPTED):
        return (
            f"it is a program of TorchScript ({names[0].removeprefix(SCRIPTED)}), which is not run ({RECIPE})"
        )
    return f"it is a pickled {names[0]}, whose code it lacks ({RECIPE})"


def is_module(value: object) -> bool:
    """Returns True if a value is a module of PyTorch: TorchScript's, or an object with inner modules."""
    if not isinstance(value, PickledCall):
        return False
    scripted = value.name.startswith(SCRIPTED) and value.state is not None
    return scripted or any(name == "_modules" for name, _ in attributes(value))


def settings(root: object) -> dict[str, dict[str, str]]:
    """Returns the settings of recurrent modules in a pickle's value: {prefix of the names of a module's
    arrays: {"nonlinearity": value}}.

    >>> none, weights = Pairs([]), Pairs([("weight_ih_l0", 1)])
    >>> state = [("mode", "RNN_RELU"), ("_parameters", weights), ("_buffers", none), ("_modules", none)]
    >>> settings(Pairs([("rnn", PickledCall("torch.nn.modules.rnn.RNN", (), Pairs(state)))]))
    {'rnn.': {'nonlinearity': 'relu'}}
    """
    return {prefix: {"nonlinearity": setting} for prefix, setting in by_prefix(root, nonlinearity).items()}


def by_prefix(root: object, text_of: Callable[[object], str]) -> dict[str, str]:
    """Applies `text_of` to every object in a pickle's value, `root`, to collect facts on recurrent modules;
    returns {prefix of the names of the object's arrays: text}, without empty texts.
    """
    return {
        f"{name}." if name else "": text_of(module)
        for inside in (everything(), registered)
        for name, module in leaves(root, lambda value: bool(text_of(value)), inside)
    }


def own_class(value: object) -> str:
    """Returns the class of a pickled recurrent module, to warn of it, if it is not one of PyTorch's; else "".

    >>> none, weights = Pairs([]), Pairs([("weight_ih_l0", 1)])
    >>> state = Pairs([("_parameters", weights), ("_buffers", none), ("_modules", none)])
    >>> own_class(PickledCall("speech.Custom", (), state))
    'speech.Custom'
    >>> own_class(PickledCall("torch.nn.modules.rnn.LSTM", (), state))
    ''
    """
    if not isinstance(value, PickledCall) or not has_weights(value):
        return ""
    name = value.name.removeprefix(SCRIPTED)
    return "" if name.startswith("torch.") else name


def has_weights(value: PickledCall) -> bool:
    """Returns True if a pickled object has weights with the names of a recurrent PyTorch module's."""
    if not isinstance(value.state, Pairs | tuple):
        return False
    names = [name for name, _ in registered(value) if isinstance(name, str)]
    return any(name.startswith("weight_ih") for name in names)


def nonlinearity(value: object) -> str:
    """Returns the nonlinearity of a pickled recurrent module, "tanh" or "relu"; "" for any other value."""
    if not isinstance(value, PickledCall) or not has_weights(value):
        return ""
    settings = {name: item for name, item in attributes(value) if isinstance(item, str)}
    setting = settings.get("nonlinearity", NONLINEARITY.get(settings.get("mode", "")))
    return setting if setting in ("tanh", "relu") else ""


def registered(value: object) -> Iterable[tuple[object, object]]:
    """Returns (name, value) of the parameters, buffers and inner modules of a pickled PyTorch module, which
    its state dict has too; (key, value) of the items of a container; nothing of other objects.

    >>> none = Pairs([])
    >>> state = Pairs([("_parameters", Pairs([("weight", 1)])), ("_buffers", none), ("_modules", none)])
    >>> registered(PickledCall("torch.nn.modules.linear.Linear", (), state))
    [('weight', 1)]
    """
    if not isinstance(value, PickledCall):
        return children(value)
    entries = attributes(value)
    if value.name.startswith(SCRIPTED):
        return [(name, item) for name, item in entries if name != AGAIN]
    groups = {name: item.items for name, item in entries if name in REGISTERED and isinstance(item, Pairs)}
    return [pair for name in REGISTERED for pair in groups[name]] if len(groups) == len(REGISTERED) else []


def everything() -> Inside:
    """Returns a function that lists the (key, value) pairs in an object of a pickle, for `leaves`, which
    searches it for arrays. It lists an object once only, so that a search of cycles ends.
    """
    seen: set[int] = set()

    def inside(value: object) -> Iterable[tuple[object, object]]:
        """Returns (key, value) of all that an object of a pickle holds, to search the pickle's tree with
        `leaves`; [] for an object that was searched before.
        """
        if id(value) in seen:
            return []
        seen.add(id(value))
        if not isinstance(value, PickledCall):
            return children(value)
        if value.name.startswith(TYPED):
            return children(value.arguments[0]) if value.arguments else []
        others = [(name, item) for name, item in attributes(value) if name not in REGISTERED]
        return [
            *registered(value),
            *enumerate(value.arguments),
            *value.items,
            *not_among(others, registered(value)),
        ]

    return inside


def not_among(
    items: list[tuple[object, object]], already: Iterable[tuple[object, object]]
) -> list[tuple[object, object]]:
    """Returns the items whose values are not values of `already`, so that no array is listed twice."""
    seen = {id(item) for _, item in already}
    return [(name, item) for name, item in items if id(item) not in seen]


def attributes(value: PickledCall) -> Iterable[tuple[object, object]]:
    """Returns (name, value) of the attributes that a pickled object's state sets. The state is a dictionary
    or, for a class with slots, a pair of dictionaries, of which one may be None. Of any other state, returns
    the values in it with their keys.
    """
    states = tuple_items(value.state) or (value.state,)
    if all(state is None or isinstance(state, Pairs) for state in states):
        return [pair for state in states if isinstance(state, Pairs) for pair in state.items]
    return children(value.state)
