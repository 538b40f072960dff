"""The methods of Keras' layers that stepnet's stand in for, each a function (layer, theirs, ...).

    class LSTM(keras.layers.LSTM)  --compiled-->  its inner_loop is ours, which may call theirs

`layers` makes subclasses with them, and `accelerate` puts them into Keras' own classes.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from stepnet.keras.installed import installed
from stepnet.keras.loop import inner_loop
from stepnet.keras.rows import is_rowwise
from stepnet.keras.whole import Whole, is_shape, shapes_in

keras: Any = installed()
tree: Any = keras.tree
Theirs = Callable[..., Any]


def call(layer: Any, theirs: Theirs, sequences: Any, *args: Any, **kwargs: Any) -> Any:
    """What a recurrent layer gives: also for a structure of sequences, and for those without steps."""
    if tree.is_nested(sequences) or sequences.shape[1] == 0:
        sequences = Whole(sequences)
    return theirs(sequences, *args, **kwargs)


def build(layer: Any, theirs: Theirs, sequences_shape: Any, initial_state_shape: Any = None) -> None:
    """Makes the variables of a recurrent layer: also for a structure of sequences."""
    if is_shape(sequences_shape):
        theirs(sequences_shape)
        return
    if isinstance(layer.cell, keras.layers.Layer) and not layer.cell.built:
        layer.cell.build(tree.map_shape_structure(without_time, sequences_shape))
        layer.cell.built = True
    theirs(shapes_in(sequences_shape)[0])


def without_time(shape: Any) -> tuple[Any, ...]:
    """The shape of a step."""
    return (shape[0], *shape[2:])


def compute_output_shape(
    layer: Any, theirs: Theirs, sequences_shape: Any, initial_state_shape: Any = None
) -> Any:
    """The shape of what a recurrent layer gives: also for a structure of sequences."""
    return theirs(shapes_in(sequences_shape)[0])


def compute_mask(layer: Any, theirs: Theirs, inputs: Any, mask: Any) -> Any:
    """The masks of what a `Bidirectional` gives: of its states, too, which have none."""
    if not (layer.return_state and layer.states is not None):
        return theirs(inputs, mask)
    of_each: Any = tree.flatten(mask)[0] if layer.return_sequences else None
    outputs: tuple[Any, ...] = (of_each,) * (1 if layer.merge_mode else 2)
    return outputs + (None,) * len(layer.states)


def call_in_time(layer: Any, theirs: Theirs, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    """What a `TimeDistributed` gives: by one call, with the steps among the rows, if its layer works row by
    row.
    """
    fits = mask is None or tuple(mask.shape[:2]) == tuple(inputs.shape[:2])
    takes_mask = mask is not None and layer.layer._call_has_mask_arg
    step = (inputs.shape[0], *inputs.shape[2:])
    if not fits or takes_mask or not is_rowwise(layer.layer, step, bool(training)):
        return theirs(inputs, training=training, mask=mask)
    kwargs = {"training": training} if layer.layer._call_has_training_arg else {}
    batch, time, *features = keras.ops.shape(inputs)
    outputs = layer.layer.call(keras.ops.reshape(inputs, (batch * time, *features)), **kwargs)
    return keras.ops.reshape(outputs, (batch, time, *outputs.shape[1:]))


RECURRENT = {
    "inner_loop": inner_loop,
    "call": call,
    "build": build,
    "compute_output_shape": compute_output_shape,
}
OVERRIDES: dict[Any, dict[str, Callable[..., Any]]] = {
    keras.layers.RNN: RECURRENT,
    keras.layers.Bidirectional: {"compute_mask": compute_mask},
    keras.layers.TimeDistributed: {"call": call_in_time},
}
"""What stands in for methods of each class of Keras, and of its subclasses."""


def standing_in(theirs: Theirs, ours: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls ours, with theirs of the same layer."""

    @wraps(theirs)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(self, partial(theirs, self), *args, **kwargs)

    return method


def overrides_of(kind: Any) -> dict[str, Callable[..., Any]]:
    """What stands in for methods of a class, by their names."""
    return next(known for base, known in OVERRIDES.items() if issubclass(kind, base))


def compiled(kind: Any) -> Any:
    """A subclass of one of Keras' classes with the methods that stand in for its own."""
    base = kind.__mro__[1]
    for name, ours in overrides_of(kind).items():
        setattr(kind, name, standing_in(getattr(base, name), ours))
    return keras.saving.register_keras_serializable(package="stepnet")(kind)
