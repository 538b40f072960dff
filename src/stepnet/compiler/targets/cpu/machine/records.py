"""Records of fields: the storage of values while a kernel runs, with one record per row.

A record holds all values of a stage for one row, as contiguous fields. Rows are one stride apart. Every field
is padded to whole vectors: code loads and stores whole vectors everywhere, and only the copies from and to
the user's arrays use exact sizes. The records, by name:

    now, next    per lane: the memories before and after a step, exchanged at every step
    lane         per lane: statics, and scratch values of a step
    block        per step of a block of steps: inputs, values computed before the loop, outputs
    sequence     per sequence: values computed before its first step, and after its last

A field may lie outside the records: in an array of the call, whose rows are read and written in place. Its
rows must be whole vectors. Two tables of the block have the row indices: `where` for rows that are read, and
`put` for rows that are written. If only last steps are wanted, all other rows are written to a dummy row.

    where 40, put 41     per step of a block of steps: the arrays with their pointers in these words of a call
    places 42            the same, of windows of steps: an array with the addresses of the steps of each one
    caller               per sequence: the initial or final value of a memory, in the caller's order

A row may have inner sequences. Their steps are called words, and have records as well:

    each 42              per word: the array of an input, whose words lie end to end
    words steps          per word of the current row: scratch values, along the axis of this name ("steps")
    kept steps           per word of each lane: values that are read after other lanes have run
    at steps             the same values in an inner recurrence: those of the current word of each row

An inner recurrence has separate records, with a row per lane, sorted by the number of words, most first:

    inner now, inner next    the memories before and after a word, exchanged at every word
    inner lane               statics, and scratch values of its step
"""

from dataclasses import field, replace
from math import gcd

import numpy as np

from stepnet.compiler.native.spaces import LINE
from stepnet.compiler.net.types import Type
from stepnet.compiler.values.records import dataclass

ADDRESS_BYTES = 8


@dataclass(frozen=True)
class Field:
    """Position of a value in a record, the memory with all values of one row.

    record: the name of the record.
    offset: the offset of the first element, in bytes.
    size: the number of elements.
    is_fibered: whether the elements that one sum combines lie together; padded if units do not fill vectors.
    pieces: the number of pieces of equal size that have an address each, if the record is "places ..."; 0 for
        values that lie in one piece.
    """

    record: str
    offset: int
    size: int
    dtype: str
    is_fibered: bool = False
    pieces: int = 0

    @property
    def itemsize(self) -> int:
        """The size in bytes of one element of this field (the place of a value in each row's memory)."""
        return np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """The size in bytes, without padding, of the value that this field stores for one row."""
        return self.size * self.itemsize

    @property
    def is_outside(self) -> bool:
        """Tells whether this field lies outside the records (the memory of each row's values), where rows are
        not one stride apart: in an array of the call, or among the words (inner steps) that lanes, slots for
        sequences, keep. The first word of the record's name says so.
        """
        return self.record.startswith(("where ", "put ", "places ", "each ", "at ", "caller"))

    @property
    def is_readable(self) -> bool:
        """Tells whether code can read values from this field after it has written them there. It cannot if
        the record (kind of memory) is called "put ...", an array of results where all rows that the caller
        does not want are written to one dummy place.
        """
        return not self.record.startswith("put ")

    @property
    def alignment(self) -> int:
        """The alignment in bytes that vector loads and stores of this field may assume: that of its offset in
        a record (the memory of a row's values), which begins at a cache line; in an array of the call only
        that of an element.
        """
        return self.itemsize if self.is_outside else gcd(self.offset, LINE)

    @property
    def a_step_later(self) -> "Field":
        """The field in which the next step finds this value: a memory in "next" is then in "now"."""
        return replace(self, record="now") if self.record == "next" else self

    def slice(self, start: int, size: int) -> "Field":
        """Returns the field of the `size` elements of this one from element `start` on."""
        return Field(self.record, self.offset + start * self.itemsize, size, self.dtype)


