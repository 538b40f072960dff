"""How much memory the files of a model may take: what a file says of itself is believed up to its size."""

from pathlib import Path

from stepnet.errors import FileError

SPARE = 1 << 26  # bytes that may be taken whatever the size of the file
TIMES = 8  # that size may be taken besides: a weight is read, moved a few times, and copied


class Store:
    """The files of a model, and how many bytes may still be taken for what they hold."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.left = SPARE + TIMES * size
        self.files: set[str] = set()

    def take(self, count: int, what: str) -> None:
        """Counts bytes before memory is taken; raises `FileError` for far more than the file has."""
        if count > self.left:
            raise FileError(f"{self.path}: {what} would fill {count} bytes, far more than the file has")
        self.left -= count

    def beside(self, file: str, size: int) -> None:
        """Counts a further file, whose size may be taken as well."""
        if file not in self.files:
            self.files.add(file)
            self.left += TIMES * size
