"""Checks of the numbers of a source: blocks that have no position in the target must have certain values."""

from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np

from stepnet.layout.filling import read
from stepnet.layout.moves import Demand
from stepnet.layout.places import Array, ParameterBlock, Region
from stepnet.layout.record import Record
from stepnet.layout.sizes import Sizes


def projections(source: Record, target: Record, sizes: Sizes) -> list[str]:
    """Returns the reasons, for an error, why a conversion is impossible because one side of it, `source` or
    `target`, has no projection of the outputs; empty if it is possible. A source's projection as wide as
    hidden may be left out, if it is the identity (checked later). sizes: the sizes of the source.
    """
    if target.projection and sizes.projected is None:
        return [f"{target.name} has a projection, and {source.name} has none"]
    if sizes.projected not in (None, sizes.hidden) and not target.projection:
        return [f"{source.name} has a projection to {sizes.projected}, and {target.name} has none"]
    return []


@np.errstate(invalid="ignore")  # inf - inf is NaN, which violates every demand
def unmet(
    demands: Iterable[Demand],
    regions: Mapping[ParameterBlock, Region],
    arrays: Mapping[str, Array],
    exact: bool,
) -> list[str]:
    """Returns the messages for the conditions of a conversion that the numbers of the source do not meet.

    demands: the conditions. regions, arrays: the positions of the source's blocks, and its arrays by name.
    exact: whether sums must hold exactly, not only up to rounding.
    """
    missed: dict[tuple[str, str], dict[str, str]] = {}
    for demand in demands:
        block = read(regions[demand.block], arrays)
        if demand.other is not None:
            other, negative = read(regions[demand.other], arrays), demand.must_be == "negative"
            met = np.array_equal(block, -other if negative else other, equal_nan=True)
            met = met or (not (negative or exact) and same_gradient(block, other))
        elif demand.must_be in ("the identity", "diagonal"):
            square = block.shape[0] == block.shape[1]
            required = np.diag(np.diag(block)) if demand.must_be == "diagonal" else np.eye(len(block))
            met = square and np.array_equal(block, required)
        else:
            terms = [block, *(read(regions[added], arrays) for added in demand.added)]
            met = adds_up(terms, cast(float, demand.must_be), exact)
        if not met:
            missed.setdefault((demand.reason, demand.advice), {})[demand.what] = demand.must
    return [unmet_text(reason, advice, required) for (reason, advice), required in missed.items()]


def adds_up(terms: list[Array], total: float, exact: bool) -> bool:
    """Tells if arrays have the sum `total` in all elements: exactly, or up to rounding unless `exact`. A
    single array must always be exactly `total`. terms: the arrays.
    """
    if len(terms) == 1:
        return bool((terms[0] == total).all())
    largest = [np.abs(term).max(where=np.isfinite(term), initial=0) for term in terms]
    tolerance = 0.0 if exact else sum(float(np.spacing(number)) for number in largest)
    actual: Array = np.sum([term.astype(np.float64) for term in terms], axis=0)
    return bool((np.abs(actual - total) <= tolerance).all())


def unmet_text(reason: str, advice: str, required: Mapping[str, str]) -> str:
    """Returns the message for blocks of weights that violate conditions for one reason.

    reason: a text in which {} stands for the blocks. advice: an alternative; "" for none.
    required: the value that each must have, by the block's name.

    >>> unmet_text("the target has no place for {}", "", {"p_i": "0", "p_f": "0"})
    'the target has no place for p_i and p_f, so p_i and p_f must be 0, and they are not'
    >>> unmet_text("i is 1 - f in the target", "", {"W_i": "-W_f", "R_i": "-R_f"})
    'i is 1 - f in the target, so W_i = -W_f and R_i = -R_f must hold, and they do not'
    """
    names, values = comma_list(required), list(dict.fromkeys(required.values()))
    if len(values) > 1:
        equations = comma_list(f"{blocks} = {must}" for blocks, must in required.items())
        so = f"{equations} must hold, and they do not"
    else:
        so = f"{names} must be {values[0]}, and {'it is' if len(required) == 1 else 'they are'} not"
    return f"{reason.replace('{}', names)}, so {so}{f'; {advice}' if advice else ''}"


def comma_list(items: Iterable[str]) -> str:
    """Joins words, for a message, with commas and an "and" before the last."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def same_gradient(array: Array, other: Array) -> bool:
    """Tells if two gradients that a file has for one weight are equal up to the rounding of a sum that is
    computed in two orders: up to the square root of the dtype's precision, relative to the largest element.
    NaN equals NaN.
    """
    a, b = array.astype(np.float64), other.astype(np.float64)
    largest = np.abs(a).max(where=np.isfinite(a), initial=0.0)
    tolerance = float(np.spacing(np.ones((), array.dtype))) ** 0.5 * largest
    return np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)
