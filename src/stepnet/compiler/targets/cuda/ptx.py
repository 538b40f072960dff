"""Kernels as PTX, which the CUDA driver translates to the machine code of a GPU: kept in memory and on disk.

`translation.py` translates those that are not there.
"""

from collections import OrderedDict

from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.targets.cpu.machine.stored_code import keep, read
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.written import made
from stepnet.compiler.values.fork_guard import run_in_thread
from stepnet.compiler.values.once import entry_of
from stepnet.errors import LibraryError

PROCESSORS = (((9, 1), "sm_90"), ((9, 0), "sm_90a"), ((8, 0), "sm_80"))
"""LLVM's names of the processors that code is generated for, each for a compute capability and later ones. A
name that ends in "a" is for one capability alone; the driver translates PTX for others to later ones.
"""
CAPABILITIES = ["8.0", "8.6", "8.7", "8.8", "8.9", "9.0", "10.0", "10.1", "10.3", "11.0", "12.0", "12.1"]
"""The compute capabilities of NVIDIA's GPUs for which PTX is written, the lowest first."""
VERSION = "+ptx80"
"""The version of PTX, which drivers for CUDA 12.0 and later read."""
CLUSTERS = (9, 0)
"""The lowest compute capability of GPUs with clusters of blocks."""
KEPT = 512
"""The number of kernels whose PTX is kept in memory."""
FOUND = OrderedDict[tuple[str, str, str], str]()
"""The PTX of the latest kernels, by the digests of their codes."""
TEXT = Serializer()


def processor_of(capability: tuple[int, int]) -> str:
    """Returns LLVM's name of the processor that code is generated for, by the compute capability of a GPU."""
    return next(name for lowest, name in PROCESSORS if capability >= lowest)


def translated(code: DeviceCode, capability: tuple[int, int] = (9, 0)) -> str:
    """Returns the PTX of a kernel for a compute capability: translated before, read from disk, or translated
    now and stored. Raises `LibraryError` if LLVM cannot do it, or if the kernel needs clusters of blocks,
    which GPUs below 9.0 lack.
    """
    if code.exchange == "cluster" and capability < CLUSTERS:
        raise LibraryError(
            f"the kernel {code.name!r} runs in clusters of blocks, which a GPU of compute capability "
            f"{capability[0]}.{capability[1]} lacks"
        )
    key = code.key, processor_of(capability), VERSION
    return entry_of(FOUND, key, lambda: text_for(code, key), KEPT)


def text_for(code: DeviceCode, key: tuple[str, str, str]) -> str:
    """Returns the PTX of a kernel, read from disk, or translated now and stored. key: its key there, with
    LLVM's name of the processor.
    """
    stored: str | None = read("ptx", TEXT, key)
    if stored is not None:
        return stored
    text: str = run_in_thread(lambda: made("translation.ptx_of", code, key[1]))
    keep("ptx", TEXT, key, text)
    return text
