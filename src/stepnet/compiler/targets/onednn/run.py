"""Running a recurrence over sequences on a primitive: padding, initial and final memories, unpadding."""

from collections.abc import Mapping, Sequence
from threading import get_ident, local

import numpy as np

from stepnet.compiler.targets.limits import processors
from stepnet.compiler.targets.onednn.cache import MEGABYTE, Cache
from stepnet.compiler.targets.onednn.library import OneDnnLibrary
from stepnet.compiler.targets.onednn.padding import Padding
from stepnet.compiler.targets.onednn.primitives import PrimitiveRun, RecurrenceWeights
from stepnet.compiler.targets.onednn.recurrence import OneDnnRecurrence
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.records import dataclass

Array = np.ndarray

RUNS: Cache[PrimitiveRun] = Cache(128, 512 * MEGABYTE, lambda run: run.bytes)
LIMITS = local()
"""The number of threads that was set for each library, for this Python thread."""


@dataclass(frozen=True)
class RecurrenceResults:
    """Results of a recurrence.

    outputs: the output of each step in the caller's layout, [total, output].
    h: the final memory h of each sequence, [rows, output].
    c: the final memory c of each sequence, [rows, hidden], if requested.
    cells: c after each step in the caller's layout, [total, hidden], if requested.
    """

    outputs: Array
    h: Array
    c: Array | None = None
    cells: Array | None = None


@dataclass(frozen=True)
class Start:
    """Initial memories of a run.

    states: for each initial memory, by argument of the primitive, its array; None for zeros.
    """

    recurrence: OneDnnRecurrence
    states: Mapping[str, Array | None]

    @classmethod
    def of(cls, recurrence: OneDnnRecurrence, initial: Sequence[Array | None]) -> "Start":
        """Makes a run's initial memories of oneDNN from [h] or [h, c]; None and missing ones are zeros."""
        slots = ("src_iter", "src_iter_c")[: 1 + recurrence.row.has_cell]
        return cls(recurrence, dict(zip(slots, (*initial, None, None), strict=False)))

    def fill(self, run: PrimitiveRun) -> None:
        """Writes the initial memories to the buffers of the primitive of a run, before it runs."""
        for slot, state in self.states.items():
            run.begin(slot, state)

    def array(self, slot: str, rows: int) -> Array:
        """Returns the initial memory of oneDNN's `slot` as a new array [rows, ...], zeros for None."""
        state = self.states[slot]
        if state is None:
            return np.zeros((rows, *self.recurrence.shape(slot, 0, 0)[3:]), np.float32)
        return state + 0


def limit_threads(library: OneDnnLibrary, count: int) -> None:
    """Sets the number of threads on which the library runs calls from this Python thread, at most one per
    processor.

    OpenMP starts any requested number of threads, and ends the process if it cannot.
    """
    count = min(count, processors())
    told: dict[str, int] = getattr(LIMITS, "told", {})
    if told.get(library.path) != count:
        library.limit_threads(count)
        LIMITS.told = {**told, library.path: count}


def run_of(
    library: OneDnnLibrary,
    recurrence: OneDnnRecurrence,
    steps: int,
    rows: int,
    weights: RecurrenceWeights | None = None,
) -> PrimitiveRun:
    """Returns a primitive (an operation of oneDNN with buffers) that runs a recurrence for a number of steps
    and rows, from a cache of this Python thread, and sets the number of threads of the library.

    weights: the weights that the primitive uses; None to leave them unset.
    """
    library.check_process()
    count = threads()
    limit_threads(library, count)
    key = (library.path, recurrence, steps, rows, count, get_ident())
    run = RUNS.get(key, lambda: PrimitiveRun(library, recurrence, steps, rows))
    if weights is not None:
        weights.bind(run)
    return run


def run_recurrence(
    library: OneDnnLibrary,
    recurrence: OneDnnRecurrence,
    weights: RecurrenceWeights,
    padding: Padding,
    x: Array,
    initial: Sequence[Array | None] = (None, None),
    *,
    attention: Array | None = None,
    last_c: bool = False,
    all_c: bool = False,
) -> RecurrenceResults:
    """Runs a recurrence over sequences, float32, on oneDNN, and returns its results. weights: its weights in
    oneDNN's format.

    x: the inputs in the layout that `padding` describes, [total, inputs].
    initial: h and c, [rows, ...] each; None for zeros.
    attention: [total, 1], for a cell with attention.
    last_c, all_c: whether to return c after the last step of each sequence, and after each step.

    A call takes the time of the primitive, and of copies into and out of its padded arrays. There are no
    copies if the caller's array is [steps, rows] without gaps.
    """
    start = Start.of(recurrence, initial)
    read = {"src_layer": x} if attention is None else {"src_layer": x, "attention": attention}
    if not padding.steps:
        output = np.zeros((len(x), recurrence.output), np.float32)
        cells = np.zeros((len(x), recurrence.hidden), np.float32) if all_c else None
        c = start.array("src_iter_c", padding.rows) if last_c else None
        return RecurrenceResults(output, start.array("src_iter", padding.rows), c, cells)
    if all_c or (last_c and not padding.even):
        return run_in_pieces(library, recurrence, weights, padding, read, start, all_c)
    run = run_of(library, recurrence, padding.steps, padding.rows, weights)
    output, padded = run_padded(run, padding, read, start)
    return RecurrenceResults(
        output, ends(padded, padding, start), np.array(run.view("dst_iter_c")[0, 0]) if last_c else None
    )


