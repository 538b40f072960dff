"""Calls shared between threads in tests: also small ones, which one thread would run sooner."""

from collections.abc import Generator
from contextlib import contextmanager

from stepnet.compiler.plan import CallSize, Load, Machine, Partition
from stepnet.compiler.plan.partition import How, partition
from stepnet.compiler.targets.cpu.running import native


def shared(how: How, load: Load, size: CallSize, most: int, machine: Machine) -> Partition:
    """A call shared in one way by all threads, where it can be; else by one thread."""
    ways = partition(load, size, most, machine).weighed
    by_name = {way.how: way for way in ways}  # the last one of a name has the most threads
    return Partition(by_name.get(how, ways[0]), ways)


def by_rows(load: Load, size: CallSize, most: int, machine: Machine, how: How | None = None) -> Partition:
    """Every call of several sequences is shared by them, unless their parameters are worth more."""
    chosen = partition(load, size, most, machine)
    return shared("rows", load, size, most, machine) if chosen.chosen.how == "alone" else chosen


def by_units(load: Load, size: CallSize, most: int, machine: Machine, how: How | None = None) -> Partition:
    """Threads share every step of calls of few sequences."""
    few = size.filled < 8 * most
    return shared("units" if few else "rows", load, size, most, machine)


@contextmanager
def every_step_shared(is_shared: bool = True) -> Generator[None]:
    """Inside it threads share each step, however small, if that is asked for."""
    before = native.partition
    native.partition = by_units if is_shared else before
    try:
        yield
    finally:
        native.partition = before
