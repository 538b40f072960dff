"""A disk cache of generated code: code compiled by one process is loaded by others, without the LLVM library.

The key contains everything that determines the code: the kernel or the plan, the processor, the versions of
LLVM and the system, and the sources of the modules that generate it.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import llvmlite

from stepnet.compiler.disk import store
from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.disk.folder import NotUsableError
from stepnet.compiler.disk.sources import listing, sources
from stepnet.compiler.native.system import clock
from stepnet.compiler.net.digest import digest
from stepnet.compiler.targets.cpu.machine.image import ObjectCode
from stepnet.compiler.targets.cpu.machine.lazy import lazy_import
from stepnet.compiler.targets.cpu.machine.machine_code import MachineCode
from stepnet.compiler.targets.cpu.machine.processor import Processor

KERNEL = Serializer(ObjectCode)
GENERATING = ("compiler/values", "compiler/native", "compiler/net", "compiler/plan", "compiler/targets")
"""The folders of the modules that determine the generated code."""


@cache
def generator() -> str:
    """Computes a digest of the code generator, which is part of the keys of stored code: its sources, the
    version and files of LLVM, the system and its clock. Raises `NotUsableError` if files cannot be listed or
    read.
    """
    folder = os.path.join(os.path.dirname(llvmlite.__file__), "binding")
    with listing(folder), os.scandir(folder) as files:
        library = sorted((each.name, each.stat().st_size) for each in files if "llvmlite." in each.name)
    ticks = clock().number, clock().per_second
    return digest(sources(*GENERATING), llvmlite.__version__, tuple(library), sys.platform, ticks)


def read(kind: str, form: Serializer, key: tuple[Any, ...]) -> Any:
    """Reads a value of generated code from disk; None if it is not stored. kind: the kind of value, such as
    "kernel". form: converts it from bytes. key: all that the value depends on, besides the version of the
    code generator.
    """
    name = name_of(kind, key)
    return None if name is None else store.value(kind, name, form)


def keep(kind: str, form: Serializer, key: tuple[Any, ...], value: Any) -> None:
    """Stores a value of generated code on disk, if the disk is used. kind: the kind of value, such as
    "kernel". form: converts it to bytes. key: all that the value depends on, besides the version of the code
    generator.
    """
    if (name := name_of(kind, key)) is not None:
        store.put(kind, name, form.packed(value))


def name_of(kind: str, key: tuple[Any, ...]) -> str | None:
    """Returns the file name of a stored value, a digest of its kind, its key and the code generator; None if
    the disk is not used.
    """
    if not store.is_used():
        return None
    try:
        return digest(generator(), kind, *key)
    except NotUsableError:
        return None


Kernel = tuple[Any, ...]
"""The key of a kernel that is independent of plans: its folder and name, such as "products.pack", the
processor, and options. The module of this kernel is written by the function `write_pack` of
`products.pack_code`.
"""
LOADED: dict[Kernel, MachineCode] = {}
"""The kernels that are loaded, ready to be called."""


def machine_code(*kernel: Any) -> MachineCode:
    """Returns the machine code of a kernel (a compiled function that depends on no model), such as packing:
    loaded before, read from disk, or compiled now and stored. kernel: its folder and module, such as
    "products.pack", the processor, and options.
    """
    if not is_loaded(kernel):
        compile_with_kernels([], [kernel], kernel[1])
    return LOADED[kernel]


def machine_code_of_many(*kernel: Any) -> MachineCode:
    """Returns the machine code of a kernel (a compiled function) that depends on no particular model, and of
    which there may be any number: read from disk, or compiled now and stored. It is not cached in this
    process: the caller keeps it.

    kernel: the key of the kernel: its folder and module, such as "running.pairs", the processor, and options.
    """
    code = read("kernel", KERNEL, kernel)
    if code is None:
        (code,) = compile_with_kernels([kernel_module(kernel)], [], kernel[1])
        keep("kernel", KERNEL, kernel, code)
    return MachineCode(code)


def is_loaded(kernel: Kernel) -> bool:
    """Tells whether the machine code of a kernel (a compiled function that depends on no model), by its key
    (folder and module, processor, options), can be called; loads it from disk if it is stored there.
    """
    if kernel not in LOADED and (code := read("kernel", KERNEL, kernel)) is not None:
        LOADED.setdefault(kernel, MachineCode(code))  # another thread may have been first
    return kernel in LOADED


def compile_with_kernels(
    modules: Iterable[Any], kernels: Iterable[Kernel], processor: Processor
) -> list[ObjectCode]:
    """Compiles LLVM modules to object code for a processor, and in the same run those of the kernels that are
    not loaded yet, which are stored on disk and loaded. A kernel is code that depends on no particular model,
    given by its key. Returns the code of the modules.

    Kernels come first: they are short, so LLVM can soon begin while the modules are still written. Both may
    be generators, which are advanced only when LLVM can take another module.
    """
    missing = list[Kernel]()

    def to_compile() -> Iterator[Any]:
        """Yields the LLVM modules of kernels (functions that depend on no model) whose code is not loaded,
        and then those of the caller, for the compiler.
        """
        for kernel in kernels:
            if not is_loaded(kernel):
                missing.append(kernel)
                yield kernel_module(kernel)
        yield from modules

    codes: list[ObjectCode] = lazy_import("machine.object_code").object_codes(to_compile(), processor)
    for kernel, code in zip(missing, codes, strict=False):
        keep("kernel", KERNEL, kernel, code)
        LOADED.setdefault(kernel, MachineCode(code))
    return codes[len(missing) :]


def kernel_module(kernel: Kernel) -> Any:
    """Generates the LLVM module of a kernel (a compiled function that depends on no model), by the function
    that its name says: "products.pack" is written by `write_pack` of `products.pack_code`, with the processor
    and options of the kernel.
    """
    name, *options = kernel
    return getattr(lazy_import(f"{name}_code"), f"write_{name.partition('.')[2]}")(*options)
