"""Replacements for methods of Keras' layers: functions of the layer, the replaced method, and its arguments.

    class LSTM(keras.layers.LSTM)  --with_overrides-->  its inner_loop is stepnet's, which may call Keras'

`layers` makes subclasses with them, and `accelerate` puts them into Keras' own classes.
"""

from collections.abc import Callable
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any

from stepnet.compiler.targets import checked_engine
from stepnet.keras.installed import installed
from stepnet.keras.loop import inner_loop
from stepnet.keras.packed_inputs import PackedInputs, is_shape, shapes_in
from stepnet.keras.recurrences import OURS
from stepnet.keras.rows import is_rowwise
from stepnet.model.program import Asked

keras: Any = installed()
tree: Any = keras.tree
Theirs = Callable[..., Any]


def call(layer: Any, theirs: Theirs, sequences: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces a recurrent layer's `call`: allows a structure of sequences, and sequences without steps.
    theirs: Keras' `call`, which gets such sequences as a `PackedInputs`.
    """
    if tree.is_nested(sequences) or sequences.shape[1] == 0:
        sequences = PackedInputs(sequences)
    return theirs(sequences, *args, **kwargs)


def build(layer: Any, theirs: Theirs, sequences_shape: Any, initial_state_shape: Any = None) -> None:
    """Replaces a recurrent layer's `build` (`theirs`): creates the variables. `sequences_shape` may also be a
    structure of shapes, if the sequences are a structure of tensors. The argument `initial_state_shape`,
    which Keras may pass, is not read.
    """
    if is_shape(sequences_shape):
        theirs(sequences_shape)
        return
    if isinstance(layer.cell, keras.layers.Layer) and not layer.cell.built:
        layer.cell.build(tree.map_shape_structure(without_time, sequences_shape))
        layer.cell.built = True
    theirs(shapes_in(sequences_shape)[0])


def without_time(shape: Any) -> tuple[Any, ...]:
    """Returns a shape [batch, time, ...] without its time axis, the shape of one step."""
    return (shape[0], *shape[2:])


def compute_output_shape(
    layer: Any, theirs: Theirs, sequences_shape: Any, initial_state_shape: Any = None
) -> Any:
    """Replaces a recurrent layer's `compute_output_shape` (`theirs`): allows a structure `sequences_shape` of
    shapes, whose first one gives batch and time. The argument `initial_state_shape`, which Keras may pass,
    is not read.
    """
    return theirs(shapes_in(sequences_shape)[0])


def compute_mask(layer: Any, theirs: Theirs, inputs: Any, mask: Any) -> Any:
    """Replaces a `Bidirectional`'s `compute_mask` (`theirs`): if the layer returns states, gives the mask for
    each output and None for each state. There is one output, or one for each direction if they are not
    merged.

    inputs, mask: the arguments of the layer, as Keras passes them.
    """
    if not (layer.return_state and layer.states is not None):
        return theirs(inputs, mask)
    output_mask: Any = tree.flatten(mask)[0] if layer.return_sequences else None
    outputs: tuple[Any, ...] = (output_mask,) * (1 if layer.merge_mode else 2)
    return outputs + (None,) * len(layer.states)


def call_in_time(layer: Any, theirs: Theirs, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    """Replaces the `call` of a `TimeDistributed` (`theirs`): calls its inner layer once, with all steps of
    all sequences as rows of one batch.

    Layers that are not known to compute each row separately, or that take a mask, run step by step, as in
    Keras. inputs: [batch, time, ...]. mask: [batch, time] or None.
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


def init(layer: Any, theirs: Theirs, *args: Any, engine: Asked = "auto", **kwargs: Any) -> None:
    """Replaces the `__init__` of a recurrent layer (`theirs`) in stepnet's classes: takes also `engine`."""
    order = checked_engine(engine)
    theirs(*args, **kwargs)
    layer.engine = order


def get_config(layer: Any, theirs: Theirs) -> dict[str, Any]:
    """Replaces a recurrent layer's `get_config` (`theirs`): adds the engine, if it was chosen."""
    return theirs() if layer.engine == "auto" else {**theirs(), "engine": layer.engine}


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
"""Replacements for methods of each class of Keras and its subclasses, by method name."""


def bind_override(theirs: Theirs, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the method that replaces a method of Keras (`theirs`) in a layer: it calls `ours` with the layer,
    Keras' method and the arguments.
    """

    @wraps(theirs)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the replacement with the layer, Keras' method and the arguments."""
        return ours(self, partial(theirs, self), *args, **kwargs)

    return method


def overrides_of(kind: Any) -> dict[str, Callable[..., Any]]:
    """Returns the replacements for methods of a class of Keras (`kind`) or a subclass, by method name."""
    return next(overrides for base, overrides in OVERRIDES.items() if issubclass(kind, base))


def add_engine(kind: Any, base: Any) -> None:
    """Adds the argument `engine` to the constructor of a class of stepnet, to its configuration and to its
    signature, which Keras reads. kind, base: the class, and the class of Keras that it is made from.
    """
    OURS.append(kind)
    for name, ours in (("__init__", init), ("get_config", get_config)):
        setattr(kind, name, bind_override(getattr(base, name), ours))
    *others, options = signature(base.__init__).parameters.values()
    engine = Parameter("engine", Parameter.KEYWORD_ONLY, default="auto")
    kind.__init__.__signature__ = Signature([*others, engine, options])  # which Keras reads


def with_overrides(kind: Any) -> Any:
    """Class decorator: replaces the methods of Keras in `OVERRIDES`, adds the argument `engine` to recurrent
    layers, and registers the class for saving.
    """
    base, overrides = kind.__mro__[1], overrides_of(kind)
    for name, ours in overrides.items():
        setattr(kind, name, bind_override(getattr(base, name), ours))
    if overrides is RECURRENT:
        add_engine(kind, base)
    return keras.saving.register_keras_serializable(package="stepnet")(kind)
