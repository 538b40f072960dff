"""Static libraries: archives of object files, in the forms of the linkers of each system.

GNU    !<arch>  /  symbols and offsets of their members            //  long names   member, member, ...
COFF   !<arch>  /  as in GNU   /  the same, sorted by symbol       //  long names   member, member, ...
BSD    !<arch>  __.SYMDEF  symbols and offsets of their members    name and member, name and member, ...
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

MAGIC = b"!<arch>\n"
MODE = 0o644
GNU, COFF_ARCHIVE, BSD = "gnu", "coff", "bsd"
"""The forms: those of Linux and microcontrollers, of Windows, and of macOS."""

RANLIB = b"__.SYMDEF\0\0\0"
"""The name of the index of macOS, with which its data begin."""

Symbols = Sequence[tuple[int, str]]
"""The symbols with the numbers of the members that define them."""


def member_header(name: str, size: int) -> bytes:
    """Formats the 60-byte header of an archive member. name: "/" for an index of symbols, "//" for the table
    of long names, "/18" for a file whose name is at this offset of the table, or "#1/20" for one whose data
    begin with a name of 20 bytes. size: the bytes of its data. Times and owners are zeros, so that equal
    libraries have equal bytes.
    """
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{MODE:<8o}{size:<10}`\n".encode()


def archive(members: Mapping[str, bytes], symbols: Mapping[str, Sequence[str]], form: str = GNU) -> bytes:
    """Makes the bytes of a static library (an `ar` archive), with an index of symbols for linkers.

    members: the bytes of each object file, by file name. symbols: the global symbols that each defines.
    form: one of `GNU`, `COFF_ARCHIVE` and `BSD`.
    """
    pairs = [(number, symbol) for number, name in enumerate(members) for symbol in symbols[name]]
    data = [*members.values()]
    if form == BSD:
        return with_index(
            [(f"#1/{len(RANLIB)}", ranlib_index)], b"", list(map(named_member, members, data)), pairs
        )
    places = [0, *accumulate(len(name) + 2 for name in members)]
    names = b"".join(name.encode() + b"/\n" for name in members)
    written = [
        member_header(f"/{place}", len(each)) + pad(each) for place, each in zip(places, data, strict=False)
    ]
    indices = [("/", symbol_index)] + [("/", sorted_index)] * (form == COFF_ARCHIVE)
    return with_index(indices, member_header("//", len(names)) + pad(names), written, pairs)


def with_index(
    indices: Sequence[tuple[str, Callable[[Symbols, Sequence[int]], bytes]]],
    names: bytes,
    members: Sequence[bytes],
    symbols: Symbols,
) -> bytes:
    """Puts indices of symbols ahead of members, whose offsets in the file these hold.

    indices: the name of each index, and what makes it of the symbols and of the offsets of all members.
    names: the table of long names, as it stands after the indices. members: with their headers.
    """
    sizes = [len(make(symbols, [0] * len(members))) for _, make in indices]
    start = len(MAGIC) + sum(60 + size + size % 2 for size in sizes) + len(names)
    begins = list(accumulate(map(len, members), initial=start))[:-1]
    ahead = [member_header(name, size) for (name, _), size in zip(indices, sizes, strict=True)]
    tables = [pad(make(symbols, begins)) for _, make in indices]
    indexed = b"".join(header + table for header, table in zip(ahead, tables, strict=True))
    return MAGIC + indexed + names + b"".join(members)


def symbol_index(symbols: Symbols, begins: Sequence[int]) -> bytes:
    """Makes the index of GNU: the offset of the member of each symbol, and the symbols."""
    numbers = [len(symbols), *(begins[member] for member, _ in symbols)]
    return struct.pack(f">{len(numbers)}I", *numbers) + texts(symbols)


def sorted_index(symbols: Symbols, begins: Sequence[int]) -> bytes:
    """Makes the second index of Windows: the offsets of members, and for each symbol in the order of their
    texts the number of its member, from 1 on.
    """
    ordered = sorted(symbols, key=lambda pair: pair[1].encode())
    head = struct.pack(f"<{2 + len(begins)}I", len(begins), *begins, len(ordered))
    return head + struct.pack(f"<{len(ordered)}H", *(member + 1 for member, _ in ordered)) + texts(ordered)


def ranlib_index(symbols: Symbols, begins: Sequence[int]) -> bytes:
    """Makes the index of macOS: the offset of each symbol's text and of its member, and the texts. Members
    begin at multiples of 8 bytes.
    """
    places = [0, *accumulate(len(symbol.encode()) + 1 for _, symbol in symbols)]
    rows = [
        number
        for (member, _), place in zip(symbols, places, strict=False)
        for number in (place, begins[member])
    ]
    strings = texts(symbols)
    strings += bytes(-len(strings) % 8)
    head = struct.pack(f"<{1 + len(rows)}I", 4 * len(rows), *rows)
    return RANLIB + head + struct.pack("<I", len(strings)) + strings


def named_member(name: str, data: bytes) -> bytes:
    """Writes a member of an archive of macOS, whose data and whose end lie at multiples of 8 bytes."""
    text = name.encode()
    text += bytes(-(60 + len(text)) % 8 or 8)
    data += b"\n" * (-len(data) % 8)
    return member_header(f"#1/{len(text)}", len(text) + len(data)) + text + data


def texts(symbols: Symbols) -> bytes:
    """Writes the texts of symbols, each of which ends with a zero byte."""
    return b"".join(symbol.encode() + b"\0" for _, symbol in symbols)


def pad(data: bytes) -> bytes:
    """Appends a newline to bytes of odd length, because archive members begin at even offsets."""
    return data + b"\n" * (len(data) % 2)
