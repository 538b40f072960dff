"""The instruction sets that code is generated for.

A `Processor` describes an instruction set to the rest of the engine: the vector width, the number of
registers, and LLVM's names for the processor and its features. `host_processor()` is the one that code is
generated for: the widest that this processor supports, or the one that the environment variable
STEPNET_CPU names. `available_processors()` has the narrower ones too, so AVX2 and generic code can be tested
on an AVX-512 machine.
"""

import platform
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache

import llvmlite

from stepnet.compiler.disk import store
from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.native.amx import has_permission
from stepnet.compiler.native.arm import arm_features, sve_bytes
from stepnet.compiler.native.identity import VARIABLE, chosen_processor, processor_identity, requested
from stepnet.compiler.net.digest import digest
from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.fork_guard import run_in_thread
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError


@dataclass(frozen=True)
class Processor:
    """Instruction set of a processor that code is generated for.

    name: avx512, avx2, sve, neon or generic.
    cpu, features: the processor and its features by LLVM's names; cpu is "" outside the x86-64 family.
    vector_bytes: the bytes of a vector.
    registers: the number of vector registers.
    """

    name: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int

    @property
    def has_fused(self) -> bool:
        """Tells whether the processor has fused multiply-add; only generic x86-64 has none."""
        return self.name != "generic" or not self.cpu

    @property
    def has_half(self) -> bool:
        """Tells whether instructions convert float16, as on all AVX2 and 64-bit Arm, instead of a library."""
        return self.name != "generic" or self.has("neon")

    @property
    def is_x86(self) -> bool:
        """Tells whether the processor is of the x86-64 family, whose instructions LLVM has intrinsics for."""
        return bool(self.cpu)

    def has(self, feature: str) -> bool:
        """Tells whether the instruction set has a feature of LLVM, or is of the family "x86-64"."""
        if feature == "x86-64":
            return self.is_x86
        return f"+{feature}" in self.features.split(",")

    def __str__(self) -> str:
        """Describes the instruction set for the user: its name, LLVM's processor and the vector size."""
        family = self.cpu or ("64-bit Arm" if self.has("neon") else platform.machine())
        return f"{self.name} ({family}, {self.vector_bytes * 8}-bit vectors)"


