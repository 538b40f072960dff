"""What a cell's step depends on in addition to its variables: the numbers, functions and flags that it holds,
and those that its layers and other objects in it hold.

    GRUCell(units=4, activation=tanh, ...)    ->    (GRUCell, (4, tanh, ...))

A step is traced once for each. So a cell whose attribute is set to another value between two calls is traced
anew, and one that changes itself while it runs is found out.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from sys import modules
from types import MethodType, ModuleType
from typing import Any, cast

import numpy as np

from stepnet.keras.cells import MASKS
from stepnet.keras.installed import installed

keras: Any = installed()

SHARED = ("activation", "use_bias", "dropout", "recurrent_dropout")
OWN: dict[Any, tuple[str, ...]] = {
    keras.layers.SimpleRNNCell: SHARED,
    keras.layers.GRUCell: (*SHARED, "recurrent_activation", "units", "implementation", "reset_after"),
    keras.layers.LSTMCell: (*SHARED, "recurrent_activation", "units", "implementation"),
    keras.layers.StackedRNNCells: ("cells",),
}
"""The attributes that the steps of Keras' own cells read."""

PLAIN = (bool, int, float, complex, str, bytes, type(None))


@cache
def kept_by_keras() -> frozenset[str]:
    """The attributes that Keras keeps in every layer. TensorFlow takes no more settings once one is made."""
    # Named, and without random numbers: Keras counts the layers that it names, and draws from one generator.
    bare = keras.layers.Layer(name="bare")
    built = keras.layers.Dense(1, name="built", kernel_initializer="zeros")
    built.build((1, 1))
    own = [name for name in attributes(built) if name.startswith("_")]
    return frozenset([*attributes(bare), *own, *MASKS]) - {"_layers", "_trainable", "_buffers"}


def attributes(owner: Any) -> dict[str, Any]:
    """The attributes of an object by name."""
    return owner.__dict__


@dataclass(frozen=True, eq=False)
class Same:
    """An object that is equal to itself alone, and is kept, so that no other one gets its identity."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def settings_of_cell(cell: Any) -> Any:
    """The settings of a cell, as a key.

    >>> settings_of_cell(keras.layers.SimpleRNNCell(4, use_bias=False))[2:]
    (('bool', False), ('float', 0.0), ('float', 0.0))
    """
    kind = cast("Any", type(cell))
    if kind in OWN:
        return kind, *(settings_of(getattr(cell, name), ()) for name in OWN[kind])
    return kind, *members(cell, ())


def members(owner: Any, seen: tuple[int, ...]) -> list[Any]:
    """The settings that an object's attributes hold, by their names."""
    seen = (*seen, id(owner))
    named = [(name, value) for name, value in attributes(owner).items() if name not in kept_by_keras()]
    return [(name, settings_of(value, seen)) for name, value in named]


def settings_of(value: Any, seen: tuple[int, ...]) -> Any:
    """The settings in a value. seen: by identity, the objects that it is in."""
    if isinstance(value, PLAIN):
        return type(value).__name__, value
    if id(value) in seen or isinstance(value, keras.Variable):
        return None
    if hasattr(value, "state_size"):
        return settings_of_cell(value)
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray", value)
        return array.dtype.str, array.shape, array.tobytes()
    inner = (*seen, id(value))
    if isinstance(value, Mapping):
        return "dict", *((key, settings_of(part, inner)) for key, part in cast("Any", value).items())
    if isinstance(value, Sequence | Set):
        return "list", *(settings_of(part, inner) for part in cast("Sequence[Any]", value))
    if isinstance(value, partial):
        whole = cast("Any", value)
        return "partial", *(settings_of(part, inner) for part in (whole.func, whole.args, whole.keywords))
    if isinstance(value, MethodType):
        return "method", Same(value.__func__), settings_of(value.__self__, inner)
    if is_tensor(value):
        return bits_of(value)
    return (Same(value), *members(value, seen)) if has_settings(value) else Same(value)


def is_tensor(value: Any) -> bool:
    """Whether this is a tensor of PyTorch, which Keras imports where its backend is that alone."""
    torch = modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def bits_of(tensor: Any) -> Any:
    """The bits of a tensor, which change in ways that PyTorch does not count; its identity where it is no
    constant of a step.
    """
    torch: Any = installed("torch")
    plain = type(tensor) is torch.Tensor and not torch._is_functional_tensor(tensor)
    if not plain or tensor.requires_grad or tensor.is_sparse or tensor.device.type != "cpu":
        return Same(tensor)
    bits = tensor.contiguous().flatten().view(torch.uint8)
    return str(tensor.dtype), tuple(tensor.shape), bits.numpy().tobytes()


def has_settings(value: Any) -> bool:
    """Whether the attributes of an object are settings: those of a layer, and of the user's own classes."""
    if isinstance(value, keras.layers.Layer):
        return True
    theirs = type(value).__module__.startswith("keras.")  # initializers, regularizers: no step reads them
    return hasattr(value, "__dict__") and not (theirs or callable(value) or isinstance(value, ModuleType))
