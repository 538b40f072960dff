"""Object code put into memory as LLVM's own loader does it, without LLVM: to load its library alone takes
longer than everything else that a process does before its first result.

    .ltext .rodata ...   ->   one piece of memory: the sections one after the other, then only to read and run
    relocations          ->   eight bytes each: the address of a section's place, or of a function by name

LLVM writes code for x86-64 in its large model, in which every address is such eight bytes. Objects of other
kinds are LLVM's to load.
"""

import ctypes
import mmap
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from stepnet.engines.llvm.machine.memory import mapped

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QIIq")
ADDRESS = struct.Struct("<Q")
ELF64, LITTLE, RELOCATABLE, X86_64 = 2, 1, 1, 62
PROGBITS, RELOCATIONS, SYMBOLS, UNWIND = 1, 4, 2, 0x70000001
IN_MEMORY, RUN = 2, 4
ABSOLUTE = 1
"""The one kind of relocation: eight bytes that are an address."""
UNDEFINED = 0
LINE = 64


@dataclass(frozen=True)
class ObjectCode:
    """What LLVM made of a module: the bytes of an object file, and the names of what is called in it.

    No address of this process is in it, so another one can load it.
    """

    data: bytes
    names: tuple[str, ...]


class Section(NamedTuple):
    """A row of an object's table of sections."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    row: int


class Symbol(NamedTuple):
    """A name, and where it is: so many bytes into a section, or nowhere in this object."""

    name: str
    section: int
    place: int


class Patch(NamedTuple):
    """Eight bytes at a place that become the address of a symbol, and so many bytes more."""

    place: int
    symbol: Symbol
    more: int


@dataclass(frozen=True)
class Image:
    """An object ready to be put into memory.

    parts: bytes and where they begin. size: of all. begins: where each section begins. patches: addresses to
    fill in. functions: places by name. instructions: bytes of them.
    """

    parts: tuple[tuple[int, bytes], ...]
    size: int
    begins: dict[int, int]
    patches: tuple[Patch, ...]
    functions: dict[str, int]
    instructions: int

    @classmethod
    def of(cls, data: bytes) -> "Image | None":
        """The image of an object file; None for one of a kind that LLVM loads."""
        if sys.platform != "linux" or len(data) < HEADER.size:
            return None
        ident, kind, machine, _, _, _, offset, *_, count, _ = HEADER.unpack_from(data)
        if ident[:6] != b"\x7fELF" + bytes([ELF64, LITTLE]) or (kind, machine) != (RELOCATABLE, X86_64):
            return None
        sections = [Section(*SECTION.unpack_from(data, offset + n * SECTION.size)) for n in range(count)]
        loaded = [n for n, each in enumerate(sections) if is_loaded(each)]
        # Other kinds of memory, such as zeros or what each thread has its own of, are not in our code.
        if any(each.flags & IN_MEMORY and each.kind not in (PROGBITS, UNWIND) for each in sections):
            return None
        begins, size = dict[int, int](), 0
        for number in loaded:
            alignment = max(LINE, sections[number].alignment)
            begins[number] = -(-size // alignment) * alignment
            size = begins[number] + sections[number].size
        symbols = symbols_of(data, sections)
        patches = list[Patch]()
        for section in sections:
            if section.kind == RELOCATIONS and section.info in begins:
                made = patches_of(data, section, begins[section.info], symbols)
                if made is None:
                    return None
                patches += made
        places = {each.name: begins[each.section] + each.place for each in symbols if each.section in begins}
        return cls(
            tuple((begins[n], data[sections[n].offset :][: sections[n].size]) for n in loaded),
            size,
            begins,
            tuple(patches),
            {name: place for name, place in places.items() if name},
            sum(sections[n].size for n in loaded if sections[n].flags & RUN),
        )

    def put(self, addresses: Callable[[str], int]) -> tuple[mmap.mmap, dict[str, int]]:
        """The memory, ready to run, and the address of each function; the memory is held by whoever calls.

        addresses: where a function of another library is, by its name.
        """
        memory = mapped(max(self.size, 1))
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for place, part in self.parts:
            memory[place : place + len(part)] = part
        for patch in self.patches:
            own = self.begins.get(patch.symbol.section)
            where = addresses(patch.symbol.name) if own is None else base + own + patch.symbol.place
            ADDRESS.pack_into(memory, patch.place, (where + patch.more) % 2**64)
        protect(base, self.size)
        return memory, {name: base + place for name, place in self.functions.items()}


def is_loaded(section: Section) -> bool:
    """Whether a section becomes memory. What says how to unwind the stack is for exceptions, of which there
    are none.
    """
    return bool(section.flags & IN_MEMORY) and section.kind == PROGBITS and section.size > 0


def symbols_of(data: bytes, sections: Sequence[Section]) -> list[Symbol]:
    """The table of symbols of an object."""
    symbols = list[Symbol]()
    for table in sections:
        if table.kind == SYMBOLS:
            names = data[sections[table.link].offset :][: sections[table.link].size]
            for place in range(table.offset, table.offset + table.size, SYMBOL.size):
                start, _, _, section, value, _ = SYMBOL.unpack_from(data, place)
                name = names[start : names.index(b"\0", start)].decode()
                symbols.append(Symbol(name, section, value))
    return symbols


def patches_of(data: bytes, table: Section, begin: int, symbols: Sequence[Symbol]) -> list[Patch] | None:
    """The patches of a section that begins at a place; None where one is of another kind."""
    patches = list[Patch]()
    for place in range(table.offset, table.offset + table.size, RELOCATION.size):
        offset, kind, number, more = RELOCATION.unpack_from(data, place)
        if kind != ABSOLUTE:
            return None
        patches.append(Patch(begin + offset, symbols[number], more))
    return patches


@cache
def libc() -> Any:
    """The system's library, and all that this process has loaded for everybody."""
    return ctypes.CDLL(None, use_errno=True)


def protect(base: int, size: int) -> None:
    """Makes memory ready to be run, and no longer to be written."""
    call = libc()["mprotect"]
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if call(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "the system does not let memory be run that was written")
