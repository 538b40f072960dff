"""Calls with a number of threads, by several threads of Python at the same time, and that are interrupted."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import pytest

import stepnet as sn


@contextmanager
def threads(count: int | None) -> Generator[None]:
    """Inside it calls have so many threads."""
    sn.set_threads(count)
    try:
        yield
    finally:
        sn.set_threads(None)


def on_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs work(0), work(1) and so on at the same time, each on a thread of its own.

    Raises what one of them raises, when all are over.
    """
    begin = Barrier(count)

    def begun_together(number: int) -> None:
        begin.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(begun_together, number) for number in range(count)]
    for run in runs:
        run.result()


def interrupt(count: int, call: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function that a Ctrl-C ends at the `count`-th report of its progress."""
    seen = list[sn.Progress]()

    def interrupt_at_last(now: sn.Progress) -> None:
        seen.append(now)
        if len(seen) == count:
            raise KeyboardInterrupt

    with sn.progress(interrupt_at_last), pytest.raises(KeyboardInterrupt):
        call(*arguments)
