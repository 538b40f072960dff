"""A pause of Python's garbage collector, for work that allocates many objects that stay alive.

The collector traverses all objects of the process each time their number has grown by some fraction. While a
net is compiled it does so repeatedly, finds nothing, and takes a third of the time if PyTorch is imported
too.

Modules that are imported meanwhile live as long as the process. Their objects are put into the oldest
generation at the end, where otherwise the next allocation would have the collector visit each of them.
"""

import gc
import os
import sys

PAUSED = list[bool]()
"""Has an entry while the collector is paused here."""


class paused_collector:  # noqa: N801 - it is written as a function
    """Context without Python's garbage collection; at its end the collector is turned on again if it was
    on.

    Ending it allocates no object: an allocation would immediately trigger the collection that is due.

    >>> with paused_collector():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """

    # An attribute of the class: `__del__` runs even where an interrupt comes ahead of `__init__`.
    pauses = False
    modules = 0

    def __enter__(self) -> None:
        """Pauses Python's garbage collector, if it is on, and notes this in `PAUSED`."""
        self.pauses = gc.isenabled()
        if self.pauses:
            self.modules = len(sys.modules)
            PAUSED.append(True)
            gc.disable()

    def __exit__(self, *_: object) -> None:
        """Turns Python's garbage collector on again if this context turned it off."""
        self.end()

    def __del__(self) -> None:
        """Ends the pause of the garbage collector if the context was not left normally."""
        if self.pauses:  # an interrupt may end `__enter__`, and then no `__exit__` follows
            self.end()

    def end(self) -> None:
        """Ends this context's pause of Python's garbage collector, if there is one."""
        if self.pauses:
            if len(sys.modules) > self.modules and not gc.get_freeze_count():  # the program's stay frozen
                gc.freeze()
                gc.unfreeze()
            PAUSED.clear()
            gc.enable()
            self.pauses = False


def resume() -> None:
    """Turns Python's garbage collector on in a forked child if a thread of the parent had paused it."""
    if PAUSED:
        gc.enable()
        PAUSED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=resume)
