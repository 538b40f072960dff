"""The verdict on two whole models: both run over the same sequences, and their outputs are compared.

one.onnx     --read_model, run in float64-->  outputs
other.keras  --read_model, run in float64-->  outputs  -->  largest difference, beside what rounding explains

A difference that rounding explains is allowed. Its size is measured: each model runs again with every weight
moved by half a unit in the last place. So a small output is compared as strictly as a large one, and a
conversion may round a weight once.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.tolerance import ROUNDINGS, tolerance
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.fork_guard import module_late
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves, transform
from stepnet.errors import InputError, LayoutError
from stepnet.layout.options import option
from stepnet.layout.verify import Verdict, exactly, largest_of, not_finite
from stepnet.model.file import FileModel
from stepnet.model.graph.graph import Graph
from stepnet.model.sides import DRAWS, Outputs, Side
from stepnet.ragged import Ragged

Array = np.ndarray
LENGTHS = (1, 2, 7, 20, 33)
"""The lengths of the random sequences. None is empty: the mean of no steps is NaN in every model."""


@dataclass(frozen=True)
class Compared:
    """The comparison of an output of two models over some sequences, feature by feature.

    difference: the largest difference between the models.
    rounding: the largest change when the weights are moved by rounding.
    largest: the largest number of the output.
    count: the number of compared numbers. not_finite: the number of NaNs and infinities among them.
    """

    difference: Array
    rounding: Array
    largest: float
    count: int
    not_finite: int

    def merged(self, other: "Compared") -> "Compared":
        """Joins two comparisons of one output over different sequences into one."""
        return Compared(
            np.maximum(self.difference, other.difference),
            np.maximum(self.rounding, other.rounding),
            max(self.largest, other.largest),
            self.count + other.count,
            self.not_finite + other.not_finite,
        )


def verify_models(
    one: FileModel, other: FileModel, samples: Iterable[Ragged] | None = None, *, seed: int = 0
) -> Verdict:
    """Compares two models: the largest difference of their outputs over the same sequences, in float64.

    Args:
        one: A model.
        other: Another one.
        samples: The sequences, in groups; random ones by default.
        seed: The seed of the random sequences.

    Returns:
        The verdict. Its difference is that of the feature where it is largest beside what rounding explains:
        16 times the change when every weight is rounded anew, and the rounding of float64.

    Raises:
        LayoutError: If the models take different inputs or have different outputs.
        InputError: For sequences that a model does not take, and for models that take whole numbers or
            sequences of sequences, which cannot be random.

    >>> import stepnet as sn
    >>> x = sn.Spec(3, "float32")
    >>> single = FileModel(sn.Graph(lambda x, params: sn.reduce(x, "max"), inputs=x))
    >>> double = FileModel(sn.Graph(lambda x, params: 2 * sn.reduce(x, "max"), inputs=x))
    >>> verify_models(single, single).difference, verify_models(single, double).agrees
    (0.0, False)
    """
    several = [len(names_of(each)) > 1 for each in (one, other)]
    sides = Side.of(one, several[1]), Side.of(other, several[0])
    check_inputs(*sides)
    groups = [random_inputs(sides, seed)] if samples is None else ((x, None) for x in samples)
    found, alone, sequences, steps, longest = dict[str, Compared](), set[str](), 0, 0, 0
    for x, statics in groups:
        each: Ragged = leaves(x)[0]
        if not len(each.values):
            continue
        made, alone = compared(sides, x, statics, (several[0], several[1]))
        found = {name: new.merged(found[name]) if name in found else new for name, new in made.items()}
        sequences, steps = sequences + len(each), steps + len(each.values)
        longest = max(longest, int(each.lengths.max(initial=0)))
    return verdict(sides, found, alone, sequences, steps, longest)


def names_of(source: FileModel) -> list[str]:
    """Returns the names of the outputs of a model that was read from a file; [""] for layers, which have one
    output without a name.

    A graph made without inputs= also gives [""]: its outputs are not known.
    """
    if not isinstance(source.model, Graph) or source.model.inputs is None:
        return [""]
    return [name for name, _ in named_leaves(source.model.program.traced.output)]


def verdict(
    sides: tuple[Side, Side],
    found: dict[str, Compared],
    alone: set[str],
    sequences: int,
    steps: int,
    longest: int,
) -> Verdict:
    """Sums up the comparisons of all sequences as a verdict, with the numbers of the worst feature.

    It is the one with the largest difference relative to what rounding explains.

    sides: the two models.
    found: the comparison of each output, by name.
    alone: the names of the outputs that only one model has.
    sequences, steps: the count of sequences, and of all their steps.
    longest: the largest length of a sequence.
    """
    reason = not_finite(sum(each.not_finite for each in found.values()), sum(e.count for e in found.values()))
    if alone:
        reason = f"only one model has the outputs {', '.join(sorted(alone))}"
    width = max((size for side in sides for size in widths(side.graph.net)), default=1)
    worst = [
        worst_of(each, 2 * max(1.0, each.largest) * tolerance("float64", longest, width))
        for each in found.values()
    ]
    _, difference, allowed = max(worst, default=(0.0, 0.0, 0.0))
    return Verdict(
        difference,
        max((each.largest for each in found.values()), default=0.0),
        sequences,
        steps,
        allowed,
        unverified=reason if steps else "there are no steps to compare",
    )


def worst_of(output: Compared, least: float) -> tuple[float, float, float]:
    """Returns the worst feature of an output as (difference / allowed, difference, allowed).

    Allowed is the effect of rounding the weights, times a factor for the roundings in between, and `least`.

    least: the rounding of float64, which is always allowed.
    """
    allowed = ROUNDINGS * output.rounding + least
    with np.errstate(invalid="ignore"):  # infinity by infinity
        quotients = np.where(np.isinf(output.difference), np.inf, output.difference / allowed)
    place = int(np.argmax(quotients))
    return float(quotients[place]), float(output.difference[place]), float(allowed[place])


def compared(
    sides: tuple[Side, Side], sequences: Any, statics: Any, several: tuple[bool, bool]
) -> tuple[dict[str, Compared], set[str]]:
    """Compares the outputs of two models; returns the comparisons by name, and the names only one model has.
    Raises `LayoutError` for an output of other numbers of steps.

    sides: the two models.
    sequences, statics: the inputs of both, and the values that each sequence has once.
    several: whether the model of each side has more than one output, not counting final states of layers.
    """
    first, second = ([*side.outputs(sequences, statics)] for side in sides)
    names = paired(sides, first[0], second[0])
    for a, b in names:
        lengths = [each.lengths for each in (first[0][a], second[0][b]) if isinstance(each, Ragged)]
        if len(lengths) > 1 and not np.array_equal(lengths[0], lengths[1]):
            raise LayoutError(
                f"the models have outputs of other numbers of steps, and cannot be compared: {a or b} has "
                f"{lengths[0].sum()} steps of {sides[0].path}, and {lengths[1].sum()} of {sides[1].path}"
            )
    found = {a or b: one_compared([x[a] for x in first], [x[b] for x in second]) for a, b in names}
    # The final states of layers are outputs only where the other side has them, too.
    alone = {name for name in first[0] if several[0] and name not in {a for a, _ in names}}
    alone |= {name for name in second[0] if several[1] and name not in {b for _, b in names}}
    return found, alone


def one_compared(first: list[Any], second: list[Any]) -> Compared:
    """Compares one output of two models, feature by feature.

    The effect of rounding is the change by rounded weights, summed over both models, mean over the copies.

    first, second: the output of each model: with the given weights, then with randomly rounded copies.
    """
    sides = [[values_of(each).reshape(len(values_of(each)), -1) for each in side] for side in (first, second)]
    here, there = sides[0][0], sides[1][0]
    finite = np.isfinite(here)
    changes = [absolute_difference(side[0], each).max(0, initial=0) for side in sides for each in side[1:]]
    return Compared(
        absolute_difference(here, there).max(0, initial=0),
        np.sum(changes, axis=0) / DRAWS,
        largest_of(here),
        here.size,
        here.size - int(finite.sum()),
    )


def values_of(output: Any) -> Array:
    """Returns the numbers of an output, a Ragged or an array, in float64."""
    return (output.values if isinstance(output, Ragged) else output).astype(np.float64)


def absolute_difference(one: Array, other: Array) -> Array:
    """Returns the absolute difference of each number of two arrays, to compare outputs of models.

    It is infinity where exactly one number is NaN or infinite, and 0 where both are NaN.
    """
    with np.errstate(invalid="ignore"):
        away = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0, np.abs(one - other))
    return np.where(np.isnan(away), np.inf, away)


def widths(net: Net) -> Iterator[int]:
    """Yields the number of terms of each matrix product in a net, on which its rounding depends."""
    for node in net.nodes:
        if node.operation == "recur":
            yield from widths(node.recur.body)
        elif node.kind == "matmul":
            yield from (net.type_of(left).shape[-1] for left in node.sides[0])


# ---- inputs ------------------------------------------------------------------------------------------------


def check_inputs(one: Side, other: Side) -> None:
    """Raises `LayoutError` for two models that cannot be compared, as their inputs or statics (values that
    each sequence has once) have different names or features.
    """
    pairs = ("inputs", one.inputs, other.inputs), ("statics", one.graph.statics, other.graph.statics)
    for what, first, second in pairs:
        found = [
            ", ".join(sorted(f"{name} {list(spec.shape)}".strip() for name, spec in named_leaves(specs)))
            for specs in (first, second)
        ]
        if found[0] != found[1]:
            raise LayoutError(
                f"the models take different {what}, and cannot be compared: {one.path} {found[0]}, "
                f"{other.path} {found[1]}"
            )


def random_inputs(sides: tuple[Side, Side], seed: int) -> tuple[Any, Any]:
    """Draws random inputs for two models; returns the sequences and the statics (values that each sequence
    has once) in the structures that the first one takes. If a model takes only one number of steps, all
    sequences have this number.

    Raises `InputError` for whole numbers, whose range is not known, and for nested sequences.

    sides: the models.
    seed: the seed of the random numbers.
    """
    side, random = sides[0], module_late("numpy.random").default_rng(seed)
    only = next(filter(None, (each.only_steps for each in sides)), None)
    for name, spec in (*named_leaves(side.inputs), *named_leaves(side.graph.statics)):
        if spec.dtype and np.dtype(spec.dtype).kind not in "fV":
            raise InputError(
                f"{side.path}: its input {name or 'x'} is {spec.dtype}, for which no range is known: "
                f"compare on data, stepnet verify {sides[0].path} {sides[1].path} {option('inputs')}"
            )
        if spec.levels:
            raise InputError(
                f"{side.path}: its input {name or 'x'} is of nested sequences: compare on data, "
                f"stepnet verify {sides[0].path} {sides[1].path} {option('inputs')}"
            )

    axes = [*dict.fromkeys(["", *(spec.axis for spec in leaves(side.inputs))])]

    def sequences(spec: Spec) -> Ragged:
        """Draws sequences of the lengths `LENGTHS` for one input, of numbers that are exact in float32. The
        lengths are in another order for each axis of steps that inputs have of their own.
        """
        lengths = np.roll(LENGTHS, axes.index(spec.axis)) if only is None else [only] * len(LENGTHS)
        return Ragged.from_list([exactly(random.normal(size=(length, *spec.shape))) for length in lengths])

    def static(spec: Spec) -> Array:
        """Draws a static, a value for each sequence, of numbers that are exact in float32."""
        return exactly(random.normal(size=(len(LENGTHS), *spec.shape))).astype(spec.dtype or "float32")

    return transform(sequences, side.inputs), transform(static, side.graph.statics)


# ---- outputs -----------------------------------------------------------------------------------------------


def paired(sides: tuple[Side, Side], first: Outputs, second: Outputs) -> list[tuple[str, str]]:
    """Returns pairs of names of outputs to compare: equal names, or a single output and the only one of its
    shape.

    Raises `LayoutError` where it is not clear which outputs correspond, and for outputs of other features.

    sides: the two models, for messages.
    first, second: the outputs of each model by name.
    """
    shapes = [{name: shape_text(each) for name, each in found.items()} for found in (first, second)]
    alike = [(a, b) for a in first for b in second if shapes[0][a] == shapes[1][b]]
    if first.keys() & second.keys() and len(first) + len(second) > 2:
        names = [(name, name) for name in first if name in second]
    elif 1 in (len(first), len(second)) and len(alike) == 1:
        names = alike
    else:
        names = list[tuple[str, str]]()
    if not names or not {*names} <= {*alike}:
        texts = [
            f"{side.path} {', '.join(f'{name} {shape}'.strip() for name, shape in found.items())}"
            for side, found in zip(sides, shapes, strict=True)
        ]
        raise LayoutError(f"the models have different outputs, and cannot be compared: {'; '.join(texts)}")
    return names


def shape_text(output: Any) -> str:
    """Describes an output for messages: its features, and whether it has a value per step or per sequence."""
    if isinstance(output, Ragged):
        return f"{list(output.features)} at every step"
    return f"{list(output.shape[1:])} for each sequence"
