"""A checked reader of the WebAssembly objects that LLVM writes.

An object is a module with two custom sections, of "WebAssembly Object File Linking" (tool-conventions,
Linking.md): `linking` has the symbols, `reloc.*` the places where addresses are filled in.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from stepnet.compiler.targets.frame.machine.wasm_format import (
    CODE,
    CUSTOM,
    DATA,
    END,
    FUNCTION,
    I32_CONST,
    IMPORT,
    MAGIC,
    OF_FUNCTION,
    OF_GLOBAL,
    OF_MEMORY,
    OF_TABLE,
    TYPE,
    WasmReader,
)
from stepnet.errors import FileError

LINKING_VERSION = 2
SEGMENT_INFO, SYMBOL_TABLE = 5, 8
"""The parts of the section `linking` that are read."""
FUNCTION_SYMBOL, DATA_SYMBOL, GLOBAL_SYMBOL, SECTION_SYMBOL = range(4)
"""The kinds of symbols."""
UNDEFINED, EXPLICIT_NAME = 0x10, 0x40
"""Flags of a symbol: another object defines it; it has a name although another object defines it."""


class WasmSymbol(NamedTuple):
    """A symbol of an object. kind: what it names. number: the number of the function, global or segment.
    offset: that of data in its segment. is_defined: whether this object has it.
    """

    name: str
    kind: int
    number: int
    offset: int
    is_defined: bool


class WasmSegment(NamedTuple):
    """A segment of data. begin: its offset in the payload of the data section."""

    name: str
    alignment: int
    begin: int
    data: bytes


class WasmRelocation(NamedTuple):
    """A place of a section's payload, at `offset`, that gets the index or address of a symbol."""

    kind: int
    offset: int
    symbol: WasmSymbol
    addend: int


class WasmObject(NamedTuple):
    """An object. types: the payload of the section of types. functions: the type's index of each function
    that it defines. code: the payload of the section of code. relocations: the relocations of sections, by
    section number.
    """

    types: bytes
    functions: tuple[int, ...]
    code: bytes
    segments: tuple[WasmSegment, ...]
    symbols: tuple[WasmSymbol, ...]
    relocations: Mapping[int, tuple[WasmRelocation, ...]]

    @classmethod
    def of(cls, data: bytes) -> "WasmObject":
        """Reads an object from its bytes. Raises `FileError` for other and damaged files."""
        reader = WasmReader(data)
        if data[: len(MAGIC)] != MAGIC:
            raise FileError("this is not a WebAssembly object")
        reader.take(len(MAGIC))
        payloads, custom, order = dict[int, bytes](), dict[str, WasmReader](), list[int]()
        while not reader.at_end:
            number = reader.take(1)[0]
            part = reader.part()
            order.append(number)
            if number == CUSTOM:
                custom[part.text()] = part
            elif payloads.setdefault(number, part.data) is not part.data:
                raise FileError(f"a WebAssembly object has two sections of number {number}")
        if "linking" not in custom:
            raise FileError("a WebAssembly object has no symbols: this is a module")
        segments, table = linking_parts(custom["linking"])
        functions = WasmReader(payloads.get(FUNCTION, b"\0"))
        defined = tuple(functions.unsigned() for _ in range(functions.unsigned()))
        placed = read_segments(WasmReader(payloads.get(DATA, b"\0")), segments)
        imports = read_imports(WasmReader(payloads.get(IMPORT, b"\0")))
        counts = {
            FUNCTION_SYMBOL: len(imports[OF_FUNCTION]) + len(defined),
            DATA_SYMBOL: len(placed),
            GLOBAL_SYMBOL: len(imports[OF_GLOBAL]),
            SECTION_SYMBOL: len(order),
        }
        names = {FUNCTION_SYMBOL: imports[OF_FUNCTION], GLOBAL_SYMBOL: imports[OF_GLOBAL]}
        symbols = read_symbols(table, counts, names)
        relocations = dict[int, tuple[WasmRelocation, ...]]()
        for name, part in custom.items():
            if name.startswith("reloc."):
                index = part.unsigned()
                if index >= len(order):
                    raise FileError(f"a WebAssembly object has no section {index}")
                relocations[order[index]] = read_wasm_relocations(part, symbols)
        code = payloads.get(CODE, b"\0")
        return cls(payloads.get(TYPE, b"\0"), defined, code, placed, symbols, relocations)


def linking_parts(reader: WasmReader) -> tuple[list[tuple[str, int]], WasmReader]:
    """Reads the section `linking`: the name and the alignment of each segment, and the table of symbols."""
    if (version := reader.unsigned()) != LINKING_VERSION:
        raise FileError(f"a WebAssembly object has symbols of version {version}, not {LINKING_VERSION}")
    parts = {SEGMENT_INFO: WasmReader(b"\0"), SYMBOL_TABLE: WasmReader(b"\0")}
    while not reader.at_end:
        kind = reader.take(1)[0]
        parts[kind] = reader.part()
    info = parts[SEGMENT_INFO]
    segments = list[tuple[str, int]]()
    for _ in range(info.unsigned()):
        name, power, _ = info.text(), info.unsigned(), info.unsigned()
        if power > 16:
            raise FileError(f"a WebAssembly object has data that are aligned to 2**{power} bytes")
        segments.append((name, 1 << power))
    return segments, parts[SYMBOL_TABLE]


