"""Propagates facts about values at padding steps (after the end of a sequence) from operands to results.

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
from stepnet.importers.broadcasting import has_keys, without_facts_of_queries
from stepnet.importers.facts import UNKNOWN, ArrayInPadding, Counted, Fact, StateInPadding
from stepnet.importers.placed import Placed, Unusable

Array = np.ndarray
Operands = Sequence[Placed | None]
Results = Placed | Sequence[Placed]
Rule = Callable[[Operands, bool], Results]
"""An operator: it takes its operands, and whether the model has padding."""
Special = Callable[[Sequence[Placed], Placed], Placed | None]
"""Finds what is known of a result at padding steps if only some operands are known there. It takes the
operands that are not left out, and the result without a fact; it returns the result with a fact, or None if
nothing follows.
"""
MISFITS = (ArithmeticError, LookupError, TypeError, ValueError)
"""The exceptions that NumPy raises for operands that do not fit, and a rule for a missing attribute."""
LOW = -1e9
"""The largest number that a mask may add to a score to exclude it: the exponential of the sum is 0."""


def padding_values(value: Placed | None) -> Array | None:
    """Returns the numbers that a value is known to have at padding steps (after a sequence's end), broadcast
    to its features; None if they are not known.
    """
    if value is None or isinstance(value.value, Unusable):
        return None
    if isinstance(value.fact, ArrayInPadding):
        return np.broadcast_to(value.fact.array, value.features)
    return value.value if value.fact is None and value.is_constant else None


def counted(value: Placed | None) -> Counted | None:
    """Returns what is known of a value at padding steps (after the end), if it is known to be a sum of
    multiples of step index and length, and an offset (`Counted`); None if this is not known.

    A value that is known to be one integer there counts as such a sum with an offset alone.
    """
    if value is None or isinstance(value.fact, Counted):
        return None if value is None else value.fact  # type: ignore[return-value]
    array = padding_values(value) if value.fact is None else None
    if array is None or array.dtype.kind not in "iuf" or not array.size:
        return None
    number = array.flat[0]
    is_integer = np.isfinite(number) and number == np.rint(number)
    return Counted(offset=int(number)) if is_integer and bool((array == number).all()) else None


def fact_of(value: Placed) -> Fact:
    """Returns what is known of a value at padding steps (after a sequence's end).

    For a constant, this is that it has the same numbers there.
    """
    if value.fact is not None:
        return value.fact
    array = padding_values(value)
    return UNKNOWN if array is None else ArrayInPadding(array)


def with_facts(rule: Rule, operands: Operands, special: Special | None = None) -> list[Placed]:
    """Runs an operator in a model with padding; returns the results with facts about their values at padding
    steps (steps after a sequence's end). Results of constants alone, and results that have a fact already,
    are unchanged. rule: the operator. special: finds the fact of a result if only some operands have facts.
    """
    results = as_list(rule(operands, True))
    if any(map(has_keys, results)):
        operands = without_facts_of_queries(operands)
    operand_values = [value for value in operands if value is not None]
    if all(value.is_constant and value.fact is None for value in operand_values):
        return results
    unstated = [index for index, value in enumerate(results) if value.fact is None]
    facts = at_padding(rule, operands, results) if unstated else []
    if not any(map(has_keys, results)) and any(map(has_keys, operand_values)):
        return results  # facts about keys say nothing about queries
    for index in unstated:
        known = special(operand_values, results[index]) if special else None
        results[index] = known or replace(results[index], fact=facts[index])
    return results


def as_list(results: Results) -> list[Placed]:
    """Returns the results of an operator, one or several, as a list."""
    return [results] if isinstance(results, Placed) else list(results)


def at_padding(rule: Rule, operands: Operands, results: Sequence[Placed]) -> list[Fact]:
    """Finds what is known of results at padding steps, by running the operator on the operands' values there.

    Padding steps are those after a sequence's end. rule: the operator. results: its results, whose axes the
    values must have. Returns a fact for each result: `ArrayInPadding` (a known array) if all operands are
    known at padding steps and the operator takes constants, else `UNKNOWN`.
    """
    unknown: list[Fact] = [UNKNOWN] * len(results)
    arrays = list[Placed | None]()
    for value in operands:
        array = padding_values(value)
        if value is not None and array is None:
            return unknown
        arrays.append(None if value is None or array is None else Placed(array, value.axes, value.stated))
    try:
        values = as_list(rule(arrays, False))
    except (StepnetError, *MISFITS):  # the rule does not take constants, so nothing follows
        return unknown
    return [
        ArrayInPadding(value.value) if value.is_constant and value.axes == like.axes else UNKNOWN
        for value, like in zip(values, results, strict=True)
    ]


# ---- facts that follow from some of the operands -----------------------------------------------------------


def is_all(array: Array | None, number: float) -> bool:
    """Tells whether an array is known (not None), has no symbolic sizes, and is `number` everywhere."""
    return array is not None and array.dtype != object and bool((array == number).all())


def filled(result: Placed, number: float) -> Placed:
    """Returns a result with the fact that it equals one number at padding steps (after a sequence's end)."""
    return replace(result, fact=ArrayInPadding(np.asarray(number, result.value.dtype)))


def chosen(operands: Sequence[Placed], result: Placed) -> Placed | None:
    """Finds what is known of where(condition, a, b) at padding steps, from the operand that is selected
    there.

    Padding steps are those after a sequence's end. operands: condition, a and b. result: the result without a
    fact. Returns it with the fact of this operand as its `fact`; None if the condition is not known or not
    uniform there.
    """
    condition = padding_values(operands[0])
    for number, index in ((1, 1), (0, 2)):
        value = operands[index]
        if not is_all(condition, number):
            continue
        fact = fact_of(value)
        if isinstance(fact, ArrayInPadding) or value.features == result.features:
            return replace(result, fact=fact)
    return None


def multiplied(operands: Sequence[Placed], result: Placed) -> Placed | None:
    """Finds what is known of a product at padding steps (after a sequence's end).

    It is 0 if one factor is 0 there, and what is known of the other factor if one is 1. result: the product
    without a fact. Returns it with this as its `fact`; None if nothing is known.
    """
    if any(is_all(padding_values(value), 0) for value in operands):
        return filled(result, 0)
    others = [value for value in operands if not is_all(padding_values(value), 1)]
    return unchanged(others, result)


def added(operands: Sequence[Placed], result: Placed) -> Placed | None:
    """Finds what is known of a sum at padding steps (after a sequence's end).

    It is the sum of what is known of two values computed from step index and length, -inf if one term is -inf
    there, and what is known of the other term if one is 0. result: the sum without a fact. Returns the sum
    with this `fact`, or None if nothing is known.
    """
    counts = [counted(value) for value in operands]
    if len(counts) == 2 and counts[0] is not None and counts[1] is not None:
        return replace(result, fact=counts[0] + counts[1])
    if any(is_all(padding_values(value), -np.inf) for value in operands):
        return filled(result, -np.inf)
    return unchanged([value for value in operands if not is_all(padding_values(value), 0)], result)


def subtracted(operands: Sequence[Placed], result: Placed) -> Placed | None:
    """Finds what is known of a difference at padding steps (after the end), from step indices and lengths.

    result: the difference without a fact. Returns it with this as its `fact` (`Counted`); None unless both
    operands are computed from step index and length.
    """
    a, b = counted(operands[0]), counted(operands[1])
    return None if a is None or b is None else replace(result, fact=a - b)


def unchanged(values: Sequence[Placed], result: Placed) -> Placed | None:
    """Finds that an operator returns a recurrence's state unchanged at padding steps: `values` has a single
    operand, and the fact about it is that it equals the state there (`StateInPadding`). Returns `result` with
    this fact; None if there are several operands, or if the fact is another one.
    """
    (value,) = values if len(values) == 1 else (None,)
    same = value is not None and isinstance(value.fact, StateInPadding) and value.features == result.features
    return replace(result, fact=value.fact) if value is not None and same else None


def divided(operands: Sequence[Placed], result: Placed) -> Placed | None:
    """Finds what is known of a quotient at padding steps (after the end): it is 0 if the dividend is 0 there.
    result: the quotient without a fact. Returns it with this as its `fact`; None if nothing is known.
    """
    return filled(result, 0) if is_all(padding_values(operands[0]), 0) else None


def absorbed(number: bool) -> Special:
    """Makes the function that finds what is known of an And or Or in padding (after the end), where one
    operand may decide.

    number: the operand's number that determines the result: False of And, True of Or.
    """

    def rule(operands: Sequence[Placed], result: Placed) -> Placed | None:
        """Returns `result` with the fact that it is `number` at padding steps (after the end of a sequence),
        if one of the operands is; else None.
        """
        return (
            filled(result, number)
            if any(is_all(padding_values(value), number) for value in operands)
            else None
        )

    return rule


def moved(operands: Sequence[Placed], result: Placed) -> Placed | None:
    """Carries what is known of padding (the steps after a sequence's end) through an operator that moves or
    repeats elements: if the first operand is computed from step index and length (`Counted`), so is the
    result. Returns `result` with that fact of the operand; None if the operand has no such fact.
    """
    fact = operands[0].fact
    return replace(result, fact=fact) if isinstance(fact, Counted) else None


def converted(operands: Sequence[Placed], result: Placed) -> Placed | None:
    """Finds what is known in padding (after a sequence's end) of a value that is cast to the dtype of
    `result`.

    It keeps the fact that the value is computed from step and length in dtypes of a large range, and the fact
    that it is a recurrence's state in dtypes that hold all its numbers exactly. Returns `result` with this as
    its `fact`, or None.
    """
    dtype, fact = np.dtype(result.value.dtype), operands[0].fact
    if isinstance(fact, Counted) and dtype.name in ("int32", "int64", "float32", "float64"):
        return replace(result, fact=fact)
    return (
        replace(result, fact=fact)
        if isinstance(fact, StateInPadding) and np.can_cast(fact.dtype, dtype)
        else None
    )


def compared(decided: Callable[[float, float], bool | None]) -> Special:
    """Makes the function that finds what is known of a comparison of two values computed from step index and
    length (`Counted`). It compares the range of their difference with 0. The result becomes a constant if it
    is the same at all steps of sequences; its fact is `ArrayInPadding`, a known array, if it is the same at
    all padding steps, else `UNKNOWN`. decided: the comparison; it takes the least and largest difference and
    returns True, False, or None if it depends on the number.
    """

    def rule(operands: Sequence[Placed], result: Placed) -> Placed | None:
        """Compares two values by their least and largest difference, before the end and in padding; returns
        `result` with the fact of its value in padding, or None if an operand is not computed from step index
        and length.
        """
        a, b = counted(operands[0]), counted(operands[1])
        if a is None or b is None:
            return None
        before, after = (decided(*(a - b).bounds(index)) for index in (False, True))
        if before is not None:
            result = result.with_value(np.full(result.features, before))
        return replace(result, fact=UNKNOWN if after is None else ArrayInPadding(np.array(after)))

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
    """Raises `ModelError` for an operator over all steps if the model has padding, which it would read."""
    if padded:
        raise ModelError(
            "it is over all steps, padding included, in a model with the lengths of its sequences: "
            "stepnet computes without padding, so the result would differ"
        )


def is_low(array: Array) -> bool:
    """Tells whether numbers are so low, as a mask's -inf, that they change no maximum and no softmax."""
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
    """Raises `ModelError` if a reduction over steps may be changed by padding (numbers after a sequence's
    end): if padding is not known to have the numbers that leave it unchanged (listed in `IDLE`), or if no
    numbers do.

    value: the operand that is reduced. how: the name of the reduction, such as "sum". padded: whether the
    model has padding.
    """
    if not padded:
        return
    if how not in IDLE:
        check_no_padding(padded)
    what, is_idle = IDLE[how]
    array = padding_values(value)
    if array is None or not is_idle(array):
        raise ModelError(
            f"it is over all steps, padding included, where it is not known to have {what}: mask the steps "
            f"behind each sequence's end, as Where(Less(steps, lengths), x, {what.partition(' ')[0]}) does"
        )
