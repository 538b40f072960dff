"""Where values lie while a kernel runs: records of fields, one record per row.

A record is all that a stage keeps for one row, field beside field; rows lie one stride apart. Every field is
padded to whole vectors, so that code reads and writes whole vectors everywhere and only the copies from and
to the user's arrays know exact sizes.

    now, next    per lane: the memories before and after a step, exchanged at every step
    lane         per lane: statics, and what a step keeps for itself
    block        per step of a block of steps: inputs, what is computed before the loop, outputs
    sequence     per sequence: what is computed from statics, and in the end
"""

from dataclasses import dataclass, field

import numpy as np

from stepnet.net.types import Type

LINE = 64


@dataclass(frozen=True)
class Field:
    """A value's place in a record: byte offset, how many numbers, and their dtype."""

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
        """Bytes of the numbers, without padding."""
        return self.size * self.itemsize


@dataclass
class Records:
    """The records of a kernel, as fields are given out."""

    width: int
    used: dict[str, int] = field(default_factory=dict[str, int])

    def field(self, record: str, type_: Type) -> Field:
        """A new field for a value."""
        start = self.used.get(record, 0)
        padded = -(-max(type_.size, 1) // self.width) * self.width * type_.itemsize
        self.used[record] = start + -(-padded // LINE) * LINE
        return Field(record, start, type_.size, type_.dtype)

    def stride(self, record: str) -> int:
        """Bytes from row to row: whole lines, and no power of two, which would crowd the cache's sets."""
        used = self.used.get(record, 0)
        # A line of slack behind: a vector that begins inside the last field may end beyond it.
        stride = used + LINE * max(1, self.width * 8 // LINE)
        return stride + LINE if stride % 1024 == 0 else stride
