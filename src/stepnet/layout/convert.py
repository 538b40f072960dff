"""Trained weights of one framework as those of another, and what was done to them.

A conversion reads what both sides parametrise, finds the moves that take one to the other (moves.py), and
does them: each block straight from its place in the source to its place in the target, in pieces that fit
the cache. Nothing else is held in memory.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np

from stepnet.arguments import array_of, flag, instance, is_one_of, is_tensor, mapping, shown
from stepnet.errors import ConversionError, LayoutError
from stepnet.layout import registry
from stepnet.layout.moves import KINDS, Demand, Move, differences, target_sizes
from stepnet.layout.places import Array, Block, Region, regions
from stepnet.layout.record import Entry, Record
from stepnet.layout.report import Report, steps
from stepnet.layout.sizes import Shape, Sizes, shape_of
from stepnet.layout.solve import told

FLOATS = ("float16", "bfloat16", "float32", "float64")
TILE = 256  # numbers along each side of a piece that is transposed: two of these fit the second cache
GAP = 16  # numbers between the rows of a piece that is held


class RangeError(ConversionError):
    """Numbers would be beyond the largest that the target's dtype has."""


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
        mapping(self.arrays, "a conversion has arrays by name")
        instance(self.report, Report, "the report of a conversion is a Report")

    def __repr__(self) -> str:
        return f"Conversion({', '.join(self.arrays)}; {self.report.source} -> {self.report.target})"


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
    """Weights in the layout of another framework, with a report of every step.

    Args:
        arrays: Arrays or tensors by the source framework's own names, all of one floating dtype. A layout
            that is one vector has it as "weight_space", or under the name in its record.
        source: The name of the layout of `arrays`, such as "keras.gru"; `stepnet layouts` lists them.
        target: The name of the layout to convert to.
        sizes: "inputs", "hidden", "projected", "layers" and "directions", as far as shapes leave them open.
        semantics: What the source's layout leaves open, by field of `Semantics`. Under "target" the same for
            the target, which otherwise takes the values of the source.
        exact: Whether to refuse what is not bit-exact.
        kind: "weights"; "gradient" for gradients and moments that are linear in them; "second_moment".
        dtype: The dtype of the result: float64, float32, float16 or bfloat16; by default that of the arrays.

    Raises:
        LayoutError: For arrays that do not fit the layout, and for sizes and semantics that are left open.
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
        raise LayoutError(f"kind is one of {', '.join(KINDS)}, not {shown(kind)}")
    if dtype is not None and not is_one_of(dtype, FLOATS):
        raise LayoutError(f"dtype is one of {', '.join(FLOATS)}, not {shown(dtype)}")
    source, target, exact = registry.record(source), registry.record(target), flag(exact, "exact")
    given = given_arrays(arrays)
    own = one_dtype(given)
    to_dtype = np.dtype(dtype) if dtype else own
    found = told(source, {name: array.shape for name, array in given.items()}, size_mapping(sizes))
    open_fields = given_semantics(semantics)
    asked = given_semantics(open_fields.pop("target", None))
    meaning = source.settled(open_fields)
    here = {region.block: region for region in regions(source, found) if region.array in given}
    to = target_sizes(found, target)
    misfits = [*projections(source, target, found), *filter(None, [target.misfit(to)])]
    if misfits:
        raise refused(source, target, kind, misfits)
    entries = [entry for entry in target.entries(to) if wanted(entry, target, here, meaning.forget_bias)]
    names = {entry.name for entry in entries}
    there = {region.block: region for region in regions(target, to) if region.array in names}
    plan = differences(source, meaning, here, target, asked, there, kind)
    refusals = list(plan.refusals)
    if source.cell == target.cell:
        refusals += unmet(plan.demands, here, given, exact)
    if refusals:
        raise refused(source, target, kind, refusals)
    made = {
        entry.name: np.empty(shape_of(entry.pattern, to, entry.layer or 0), to_dtype) for entry in entries
    }
    roundings = {move: done(move, here, given, there[move.target], made) for move in plan.moves}
    overflows = [overflow(there[move.target], made) for move in plan.moves if np.isinf(roundings[move])]
    if overflows:
        raise RangeError(str(refused(source, target, kind, overflows)))
    functions = meaning, plan.semantics
    assumed = source.assumed(open_fields)
    report = Report(
        source.name, target.name, found, *functions, kind, steps(roundings), target, assumed=assumed
    )
    if exact and not report.exact:
        rounded = [f"{step}, and exact=True" for step in report.steps if not step.exact]
        raise refused(source, target, kind, rounded)
    return Conversion(made, report)


def refused(source: Record, target: Record, kind: str, reasons: Iterable[str]) -> ConversionError:
    """The error with all reasons, each once."""
    what = "" if kind == "weights" else f" ({kind})"
    why = "; ".join(dict.fromkeys(reasons))
    return ConversionError(f"{source.name} cannot become {target.name}{what}: {why}")


# ---- what is given -----------------------------------------------------------------------------------------


def given_arrays(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """A caller's arrays and tensors by name as NumPy's."""
    named = mapping(arrays, "weights are arrays by name, as a state dict has them")
    return {name: as_array(name, value) for name, value in named.items()}


def given_semantics(semantics: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a caller says of semantics, by field."""
    return {} if semantics is None else dict(mapping(semantics, "semantics are values by field"))


