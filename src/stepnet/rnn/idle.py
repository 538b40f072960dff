"""What calls of one form have prepared, kept for later ones: that which no thread is using.

first call    remembered           second call    prepared, used and kept           later calls    used
"""

from collections import OrderedDict
from typing import Any, Generic, TypeVar

Key = tuple[Any, ...]
Kind = TypeVar("Kind")
MOST = 4
"""How many forms are kept: what is prepared for each has memory of its own to work in."""


class Idle(Generic[Kind]):
    """What is prepared and not used now, by form.

    The entry of a form is None after its first call, and an empty list where nothing can be prepared for it,
    or all is being used. There is no lock: each change of a list or a dictionary is done at once.
    """

    def __init__(self) -> None:
        self.idle: OrderedDict[Key, list[Kind] | None] = OrderedDict()

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

    def is_due(self, key: Key) -> bool:
        """Whether this is the second call of its form, which is to be prepared; remembers the first."""
        if key not in self.idle:
            self.idle[key] = None
            while len(self.idle) > MOST:
                self.idle.popitem(last=False)
            return False
        due = self.idle.get(key) is None
        if due:
            self.idle[key] = []
        return due
