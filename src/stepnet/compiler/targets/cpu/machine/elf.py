"""A reader of ELF object files: loaded sections, symbols and relocations.

Constants have the values of the "System V Application Binary Interface". A warm start loads code through this
module, so it imports little.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QIIq")
ELF64, LITTLE, RELOCATABLE, X86_64, AARCH64 = 2, 1, 1, 62, 183
IDENT = b"\x7fELF" + bytes([ELF64, LITTLE, 1]) + bytes(9)
"""The first bytes of a file of 64 bits, little-endian."""
PROGBITS, SYMBOLS, STRINGS, RELOCATIONS, UNWIND = 1, 2, 3, 4, 0x70000001
"""Kinds of sections."""
WRITE, IN_MEMORY, RUN = 1, 2, 4
"""Flags of sections."""


class SectionHeader(NamedTuple):
    """A row of an object file's section table. row: the size of the rows of the section's own table."""

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
    """A symbol (name of a function or of data) of an object file.

    section: the number of the section that it lies in; 0 if another object defines it.
    offset: its offset in the section.
    is_global: whether other objects see it.
    """

    name: str
    section: int
    offset: int
    is_global: bool

    @property
    def is_defined(self) -> bool:
        """Tells whether this object file defines the symbol; if not, another object must."""
        return self.section != 0


class Relocation(NamedTuple):
    """A relocation: the address of `symbol` plus `addend` is stored at `offset`.

    kind: the type of the relocation, by the processor's numbering.
    """

    offset: int
    kind: int
    symbol: Symbol
    addend: int


class LoadedSection(NamedTuple):
    """A section of an object file that is loaded. Its relocations have offsets from its beginning."""

    number: int
    kind: int
    flags: int
    alignment: int
    data: bytes
    relocations: tuple[Relocation, ...]


class ObjectFile(NamedTuple):
    """An object file: its processor's number, its loaded sections, and its symbols."""

    machine: int
    sections: tuple[LoadedSection, ...]
    symbols: tuple[Symbol, ...]

    @classmethod
    def of(cls, data: bytes) -> "ObjectFile":
        """Reads the processor, the sections to be loaded and the symbols of an object file from its bytes.
        Unwind tables (.eh_frame) are left out, as generated code has no exceptions.
        """
        _, _, machine, _, _, _, offset, *_, count, names = HEADER.unpack_from(data)
        sections = [
            SectionHeader(*SECTION.unpack_from(data, offset + n * SECTION.size)) for n in range(count)
        ]
        symbols, names_offset = tuple(read_symbols(data, sections)), sections[int(names)].offset
        relocations = {
            section.info: tuple(read_relocations(data, section, symbols))
            for section in sections
            if section.kind == RELOCATIONS
        }
        loaded = tuple(
            LoadedSection(n, s.kind, s.flags, s.alignment, contents(data, s), relocations.get(n, ()))
            for n, s in enumerate(sections)
            if is_loaded(s) and text_at(data, names_offset + s.name) != ".eh_frame"
        )
        return cls(machine, loaded, symbols)


def is_loaded(section: SectionHeader) -> bool:
    """Tells whether a section of an object file must be loaded into memory to run its code. Unwind tables
    need not, as generated code has no exceptions: on x86-64 they have a kind of their own; elsewhere the
    caller recognises them by the name .eh_frame.
    """
    return bool(section.flags & IN_MEMORY) and section.kind != UNWIND and section.size > 0


def read_symbols(data: bytes, sections: Sequence[SectionHeader]) -> Iterator[Symbol]:
    """Yields the symbols of an object file in the order by which relocations number them.

    data: the bytes of the file. sections: its table of sections.
    """
    for table in sections:
        if table.kind == SYMBOLS:
            names = sections[table.link].offset
            for start, info, _, section, value, _ in SYMBOL.iter_unpack(contents(data, table)):
                yield Symbol(text_at(data, names + start), section, value, info >> 4 == 1)


def read_relocations(data: bytes, table: SectionHeader, symbols: Sequence[Symbol]) -> Iterator[Relocation]:
    """Yields the relocations (addresses to be filled in) that a section of relocations lists. data: the bytes
    of the object file. table: the header of that section. symbols: the symbols of the file, by number.
    """
    for offset, kind, number, addend in RELOCATION.iter_unpack(contents(data, table)):
        yield Relocation(offset, kind, symbols[number], addend)


def contents(data: bytes, section: SectionHeader) -> bytes:
    """Returns the bytes of one section of an object file. data: the bytes of the file."""
    return data[section.offset : section.offset + section.size]


def text_at(data: bytes, offset: int) -> str:
    """Reads the zero-terminated text, such as a symbol's name, at an offset in an object file."""
    return data[offset : data.index(b"\0", offset)].decode()
