"""A pool of prepared calls by form, such as shapes: those that no thread is using.

first call    remembered           second call    prepared, used and kept           later calls    used

Forms that occur only once do not evict prepared calls of other forms.
"""

from collections import OrderedDict
from typing import Any, Generic, TypeVar

Key = tuple[Any, ...]
Kind = TypeVar("Kind")
MOST = 4
"""The largest number of forms: each prepared call has a workspace of its own."""


class Idle(Generic[Kind]):
    """The idle prepared calls, by form.

    idle: the prepared calls of each form; empty if none can be prepared, or all are in use.
    seen: the number of calls of recent forms for which nothing is prepared yet.

    There is no lock: each change of a list or dictionary is atomic.
    """

    def __init__(self) -> None:
        self.idle: OrderedDict[Key, list[Kind]] = OrderedDict()
        self.seen: OrderedDict[Key, int] = OrderedDict()

    def take(self, key: Key) -> Kind | None:
        """A prepared call of a form, removed from the pool; None if there is none."""
        try:
            idle = self.idle.get(key)
            return idle.pop() if idle else None
        except IndexError:  # another thread has taken it since
            return None

    def put_back(self, key: Key, prepared: Kind) -> None:
        """Returns a prepared call to the pool, unless its form has been evicted since."""
        idle = self.idle.get(key)
        if idle is not None:
            idle.append(prepared)

    def is_due(self, key: Key, calls: int = 2) -> bool:
        """Whether this call, the `calls`th of its form, is to be prepared; remembers those before it."""
        if key in self.idle:
            return False
        count = self.seen.pop(key, 0) + 1
        if count < calls:
            keep_latest(self.seen, key, count)
            return False
        keep_latest(self.idle, key, [])
        return True


def keep_latest(kept: OrderedDict[Key, Any], key: Key, value: Any) -> None:
    """Adds an entry; the oldest is evicted if there are too many."""
    kept[key] = value
    while len(kept) > MOST:
        kept.popitem(last=False)
