"""The rates of this machine as they were measured once, kept in the cache folder.

Without a measurement, and on another processor, the table of `costs.py` is used.
"""

import itertools
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import astuple, fields
from math import isfinite
from typing import Any

from stepnet.compiler.disk import store
from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.native.identity import processor_lines
from stepnet.compiler.net.digest import digest
from stepnet.compiler.plan.load import Machine
from stepnet.compiler.plan.partition import How
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.limits import processors

FORM = Serializer(Machine)
KIND, NAMES = "machine", tuple(field.name for field in fields(Machine))
FORCED = ContextVar[How | None]("FORCED", default=None)
"""The way in which threads share calls in this context; None for the one that is estimated to be fastest."""


@contextmanager
def forced(how: How) -> Generator[None]:
    """Context in which calls are shared by threads in one way, where that is possible, to measure it. A call
    that was prepared before stays as it is.
    """
    token = FORCED.set(how)
    try:
        yield
    finally:
        FORCED.reset(token)


def stored_rates(processor: Processor) -> Machine | None:
    """Returns the rates measured for an instruction set on this machine; None if there are none."""
    machine = store.value(KIND, key_of(processor), FORM, is_needed=False)
    return machine if isinstance(machine, Machine) and are_rates(machine) else None


def store_rates(processor: Processor, machine: Machine) -> bool:
    """Keeps the rates of this machine for an instruction set, for later processes. Returns whether they are
    kept: not if the cache is off or cannot be written to, and not if some are no rates.
    """
    if are_rates(machine):
        store.put(KIND, key_of(processor), FORM.packed(machine))
    return stored_rates(processor) == machine


def are_rates(machine: Machine) -> bool:
    """Tells whether all facts of a machine are finite and above zero, as estimates divide by them, and as
    many as there are. A clock that stood still while they were measured gives others.
    """
    tuples: list[Any] = [machine.caches, machine.reads, machine.block_sizes]
    if (
        not all(isinstance(each, tuple) for each in tuples)
        or [*map(len, tuples[:2])] != [3, 4]
        or not tuples[2]
    ):
        return False
    numbers = [*itertools.chain(*tuples), *(each for each in astuple(machine) if each not in tuples)]
    return all(isinstance(number, int | float) and isfinite(number) and number > 0 for number in numbers)


def key_of(processor: Processor, names: Sequence[str] = NAMES) -> str:
    """Returns the key of the rates: a digest of the instruction set, the number of processors that threads
    may use, what the system says of them, and the names of the rates, which other versions may have changed.
    """
    facts = [*names]
    with suppress(OSError):
        facts += [line for line in processor_lines() if "bogomips" not in line]
    return digest(str(processor), str(processors()), *facts)
