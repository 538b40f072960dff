"""The instruction sets of 64-bit Arm beyond the one that all such processors have.

Linux states the features of the processor in two words of the auxiliary vector. LLVM reads /proc/cpuinfo
instead, which names fewer features, and under an emulator those of another processor. On other systems LLVM's
answer is taken.
"""

import ctypes
import platform
import sys
from collections.abc import Mapping

HWCAP, HWCAP2 = 16, 26
GET_VECTOR_LENGTH, LENGTH_MASK = 51, 0xFFFF
"""The option of prctl by which a process learns the bytes of its SVE registers, in the low bits."""
BITS = {"dotprod": (HWCAP, 20), "bf16": (HWCAP2, 14)}
"""The words and bits of the auxiliary vector with the features that code uses, by LLVM's names."""


def arm_features(by_llvm: Mapping[str, bool], system: str = sys.platform) -> tuple[str, ...]:
    """Lists the features of this processor, of 64-bit Arm, that generated code uses beyond NEON. by_llvm: the
    features that LLVM found, for systems other than Linux. system: the name of this one.
    """
    if not system.startswith("linux"):
        return tuple(name for name in BITS if by_llvm.get(name))
    value_of = ctypes.CDLL(None).getauxval
    value_of.restype, value_of.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return tuple(name for name, (word, bit) in BITS.items() if value_of(word) >> bit & 1)


def sve_bytes() -> int:
    """Returns the bytes of a register of SVE, by which LLVM's code for fixed vectors is generated; 0 for
    another processor, and for systems other than Linux, which offer no SVE.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "aarch64":
        return 0
    return max(0, ctypes.CDLL(None).prctl(GET_VECTOR_LENGTH, 0, 0, 0, 0)) & LENGTH_MASK
