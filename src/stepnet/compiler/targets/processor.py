"""The properties of this processor that determine how long a call takes: its cache sizes, as reported by
Linux.
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from stepnet.compiler.plan.load import Machine

CACHES = "sys/devices/system/cpu/cpu0/cache"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
MEASURED_BYTES = 64
"""The vector size in bytes of the processor on which the rates of `Machine` were measured."""


@cache
def machine_for(vector_bytes: int) -> Machine:
    """Returns this machine's rates and caches, which estimate the time of code with vectors of this size."""
    return adapt_machine(Machine(), caches(Path("/")), vector_bytes)


def adapt_machine(machine: Machine, sizes: dict[int, int], vector_bytes: int) -> Machine:
    """Adapts a description of a processor to cache sizes and to the vector size, with which the rates scale.
    A missing cache level counts as large as the level below.

    sizes: the cache sizes in bytes, by level from 1; empty to keep those of `machine`.
    vector_bytes: the size in bytes of the vector registers.

    >>> adapt_machine(Machine(), {1: 2**15, 2: 2**19, 3: 2**23}, 32).caches
    (32768, 524288, 8388608)
    >>> adapt_machine(Machine(), {1: 2**16, 2: 2**22}, 16).caches
    (65536, 4194304, 4194304)
    """
    first = sizes.get(1, machine.caches[0])
    second = max(first, sizes.get(2, first if sizes else machine.caches[1]))
    third = max(second, sizes.get(3, second if sizes else machine.caches[2]))
    scale = vector_bytes / MEASURED_BYTES
    reads = machine.reads[0] * scale, *machine.reads[1:]
    return replace(
        machine,
        caches=(first, second, third),
        reads=reads,
        rate=machine.rate * scale,
        flops=machine.flops * scale,
    )


def caches(root: Path) -> dict[int, int]:
    """Reads the sizes in bytes of this processor's data caches, by level, from Linux. Levels that the system
    does not report are missing. root: the folder that holds `sys`: "/", or a test's.
    """
    sizes: dict[int, int] = {}
    for folder in sorted(root.joinpath(CACHES).glob("index*")):
        try:
            kind, level, size = (
                folder.joinpath(name).read_text().strip() for name in ("type", "level", "size")
            )
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and level.isdecimal() and match:
            sizes[int(level)] = int(match[1]) * UNITS[match[2]]
    return sizes
