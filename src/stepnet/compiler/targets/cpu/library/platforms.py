"""The platforms that libraries are built for: a processor, or all of a family, under Linux."""

import platform
import sys

from stepnet.compiler.targets.cpu.machine.elf import AARCH64, X86_64
from stepnet.compiler.targets.cpu.machine.processor import (
    FEATURES,
    NAMED,
    Processor,
    available_processors,
    baseline,
    host_processor,
    without_amx,
)
from stepnet.compiler.targets.frame.machine.platforms import DEVICES
from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError

MACHINES = {"x86-64": X86_64, "aarch64": AARCH64}
"""The families of processors, with their numbers in ELF files."""


@dataclass(frozen=True)
class Platform:
    """A platform to build for. name: the name that the user gave. code: the processor for the llvm engine.
    machine: its family, a key of `MACHINES`. needs: the features, by LLVM's names, that a processor of x86-64
    must have to run the code.
    """

    name: str
    code: Processor
    machine: str
    needs: tuple[str, ...] = ()

    @property
    def triple(self) -> str:
        """The triple by which LLVM knows this family of processors on Linux."""
        return f"{'x86_64' if self.machine == 'x86-64' else 'aarch64'}-unknown-linux-gnu"

    @property
    def base(self) -> Processor:
        """The processor for the code besides the model's parts, with features of all of its family."""
        return baseline(self.triple)


FIXED = {
    "x86-64-v3": Platform("x86-64-v3", NAMED["x86-64-v3"], "x86-64", FEATURES["avx2"]),
    "x86-64-v4": Platform("x86-64-v4", NAMED["x86-64-v4"], "x86-64", FEATURES["avx512"]),
    "aarch64": Platform("aarch64", NAMED["aarch64"], "aarch64"),
}
NAMES = ("native", "generic", *FIXED)

MEANT = {"arm64": "aarch64", "armv8": "aarch64"} | dict.fromkeys(
    ("x86-64", "x86_64", "amd64", "x64", "haswell"), "x86-64-v3"
)
"""The target that a user means, by other names of processors."""


def platform_named(name: str) -> Platform:
    """Returns the platform to build for, by the name that a user gives. Raises `InputError` for unknown
    names, and for "native" and "generic" on other systems than Linux.
    """
    if name in FIXED:
        return FIXED[name]
    if name not in NAMES:
        meant = MEANT.get(str(name).lower())
        near = f": did you mean {meant}?" if meant else ""
        every = ", ".join((*NAMES, "c", *DEVICES))
        raise InputError(f"target is one of {every}, not {short_repr(name)}{near}")
    machine = {"x86_64": "x86-64", "AMD64": "x86-64", "arm64": "aarch64"}.get(*[platform.machine()] * 2)
    if sys.platform != "linux" or machine not in MACHINES:
        raise InputError(
            f"libraries are built for Linux on x86-64 and aarch64, and this is {sys.platform} on "
            f"{platform.machine()}: give --target (Python: target=) one of {', '.join(FIXED)}"
        )
    code = without_amx(host_processor()) if name == "native" else available_processors()[-1]
    if not code.is_x86:  # a library checks no features there, so it uses what all of this family have
        return Platform(name, NAMED[machine], machine)
    stated = tuple(flag[1:] for flag in code.features.split(",") if flag.startswith("+"))
    return Platform(name, code, machine, stated or FEATURES[code.name])
