"""Caches of objects that calls reuse, and the keys of each:

    runs        primitives with their buffers, by library, recurrence (cell, sizes, dtype, direction,
                training, scales), steps, rows, number of threads, and Python thread (buffers are not shared)
    weights     reordered weights, one entry per format, by library, recurrence, and serial number of the
                weights (new weights have a new number)
    paddings    tables of positions, by lengths, positions in the caller's arrays, and direction

All are least-recently-used caches, bounded by count and by bytes. The sense of the update gate
(`origin_mode`) is not part of a key: it is in the signs of the weights.
"""

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

from stepnet.compiler.values.records import dataclass

Value = TypeVar("Value")
Part = TypeVar("Part")
MEGABYTE = 2**20


@dataclass(frozen=True)
class Counts:
    """The statistics of a cache.

    Attributes:
        hits: How often an entry was found.
        misses: How often it had to be made.
        evictions: How many entries were removed to make room.
        entries: How many entries there are.
        bytes: The memory of their arrays.
    """

    hits: int
    misses: int
    evictions: int
    entries: int
    bytes: int


class Cache(Generic[Value]):
    """A thread-safe least-recently-used cache, bounded by count and bytes.

    most, most_bytes: the bounds.
    size: a function that returns the bytes of a value.

    A lock is safe here, because oneDNN is not used in forked processes.

    >>> cache = Cache(2, 100, len)
    >>> [cache.get(word, word.upper) for word in ("a", "b", "a", "c", "b")]
    ['A', 'B', 'A', 'C', 'B']
    >>> cache.counts
    Counts(hits=1, misses=4, evictions=2, entries=2, bytes=2)
    """

    def __init__(self, most: int, most_bytes: int, size: Callable[[Any], int]) -> None:
        """Makes an empty cache with bounds on its values and their bytes, which `size` returns."""
        self.most, self.most_bytes, self.size = most, most_bytes, size
        self.lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Removes all entries from the cache, and sets its statistics to 0."""
        with self.lock:
            self.values: dict[Hashable, tuple[Value, int]] = {}
            self.bytes = self.hits = self.misses = self.evictions = 0

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Returns the cached value of a key. If it is missing, calls `make` and caches what that returns."""
        value = self.find(key, unbounded)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def find(self, key: Hashable, pick: Callable[[Value], Part | None]) -> Part | None:
        """Looks a key up, and returns what `pick` returns for its value; None if the key is missing. None of
        `pick` counts as a miss too, as a value may hold nothing that suits the caller.
        """
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

    def peek(self, key: Hashable) -> Value | None:
        """Returns the value of a key, or None, without counting it as a use, a hit or a miss."""
        entry = self.values.get(key)
        return None if entry is None else entry[0]

    def put(self, key: Hashable, value: Value) -> None:
        """Sets the value of a key. If the cache is then too large, evicts the values not used for longest,
        but never the last one.
        """
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
        """The statistics since the cache was cleared: hits, misses, evictions, entries and bytes."""
        with self.lock:
            return Counts(self.hits, self.misses, self.evictions, len(self.values), self.bytes)


def unbounded(value: Value) -> Value:
    """Returns the value itself. As the argument `pick` of `Cache.find`, it accepts any cached value."""
    return value
