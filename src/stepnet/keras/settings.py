"""What a cell's step depends on in addition to its variables: the numbers, functions and flags that it holds,
and those that its layers and other objects in it hold.

    GRUCell(units=4, activation=tanh, ...)    ->    (GRUCell, (4, tanh, ...))

A step is traced once for each. So a cell whose attribute is set to another value between two calls is traced
anew, and one that changes itself while it runs is found out.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, cast

from stepnet.keras.cells import MASKS
from stepnet.keras.installed import installed
from stepnet.trace.reads import Latest, Reads, Source, of_classes, of_mapping, reads_of

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
def kept_by_keras() -> frozenset[str]:
    """The attributes that Keras keeps in every layer. TensorFlow takes no more settings once one is made."""
    # Named, and without random numbers: Keras counts the layers that it names, and draws from one generator.
    bare = keras.layers.Layer(name="bare")
    built = keras.layers.Dense(1, name="built", kernel_initializer="zeros")
    built.build((1, 1))
    own = [name for name in attributes(built) if name.startswith("_")]
    return frozenset([*attributes(bare), *own, *MASKS, LATEST]) - {"_layers", "_trainable", "_buffers"}


LATEST = "_stepnet_latest"
"""Where a cell keeps what its step reads, as it was last looked at."""


def attributes(owner: Any) -> dict[str, Any]:
    """The attributes of an object by name."""
    return owner.__dict__


def settings_of_cell(cell: Any) -> tuple[Any, ...]:
    """The settings of a cell, as a key that holds nothing of the cell.

    >>> settings_of_cell(keras.layers.SimpleRNNCell(4, use_bias=False))[2]
    ('self.use_bias', (<class 'bool'>, False))
    """
    return reads_of_cell(cell).key


def reads_of_cell(cell: Any) -> Reads:
    """The values that a cell's step reads besides its arguments and variables."""
    latest: Latest = attributes(cell).setdefault(LATEST, Latest())
    return latest.current(lambda: reads_of(cell, parts_of, "self"))


def parts_of(value: Any) -> Sequence[Source] | None:
    """The settings of Keras' own: of a variable none, of their cells those that their steps read."""
    if isinstance(value, keras.Variable):
        return ()
    kind = cast("Any", type(value))
    if kind in OWN:
        return [Source(OWN[kind], partial(of_own, value, OWN[kind]))]
    if isinstance(value, keras.layers.Layer) or hasattr(value, "state_size"):
        kept = kept_by_keras()
        return [
            of_mapping(attributes(value), lambda name: None if name in kept else name),
            *of_classes(value),
        ]
    return None


def of_own(cell: Any, names: tuple[str, ...]) -> list[Any]:
    """The attributes of one of Keras' own cells."""
    return [getattr(cell, name) for name in names]
