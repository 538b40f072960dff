"""The function of a run that gives its gradients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stepnet.engines.onednn.training import Tape
from stepnet.errors import InputError
from stepnet.onednn.arguments import Arguments
from stepnet.onednn.conversion import Source
from stepnet.onednn.sequences import state

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Pullback:
    """The gradients of a run: `pullback(d_outputs, d_final)`, as often as they are wanted.

    source, layout: the weights as they were given, and the layout in which oneDNN has them. states: the sizes
    of the memories.
    """

    source: Source
    layout: str
    states: tuple[int, ...]
    arguments: Arguments
    tape: Tape

    def __call__(self, outputs: Any = None, final: Any = None) -> dict[str, Any]:
        """The gradients of a sum of products with `outputs` and `final`; None for zeros.

        Args:
            outputs: In the form of the outputs.
            final: [batch, hidden]; of an LSTM a dict with "h", "c" or both.

        Returns:
            A dict: "x" in the form of x, "h0", of an LSTM "c0", and "weights", by the names and in the layout
            of the weights that the layer was made of.

        Raises:
            InputError: For arrays of another shape.
        """
        arguments = self.arguments
        sequences = arguments.sequences
        shape = (len(sequences.values), self.states[0])
        cotangent = getattr(outputs, "values", outputs)
        if cotangent is not None:
            cotangent = np.asarray(cotangent, np.float32)
            if cotangent.size != shape[0] * shape[1]:
                raise InputError(
                    f"the gradient of the outputs has shape {cotangent.shape}, and must have {shape}"
                )
            cotangent = arguments.turned(np.ascontiguousarray(cotangent.reshape(shape)))
        last = cast("Mapping[str, Any]", final) if isinstance(final, dict) else {"h": final}
        ends = [
            state(last.get(name), (sequences.rows, size), f"the gradient of {name}")
            for name, size in zip("hc", self.states, strict=False)
        ]
        made = self.tape.backward(cotangent, *ends)
        results: dict[str, Any] = {"x": arguments.like(made.x), "h0": made.h}
        if made.c is not None:
            results["c0"] = made.c
        recurrence = self.tape.training.recurrence
        return results | {"weights": self.source.gradients(recurrence, self.layout, made.weights)}
