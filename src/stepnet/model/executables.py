"""Executables: calls that are prepared once, for later calls of the same form.

    first call of a form    counted      second    prepared, run and kept      later    arrays set, and run

A form is all that the preparation depends on: the positions of the sequences, the number of threads, which
arrays are given. A form that occurs only once does not evict another one. An executable has workspaces of its
own, so a call takes it out of the cache while it runs; a call of another thread meanwhile runs unprepared.

Each program has its own executables; all those of the process together hold at most `MOST_BYTES`.
"""

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

import numpy as np

from stepnet.compiler.targets import AtTensors, Bound, Call, Kernel, PreparedCall, Results, RunOn
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.lending import Spec
from stepnet.compiler.values.once import put_latest
from stepnet.errors import IndexOutsideError

Array = np.ndarray
Form = tuple[Any, ...]
Kind = TypeVar("Kind")
Made = TypeVar("Made")
MOST_BYTES = 128 * 2**20
"""The largest number of bytes that the workspaces of all kept executables hold."""
MOST_FORMS = 64
"""The largest number of forms of a program for which executables are kept."""
MOST_COUNTED = 8
"""The largest number of forms of a program whose calls are counted. Their keys hold the positions of
sequences.
"""
MOST_LISTS = 4
"""The largest number of lists of tensors for which a prepared call is kept, as modules of the same net have
other layouts of results.
"""
MOST_MISSED = 32
"""The calls of a form that find its prepared call in use, after which the form is prepared again."""
RECENT: "OrderedDict[tuple[int, Form], tuple[weakref.ref[Any], int]]" = OrderedDict()
"""The forms of all programs, the latest last: for each, its cache and the bytes of its executable."""


class Executables(Generic[Kind]):
    """The prepared calls of a program that no thread is using, by form (the key of a call).

    idle: for each form, a list with its prepared call; empty while that is in use, and where there is
        none. An interrupt, or an error while a call is prepared, may leave it empty.
    counts: the number of calls of the latest forms for which nothing is prepared, or free.

    There is no lock: each change of a list or a dictionary is atomic, and so is a copy. To list items is not,
    as the collector may run in the middle.
    """

    def __init__(self) -> None:
        """Makes an empty cache of prepared calls, and of the numbers of calls that are not prepared yet."""
        self.idle: OrderedDict[Form, list[Kind]] = OrderedDict()
        self.counts: OrderedDict[Form, int] = OrderedDict()

    def take(self, form: Form) -> tuple[Kind, list[Kind]] | None:
        """Takes a prepared call out of the cache, so that no other thread uses it; returns None if there is
        none.

        Returns the call, and the list to append it to after its use. If its form has been evicted since, the
        append has no effect.

        form: the key of the call.
        """
        idle = self.idle.get(form)
        try:
            if idle:
                return idle.pop(), idle
        except IndexError:  # another thread has taken it since
            return None
        if idle is not None and self.counted(form) > MOST_MISSED:
            self.counts.pop(form, None)
            self.idle.pop(form, None)
        return None

    def run(self, form: Form, call: Callable[[Kind], Made | None]) -> Made | None:
        """Returns the result of `call` on the prepared call of a form (key), which no other thread uses
        meanwhile.

        Returns None if none is free, and for an integer outside of a parameter or lengths that it refuses:
        the call that is not prepared names them.
        """
        if (taken := self.take(form)) is None:
            return None
        executable, idle = taken
        try:
            return call(executable)
        except IndexOutsideError:
            return None
        finally:
            idle.append(executable)

    def is_due(self, form: Form, calls: int = 2) -> bool:
        """Counts a call by its form (cache key); returns whether it is the `calls`-th, to be prepared now.

        If so, it adds an empty list for the form, so that no other call prepares it.
        """
        if form in self.idle or self.counted(form) < calls:
            return False
        self.counts.pop(form, None)
        put_latest(self.idle, form, [], MOST_FORMS)
        return True

    def counted(self, form: Form) -> int:
        """Counts a call by its form (cache key); returns the number of calls of the form so far, with this
        one.
        """
        count = self.counts.pop(form, 0) + 1
        put_latest(self.counts, form, count, MOST_COUNTED)
        return count

    def keep(self, form: Form, executable: Kind, size: int) -> None:
        """Adds a prepared call to the cache, if its form (key) is still in it, and evicts the oldest ones
        beyond `MOST_BYTES` in total.

        executable: the prepared call.
        size: its number of bytes.
        """
        if (idle := self.idle.get(form)) is not None:
            idle.append(executable)
        RECENT[id(self), form] = weakref.ref(self), size + bytes_of(form)
        evict_oldest()


def evict_oldest() -> None:
    """Evicts the oldest prepared calls of all programs beyond `MOST_BYTES`, and those of deleted programs.

    At most `MOST_FORMS`**2 of them remain.
    """
    held = 0
    for key, (owner, size) in RECENT.copy().items():
        if owner() is None:
            RECENT.pop(key, None)
        else:
            held += size
    while held > MOST_BYTES or len(RECENT) > MOST_FORMS**2:
        try:
            (_, oldest), (owner, size) = RECENT.popitem(last=False)
        except KeyError:  # another thread has evicted the last one since
            return
        held -= size
        if (cache := owner()) is not None:
            gone = cache.idle.pop(oldest, None)
            for form, idle in cache.idle.copy().items():  # several forms may have one entry
                if idle is gone:
                    cache.idle.pop(form, None)


