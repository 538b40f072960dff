"""The rates of this machine as they were measured once, kept in the cache folder.

Without a measurement, and on another processor, the table of `costs.py` is used.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields

from stepnet.compiler.disk import store
from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.net.digest import digest
from stepnet.compiler.plan.load import Machine
from stepnet.compiler.plan.partition import How
from stepnet.compiler.targets.cpu.machine.processor import Processor, processor_lines
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
    """Returns the rates that were measured for an instruction set on this machine; None if none were."""
    data = store.get(KIND, key_of(processor), is_needed=False)
    return None if data is None else FORM.unpacked(data)


def store_rates(processor: Processor, machine: Machine) -> None:
    """Keeps the rates of this machine for an instruction set, for later processes."""
    store.put(KIND, key_of(processor), FORM.packed(machine))


def key_of(processor: Processor, names: Sequence[str] = NAMES) -> str:
    """Returns the key of the rates: a digest of the instruction set, the number of processors that threads
    may use, what the system says of them, and the names of the rates, which other versions may have changed.
    """
    facts = [*names]
    with suppress(OSError):
        facts += [line for line in processor_lines() if "bogomips" not in line]
    return digest(str(processor), str(processors()), *facts)
