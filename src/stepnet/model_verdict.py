"""The verdict on two whole models: both run over the same sequences, and their outputs are compared.

one.onnx     --read_model, run-->  outputs
other.keras  --read_model, run-->  outputs  -->  largest difference, beside what rounding explains

Each model runs in its own dtype, as `stepnet run` runs it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.errors import InputError, LayoutError, named
from stepnet.graph.graph import Graph
from stepnet.layout.options import option
from stepnet.layout.verify import Verdict, distance, exactly, not_finite
from stepnet.model_file import FileModel
from stepnet.net.ir import Net
from stepnet.net.tolerance import tolerance
from stepnet.ragged import Ragged
from stepnet.rnn.compose import recurrences
from stepnet.rnn.declared import with_dtypes
from stepnet.trace.step import Spec
from stepnet.values.structure import arranged, leaves, named_leaves, rebuild, transform

Array = np.ndarray
Outputs = tuple[dict[str, Any], dict[str, Any]]
"""The outputs of both sides, by name."""
LENGTHS = (1, 2, 7, 20, 33)
"""The lengths of the random sequences. None is empty: the mean of no steps is NaN in every model."""


@dataclass(frozen=True)
class Side:
    """A model to compare.

    inputs, statics: the features and dtypes of both, in the model's structures. nets: the nets of its parts.
    run: sequences and statics -> outputs. path: the name in messages.
    """

    inputs: Any
    statics: Any
    nets: tuple[Net, ...]
    run: Callable[[Any, Any], Any]
    path: str

    @classmethod
    def of(cls, source: FileModel) -> "Side":
        """The side of a model that was read from a file; raises `InputError` if its inputs are not known."""
        model, path = source.model, source.path or repr(source.model)
        parts = [model] if isinstance(model, Graph) else recurrences(model, path)

        def run(x: Any, statics: Any) -> Any:
            outputs = model(x, statics=statics)
            return outputs if isinstance(model, Graph) else outputs[0]

        if parts[0].inputs is None:
            raise InputError(f"{path}: it was made without inputs=, so it is not known what it takes")
        inputs = with_dtypes(parts[0].inputs, [array for part in parts for array in leaves(part.params)])
        return cls(inputs, parts[0].statics, tuple(part.net for part in parts), run, path)

    def outputs(self, sequences: Any, statics: Any) -> dict[str, Any]:
        """The outputs by name, for inputs that are cast to the dtypes of this model."""
        with named(self.path):
            given = leaves(arranged(sequences, self.inputs))
            specs = leaves(self.inputs)
            cast = [x.with_values(x.values.astype(spec.dtype)) for x, spec in zip(given, specs, strict=True)]
            return dict(named_leaves(self.run(rebuild(self.inputs, cast), statics)))

    def rounding(self, longest: int) -> float:
        """The error that rounding explains in the outputs, relative to max(1, |largest output|).

        It is the sum of the tolerances of the products, each in its dtype.
        """
        sizes = [size for net in self.nets for size in products(net)]
        return sum(tolerance(dtype, longest, width) for dtype, width in sizes)


@dataclass(frozen=True)
class Compared:
    """The comparison of some sequences."""

    sequences: int
    steps: int
    longest: int
    difference: float
    largest: float
    count: int
    not_finite: int
    alone: tuple[str, ...]


def verify_models(
    one: FileModel, other: FileModel, samples: Iterable[Ragged] | None = None, *, seed: int = 0
) -> Verdict:
    """The largest difference of the outputs of two models over the same sequences.

    Args:
        one: A model.
        other: Another one.
        samples: The sequences, in groups; random ones by default.
        seed: The seed of the random sequences.

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
    sides = Side.of(one), Side.of(other)
    check_inputs(*sides)
    groups = [random_inputs(sides[0], seed)] if samples is None else ((x, None) for x in samples)
    found = [compared(sides, sequences, statics) for sequences, statics in groups]
    return verdict(sides, found)


def verdict(sides: tuple[Side, Side], found: list[Compared]) -> Verdict:
    """The verdict on all sequences."""
    largest = max((each.largest for each in found), default=0.0)
    longest = max((each.longest for each in found), default=0)
    steps = sum(each.steps for each in found)
    reason = not_finite(sum(each.not_finite for each in found), sum(each.count for each in found))
    return Verdict(
        max((each.difference for each in found), default=0.0),
        largest,
        sum(each.sequences for each in found),
        steps,
        max(1.0, largest) * sum(side.rounding(longest) for side in sides),
        unverified=reason if steps else "there are no steps to compare",
        alone=found[0].alone if found else (),
        dtype=" and ".join(dict.fromkeys(dtype for side in sides for dtype in dtypes(side))),
    )