def run_padded(
    run: PrimitiveRun, padding: Padding, read: Mapping[str, Array], start: Start
) -> tuple[Array, Array]:
    """Runs a primitive (an operation of oneDNN) on padded sequences; returns its outputs in the caller's
    layout [steps of all sequences, output], and padded [steps * rows, output]. If the caller's arrays have
    the padded layout, they are not copied.

    run: the primitive with its buffers. padding: the padded layout of the sequences.
    read: the arguments that have steps, by name, in the caller's layout. start: the initial memories.
    """
    recurrence = run.recurrence
    start.fill(run)
    if padding.is_contiguous and recurrence.dtype == "float32" and all(map(is_readable, read.values())):
        padded = output = np.empty((padding.steps * padding.rows, recurrence.output), np.float32)
        run.run_on({**read, "dst_layer": output})
    else:
        for slot, values in read.items():
            run.flat(slot)[padding.target] = to_storage(recurrence, slot, padding.packed(values))
        run.run()
        padded = run.flat("dst_layer")
        output = padding.unpadded(padded, len(read["src_layer"]))
    return output, padded


def is_readable(values: Array) -> bool:
    """Tells whether a primitive in float32 can read an array in place, without a copy."""
    return values.dtype == np.float32 and values.flags.c_contiguous


def to_storage(recurrence: OneDnnRecurrence, slot: str, values: Array) -> Array:
    """Returns the values as they are stored in the argument `slot` of a primitive (an operation of oneDNN):
    quantized if they are the inputs of a recurrence in int8, else unchanged.
    """
    if recurrence.calibration is not None and slot == "src_layer":
        return recurrence.calibration.quantized(values)
    return values


def ends(padded: Array, padding: Padding, start: Start) -> Array:
    """Returns the final memory h (recurrent state) of each sequence: its last output, or if it is empty its
    initial memory.

    padded: the outputs [steps * rows, ...] in the layout `padding`. start: the initial memories.
    """
    h = padded.take(padding.last, axis=0).astype(np.float32, copy=False)
    if padding.empty is not None:
        h[padding.empty] = start.array("src_iter", padding.rows)[padding.empty]
    return h


def run_in_pieces(
    library: OneDnnLibrary,
    recurrence: OneDnnRecurrence,
    weights: RecurrenceWeights,
    padding: Padding,
    read: Mapping[str, Array],
    start: Start,
    all_c: bool,
) -> RecurrenceResults:
    """Runs a recurrence piece by piece for results with the memory c, which a primitive (an operation of
    oneDNN) returns only at its last step. The steps are divided into pieces, each run by one primitive, which
    end where a sequence ends. For c of each step (`all_c`), each step is a piece.

    padding: the padded layout of the sequences.
    read: the arguments that have steps, by name, in the caller's layout. start: the initial memories.
    """
    steps, rows = padding.steps, padding.rows
    padded = {slot: padding.padded(to_storage(recurrence, slot, values)) for slot, values in read.items()}
    h = np.empty((steps, rows, recurrence.output), np.float32)
    c = np.empty((steps if all_c else 0, rows, recurrence.hidden), np.float32)
    last = start.array("src_iter_c", rows)
    ends_of_pieces = range(1, steps + 1) if all_c else padding.ends
    before, done = None, 0
    for end in ends_of_pieces:
        run = run_of(library, recurrence, end - done, rows, weights)
        backward = recurrence.direction == "right2left"
        times = slice(steps - end, steps - done) if backward else slice(done, end)
        if before is None:
            start.fill(run)
        else:
            copy_memories(before, run)
        for slot, values in padded.items():
            run.view(slot)[...] = values[times]
        run.run()
        h[times] = run.view("dst_layer")
        cells = run.view("dst_iter_c")[0, 0]
        if all_c:
            c[times] = cells
        ended = padding.lengths == end
        last[ended] = cells[ended]
        before, done = run, end
    total = len(read["src_layer"])
    flat = h.reshape(steps * rows, -1)
    cells = padding.unpadded(c.reshape(steps * rows, -1), total) if all_c else None
    return RecurrenceResults(padding.unpadded(flat, total), ends(flat, padding, start), last, cells)


def copy_memories(before: PrimitiveRun, run: PrimitiveRun) -> None:
    """Copies the final memories h and c of one run to the initial memories of the next run. before, run: the
    primitives (operations of oneDNN) of both, which may be the same object.
    """
    for slot in ("iter", "iter_c"):
        run.begin(f"src_{slot}", before.view(f"dst_{slot}")[0, 0])
