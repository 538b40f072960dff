"""The processor, as a text under which facts about it and code for it are stored."""

import os
from functools import cache
from itertools import takewhile

import numpy as np

from stepnet.compiler.native.arm import sve_bytes

OF_MACHINE = ("bogomips", "apicid", "initial apicid", "core id", "physical id", "siblings", "cpu cores")
"""The names of lines on a processor that differ between machines and boots with the same processor."""


VARIABLE = "STEPNET_CPU"
"""The environment variable that names the instruction set for which code is generated."""


def requested() -> str:
    """Returns the value of the environment variable STEPNET_CPU; "" if it is not set."""
    return os.environ.get(VARIABLE, "").strip()


@cache
def chosen_processor() -> str:
    """Returns the value of STEPNET_CPU when this process first asked for it, which holds from then on."""
    return requested()


def processor_identity() -> str | None:
    """Returns a text that identifies the processor until the next boot, as a key under which facts about it
    are stored; None if the system does not describe it.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            booted = file.read()
    except OSError:
        return None
    facts = processor_facts()
    return None if facts is None else f"{booted}{facts}"


def processor_facts() -> str | None:
    """Returns a text that is the same for processors with the same instructions, of any machine and boot;
    None if the system does not describe its own.

    The text includes the features that NumPy has read from the processor itself: an emulator such as Valgrind
    presents another processor to the process than the system describes.
    """
    features = getattr(np._core._multiarray_umath, "__cpu_features__", None)  # pyright: ignore
    if features is None:
        return None
    try:
        lines = [line for line in processor_lines() if line.partition(":")[0].strip() not in OF_MACHINE]
    except OSError:
        return None
    names = " ".join(sorted(name for name, has in features.items() if has))
    return f"{''.join(lines)}{names} {sve_bytes()}"


def processor_lines() -> list[str]:
    """Returns Linux' lines on the first processor, without its frequency. Raises `OSError` elsewhere."""
    with open("/proc/cpuinfo", errors="replace") as file:
        return [line for line in takewhile(str.strip, file) if "MHz" not in line]