PROCESSORS = Serializer(Processor)
AVX2 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt")
FEATURES = {
    "avx512": (*AVX2, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
    "avx2": AVX2,
    "generic": (),
}
"""The features, by LLVM's names, that a processor of x86-64 needs for an instruction set, by its name."""
ARM = Processor("generic", "", "+neon", 16, 24)
"""64-bit Arm. Of its 32 registers tiles have 24: LLVM loads the elements of rows in pairs, to registers too.
With all 32, a tile of 8 rows and 3 gates spills its sums, and takes 1.6 times as long per multiply-add.
"""
SVE_BYTES, SVE_REGISTERS = (32, 64), 32
"""The sizes of SVE registers that code is generated for, and their number. Those of 16 bytes do no more than
NEON's.
"""
NAMED = {
    "x86-64-v4": Processor("avx512", "x86-64-v4", "-prefer-256-bit", 64, 32),
    "x86-64-v3": Processor("avx2", "x86-64-v3", "", 32, 16),
    "aarch64": ARM,
}
"""The instruction sets that users may name. Besides these there are `native`, the widest that this processor
supports, and `generic`, the one that all processors of its family support.
"""


@cache
def host_processor() -> Processor:
    """Returns the instruction set that code is generated for: the widest, or that of STEPNET_CPU."""
    return available_processors()[0]


@cache
def available_processors() -> tuple[Processor, ...]:
    """Lists the instruction sets that code may use here, widest first: those of this processor, but none
    wider than the environment variable STEPNET_CPU names. The variable is read once per process. Raises
    `InputError` if it names no instruction set of this processor.
    """
    return up_to(chosen_processor(), tuple(map(permitted, supported_processors())))


def permitted(processor: Processor, has: Callable[[], bool] = has_permission) -> Processor:
    """Returns a processor, without AMX if the system does not permit AMX. has: tells whether it does."""
    return processor if not processor.has("amx-int8") or has() else without_amx(processor)


def without_amx(processor: Processor) -> Processor:
    """Returns a processor without AMX, so that products of int8 are those of its vectors."""
    features = [each for each in processor.features.split(",") if not each.startswith("+amx-")]
    return replace(processor, features=",".join(features))


def up_to(name: str, supported: tuple[Processor, ...]) -> tuple[Processor, ...]:
    """Returns those of the supported instruction sets (widest first) that are not wider than the one called
    `name`; all of them for "". Raises `InputError` for another name, and for one that this machine does not
    support.
    """
    kinds = {(each.name, each.is_x86) for each in supported}
    named = {key: each for key, each in NAMED.items() if (each.name, each.is_x86) in kinds}
    choices = {"native": supported[0], **named, "generic": supported[-1]}
    if name and name not in choices:
        why = "which this processor cannot run" if name in NAMED else "which is no name of a processor"
        raise InputError(
            f"the environment variable {VARIABLE} is {short_repr(name)}, {why}: set it to one of "
            f"{', '.join(choices)}, or unset it"
        )
    first = choices[name or "native"]
    place = next(index for index, each in enumerate(supported) if each.name == first.name)
    return first, *supported[place + 1 :]


def processor_texts() -> tuple[str, ...]:
    """Describes the available instruction sets for users, widest first, and if STEPNET_CPU chose them."""
    first, *others = map(str, available_processors())
    return f"{first}: {VARIABLE} is {requested()}" if requested() else first, *others


@cache
def supported_processors() -> tuple[Processor, ...]:
    """Lists the instruction sets that this processor supports, widest first. They are read from disk if
    possible, which avoids loading LLVM.
    """
    if not store.is_used() or (identity := processor_identity()) is None:
        return run_in_thread(processors_by_llvm)
    key = digest(identity, llvmlite.__version__)
    if (stored := store.value("targets", key, PROCESSORS)) is not None:
        return stored
    available = run_in_thread(processors_by_llvm)
    store.put("targets", key, PROCESSORS.packed(available))
    return available


def host_name() -> str:
    """Returns LLVM's name of this processor, such as "znver4". Loads LLVM."""
    from stepnet.compiler.targets.cpu.machine.room import load_llvm

    load_llvm()
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name()


def processors_by_llvm() -> tuple[Processor, ...]:
    """Lists the instruction sets that this processor supports, widest first, as LLVM reports. Loads LLVM."""
    # Imported here: a process that loads its code from disk does not need LLVM.
    from stepnet.compiler.targets.cpu.machine.room import load_llvm

    load_llvm()
    import llvmlite.binding as llvm

    features = dict(llvm.get_host_cpu_features())
    usable: list[Processor] = []
    base = baseline(llvm.get_process_triple())
    if base is ARM:
        usable += beyond_neon(arm_features(features), sve_bytes())
    if all(features.get(name) for name in FEATURES["avx512"]):
        # Without this flag LLVM prefers vectors of 256 bits on these processors.
        flags = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
        usable.append(Processor("avx512", llvm.get_host_cpu_name(), flags, 64, 32))
    if all(features.get(name) for name in FEATURES["avx2"]):
        usable.append(Processor("avx2", "haswell", "+avxvnni" if features.get("avxvnni") else "", 32, 16))
    return *usable, base


def beyond_neon(features: Collection[str], sve: int) -> list[Processor]:
    """Lists the instruction sets of a processor of 64-bit Arm that are wider than NEON or have more, widest
    first. features: those that it has, by LLVM's names. sve: the bytes of its registers of SVE; 0 without.
    """
    usable: list[Processor] = []
    flags = ",".join(["+neon", *(f"+{feature}" for feature in features)])
    if sve in SVE_BYTES:
        usable.append(Processor("sve", "", f"{flags},+sve", sve, SVE_REGISTERS))
    if features:
        usable.append(replace(ARM, name="neon", features=flags))
    return usable


def baseline(triple: str) -> Processor:
    """Returns the instruction set that all processors of a family have. triple: LLVM's name of the family
    and the system, such as "x86_64-unknown-linux-gnu" or "arm64-apple-darwin24".
    """
    if triple.startswith(("aarch64", "arm64")):
        return ARM
    return Processor("generic", "x86-64" if triple.startswith(("x86_64", "amd64")) else "", "", 16, 16)
