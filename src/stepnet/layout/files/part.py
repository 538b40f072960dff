"""A range of an open file as a file, so that a checkpoint in an archive is read without a copy."""

from io import BufferedIOBase, BufferedReader, RawIOBase
from typing import Any

from stepnet.layout.files.zips import ByteRange


class FilePart(RawIOBase):
    """The bytes at a place of an open file, as a stream of their own that can be read and sought."""

    def __init__(self, stream: BufferedIOBase, byte_range: ByteRange) -> None:
        """Opens the range `byte_range` (start and size) of an open file, positioned at its first byte."""
        self.stream, self.byte_range, self.position = stream, byte_range, 0

    def readable(self) -> bool:
        """Returns True, as `io` asks of each stream: this one, a range of a file, can be read."""
        return True

    def seekable(self) -> bool:
        """Returns True, as `io` asks of each stream: `seek` works in this one, a range of a file."""
        return True

    def seek(self, position: int, whence: int = 0) -> int:
        """Moves the position in the range of the file, and returns it. whence: 0 if `position` counts from
        the start of the range, 1 from the present position, 2 from the end of the range.
        """
        self.position = max(0, position + (0, self.position, self.byte_range.size)[whence])
        return self.position

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer with the next bytes of the range; returns their number, 0 at its end."""
        view = memoryview(buffer).cast("B")[: max(0, self.byte_range.size - self.position)]
        self.stream.seek(self.byte_range.start + self.position)
        count = self.stream.readinto(view)
        self.position += count
        return count


def open_range(stream: BufferedIOBase, byte_range: ByteRange) -> BufferedReader:
    """Opens the bytes in the range `byte_range` of an open file as a file of its own, without a copy.

    >>> from io import BytesIO
    >>> open_range(BytesIO(b"one two three"), ByteRange(4, 3)).read()
    b'two'
    """
    return BufferedReader(FilePart(stream, byte_range))