def as_array(name: str, value: Any) -> Array:
    """An array or tensor as a NumPy array in the machine's byte order, not copied unless it has to be."""
    if is_tensor(value):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            import torch

            value = value.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    array = array_of(value, name)
    if array.dtype.name not in FLOATS:
        floats = ", ".join(FLOATS)
        raise LayoutError(f"{name} holds {array.dtype.name}; weights are one of {floats}: cast them")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def one_dtype(arrays: Mapping[str, Array]) -> np.dtype[Any]:
    """The dtype of all arrays; raises `LayoutError` for none and for several."""
    dtypes = {array.dtype: name for name, array in arrays.items()}
    if len(dtypes) > 1:
        held = ", ".join(f"{name} is {dtype.name}" for dtype, name in dtypes.items())
        raise LayoutError(f"the arrays have several dtypes ({held}): cast them to one")
    if not dtypes:
        raise LayoutError("no arrays are given")
    return next(iter(dtypes))


def size_mapping(sizes: Mapping[str, int] | Sizes | None) -> Mapping[str, int | None]:
    """Sizes by name."""
    if sizes is None:
        return {}
    return vars(sizes) if isinstance(sizes, Sizes) else mapping(sizes, "sizes are whole numbers by name")


def wanted(entry: Entry, target: Record, held: Mapping[Block, Region], forget_bias: float) -> bool:
    """Whether the target gets an array: one that may be missing only for what the source has."""
    if not entry.optional:
        return True
    has = {block.parameter for block in held}
    has |= {"b", "d"} if has & {"b", "d"} or forget_bias else set()
    return bool(has & target.parameters(entry.template))


def projections(source: Record, target: Record, sizes: Sizes) -> list[str]:
    """Why the one side's projection does not fit the other."""
    if target.projection and sizes.projected is None:
        return [f"{target.name} has a projection, and {source.name} has none"]
    if sizes.projected not in (None, sizes.hidden) and not target.projection:
        return [f"{source.name} has a projection to {sizes.projected}, and {target.name} has none"]
    return []


def unmet(
    demands: Iterable[Demand], regions: Mapping[Block, Region], arrays: Mapping[str, Array], exact: bool
) -> list[str]:
    """The reasons of those demands that the numbers do not meet."""
    missed: dict[tuple[str, str], dict[str, str]] = {}
    for demand in demands:
        block = read(regions[demand.block], arrays)
        if demand.other is not None:
            other, negative = read(regions[demand.other], arrays), demand.must_be == "negative"
            met = np.array_equal(block, -other if negative else other, equal_nan=True)
            met = met or (not (negative or exact) and same_gradient(block, other))
        elif demand.must_be in ("the identity", "diagonal"):
            square = block.shape[0] == block.shape[1]
            wanted = np.diag(np.diag(block)) if demand.must_be == "diagonal" else np.eye(len(block))
            met = square and np.array_equal(block, wanted)
        else:
            terms = [block, *(read(regions[added], arrays) for added in demand.added)]
            met = adds_up(terms, cast(float, demand.must_be), exact)
        if not met:
            missed.setdefault((demand.reason, demand.advice), {})[demand.what] = demand.must
    return [unmet_text(reason, advice, musts) for (reason, advice), musts in missed.items()]