@dataclass(frozen=True)
class RowSource:
    """Source of a value per sequence: an array of the call, or a field of the record "sequence".

    argument: the position, among the words (arguments) of the call, of the array's pointer; -1 for none.
    field: the field; None for none. If there is neither, the value is zeros.
    bytes: the size of the value.
    """

    argument: int
    field: Field | None
    bytes: int

    @property
    def is_zeros(self) -> bool:
        """Tells whether this source of a value that each sequence has once, such as an initial memory
        (recurrent state), is neither an array of the call nor a field (place in memory): the value is then
        zeros.
        """
        return self.argument < 0 and self.field is None


@dataclass(frozen=True)
class InnerArray:
    """An array of the call with a value for each word (step of an inner sequence).

    axis: the axis of the inner sequences.
    argument: the position, among the call's arguments, of the array's pointer.
    type: the type of the values.
    padded: the number of elements of a row, padded to whole vectors.
    """

    axis: str
    argument: int
    type: Type
    padded: int

    @property
    def field(self) -> Field:
        """The field by which code reads an array of the call with a value for each word (step of an inner
        sequence). Its record (kind of memory), named "each" and the position of the array's pointer among the
        arguments, is the array itself.
        """
        return Field(f"each {self.argument}", 0, self.padded, self.type.dtype)


@dataclass(frozen=True)
class Axis:
    """An axis of inner sequences, by which code finds the inner sequence of each row.

    argument: the position, among the call's arguments, of the pointer to the offsets.
    table: the table with the index, for each row, of its offset: `owner` if each sequence has an inner
        sequence, `where` if each step has one.
    """

    name: str
    argument: int
    table: str


@dataclass(frozen=True)
class CallArray:
    """An array of the call whose rows are read or written in place.

    table: the table of row indices: `where` for rows that are read, `put` for rows that are written.
    argument: the position, among the call's arguments, of the array's pointer.
    type: the type of the values.
    pieces: the number of addresses in each row, if the array has addresses of the pieces of values in place
        of values; 0 if it has values.
    """

    table: str
    argument: int
    type: Type
    pieces: int = 0

    @property
    def field(self) -> Field:
        """The field by which code reads or writes the rows of an array of the call in place. Its record (kind
        of memory) is named after the table of row indices and the argument, such as "where 40".
        """
        kind = "places" if self.pieces else self.table
        return Field(f"{kind} {self.argument}", 0, self.type.size, self.type.dtype, pieces=self.pieces)

    @property
    def row_bytes(self) -> int:
        """The size in bytes of a row of the array."""
        return self.pieces * ADDRESS_BYTES or self.field.bytes


@dataclass
class Records:
    """Layout of the records (the values of one row together) of a kernel, while fields are assigned.

    width: the elements of a vector.
    used: the bytes assigned so far in each record.
    """

    width: int
    used: dict[str, int] = field(default_factory=dict[str, int])

    def field(self, record: str, type_: Type) -> Field:
        """Assigns memory in a record, padded to whole vectors, to a value of a type; returns its field."""
        start = self.used.get(record, 0)
        padded = -(-max(type_.size, 1) // self.width) * self.width * type_.itemsize
        self.used[record] = start + -(-padded // LINE) * LINE
        return Field(record, start, type_.size, type_.dtype)

    def fibered(self, record: str, type_: Type, count: int) -> Field:
        """Assigns memory in a record (all values of a row) to a matrix, fiber by fiber: the elements that one
        sum combines lie together. Returns the field (the description of the place) of the matrix.

        type_: the type of the matrix. count: the number of stored elements, with padding.
        """
        return replace(self.field(record, Type(type_.extent, (count,), type_.dtype)), is_fibered=True)

    def stride(self, record: str) -> int:
        """Returns the bytes from one row of a record (the memory with all values of a row) to the next: whole
        cache lines. They are no multiple of 1024 bytes, which would map the rows to few cache sets.
        """
        used = self.used.get(record, 0)
        # Slack at the end: a vector that begins inside the last field may end beyond it.
        stride = used + LINE * max(1, self.width * 8 // LINE)
        return stride + LINE if stride % 1024 == 0 else stride
