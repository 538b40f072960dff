"""The recurrences of Keras' own cells, from their equations and the specs of what a step is called with."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.keras.cells import NamedStep, cells_in
from stepnet.keras.way import Way
from stepnet.rnn.recurrence import RNN
from stepnet.trace.step import Spec

Masks = Mapping[str, tuple[Spec, ...]]
"""The dropout masks of a call, by where the cells keep them."""


def named_recurrence(cell: Any, way: Way, x: Spec, states: tuple[Spec, ...], masks: Masks) -> RNN:
    """The recurrence of one of Keras' own cells, or of several that are stacked, with weights of zeros."""
    params = {str(place): np.zeros(variable.shape, x.dtype) for place, variable in enumerate(cell.weights)}
    step = NamedStep(cells_in(cell))
    return RNN(step, params, memory=states, inputs=x, statics=dict(masks) or None, **way.options)