def compared(sides: tuple[Side, Side], sequences: Any, statics: Any) -> Compared:
    """The comparison of the outputs of both sides for the same sequences."""
    first, second = (side.outputs(sequences, statics) for side in sides)
    names = paired(sides, (first, second))
    pairs = [values_of(first[a], second[b], sides) for a, b in names]
    alone = [*(first.keys() - {a for a, _ in names}), *(second.keys() - {b for _, b in names})]
    finite = [np.isfinite(here) for here, _ in pairs]
    each: Ragged = leaves(sequences)[0]
    return Compared(
        len(each),
        len(each.values),
        int(each.lengths.max(initial=0)),
        max(distance(here, there) for here, there in pairs),
        max(
            float(np.abs(here[known]).max(initial=0)) for (here, _), known in zip(pairs, finite, strict=True)
        ),
        sum(known.size for known in finite),
        sum(known.size - int(known.sum()) for known in finite),
        tuple(sorted(alone)),
    )


# ---- inputs ------------------------------------------------------------------------------------------------


def check_inputs(one: Side, other: Side) -> None:
    """Raises `LayoutError` for models whose inputs differ in names or features."""
    for what, first, second in (
        ("inputs", one.inputs, other.inputs),
        ("statics", one.statics, other.statics),
    ):
        found = [
            ", ".join(sorted(f"{name} {list(spec.shape)}".strip() for name, spec in named_leaves(specs)))
            for specs in (first, second)
        ]
        if found[0] != found[1]:
            raise LayoutError(
                f"the models take different {what}, and cannot be compared: {one.path} {found[0]}, "
                f"{other.path} {found[1]}"
            )


def random_inputs(side: Side, seed: int) -> tuple[Any, Any]:
    """Random sequences and statics for a model; raises `InputError` for inputs that cannot be random."""
    random = np.random.default_rng(seed)
    for name, spec in (*named_leaves(side.inputs), *named_leaves(side.statics)):
        if spec.dtype and np.dtype(spec.dtype).kind not in "fV":
            raise InputError(
                f"{side.path}: its input {name or 'x'} is {spec.dtype}, for which no range is known: say "
                f"{option('inputs')}"
            )
        if spec.levels or spec.axis:
            raise InputError(
                f"{side.path}: its input {name or 'x'} is of nested sequences: say {option('inputs')}"
            )

    def sequences(spec: Spec) -> Ragged:
        return Ragged.from_list([exactly(random.normal(size=(length, *spec.shape))) for length in LENGTHS])

    def static(spec: Spec) -> Array:
        return exactly(random.normal(size=(len(LENGTHS), *spec.shape))).astype(spec.dtype or "float32")

    return transform(sequences, side.inputs), transform(static, side.statics)


# ---- outputs -----------------------------------------------------------------------------------------------


def paired(sides: tuple[Side, Side], outputs: Outputs) -> list[tuple[str, str]]:
    """The names of the outputs to compare: those of both sides, or the only one and the one like it.

    Raises `LayoutError` where it is not clear which outputs correspond.
    """
    first, second = outputs
    if len(first) == len(second) == 1:
        return [(next(iter(first)), next(iter(second)))]
    if first.keys() <= second.keys() or second.keys() <= first.keys():
        return [(name, name) for name in first if name in second]
    alike = [(a, b) for a in first for b in second if shape_text(first[a]) == shape_text(second[b])]
    if 1 in (len(first), len(second)) and len(alike) == 1:
        return alike
    texts = [
        f"{side.path} {', '.join(f'{name} {shape_text(each)}'.strip() for name, each in found.items())}"
        for side, found in zip(sides, outputs, strict=True)
    ]
    raise LayoutError(f"the models have different outputs, and cannot be compared: {'; '.join(texts)}")


def values_of(one: Any, other: Any, sides: tuple[Side, Side]) -> tuple[Array, Array]:
    """The values of the same output of both sides, in float64."""
    texts = [shape_text(each) for each in (one, other)]
    if texts[0] != texts[1]:
        raise LayoutError(
            f"the models have different outputs, and cannot be compared: {sides[0].path} {texts[0]}, "
            f"{sides[1].path} {texts[1]}"
        )
    arrays = [each.values if isinstance(each, Ragged) else each for each in (one, other)]
    return arrays[0].astype(np.float64), arrays[1].astype(np.float64)


def shape_text(output: Any) -> str:
    """The features of an output, and how often there is one."""
    if isinstance(output, Ragged):
        return f"{list(output.features)} at every step"
    return f"{list(output.shape[1:])} for each sequence"


# ---- rounding ----------------------------------------------------------------------------------------------


def products(net: Net) -> Iterator[tuple[str, int]]:
    """The dtype and the number of terms of each product in a net, and of its results."""
    for node in net.nodes:
        if node.operation == "recur":
            yield from products(node.recur.body)
        elif node.kind == "matmul":
            yield from ((net.type_of(left).dtype, net.type_of(left).shape[-1]) for left in node.sides[0])
    yield from ((dtype, 1) for dtype in results(net))


def results(net: Net) -> list[str]:
    """The floating dtypes of the results of a net."""
    found = [net.type_of(number).dtype for number in net.results]
    return [dtype for dtype in found if np.dtype(dtype).kind in "fV"]


def dtypes(side: Side) -> list[str]:
    """The floating dtypes of the results of a side."""
    return [dtype for net in side.nets for dtype in results(net)]
