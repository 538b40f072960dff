"""Object files of ELF, read and written: the tables of `machine.image`, for both families of processors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepnet.engines.llvm.machine.image import (
    ELF64,
    HEADER,
    IN_MEMORY,
    LITTLE,
    PROGBITS,
    RELOCATABLE,
    RELOCATION,
    RELOCATIONS,
    RUN,
    SECTION,
    SYMBOL,
    SYMBOLS,
    UNDEFINED,
    UNWIND,
    Section,
)

STRINGS, WRITE = 3, 1
IDENT = b"\x7fELF" + bytes([ELF64, LITTLE, 1]) + bytes(9)
GLOBAL, FUNCTION, OBJECT, HIDDEN = 1 << 4, 2, 1, 2


@dataclass(frozen=True)
class Relocation:
    """A place in a section where the address of a symbol is put in. kind: how, by the processor's number."""

    place: int
    kind: int
    symbol: "Symbol"
    more: int


@dataclass(frozen=True)
class Symbol:
    """A name: so many bytes into a section, by its number; or in another object (section 0)."""

    name: str
    section: int
    place: int
    is_global: bool


@dataclass(frozen=True)
class Part:
    """A section that becomes memory. flags: of it; relocations: of places in it."""

    number: int
    flags: int
    alignment: int
    data: bytes
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True)
class Object:
    """An object file that was read."""

    machine: int
    parts: tuple[Part, ...]
    symbols: tuple[Symbol, ...]

    @classmethod
    def of(cls, data: bytes) -> "Object":
        """The object of a file that LLVM or `object_file` wrote."""
        _, _, machine, _, _, _, offset, *_, count, _ = HEADER.unpack_from(data)
        sections = [Section(*SECTION.unpack_from(data, offset + n * SECTION.size)) for n in range(count)]
        symbols = read_symbols(data, sections)
        relocations = dict[int, tuple[Relocation, ...]]()
        for section in sections:
            if section.kind == RELOCATIONS:
                relocations[section.info] = tuple(
                    Relocation(place, kind, symbols[number], more)
                    for place, kind, number, more in relocation_rows(data, section)
                )
        parts = [
            Part(n, s.flags, s.alignment, data[s.offset :][: s.size], relocations.get(n, ()))
            for n, s in enumerate(sections)
            if s.flags & IN_MEMORY
            and s.kind != UNWIND
            and s.size
            and name_of(data, sections, s) != ".eh_frame"
        ]
        assert all(sections[part.number].kind == PROGBITS for part in parts)
        return cls(machine, tuple(parts), tuple(symbols))


def name_of(data: bytes, sections: Sequence[Section], section: Section) -> str:
    """The name of a section."""
    last = int.from_bytes(data[62:64], "little")
    start = sections[last].offset + section.name
    return data[start : data.index(b"\0", start)].decode()


def read_symbols(data: bytes, sections: Sequence[Section]) -> list[Symbol]:
    """The symbols of an object, by number."""
    symbols = list[Symbol]()
    for table in sections:
        if table.kind == SYMBOLS:
            names = data[sections[table.link].offset :][: sections[table.link].size]
            for place in range(table.offset, table.offset + table.size, SYMBOL.size):
                start, info, _, section, value, _ = SYMBOL.unpack_from(data, place)
                name = names[start : names.index(b"\0", start)].decode()
                symbols.append(Symbol(name, section, value, info >> 4 == 1))
    return symbols


def relocation_rows(data: bytes, table: Section) -> list[tuple[int, int, int, int]]:
    """The rows of a table of relocations: place, kind, number of the symbol, addend."""
    places = range(table.offset, table.offset + table.size, RELOCATION.size)
    return [
        (offset, kind, number, more)
        for place in places
        for offset, kind, number, more in [RELOCATION.unpack_from(data, place)]
    ]


class Strings:
    """A table of texts, each ended by a zero."""

    def __init__(self) -> None:
        self.data = bytearray(1)

    def add(self, text: str) -> int:
        """The place of a text."""
        place = len(self.data)
        self.data += text.encode() + b"\0"
        return place


def object_file(machine: int, texts: Mapping[str, bytes], constants: Mapping[str, bytes]) -> bytes:
    """An object of functions that are machine code, and of arrays of bytes, aligned to 64, by their names.

    Other objects of the same library see the names, and none else.
    """
    names, strings = Strings(), Strings()
    symbols = [SYMBOL.pack(0, 0, 0, 0, 0, 0)]
    body = bytearray(HEADER.size)
    rows = [bytes(SECTION.size)]
    for number, (title, flags, kind, members) in enumerate(
        ((".text", IN_MEMORY | RUN, FUNCTION, texts), (".rodata", IN_MEMORY, OBJECT, constants)), 1
    ):
        body += bytes(-len(body) % 64)
        start = len(body)
        for name, data in members.items():
            body += bytes(-len(body) % 64)
            symbols.append(
                SYMBOL.pack(strings.add(name), GLOBAL | kind, HIDDEN, number, len(body) - start, len(data))
            )
            body += data
        rows.append(SECTION.pack(names.add(title), PROGBITS, flags, 0, start, len(body) - start, 0, 0, 64, 0))
    for title, kind, data, link, info, row in (
        (".symtab", SYMBOLS, b"".join(symbols), 4, 1, SYMBOL.size),
        (".strtab", STRINGS, bytes(strings.data), 0, 0, 0),
        (".note.GNU-stack", PROGBITS, b"", 0, 0, 0),
    ):
        body += bytes(-len(body) % 8)
        rows.append(SECTION.pack(names.add(title), kind, 0, 0, len(body), len(data), link, info, 8, row))
        body += data
    title = names.add(".shstrtab")
    rows.append(SECTION.pack(title, STRINGS, 0, 0, len(body), len(names.data), 0, 0, 1, 0))
    body += names.data
    body += bytes(-len(body) % 8)
    head = HEADER.pack(
        IDENT,
        RELOCATABLE,
        machine,
        1,
        0,
        0,
        len(body),
        0,
        HEADER.size,
        0,
        0,
        SECTION.size,
        len(rows),
        len(rows) - 1,
    )
    body[: HEADER.size] = head
    return bytes(body) + b"".join(rows)


__all__ = [
    "HIDDEN",
    "IDENT",
    "STRINGS",
    "UNDEFINED",
    "WRITE",
    "Object",
    "Part",
    "Strings",
    "Symbol",
    "object_file",
]
