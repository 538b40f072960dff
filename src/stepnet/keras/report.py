"""`report`: how the recurrent layers of a model ran."""

from dataclasses import dataclass
from typing import Any

from stepnet.errors import InputError
from stepnet.keras.installed import installed
from stepnet.keras.records import RECORDS, Record

keras: Any = installed()


@dataclass(frozen=True)
class Report:
    """How the recurrent layers of a model ran.

    Attributes:
        compiled: The layers whose latest call ran compiled, by their paths.
        left: Why the latest call of others ran Keras' own loop, by their paths.
        unknown: The paths of layers of which no call is known.
    """

    compiled: dict[str, Any]
    left: dict[str, str]
    unknown: list[str]

    def __str__(self) -> str:
        lines = [f"{path}: compiled, {cell_of(layer)}" for path, layer in self.compiled.items()]
        lines += [f"{path}: Keras' own loop: {reason}" for path, reason in self.left.items()]
        lines += [f"{path}: no call is known" for path in self.unknown]
        return "\n".join(lines) or "there are no recurrent layers"


def report(model: Any) -> Report:
    """How the recurrent layers of a model ran: compiled, or by Keras' own loop, and why.

    Args:
        model: A model of Keras, or a layer.

    Raises:
        InputError: If it is neither.

    >>> import keras, numpy as np, stepnet.keras
    >>> model = keras.Sequential([stepnet.keras.GRU(4, name="first")], name="model")
    >>> _ = model.predict(np.ones((2, 5, 3)), verbose=0)
    >>> print(stepnet.keras.report(model))
    model/first: compiled, GRUCell
    """
    if not isinstance(model, keras.layers.Layer):
        raise InputError(f"report takes a model or a layer of Keras, not a {type(model).__name__}")
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.RNN)]
    records = [(layer.path or layer.name, layer, RECORDS.get(layer, Record())) for layer in layers]
    return Report(
        {path: layer for path, layer, record in records if record.fast and record.reason is None},
        {path: record.reason for path, _, record in records if record.reason is not None},
        [path for path, _, record in records if not record.fast and record.reason is None],
    )


def cell_of(layer: Any) -> str:
    """The name of a layer's cell."""
    return type(layer.cell).__name__
