"""Check that two sets of weights compute the same: both run, in float64, on the same random sequences.

Each side is read by its own record and run by its own equations. So the check is independent of the code that
converted the weights. If the framework itself is installed, its outputs are compared with the outputs by its
record.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.compiler.net.tolerance import ROUNDINGS, tolerance
from stepnet.compiler.values.arguments import checked_integer, flag, instance
from stepnet.compiler.values.fork_guard import module_late
from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError
from stepnet.layout.arguments import as_array, one_dtype, size_mapping
from stepnet.layout.frameworks import NOT_INSTALLED, Array, RunnerWeights, answer
from stepnet.layout.layers import layers
from stepnet.layout.record import Record
from stepnet.layout.registry import record
from stepnet.layout.sizes import Sizes
from stepnet.layout.solve import sizes_of
from stepnet.model.compose import Layer, recurrences
from stepnet.ragged import Ragged

LENGTHS = (0, 1, 2, 7, 20, 33)


@dataclass(frozen=True)
class Weights:
    """One side of a comparison: arrays in a layout, and the sizes and semantics that these leave open.

    Args:
        arrays: Arrays or tensors by the framework's own names.
        layout: The name of their layout.
        sizes: Sizes that the shapes leave open; see `convert`.
        semantics: The semantics that the layout leaves open, by field of `Semantics`.
        reverse: Whether weights of one direction run from each sequence's last step.
        merge: How the outputs of two directions are merged; see `Bidirectional`.
    """

    arrays: Mapping[str, Any]
    layout: str | Record
    sizes: Mapping[str, int] | Sizes | None = None
    semantics: Mapping[str, Any] | None = None
    reverse: bool = False
    merge: str = "concat"

    def layers(self, dtype: Any = None) -> Layer:
        """Builds layers that run these weights; dtype: None for that of the arrays, at least float32."""
        return layers(
            self.arrays,
            self.layout,
            sizes=self.sizes,
            semantics=self.semantics,
            dtype=dtype,
            reverse=self.reverse,
            merge=self.merge,
        )

    def runner_weights(self) -> RunnerWeights:
        """Returns copies of these weights in float64, with the sizes and the settings of their function, in
        the form in which frameworks are called to run them.
        """
        chosen = record(self.layout)
        arrays = {name: as_array(name, array) for name, array in self.arrays.items()}
        sizes = sizes_of(
            chosen, {name: array.shape for name, array in arrays.items()}, size_mapping(self.sizes)
        )
        semantics = chosen.settled(dict(self.semantics or {}))
        with np.errstate(invalid="ignore"):  # NumPy warns of a signaling NaN
            copies = {name: np.array(array, np.float64, order="C") for name, array in arrays.items()}
        return RunnerWeights(chosen, copies, sizes, semantics, self.reverse, self.merge)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The common dtype of all arrays of these weights; raises `LayoutError` if they have several."""
        return one_dtype({name: as_array(name, array) for name, array in self.arrays.items()})


NOT_FINITE = "outputs are NaN or infinite, which each framework propagates differently"


@dataclass(frozen=True)
class FrameworkResult:
    """Comparison of the outputs that a framework itself computes from weights with the outputs that stepnet
    computes.

    layout: the layout of the weights.
    framework, version: the framework that ran them.
    difference: the largest absolute difference.
    allowed: the difference that rounding in the framework's dtype explains.
    dtype: the dtype in which it ran.
    reason: why the outputs were not compared; None if they were.
    error: the framework's error if it does not load the file; else empty.
    """

    layout: str
    framework: str
    version: str | None = None
    difference: float | None = None
    allowed: float | None = None
    dtype: str | None = None
    reason: str | None = None
    error: str = ""

    @property
    def agrees(self) -> bool:
        """True if the framework's outputs differ from stepnet's only by rounding, or were not compared."""
        return self.difference is None or self.allowed is None or self.difference <= self.allowed

    @property
    def asked(self) -> bool:
        """False if the framework to compare with is not installed, else True, so that the result is shown."""
        return self.reason != NOT_INSTALLED

    def __str__(self) -> str:
        """The comparison with the framework as one line, for the user."""
        if self.difference is None:
            return f"{self.framework} itself: not compared: {self.reason or self.error}"
        text = f"largest difference {self.difference:.3g}{excess(self.agrees, self.allowed)}"
        return f"{self.framework} {self.version} itself: {text} ({self.layout}, {self.dtype})"


