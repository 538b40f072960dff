"""A range of an open file as a file, so that a checkpoint in an archive is read without a copy."""

from io import BufferedIOBase, BufferedReader, RawIOBase
from typing import Any

from stepnet.files.zips import ByteRange


class FilePart(RawIOBase):
    """The bytes at a place of an open file, as a stream that can be read and sought."""

    def __init__(self, stream: BufferedIOBase, place: ByteRange) -> None:
        self.stream, self.place, self.position = stream, place, 0

    def readable(self) -> bool:
        """Tells if it can be read."""
        return True

    def seekable(self) -> bool:
        """Tells if it can be sought in."""
        return True

    def seek(self, position: int, whence: int = 0) -> int:
        """The new position, counted from the beginning, from here or from the end."""
        self.position = max(0, position + (0, self.position, self.place.size)[whence])
        return self.position

    def readinto(self, buffer: Any) -> int:
        """Reads the next bytes into a buffer; gives their number."""
        view = memoryview(buffer).cast("B")[: max(0, self.place.size - self.position)]
        self.stream.seek(self.place.start + self.position)
        count = self.stream.readinto(view)
        self.position += count
        return count


def part(stream: BufferedIOBase, place: ByteRange) -> BufferedReader:
    r"""The bytes at a place of an open file, as a file.

    >>> from io import BytesIO
    >>> part(BytesIO(b"one two three"), ByteRange(4, 3)).read()
    b'two'
    """
    return BufferedReader(FilePart(stream, place))
