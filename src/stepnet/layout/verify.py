"""Whether two sets of weights compute the same: both run, in float64, on the same random sequences.

Each side is read by its own record and run by its own equations, so what is compared is what the two
layouts say of themselves, not what a conversion did.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compose import Layer, recurrences
from stepnet.errors import LayoutError
from stepnet.layout.layers import layers
from stepnet.layout.record import Record
from stepnet.layout.sizes import Sizes
from stepnet.ragged import Ragged

LENGTHS = (0, 1, 2, 7, 20, 33)


@dataclass(frozen=True)
class Weights:
    """One side: the arrays of a layout, with what they leave open."""

    arrays: Mapping[str, Any]
    layout: str | Record
    sizes: Mapping[str, int] | Sizes | None = None
    semantics: Mapping[str, Any] | None = None
    reverse: bool = False
    merge: str = "concat"

    def layers(self, dtype: Any = None) -> Layer:
        """The layers that they are."""
        return layers(
            self.arrays,
            self.layout,
            sizes=self.sizes,
            semantics=self.semantics,
            dtype=dtype,
            reverse=self.reverse,
            merge=self.merge,
        )


@dataclass(frozen=True)
class Verdict:
    """The largest difference of two sides over some sequences, and the largest output, to measure it by."""

    difference: float
    largest: float
    sequences: int
    steps: int

    def __str__(self) -> str:
        over = f"{self.sequences} sequences, {self.steps} steps"
        return f"largest difference {self.difference:.3g} (outputs up to {self.largest:.3g}; float64, {over})"


def verify(one: Weights, other: Weights, *, seed: int = 0) -> Verdict:
    """The largest difference of the outputs of two sides, in float64, over random sequences.

    Raises `LayoutError` where they do not take inputs, or give outputs, of one size.

    >>> ones = {"kernel": np.ones((1, 2)), "recurrent_kernel": np.ones((2, 2)), "bias": np.ones(2)}
    >>> side = Weights(ones, "keras.rnn")
    >>> verify(side, side).difference
    0.0
    """
    sequences = random_sequences(inputs(one.layers(np.float64)), seed)
    outputs = [outputs_of(side.layers(np.float64), sequences) for side in (one, other)]
    if outputs[0].shape != outputs[1].shape:
        raise LayoutError(f"they give {outputs[0].shape[-1]} and {outputs[1].shape[-1]} outputs at a step")
    difference = float(np.abs(outputs[0] - outputs[1]).max(initial=0))
    largest = float(np.abs(outputs[0]).max(initial=0))
    return Verdict(difference, largest, len(LENGTHS), sum(LENGTHS))


def inputs(layer: Layer) -> int:
    """How many numbers a layer takes at a step."""
    traced = recurrences(layer, "a side")[0].plan.traced
    return traced.type_of(traced.inputs[0]).size


def random_sequences(width: int, seed: int) -> Ragged:
    """Sequences of normal numbers, of lengths from none on."""
    random = np.random.default_rng(seed)
    return Ragged.from_list([random.normal(size=(length, width)) for length in LENGTHS])


def outputs_of(layer: Layer, sequences: Ragged) -> np.ndarray[Any, Any]:
    """The outputs at every step, in the interpreter."""
    if inputs(layer) != sequences.values.shape[1]:
        raise LayoutError(f"they take {sequences.values.shape[1]} and {inputs(layer)} inputs at a step")
    outputs, _ = layer(sequences, engine="interpret")
    return outputs.values
