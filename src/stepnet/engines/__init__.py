"""The engines, and the choice between them: the first one, in the order asked for, that does not refuse.

A schedule of several parts runs each of them on the first engine that does not refuse that part. Recurrences
that their engine runs in one piece are one part.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from stepnet.engines.apart import undivided
from stepnet.engines.base import Bound, Call, EarlyEnds, Engine, FrozenCall, Kernel, Pairs, Results, Steps
from stepnet.engines.llvm.engine import LlvmEngine
from stepnet.engines.placed import together
from stepnet.errors import InputError, RefusedError
from stepnet.plan.schedule import Schedule
from stepnet.values.arguments import shown

if TYPE_CHECKING:
    from stepnet.engines.joined import Joining

# The order of engine="auto". The interpreter is not in it: who wants the slow path says so. Nor is onednn,
# which pads sequences of different lengths.
AUTO = ("llvm",)

Order = str | tuple[str, ...]

__all__ = [
    "AUTO",
    "Bound",
    "Call",
    "EarlyEnds",
    "Engine",
    "FrozenCall",
    "Kernel",
    "Order",
    "Results",
    "Steps",
    "any_joins",
    "checked_engine",
    "choose",
    "engine_named",
    "engine_names",
    "engines_of",
    "joined",
    "joinings",
    "order_of",
    "pairs",
]


def onednn() -> Engine:
    """oneDNN's cells."""
    from stepnet.engines.onednn.engine import OneDnnEngine

    return OneDnnEngine()


def interpreter() -> Engine:
    """NumPy, node by node."""
    from stepnet.engines.interpreter import Interpreter

    return Interpreter()


ENGINES: Mapping[str, Callable[[], Engine]] = {"llvm": LlvmEngine, "onednn": onednn, "interpret": interpreter}
"""What makes each engine. That of LLVM imports its library when it first compiles."""


@cache
def engine(name: str) -> Engine:
    """The engine of a name of the table."""
    return undivided(ENGINES[name])


@cache
def pairs() -> dict[str, Pairs]:
    """What engines have for gradients of recurrences, by the names of those that have something."""

    def imported() -> dict[str, Pairs]:
        from stepnet.engines.onednn.pair import OneDnnPairs

        return {"onednn": OneDnnPairs()}

    return undivided(imported)


def engine_names() -> tuple[str, ...]:
    """The names that `engine=` takes, besides "auto"."""
    return tuple(ENGINES)


def engine_named(name: str) -> Engine:
    """The engine called `name`; raises `InputError` for any other name."""
    if name not in ENGINES:
        raise InputError(f"no engine is called {name!r}; there are {', '.join(ENGINES)}, and 'auto'")
    return engine(name)


def checked_engine(asked: Any) -> Order:
    """The engine or engines asked for, as a hashable value; raises `InputError` for unknown names."""
    if isinstance(asked, str):
        if asked != "auto":
            engine_named(asked)
        return asked
    names = tuple(cast("Sequence[Any]", asked)) if isinstance(asked, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"engine is a name, or several in the order in which to try them, of {', '.join(ENGINES)} and "
            f"'auto', not {shown(asked)}"
        )
    for name in names:
        checked_engine(name)
    return names


def order_of(asked: str | Sequence[str]) -> tuple[str, ...]:
    """The names of the engines in the order to try them."""
    names = (asked,) if isinstance(asked, str) else asked
    return tuple(engine for name in names for engine in (AUTO if name == "auto" else (name,)))


def engines_of(asked: str | Sequence[str]) -> tuple[Engine, ...]:
    """The engines in the order to try them; raises `InputError` for unknown names."""
    return tuple(map(engine_named, order_of(checked_engine(asked))))


def choose(schedule: Schedule, asked: str | Sequence[str] = "auto") -> tuple[Engine, dict[str, str]]:
    """The first engine that does not refuse, and the refusals before it; raises `RefusedError` if there is
    none.

    Of a schedule of several parts, what runs each part on the first engine that does not refuse that part.
    """
    reasons: dict[str, str] = {}
    engines = engines_of(asked)
    if len(engines) > 1 and schedule.whole is None and (several := together(schedule, engines)) is not None:
        return several, reasons
    for engine in engines:
        reason = engine.refuse(schedule)
        if reason is None:
            return engine, reasons
        reasons[engine.name] = reason
    lines = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
    raise RefusedError(f"no engine runs this net; engine=(..., 'interpret') would, slowly{lines}")


def joined(schedule: Schedule, asked: str | Sequence[str]) -> Schedule:
    """The schedule in which recurrences are joined that their engine takes in one piece."""
    parts = tuple(each.part for each in joinings(schedule, asked) if each.part is not None)
    return Schedule(schedule.traced, schedule.net, parts) if parts else schedule


def joinings(schedule: Schedule, asked: str | Sequence[str]) -> "list[Joining]":
    """What becomes of the layers of a schedule that might run in one piece."""
    engines = engines_of(asked)
    if not any_joins(asked):
        return []
    # The modules that find layers take time to import, and few engines join any.
    from stepnet.engines.joined import joinings

    return list(joinings(schedule.net, engines))


def any_joins(asked: str | Sequence[str]) -> bool:
    """Whether any of these engines runs several recurrences in one piece."""
    return any(engine.joins is not None for engine in engines_of(asked))
