"""A disk cache of generated code: code compiled by one process is loaded by others, without the LLVM library.

The key contains everything that determines the code: the kernel or the plan, the target, the versions of LLVM
and the system, and the sources of the modules that generate it.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite

from stepnet.disk import store
from stepnet.disk.data import Form
from stepnet.disk.folder import NotUsableError
from stepnet.disk.sources import listing, sources
from stepnet.engines.llvm.machine.build import MachineCode
from stepnet.engines.llvm.machine.image import ObjectCode
from stepnet.engines.llvm.machine.late import late
from stepnet.engines.llvm.machine.system import clock
from stepnet.engines.llvm.machine.target import Target
from stepnet.net.digest import digest

KERNEL = Form(ObjectCode)
GENERATING = ("values", "net", "plan", "engines")
"""The folders of the modules that decide what is generated."""


@cache
def generator() -> str:
    """A digest of what generates code here, apart from what it is generated for. Raises `NotUsableError`."""
    folder = Path(llvmlite.__file__).with_name("binding")
    with listing(folder), os.scandir(folder) as files:
        library = sorted((each.name, each.stat().st_size) for each in files if "llvmlite." in each.name)
    ticks = clock().number, clock().per_second
    return digest(sources(*GENERATING), llvmlite.__version__, tuple(library), sys.platform, ticks)


def read(kind: str, form: Form, key: tuple[Any, ...]) -> Any:
    """The value of a kind with a key, read from disk; None where there is none."""
    name = name_of(kind, key)
    data = None if name is None else store.get(kind, name)
    return None if data is None else form.unpacked(data)


def keep(kind: str, form: Form, key: tuple[Any, ...], value: Any) -> None:
    """Stores a value of a kind under a key."""
    if (name := name_of(kind, key)) is not None:
        store.put(kind, name, form.packed(value))


def name_of(kind: str, key: tuple[Any, ...]) -> str | None:
    """The name under which a value is stored; None where nothing is."""
    if not store.is_used():
        return None
    try:
        return digest(generator(), kind, *key)
    except NotUsableError:
        return None


Kernel = tuple[Any, ...]
"""A kernel that no plan has to do with: its folder and name, as `products.pack`, the target, and options. The
function `write_pack` of the module `products.pack_code` writes it.
"""
LOADED: dict[Kernel, MachineCode] = {}
"""Kernels that are ready to be called."""


def machine_code(*kernel: Any) -> MachineCode:
    """The machine code of a kernel."""
    if not is_at_hand(kernel):
        made_beside([], [kernel], kernel[1])
    return LOADED[kernel]


def is_at_hand(kernel: Kernel) -> bool:
    """Whether a kernel is ready to be called, perhaps since it was read from disk now."""
    if kernel not in LOADED and (made := read("kernel", KERNEL, kernel)) is not None:
        LOADED[kernel] = MachineCode(made)
    return kernel in LOADED


def made_beside(modules: Iterable[Any], kernels: Iterable[Kernel], target: Target) -> list[ObjectCode]:
    """The object code of modules, and beside it the kernels that are not there yet, for the same target.

    Kernels come first: they are short, so LLVM soon has something to do while the others are written. Both
    may be generators, which are asked for no more than is needed next.
    """
    missing = list[Kernel]()

    def every() -> Iterator[Any]:
        for kernel in kernels:
            if not is_at_hand(kernel):
                missing.append(kernel)
                yield written(kernel)
        yield from modules

    codes: list[ObjectCode] = late("machine.object_code").object_codes(every(), target)
    for kernel, code in zip(missing, codes, strict=False):
        keep("kernel", KERNEL, kernel, code)
        LOADED[kernel] = MachineCode(code)
    return codes[len(missing) :]


def written(kernel: Kernel) -> Any:
    """The module of a kernel."""
    name, *options = kernel
    return getattr(late(f"{name}_code"), f"write_{name.partition('.')[2]}")(*options)
