"""Conversion of trained weights from one framework to another, with a report.

A conversion compares the functions of both layouts, finds the moves from one to the other (moves.py), and
performs them: each block is copied directly from its position in the source to that in the target, in pieces
that fit the cache. Nothing else is held in memory.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import advised, flag, instance, is_one_of, mapping, short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ConversionError, LayoutError
from stepnet.layout.arguments import FLOATS, as_arrays, as_semantics, one_dtype, size_mapping
from stepnet.layout.filling import overflow, perform
from stepnet.layout.find import find
from stepnet.layout.moves import KINDS, differences, target_sizes
from stepnet.layout.options import option
from stepnet.layout.places import Array, ParameterBlock, Region, regions
from stepnet.layout.record import Entry, Record
from stepnet.layout.registry import record as record_of
from stepnet.layout.report import Report, steps
from stepnet.layout.sizes import Shape, Sizes, shape_of
from stepnet.layout.solve import sizes_of
from stepnet.layout.unmet import projections, unmet


class RangeError(ConversionError):
    """Raised if numbers would exceed the largest one of the target's dtype."""


@dataclass(frozen=True)
class Conversion:
    """Converted weights, and the report of the conversion.

    Attributes:
        arrays: The arrays of the target, by the target framework's names.
        report: What was done, step by step; see `Report`.
    """

    arrays: dict[str, Array]
    report: Report

    def __post_init__(self) -> None:
        """Raises `InputError` unless the fields have their types."""
        mapping(self.arrays, "a conversion has arrays by name")
        instance(self.report, Report, "the report of a conversion is a Report")

    def __repr__(self) -> str:
        """The names of the arrays, and the layouts of source and target."""
        return f"Conversion({', '.join(self.arrays)}; {self.report.source} -> {self.report.target})"


@advised(to="the layout to convert to is target=", layout="the layout of the arrays is source=")
def convert(
    arrays: Mapping[str, Any],
    source: str | Record,
    target: str | Record,
    *,
    sizes: Mapping[str, int] | Sizes | None = None,
    semantics: Mapping[str, Any] | None = None,
    exact: bool = False,
    kind: str = "weights",
    dtype: str | None = None,
) -> Conversion:
    """Converts weights to the layout of another framework, with a report of every step.

    Args:
        arrays: Arrays or tensors by the source framework's own names, all of one floating dtype. A layout
            that is one vector has it as "weight_space", or under the name in its record.
        source: The name of the layout of `arrays`, such as "keras.gru"; `stepnet layouts` lists them.
        target: The name of the layout to convert to.
        sizes: "inputs", "hidden", "projected", "layers" and "directions", as far as shapes leave them open.
        semantics: The semantics that the source's layout leaves open, by field of `Semantics`. Under "target"
            the same for the target, which otherwise takes the values of the source.
        exact: Whether to refuse a conversion that is not bit-exact.
        kind: "weights"; "gradient" for gradients and moments that are linear in them; "second_moment".
        dtype: The dtype of the result: float64, float32, float16 or bfloat16; by default that of the arrays.

    Raises:
        LayoutError: For arrays that do not fit the layout, and for sizes and semantics that stay unknown.
        ConversionError: With all reasons, if the function would change; with exact=True also for rounding;
            and for numbers beyond the largest of the dtype.

    >>> weights = {"kernel": np.ones((2, 9)), "recurrent_kernel": np.ones((3, 9)), "bias": np.ones((2, 9))}
    >>> conversion = convert(weights, "keras.gru", "torch.gru")
    >>> {name: array.shape for name, array in conversion.arrays.items()}
    {'weight_ih_l0': (9, 2), 'weight_hh_l0': (9, 3), 'bias_ih_l0': (9,), 'bias_hh_l0': (9,)}
    >>> conversion.report.exact
    True
    >>> convert(weights, "keras.gru", "torch.gru", dtype="bfloat16").arrays["bias_ih_l0"].dtype.name
    'bfloat16'
    """
    if not is_one_of(kind, KINDS):
        raise LayoutError(f"kind is one of {', '.join(KINDS)}, not {short_repr(kind)}")
    if dtype is not None and not is_one_of(dtype, FLOATS):
        raise LayoutError(f"dtype is one of {', '.join(FLOATS)}, not {short_repr(dtype)}")
    weights = as_arrays(arrays)
    source, target, exact = record_of(source), record_of(target), flag(exact, "exact")
    source_dtype = one_dtype(weights)
    to_dtype = np.dtype(dtype) if dtype else source_dtype
    shapes = {name: array.shape for name, array in weights.items()}
    try:
        known_sizes = sizes_of(source, shapes, size_mapping(sizes))
    except LayoutError as error:
        raise type(error)(f"{error}{other_layer(shapes, source)}") from None
    open_fields = as_semantics(semantics)
    target_semantics = as_semantics(open_fields.pop("target", None))
    meaning = source.settled(open_fields)
    source_regions = {
        region.block: region for region in regions(source, known_sizes) if region.array in weights
    }
    to = target_sizes(known_sizes, target)
    misfits = [*projections(source, target, known_sizes), *filter(None, [target.misfit(to)])]
    if misfits:
        raise refused(source, target, kind, misfits)
    entries = [
        entry
        for entry in target.entries(to)
        if is_included(entry, target, source_regions, meaning.forget_bias)
    ]
    names = {entry.name for entry in entries}
    target_regions = {region.block: region for region in regions(target, to) if region.array in names}
    plan = differences(source, meaning, source_regions, target, target_semantics, target_regions, kind)
    refusals = list(plan.refusals)
    if source.cell == target.cell:
        refusals += unmet(plan.demands, source_regions, weights, exact)
    if refusals:
        raise refused(source, target, kind, refusals)
    new_arrays = {
        entry.name: np.empty(shape_of(entry.pattern, to, entry.layer or 0), to_dtype) for entry in entries
    }
    roundings = {
        move: perform(move, source_regions, weights, target_regions[move.target], new_arrays)
        for move in plan.moves
    }
    overflows = [
        overflow(target_regions[move.target], new_arrays) for move in plan.moves if np.isinf(roundings[move])
    ]
    if overflows:
        raise RangeError(str(refused(source, target, kind, overflows)))
    functions = meaning, plan.semantics
    assumed = source.assumed(open_fields)
    report = Report(
        source.name, target.name, known_sizes, *functions, kind, steps(roundings), target, assumed=assumed
    )
    if exact and not report.exact:
        rounded = [f"{step}, which {option('exact')} refuses" for step in report.steps if not step.exact]
        raise refused(source, target, kind, rounded)
    return Conversion(new_arrays, report)


