"""What calls of one form have prepared, kept for later ones: that which no thread is using.

first call    remembered           second call    prepared, used and kept           later calls    used

Forms that come once do not replace what is prepared for others.
"""

from collections import OrderedDict
from typing import Any, Generic, TypeVar

Key = tuple[Any, ...]
Kind = TypeVar("Kind")
MOST = 4
"""How many forms are kept: what is prepared for each has memory of its own to work in."""


class Idle(Generic[Kind]):
    """What is prepared and not used now, by form.

    idle: an empty list for a form for which nothing can be prepared, or of which all is being used. seen: how
    many calls there were of the latest forms for which nothing is prepared yet. There is no lock: each change
    of a list or a dictionary is done at once.
    """

    def __init__(self) -> None:
        self.idle: OrderedDict[Key, list[Kind]] = OrderedDict()
        self.seen: OrderedDict[Key, int] = OrderedDict()

    def take(self, key: Key) -> Kind | None:
        """What is prepared for a form, for this call alone; None where there is nothing."""
        try:
            idle = self.idle.get(key)
            return idle.pop() if idle else None
        except IndexError:  # another thread has taken it since
            return None

    def put_back(self, key: Key, prepared: Kind) -> None:
        """Keeps what was taken, or prepared anew, unless its form has given way to others since."""
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
    """Adds an entry; the oldest gives way where there are too many."""
    kept[key] = value
    while len(kept) > MOST:
        kept.popitem(last=False)
