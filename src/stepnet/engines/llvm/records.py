"""Records of fields: where values are while a kernel runs, one record per row.

A record has all values of a stage for one row, field beside field. Rows are one stride apart. Every field is
padded to whole vectors: code reads and writes whole vectors everywhere, and only the copies from and to the
user's arrays know exact sizes.

    now, next    per lane: the memories before and after a step, exchanged at every step
    lane         per lane: statics, and scratch values of a step
    block        per step of a block of steps: inputs, values computed before the loop, outputs
    sequence     per sequence: values computed from statics, and at the end
"""

from dataclasses import dataclass, field

import numpy as np

from stepnet.net.types import Type

LINE = 64


@dataclass(frozen=True)
class Field:
    """The place of a value in a record: byte offset, number of elements, and dtype."""

    record: str
    offset: int
    size: int
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """The bytes of the elements, without padding."""
        return self.size * self.itemsize

    def part(self, start: int, size: int) -> "Field":
        """Some of the elements, as a field."""
        return Field(self.record, self.offset + start * self.itemsize, size, self.dtype)


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

    def stride(self, record: str) -> int:
        """The bytes from row to row: whole cache lines, and no power of two, which would crowd cache sets."""
        used = self.used.get(record, 0)
        # A line of slack behind: a vector that begins inside the last field may end beyond it.
        stride = used + LINE * max(1, self.width * 8 // LINE)
        return stride + LINE if stride % 1024 == 0 else stride
