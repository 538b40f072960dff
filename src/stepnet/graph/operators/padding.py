"""Facts of values behind the ends of sequences: how an operator's result has them from its operands.

    lengths                         the length of each sequence
    Range(0, time)                  the number of each step
    m = Less(range, lengths)        true before the end, false behind it
    Where(m, x, 0), x * Cast(m)     x, and 0 behind
    ReduceSum over the steps        of a sequence's own: it adds zeros behind

An operator that runs over all steps of a padded array is one over a sequence's own steps if what lies behind
the end changes nothing. This holds for whoever wrote the mask and in whatever way, as far as it follows from
the rules here: a rule of an operator is run a second time, on what its operands have behind the ends, and
`FACTS` has the operators for which less is enough. What is unknown behind an end is taken to be finite, and
a divisor there not to be zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.errors import ModelError, StepnetError
from stepnet.graph.operators.call import MISFITS, Call, Rules
from stepnet.graph.operators.facts import UNKNOWN, Behind, Counted, Fact, Kept
from stepnet.graph.operators.placed import Placed, Unusable

Array = np.ndarray
LOW = -1e9
"""What a mask adds to a score that should not count: at most this, of which the exponential is 0."""


def behind(value: Placed | None) -> Array | None:
    """What a value has behind the ends of sequences; None where it is not known."""
    if value is None or isinstance(value.value, Unusable):
        return None
    if isinstance(value.fact, Behind):
        return np.broadcast_to(value.fact.array, value.features)
    return value.value if value.fact is None and value.is_constant else None


def counted(value: Placed | None) -> Counted | None:
    """What a value counts, if it counts something, or if it is one whole number."""
    if value is None or isinstance(value.fact, Counted):
        return None if value is None else value.fact  # type: ignore[return-value]
    array = behind(value) if value.fact is None else None
    if array is None or array.dtype.kind not in "iuf" or not array.size:
        return None
    number = array.flat[0]
    is_one = np.isfinite(number) and number == np.rint(number) and bool((array == number).all())
    return Counted(offset=int(number)) if is_one else None


def fact_of(value: Placed) -> Fact:
    """A value's fact, also that of a constant."""
    if value.fact is not None:
        return value.fact
    array = behind(value)
    return UNKNOWN if array is None else Behind(array)


def with_facts(rule: Rules, call: Call) -> list[Placed]:
    """What a rule makes of a node, with facts."""
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
    """What a rule makes of what its operands have behind the ends."""
    unknown: list[Fact] = [UNKNOWN] * len(results)
    operands = list[Placed | None]()
    for value in call.operands:
        array = behind(value)
        if value is not None and array is None:
            return unknown
        operands.append(None if value is None or array is None else Placed(array, value.axes, value.stated))
    try:
        made = rule(replace(call, operands=tuple(operands), padded=False))
    except (StepnetError, *MISFITS):  # the rule has none for constants, so nothing follows
        return unknown
    return [
        Behind(value.value) if value.is_constant and value.axes == like.axes else UNKNOWN
        for value, like in zip([made] if isinstance(made, Placed) else made, results, strict=True)
    ]


# ---- what follows from less than all operands --------------------------------------------------------------


def is_all(array: Array | None, number: float) -> bool:
    """Whether numbers are known, and all this one."""
    return array is not None and array.dtype != object and bool((array == number).all())


def filled(made: Placed, number: float) -> Placed:
    """A result that is one number behind the ends."""
    return replace(made, fact=Behind(np.asarray(number, made.value.dtype)))


def chosen(call: Call, made: Placed) -> Placed | None:
    """Where: the value that the condition chooses behind the ends."""
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
    """Mul: 0 where one factor is 0, and the other factor where one is 1."""
    values = call.present
    if any(is_all(behind(value), 0) for value in values):
        return filled(made, 0)
    others = [value for value in values if not is_all(behind(value), 1)]
    return unchanged(others, made)


def added(call: Call, made: Placed) -> Placed | None:
    """Add: the sum of what is counted, minus infinity if one is, and the other one if one is 0."""
    values = call.present
    counts = [counted(value) for value in values]
    if len(counts) == 2 and counts[0] is not None and counts[1] is not None:
        return replace(made, fact=counts[0] + counts[1])
    if any(is_all(behind(value), -np.inf) for value in values):
        return filled(made, -np.inf)
    return unchanged([value for value in values if not is_all(behind(value), 0)], made)


def subtracted(call: Call, made: Placed) -> Placed | None:
    """Sub: the difference of what is counted."""
    a, b = counted(call.operand(0)), counted(call.operand(1))
    return None if a is None or b is None else replace(made, fact=a - b)


def unchanged(values: Sequence[Placed], made: Placed) -> Placed | None:
    """The result with the fact of the one value that it is behind the ends."""
    (value,) = values if len(values) == 1 else (None,)
    same = value is not None and isinstance(value.fact, Kept) and value.features == made.features
    return replace(made, fact=value.fact) if value is not None and same else None


def divided(call: Call, made: Placed) -> Placed | None:
    """Div: 0 where what is divided is 0."""
    return filled(made, 0) if is_all(behind(call.operand(0)), 0) else None


def absorbed(number: bool) -> "Special":
    """And, Or: what they are by one operand alone."""

    def rule(call: Call, made: Placed) -> Placed | None:
        return filled(made, number) if any(is_all(behind(v), number) for v in call.present) else None

    return rule


def moved(call: Call, made: Placed) -> Placed | None:
    """Operators that move and repeat numbers: what is counted stays."""
    return replace(made, fact=call.x.fact) if isinstance(call.x.fact, Counted) else None


def cast(call: Call, made: Placed) -> Placed | None:
    """Cast: what is counted stays in dtypes of large numbers, and a state in those that hold its numbers."""
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
"""Whether a number compares so to 0, if it is at least `low` and at most `high`; None where that is open."""


def compared(call: Call, made: Placed) -> Placed | None:
    """Comparisons of what is counted: a mask of steps is true before the end, or false, in every call."""
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
"""What is known of a result though not all is known of its operands."""


# ---- operators over all steps ------------------------------------------------------------------------------


def check_no_padding(call: Call) -> None:
    """Raises `ModelError` for an operator over steps where padding would be among them."""
    if call.padded:
        raise ModelError(
            "it is over all steps, padding included, in a model with the lengths of its sequences: "
            "stepnet has no padding to count"
        )


def is_low(array: Array) -> bool:
    """Whether numbers are so low that a maximum and a softmax are those of other numbers."""
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
"""What must lie behind the ends for a reduction over all steps to be one over a sequence's own."""


def check_idle(call: Call, value: Placed, how: str) -> None:
    """Raises `ModelError` where what lies behind the ends of sequences would change a reduction."""
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
