"""Static libraries: archives of object files in the format of Linux linkers.

!<arch>  /  symbols and offsets of their members   //  long names   member, member, ...
"""

from collections.abc import Mapping

from stepnet.compiler.targets.cpu.machine.elf import ObjectFile

MAGIC = b"!<arch>\n"
MODE = 0o644


def member_header(name: str, size: int) -> bytes:
    """Formats the 60-byte header of an archive member. name: "/" for the index of symbols, "//" for the table
    of long names, or "/18" for a file whose name is at this offset of the table. size: the bytes of its data.
    Times and owners are zeros, so that equal libraries have equal bytes.
    """
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{MODE:<8o}{size:<10}`\n".encode()


def archive(members: Mapping[str, bytes]) -> bytes:
    """Makes the bytes of a static library (an `ar` archive), with an index of symbols for linkers. members:
    the bytes of each ELF object file, by file name.
    """
    names, references = bytearray(), dict[str, str]()
    for name in members:
        references[name] = f"/{len(names)}"
        names += name.encode() + b"/\n"
    symbols = [
        (member, symbol.name)
        for member, data in members.items()
        for symbol in ObjectFile.of(data).symbols
        if symbol.is_global and symbol.is_defined
    ]
    texts = b"".join(symbol.encode() + b"\0" for _, symbol in symbols)
    table_size = 4 + 4 * len(symbols) + len(texts)
    start = len(MAGIC) + 2 * len(member_header("", 0)) + round_to_even(table_size) + round_to_even(len(names))
    begins = dict[str, int]()
    for name, data in members.items():
        begins[name] = start
        start += len(member_header("", 0)) + round_to_even(len(data))
    numbers = [len(symbols), *(begins[member] for member, _ in symbols)]
    table = b"".join(number.to_bytes(4, "big") for number in numbers) + texts
    body = [
        member_header("/", table_size),
        pad(table),
        member_header("//", len(names)),
        pad(bytes(names)),
    ]
    for name, data in members.items():
        body += [member_header(references[name], len(data)), pad(data)]
    return MAGIC + b"".join(body)


def round_to_even(size: int) -> int:
    """Rounds a byte count up to an even number, because archive members begin at even offsets."""
    return size + size % 2


def pad(data: bytes) -> bytes:
    """Appends a newline to bytes of odd length, because archive members begin at even offsets."""
    return data + b"\n" * (len(data) % 2)
