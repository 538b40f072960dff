"""Gradients of recurrences on engines with native code for them.

    engine=("onednn", "llvm")      gru                onednn      forward and backward
                                   my own cell        llvm        onednn: no such cell
                                   loss of y          llvm

The gradient of a net is a net, which an engine like llvm compiles. An engine with fixed cells has a forward
and a backward function instead, and the format of the values saved between them is private. So one engine
runs a recurrence forward and backward.
"""

from typing import NamedTuple

from stepnet.engines import Order, order_of, pairs
from stepnet.engines.native_gradients import Pair
from stepnet.errors import RefusedError
from stepnet.plan.plan import Plan

NESTED = "its step has a recurrence inside that needs its memory"


class PairChoice(NamedTuple):
    """The engine of a recurrence's gradient.

    engine: its name.
    pair: its native gradient; None if the gradient is a net.
    refusals: for each engine before it, why it refuses.
    """

    engine: str
    pair: Pair | None
    refusals: dict[str, str]


def has_pairs(asked: Order) -> bool:
    """Whether a requested engine has native gradients."""
    return not pairs().keys().isdisjoint(order_of(asked))


def has_nets(asked: Order) -> bool:
    """Whether a requested engine runs gradients as nets."""
    return not set(order_of(asked)) <= pairs().keys()


def between(asked: Order) -> Order:
    """The requested engines that run gradients as nets.

    >>> between("onednn"), between(("onednn", "auto", "interpret")), between("auto")
    (('llvm',), ('llvm', 'interpret'), 'auto')
    """
    names = order_of(asked)
    if not has_pairs(asked):
        return asked
    return tuple(name for name in names if name not in pairs()) or (pairs()[names[0]].between,)


def pair_choice(plan: Plan | None, asked: Order) -> PairChoice:
    """The first requested engine that does not refuse the gradient of a recurrence.

    plan: the plan of the recurrence; None if it has inner recurrences. Raises `RefusedError` if all refuse.
    """
    refusals: dict[str, str] = {}
    for name in order_of(asked):
        if name not in pairs():
            return PairChoice(name, None, refusals)
        pair = NESTED if plan is None else pairs()[name].pair(plan)
        if not isinstance(pair, str):
            return PairChoice(name, pair, refusals)
        refusals[name] = pair
    raise refused(refusals)


def refused(refusals: dict[str, str]) -> RefusedError:
    """The error if no requested engine runs the gradient of a recurrence."""
    lines = "".join(f"\n  {name}: {reason}" for name, reason in refusals.items())
    return RefusedError(f"no engine runs the gradient of a recurrence; engine=(..., 'llvm') would{lines}")
