"""A loader of object code that does not need LLVM.

    .ltext .rodata ...   ->   one executable mapping with all sections, one after the other
    relocations          ->   addresses of eight bytes: in a section, or of an external function

Loading the LLVM library would take longer than everything else before the first result of a process. LLVM
generates code for x86-64 in the large code model, in which every address takes eight bytes, so this is the
only kind of relocation to be handled. Object files of other kinds are loaded by LLVM.
"""

import ctypes
import mmap
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

from stepnet.compiler.native.pages import mapped, protect
from stepnet.compiler.targets.cpu.machine import elf
from stepnet.compiler.values.records import dataclass

ADDRESS = struct.Struct("<Q")
ABSOLUTE = 1
"""The type of the supported relocation (R_X86_64_64): an absolute address of eight bytes."""
LINE = 64


@dataclass(frozen=True)
class ObjectCode:
    """The object code of a module. It contains no address of this process, so any process can load it.

    data: the bytes of the object file.
    names: the functions that are called from outside.
    """

    data: bytes
    names: tuple[str, ...]


class Image(NamedTuple):
    """An object file with the memory layout that it will have. Offsets are from the beginning of the image.

    sections: the bytes of each section, with their offset.
    size: the bytes of the image.
    begins: the offset of each section, by number.
    relocations: the addresses that are filled in when the image is loaded.
    functions: the offset of each function, by name.
    instructions: the number of bytes of the instructions.
    """

    sections: tuple[tuple[int, bytes], ...]
    size: int
    begins: dict[int, int]
    relocations: tuple[elf.Relocation, ...]
    functions: dict[str, int]
    instructions: int

    @classmethod
    def of(cls, data: bytes) -> "Image | None":
        """Computes the memory layout of an object file, given its bytes: its sections one after the other.
        None if only LLVM can load it: on other systems than Linux on x86-64, or with other sections or
        relocations than usual.
        """
        if sys.platform != "linux" or len(data) < elf.HEADER.size:
            return None
        ident, kind, machine, *_ = elf.HEADER.unpack_from(data)
        if (ident, kind, machine) != (elf.IDENT, elf.RELOCATABLE, elf.X86_64):
            return None
        file = elf.ObjectFile.of(data)
        relocations = [relocation for section in file.sections for relocation in section.relocations]
        # Our code has no other kinds of sections, such as zero-initialised or thread-local ones.
        if any(p.kind != elf.PROGBITS for p in file.sections) or any(r.kind != ABSOLUTE for r in relocations):
            return None
        begins, size = dict[int, int](), 0
        for section in file.sections:
            alignment = max(LINE, section.alignment)
            begins[section.number] = -(-size // alignment) * alignment
            size = begins[section.number] + len(section.data)
        names = [symbol for symbol in file.symbols if symbol.name and symbol.section in begins]
        return cls(
            tuple((begins[section.number], section.data) for section in file.sections),
            size,
            begins,
            tuple(
                elf.Relocation(begins[section.number] + offset, kind, symbol, addend)
                for section in file.sections
                for offset, kind, symbol, addend in section.relocations
            ),
            {symbol.name: begins[symbol.section] + symbol.offset for symbol in names},
            sum(len(section.data) for section in file.sections if section.flags & elf.RUN),
        )

    def load(self, address_of: Callable[[str], int]) -> tuple[mmap.mmap, dict[str, int]]:
        """Loads the image into executable memory, and fills in the addresses that its code refers to.
        address_of: returns the address of an external function, by its name. Returns the memory, which the
        caller must keep, and the addresses of the image's functions by name.
        """
        memory = mapped(max(self.size, 1))
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for offset, section in self.sections:
            memory[offset : offset + len(section)] = section
        for offset, _, symbol, addend in self.relocations:
            begin = self.begins.get(symbol.section)
            address = address_of(symbol.name) if begin is None else base + begin + symbol.offset
            ADDRESS.pack_into(memory, offset, (address + addend) % 2**64)
        protect(base, self.size)
        return memory, {name: base + offset for name, offset in self.functions.items()}
