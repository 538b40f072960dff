"""What calls keep for the next ones, by everything that it depends on.

    runs        library, recurrence (cell, sizes, dtype, direction, training, scales), steps, rows, threads,
                and the thread of Python: a run has memory of its own
    weights     library, recurrence, and the serial number of the weights, which is new for new numbers: what
                was reordered for them, once per format that primitives want
    paddings    lengths, places in the caller's arrays, direction

All are bounded by count and by bytes; what was used longest ago goes first. The update gate's sense
(`origin_mode`) is in the weights: their signs differ.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
Part = TypeVar("Part")
MEGABYTE = 2**20


@dataclass(frozen=True)
class Counts:
    """What a cache has done, and what it holds.

    Attributes:
        hits: How often an entry was there.
        misses: How often it had to be made.
        evictions: How many were removed for others.
        entries: How many there are.
        bytes: The memory of their arrays.
    """

    hits: int
    misses: int
    evictions: int
    entries: int
    bytes: int


class Cache(Generic[Value]):
    """Values by key, bounded, for any threads.

    size: the bytes of a value. A lock is safe here: oneDNN is not used in forked processes.

    >>> cache = Cache(2, 100, len)
    >>> [cache.get(word, word.upper) for word in ("a", "b", "a", "c", "b")]
    ['A', 'B', 'A', 'C', 'B']
    >>> cache.counts
    Counts(hits=1, misses=4, evictions=2, entries=2, bytes=2)
    """

    def __init__(self, most: int, most_bytes: int, size: Callable[[Any], int]) -> None:
        self.most, self.most_bytes, self.size = most, most_bytes, size
        self.lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Removes all entries, and sets the counts to 0."""
        with self.lock:
            self.values: dict[Hashable, tuple[Value, int]] = {}
            self.bytes = self.hits = self.misses = self.evictions = 0

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, which is made where there is none."""
        value = self.find(key, whole)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def find(self, key: Hashable, pick: Callable[[Value], Part | None]) -> Part | None:
        """What `pick` takes of the value of a key: None, a miss, where there is none, or nothing fits."""
        with self.lock:
            entry = self.values.pop(key, None)
            if entry is not None:
                self.values[key] = entry
                picked = pick(entry[0])
                if picked is not None:
                    self.hits += 1
                    return picked
            self.misses += 1
            return None

    def held(self, key: Hashable) -> Value | None:
        """The value of a key, which does not count as its use."""
        entry = self.values.get(key)
        return None if entry is None else entry[0]

    def put(self, key: Hashable, value: Value) -> None:
        """Sets the value of a key, and removes the oldest ones beyond the bounds."""
        size = self.size(value)
        with self.lock:
            if key in self.values:
                self.bytes -= self.values.pop(key)[1]
            self.values[key] = (value, size)
            self.bytes += size
            while len(self.values) > self.most or (self.bytes > self.most_bytes and len(self.values) > 1):
                self.bytes -= self.values.pop(next(iter(self.values)))[1]
                self.evictions += 1

    @property
    def counts(self) -> Counts:
        """The counts so far."""
        with self.lock:
            return Counts(self.hits, self.misses, self.evictions, len(self.values), self.bytes)


def whole(value: Value) -> Value:
    """The value itself."""
    return value
