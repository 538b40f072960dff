"""The garbage collector is paused while nets are compiled, and is as it was afterwards."""

import gc
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.compiler.targets.cpu import engine
from stepnet.compiler.values.collector import paused_collector
from stepnet.model.reading import Reading


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_is_paused_inside_and_enabled_afterwards() -> None:
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_pause_ends_without_a_collection() -> None:
    """One that is due comes when the next object is made: after a first call, and not within."""
    collections = list[str]()

    def seen(phase: str, _: dict[str, int]) -> None:
        collections.append(phase)

    gc.collect()
    gc.callbacks.append(seen)
    try:
        with paused_collector():
            kept = [[each] for each in range(10 * gc.get_threshold()[0])]
        within = len(collections)
        kept.append([])
    finally:
        gc.callbacks.remove(seen)
    assert within == 0
    assert collections[:1] == ["start"]


def test_a_pause_that_is_not_entered_in_full_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by an interrupt, behind which there is no exit."""
    real = gc.disable

    def interrupted() -> None:
        real()
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, "disable", interrupted)
    with pytest.raises(KeyboardInterrupt), paused_collector():
        pass
    assert gc.isenabled()


def test_an_exception_ends_the_pause() -> None:
    with pytest.raises(KeyboardInterrupt), paused_collector():
        raise KeyboardInterrupt
    assert gc.isenabled()


def test_a_collector_that_the_user_disabled_stays_so() -> None:
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_it_is_enabled_in_a_child_forked_meanwhile() -> None:
    with paused_collector():
        child = os.fork()
        if not child:
            os._exit(int(gc.isenabled()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_nets_are_compiled_with_it_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[bool]()
    original = engine.compiled

    def compiled(*arguments: object) -> object:
        seen.append(gc.isenabled())
        return original(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(engine, "compiled", compiled)
    rnn = sn.RNN(lambda x, h, W: (h + x * W + 0.8125, h - x), np.ones(3, "float32"), memory=3)
    rnn(np.ones((1, 2, 3), "float32"))
    assert seen == [False]
    assert gc.isenabled()


def test_a_first_call_runs_with_it_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to its end, and a second one does not."""
    seen = list[bool]()
    original = Reading.answer

    def answer(reading: Any, bound: Any) -> Any:
        seen.append(gc.isenabled())
        return original(reading, bound)

    monkeypatch.setattr(Reading, "answer", answer)
    rnn = sn.RNN(lambda x, h, W: (h + x * W + 0.9375, h - x), np.ones(3, "float32"), memory=3)
    for _ in range(2):
        rnn(np.ones((1, 2, 3), "float32"))
    assert seen == [False, True]


@pytest.mark.parametrize(
    ("imports", "frozen", "is_old"), [(True, 0, True), (False, 0, False), (True, 1, False)]
)
def test_objects_of_imports_are_old_at_the_end(
    monkeypatch: pytest.MonkeyPatch, imports: bool, frozen: int, is_old: bool
) -> None:
    """A pause without imports leaves objects young, and what the program has frozen stays so."""
    was_frozen = gc.get_freeze_count()  # as the whole run of the tests has it
    gc.unfreeze()
    if frozen:
        gc.freeze()
    try:
        counted = gc.get_freeze_count()
        with paused_collector():
            kept = [object()]
            if imports:
                monkeypatch.setitem(sys.modules, "imported_meanwhile", ModuleType("imported_meanwhile"))
        assert any(each is kept for each in gc.get_objects(generation=2)) == is_old
        # A few frozen objects may be freed meanwhile.
        assert 0.9 * counted <= gc.get_freeze_count() <= counted
    finally:
        gc.unfreeze()
        if was_frozen:
            gc.freeze()
