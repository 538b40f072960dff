"""Finds the settings of a cell: the numbers, functions and flags that its step reads from objects.

    GRUCell(units=4, activation=tanh, ...)    ->    (GRUCell, (4, tanh, ...))

They are the key of a trace. If an attribute changes between two calls, the step is traced again; a step that
changes attributes while it runs is detected.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, cast

from stepnet.compiler.trace.read_sources import ReadSource, of_classes, of_mapping
from stepnet.compiler.trace.reads import Latest, Reads, reads_of
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


@cache
def keras_attributes() -> frozenset[str]:
    """Lists the attributes that Keras itself sets on every layer, and that are no settings of a step."""
    # With names and zeros, so that Keras' numbering of layers and its random numbers do not change. The three
    # attributes that are taken out of the result count as settings: a user may change them.
    bare = keras.layers.Layer(name="bare")
    built = keras.layers.Dense(1, name="built", kernel_initializer="zeros")
    built.build((1, 1))
    own = [name for name in attributes(built) if name.startswith("_")]
    return frozenset([*attributes(bare), *own, *MASKS, LATEST]) - {"_layers", "_trainable", "_buffers"}


LATEST = "_stepnet_latest"
"""The attribute of a cell in which the values are cached that its step read when it was last inspected."""


def attributes(owner: Any) -> dict[str, Any]:
    """Returns the `__dict__` of an object, to read and set attributes without Keras' `__setattr__`."""
    return owner.__dict__


def settings_of_cell(cell: Any) -> tuple[Any, ...]:
    """Returns the settings of a cell as a hashable key of its traces, which does not keep the cell alive.

    >>> settings_of_cell(keras.layers.SimpleRNNCell(4, use_bias=False))[2]
    ('self.use_bias', (<class 'bool'>, False))
    """
    return reads_of_cell(cell).key


def reads_of_cell(cell: Any) -> Reads:
    """Finds the values that a cell's step reads besides arguments and variables, to know when they change."""
    latest: Latest = attributes(cell).setdefault(LATEST, Latest())
    return latest.current(lambda: reads_of(cell, sources_in, "self"))


def sources_in(value: Any) -> Sequence[ReadSource] | None:
    """Lists the sources from which the settings of a value can be read again, such as its attributes, to
    notice changes. Returns None for a value that is no variable, cell or layer of Keras.

    Variables have no settings; Keras' own cells have a fixed list of attributes; other layers and cells have
    all attributes that Keras did not set.
    """
    if isinstance(value, keras.Variable):
        return ()
    kind = cast("Any", type(value))
    if kind in OWN:
        return [ReadSource(OWN[kind], partial(own_attributes, value, OWN[kind]))]
    if isinstance(value, keras.layers.Layer) or hasattr(value, "state_size"):
        keras_own = keras_attributes()
        return [
            of_mapping(attributes(value), lambda name: None if name in keras_own else name),
            *of_classes(value),
        ]
    return None


def own_attributes(cell: Any, names: tuple[str, ...]) -> list[Any]:
    """Reads the settings of the step of one of Keras' own cells from its attributes of these names."""
    return [getattr(cell, name) for name in names]
