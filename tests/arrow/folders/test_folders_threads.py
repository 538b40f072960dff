"""The threads of a run: what stops one of them wakes the others at once, and nothing is lost before it."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepnet import arrow
from stepnet.arrow.folders.pipeline import DEPTH, Channel, StoppedError, threads
from tests.arrow.folders.folder_cases import RNN, contents, tree

ROUNDS = 20


def endless(channel: Channel) -> Callable[[], None]:
    """A task that puts numbers in a channel until it is stopped."""

    def put() -> None:
        for number in range(1 << 30):
            channel.put(number)

    return put


def waiting(channel: Channel, seen: list[int]) -> Callable[[], None]:
    """A task that takes numbers out of a channel until it is stopped."""

    def take() -> None:
        seen.extend(channel)

    return take


@contextmanager
def quick(most: float) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    assert time.perf_counter() - begun < most


def test_an_error_wakes_threads_that_wait() -> None:
    with quick(ROUNDS * 0.05):
        for _ in range(ROUNDS):
            full, empty, seen = Channel(), Channel(), list[int]()

            def failing(full: Channel, empty: Channel, seen: list[int]) -> None:
                with threads((full, empty), (endless(full), full), (waiting(empty, seen), None)):
                    while not full.room.empty():
                        time.sleep(0)
                    empty.put(7)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                failing(full, empty, seen)
            assert seen == [7]  # what was put in before the error


def test_an_error_of_a_thread_without_a_channel_wakes_the_caller() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with quick(ROUNDS * 0.05):
        for _ in range(ROUNDS):
            full, empty = Channel(), Channel()

            def waiting(full: Channel, empty: Channel) -> None:
                with threads((full, empty), (endless(full), full), (fail, None)) as failed:
                    try:
                        [empty.put(0) for _ in range(DEPTH + 1)]
                    except StoppedError:
                        raise failed[0] from None

            with pytest.raises(ZeroDivisionError):
                waiting(full, empty)


def interrupted(source: Path, output: Path, wait: float) -> bool:
    """True if Ctrl-C came while a folder was run, some time after its begin."""
    timer = threading.Timer(wait, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    try:
        timer.start()
        arrow.run(source, RNN, output, resume=True, engine="interpret")
        timer.join()
        time.sleep(0.001)  # for a signal that came after the end
    except KeyboardInterrupt:
        return True
    return False


# Python drops an interrupt that reaches it in the callback of a weak reference, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.long(every=4)
@pytest.mark.parametrize("seed", range(4))
def test_an_interrupt_at_any_moment_leaves_no_thread(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    source = tree(tmp_path / "in", [f"{number}.parquet" for number in range(20)])
    arrow.run(source, RNN, tmp_path / "whole", engine="interpret")
    stopped = [interrupted(source, tmp_path / "out", chosen.uniform(0, 0.05)) for _ in range(12)]
    assert any(stopped)
    # Python goes on listing a thread whose start was interrupted, though it never runs.
    listed = [thread for thread in threading.enumerate() if thread.is_alive()]
    assert not [thread for thread in listed if thread.name.startswith("stepnet-")]
    arrow.run(source, RNN, tmp_path / "out", resume=True, engine="interpret")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
