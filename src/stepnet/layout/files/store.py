"""A limit on the memory that the reader of a model allocates, proportional to the size of its files.

A small file can require much memory: compressed zeros, a prefix that many names share, a list of a million
empty lists. So every reader counts the bytes of arrays and objects before it allocates them. The limit is
`SPARE` bytes plus `TIMES` the size of the file, unless `at_most` sets another.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stepnet.compiler.values.arguments import MOST_MEMORY
from stepnet.errors import FileError
from stepnet.layout.options import option

SPARE = 1 << 26  # bytes that are allowed for a file of any size
TIMES = 8  # times the file's size, in addition: a weight is read, moved and copied
OBJECT = 128  # approximate bytes of a small Python object in a list or a dictionary


@contextmanager
def at_most(count: int | None) -> Generator[None]:
    """Limits the memory for each file that is read in the block to `count` bytes; None changes nothing."""
    token = MOST_MEMORY.set(MOST_MEMORY.get() if count is None else count)
    try:
        yield
    finally:
        MOST_MEMORY.reset(token)


class Store:
    """The number of bytes that may still be allocated for the contents of a model's files.

    path: the path in front of error messages; None if the caller adds it.

    >>> store = Store(Path("model.onnx"), size=1000)
    >>> store.take(8000, "tensor 'w'")
    >>> store.take(1 << 40, "tensor 'r'")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.onnx: with tensor 'r' it would fill more than 67116864 bytes of memory,
    far more than the file has; --most BYTES ahead of the command (Python: most=BYTES) allows more
    """

    def __init__(self, path: Path | None, size: int) -> None:
        """Sets the limit on memory for a file of `size` bytes; path: in front of messages, unless None."""
        self.path = path or Path()
        self.front = f"{path}: " if path else ""
        most = MOST_MEMORY.get()
        self.most = SPARE + TIMES * size if most is None else most
        self.left = self.most
        self.times = TIMES if most is None else 0
        self.files: set[str] = set()

    def take(self, count: int, what: str) -> None:
        """Counts bytes before they are allocated for `what`; raises `FileError` beyond the limit."""
        self.room(count, what)
        self.left -= count

    def room(self, count: int, what: str) -> None:
        """Raises `FileError` unless `count` bytes of the memory for a file are left for `what`, but does not
        count them: it is for bytes that are freed at once.
        """
        if count > self.left:
            raise FileError(
                f"{self.front}with {what} it would fill more than {self.most} bytes of memory, far more "
                f"than the file has; {option('most')} allows more"
            )

    def give_back(self, count: int) -> None:
        """Gives `count` freed bytes back to the memory that may still be allocated for a file."""
        self.left += count

    def beside(self, file: str, size: int) -> None:
        """Raises the limit on memory for a further file of the model with `size` bytes, unless the user set
        the limit. A file is counted once by its name `file`.
        """
        if file not in self.files:
            self.files.add(file)
            self.left += self.times * size
            self.most += self.times * size
