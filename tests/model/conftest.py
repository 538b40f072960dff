"""Set-up of the tests of models: which generations run in machine code."""

from collections.abc import Callable
from typing import Any

import pytest

from stepnet.model.generation import compiled as compiled_generation


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call that was written in machine code so far, whether it was to its end."""
    calls, run = list[bool](), compiled_generation.run

    def spied(*arguments: Any) -> Any:
        rest = run(*arguments)
        calls.append(rest is not None)
        return rest

    monkeypatch.setattr(compiled_generation, "run", spied)
    return calls


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For each generation that was compiled, or refused, so far: the reason why Python is needed, or ""."""
    found, of = list[str](), compiled_generation.Wired.of

    def spied(*arguments: Any) -> Any:
        wired = of(*arguments)
        found.append(wired if isinstance(wired, str) else "")
        return wired

    monkeypatch.setattr(compiled_generation.Wired, "of", spied)
    return found


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a function with Python between two steps of a generation: one_by_one(function, *arguments)."""

    def run(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(compiled_generation.Wired, "of", lambda *_: "a test")
            return function(*arguments, **options)

    return run