@dataclass(frozen=True)
class Verdict:
    """The largest difference between the outputs of two sets of weights; `print(verdict)` shows one line.

    Attributes:
        difference: The largest absolute difference.
        largest: The largest absolute output, to compare it with.
        sequences: The number of random sequences.
        steps: The total number of their steps.
        allowed: The largest difference that rounding explains.
        own: The results of the frameworks themselves, if they were run.
        unverified: Why the outputs show nothing, such as NaN on both sides; empty if they do.
    """

    difference: float
    largest: float
    sequences: int
    steps: int
    allowed: float
    own: tuple[FrameworkResult, ...] = ()
    unverified: str = ""

    @property
    def agrees(self) -> bool:
        """True if all compared outputs, also those of frameworks, are finite and agree within rounding."""
        return not self.unverified and not self.differs

    @property
    def differs(self) -> bool:
        """True if outputs of both sets of weights, or a framework's and stepnet's, differ beyond rounding."""
        within = self.difference <= self.allowed and self.difference < np.inf
        return not within or not all(comparison.agrees for comparison in self.own)

    def __str__(self) -> str:
        """The result of the comparison as one line, for the user."""
        if self.unverified and not self.differs:
            return f"not verified: {self.unverified}"
        over = f"{self.sequences} sequences, {self.steps} steps"
        text = (
            f"largest difference {self.difference:.3g}{excess(self.difference <= self.allowed, self.allowed)}"
        )
        return f"{text} (outputs up to {self.largest:.3g}; float64, {over})"


def excess(agrees: bool, allowed: float | None) -> str:
    """Returns the text after a difference of outputs: "" if they agree, else the `allowed` difference."""
    return "" if agrees else f", where {allowed:.3g} is rounding"


def verify(one: Weights, other: Weights, *, seed: int = 0, frameworks: bool = False) -> Verdict:
    """Compares the outputs of two sets of weights on the same random sequences, in float64.

    Args:
        one: One set of weights.
        other: The other one, such as a conversion of the first.
        seed: The seed of the random sequences.
        frameworks: Whether frameworks that are installed run the weights too.

    Returns:
        A `Verdict`: the largest difference, and the one that rounding explains.

    Raises:
        LayoutError: If the two have different numbers of inputs or outputs.

    >>> ones = {"kernel": np.ones((1, 2)), "recurrent_kernel": np.ones((2, 2)), "bias": np.ones(2)}
    >>> side = Weights(ones, "keras.rnn")
    >>> verify(side, side).difference
    0.0
    """
    both = one, other
    for layer_weights in both:
        instance(layer_weights, Weights, "a side is Weights(arrays, layout)")
    seed, frameworks = (
        checked_integer(seed, "seed is a whole number from 0 on"),
        flag(frameworks, "frameworks"),
    )
    sequences = random_sequences(inputs(one.layers(np.float64)), seed)
    outputs = [outputs_of(layer_weights.layers(np.float64), sequences) for layer_weights in both]
    if outputs[0].features != outputs[1].features:
        raise LayoutError(
            f"the two sides have {outputs[0].features[-1]} and {outputs[1].features[-1]} outputs at a step"
        )
    largest = largest_of(outputs[0].values)
    asked = [
        framework_result(layer_weights, sequences, output)
        for layer_weights, output in zip(both, outputs, strict=True)
        if frameworks
    ]
    return Verdict(
        distance(outputs[0].values, outputs[1].values),
        largest,
        len(LENGTHS),
        sum(LENGTHS),
        largest * max(conversion_tolerance(layer_weights) for layer_weights in both),
        tuple(answer for answer in asked if answer is not None),
        unverified(outputs[0].values),
    )


def largest_of(outputs: Array) -> float:
    """Returns the largest absolute value of the finite outputs; 0 if there are none."""
    return float(np.abs(outputs[np.isfinite(outputs)]).max(initial=0))


