"""Kernels of schedules whose calls are recorded: the first call of a form runs, and later ones give its work.

    first call      parts -> stages, loops -> kernels launched, and noted
    second call     memory planned, arguments of all launches prepared
    later calls     memory allocated, kernels launched

A form is all facts that the work of a call depends on besides its arrays: the positions of its sequences,
which memories are given, whether all outputs are asked for, and whether steps are counted from earlier calls
on, in which case their numbers are one of its arrays. Calls run as the first one where sequences end early,
where steps that run one by one are counted on, where the positions are many, where no arrays are given, where
parameters of the host change, and where the host reads what the device computed, as for tables that are read
at an index.
"""

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import gcd
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np

from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.base import (
    Array,
    Bound,
    Call,
    CalledKernel,
    Kernel,
    OptionalArrays,
    Places,
    PreparedCall,
    Results,
    TableLayout,
)
from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
from stepnet.compiler.targets.cuda.device import DeviceArray, NotResidentError, get, put_together
from stepnet.compiler.targets.cuda.recording.notes import WORK_BYTES, CallNotes, ResultPlace
from stepnet.compiler.targets.cuda.recording.work import Recording
from stepnet.compiler.targets.packed import has_buffers
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import DeviceError

MOST_BYTES = 64 * 2**20
"""The most bytes that recorded calls hold: positions on devices, and their work."""
MOST_CALLS = 256
"""The largest number of recorded calls."""
WIDEST = 16
"""The bytes that one instruction moves at most: up to these, the alignment of arguments matters."""
UNKNOWN = (
    "a CUDA graph captures only calls whose work is known, as nothing can be copied to the GPU during the "
    "capture: run this call once before it, with the same lengths"
)
UNSUITED = "this call cannot be captured in a CUDA graph: {}"
ENDS_EARLY = "its sequences end early"
COUNTS_ON = "steps that run one by one are counted from earlier calls on"
CHANGES = "its parameters are of the host, and have changed"
NOTHING = "it is given no arrays"
LARGE = "the positions of its sequences take more than 64 KiB"

Key = tuple[int, Hashable, tuple[bool, ...], bool, int]
NUMBERS = itertools.count()


class NotedCall:
    """A call whose work was noted, to be given again.

    notes: the notes of the call. places: where its results lie. counts: the numbers of outputs and of results
    per row, which come first. shared: the results that may lie together. bytes: those that it holds.
    """

    def __init__(
        self, notes: CallNotes, places: Sequence[ResultPlace], counts: tuple[int, int], shared: slice
    ) -> None:
        """Takes the notes of a call, and of its results."""
        self.notes, self.places, self.counts, self.shared = notes, places, counts, shared
        self.bytes = notes.bytes + WORK_BYTES * len(notes.work)

    @computed_once
    def recording(self) -> Recording:
        """The work with the memory that later calls need, planned at the second call of the form."""
        return Recording.of(self.notes, self.places, self.shared)

    def __call__(self, arguments: Sequence[DeviceArray]) -> Results:
        """Gives the work of the call on other arguments; returns its results."""
        return in_kinds(self.recording(arguments), self.counts)


RECORDED: "OrderedDict[Key, NotedCall | str]" = OrderedDict()
"""The recorded calls of all kernels, the latest last; for those that cannot be recorded the reason."""


def keep(key: Key, call: NotedCall | str) -> None:
    """Keeps a recorded call, and forgets the oldest ones beyond `MOST_BYTES` and `MOST_CALLS`."""
    RECORDED[key] = call
    held = sum(each.bytes for each in RECORDED.copy().values() if isinstance(each, NotedCall))
    while len(RECORDED) > MOST_CALLS or held > MOST_BYTES:
        try:
            _, gone = RECORDED.popitem(last=False)
        except KeyError:  # another thread has forgotten the last one since
            return
        held -= gone.bytes if isinstance(gone, NotedCall) else 0


def found(key: Key) -> NotedCall | str | None:
    """Returns a recorded call, which becomes the latest; None if there is none."""
    call = RECORDED.get(key)
    if call is not None:
        with suppress(KeyError):  # another thread has forgotten it since
            RECORDED.move_to_end(key)
    return call


def forget(number: int) -> None:
    """Forgets the recorded calls of a kernel, or of one with its parameters, by its number."""
    for key in tuple(RECORDED):
        if key[0] == number:
            RECORDED.pop(key, None)


def numbered(owner: Any) -> int:
    """Returns a number for the recorded calls of an object, which are forgotten with it."""
    number = next(NUMBERS)
    finalize(owner, forget, number).atexit = False
    return number


