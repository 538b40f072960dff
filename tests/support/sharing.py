"""Calls shared between threads in tests: also small ones, which one thread would run sooner."""

from collections.abc import Generator
from contextlib import contextmanager

from stepnet.compiler.plan import CallSize, Load, Machine, Partition
from stepnet.compiler.plan.partition import How, partition
from stepnet.compiler.targets.cpu.running import native


def by_rows(load: Load, size: CallSize, most: int, machine: Machine, how: How | None = None) -> Partition:
    """Every call of several sequences is shared by them, unless their parameters are worth more."""
    chosen = partition(load, size, most, machine)
    return partition(load, size, most, machine, "rows") if chosen.chosen.how == "alone" else chosen


def by_units(load: Load, size: CallSize, most: int, machine: Machine, how: How | None = None) -> Partition:
    """Threads share every step of calls of few sequences."""
    few = size.filled < 8 * most
    return partition(load, size, most, machine, "units" if few else "rows")


@contextmanager
def every_step_shared(is_shared: bool = True) -> Generator[None]:
    """Inside it threads share each step, however small, if that is asked for."""
    before = native.partition
    native.partition = by_units if is_shared else before
    try:
        yield
    finally:
        native.partition = before
