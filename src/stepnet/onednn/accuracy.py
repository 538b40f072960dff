"""Error of a recurrence in low precision, relative to the same recurrence in float32."""

import numpy as np

from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class Accuracy:
    """Differences of a recurrence's outputs in a low-precision dtype from its outputs in float32, over
    samples.

    Attributes:
        dtype: The dtype that was compared.
        steps: The number of steps of the samples.
        largest: The largest absolute difference.
        rms: The root of the mean square of the differences.
        scale: The root of the mean square of the outputs in float32.
        step: The distance of neighbouring numbers of the dtype, near 1.

    >>> print(Accuracy("int8", 40, 0.02, 0.003, 0.4, 1 / 127))
    int8 beside float32, 40 steps: at most 0.02 away (2.5 steps of the dtype), rms 0.003 of 0.4
    """

    dtype: str
    steps: int
    largest: float
    rms: float
    scale: float
    step: float

    def __str__(self) -> str:
        """The accuracy as one line, for the user."""
        return (
            f"{self.dtype} beside float32, {self.steps} steps: at most {self.largest:.2g} away "
            f"({self.largest / self.step:.1f} steps of the dtype), rms {self.rms:.2g} of {self.scale:.2g}"
        )


def compared(dtype: str, step: float, pairs: list[tuple[Array, Array]]) -> Accuracy:
    """Computes the accuracy of outputs in a low-precision dtype, over samples, relative to float32.

    step: the distance of neighbouring numbers of the dtype, near 1.
    pairs: for each sample, (outputs in the dtype, outputs in float32).
    """
    low_outputs = np.concatenate([np.zeros(0), *(np.asarray(low, np.float64).ravel() for low, _ in pairs)])
    reference = np.concatenate([np.zeros(0), *(np.asarray(right, np.float64).ravel() for _, right in pairs)])
    errors = low_outputs - reference
    steps = sum(len(right) for _, right in pairs)
    return Accuracy(dtype, steps, float(np.abs(errors).max(initial=0)), rms(errors), rms(reference), step)


def rms(values: Array) -> float:
    """Computes the root of the mean square of numbers; 0 for no numbers."""
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0
