"""Generated code on disk: what one process has compiled, another one loads, and LLVM's library is not needed.

A key holds all that decides what is generated: the kernel or the plan, the target, LLVM, the system, and the
sources of the modules that generate it.
"""

import os
import sys
from functools import cache
from typing import Any

import llvmlite

from stepnet.disk import store
from stepnet.disk.data import Form
from stepnet.disk.sources import sources
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
    """A digest of what generates code here, apart from what it is generated for."""
    folder = os.path.join(os.path.dirname(llvmlite.__file__), "binding")
    library = sorted(
        (each.name, each.stat().st_size) for each in os.scandir(folder) if "llvmlite." in each.name
    )
    ticks = clock().number, clock().per_second
    return digest(sources(*GENERATING), llvmlite.__version__, tuple(library), sys.platform, ticks)


def read(kind: str, form: Form, key: tuple[Any, ...]) -> Any:
    """The value of a kind with a key, read from disk; None where there is none."""
    data = store.get(kind, digest(generator(), kind, *key)) if store.is_used() else None
    return None if data is None else form.unpacked(data)


def keep(kind: str, form: Form, key: tuple[Any, ...], value: Any) -> None:
    """Stores a value of a kind under a key."""
    if store.is_used():
        store.put(kind, digest(generator(), kind, *key), form.packed(value))


def machine_code(kernel: str, target: Target, *options: Any) -> MachineCode:
    """The machine code of one of the kernels that no plan has to do with.

    kernel: folder and name, as `products.pack`: the function `write_pack` of the module `products.pack_code`
    writes it for these options.
    """
    key = kernel, target, *options
    made: ObjectCode | None = read("kernel", KERNEL, key)
    if made is None:
        made = written(kernel, target, *options)
        keep("kernel", KERNEL, key, made)
    return MachineCode(made)


def written(kernel: str, target: Target, *options: Any) -> ObjectCode:
    """The object code of a kernel."""
    module = getattr(late(f"{kernel}_code"), f"write_{kernel.partition('.')[2]}")(target, *options)
    made: ObjectCode = late("machine.object_code").object_code(module, target)
    return made