def read_imports(reader: WasmReader) -> Mapping[int, list[str]]:
    """Lists the names of the imports of each kind: functions, tables, memories and globals."""
    names: dict[int, list[str]] = {kind: [] for kind in SKIPPED}
    for _ in range(reader.unsigned()):
        reader.text()
        name, kind = reader.text(), reader.take(1)[0]
        if kind not in SKIPPED:
            raise FileError(f"a WebAssembly object has an import of kind {kind}")
        SKIPPED[kind](reader)
        names[kind].append(name)
    return names


def skip_limits(reader: WasmReader) -> None:
    """Reads the least size of a memory or table, and the largest where there is one."""
    if reader.unsigned() & 1:
        reader.unsigned()
    reader.unsigned()


def skip_table(reader: WasmReader) -> None:
    """Reads the type of a table: its elements and its limits."""
    reader.take(1)
    skip_limits(reader)


SKIPPED: Mapping[int, Callable[[WasmReader], object]] = {
    OF_FUNCTION: WasmReader.unsigned,
    OF_TABLE: skip_table,
    OF_MEMORY: skip_limits,
    OF_GLOBAL: lambda reader: reader.take(2),
}
"""The readers of the types of imports."""


def read_segments(reader: WasmReader, info: list[tuple[str, int]]) -> tuple[WasmSegment, ...]:
    """Reads the segments of the data section. info: their names and alignments."""
    count = reader.unsigned()
    if count != len(info):
        raise FileError(f"a WebAssembly object has {count} segments of data, and names of {len(info)}")
    segments = list[WasmSegment]()
    for name, alignment in info:
        if reader.unsigned() or reader.take(1)[0] != I32_CONST:
            raise FileError(f"the segment {name} of a WebAssembly object has no address")
        reader.signed()
        if reader.take(1)[0] != END:
            raise FileError(f"the segment {name} of a WebAssembly object has a computed address")
        size = reader.unsigned()
        segments.append(WasmSegment(name, alignment, reader.position, reader.take(size)))
    return tuple(segments)


def read_symbols(
    reader: WasmReader, counts: Mapping[int, int], imported: Mapping[int, list[str]]
) -> tuple[WasmSymbol, ...]:
    """Reads the table of symbols. counts: how many functions, segments, globals and sections there are.
    imported: the names of imported functions and globals.
    """
    symbols = list[WasmSymbol]()
    for _ in range(reader.unsigned()):
        kind, flags = reader.take(1)[0], reader.unsigned()
        is_defined = not flags & UNDEFINED
        name, number, offset = "", 0, 0
        if kind == DATA_SYMBOL:
            name = reader.text()
            if is_defined:
                number, offset, _ = reader.unsigned(), reader.unsigned(), reader.unsigned()
        elif kind in counts:
            number = reader.unsigned()
            if kind != SECTION_SYMBOL and (is_defined or flags & EXPLICIT_NAME):
                name = reader.text()
        else:
            raise FileError(f"a WebAssembly object has a symbol of kind {kind}")
        if number >= counts[kind] and (is_defined or kind != DATA_SYMBOL):
            raise FileError(f"the symbol {name} of a WebAssembly object is number {number} of {counts[kind]}")
        names = imported.get(kind, [])
        if not is_defined and not name and number < len(names):
            name = names[number]
        symbols.append(WasmSymbol(name, kind, number, offset, is_defined))
    return tuple(symbols)


def read_wasm_relocations(reader: WasmReader, symbols: tuple[WasmSymbol, ...]) -> tuple[WasmRelocation, ...]:
    """Reads the relocations of a section, each with its symbol. Raises `FileError` for unknown kinds."""
    relocations = list[WasmRelocation]()
    for _ in range(reader.unsigned()):
        kind, offset, index = reader.take(1)[0], reader.unsigned(), reader.unsigned()
        if kind not in HAS_ADDEND:
            raise FileError(f"a WebAssembly object has a relocation of kind {kind}")
        if index >= len(symbols):
            raise FileError(f"a WebAssembly object has no symbol {index}")
        addend = reader.signed() if HAS_ADDEND[kind] else 0
        relocations.append(WasmRelocation(kind, offset, symbols[index], addend))
    return tuple(relocations)


FUNCTION_INDEX, MEMORY_LEB, MEMORY_SLEB, MEMORY_I32, GLOBAL_INDEX = 0, 3, 4, 5, 7
HAS_ADDEND: Mapping[int, bool] = {
    FUNCTION_INDEX: False,
    MEMORY_LEB: True,
    MEMORY_SLEB: True,
    MEMORY_I32: True,
    GLOBAL_INDEX: False,
}
"""The relocations that the code of frame programs has; and whether a number is added to the address."""
