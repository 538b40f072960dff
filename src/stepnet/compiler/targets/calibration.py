"""Calibration: the scales of a recurrence's int8 quantization, from samples.

A calibration does not depend on the engine. Inputs and the memory h are q = scale x + shift, from 0 to 255.
The weights of each unit of each gate are q = scale w, from -127 to 127, with the same scale for inputs and
memory.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import number
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError

Array = np.ndarray
ACTIVATIONS = ("int8", "int16")
"""The dtypes of inputs, and of the left sides of products, of models in integers alone."""
STEPS = 255
"""The largest code: the largest uint8."""


@dataclass(frozen=True)
class Calibration:
    """Scales with which one recurrence runs in int8.

    Attributes:
        scale: Of inputs and memory: q = scale x + shift, rounded, from 0 to 255.
        shift: The number that stands for 0; 128 for numbers of both signs.
        weights: A scale for each unit of each gate, gate after gate in the order of the engine's weights.

    >>> calibration = Calibration(127.0, 128.0, (63.5,))
    >>> calibration.quantized(np.array([-1.0, 0.0, 0.5, 9.0]))
    array([  1, 128, 192, 255], dtype=uint8)
    >>> calibration.step
    0.007874015748031496
    """

    scale: float
    shift: float
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises `InputError` for int8 scales that are not finite and positive, or a shift out of range."""
        numbers = np.array([self.scale, *self.weights], np.float64)
        if not (np.isfinite(numbers).all() and (numbers > 0).all()):
            raise InputError("the scales of a calibration are finite numbers above 0")
        if not 0 <= self.shift <= STEPS:
            raise InputError(f"the shift of a calibration is from 0 to {STEPS}, not {self.shift}")

    @property
    def step(self) -> float:
        """The difference between the values of neighbouring 8-bit codes: the quantization's resolution."""
        return 1 / self.scale

    def quantized(self, values: Array) -> Array:
        """Quantizes values to uint8, out of range to 0 or 255; raises `InputError` for NaN."""
        scaled = np.rint(np.asarray(values, np.float32) * self.scale + self.shift)
        if np.isnan(scaled).any():
            raise InputError("an input of a recurrence in int8 is NaN, which 8 bits cannot hold")
        return np.clip(scaled, 0, STEPS).astype(np.uint8)


def check_keep(keep: Any) -> float:
    """Checks the argument `keep`, the fraction of the numbers that int8 quantization does not saturate;
    returns it. Raises `InputError` unless it is a number above 0 and up to 1.
    """
    meaning = "keep is the part of the numbers within the scale, above 0 and up to 1"
    return number(keep, meaning, lambda value: 0 < value <= 1)


def data_scale(samples: Sequence[Array], keep: float = 1.0) -> tuple[float, float]:
    """Computes the scale and the shift of int8 quantization for inputs such as the samples, and for a memory
    within -1 to 1. The shift is 128, the code of 0; the largest magnitude, at least 1, becomes 127 away from
    it.

    samples: arrays of any shape, finite.
    keep: the fraction of the numbers within the range; the others saturate, which makes the resolution finer.

    Raises `InputError` for samples that are empty, or hold NaN or infinity.

    >>> data_scale([np.array([-2.0, 0.5])])
    (63.5, 128.0)
    """
    keep = check_keep(keep)
    sizes: list[Array] = []
    for index, sample in enumerate(samples):
        values = np.asarray(sample, np.float64)
        if not np.isfinite(values).all():
            raise InputError(f"sample {index} of the calibration has NaN or infinity")
        sizes.append(np.abs(values).ravel())
    all_sizes = np.concatenate([np.zeros(0), *sizes])
    if not all_sizes.size:
        raise InputError("the samples of the calibration have no steps; give some that are usual")
    largest = float(all_sizes.max() if keep == 1 else np.quantile(all_sizes, keep))
    return 127.0 / max(1.0, largest), 128.0


def weight_scales(weights: Sequence[Any], largest: int = 127) -> tuple[float, ...]:
    """Computes the scale of int8 quantization for each unit of each gate, gate after gate, with which the
    largest weight of the unit becomes `largest`. Raises `InputError` for NaN or infinity.

    weights: arrays [..., inputs, gates, hidden], which share the scales. A unit of zeros has the scale 1.

    >>> weight_scales([np.array([[[0.5, 0.0]]]), np.array([[[-2.0, 0.0]]])])
    (63.5, 1.0)
    """
    rows = np.concatenate([np.asarray(w, np.float64).reshape(-1, *np.shape(w)[-2:]) for w in weights])
    if not np.isfinite(rows).all():
        raise InputError("the weights to calibrate have NaN or infinity")
    most = np.abs(rows).max(axis=0, initial=0).ravel()
    return tuple(float(scale) for scale in np.where(most > 0, largest / np.where(most > 0, most, 1), 1.0))


@dataclass(frozen=True)
class FrameSamples:
    """Sequences that a model in integers alone is calibrated with.

    activations: "int8" or "int16", the dtype of inputs and of the left sides of products.
    samples: for each sample the arrays [total, features...] of the model's inputs, with all sequences end to
        end; statics have a row per step.
    lengths: for each sample the lengths of its sequences.
    """

    activations: str
    samples: tuple[tuple[Array, ...], ...]
    lengths: tuple[Array, ...]
