"""Machine code in memory, ready to be called. Its object code was generated in this process or another."""

import ctypes
from collections.abc import Callable
from typing import Any

from stepnet.compiler.native.pages import library_address
from stepnet.compiler.native.system import symbols
from stepnet.compiler.targets.cpu.machine.image import Image, ObjectCode
from stepnet.compiler.targets.cpu.machine.lazy import lazy_import
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class NativeFunction:
    """Function of machine code.

    call: runs it with one pointer as its argument, without the interpreter's lock.
    code: the machine code, which stays loaded as long as this object lives.
    """

    address: int
    call: Callable[[int], Any]
    code: "MachineCode"


class BuiltIn(ctypes.Structure):
    """The definition of a function of one argument in Python's interface in C: `PyMethodDef`.

    code: the machine code that has the function.
    """

    code: "MachineCode"

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    )

    def bound(self, number: int) -> Callable[[Any], Any]:
        """Returns the function bound to its first argument; a call takes half the time of one by ctypes."""
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
        # Python calls the last argument the function's module, and holds it as long as the function lives:
        # so this definition and the machine code do, too.
        return make(("PyCFunction_NewEx", ctypes.pythonapi))(ctypes.addressof(self), number, self)


class MachineCode:
    """Loaded object code. It stays loaded as long as this object lives.

    object: the bytes of the object file, without addresses of this process.
    addresses: the address of each function, by name.
    bytes: the size of the instructions.
    called: other machine code whose functions this calls, and which stays loaded with it.
    """

    addresses: dict[str, int]

    def __init__(self, code: ObjectCode, called: "MachineCode | None" = None) -> None:
        """Loads object code into executable memory: by stepnet's own loader if possible, else by LLVM.

        called: other machine code whose functions this calls by name.
        """
        self.object, self.called = code.data, called
        known = symbols() if called is None else {**symbols(), **called.addresses}
        image = Image.of(code.data)
        if image is None:
            loaded = lazy_import("machine.object_code").loaded_by_llvm(code, known)
            self.owner, self.addresses, self.bytes = loaded
        else:
            self.owner, self.addresses = image.load(lambda name: known.get(name) or library_address(name))
            self.bytes = image.instructions

    def built_in(self, name: str) -> BuiltIn:
        """Returns the definition of a function of Python that takes one object (METH_O), by its name."""
        made = BuiltIn(name.encode(), self.addresses[name], 8, None)
        made.code = self
        return made

    def function(self, name: str, result: Any = None) -> "NativeFunction":
        """Returns the function `name`, which takes one pointer. result: its ctypes type; None for nothing."""
        start = self.addresses[name]
        return NativeFunction(start, ctypes.CFUNCTYPE(result, ctypes.c_void_p)(start), self)
