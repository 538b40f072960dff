"""Values that are computed once and kept: a property in its object, an entry in a cache of limited size.

`functools.cached_property` does the same as the property, but in Python 3.11 it holds a lock during the
computation: a process forked in the meantime would wait for it for ever.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")
MOST_ENTRIES = 32
"""The largest number of entries of a cache that has no limit of its own."""


class computed_once(Generic[Value]):  # noqa: N801 - it is written as a decorator
    """Decorator that makes a method a property, computed at first access and kept in the object's dictionary.

    >>> class Net:
    ...     @computed_once
    ...     def plan(self):
    ...         print("planning")
    ...         return "plan"
    >>> net = Net()
    >>> net.plan, net.plan
    planning
    ('plan', 'plan')
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        """Makes a property of the method `compute`."""
        self.compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> "computed_once[Value]": ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Value: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Computes the value at first access to the property of an object, and stores it in the object under
        the same name, where later accesses find it. Of threads that compute it at once, all get that of the
        first to end: another value could own memory whose address machine code keeps. Accessed on the class,
        returns the property itself.
        """
        if instance is None:
            return self
        return instance.__dict__.setdefault(self.compute.__name__, self.compute(instance))


def put_latest(entries: OrderedDict[Any, Any], key: Any, value: Any, most: int = MOST_ENTRIES) -> None:
    """Adds an entry to a cache, and removes the oldest entries beyond `most`.

    >>> entries = OrderedDict(a=1, b=2)
    >>> put_latest(entries, "c", 3, most=2)
    >>> dict(entries)
    {'b': 2, 'c': 3}
    """
    entries[key] = value
    limit(entries, most)


def limit(entries: OrderedDict[Any, Any], most: int) -> None:
    """Removes the oldest entries of a cache beyond `most`."""
    while len(entries) > most:
        drop_oldest(entries)


def drop_oldest(entries: OrderedDict[Any, Any]) -> None:
    """Removes the oldest entry of a cache, unless other threads have removed all since it had one."""
    with suppress(KeyError):
        entries.popitem(last=False)


def entry_of(
    entries: OrderedDict[Any, Any], key: Any, make: Callable[[], Any], most: int = MOST_ENTRIES
) -> Any:
    """Returns the entry of a cache for a key. At the first use of the key, makes the entry and adds it, and
    removes the oldest entries beyond `most`. Threads may share the cache: all get the entry that was first.

    >>> entries = OrderedDict(a=1)
    >>> entry_of(entries, "a", int), entry_of(entries, "b", int)
    (1, 0)
    """
    found = entries.get(key)
    if found is None:
        found = entries.setdefault(key, make())
        limit(entries, most)
    return found