@dataclass(frozen=True, eq=False)
class RecordedKernel:
    """Kernel of a schedule on a device, whose calls are recorded.

    parts: the kernel that runs the schedule part by part. memory: the memory of the device.
    """

    schedule: Schedule
    parts: Kernel
    memory: CudaMemory

    @computed_once
    def number(self) -> int:
        """The number of the recorded calls whose parameters lie on the device: these are arguments."""
        return numbered(self)

    @computed_once
    def counts_steps(self) -> bool:
        """Tells whether a value depends on how many steps ran in earlier calls."""
        return reads_index(self.schedule)

    @computed_once
    def has_inner(self) -> bool:
        """Tells whether the steps of a part run one by one, each as a schedule of its own."""
        return any(part.inner is not None for part in self.schedule.parts)

    def bind(self, parameters: Sequence[Array]) -> "RecordedBound":
        """Binds the kernel to parameters, in the net's order: arrays of the host, or of the device."""
        return RecordedBound(self, parameters)


def reads_index(schedule: Schedule) -> bool:
    """Tells whether an operation of a schedule, or of the steps of its loops, reads the number of a step."""
    nets = [schedule.net]
    for part in schedule.parts:
        if part.inner is not None and reads_index(part.inner):
            return True
        nets += [] if part.plan is None else [part.plan.net, part.plan.body]
    return any(node.operation == "index" for net in nets for node in net.nodes)


class RecordedBound(CalledKernel):
    """Kernel of a schedule with its parameters, whose calls are recorded.

    Parameters of the host are copied to the device once, and what follows from them is computed once; once
    they have changed, calls run part by part. Those of the device may change at any time: each call reads
    them anew, as it reads its arrays.
    """

    def __init__(self, kernel: RecordedKernel, parameters: Sequence[Any]) -> None:
        """Takes a kernel and its parameters, in the net's order."""
        self.kernel, self.memory = kernel, kernel.memory
        self.parameters, self.arguments = parameters, self.on_device(parameters)
        self.number = kernel.number if self.arguments else numbered(self)
        self.has_changed = False

    def on_device(self, parameters: Sequence[Any]) -> list[DeviceArray]:
        """Returns parameters as arguments of calls; none of them if all are of the host."""
        if not has_buffers(parameters):
            return []
        return [self.memory.put_constant(array) for array in parameters]

    @computed_once
    def inner(self) -> Bound:
        """The parts with these parameters, which run one by one."""
        return self.kernel.parts.bind(self.parameters)

    @property
    def ends_early(self) -> bool:
        """Tells whether calls whose sequences end early can run."""
        return self.inner.ends_early

    def rebind(self, parameters: Sequence[Any]) -> bool:
        """Replaces the parameters, for later calls. Returns False if they were on the host and are now on the
        device, or the other way round.
        """
        arguments = self.on_device(parameters)
        if bool(arguments) != bool(self.arguments):
            return False
        if not arguments and not are_same(parameters, self.parameters):
            self.has_changed = True
            forget(self.number)
            if not self.inner.rebind(parameters):
                return False
        if arguments:
            self.__dict__.pop("inner", None)
        self.parameters, self.arguments = parameters, arguments
        return True

    def release(self) -> None:
        """Frees the memory of the parts, if they ran."""
        if "inner" in self.__dict__:
            self.inner.release()

    def __call__(self, call: Call) -> Results:
        """Runs a call: the first one of a form part by part, later ones as it was recorded. Raises
        `DeviceError` for a call that PyTorch captures in a CUDA graph, and that is not known.
        """
        if reason := self.refused(call):
            return self.in_parts(call, reason)
        form = WorkForm.of(call, self.kernel.counts_steps)
        return self.run(call, form, [*call.given, *form.counted(call)])

    def in_parts(self, call: Call, reason: str) -> Results:
        """Runs a call part by part. reason: why it is not recorded. Raises `DeviceError` during a capture."""
        if self.memory.device.is_capturing:
            raise DeviceError(UNSUITED.format(reason))
        return self.inner(call)

    def refused(self, call: Call) -> str:
        """Returns why a call is not recorded; "" if it is."""
        if call.until is not None:
            return ENDS_EARLY
        if call.step_offset is not None and self.kernel.counts_steps and self.kernel.has_inner:
            return COUNTS_ON
        return LARGE if call.positions.key is None else ""

    def prepare(self, call: Call, layout: TableLayout | None = None) -> PreparedCall | None:
        """Prepares calls with other arrays at the positions of this one; None for calls of any lengths, and
        for calls that are not recorded.
        """
        if layout is not None or self.refused(call):
            return None
        form, shapes = WorkForm.of(call, self.kernel.counts_steps), [each.shape for each in call.sequences]
        like = replace(call, sequences=(), initial=(), statics=(), step_offset=None)
        counted = form.counted(call)

        def run(given: OptionalArrays, places: Places | None) -> Results:
            """Runs the call on other arrays; returns its results."""
            arrays: list[Any] = [*given, *counted]
            for place, shape in enumerate(shapes):
                if arrays[place].shape != shape:
                    arrays[place] = arrays[place].reshape(shape)
            return self.run(like, form, arrays)

        return PreparedCall(run, 0)

    def run(self, like: Call, form: "WorkForm", given: OptionalArrays) -> Results:
        """Runs a call, as recorded if it is known. form: the facts that its work depends on. given: its
        arrays.
        """
        if self.has_changed or all(array is None for array in given):
            return self.in_parts(form.call(like, given), CHANGES if self.has_changed else NOTHING)
        arguments, is_host = self.arguments, not has_buffers(given)
        bits = 0
        for array in (*given, *arguments):
            if isinstance(array, DeviceArray):
                bits |= array.address
        zeros = tuple(array is None for array in given)
        key = self.number, form.key, zeros, is_host, gcd(WIDEST, bits)
        known = found(key)
        if isinstance(known, str):
            return self.in_parts(form.call(like, given), known)
        put = self.memory.put
        if known is not None:
            own = [array for array in given if array is not None]
            arrays = put_together(self.memory.device, own) if is_host else [*map(put, own)]
            try:
                results: Any = known(arrays + arguments)
            except NotResidentError:  # another program has a part of the GPU since: another loop is chosen
                RECORDED.pop(key, None)
                return self.run(like, form, given)
        elif self.memory.device.is_capturing:
            raise DeviceError(UNKNOWN)
        else:
            buffers = [None if array is None else put(array) for array in given]
            results = self.record(key, form, like, buffers, is_host)
        return Results(*(list(map(get, kind)) for kind in results)) if is_host else results

    def record(
        self, key: Key, form: "WorkForm", like: Call, arrays: Sequence[DeviceArray | None], is_host: bool
    ) -> Results:
        """Runs a call on arrays of the device part by part, and keeps notes of its work.

        like, form: as for `run`. is_host: whether its results are for the host, so that they may lie
        together.
        """
        notes = CallNotes(self.memory.device)
        bound = None if self.arguments else self.inner
        with notes.noting():
            given = [None if array is None else notes.argument(array) for array in arrays]
            if bound is None:
                own: list[Any] = [notes.argument(array) for array in self.arguments]
                bound = self.kernel.parts.bind(own)
            results: Any = bound(form.call(like, given))
        pairs = [notes.result(array) for array in results.arrays]
        places = [place for _, place in pairs if place is not None]
        counts = len(results.outputs), len(results.final)
        separate = counts[0] if like.separate_outputs is None else like.separate_outputs
        shared = slice(0, len(places)) if is_host else slice(separate, counts[0])
        keep(key, notes.refused or NotedCall(notes, places, counts, shared))
        return in_kinds([array for array, _ in pairs], counts)


