"""Numbers, texts and sections of WebAssembly files, read with checks and written.

Names and numbers are those of the WebAssembly specification's chapter "Binary Format".
"""

from collections.abc import Iterable

from stepnet.errors import FileError

MAGIC = b"\0asm\x01\0\0\0"
CUSTOM, TYPE, IMPORT, FUNCTION, MEMORY, GLOBAL, EXPORT, CODE, DATA = 0, 1, 2, 3, 5, 6, 7, 10, 11
"""The numbers of sections."""
OF_FUNCTION, OF_TABLE, OF_MEMORY, OF_GLOBAL = range(4)
"""The kinds of imports and exports."""
I32, I32_CONST, END = 0x7F, 0x41, 0x0B
PADDED = 5
"""The bytes of a number of 32 bits that a linker fills in."""


class WasmReader:
    """A part of a WebAssembly file, read from its beginning. Raises `FileError` where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    @property
    def at_end(self) -> bool:
        """Tells whether all bytes are read."""
        return self.position >= len(self.data)

    def take(self, count: int) -> bytes:
        """Reads so many bytes."""
        taken = self.data[self.position : self.position + count]
        if len(taken) < count:
            raise FileError(f"a WebAssembly object ends after {len(taken)} of {count} bytes")
        self.position += count
        return taken

    def unsigned(self) -> int:
        """Reads an unsigned number of at most 32 bits (LEB128)."""
        return self._number(5)[0] & 0xFFFFFFFF

    def signed(self) -> int:
        """Reads a signed number of at most 64 bits (LEB128)."""
        value, bits = self._number(10)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def _number(self, most: int) -> tuple[int, int]:
        """Reads the groups of seven bits of a number; returns them as one number, and the count of bits."""
        value = 0
        for group in range(most):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                return value, 7 * (group + 1)
        raise FileError(f"a WebAssembly object has a number of more than {most} bytes")

    def text(self) -> str:
        """Reads a text: its length, and UTF-8. Raises `FileError` for other bytes."""
        data = self.take(self.unsigned())
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FileError("a WebAssembly object has a name that is no UTF-8") from error

    def part(self) -> "WasmReader":
        """Reads the size with which a part begins, and its bytes; returns a reader of these."""
        return WasmReader(self.take(self.unsigned()))


def unsigned(value: int, width: int = 0) -> bytes:
    """Writes an unsigned number (LEB128). width: the least number of bytes, for one that is filled in."""
    groups = bytearray()
    while True:
        value, group = value >> 7, value & 0x7F
        more = value or len(groups) + 1 < width
        groups.append(group | (0x80 if more else 0))
        if not more:
            return bytes(groups)


def signed(value: int, width: int = 0) -> bytes:
    """Writes a signed number (LEB128). width: the least number of bytes, for one that is filled in."""
    groups = bytearray()
    while True:
        value, group = value >> 7, value & 0x7F
        more = value != (-1 if group & 0x40 else 0) or len(groups) + 1 < width
        groups.append(group | (0x80 if more else 0))
        if not more:
            return bytes(groups)


def text(value: str) -> bytes:
    """Writes a text: its length, and UTF-8."""
    data = value.encode()
    return unsigned(len(data)) + data


def vector(items: Iterable[bytes]) -> bytes:
    """Writes the number of items, and the items."""
    listed = list(items)
    return unsigned(len(listed)) + b"".join(listed)


def section(number: int, payload: bytes) -> bytes:
    """Writes a section: its number, its size and its payload."""
    return bytes([number]) + unsigned(len(payload)) + payload
