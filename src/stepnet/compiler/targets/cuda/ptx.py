"""Translates a kernel to PTX, which the CUDA driver translates to the machine code of a GPU."""

import re
from collections import OrderedDict
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.targets.cpu.machine.room import BASE_BYTES, load_llvm, reserve
from stepnet.compiler.targets.cpu.machine.stored_code import keep, read
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.functions import BOTH, GPU
from stepnet.compiler.targets.cuda.linking import bitcode_of, linked
from stepnet.compiler.targets.cuda.remainders import REMAINDERS, remainder
from stepnet.compiler.values.fork_guard import run_in_thread
from stepnet.compiler.values.once import entry_of
from stepnet.errors import LibraryError

TRIPLE = "nvptx64-nvidia-cuda"
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
LEVEL = 3
"""The level of optimisation, of 0 to 3."""
KEPT = 512
"""The number of kernels whose PTX is kept in memory."""
FOUND = OrderedDict[tuple[str, str, str], str]()
"""The PTX of the latest kernels, by the digests of their codes."""
TEXT = Serializer()
KERNEL = re.compile(r'define void @"?kernel"?(\([^)]*\))')


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
    if stored is None:
        stored = run_in_thread(lambda: ptx_of(code, key[1]))
        keep("ptx", TEXT, key, stored)
    return stored


def ptx_of(code: DeviceCode, processor: str) -> str:
    """Translates a kernel to PTX, in a thread that may call LLVM. processor: LLVM's name of it."""
    machine = code_generator(processor)
    sizes = {"reqntidx": code.threads, "reqntidy": 1, "reqntidz": 1, "minctasm": 1}
    if code.exchange == "cluster":
        sizes |= {"cluster_dim_x": code.group, "cluster_dim_y": 1, "cluster_dim_z": 1}
    facts = "".join(f', !"{name}", i32 {value}' for name, value in sizes.items())
    text = KERNEL.sub(r'define ptx_kernel void @"kernel"\1', code.text, count=1)
    text += f"\n!nvvm.annotations = !{{!1000000}}\n!1000000 = !{{ptr @kernel{facts}}}\n"
    with linked(text, device_functions(), machine, TRIPLE, frozenset(["kernel"]), LEVEL) as module:
        return machine.emit_assembly(module)


@cache
def device_functions() -> list[bytes]:
    """Returns the functions that kernels call, as LLVM's bitcode."""
    return list(map(bitcode_of, (GPU + BOTH, *map(remainder, REMAINDERS))))


@cache
def code_generator(processor: str, triple: str = TRIPLE) -> Any:
    """Returns LLVM's code generator for a GPU, made once. Raises `LibraryError` if LLVM has none."""
    load_llvm()
    with reserve(BASE_BYTES):
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        try:
            target = llvm.Target.from_triple(triple)
        except RuntimeError as error:
            raise LibraryError(
                f"llvmlite {llvmlite.__version__} was built without LLVM's code generator for NVIDIA's GPUs "
                f"({error}): install it from the package index, by pip install --force-reinstall llvmlite"
            ) from None
        return target.create_target_machine(cpu=processor, features=VERSION, opt=LEVEL)
