"""The stack machine that reads a pickle: the bytes that are left, a stack, its marks, and the memo."""

import io
from collections.abc import Callable
from dataclasses import field
from typing import NoReturn, TypeVar

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.store import Store

Kind = TypeVar("Kind")


@dataclass
class FileRange:
    """The part of an open file from `position` to `end`, such as a pickle; reading moves `position`."""

    stream: io.BufferedIOBase
    position: int
    end: int

    def take(self, count: int) -> bytes:
        """Reads the next `count` bytes of a pickle; raises `FileError` if fewer are left."""
        self.room(count)
        data = self.stream.read(count)
        self.position += len(data)
        return data if len(data) == count else self.cut()

    def take_block(self, count: int) -> bytearray:
        """Reads the next `count` bytes of a pickle, into writable memory that an array can use."""
        self.room(count)
        block = bytearray(count)
        count_read = self.stream.readinto(block)
        self.position += count_read
        return block if count_read == count else self.cut()

    def take_line(self) -> bytes:
        """Reads the next line of a pickle, without its end."""
        line = self.stream.readline(self.end - self.position)
        self.position += len(line)
        return line[:-1] if line.endswith(b"\n") else self.cut()

    def room(self, count: int) -> None:
        """Raises `FileError` if a pickle has fewer than `count` bytes left, before any allocation."""
        if not 0 <= count <= self.end - self.position:
            self.cut()

    def cut(self) -> NoReturn:
        """Raises the `FileError` for a pickle whose bytes end too early."""
        raise FileError(f"its pickle is cut off at byte {self.end}")


@dataclass
class StackMachine:
    """The state of a stack machine that reads a pickle: a stack, its marks, and the memo of shared values.

    names: the names that the pickle may use; None for all. advice: the remedy for other files, for messages.
    encoding: of the strings of Python 2. persistent: gives the value of a persistent id.
    """

    source: FileRange
    names: frozenset[str] | None
    advice: str
    encoding: str
    persistent: Callable[[object], object]
    store: Store
    stack: list[object] = field(default_factory=list[object])
    marks: list[int] = field(default_factory=list[int])
    memo: list[object] = field(default_factory=list[object])
    spent: int = 0

    def pop(self) -> object:
        """Pops the top of the stack; raises `FileError` if none is above the latest mark (a noted height)."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise FileError("its pickle takes a value where there is none")
        return self.stack.pop()

    def top(self) -> object:
        """Returns the value at the top of the pickle's stack, where it stays."""
        value = self.pop()
        self.stack.append(value)
        return value

    def pop_kind(self, kind: type[Kind]) -> Kind:
        """Pops the value at the top of a pickle's stack; raises `FileError` unless its type is `kind`."""
        value = self.pop()
        if not isinstance(value, kind):
            raise FileError(f"its pickle has type {type(value).__name__} where {kind.__name__} must be")
        return value

    def pop_marked(self) -> list[object]:
        """Pops all values above the latest mark (a recorded height of the stack) from the pickle's stack;
        returns them, and removes the mark. Raises `FileError` if there is no mark.
        """
        if not self.marks:
            raise FileError("its pickle closes a mark that is not open")
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def spend(self, count: int) -> None:
        """Counts values that are copied while a pickle is read; raises `FileError` if they are more than the
        file has bytes, which keeps a small hostile file from making many.
        """
        self.spent += count
        if self.spent > self.source.end:
            raise FileError("its pickle makes more out of its values than it holds")
