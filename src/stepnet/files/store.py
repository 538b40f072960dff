"""How much memory the files of a model may take: what a file says of itself is believed up to its size.

Every reader counts bytes before it takes them, and objects that the file asks for by the bytes that one has.
Zeros that are packed, a name that many arrays begin with, a list of a million empty lists: small files that
fill a memory. None takes more than `SPARE` bytes and `TIMES` its size, unless `at_most` says otherwise.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from stepnet.errors import FileError
from stepnet.layout.options import option

SPARE = 1 << 26  # bytes that may be taken whatever the size of the file
TIMES = 8  # that size may be taken besides: a weight is read, moved a few times, and copied
OBJECT = 128  # bytes of a small object of Python in a list or a dictionary, about
MOST: ContextVar[int | None] = ContextVar("MOST", default=None)


@contextmanager
def at_most(count: int | None) -> Generator[None]:
    """Within the block each file may take that many bytes, whatever its size; None leaves it as it was."""
    token = MOST.set(MOST.get() if count is None else count)
    try:
        yield
    finally:
        MOST.reset(token)


class Store:
    """The files of a model, and how many bytes may still be taken for what they hold.

    path: what an error begins with; None where whoever reads the file adds that.

    >>> store = Store(Path("model.onnx"), size=1000)
    >>> store.take(8000, "tensor 'w'")
    >>> store.take(1 << 40, "tensor 'r'")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.onnx: with tensor 'r' it would fill more than 67116864 bytes of memory,
    far more than the file has; --most BYTES (Python: most=BYTES) allows more
    """

    def __init__(self, path: Path | None, size: int) -> None:
        self.path = path or Path()
        self.front = f"{path}: " if path else ""
        most = MOST.get()
        self.most = SPARE + TIMES * size if most is None else most
        self.left = self.most
        self.times = TIMES if most is None else 0
        self.files: set[str] = set()

    def take(self, count: int, what: str) -> None:
        """Counts bytes before memory is taken; raises `FileError` for far more than the file has."""
        self.room(count, what)
        self.left -= count

    def room(self, count: int, what: str) -> None:
        """As `take`, for bytes that are taken for a moment only."""
        if count > self.left:
            raise FileError(
                f"{self.front}with {what} it would fill more than {self.most} bytes of memory, far more "
                f"than the file has; {option('most')} allows more"
            )

    def give_back(self, count: int) -> None:
        """Counts bytes that are taken no more."""
        self.left += count

    def beside(self, file: str, size: int) -> None:
        """Counts a further file, whose size may be taken as well."""
        if file not in self.files:
            self.files.add(file)
            self.left += self.times * size
            self.most += self.times * size
