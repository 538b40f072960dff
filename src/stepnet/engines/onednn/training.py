"""Gradients of a recurrence over ragged sequences: a forward pass that keeps what its backward pass reads.

    forward    x, h0, c0  ->  outputs, h, c, kept        backward    doutputs, dh, dc, kept  ->  dx, dh0, dW

What is kept are bytes: the arguments of each primitive and oneDNN's workspace, one behind the other. They
belong to whoever asked for them. So gradients can be made as often as they are wanted, by any thread, and
nothing is held when they are dropped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import get_ident

import numpy as np

from stepnet.engines.base import Call
from stepnet.engines.onednn.library import Library
from stepnet.engines.onednn.objects import ALIGNMENT, aligned
from stepnet.engines.onednn.padding import Padding, padding
from stepnet.engines.onednn.primitives import Run
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.engines.onednn.run import RUNS, Ran, Start, ends, run_of
from stepnet.engines.onednn.weights import Weights
from stepnet.engines.threads import threads

Array = np.ndarray

READ_BACK = (
    "src_layer",
    "src_iter",
    "src_iter_c",
    "dst_layer",
    "dst_iter",
    "dst_iter_c",
    "workspace",
)
"""What a backward pass reads of the forward pass, besides the weights."""


@dataclass(frozen=True)
class Gradients:
    """The gradients of a recurrence.

    x: [total, inputs]. h, c: of the memories before the first step, [rows, ...]. weights: by oneDNN's names.
    """

    x: Array
    h: Array
    c: Array | None
    weights: dict[str, Array]


@dataclass(frozen=True)
class Batch:
    """Sequences that one primitive runs. rows: their numbers; None for all. call, padding: where they lie."""

    rows: Array | None
    call: Call
    padding: Padding

    def picked(self, state: Array | None) -> Array | None:
        """The entries of these sequences, of one per sequence."""
        return state if state is None or self.rows is None else state[self.rows]


@dataclass(frozen=True)
class Training:
    """A recurrence with its weights, over the sequences of a call, run for gradients.

    x: [total, inputs]. initial: h and c before the first step; None for zeros.
    """

    library: Library
    recurrence: Recurrence
    weights: Weights
    call: Call
    x: Array
    initial: Sequence[Array | None] = field(default=(None, None))

    def __post_init__(self) -> None:
        object.__setattr__(self, "recurrence", replace(self.recurrence, training=True))

    def forward(self) -> "Tape":
        """The results, and what the gradients need."""
        recurrence, call = self.recurrence, self.call
        start = Start.of(recurrence, self.initial)
        made = np.zeros((call.total, recurrence.output), np.float32)
        h = start.array("src_iter", call.rows)
        c = start.array("src_iter_c", call.rows) if recurrence.row.has_cell else None
        block = Block.of(self)
        for batch, pieces in block.pieces(self):
            run = run_of(self.library, recurrence, batch.padding.steps, batch.padding.rows, self.weights)
            part = Start.of(recurrence, [batch.picked(state) for state in self.initial])
            self.fill(batch, pieces, part)
            run.run_on(pieces)
            padded = flat(pieces["dst_layer"])
            places = slice(None) if batch.rows is None else batch.call.all_places
            made[places] = batch.padding.placed(padded, call.total)[places]
            rows = slice(None) if batch.rows is None else batch.rows
            h[rows] = ends(padded, batch.padding, part)
            if c is not None:
                c[rows] = pieces["dst_iter_c"][0, 0]
        return Tape(self, Ran(made, h, c), block.bytes)

    def fill(self, batch: Batch, pieces: Mapping[str, Array], start: Start) -> None:
        """Writes what a primitive reads."""
        flat(pieces["src_layer"])[batch.padding.target] = batch.padding.picked(self.x)
        for slot, state in start.states.items():
            pieces[slot][0, 0] = 0 if state is None else state

    def backward(
        self, kept: Array, outputs: Array | None, h: Array | None, c: Array | None = None
    ) -> Gradients:
        """The gradients, for those of the outputs [total, output] and of the last h and c; None for zeros.

        kept: what `forward` kept, for the same arguments.
        """
        call, made = self.call, self.zeros()
        begin = {"src_iter": made.h} | ({} if made.c is None else {"src_iter_c": made.c})
        for slot, last in zip(begin, (h, c), strict=False):
            if last is not None:  # sequences without steps hand it on
                begin[slot][call.lengths == 0] = last[call.lengths == 0]
        for batch, pieces in Block(kept).pieces(self):
            run = self.backward_run(batch.padding)
            self.seed(run, batch, outputs, batch.picked(h), batch.picked(c))
            run.run_on(pieces)
            places = slice(None) if batch.rows is None else batch.call.all_places
            made.x[places] = batch.padding.placed(run.flat("diff_src_layer"), call.total)[places]
            filled = batch.padding.lengths > 0
            rows = np.flatnonzero(filled) if batch.rows is None else batch.rows
            for slot, first in begin.items():
                first[rows] = run.view(f"diff_{slot}")[0, 0][filled]
            for name, total in made.weights.items():
                total += run.view(f"diff_{name}")
        return made

    def seed(self, run: Run, batch: Batch, outputs: Array | None, h: Array | None, c: Array | None) -> None:
        """Writes the gradients of the results where a backward primitive reads them."""
        padded, places = run.flat("diff_dst_layer"), batch.padding
        padded[...] = 0
        if outputs is not None:
            padded[places.target] = places.picked(outputs)
        filled = places.lengths > 0
        if h is not None:
            padded[places.last[filled]] += h[filled]
        run.view("diff_dst_iter")[...] = 0
        if self.recurrence.row.has_cell:
            run.view("diff_dst_iter_c")[0, 0] = 0 if c is None else c

    def zeros(self) -> Gradients:
        """Gradients of zeros."""
        recurrence, call = self.recurrence, self.call

        def filled(slot: str, *lead: int) -> Array:
            return np.zeros((*lead, recurrence.shape(slot, 0, 0)[-1]), np.float32)

        return Gradients(
            filled("src_layer", call.total),
            filled("src_iter", call.rows),
            filled("src_iter_c", call.rows) if recurrence.row.has_cell else None,
            {name: np.zeros(recurrence.shape(name, 0, 0), np.float32) for name in recurrence.weights},
        )

    def backward_run(self, places: Padding) -> Run:
        """The primitive of the backward pass, for this thread, with its weights."""
        library, recurrence = self.library, self.recurrence
        forward = run_of(library, recurrence, places.steps, places.rows)
        key = (library.path, recurrence, places.steps, places.rows, threads(), get_ident(), "backward")
        run = RUNS.get(key, lambda: Run(library, recurrence, places.steps, places.rows, forward))
        self.weights.bind(run)
        return run

    @property
    def batches(self) -> Iterator[Batch]:
        """What each primitive runs; sequences without steps are in none, or padded.

        Padding must not be reached by what has a gradient, and must stay finite: zero times infinity is no
        gradient of a weight. oneDNN gives c, and takes its gradient, at its own last step alone. So sequences
        of one length are a batch of their own where there is a c, or h may grow without bound.
        """
        call, reverse = self.call, self.recurrence.direction == "right2left"
        whole = padding(call, reverse)
        if not whole.steps:
            return
        if whole.even or not (self.recurrence.row.has_cell or self.recurrence.activation == "relu"):
            yield Batch(None, call, whole)
            return
        for length in whole.ends:
            rows = np.flatnonzero(call.lengths == length)
            part = replace(call, starts=call.starts[rows], lengths=call.lengths[rows])
            yield Batch(rows, part, padding(part, reverse))


@dataclass(frozen=True)
class Block:
    """The bytes that are kept between both passes: the arguments of each primitive, one after the other."""

    bytes: Array

    @classmethod
    def of(cls, training: Training) -> "Block":
        """A new one, zeros."""
        counts = [end for batch in training.batches for _, _, end in layout(training, batch.padding)[-1:]]
        return cls(aligned(sum(counts)))

    def pieces(self, training: Training) -> Iterator[tuple[Batch, dict[str, Array]]]:
        """The arguments of each primitive, as they lie in it."""
        bytes_ = self.bytes if self.bytes.ctypes.data % ALIGNMENT == 0 else moved(self.bytes)
        begin, recurrence = 0, training.recurrence
        for batch in training.batches:
            steps, rows, last = batch.padding.steps, batch.padding.rows, 0
            arrays: dict[str, Array] = {}
            for slot, first, last in layout(training, batch.padding):
                piece = bytes_[begin + first : begin + last]
                if slot != "workspace":
                    dtype, shape = np.dtype(recurrence.dtype_of(slot)), recurrence.shape(slot, steps, rows)
                    piece = piece[: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
                arrays[slot] = piece
            begin += last
            yield batch, arrays


def layout(training: Training, places: Padding) -> list[tuple[str, int, int]]:
    """Where the arguments of one primitive begin and end, from a multiple of 64 bytes on."""
    run = run_of(training.library, training.recurrence, places.steps, places.rows)
    made: list[tuple[str, int, int]] = []
    end = 0
    for slot in READ_BACK:
        if slot in run.memories:
            first, end = end, end + -(-run.described.size(slot) // ALIGNMENT) * ALIGNMENT
            made.append((slot, first, end))
    return made


def moved(kept: Array) -> Array:
    """A copy that begins where primitives read fastest."""
    made = aligned(kept.size)
    made[...] = kept
    return made


def flat(padded: Array) -> Array:
    """[steps, rows, features] as [steps * rows, features]."""
    return padded.reshape(-1, padded.shape[-1])


@dataclass(frozen=True)
class Tape:
    """A forward pass: its results, and what its gradients need."""

    training: Training
    made: Ran
    kept: Array

    def backward(self, outputs: Array | None, h: Array | None, c: Array | None = None) -> Gradients:
        """The gradients; see `Training.backward`."""
        return self.training.backward(self.kept, outputs, h, c)
