"""Settings of the loop of a Keras layer, and the recurrence that stepnet makes of its cell."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.records import dataclass
from stepnet.keras.cells import NamedStep, cells_in
from stepnet.model.recurrence import RNN

UNROLLED = 4
"""The number of steps in each iteration of the loop of a layer with unroll=True."""


Results = tuple[Any, Any, Any]
"""The result of Keras' `inner_loop`: the last output, the outputs of all steps, the final states."""


OURS = list[Any]()
"""The classes of stepnet that are recurrent layers, each with the attribute `engine`."""

ACCELERATED = dict[Any, Order]()
"""The active accelerations, the latest last, with the engines on which they run the layers of Keras."""


def engine_of(layer: Any) -> Order:
    """Returns the engines that run a layer, in order of preference: its own if its class is stepnet's, else
    those of the call of `accelerate` that began last and is still active; "auto" without one.
    """
    if isinstance(layer, tuple(OURS)):
        return layer.engine
    orders = [*ACCELERATED.values()]
    return orders[-1] if orders else "auto"


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop of a layer that are part of its compiled recurrence.

    training: whether the layer is in training. reverse: the steps run from last to first. unroll: whether
    each iteration of the loop runs `UNROLLED` steps.
    """

    training: bool
    reverse: bool
    unroll: bool

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `RNN` for these settings: the direction, and the steps per iteration of its loop."""
        return {"reverse": self.reverse, "unroll": UNROLLED if self.unroll else 1}

    @classmethod
    def of(cls, layer: Any, training: bool) -> "LoopSettings":
        """Reads the settings of the loop from a Keras layer. training: whether the layer is in training.

        Flags of the layer may be any values: the settings are their truth values, as in Keras' own loop.
        """
        return cls(training, bool(layer.go_backwards), bool(layer.unroll))


Masks = Mapping[str, tuple[Spec, ...]]
"""Features and dtypes of the dropout masks of a call, by position of the cell and name of the attribute."""


def named_recurrence(
    cell: Any, settings: LoopSettings, x: Spec, states: tuple[Spec, ...], masks: Masks
) -> RNN:
    """Makes the `RNN` of one of Keras' own cells, or of a stack of them, with zeros as weights.

    settings: the settings of the loop, such as its direction.
    x, states, masks: features and dtypes of input, states and dropout masks (statics of the `RNN`) of a step.
    """
    params = {str(index): np.zeros(variable.shape, x.dtype) for index, variable in enumerate(cell.weights)}
    step = NamedStep(cells_in(cell))
    return RNN(step, params, memory=states, inputs=x, statics=dict(masks) or None, **settings.options)
