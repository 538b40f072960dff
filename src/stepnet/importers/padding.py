"""Facts about values at padding steps (after the end of a sequence), propagated from operands to results.

    lengths                         the length of each sequence
    Range(0, time)                  the index of each step
    m = Less(range, lengths)        true before the end, false in padding
    Where(m, x, 0), x * Cast(m)     x before the end, 0 in padding
    ReduceSum over the steps        the sum of the sequence's own steps, as padding adds zeros

stepnet has no padding. So an operator over all steps of a padded array is replaced by one over a sequence's
own steps, which is right if padding does not change the result. The facts prove this, however the mask is
written. An operator's rule is run a second time, on the values that its operands have in padding. A `Special`
is a further rule, for an operator whose result in padding follows from fewer operands. Values that are not
known in padding are assumed to be finite, and divisors there to be non-zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.errors import ModelError, StepnetError
from stepnet.importers.facts import UNKNOWN, Behind, Counted, Fact, Kept
from stepnet.importers.placed import Placed, Unusable

Array = np.ndarray
Operands = Sequence[Placed | None]
Results = Placed | Sequence[Placed]
Rule = Callable[[Operands, bool], Results]
"""An operator: it takes its operands, and whether the model has padding."""
Special = Callable[[Sequence[Placed], Placed], Placed | None]
"""A rule for the fact about a result of which not all operands are known: it takes the operands that are not
left out, and the result without a fact; None if nothing follows.
"""
MISFITS = (ArithmeticError, LookupError, TypeError, ValueError)
"""The exceptions that NumPy raises for operands that do not fit, and a rule for a missing attribute."""
LOW = -1e9
"""The largest number that a mask may add to a score to exclude it: the exponential of the sum is 0."""


def behind(value: Placed | None) -> Array | None:
    """The value at padding steps, broadcast to its features; None if it is not known."""
    if value is None or isinstance(value.value, Unusable):
        return None
    if isinstance(value.fact, Behind):
        return np.broadcast_to(value.fact.array, value.features)
    return value.value if value.fact is None and value.is_constant else None


def counted(value: Placed | None) -> Counted | None:
    """The fact that a value is computed from step and length, or is one integer; None if it is neither."""
    if value is None or isinstance(value.fact, Counted):
        return None if value is None else value.fact  # type: ignore[return-value]
    array = behind(value) if value.fact is None else None
    if array is None or array.dtype.kind not in "iuf" or not array.size:
        return None
    number = array.flat[0]
    is_integer = np.isfinite(number) and number == np.rint(number)
    return Counted(offset=int(number)) if is_integer and bool((array == number).all()) else None


def fact_of(value: Placed) -> Fact:
    """The fact about a value; that of a constant is its array."""
    if value.fact is not None:
        return value.fact
    array = behind(value)
    return UNKNOWN if array is None else Behind(array)


def with_facts(rule: Rule, operands: Operands, special: Special | None = None) -> list[Placed]:
    """The results of an operator in a model with padding, with their facts.

    rule: the operator.
    special: the rule for facts that follow from some of the operands.
    """
    results, given = listed(rule(operands, True)), [value for value in operands if value is not None]
    if all(value.is_constant and value.fact is None for value in given):
        return results
    unstated = [place for place, value in enumerate(results) if value.fact is None]
    facts = at_padding(rule, operands, results) if unstated else []
    for place in unstated:
        known = special(given, results[place]) if special else None
        results[place] = known or replace(results[place], fact=facts[place])
    return results


def listed(results: Results) -> list[Placed]:
    """The results of a rule as a list."""
    return [results] if isinstance(results, Placed) else list(results)


def at_padding(rule: Rule, operands: Operands, results: Sequence[Placed]) -> list[Fact]:
    """The facts about a rule's results that follow from running it on its operands' values in padding."""
    unknown: list[Fact] = [UNKNOWN] * len(results)
    arrays = list[Placed | None]()
    for value in operands:
        array = behind(value)
        if value is not None and array is None:
            return unknown
        arrays.append(None if value is None or array is None else Placed(array, value.axes, value.stated))
    try:
        made = listed(rule(arrays, False))
    except (StepnetError, *MISFITS):  # the rule does not take constants, so nothing follows
        return unknown
    return [
        Behind(value.value) if value.is_constant and value.axes == like.axes else UNKNOWN
        for value, like in zip(made, results, strict=True)
    ]


# ---- facts that follow from some of the operands -----------------------------------------------------------


def is_all(array: Array | None, number: float) -> bool:
    """Whether an array is known and all its elements equal a number."""
    return array is not None and array.dtype != object and bool((array == number).all())


def filled(made: Placed, number: float) -> Placed:
    """A result with the fact that it is one number in padding."""
    return replace(made, fact=Behind(np.asarray(number, made.value.dtype)))


def chosen(operands: Sequence[Placed], made: Placed) -> Placed | None:
    """The fact about the value that a condition selects in padding."""
    condition = behind(operands[0])
    for number, place in ((1, 1), (0, 2)):
        value = operands[place]
        if not is_all(condition, number):
            continue
        fact = fact_of(value)
        if isinstance(fact, Behind) or value.features == made.features:
            return replace(made, fact=fact)
    return None


def multiplied(operands: Sequence[Placed], made: Placed) -> Placed | None:
    """The fact about a product: 0 if one factor is 0 in padding; that about the other factor if one is 1."""
    if any(is_all(behind(value), 0) for value in operands):
        return filled(made, 0)
    others = [value for value in operands if not is_all(behind(value), 1)]
    return unchanged(others, made)


def added(operands: Sequence[Placed], made: Placed) -> Placed | None:
    """The fact about a sum: that of two counts; -inf if one term is -inf; the other term's if one is 0."""
    counts = [counted(value) for value in operands]
    if len(counts) == 2 and counts[0] is not None and counts[1] is not None:
        return replace(made, fact=counts[0] + counts[1])
    if any(is_all(behind(value), -np.inf) for value in operands):
        return filled(made, -np.inf)
    return unchanged([value for value in operands if not is_all(behind(value), 0)], made)


