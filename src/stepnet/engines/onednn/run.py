"""A recurrence over sequences: padding in and out, states, and a primitive in between."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import get_ident, local

import numpy as np

from stepnet.engines.limits import processors
from stepnet.engines.onednn.cache import MEGABYTE, Cache
from stepnet.engines.onednn.library import Library
from stepnet.engines.onednn.padding import Padding
from stepnet.engines.onednn.primitives import Run
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.engines.onednn.weights import Weights
from stepnet.engines.threads import threads

Array = np.ndarray

RUNS: Cache[Run] = Cache(128, 512 * MEGABYTE, lambda run: run.bytes)
LIMITS = local()
"""How many threads each library was told to use, for this thread of Python."""


@dataclass(frozen=True)
class Ran:
    """The results of a recurrence.

    outputs: of each step, where the caller's steps lie, [total, output]. h: [rows, output], of each sequence
    at its own end. c: [rows, hidden], if it was asked for. cells: c of each step, if that was asked for.
    """

    outputs: Array
    h: Array
    c: Array | None = None
    cells: Array | None = None


@dataclass(frozen=True)
class Start:
    """The memories before the first step, by the names of the primitive's arguments: for each an array for
    every direction of every layer, layer by layer, or None for zeros.
    """

    recurrence: Recurrence
    states: Mapping[str, tuple[Array | None, ...]]

    @classmethod
    def of(cls, recurrence: Recurrence, *initial: Sequence[Array | None]) -> "Start":
        """Those of h, and of c where there is one, of each direction of each layer; what is not given is
        zeros.
        """
        slots = ("src_iter", "src_iter_c")[: 1 + recurrence.row.has_cell]
        filled = [(*each, None, None) for each in initial]
        return cls(recurrence, {slot: tuple(each[n] for each in filled) for n, slot in enumerate(slots)})

    def fill(self, run: Run) -> None:
        """Writes them where a primitive reads them."""
        for slot, states in self.states.items():
            run.begin(slot, states)

    def array(self, slot: str, rows: int, place: int = -1) -> Array:
        """One of them as a new array; place: of which layer and direction, by default the last."""
        state = self.states[slot][place]
        return (
            np.zeros((rows, *self.recurrence.shape(slot, 0, 0)[3:]), np.float32)
            if state is None
            else state + 0
        )


def limit_threads(library: Library, count: int) -> None:
    """Lets the library use so many threads for this thread of Python, at most one on each processor.

    OpenMP starts as many as it is told, and ends the process where it cannot.
    """
    count = min(count, processors())
    told: dict[str, int] = getattr(LIMITS, "told", {})
    if told.get(library.path) != count:
        library.limit_threads(count)
        LIMITS.told = {**told, library.path: count}


def run_of(
    library: Library, recurrence: Recurrence, steps: int, rows: int, weights: Weights | None = None
) -> Run:
    """The primitive for so many steps and rows, for this thread, with its weights."""
    library.check_process()
    count = threads()
    limit_threads(library, count)
    key = (library.path, recurrence, steps, rows, count, get_ident())
    run = RUNS.get(key, lambda: Run(library, recurrence, steps, rows))
    if weights is not None:
        weights.bind(run)
    return run


def ran(
    library: Library,
    recurrence: Recurrence,
    weights: Weights,
    padding: Padding,
    x: Array,
    initial: Sequence[Array | None] = (None, None),
    *,
    attention: Array | None = None,
    last_c: bool = False,
    all_c: bool = False,
) -> Ran:
    """The results of a recurrence of one layer and direction over sequences, float32.

    x: [total, inputs], where `padding` says. initial: h and c, [rows, ...] each; None for zeros. attention:
    [total, 1], of a cell that has it. last_c, all_c: whether c is wanted, of the last step or of each.

    The time of a call is that of the primitive, and of copies into and out of its padded arrays; there are
    none where the caller's steps lie [steps, rows] without gaps.
    """
    start = Start.of(recurrence, initial)
    read = {"src_layer": x} if attention is None else {"src_layer": x, "attention": attention}
    if not padding.steps:
        made = np.zeros((len(x), recurrence.output), np.float32)
        cells = np.zeros((len(x), recurrence.hidden), np.float32) if all_c else None
        c = start.array("src_iter_c", padding.rows) if last_c else None
        return Ran(made, start.array("src_iter", padding.rows), c, cells)
    if all_c or (last_c and not padding.even):
        return in_pieces(library, recurrence, weights, padding, read, start, all_c)
    run = run_of(library, recurrence, padding.steps, padding.rows, weights)
    made, padded = executed(run, padding, read, start)
    return Ran(made, ends(padded, padding, start), np.array(run.view("dst_iter_c")[0, 0]) if last_c else None)


def executed(run: Run, padding: Padding, read: Mapping[str, Array], start: Start) -> tuple[Array, Array]:
    """The outputs of a primitive where the caller's steps lie, and padded, [steps * rows, width].

    read: the arguments that have steps, where the caller's steps lie.
    """
    recurrence = run.recurrence
    start.fill(run)
    if padding.whole and recurrence.dtype == "float32" and all(map(is_readable, read.values())):
        padded = made = np.empty((padding.steps * padding.rows, recurrence.width), np.float32)
        run.run_on({**read, "dst_layer": made})
    else:
        for slot, values in read.items():
            run.flat(slot)[padding.target] = stored(recurrence, slot, padding.picked(values))
        run.run()
        padded = run.flat("dst_layer")
        made = padding.placed(padded, len(read["src_layer"]))
    return made, padded


def is_readable(values: Array) -> bool:
    """Whether a primitive in float32 reads an array where it lies."""
    return values.dtype == np.float32 and values.flags.c_contiguous


def stored(recurrence: Recurrence, slot: str, values: Array) -> Array:
    """The numbers of an argument in the dtype in which the primitive reads them."""
    if recurrence.calibration is not None and slot == "src_layer":
        return recurrence.calibration.quantized(values)
    return values


def ends(padded: Array, padding: Padding, start: Start) -> Array:
    """The memory h of each sequence at its own end: its last output, or what it began with."""
    h = padded.take(padding.last, axis=0).astype(np.float32, copy=False)
    if padding.empty is not None:
        h[padding.empty] = start.array("src_iter", padding.rows)[padding.empty]
    return h


def in_pieces(
    library: Library,
    recurrence: Recurrence,
    weights: Weights,
    padding: Padding,
    read: Mapping[str, Array],
    start: Start,
    all_c: bool,
) -> Ran:
    """The same with c, which a primitive gives at its own last step alone.

    It is run piece by piece, and ends where a sequence ends: so c is there at each end. For c of each step,
    each step is a piece.
    """
    steps, rows = padding.steps, padding.rows
    padded = {slot: padding.padded(stored(recurrence, slot, values)) for slot, values in read.items()}
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
            carry(before, run)
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
    cells = padding.placed(c.reshape(steps * rows, -1), total) if all_c else None
    return Ran(padding.placed(flat, total), ends(flat, padding, start), last, cells)


def carry(before: Run, run: Run) -> None:
    """Lets a primitive begin with the memories that another one, or itself, ended with."""
    for slot in ("iter", "iter_c"):
        run.begin(f"src_{slot}", (before.view(f"dst_{slot}")[0, 0],))