def unverified(outputs: Array) -> str:
    """Returns the reason why these outputs prove nothing: how many are NaN or infinite; "" if none is."""
    return not_finite(int(outputs.size - np.isfinite(outputs).sum()), outputs.size)


def not_finite(count: int, total: int) -> str:
    """Returns the message that `count` of `total` outputs are NaN or infinite on both sides; or ""."""
    return f"{count} of {total} outputs are NaN or infinite on both sides" if count else ""


def framework_result(layer_weights: Weights, sequences: Ragged, outputs: Ragged) -> FrameworkResult | None:
    """Compares stepnet's `outputs` for the source's or the target's weights of a conversion with those of the
    weights' framework, which runs them on the same sequences; None if no framework has this layout of
    weights. Empty sequences are left out. A result without a difference has the reason why it has none.
    """
    weights = layer_weights.runner_weights()
    run = answer(weights, [sequence for sequence in sequences.to_list() if len(sequence)])
    if run is None:
        return None
    if run.outputs is None:
        return FrameworkResult(weights.record.name, run.framework, run.version, reason=run.reason)
    if not np.isfinite(outputs.values).all():
        return FrameworkResult(weights.record.name, run.framework, run.version, reason=NOT_FINITE)
    here = [output for output in outputs.to_list() if len(output)]
    dtype = run.outputs[0].dtype
    return FrameworkResult(
        weights.record.name,
        run.framework,
        run.version,
        max(distance(ours, theirs) for ours, theirs in zip(here, run.outputs, strict=True)),
        max(1.0, float(np.abs(outputs.values).max(initial=0))) * 2 * rounding(dtype, weights.sizes),
        dtype.name,
    )


# ---- tolerances --------------------------------------------------------------------------------------------


def rounding(dtype: np.dtype[Any], sizes: Sizes, roundings: int = ROUNDINGS) -> float:
    """Returns the error, relative to max(1, |largest output|), that rounding in a dtype explains in outputs
    of layers of these sizes after the longest random sequence. `roundings` is the number of rounding errors
    of a step.
    """
    return tolerance(dtype, max(LENGTHS), sizes.inputs + sizes.hidden, roundings)


def conversion_tolerance(layer_weights: Weights) -> float:
    """Returns the difference between the outputs of weights and of their conversion that rounding explains,
    relative to the largest output, if both run in float64 and each weight was rounded once to its dtype.
    """
    sizes = layer_weights.runner_weights().sizes
    return 2 * (rounding(np.dtype(np.float64), sizes) + rounding(layer_weights.dtype, sizes, roundings=1))


def distance(first: Array, second: Array) -> float:
    """Returns the largest difference of two arrays, in which equal infinities and NaN on both sides are no
    difference; infinite if a number is not finite in only one.
    """
    with np.errstate(invalid="ignore"):
        differences = np.where(
            (first == second) | (np.isnan(first) & np.isnan(second)), 0, np.abs(first - second)
        )
    return float(np.where(np.isnan(differences), np.inf, differences).max(initial=0))


def inputs(layer: Layer) -> int:
    """Returns the number of features that a layer (or the first of a stack) reads at each step."""
    traced = recurrences(layer, "a side")[0].plan.traced
    return traced.type_of(traced.inputs[0]).size


def random_sequences(width: int, seed: int) -> Ragged:
    """Returns random sequences of `width` features, of lengths `LENGTHS`, exact in float32."""
    random = module_late("numpy.random").default_rng(seed)
    return Ragged.from_list([exactly(random.normal(size=(length, width))) for length in LENGTHS])


def exactly(numbers: Array) -> Array:
    """Rounds float64 numbers to float32 values, so that a framework that runs in float32 reads the same."""
    return numbers.astype(np.float32).astype(np.float64)


def outputs_of(layer: Layer, sequences: Ragged) -> Ragged:
    """Returns a layer's outputs by the interpreter; raises `LayoutError` for other numbers of features."""
    if inputs(layer) != sequences.features[0]:
        raise LayoutError(f"the two sides have {sequences.features[0]} and {inputs(layer)} inputs at a step")
    return layer(sequences, engine="interpret")[0]
