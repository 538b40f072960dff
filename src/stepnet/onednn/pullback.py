"""Pullback of a run: the function from cotangents of its results to gradients of its arguments."""

from typing import Any

from stepnet.compiler.targets.onednn.training import Tape
from stepnet.compiler.values.arguments import mapping
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.onednn.conversion import LayerWeights
from stepnet.onednn.sequences import Arguments, state

FINAL = "the gradient of the final memories is a dict of 'h', 'c' or both"


@dataclass(frozen=True, eq=False)
class Pullback:
    """The gradients of one run of a layer, as a function: `pullback(d_outputs, d_final)`. It may be called
    again.

    source: the weights in the layout of the caller.
    layout: oneDNN's layout of the weights.
    states: the sizes of the memories.
    arguments: the arguments of the run.
    tape: the results of the forward pass that the backward pass reads.
    """

    source: LayerWeights
    layout: str
    states: tuple[int, ...]
    arguments: Arguments
    tape: Tape

    def __call__(self, outputs: Any = None, final: Any = None) -> dict[str, Any]:
        """Computes the gradients of a loss with respect to the arguments of the run, from cotangents of its
        results.

        Args:
            outputs: The cotangent of the outputs, in their form; None for zeros.
            final: The cotangent of the final memory, [batch, hidden]; for an LSTM a dict with "h", "c" or
                both; None for zeros.

        Returns:
            A dict: "x" in the form of x, "h0", for an LSTM "c0", and "weights", by the names and in the
                layout of the weights from which the layer was made.

        Raises:
            InputError: For arrays of another shape.
        """
        arguments = self.arguments
        sequences = arguments.sequences
        cotangent = sequences.gradient(outputs, self.states[0])
        if cotangent is not None:
            cotangent = arguments.reordered(cotangent)
        names = "hc"[: len(self.states)]
        last = {"h": final} if names == "h" else mapping({} if final is None else final, FINAL)
        if strange := [name for name in last if name not in names]:
            raise InputError(f"{FINAL}, and there is no {strange[0]!r}")
        ends = [
            state(last.get(name), (sequences.rows, size), f"the gradient of {name}")
            for name, size in zip(names, self.states, strict=True)
        ]
        gradients = self.tape.backward(cotangent, *ends)
        results: dict[str, Any] = {"x": arguments.like(gradients.x), "h0": gradients.h}
        if gradients.c is not None:
            results["c0"] = gradients.c
        recurrence = self.tape.training.recurrence
        return results | {"weights": self.source.gradients(recurrence, self.layout, gradients.weights)}
