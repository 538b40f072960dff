"""Settings of the loop of a Keras layer, and the recurrence that its cell is for stepnet."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compiler.trace.step import Spec
from stepnet.keras.cells import NamedStep, cells_in
from stepnet.model.recurrence import RNN

UNROLLED = 4
"""The number of steps in each iteration of the loop of a layer with unroll=True."""


Results = tuple[Any, Any, Any]
"""The result of Keras' `inner_loop`: the last output, the outputs of all steps, the final states."""


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop of a layer that are part of its compiled recurrence."""

    training: bool
    reverse: bool
    unroll: bool

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the `RNN` for these settings."""
        return {"reverse": self.reverse, "unroll": UNROLLED if self.unroll else 1}

    @classmethod
    def of(cls, layer: Any, training: bool) -> "LoopSettings":
        """Reads the settings from a layer."""
        return cls(training, layer.go_backwards, layer.unroll)


Masks = Mapping[str, tuple[Spec, ...]]
"""Specs of the dropout masks of a call, by position of the cell and name of the attribute that holds them."""


def named_recurrence(
    cell: Any, settings: LoopSettings, x: Spec, states: tuple[Spec, ...], masks: Masks
) -> RNN:
    """Builds the recurrence of one of Keras' own cells, or of a stack of them, with zeros as weights.

    x, states: The specs of the input and the states of one step. masks: the dropout masks, which become
    statics.
    """
    params = {str(place): np.zeros(variable.shape, x.dtype) for place, variable in enumerate(cell.weights)}
    step = NamedStep(cells_in(cell))
    return RNN(step, params, memory=states, inputs=x, statics=dict(masks) or None, **settings.options)
