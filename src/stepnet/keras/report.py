"""`report`: says for each recurrent layer of a model whether its latest call ran compiled, and why not."""

from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.keras.installed import installed
from stepnet.keras.records import RECORDS, CallRecord

keras: Any = installed()


NOT_CALLED = (
    "stepnet was not called for it yet; layers of Keras itself run here after stepnet.keras.accelerate()"
)


@dataclass(frozen=True)
class Report:
    """Lists for each recurrent layer of a model how its latest call ran.

    Attributes:
        compiled: The layers that ran compiled, by path.
        left: The reasons why the others ran Keras' own loop, by path.
        unknown: The paths of layers that were not called yet, or by Keras alone.
    """

    compiled: dict[str, Any]
    left: dict[str, str]
    unknown: list[str]

    def __str__(self) -> str:
        """Formats this report as text: a line per recurrent layer, with the loop that ran it and why."""
        lines = [f"{path}: compiled, {type(layer.cell).__name__}" for path, layer in self.compiled.items()]
        lines += [f"{path}: Keras' own loop: {reason}" for path, reason in self.left.items()]
        lines += [f"{path}: {NOT_CALLED}" for path in self.unknown]
        return "\n".join(lines) or "there are no recurrent layers"


def report(model: Any) -> Report:
    """Reports which recurrent layers of a model ran compiled, which ran Keras' own loop, and why.

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
    records = [(layer.path or layer.name, layer, RECORDS.get(layer, CallRecord())) for layer in layers]
    return Report(
        {path: layer for path, layer, record in records if record.fast and record.reason is None},
        {path: record.reason for path, _, record in records if record.reason is not None},
        [path for path, _, record in records if not record.fast and record.reason is None],
    )
