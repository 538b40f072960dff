"""The processors that code is generated for, and what each asks of the generated code.

A `Target` is what the rest of the engine knows of a processor: its vector width, its registers, and the
strings that LLVM wants. `host_target()` is the best one for the machine at hand; the narrower ones that it
runs too are how AVX2 and plain code are tested on an AVX-512 machine.
"""

from dataclasses import dataclass
from functools import cache
from itertools import takewhile

import llvmlite
import numpy as np

from stepnet.disk import store
from stepnet.disk.data import Form
from stepnet.engines.apart import run_in_thread
from stepnet.net.digest import digest


@dataclass(frozen=True)
class Target:
    """One instruction set (avx512, avx2 or generic): its vector width in bytes, its vector registers."""

    name: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int

    @property
    def has_fused(self) -> bool:
        """Whether a * b + c is one instruction."""
        return self.name != "generic" or not self.cpu

    @property
    def has_half(self) -> bool:
        """Whether it has instructions for float16; elsewhere LLVM would call a library for it."""
        return self.name != "generic"

    @property
    def is_x86(self) -> bool:
        """Whether it is a processor of that family, whose instructions have names of their own in LLVM."""
        return bool(self.cpu)

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether one instruction multiplies pairs of bfloat16, and adds the products."""
        return self.has("avx512bf16")

    @property
    def multiplies_int8(self) -> bool:
        """Whether one instruction multiplies four of uint8 and int8, and adds the products."""
        return self.has("avx512vnni")

    def has(self, feature: str) -> bool:
        """Whether the features that code is generated with include one, by LLVM's name."""
        return f"+{feature}" in self.features.split(",")

    def __str__(self) -> str:
        return f"{self.name} ({self.cpu}, {self.vector_bytes * 8}-bit vectors)"


TARGETS = Form(Target)
AVX512_FEATURES = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c")
AVX2_FEATURES = ("avx2", "fma", "f16c")


@cache
def host_target() -> Target:
    """The widest target that this processor runs."""
    return available_targets()[0]


@cache
def available_targets() -> tuple[Target, ...]:
    """Every target that this processor runs, the widest first: as LLVM said in a process before."""
    if not store.is_used() or (here := processor()) is None:
        return run_in_thread(targets)
    key = digest(here, llvmlite.__version__)
    data = store.get("targets", key)
    if data is not None:
        return TARGETS.unpacked(data)
    made = run_in_thread(targets)
    store.put("targets", key, TARGETS.packed(made))
    return made


def processor() -> str | None:
    """A text that is the same as long as this computer runs on this processor; None where none is known.

    An emulator, such as Valgrind, runs a process on another processor than the one that the system describes.
    So what the processor itself says is a part of the text, as NumPy has read it.
    """
    features = getattr(np._core._multiarray_umath, "__cpu_features__", None)  # pyright: ignore
    if features is None:
        return None
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            booted = file.read()
        with open("/proc/cpuinfo") as file:
            lines = list(takewhile(str.strip, file))  # of the first processor
    except OSError:
        return None
    described = "".join(line for line in lines if "MHz" not in line)
    return booted + described + " ".join(sorted(name for name, is_there in features.items() if is_there))


def targets() -> tuple[Target, ...]:
    """The same, by asking LLVM."""
    # Imported where it is needed: what a process loads from disk needs no LLVM.
    from stepnet.engines.llvm.machine.room import load_llvm

    load_llvm()
    import llvmlite.binding as llvm

    features = dict(llvm.get_host_cpu_features())
    usable: list[Target] = []
    if all(features.get(name) for name in AVX512_FEATURES):
        # LLVM uses half the width on these processors unless it is told not to.
        flags = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
        usable.append(Target("avx512", llvm.get_host_cpu_name(), flags, 64, 32))
    if all(features.get(name) for name in AVX2_FEATURES):
        usable.append(Target("avx2", "haswell", "", 32, 16))
    generic = "x86-64" if llvm.get_process_triple().startswith(("x86_64", "amd64")) else ""
    usable.append(Target("generic", generic, "", 16, 16))
    return tuple(usable)