@np.errstate(invalid="ignore")  # infinities that cancel out add up to nothing
def adds_up(terms: list[Array], total: float, exact: bool) -> bool:
    """Whether numbers have a sum, or `exact` is not asked for and rounding alone keeps them from it."""
    if len(terms) == 1:
        return bool((terms[0] == total).all())
    largest = [np.abs(term).max(where=np.isfinite(term), initial=0) for term in terms]
    away = 0.0 if exact else sum(float(np.spacing(number)) for number in largest)
    found: Array = np.sum([term.astype(np.float64) for term in terms], axis=0)
    return bool((np.abs(found - total) <= away).all())


def unmet_text(reason: str, advice: str, musts: Mapping[str, str]) -> str:
    """A reason, said once for all that is not as the conversion asks.

    >>> unmet_text("the target has no place for {}", "", {"p_i": "0", "p_f": "0"})
    'the target has no place for p_i and p_f, so p_i and p_f are asked to be 0, and they are not'
    >>> unmet_text("i is 1 - f in the target", "", {"W_i": "-W_f", "R_i": "-R_f"})
    'i is 1 - f in the target, so W_i = -W_f and R_i = -R_f are asked for, and they do not hold'
    """
    names, values = listed(musts), list(dict.fromkeys(musts.values()))
    if len(values) > 1:
        wanted = listed(f"{what} = {must}" for what, must in musts.items())
        so = f"{wanted} are asked for, and they do not hold"
    else:
        asked, are = ("is", "it is") if len(musts) == 1 else ("are", "they are")
        so = f"{names} {asked} asked to be {values[0]}, and {are} not"
    return f"{reason.replace('{}', names)}, so {so}{f'; {advice}' if advice else ''}"


def listed(words: Iterable[str]) -> str:
    """Words with commas, and an "and" before the last."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def same_gradient(one: Array, other: Array) -> bool:
    """Whether numbers are equal but for what rounding makes of one sum that is added up in two orders."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    largest = np.abs(a).max(where=np.isfinite(a), initial=0.0)
    away = float(np.spacing(np.ones((), one.dtype))) ** 0.5 * largest
    return np.allclose(a, b, rtol=0, atol=away, equal_nan=True)


def address(array: Array) -> int:
    """Where the first number of an array lies in memory."""
    return array.__array_interface__["data"][0]


