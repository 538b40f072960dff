"""ELF object files written without LLVM, from given machine code and data."""

from collections.abc import Mapping

from stepnet.compiler.targets.cpu.machine.elf import (
    HEADER,
    IDENT,
    IN_MEMORY,
    PROGBITS,
    RELOCATABLE,
    RUN,
    SECTION,
    STRINGS,
    SYMBOL,
    SYMBOLS,
)

GLOBAL, FUNCTION, OBJECT, HIDDEN = 1 << 4, 2, 1, 2
"""Properties of a symbol: visible to other objects; a function; an object; hidden from other libraries."""


class Strings:
    """A string table of an ELF file: texts that each end with a zero byte, found by their offsets."""

    def __init__(self) -> None:
        self.data = bytearray(1)

    def add(self, text: str) -> int:
        """Appends a text to the string table of an object file; returns its offset, for other tables."""
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def object_file(machine: int, texts: Mapping[str, bytes], constants: Mapping[str, bytes]) -> bytes:
    """Makes an ELF object file from machine code and data, without LLVM. machine: the number of the
    processor. texts: machine code of functions, by name. constants: bytes by name. Both are aligned to 64.

    The names are global but hidden, so that only objects of the same library see them. An empty constant
    takes one byte, so that its name has an address: linkers drop sections without bytes.
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
            body += data or b"\0"
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
    sizes = HEADER.size, 0, 0, SECTION.size, len(rows), len(rows) - 1
    body[: HEADER.size] = HEADER.pack(IDENT, RELOCATABLE, machine, 1, 0, 0, len(body), 0, *sizes)
    return bytes(body) + b"".join(rows)
