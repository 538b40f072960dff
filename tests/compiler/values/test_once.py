"""Values that are computed once, by threads that begin at the same moment: all get one and the same."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from stepnet.compiler.values import once

THREADS = 4


def at_once(use: Callable[[], object]) -> list[object]:
    """The values that several threads get in the middle of the same work, which waits for all of them."""
    found = list[object]()
    threads = [threading.Thread(target=lambda: found.append(use())) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == THREADS
    return found


def test_a_property_computed_by_several_threads_has_one_value():
    all_inside = threading.Barrier(THREADS)

    class Net:
        @once.computed_once
        def plan(self) -> object:
            all_inside.wait(10)
            return object()

    net = Net()
    assert {*at_once(lambda: net.plan)} == {net.plan}


def test_an_entry_made_by_several_threads_is_one():
    all_inside = threading.Barrier(THREADS)

    def make() -> object:
        all_inside.wait(10)
        return object()

    entries = OrderedDict[str, Any]()
    assert {*at_once(lambda: once.entry_of(entries, "a", make))} == {entries["a"]}
