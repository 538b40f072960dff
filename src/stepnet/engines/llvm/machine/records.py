"""Records of fields: the storage of values while a kernel runs, with one record per row.

A record has all values of a stage for one row, as contiguous fields. Rows are one stride apart. Every field
is padded to whole vectors: code loads and stores whole vectors everywhere, and only the copies from and to
the user's arrays use exact sizes.

    now, next    per lane: the memories before and after a step, exchanged at every step
    lane         per lane: statics, and scratch values of a step
    block        per step of a block of steps: inputs, values computed before the loop, outputs
    sequence     per sequence: values computed from statics, and at the end

A field of whole vectors may lie outside of the records: in an array of the call, where its rows are read and
written in place. Two tables of the block have the positions: `where` a row is read, and where it is `put`. If
only last steps are wanted, all other rows are put into a dummy row.

    where 40, put 41     per step of a block of steps: the arrays of these words
    given                of a sequence: its first or last memory, in the order that the caller has

The words of a row, which are the steps of an inner sequence of it, have records as well:

    each 42              per word: the array of an input, one word after the other
    words steps          per word of one row: scratch values of a step, along the axis of this name
    kept steps           per word of each lane: those that are read again when other lanes were at work
    at steps             the same, as an inner recurrence sees it: the word that each row is at

An inner recurrence has records of its own, a row for each lane, those with the most words first:

    inner now, inner next    its memories before and after a word, exchanged at every word
    inner lane               its statics, and scratch values of its step
"""

from dataclasses import dataclass, field, replace
from math import gcd

import numpy as np

from stepnet.net.types import Type

LINE = 64


@dataclass(frozen=True)
class Field:
    """The place of a value in a record: byte offset, number of elements, and dtype.

    is_fibered: whether it is stored fiber by fiber; it is then padded if the units do not fill whole vectors.
    """

    record: str
    offset: int
    size: int
    dtype: str
    is_fibered: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """The bytes of the elements, without padding."""
        return self.size * self.itemsize

    @property
    def is_outside(self) -> bool:
        """Whether its rows lie anywhere: in an array of the call, or among the words of each lane."""
        return self.record.startswith(("where ", "put ", "each ", "at ", "given"))

    @property
    def is_readable(self) -> bool:
        """Whether every row can be read again."""
        return not self.record.startswith("put ")

    @property
    def alignment(self) -> int:
        """The bytes that the first element of a row is aligned to, also of a part of another field."""
        return self.itemsize if self.is_outside else gcd(self.offset, LINE)

    @property
    def a_step_later(self) -> "Field":
        """The field in which the next step finds what is here: a next memory is its memory."""
        return replace(self, record="now") if self.record == "next" else self

    def part(self, start: int, size: int) -> "Field":
        """Some of the elements, as a field."""
        return Field(self.record, self.offset + start * self.itemsize, size, self.dtype)


@dataclass(frozen=True)
class Source:
    """The source of bytes of a sequence: a user's array (its word), or a field of the sequence record; else
    zeros.
    """

    word: int
    field: Field | None
    bytes: int

    @property
    def is_zeros(self) -> bool:
        """Whether it has no source and stands for zeros."""
        return self.word < 0 and self.field is None


@dataclass(frozen=True)
class Words:
    """An array of the call with a value for each word along an axis: its word, and the type of its values.

    Its rows are padded to whole vectors.
    """

    axis: str
    word: int
    type: Type
    padded: int

    @property
    def field(self) -> Field:
        """The field of the values."""
        return Field(f"each {self.word}", 0, self.padded, self.type.dtype)


@dataclass(frozen=True)
class Axis:
    """An axis of inner sequences: its name, the word of its offsets, and the table of the offset at which the
    words of each row begin: `owner` where each sequence has words, `where` where each step has.
    """

    name: str
    word: int
    table: str


@dataclass(frozen=True)
class Outside:
    """An array of the call whose rows are read or written in place: the table of their places, the word of
    the array, and the type of its values.
    """

    table: str
    word: int
    type: Type

    @property
    def field(self) -> Field:
        """The field of the values."""
        return Field(f"{self.table} {self.word}", 0, self.type.size, self.type.dtype)


@dataclass
class Records:
    """The records of a kernel, while fields are assigned."""

    width: int
    used: dict[str, int] = field(default_factory=dict[str, int])

    def field(self, record: str, type_: Type) -> Field:
        """A new field for a value."""
        start = self.used.get(record, 0)
        padded = -(-max(type_.size, 1) // self.width) * self.width * type_.itemsize
        self.used[record] = start + -(-padded // LINE) * LINE
        return Field(record, start, type_.size, type_.dtype)

    def fibered(self, record: str, type_: Type, count: int) -> Field:
        """A new field for a value that lies fiber by fiber, in so many numbers."""
        return replace(self.field(record, Type(type_.extent, (count,), type_.dtype)), is_fibered=True)

    def stride(self, record: str) -> int:
        """The bytes from row to row: whole cache lines, and not a power of two, which would map rows to few
        cache sets.
        """
        used = self.used.get(record, 0)
        # A line of slack behind: a vector that begins inside the last field may end beyond it.
        stride = used + LINE * max(1, self.width * 8 // LINE)
        return stride + LINE if stride % 1024 == 0 else stride
