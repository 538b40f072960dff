"""Translates a kernel to PTX by LLVM (see `ptx.py`, which keeps it)."""

import re
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from stepnet.compiler.targets.cpu.machine.room import BASE_BYTES, load_llvm, reserve
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.functions import BOTH, GPU
from stepnet.compiler.targets.cuda.linking import bitcode_of, linked
from stepnet.compiler.targets.cuda.ptx import VERSION
from stepnet.compiler.targets.cuda.remainders import REMAINDERS, remainder
from stepnet.errors import LibraryError

TRIPLE = "nvptx64-nvidia-cuda"
LEVEL = 3
"""The level of optimisation, of 0 to 3."""
KERNEL = re.compile(r'define void @"?kernel"?(\([^)]*\))')


def ptx_of(code: DeviceCode, processor: str) -> str:
    """Translates a kernel to PTX, in a thread that may call LLVM. processor: LLVM's name of it."""
    machine = code_generator(processor)
    sizes = {"reqntidx": code.threads, "reqntidy": 1, "reqntidz": 1, "minctasm": code.resident}
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
