"""The report of `quantize`: the dtype of each recurrence, and the errors of the outputs."""

from collections.abc import Mapping, Sequence
from math import isinf

import numpy as np

from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class OutputError:
    """The error of an output in low precision, relative to the output in float32, over all samples.

    An infinity in both is no difference, as a model may rule out a class with one; the scale is that of
    the finite numbers.

    Attributes:
        name: The output, by its name in the model's outputs; "" for the only one.
        largest: The largest absolute difference.
        rms: The root of the mean square of the differences.
        scale: The root of the mean square of the output in float32.

    >>> print(OutputError.of("tags", [np.array([0.9, 1.1])], [np.array([1.0, 1.0])]))
    output tags: at most 0.1 away, rms 0.1 of 1 (10%)
    """

    name: str
    largest: float
    rms: float
    scale: float

    @classmethod
    def of(cls, name: str, low: Sequence[Array], right: Sequence[Array]) -> "OutputError":
        """Computes the error of an output over all samples. Equal infinities are no difference.

        name: the name of the output.
        low, right: the output in low precision and in float32, an array per sample.
        """
        ours, theirs = (
            np.concatenate([np.ravel(each).astype(np.float64) for each in all_]) for all_ in (low, right)
        )
        away = np.subtract(ours, theirs, where=ours != theirs, out=np.zeros_like(ours))
        return cls(name, float(np.abs(away).max(initial=0)), rms(away), rms(theirs[np.isfinite(theirs)]))

    @property
    def relative(self) -> float:
        """Root mean square of an output's error divided by that of the output, to compare with the user's
        bound; 0 for no error, infinity for an error of an output of zeros.
        """
        return (
            0.0 if self.rms == 0 else float(np.divide(self.rms, self.scale)) if self.scale else float("inf")
        )

    def __str__(self) -> str:
        """Returns the error as a line of the report: "output tags: at most 0.1 away, rms 0.1 of 1 (10%)"."""
        name = f"output {self.name}" if self.name else "the output"
        return (
            f"{name}: at most {self.largest:.2g} away, rms {self.rms:.2g} of {self.scale:.2g} "
            f"({percent(self.relative)})"
        )


@dataclass(frozen=True)
class Saturation:
    """The saturated numbers of a call in integers: too large for their integers, and replaced by the largest.

    Attributes:
        name: The input, memory or output; for values between them the operations that give them.
        count: The number of saturated numbers.
        numbers: The number of all numbers.

    >>> print(Saturation("x", 2, 200))
    x: 2 of 200 numbers saturate (1%)
    """

    name: str
    count: int
    numbers: int

    def __str__(self) -> str:
        """Returns the count as a line of text."""
        share = percent(self.count / self.numbers)
        return f"{self.name}: {self.count} of {self.numbers} numbers saturate ({share})"


def percent(share: float) -> str:
    """Returns a share in percent with two digits, without an exponent where it is large.

    >>> percent(0.00714), percent(1), percent(1.52)
    ('0.71%', '100%', '150%')
    """
    return f"{float(f'{100 * share:.2g}'):g}%"


def rms(values: Array) -> float:
    """Returns the root of the mean square of numbers, to measure errors; 0 for no numbers."""
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


@dataclass(frozen=True)
class QuantizedRecurrence:
    """The dtype that `quantize` chose for one recurrence of a model.

    Attributes:
        number: Its place among the model's recurrences, in the order that the model calls them.
        what: Its cell and size.
        dtype: float32, bfloat16 or int8.
        precision: This dtype with the scale and the shift of the inputs; None in float32.
        alone: The largest relative error of an output with this recurrence alone in a dtype, as tried.
        reasons: The reason for each dtype that was not chosen, by dtype.
    """

    number: int
    what: str
    dtype: str
    precision: Precision | None
    alone: Mapping[str, float]
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        """Returns a recurrence's precision as lines: the dtype, errors, and reasons against others."""
        lines = [f"recurrence {self.number} in {self.dtype}: {self.what}"]
        lines += [f"    alone in {dtype}: {percent(error)} away" for dtype, error in self.alone.items()]
        lines += [f"    not {dtype}: {reason}" for dtype, reason in self.reasons.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Quantization:
    """The dtypes that `quantize` chose for a model, and the errors of its outputs.

    Attributes:
        recurrences: The choice for each recurrence.
        outputs: The error of each output with all choices.
        samples: The number of samples.
        steps: The number of their steps.
        within: The largest relative error that was allowed.
    """

    recurrences: tuple[QuantizedRecurrence, ...]
    outputs: tuple[OutputError, ...]
    samples: int
    steps: int
    within: float

    def __str__(self) -> str:
        """Returns the report of `quantize` as text: the samples, then each recurrence and each output."""
        bound = "no bound" if isinf(self.within) else f"within {percent(self.within)}"
        head = f"{self.samples} samples of {self.steps} steps, {bound}"
        return "\n".join([head, *map(str, self.recurrences), *map(str, self.outputs)])
