"""Runs of a net whose parameters may be others at every call, as in training.

    run   bind the parameters, share out lanes, write words, run   ->   refill, set addresses, run

The second call of a form, of as many sequences and steps that lie alike, keeps what it prepared. Later ones
pack the parameters into the same memory. What another thread is using is not used.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepnet.engines import Bound, Call, FrozenCall, Kernel, Results
from stepnet.engines.threads import threads

Array = np.ndarray
Key = tuple[object, ...]
MOST = 4
"""How many forms are kept: each has memory of its own to work in."""
LARGEST = 2**16
"""The bytes of lengths and places up to which a form is kept: it is known by them."""


@dataclass
class Runs:
    """What the runs of one kernel have prepared. idle: by form; None after the first call, and an empty list
    where a form cannot be prepared, or all is being used.
    """

    kernel: Kernel
    idle: OrderedDict[Key, list[tuple[Bound, FrozenCall]] | None] = field(
        default_factory=OrderedDict[Key, "list[tuple[Bound, FrozenCall]] | None"]
    )

    def __call__(self, parameters: Sequence[Array], call: Call) -> Results:
        """The results of a call with these parameters."""
        key = form_of(call)
        if key is None:
            return self.once(parameters, call)
        idle = self.idle.get(key)
        prepared = taken(idle)
        if prepared is not None and idle is not None:
            try:
                bound, run = prepared
                if bound.rebind(parameters):
                    return run(call.sequences, call.initial, call.statics)
            finally:
                idle.append(prepared)
        elif key in self.idle and idle is None:
            return self.prepare(key, parameters, call)
        else:
            self.remember(key)
        return self.once(parameters, call)

    def once(self, parameters: Sequence[Array], call: Call) -> Results:
        """The results of a call of which nothing is kept."""
        bound = self.kernel.bind(parameters)
        results = bound(call)
        bound.release()
        return results

    def prepare(self, key: Key, parameters: Sequence[Array], call: Call) -> Results:
        """The results of a call that is prepared for more of its form, where it can be."""
        self.idle[key] = idle = list[tuple[Bound, FrozenCall]]()
        bound = self.kernel.bind(parameters)
        run = bound.frozen(call)
        if run is None or not bound.rebind(parameters):
            return bound(call)
        results = run(call.sequences, call.initial, call.statics)
        idle.append((bound, run))
        return results

    def remember(self, key: Key) -> None:
        """Remembers the first call of a form."""
        self.idle.setdefault(key, None)
        while len(self.idle) > MOST:
            self.idle.popitem(last=False)


def form_of(call: Call) -> Key | None:
    """By what a form is known; None for a call whose form is not kept."""
    if call.inner or call.beside or call.begun is not None or call.last_only:
        return None
    tables = [call.starts, call.lengths, *([] if call.steps is None else [call.steps])]
    if sum(table.nbytes for table in tables) > LARGEST:
        return None
    zeros = tuple(array is None for array in call.initial)
    return threads(), call.total, call.apart, zeros, *(table.tobytes() for table in tables)


def taken(idle: list[tuple[Bound, FrozenCall]] | None) -> tuple[Bound, FrozenCall] | None:
    """One that no thread is using; None where there is none."""
    try:
        return idle.pop() if idle else None
    except IndexError:  # another thread has taken it since
        return None
