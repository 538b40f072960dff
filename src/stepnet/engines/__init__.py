"""The engines, and the choice between them: the first in the order asked for that does not refuse."""

from collections.abc import Sequence
from functools import cache

from stepnet.engines.base import Bound, Call, Engine, Kernel, Results
from stepnet.errors import InputError, RefusedError
from stepnet.plan import Plan

# The order of engine="auto". The interpreter is not in it: who wants the slow path says so.
AUTO = ("llvm",)

__all__ = ["AUTO", "Bound", "Call", "Engine", "Kernel", "Results", "choose", "engine_named", "engine_names"]


@cache
def engines() -> dict[str, Engine]:
    """Every engine by name; llvmlite is slow to import, so it is not until an engine is asked for."""
    from stepnet.engines.interpreter import Interpreter
    from stepnet.engines.llvm.engine import LlvmEngine

    return {engine.name: engine for engine in (LlvmEngine(), Interpreter())}


def engine_names() -> tuple[str, ...]:
    """The names that `engine=` takes, besides "auto"."""
    return tuple(engines())


def engine_named(name: str) -> Engine:
    """The engine called `name`; raises `InputError` for any other name."""
    if name not in engines():
        raise InputError(f"no engine is called {name!r}; there are {', '.join(engines())}, and 'auto'")
    return engines()[name]


def order_of(asked: str | Sequence[str]) -> tuple[str, ...]:
    """The names in the order to try."""
    if isinstance(asked, str):
        return AUTO if asked == "auto" else (asked,)
    return tuple(asked)


def choose(plan: Plan, asked: str | Sequence[str] = "auto") -> tuple[Engine, dict[str, str]]:
    """The first engine that does not refuse, and why each before it did; raises `RefusedError` if all do."""
    reasons: dict[str, str] = {}
    for name in order_of(asked):
        engine = engine_named(name)
        reason = engine.refuse(plan)
        if reason is None:
            return engine, reasons
        reasons[name] = reason
    lines = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
    raise RefusedError(f"no engine runs this net; engine=(..., 'interpret') would, slowly{lines}")
