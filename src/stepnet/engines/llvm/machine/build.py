"""Machine code in memory, ready to be called: object code as LLVM wrote it, now or in another process."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepnet.engines.llvm.machine.image import Image, ObjectCode, libc
from stepnet.engines.llvm.machine.late import late
from stepnet.engines.llvm.machine.system import symbols


@dataclass(frozen=True)
class NativeFunction:
    """A function of machine code, which stays loaded as long as this does.

    `call(pointer)` runs it without the interpreter's lock.
    """

    address: int
    call: Callable[[int], Any]
    code: "MachineCode"


class MachineCode:
    """Loaded object code; it stays loaded as long as this object lives. bytes: the size of its
    instructions.
    """

    def __init__(self, code: ObjectCode) -> None:
        image = Image.of(code.data)
        if image is None:
            self.held, self.addresses, self.bytes = late("machine.object_code").loaded_by_llvm(code)
        else:
            self.held, self.addresses = image.put(address)
            self.bytes = image.instructions

    def function(self, name: str, result: Any = None) -> "NativeFunction":
        """A function that takes one pointer."""
        where = self.addresses[name]
        return NativeFunction(where, ctypes.CFUNCTYPE(result, ctypes.c_void_p)(where), self)


def address(name: str) -> int:
    """The address of a function that machine code calls by name."""
    own = symbols().get(name)
    if own is not None:
        return own
    where = ctypes.cast(libc()[name], ctypes.c_void_p).value
    assert where is not None
    return where