def overflow(region: Region, made: Mapping[str, Array]) -> str:
    """Where a number became infinity that was none, in words."""
    array = made[region.array]
    view = region.view(array)
    index = np.unravel_index(int(np.argmax(np.isinf(view))), view.shape)
    steps = zip(index, view.strides, strict=True)
    away = address(view) + sum(int(number) * stride for number, stride in steps) - address(array)
    place = [int(number) for number in np.unravel_index(away // array.itemsize, array.shape)]
    largest = float(cast(Any, ml_dtypes.finfo(array.dtype)).max)
    return (
        f"{region.array}{place} ({region.block}) would be beyond the largest {array.dtype.name}, "
        f"{largest:.6g}: convert to a wider dtype (dtype='float32', --dtype float32)"
    )


# ---- the moving --------------------------------------------------------------------------------------------


def read(region: Region, arrays: Mapping[str, Array]) -> Array:
    """A block of the source, in its own axes."""
    view = region.view(arrays[region.array])
    return view.reshape(view.shape[::-1]) if region.raw and view.ndim == 2 else view


@np.errstate(over="ignore", invalid="ignore")  # what became infinity is told by the rounding, and refused
def done(
    move: Move,
    regions: Mapping[Block, Region],
    arrays: Mapping[str, Array],
    target: Region,
    made: Mapping[str, Array],
) -> float:
    """The largest rounding that a move made, after it is made; infinity where a number became that."""
    place = target.view(made[target.array])
    if move.kind == "filled":
        place[...] = number = np.float64(move.constant).astype(place.dtype)
        return abs(float(number) - move.constant)
    if move.kind == "summed":
        blocks = [(read(regions[block], arrays), sign) for block, sign in move.terms]
        place[...], rounding = summed(blocks, move.constant, place.dtype)
        return rounding
    block, sign = move.terms[0]
    region = regions[block]
    source = region.view(arrays[region.array])
    if source.shape == place.shape:
        return copy(place, source, sign)
    rows = max(1, TILE * TILE // place.shape[1])
    rounding = 0.0
    for row in range(0, place.shape[0], rows):
        piece = place[row : row + rows]
        rounding = max(rounding, copy(piece, reshaped(source, place.shape, row, len(piece)), sign))
    return rounding


def summed(blocks: list[tuple[Array, int]], constant: float, dtype: np.dtype[Any]) -> tuple[Array, float]:
    """A sum in float64 rounded once, and the largest rounding made."""
    terms = [block.astype(np.float64) * sign for block, sign in blocks]
    terms = [term for term in terms if term.any()] or terms[:1]  # -0.0 + 0.0 is 0.0: zeros are left out
    if constant:
        terms.append(np.full_like(terms[0], constant))
    total, lost = terms[0], np.zeros_like(terms[0])
    for term in terms[1:]:
        total, error = two_sum(total, term)
        lost += error
    lost[~np.isfinite(lost)] = 0  # beside an infinite total
    if len(terms) > 2:
        total, lost = two_sum(total, lost)
    rounded = nearest(total, lost, dtype)
    away = np.abs((rounded.astype(np.float64) - total) - lost)
    away[np.isinf(total) & np.logical_and.reduce([np.isfinite(term) for term in terms])] = np.inf
    return rounded, float(np.nanmax(away, initial=0.0))


def nearest(total: Array, lost: Array, dtype: np.dtype[Any]) -> Array:
    """The numbers of a dtype nearest to total + lost, which is less than half the last place of total."""
    near = total.astype(dtype)
    if dtype == np.float64:
        return near
    exactly = near.astype(np.float64)
    away = total - exactly
    beside = np.nextafter(near, np.copysign(np.inf, away).astype(dtype))
    half = np.abs(beside.astype(np.float64) - exactly) / 2
    return np.where((np.abs(away) - half) + np.copysign(1, away) * lost > 0, beside, near)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """A sum, and exactly what rounding took from it.

    D. E. Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B.
    """
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def reshaped(array: Array, shape: Shape, start: int, count: int) -> Array:
    """So many rows of a matrix in another shape: no more of it is copied than they need."""
    first, last = start * shape[1], (start + count) * shape[1]
    width = array.shape[1]
    top, bottom = first // width, -(-last // width)
    numbers = array[top:bottom].reshape(-1)[first - top * width : last - top * width]
    return numbers.reshape(count, shape[1])


def cast_into(place: Array, block: Array, sign: int) -> float:
    """Writes a block, negated or not, to its place of another dtype; gives the largest rounding."""
    rounding = 0.0
    rows = max(1, TILE * TILE // max(1, math.prod(place.shape[1:])))
    for row in range(0, len(place), rows):
        exactly = block[row : row + rows].astype(np.float64) * sign
        piece = place[row : row + rows]
        piece[...] = exactly.astype(place.dtype)
        away = np.abs(piece.astype(np.float64) - exactly)
        away[np.isinf(exactly)] = 0
        rounding = max(rounding, float(np.nanmax(away, initial=0.0)))
    return rounding


def copy(place: Array, block: Array, sign: int) -> float:
    """Writes a block, negated or not, to its place; gives the largest rounding, 0 where the dtype stays.

    A piece is read and written row by row, and turned in between: columns of widths that are powers of two
    fall on the same lines of a cache, but for the gap behind each row of what holds the piece.
    """
    if place.dtype != block.dtype:
        return cast_into(place, block, sign)
    change = np.negative if sign < 0 else np.positive
    if place.ndim < 2 or runs_along(place) == runs_along(block):
        change(block, out=place)
        return 0.0
    if runs_along(place) == 0:
        place, block = place.T, block.T
    rows, columns = place.shape
    held = np.empty((TILE, TILE + GAP), place.dtype)
    for row in range(0, rows, TILE):
        for column in range(0, columns, TILE):
            piece = slice(row, row + TILE), slice(column, column + TILE)
            turned = block[piece].T
            part = held[: turned.shape[0], : turned.shape[1]]
            change(turned, out=part)
            place[piece] = part.T
    return 0.0


def runs_along(array: Array) -> int:
    """The axis along which neighbours in memory lie."""
    return int(np.argmin(np.abs(array.strides)))
