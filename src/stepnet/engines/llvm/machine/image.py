"""A loader of object code that does not need LLVM: loading the LLVM library alone would take longer than all
else before the first result of a process.

    .ltext .rodata ...   ->   one mapping: the sections one after the other, made executable
    relocations          ->   eight bytes each: an address in a section, or that of a function by name

LLVM writes code for x86-64 in its large model, in which every address is such eight bytes. Objects of other
kinds are LLVM's to load.
"""

import ctypes
import mmap
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from stepnet.engines.llvm.machine.elf import (
    HEADER,
    IDENT,
    PROGBITS,
    RELOCATABLE,
    RUN,
    X86_64,
    ObjectFile,
    Relocation,
)
from stepnet.engines.llvm.machine.memory import mapped

ADDRESS = struct.Struct("<Q")
ABSOLUTE = 1
"""The one kind of relocation: eight bytes that are an address."""
LINE = 64


@dataclass(frozen=True)
class ObjectCode:
    """What LLVM made of a module: the bytes of an object file, and the names of what is called in it.

    No address of this process is in it, so another one can load it.
    """

    data: bytes
    names: tuple[str, ...]


class Image(NamedTuple):
    """An object ready to be loaded. Offsets are from the begin of the image.

    parts: the bytes of each section, with their offset.
    size: the bytes of the image.
    begins: the offset of each section.
    addresses: the relocations.
    functions: the offset of each function.
    instructions: the bytes of the instructions.
    """

    parts: tuple[tuple[int, bytes], ...]
    size: int
    begins: dict[int, int]
    addresses: tuple[Relocation, ...]
    functions: dict[str, int]
    instructions: int

    @classmethod
    def of(cls, data: bytes) -> "Image | None":
        """The image of an object file; None for one of a kind that LLVM loads."""
        if sys.platform != "linux" or len(data) < HEADER.size:
            return None
        ident, kind, machine, *_ = HEADER.unpack_from(data)
        if (ident, kind, machine) != (IDENT, RELOCATABLE, X86_64):
            return None
        file = ObjectFile.of(data)
        relocations = [each for part in file.parts for each in part.relocations]
        # Other kinds of memory, such as zeros or what each thread has its own of, are not in our code.
        if any(p.kind != PROGBITS for p in file.parts) or any(r.kind != ABSOLUTE for r in relocations):
            return None
        begins, size = dict[int, int](), 0
        for part in file.parts:
            alignment = max(LINE, part.alignment)
            begins[part.number] = -(-size // alignment) * alignment
            size = begins[part.number] + len(part.data)
        names = [symbol for symbol in file.symbols if symbol.name and symbol.section in begins]
        return cls(
            tuple((begins[part.number], part.data) for part in file.parts),
            size,
            begins,
            tuple(
                Relocation(begins[part.number] + place, kind, symbol, more)
                for part in file.parts
                for place, kind, symbol, more in part.relocations
            ),
            {symbol.name: begins[symbol.section] + symbol.place for symbol in names},
            sum(len(part.data) for part in file.parts if part.flags & RUN),
        )

    def put(self, address_of: Callable[[str], int]) -> tuple[mmap.mmap, dict[str, int]]:
        """The memory, ready to run, and the address of each function; the memory is held by whoever calls.

        address_of: where a function of another library is, by its name.
        """
        memory = mapped(max(self.size, 1))
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for place, part in self.parts:
            memory[place : place + len(part)] = part
        for place, _, symbol, more in self.addresses:
            own = self.begins.get(symbol.section)
            where = address_of(symbol.name) if own is None else base + own + symbol.place
            ADDRESS.pack_into(memory, place, (where + more) % 2**64)
        protect(base, self.size)
        return memory, {name: base + place for name, place in self.functions.items()}


@cache
def libc() -> Any:
    """The system's library, and all that this process has loaded for everybody."""
    return ctypes.CDLL(None, use_errno=True)


def protect(base: int, size: int) -> None:
    """Makes memory executable and read-only."""
    call = libc()["mprotect"]
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if call(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "the system does not allow memory that was written to be executed")
