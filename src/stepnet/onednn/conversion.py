"""Conversion of weights in any layout to oneDNN's layout, and of their gradients back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.compiler.targets.onednn.primitives import RecurrenceWeights
from stepnet.compiler.targets.onednn.recurrence import OneDnnRecurrence
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ConversionError
from stepnet.layout import registry
from stepnet.layout.convert import RangeError, convert, first_fitting

Array = np.ndarray

TARGETS = (
    ("rnn", "", "onednn.rnn", "rnn"),
    ("gru", "before", "onednn.gru", "gru"),
    ("gru", "after", "onednn.lbr_gru", "lbr_gru"),
    ("lstm", "", "onednn.lstm", "lstm"),
    ("lstm", "", "onednn.lstm_peephole", "lstm"),
    ("lstm", "", "onednn.lstm_projection", "lstm"),
)
"""Rows of cell, reset of a GRU, layout of a recurrence of oneDNN, and its cell; the simplest layout first.

An LSTM is converted to the first layout that it fits. If it fits none, the reported reason is that of the
simplest layout.
"""


@dataclass(frozen=True)
class LayerWeights:
    """Weights from which a layer was made, in the caller's layout.

    arrays: the arrays by name.
    layout: the name of their layout.
    semantics: values for the settings that the layout does not fix, by field of `Semantics`.
    """

    arrays: Mapping[str, Array]
    layout: str
    semantics: Mapping[str, Any]

    def gradients(
        self, recurrence: OneDnnRecurrence, layout: str, gradients: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Converts the gradients of oneDNN's weights to gradients of the caller's arrays.

        recurrence: the recurrence that the arrays were converted to.
        layout: the name of oneDNN's layout (arrangement in arrays) of the gradients.
        gradients: the gradients in it, by name.
        """
        semantics: dict[str, Any] = {"target": dict(self.semantics)}
        if recurrence.cell == "rnn":
            semantics["candidate_activation"] = recurrence.activation
        converted = convert(gradients, layout, self.layout, kind="gradient", semantics=semantics).arrays
        return {name: converted[name].reshape(array.shape) for name, array in self.arrays.items()}


def converted(
    source: LayerWeights,
) -> tuple[tuple[OneDnnRecurrence, RecurrenceWeights, str] | None, str | None]:
    """Converts a layer's weights, in float32, to a recurrence of oneDNN and its layout (arrangement of
    weights), the simplest that they fit. Returns ((recurrence, its weights, their layout), None), or (None,
    the reason why oneDNN has no such cell). Raises `RangeError` for numbers beyond float32.
    """
    meaning = registry.record(source.layout).settled(source.semantics)
    kinds = {
        target: kind
        for cell, reset, target, kind in TARGETS
        if (cell, reset or meaning.reset) == (meaning.cell, meaning.reset)
    }
    if not kinds:
        return None, f"oneDNN has no cell like that of {source.layout}"
    conversion = first_fitting(
        source.arrays, source.layout, kinds, semantics=source.semantics, dtype="float32"
    )
    if isinstance(conversion, RangeError):
        raise conversion
    if isinstance(conversion, ConversionError):
        return None, str(conversion)
    arrays, target = conversion.arrays, conversion.report.target
    _, _, inputs, _, hidden = arrays["weights_layer"].shape
    projected = arrays["weights_projection"].shape[3] if "weights_projection" in arrays else 0
    recurrence = OneDnnRecurrence(
        kinds[target],
        inputs,
        hidden,
        projected,
        conversion.report.target_semantics.candidate_activation if kinds[target] == "rnn" else "tanh",
        "weights_peephole" in arrays,
    )
    return (recurrence, RecurrenceWeights.of(recurrence, arrays), target), None
