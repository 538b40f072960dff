"""A linker that makes a shared library for Linux from object files, so that no other linker is needed.

    segment 1   header, tables of symbols and relocations, constants, weights   read
    segment 2   machine code, and a stub for each function of the C library     read, execute
    segment 3   the addresses of these functions, and the dynamic section       read, write

The loader fills in only the addresses of the C library's functions. Code refers to constants by relative
addresses, which do not depend on the address at which the library is loaded.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from struct import Struct

from stepnet.compiler.targets.cpu.library.object_writer import Strings
from stepnet.compiler.targets.cpu.library.relocations import KINDS, stub
from stepnet.compiler.targets.cpu.machine.elf import (
    AARCH64,
    HEADER,
    IDENT,
    IN_MEMORY,
    PROGBITS,
    RELOCATION,
    RELOCATIONS,
    RUN,
    SECTION,
    STRINGS,
    SYMBOL,
    WRITE,
    X86_64,
    LoadedSection,
    ObjectFile,
    Relocation,
    Symbol,
)
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

SHARED, DYNAMIC_SYMBOLS, HASH, DYNAMIC = 3, 11, 5, 6
PROGRAM, ENTRY = Struct("<IIQQQQQQ"), Struct("<qQ")
LOAD, DYNAMIC_SEGMENT, STACK, RELRO = 1, 2, 0x6474E551, 0x6474E552
READ, READ_RUN, READ_WRITE = 4, 5, 6
ADDRESS = {X86_64: 6, AARCH64: 1025}
"""By machine: the type of relocation by which the loader fills in the address of a function."""
ALIGNMENT = {X86_64: 2**12, AARCH64: 2**16}
"""By machine: the largest page size of systems, to which segments are aligned."""
NEEDED, SONAME, HASHES, NAMES, TABLE, NAMES_SIZE, SYMBOL_SIZE = 1, 14, 4, 5, 6, 10, 11
RELA, RELA_SIZE, RELA_ENTRY, BIND_NOW, FLAGS = 7, 8, 9, 24, 30
NOW = 8
LIBC = "libc.so.6"
STUB = 16


@dataclass
class LibrarySection:
    """A section of a shared library. name, kind, flags, link, info, entry, alignment: the fields of its row
    in the section table. data: its bytes. address: its offset in the file, which is also its address.
    """

    name: str
    data: bytearray
    kind: int = PROGBITS
    flags: int = IN_MEMORY
    link: str = ""
    info: int = 0
    entry: int = 0
    alignment: int = 64
    address: int = 0


@dataclass
class Shared:
    """A shared library under construction. machine: the number of the processor. objects: the object files to
    link. public: the symbols to export. name: its name for the loader (SONAME). begins: the section of the
    library and the offset in it, by object and section.
    """

    machine: int
    objects: Sequence[ObjectFile]
    public: Collection[str]
    name: str
    begins: dict[tuple[int, int], tuple[LibrarySection, int]] = field(
        default_factory=dict[tuple[int, int], tuple[LibrarySection, int]]
    )

    def __post_init__(self) -> None:
        """Collects the symbols that the objects define, those to import from the C library, and those to
        export. Raises `NetError` for objects of other processors.
        """
        if any(object_file.machine != self.machine for object_file in self.objects):
            raise NetError("the objects of a library are for different processors")
        self.defined = {
            symbol.name: (number, symbol)
            for number, object_file in enumerate(self.objects)
            for symbol in object_file.symbols
            if symbol.is_global and symbol.is_defined
        }
        undefined = {
            s.name
            for object_file in self.objects
            for s in object_file.symbols
            if s.is_global and not s.is_defined
        }
        self.imported = sorted(undefined - self.defined.keys())
        self.exported = sorted(self.public)

    def data(self) -> bytes:
        """Links the object files to a shared library: joins their sections, adds stubs and tables, assigns
        addresses, and fills these in. Returns the bytes of the file.
        """
        constants, code = (
            LibrarySection(".rodata", bytearray()),
            LibrarySection(".text", bytearray(), flags=IN_MEMORY | RUN),
        )
        for number, object_file in enumerate(self.objects):
            for part in object_file.sections:
                self.add(number, part, code if part.flags & RUN else constants)
        stubs = LibrarySection(
            ".plt", bytearray(STUB * len(self.imported)), flags=IN_MEMORY | RUN, alignment=16
        )
        slots = LibrarySection(".got", bytearray(8 * len(self.imported)), flags=IN_MEMORY | WRITE)
        tables, strings = self.tables()
        dynamic = LibrarySection(
            ".dynamic", bytearray(), DYNAMIC, IN_MEMORY | WRITE, ".dynstr", entry=ENTRY.size
        )
        dynamic.data = bytearray(ENTRY.size * 14)
        segments = [[*tables, constants], [code, stubs], [dynamic, slots]]
        self.code, self.stubs, self.slots = code, stubs, slots
        size = self.assign_addresses(segments)
        self.fill_symbols(tables[1])
        self.relocate()
        for number in range(len(self.imported)):
            address, slot = stubs.address + STUB * number, slots.address + 8 * number
            stubs.data[STUB * number : STUB * (number + 1)] = stub(self.machine, address, slot)
            row = RELOCATION.pack(slot, ADDRESS[self.machine], 1 + number, 0)
            tables[3].data[RELOCATION.size * number : RELOCATION.size * (number + 1)] = row
        self.fill_dynamic(dynamic, tables, strings)
        return self.file(segments, size)

    def add(self, number: int, part: LoadedSection, piece: LibrarySection) -> None:
        """Appends a section of an object file to a section of the library, and records its offset. number:
        the index of the object. part: the section to append. piece: the library's section. Raises `NetError`
        for data that code may write, as segments of code and constants are read-only.
        """
        if part.flags & WRITE or part.kind != PROGBITS:
            raise NetError("a library's object has data that may be written")
        piece.data += bytes(-len(piece.data) % max(part.alignment, 16))
        self.begins[number, part.number] = piece, len(piece.data)
        piece.data += part.data

    # ---- tables for the loader

    def tables(self) -> tuple[list[LibrarySection], dict[str, int]]:
        """Makes the loader's tables of hashes, symbols, names and relocations; entries that need addresses
        are still zero. Returns the tables, and the offsets of the keys "needed" and "soname" in the table of
        names.
        """
        strings = Strings()
        names = [*self.imported, *self.exported]
        self.name_offsets = [strings.add(name) for name in names]
        offsets = {"needed": strings.add(LIBC), "soname": strings.add(self.name)}
        chains, bucket = [0] * (1 + len(names)), 0
        for symbol_index in range(len(self.imported) + 1, 1 + len(names)):  # one bucket for few functions
            chains[symbol_index], bucket = bucket, symbol_index
        words = [1, len(chains), bucket, *chains]
        hashes = bytearray(b"".join(word.to_bytes(4, "little") for word in words))
        symbols = bytearray(SYMBOL.size * (1 + len(names)))
        rows = bytearray(RELOCATION.size * len(self.imported))
        return [
            LibrarySection(".hash", hashes, HASH, link=".dynsym", entry=4, alignment=8),
            LibrarySection(
                ".dynsym", symbols, DYNAMIC_SYMBOLS, link=".dynstr", info=1, entry=SYMBOL.size, alignment=8
            ),
            LibrarySection(".dynstr", strings.data, STRINGS, alignment=1),
            LibrarySection(
                ".rela.dyn", rows, RELOCATIONS, link=".dynsym", entry=RELOCATION.size, alignment=8
            ),
        ], offsets

    def fill_symbols(self, table: LibrarySection) -> None:
        """Fills in the loader's symbol table `table`: an empty row, imported functions without an address,
        then exported functions with theirs.
        """
        rows = [SYMBOL.pack(0, 0, 0, 0, 0, 0)]
        for offset, name in zip(self.name_offsets, [*self.imported, *self.exported], strict=True):
            where = 0 if name in self.imported else self.address(*self.defined[name])
            rows.append(SYMBOL.pack(offset, 1 << 4 | 2, 0, self.section_of_code if where else 0, where, 0))
        table.data[:] = b"".join(rows)

    def fill_dynamic(
        self, dynamic: LibrarySection, tables: Sequence[LibrarySection], strings: Mapping[str, int]
    ) -> None:
        """Fills in the dynamic section, by which the loader finds the tables. tables: hashes, symbols, names
        and relocations. strings: the offsets of the C library's name ("needed") and this library's ("soname")
        among the names.
        """
        hashes, symbols, names, rows = tables
        entries = [
            (NEEDED, strings["needed"]),
            (SONAME, strings["soname"]),
            (HASHES, hashes.address),
            (NAMES, names.address),
            (TABLE, symbols.address),
            (NAMES_SIZE, len(names.data)),
            (SYMBOL_SIZE, SYMBOL.size),
            (RELA, rows.address),
            (RELA_SIZE, len(rows.data)),
            (RELA_ENTRY, RELOCATION.size),
            (BIND_NOW, 0),
            (FLAGS, NOW),
            (0, 0),
            (0, 0),
        ]
        dynamic.data[:] = b"".join(ENTRY.pack(*entry) for entry in entries)

    # ---- offsets and addresses

    def assign_addresses(self, segments: Sequence[Sequence[LibrarySection]]) -> int:
        """Assigns each section its offset in the file and in memory; returns the size of the file so far.
        Also sets `section_of_code`, the index of the code in the section table. segments: the sections of
        each segment, in order. Each segment begins on a new page.
        """
        address = HEADER.size + PROGRAM.size * 7
        for number, pieces in enumerate(segments):
            if number:
                address += -address % ALIGNMENT[self.machine]
            for piece in pieces:
                address += -address % piece.alignment
                piece.address = address
                address += len(piece.data)
        flat = [piece for pieces in segments for piece in pieces]
        self.section_of_code = 1 + next(n for n, piece in enumerate(flat) if piece is self.code)
        return address

    def address(self, number: int, symbol: Symbol) -> int:
        """Returns the address in the library of a symbol that the object with index `number` defines."""
        piece, begin = self.begins[number, symbol.section]
        return piece.address + begin + symbol.offset

    def target(self, number: int, relocation: Relocation, call: bool) -> int:
        """Returns the address that a relocation refers to, in the library. number: the index of the object
        that has it. call: it is for a call, which may go to a stub of an imported function; for others an
        imported symbol is a `NetError`.
        """
        symbol = relocation.symbol
        if symbol.is_defined:
            return self.address(number, symbol) + relocation.addend
        if symbol.name in self.defined:
            return self.address(*self.defined[symbol.name]) + relocation.addend
        if not call:
            raise NetError(f"a library's object reads the address of {symbol.name}")
        return self.stubs.address + STUB * self.imported.index(symbol.name) + relocation.addend

    def relocate(self) -> None:
        """Writes the final addresses, which `assign_addresses` has chosen, into the code and constants of
        all object files of the library. Raises `NetError` for unknown kinds of relocations.
        """
        for number, object_file in enumerate(self.objects):
            for part in object_file.sections:
                piece, begin = self.begins[number, part.number]
                for relocation in part.relocations:
                    kind = KINDS[self.machine].get(relocation.kind)
                    if kind is None:
                        raise NetError(f"a library's object has a relocation of kind {relocation.kind}")
                    offset = begin + relocation.offset
                    old = int.from_bytes(piece.data[offset : offset + kind.bytes], "little")
                    field = kind.put(self.target(number, relocation, kind.call), piece.address + offset, old)
                    piece.data[offset : offset + kind.bytes] = field.to_bytes(kind.bytes, "little")

    # ---- the file

    def file(self, segments: Sequence[Sequence[LibrarySection]], size: int) -> bytes:
        """Makes the bytes of the library's file: header, segments, and the section table that linkers read.
        segments: the sections of each segment. size: the bytes up to the end of the last section.
        """
        data = bytearray(size)
        pieces = [piece for sections in segments for piece in sections]
        for piece in pieces:
            data[piece.address : piece.address + len(piece.data)] = piece.data
        names, numbers = Strings(), {piece.name: 1 + n for n, piece in enumerate(pieces)}
        rows = [bytes(SECTION.size)]
        for piece in pieces:
            rows.append(
                SECTION.pack(
                    *(
                        names.add(piece.name),
                        piece.kind,
                        piece.flags,
                        piece.address,
                        piece.address,
                        len(piece.data),
                    ),
                    *(numbers.get(piece.link, 0), piece.info, piece.alignment, piece.entry),
                )
            )
        title = names.add(".shstrtab")
        rows.append(SECTION.pack(title, STRINGS, 0, 0, len(data), len(names.data), 0, 0, 1, 0))
        data += names.data
        data += bytes(-len(data) % 8)
        table, alignment = len(data), ALIGNMENT[self.machine]
        dynamic, slots = segments[2]
        programs = [PROGRAM.pack(STACK, READ_WRITE, 0, 0, 0, 0, 0, 16)]
        for flags, sections in zip((READ, READ_RUN, READ_WRITE), segments, strict=True):
            begin = sections[0].address if sections is not segments[0] else 0
            length = sections[-1].address + len(sections[-1].data) - begin
            # The loader protects whole pages of this segment after it has written to it.
            size_in_memory = length + -length % alignment if flags == READ_WRITE else length
            programs.append(PROGRAM.pack(LOAD, flags, begin, begin, begin, length, size_in_memory, alignment))
        address, length = dynamic.address, len(dynamic.data)
        programs.append(
            PROGRAM.pack(DYNAMIC_SEGMENT, READ_WRITE, address, address, address, length, length, 8)
        )
        length = slots.address + len(slots.data) - address
        size_in_memory = length + -length % alignment
        programs.append(PROGRAM.pack(RELRO, READ, address, address, address, length, size_in_memory, 1))
        counts = HEADER.size, PROGRAM.size, len(programs), SECTION.size, len(rows), len(rows) - 1
        head = HEADER.pack(IDENT, SHARED, self.machine, 1, 0, HEADER.size, table, 0, *counts)
        data[: HEADER.size] = head
        data[HEADER.size : HEADER.size + PROGRAM.size * len(programs)] = b"".join(programs)
        return bytes(data) + b"".join(rows)