class WorkForm(NamedTuple):
    """Form of a call: the facts that its work depends on, apart from which arrays it is given and where they
    lie.

    key: a digest. sequences, initial: the numbers of its sequences and of its initial memories.
    counts_on: whether its steps are counted from earlier calls on.
    """

    key: Hashable
    sequences: int
    initial: int
    counts_on: bool

    @classmethod
    def of(cls, call: Call, counts_steps: bool) -> "WorkForm":
        """Returns the form of a call. counts_steps: whether it matters how many steps ran before it."""
        counts_on = counts_steps and call.step_offset is not None
        return cls(
            (call.positions.key, call.last_only, call.separate_outputs, counts_on),
            len(call.sequences),
            len(call.initial),
            counts_on,
        )

    def counted(self, call: Call) -> list[Array]:
        """Returns the numbers of steps in earlier calls, the last array of a call that counts on."""
        return [np.ascontiguousarray(call.step_offset, np.int64)] if self.counts_on else []

    def call(self, like: Call, given: Sequence[Any]) -> Call:
        """Returns a call of this form on sequences, initial memories, statics and perhaps steps so far."""
        first, last, end = self.sequences, self.sequences + self.initial, len(given) - self.counts_on
        kinds = {"sequences": given[:first], "initial": given[first:last], "statics": given[last:end]}
        return replace(like, **kinds, step_offset=given[-1] if self.counts_on else None)


def in_kinds(results: Sequence[Any], counts: tuple[int, int]) -> Results:
    """Returns results by kind. counts: the numbers of outputs and of results per row, which come first."""
    first, last = counts[0], sum(counts)
    arrays = [*results]
    return Results(arrays[:first], arrays[first:last], arrays[last:])


def are_same(parameters: Sequence[Array], others: Sequence[Array]) -> bool:
    """Tells whether parameters are the same arrays as others, and nothing can have changed them since."""
    return all(
        one is other and not one.flags.writeable and one.base is None
        for one, other in zip(parameters, others, strict=True)
    )
