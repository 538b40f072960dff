"""Facts about values at padding steps (after the end of a sequence), propagated from operands to results.

    lengths                         the length of each sequence
    Range(0, time)                  the index of each step
    m = Less(range, lengths)        true before the end, false in padding
    Where(m, x, 0), x * Cast(m)     x before the end, 0 in padding
    ReduceSum over the steps        the sum of the sequence's own steps, as padding adds zeros

stepnet has no padding. So an operator over all steps of a padded array is replaced by one over a sequence's
own steps, which is right if padding does not change the result. The facts prove this, however the mask is
written. An operator's rule is run a second time, on the values that its operands have in padding. `FACTS` has
further rules for operators whose result in padding follows from fewer operands. Values that are unknown in
padding are assumed to be finite, and divisors there to be non-zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.errors import ModelError, StepnetError
from stepnet.importers.call import MISFITS, Call, Rules
from stepnet.importers.facts import UNKNOWN, Behind, Counted, Fact, Kept
from stepnet.importers.placed import Placed, Unusable

Array = np.ndarray
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


def with_facts(rule: Rules, call: Call) -> list[Placed]:
    """The results of a rule for a node, with their facts."""
    made = rule(call)
    results = [made] if isinstance(made, Placed) else list(made)
    if not call.padded or all(value.is_constant and value.fact is None for value in call.present):
        return results
    open_ = [place for place, value in enumerate(results) if value.fact is None]
    arrays = at_padding(rule, call, results) if open_ else []
    for place in open_:
        special = FACTS[call.op](call, results[place]) if call.op in FACTS else None
        results[place] = special or replace(results[place], fact=arrays[place])
    return results


def at_padding(rule: Rules, call: Call, results: Sequence[Placed]) -> list[Fact]:
    """The facts about a rule's results that follow from running it on its operands' values in padding."""
    unknown: list[Fact] = [UNKNOWN] * len(results)
    operands = list[Placed | None]()
    for value in call.operands:
        array = behind(value)
        if value is not None and array is None:
            return unknown
        operands.append(None if value is None or array is None else Placed(array, value.axes, value.stated))
    try:
        made = rule(replace(call, operands=tuple(operands), padded=False))
    except (StepnetError, *MISFITS):  # the rule does not take constants, so nothing follows
        return unknown
    return [
        Behind(value.value) if value.is_constant and value.axes == like.axes else UNKNOWN
        for value, like in zip([made] if isinstance(made, Placed) else made, results, strict=True)
    ]


# ---- facts that follow from some of the operands -----------------------------------------------------------


def is_all(array: Array | None, number: float) -> bool:
    """Whether an array is known and all its elements equal a number."""
    return array is not None and array.dtype != object and bool((array == number).all())


def filled(made: Placed, number: float) -> Placed:
    """A result with the fact that it is one number in padding."""
    return replace(made, fact=Behind(np.asarray(number, made.value.dtype)))


def chosen(call: Call, made: Placed) -> Placed | None:
    """Where: the fact about the value that the condition selects in padding."""
    condition = behind(call.operand(0))
    for number, place in ((1, 1), (0, 2)):
        value = call.operand(place)
        if not is_all(condition, number):
            continue
        fact = fact_of(value)
        if isinstance(fact, Behind) or value.features == made.features:
            return replace(made, fact=fact)
    return None


def multiplied(call: Call, made: Placed) -> Placed | None:
    """Mul: 0 if one factor is 0 in padding; the fact about the other factor if one is 1."""
    values = call.present
    if any(is_all(behind(value), 0) for value in values):
        return filled(made, 0)
    others = [value for value in values if not is_all(behind(value), 1)]
    return unchanged(others, made)


def added(call: Call, made: Placed) -> Placed | None:
    """Add: the sum of two counts; -inf if one term is -inf; the fact about the other term if one is 0."""
    values = call.present
    counts = [counted(value) for value in values]
    if len(counts) == 2 and counts[0] is not None and counts[1] is not None:
        return replace(made, fact=counts[0] + counts[1])
    if any(is_all(behind(value), -np.inf) for value in values):
        return filled(made, -np.inf)
    return unchanged([value for value in values if not is_all(behind(value), 0)], made)


def subtracted(call: Call, made: Placed) -> Placed | None:
    """Sub: the difference of two counts."""
    a, b = counted(call.operand(0)), counted(call.operand(1))
    return None if a is None or b is None else replace(made, fact=a - b)


def unchanged(values: Sequence[Placed], made: Placed) -> Placed | None:
    """The result with the fact `Kept` of the single value that it equals in padding, if it has one."""
    (value,) = values if len(values) == 1 else (None,)
    same = value is not None and isinstance(value.fact, Kept) and value.features == made.features
    return replace(made, fact=value.fact) if value is not None and same else None


def divided(call: Call, made: Placed) -> Placed | None:
    """Div: 0 if the dividend is 0 in padding."""
    return filled(made, 0) if is_all(behind(call.operand(0)), 0) else None


def absorbed(number: bool) -> "Special":
    """And, Or: the result if one operand alone determines it. number: the operand that does."""

    def rule(call: Call, made: Placed) -> Placed | None:
        return filled(made, number) if any(is_all(behind(v), number) for v in call.present) else None

    return rule


def moved(call: Call, made: Placed) -> Placed | None:
    """Operators that move and repeat elements: a count stays."""
    return replace(made, fact=call.x.fact) if isinstance(call.x.fact, Counted) else None


def cast(call: Call, made: Placed) -> Placed | None:
    """Cast: a count stays in dtypes of a large range, and a state in dtypes that hold its numbers exactly."""
    dtype, fact = np.dtype(made.value.dtype), call.x.fact
    if isinstance(fact, Counted) and dtype.name in ("int32", "int64", "float32", "float64"):
        return replace(made, fact=fact)
    return replace(made, fact=fact) if isinstance(fact, Kept) and np.can_cast(fact.dtype, dtype) else None


COMPARISONS: Mapping[str, Callable[[float, float], bool | None]] = {
    "Equal": lambda low, high: False if low > 0 or high < 0 else True if low == high else None,
    "Greater": lambda low, high: True if low > 0 else False if high <= 0 else None,
    "GreaterOrEqual": lambda low, high: True if low >= 0 else False if high < 0 else None,
    "Less": lambda low, high: True if high < 0 else False if low >= 0 else None,
    "LessOrEqual": lambda low, high: True if high <= 0 else False if low > 0 else None,
}
"""The comparison of a number from `low` to `high` with 0; None if it depends on the number."""


def compared(call: Call, made: Placed) -> Placed | None:
    """Comparisons of counts: a mask of steps, which is a constant if it is uniform before the end."""
    a, b = counted(call.operand(0)), counted(call.operand(1))
    if a is None or b is None:
        return None
    before, after = (COMPARISONS[call.op](*(a - b).bounds(place)) for place in (False, True))
    if before is not None:
        made = made.with_value(np.full(made.features, before))
    return replace(made, fact=UNKNOWN if after is None else Behind(np.array(after)))


Special = Callable[[Call, Placed], Placed | None]
FACTS: Mapping[str, Special] = {
    "Add": added,
    "And": absorbed(False),
    "Cast": cast,
    "Div": divided,
    "Mul": multiplied,
    "Or": absorbed(True),
    "Sub": subtracted,
    "Where": chosen,
    **dict.fromkeys(("Expand", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"), moved),
    **dict.fromkeys(COMPARISONS, compared),
}
"""The rules for facts about a result of which not all operands are known."""


# ---- operators over all steps ------------------------------------------------------------------------------


def check_no_padding(call: Call) -> None:
    """Raises `ModelError` for an operator over steps in a model in which padding would be among them."""
    if call.padded:
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


def check_idle(call: Call, value: Placed, how: str) -> None:
    """Raises `ModelError` if the values in padding may change a reduction over steps."""
    if not call.padded:
        return
    if how not in IDLE:
        check_no_padding(call)
    what, is_idle = IDLE[how]
    array = behind(value)
    if array is None or not is_idle(array):
        raise ModelError(
            f"it is over all steps, padding included, where it is not known to have {what}: mask the steps "
            f"behind each sequence's end, as Where(Less(steps, lengths), x, {what.partition(' ')[0]}) does"
        )
