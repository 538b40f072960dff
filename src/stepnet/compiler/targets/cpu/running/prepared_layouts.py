"""Prepared calls of a schedule with inner or static sequences, by the lengths of these.

    first call of some lengths      part by part, counted
    second                          prepared, and run
    later                           run

The front ends prepare calls without such sequences (`model/executables.py`); those with them they pass on.
"""

from collections import OrderedDict
from collections.abc import Hashable

from stepnet.compiler.targets.base import Call, PreparedCall, Results
from stepnet.compiler.targets.cpu.running.schedule_block import schedule_block
from stepnet.compiler.targets.schedule_kernel import BoundParts
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.once import put_latest

MOST_LAYOUTS = 4
"""The largest number of forms whose calls are prepared, and of those that are counted."""


def form_of(call: Call) -> Hashable | None:
    """Returns the key of a call: equal for calls of the same lengths and options, which one prepared call
    runs. None for calls that none can run: those that continue at a later step, those whose sequences may end
    early, and those whose lengths have no key.
    """
    if call.step_offset is not None or call.until is not None:
        return None
    zeros = tuple(array is None for array in call.initial)
    return call.positions.key and (call.positions.key, zeros, call.last_only, threads())


class PreparedLayouts:
    """Runner of a schedule for calls with inner or static sequences. Prepared calls hold memory, so a call
    takes one out while it runs.

    idle: the prepared calls that no thread is using, by form. seen: the forms of the latest calls.

    There is no lock: each change of a list or a dictionary is atomic.
    """

    def __init__(self, bound: BoundParts) -> None:
        """Takes a schedule (a net divided into parts) with its parameters. No call of it is prepared yet."""
        self.bound = bound
        self.idle = OrderedDict[Hashable, list[PreparedCall]]()
        self.seen = OrderedDict[Hashable, None]()

    def prepare(self, call: Call) -> PreparedCall | None:
        """Prepares calls like this one, of the same lengths; None if the parts must run one by one."""
        return None if form_of(call) is None else schedule_block(self.bound, call)

    def __call__(self, call: Call) -> Results:
        """Runs a call; returns its results. From the second call of a form (lengths and options) on, it runs
        as one block of tasks that was prepared for the form; the first, and calls that cannot be prepared,
        run part by part.
        """
        form = form_of(call)
        taken = None if form is None else self.take(form, call)
        if taken is None:
            return self.bound.in_turn(call)
        prepared, idle = taken
        try:
            return prepared.run(call.given, None)
        finally:
            idle.append(prepared)

    def take(self, form: Hashable, call: Call) -> tuple[PreparedCall, list[PreparedCall]] | None:
        """Takes a call that was prepared for the form of `call` (its key in the cache), or prepares one when
        the form comes a second time. Returns it, and the list to append it to after its use; None for the
        first call of a form, while another thread uses it, and if it cannot be prepared.
        """
        idle = self.idle.get(form)
        try:
            if idle:
                return idle.pop(), idle
        except IndexError:  # another thread has taken it since
            return None
        if idle is not None:
            return None
        if form not in self.seen:
            put_latest(self.seen, form, None, MOST_LAYOUTS)
            return None
        idle = list[PreparedCall]()
        put_latest(self.idle, form, idle, MOST_LAYOUTS)
        prepared = self.prepare(call)
        return None if prepared is None else (prepared, idle)
