"""Runs of a net whose parameters may be others at every call, as in training.

    run   bind the parameters, share out lanes, write words, run   ->   refill, set addresses, run

The second call of a form, of as many sequences and steps that lie alike, keeps what it prepared. Later ones
pack the parameters into the same memory. What another thread is using is not used.
"""

from collections.abc import Sequence

import numpy as np

from stepnet.engines import Bound, Call, FrozenCall, Kernel, Results
from stepnet.engines.threads import threads
from stepnet.rnn.idle import Idle, Key

Array = np.ndarray
LARGEST = 2**16
"""The bytes of lengths and places up to which a form is kept: it is known by them."""


class Runs(Idle[tuple[Bound, FrozenCall]]):
    """A kernel, and the prepared calls of it."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def __call__(self, parameters: Sequence[Array], call: Call) -> Results:
        """The results of a call with these parameters."""
        key = form_of(call)
        prepared = None if key is None else self.take(key)
        if key is None or (prepared is None and not self.is_due(key)):
            return self.once(parameters, call)
        if prepared is None:
            return self.prepare(key, parameters, call)
        try:
            bound, run = prepared
            if bound.rebind(parameters):
                return run(call.sequences, call.initial, call.statics)
        finally:
            self.put_back(key, prepared)
        return self.once(parameters, call)

    def once(self, parameters: Sequence[Array], call: Call) -> Results:
        """The results of a call of which nothing is kept."""
        bound = self.kernel.bind(parameters)
        results = bound(call)
        bound.release()
        return results

    def prepare(self, key: Key, parameters: Sequence[Array], call: Call) -> Results:
        """The results of a call that is prepared for more of its form, where it can be."""
        bound = self.kernel.bind(parameters)
        run = bound.frozen(call)
        if run is None or not bound.rebind(parameters):
            return bound(call)
        results = run(call.sequences, call.initial, call.statics)
        self.put_back(key, (bound, run))
        return results


def form_of(call: Call) -> Key | None:
    """The key of a call's form; None for a call that is not prepared."""
    if call.inner or call.beside or call.begun is not None or call.last_only:
        return None
    tables = [call.starts, call.lengths, *([] if call.steps is None else [call.steps])]
    if sum(table.nbytes for table in tables) > LARGEST:
        return None
    zeros = tuple(array is None for array in call.initial)
    return threads(), call.total, call.apart, zeros, *(table.tobytes() for table in tables)