def first_fitting(
    arrays: Mapping[str, Any], source: str | Record, targets: Iterable[str | Record], **options: Any
) -> Conversion | ConversionError:
    """Converts weights to the first of some layouts (arrangements of weights) that can express their
    function. Returns the conversion, or the refusal of the first layout if all refuse. Numbers beyond the
    dtype are refused at once, as they are in each layout.

    arrays, source: the weights by name and their layout, as for `convert`. targets: the layouts to convert
    to, at least one, in order of preference. options: the options of `convert`. Raises `LayoutError` as
    `convert` does.

    >>> weights = {"kernel": np.ones((2, 12)), "recurrent_kernel": np.ones((3, 12))}
    >>> first_fitting(weights, "keras.lstm", ["torch.gru", "torch.lstm"])
    Conversion(weight_ih_l0, weight_hh_l0; keras.lstm -> torch.lstm)
    >>> first_fitting(weights, "keras.lstm", ["torch.gru"])
    ConversionError('keras.lstm cannot become torch.gru: ...
    """
    refusals: list[ConversionError] = []
    for target in targets:
        try:
            return convert(arrays, source, target, **options)
        except RangeError as error:
            return error
        except ConversionError as error:
            refusals.append(error)
    return refusals[0]


def other_layer(shapes: Mapping[str, Shape], source: Record) -> str:
    """Returns advice for arrays that do not fit a layout, where they are one layer under a prefix, or in
    another layout; "" where that is not known.

    shapes: their shapes by name. source: the layout that was stated.
    """
    found = find(shapes)
    if len(found) != 1:
        return ""
    (match,) = found
    fits = "" if source.name in match.layouts else f"; they fit {' or '.join(match.layouts[:3])}"
    prefix = f"; remove {match.prefix!r} from the names: name.removeprefix({match.prefix!r})"
    return f"{fits}{prefix if match.prefix else ''}"


def refused(source: Record, target: Record, kind: str, reasons: Iterable[str]) -> ConversionError:
    """Returns the error for a conversion of `kind` ("weights", ...) that is refused for these reasons."""
    of_kind = "" if kind == "weights" else f" ({kind})"
    why = "; ".join(dict.fromkeys(reasons))
    return ConversionError(f"{source.name} cannot become {target.name}{of_kind}: {why}")


def is_included(
    entry: Entry, target: Record, source_regions: Mapping[ParameterBlock, Region], forget_bias: float
) -> bool:
    """Tells if the converted weights include an array of the target layout (a framework's arrangement of
    weights): a required array always, an optional one only if the source has one of the parameters in it. For
    biases, either of the two (b of the inputs, d of the memory) is enough.

    source_regions: the positions of the blocks that the source has; a block is one parameter of a gate, layer
    and direction. forget_bias: a constant of the source's cell, which needs a bias in the target if it is not
    zero.
    """
    if not entry.optional:
        return True
    has = {block.parameter for block in source_regions}
    has |= {"b", "d"} if has & {"b", "d"} or forget_bias else set()
    return bool(has & target.parameters(entry.template))