def forget_taken() -> None:
    """Forgets, in a forked process, the forms (cache keys) whose prepared calls were in use: the threads that
    would give them back exist only in the parent. They are counted and prepared again.
    """
    for (_, form), (owner, _) in RECENT.copy().items():
        if (cache := owner()) is not None and not cache.idle.get(form, True):
            cache.idle.pop(form, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_taken)


def bytes_of(form: Form) -> int:
    """Returns the number of bytes of the offsets in a form (key of a call), nested tuples included."""
    total = 0
    for part in cast("tuple[object, ...]", form):
        if isinstance(part, bytes):
            total += len(part)
        elif isinstance(part, tuple):
            total += bytes_of(cast("Form", part))
    return total


def prepared_for(bound: Bound, parameters: Sequence[Array], call: Call, changes: bool) -> PreparedCall | None:
    """Prepares later calls of a kernel (compiled code), with the bytes of its parameters among those of the
    call; returns None if it cannot.

    parameters: the parameters that the kernel is bound to.
    call: a call like those to come.
    changes: whether the parameters may differ at each call: `bound.rebind` then replaces them before it.
    """
    prepared = bound.prepare(call)
    if prepared is None or (changes and not bound.rebind(parameters)):
        return None
    return replace(prepared, bytes=prepared.bytes + sum(array.nbytes for array in parameters))


class ReboundCall:
    """A prepared call, and the kernel whose parameters are replaced before each run of it.

    runs: what runs it on tensors, by the identity of the facts about these, with them.
    """

    def __init__(self, bound: Bound, prepared: PreparedCall) -> None:
        """Takes the kernel (compiled net) with parameters, and the call that was prepared of it."""
        self.bound, self.prepared = bound, prepared
        self.runs = OrderedDict[int, tuple[AtTensors, "RunOn | None"]]()

    def at(self, places: AtTensors, specs: Sequence[Spec]) -> "RunOn | None":
        """Makes the function that replaces the parameters, and runs the call, on the memory of tensors.

        places: the values in the tensors. specs: the shapes and dtypes of the parameters.
        """
        packing = self.bound.packing_tasks()
        rebind = None if packing is not None else partial(self.bound.rebind_at, specs=specs)
        return self.prepared.at(places, packing or (), rebind)


class Runs(Executables[ReboundCall]):
    """Runs a kernel whose parameters may change at every call, as in training.

    A call packs its parameters into the memory of a prepared call, and sets the addresses of its arrays.
    """

    def __init__(self, kernel: Kernel) -> None:
        """Makes an empty cache of prepared calls of a kernel (compiled net)."""
        super().__init__()
        self.kernel = kernel

    def __call__(self, parameters: Sequence[Array], call: Call) -> Results:
        """Runs a call of the kernel (compiled net) with these parameters, by a prepared call of its form
        (key) if one is free.

        A call also runs unprepared if the kernel cannot replace its parameters by these.
        """
        form = form_of(call)
        if form is None:
            return self.once(parameters, call)
        if (taken := self.take(form)) is None:
            return self.prepare(form, parameters, call) if self.is_due(form) else self.once(parameters, call)
        own, idle = taken
        try:
            if own.bound.rebind(parameters):
                return own.prepared.run(call.given, None)
        finally:
            idle.append(own)
        return self.once(parameters, call)

    def run_on(self, form: Form, tensors: list[Any], places: AtTensors, specs: Sequence[Spec]) -> bool:
        """Runs a prepared call of the kernel on tensors; returns whether it did: False, having run nothing,
        if no call of this form (key) is free, none runs so, or a tensor lends no memory.

        places: the values in the tensors, the same for all calls of the form. specs: the shapes and dtypes of
        the parameters.
        """
        if (taken := self.take(form)) is None:
            return False
        own, idle = taken
        try:
            if (found := own.runs.get(id(places))) is None:
                found = places, own.at(places, specs)
                put_latest(own.runs, id(places), found, MOST_LISTS)
            run = found[1]
            return run is not None and run(tensors)
        finally:
            idle.append(own)

    def once(self, parameters: Sequence[Array], call: Call) -> Results:
        """Runs a call of the kernel (compiled net) without preparing later ones; nothing of it is cached.

        parameters: the parameters of this call.
        """
        bound = self.kernel.bind(parameters)
        results = bound(call)
        bound.release()
        return results

    def prepare(self, form: Form, parameters: Sequence[Array], call: Call) -> Results:
        """Runs a call, and prepares later calls of its form (key) if the engine can; returns the results.

        parameters: the parameters of this call.
        """
        bound = self.kernel.bind(parameters)
        prepared = prepared_for(bound, parameters, call, changes=True)
        if prepared is None:
            return bound(call)
        results = prepared.run(call.given, None)
        self.keep(form, ReboundCall(bound, prepared), prepared.bytes)
        return results


def form_of(call: Call) -> Form | None:
    """Returns the key by which prepared calls are found, for a call; None if such a call is never prepared.

    Such are calls with a count of earlier steps, or those that return only last outputs.
    """
    positions = call.positions
    if call.step_offset is not None or call.last_only:
        return None
    if positions.key is None:
        return None
    zeros = tuple(array is None for array in call.initial)
    return threads(), call.separate_outputs, zeros, positions.key