def subtracted(operands: Sequence[Placed], made: Placed) -> Placed | None:
    """The fact about a difference of two counts."""
    a, b = counted(operands[0]), counted(operands[1])
    return None if a is None or b is None else replace(made, fact=a - b)


def unchanged(values: Sequence[Placed], made: Placed) -> Placed | None:
    """The result with the fact `Kept` of the single value that it equals in padding, if it has one."""
    (value,) = values if len(values) == 1 else (None,)
    same = value is not None and isinstance(value.fact, Kept) and value.features == made.features
    return replace(made, fact=value.fact) if value is not None and same else None


def divided(operands: Sequence[Placed], made: Placed) -> Placed | None:
    """The fact about a quotient: 0 if the dividend is 0 in padding."""
    return filled(made, 0) if is_all(behind(operands[0]), 0) else None


def absorbed(number: bool) -> Special:
    """The rule of a logical operator whose result one operand alone may determine. number: that operand."""

    def rule(operands: Sequence[Placed], made: Placed) -> Placed | None:
        return filled(made, number) if any(is_all(behind(value), number) for value in operands) else None

    return rule


def moved(operands: Sequence[Placed], made: Placed) -> Placed | None:
    """The fact about elements that are moved or repeated: a count stays."""
    fact = operands[0].fact
    return replace(made, fact=fact) if isinstance(fact, Counted) else None


def converted(operands: Sequence[Placed], made: Placed) -> Placed | None:
    """The fact about a value in another dtype: a count stays if the dtype has a large range, a state if the
    dtype holds its numbers exactly.
    """
    dtype, fact = np.dtype(made.value.dtype), operands[0].fact
    if isinstance(fact, Counted) and dtype.name in ("int32", "int64", "float32", "float64"):
        return replace(made, fact=fact)
    return replace(made, fact=fact) if isinstance(fact, Kept) and np.can_cast(fact.dtype, dtype) else None


def compared(decided: Callable[[float, float], bool | None]) -> Special:
    """The rule of a comparison of counts: a mask of steps, a constant if it is uniform before the end.

    decided: the comparison of a number from `low` to `high` with 0; None if it depends on the number.
    """

    def rule(operands: Sequence[Placed], made: Placed) -> Placed | None:
        a, b = counted(operands[0]), counted(operands[1])
        if a is None or b is None:
            return None
        before, after = (decided(*(a - b).bounds(place)) for place in (False, True))
        if before is not None:
            made = made.with_value(np.full(made.features, before))
        return replace(made, fact=UNKNOWN if after is None else Behind(np.array(after)))

    return rule


COMPARED: Mapping[str, Special] = {
    "equal": compared(lambda low, high: False if low > 0 or high < 0 else True if low == high else None),
    "greater": compared(lambda low, high: True if low > 0 else False if high <= 0 else None),
    "greater_equal": compared(lambda low, high: True if low >= 0 else False if high < 0 else None),
    "less": compared(lambda low, high: True if high < 0 else False if low >= 0 else None),
    "less_equal": compared(lambda low, high: True if high <= 0 else False if low > 0 else None),
}
"""The rule of each comparison."""


# ---- operators over all steps ------------------------------------------------------------------------------


def check_no_padding(padded: bool) -> None:
    """Raises `ModelError` for an operator over steps if padding would be among them.

    padded: whether the model has the lengths of its sequences, so that steps after their ends are padding.
    """
    if padded:
        raise ModelError(
            "it is over all steps, padding included, in a model with the lengths of its sequences: "
            "stepnet computes without padding, so the result would differ"
        )


def is_low(array: Array) -> bool:
    """Whether numbers are so low that they change neither a maximum nor a softmax."""
    if array.dtype.kind == "i":
        return bool((array == np.iinfo(array.dtype).min).all())
    return array.dtype.kind == "f" and bool((array <= LOW).all())


IDLE: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "sum": ("0", lambda array: is_all(array, 0)),
    "max": (f"{LOW:g} or less", is_low),
    "min": (
        f"{-LOW:g} or more",
        lambda array: array.dtype.kind in "if" and is_low(~array if array.dtype.kind == "i" else -array),
    ),
}
"""For each reduction, the values that do not change it: a description, and a function that checks them."""


def check_idle(value: Placed, how: str, padded: bool) -> None:
    """Raises `ModelError` if the values in padding may change a reduction over steps.

    how: the name of the reduction.
    padded: whether the model has padding.
    """
    if not padded:
        return
    if how not in IDLE:
        check_no_padding(padded)
    what, is_idle = IDLE[how]
    array = behind(value)
    if array is None or not is_idle(array):
        raise ModelError(
            f"it is over all steps, padding included, where it is not known to have {what}: mask the steps "
            f"behind each sequence's end, as Where(Less(steps, lengths), x, {what.partition(' ')[0]}) does"
        )
