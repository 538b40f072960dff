"""Several threads of Python that call at the same time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier


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
