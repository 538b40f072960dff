"""Gradients of a recurrence: a forward pass that keeps what the backward pass needs, over ragged sequences.

oneDNN gives c, and takes its gradient, at the last step of a primitive alone. So where c is wanted at the end
of sequences of different lengths, those of one length are a batch of their own, and nothing is padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepnet.engines.base import Call
from stepnet.engines.onednn.library import Library
from stepnet.engines.onednn.padding import Padding, padding
from stepnet.engines.onednn.primitives import Run
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.engines.onednn.run import Ran, Start, ends, limit_threads
from stepnet.engines.onednn.weights import Weights
from stepnet.engines.threads import threads
from stepnet.errors import InputError

Array = np.ndarray

FREE: dict[object, list["Pair"]] = {}
"""Primitives whose gradients are done, by all that they depend on. Lists are shared without a lock."""
MOST_FREE, MOST_KEYS = 4, 32


@dataclass(frozen=True)
class Pair:
    """A primitive and that of its gradient, which share their memories."""

    forward: Run
    backward: Run

    @classmethod
    def of(cls, library: Library, recurrence: Recurrence, steps: int, rows: int) -> "Pair":
        """Both for so many steps and rows."""
        forward = Run(library, recurrence, steps, rows)
        return cls(forward, Run(library, recurrence, steps, rows, forward))


@dataclass(frozen=True)
class Gradients:
    """The gradients of a recurrence: of x [total, inputs], h and c [rows, ...], and the weights by name."""

    x: Array
    h: Array
    c: Array | None
    weights: dict[str, Array]


@dataclass(eq=False)
class Tape:
    """A forward pass whose gradient can be asked for, once.

    made: its results. rows: which of the caller's sequences it has.
    """

    library: Library
    recurrence: Recurrence
    weights: Weights
    padding: Padding
    total: int
    made: Ran
    pair: Pair | None
    key: object
    done: bool = field(default=False)

    def backward(self, outputs: Array | None, h: Array | None, c: Array | None) -> Gradients:
        """The gradients, for those of the outputs [total, output] and of the last h and c; None for zeros.

        Raises `InputError` where they were asked for before.
        """
        if self.done:
            raise InputError("the gradients of a forward pass are computed once; run it again")
        self.done = True
        recurrence, rows = self.recurrence, self.padding.rows
        if self.pair is None:
            return unchanged(recurrence, self.total, rows, h, c)
        run = self.pair.backward
        self.weights.bind(run)
        padded = run.flat("diff_dst_layer")
        padded[...] = 0
        if outputs is not None:
            padded[self.padding.target] = self.padding.picked(outputs)
        filled = self.padding.lengths > 0
        if h is not None:
            padded[self.padding.last[filled]] += h[filled]
        run.view("diff_dst_iter")[...] = 0
        if recurrence.row.has_cell:
            run.view("diff_dst_iter_c")[0, 0] = 0 if c is None else c
        run.run()
        begin = {
            slot: np.array(run.view(f"diff_{slot}")[0, 0])
            for slot in ("src_iter", "src_iter_c")
            if slot in recurrence.slots
        }
        if h is not None:
            begin["src_iter"][~filled] += h[~filled]
        gradients = Gradients(
            self.padding.placed(run.flat("diff_src_layer"), self.total),
            begin["src_iter"],
            begin.get("src_iter_c"),
            {name: np.array(run.view(f"diff_{name}")) for name in recurrence.weights},
        )
        give_back(self.key, self.pair)
        self.pair = None
        return gradients


def unchanged(recurrence: Recurrence, total: int, rows: int, h: Array | None, c: Array | None) -> Gradients:
    """The gradients where no sequence has a step: the memories pass through."""

    def passed(gradient: Array | None, slot: str) -> Array:
        zeros = np.zeros((rows, recurrence.shape(slot, 0, 0)[-1]), np.float32)
        return zeros if gradient is None else zeros + gradient

    weights = {name: np.zeros(recurrence.shape(name, 0, 0), np.float32) for name in recurrence.weights}
    last = passed(c, "src_iter_c") if recurrence.row.has_cell else None
    return Gradients(np.zeros((total, recurrence.inputs), np.float32), passed(h, "src_iter"), last, weights)


def recorded(
    library: Library,
    recurrence: Recurrence,
    weights: Weights,
    call: Call,
    x: Array,
    initial: Sequence[Array | None],
) -> "Tape | Tapes":
    """A forward pass over the sequences of a call, for gradients. The arguments are those of `ran`."""
    if recurrence.row.has_cell and len(np.unique(call.lengths)) > 1:
        return Tapes.of(library, recurrence, weights, call, x, initial)
    return taped(library, recurrence, weights, call, x, initial)


def taped(
    library: Library,
    recurrence: Recurrence,
    weights: Weights,
    call: Call,
    x: Array,
    initial: Sequence[Array | None],
) -> Tape:
    """The same in one pass: of a recurrence with c over sequences of one length."""
    whole = padding(call, recurrence.direction == "right2left")
    library.check_process()
    count = threads()
    limit_threads(library, count)
    wanted = replace(recurrence, training=True)
    start = Start.of(wanted, initial)
    key = (library.path, wanted, whole.steps, whole.rows, count)
    if not whole.steps:
        made = np.zeros((len(x), wanted.output), np.float32)
        c = start.array("src_iter_c", whole.rows) if wanted.row.has_cell else None
        return Tape(
            library,
            wanted,
            weights,
            whole,
            len(x),
            Ran(made, start.array("src_iter", whole.rows), c),
            None,
            key,
        )
    pair = taken(key) or Pair.of(library, wanted, whole.steps, whole.rows)
    run = pair.forward
    weights.bind(run)
    start.fill(run)
    run.flat("src_layer")[...] = 0
    run.flat("src_layer")[whole.target] = whole.picked(x)
    run.run()
    padded = run.flat("dst_layer")
    last = np.array(run.view("dst_iter_c")[0, 0]) if wanted.row.has_cell else None
    made = Ran(whole.placed(padded, len(x)), ends(padded, whole, start), last)
    return Tape(library, wanted, weights, whole, len(x), made, pair, key)


def taken(key: object) -> Pair | None:
    """A free pair, which is nobody else's then."""
    try:
        return FREE.get(key, []).pop()
    except IndexError:
        return None


def give_back(key: object, pair: Pair) -> None:
    """Keeps a pair for the next forward pass of the same kind; the oldest kinds go first."""
    listed = FREE.setdefault(key, [])
    if len(listed) < MOST_FREE:
        listed.append(pair)
    for old in tuple(FREE)[:-MOST_KEYS]:
        FREE.pop(old, None)


@dataclass(frozen=True)
class Tapes:
    """The forward passes of sequences of different lengths, one for each length.

    rows: for each the sequences; places: where their steps lie.
    """

    tapes: tuple[Tape, ...]
    rows: tuple[Array, ...]
    places: tuple[Array, ...]
    made: Ran
    total: int

    @classmethod
    def of(
        cls,
        library: Library,
        recurrence: Recurrence,
        weights: Weights,
        call: Call,
        x: Array,
        initial: Sequence[Array | None],
    ) -> "Tapes":
        """A forward pass for each length."""
        outputs = np.zeros((call.total, recurrence.output), np.float32)
        h = np.zeros((call.rows, recurrence.output), np.float32)
        c = np.zeros((call.rows, recurrence.hidden), np.float32)
        tapes: list[Tape] = []
        places: list[Array] = []
        rows = tuple(np.flatnonzero(call.lengths == length) for length in np.unique(call.lengths))
        for chosen in rows:
            part = replace(call, starts=call.starts[chosen], lengths=call.lengths[chosen])
            begin = [None if state is None else state[chosen] for state in initial]
            tape = taped(library, recurrence, weights, part, x, begin)
            places.append(part.all_places)
            at = places[-1]
            outputs[at], h[chosen], c[chosen] = tape.made.outputs[at], tape.made.h, tape.made.c
            tapes.append(tape)
        return cls(tuple(tapes), rows, tuple(places), Ran(outputs, h, c), call.total)

    def backward(self, outputs: Array | None, h: Array | None, c: Array | None) -> Gradients:
        """The gradients; see `Tape.backward`."""
        first = self.tapes[0].recurrence
        x = np.zeros((self.total, first.inputs), np.float32)
        dh, dc = np.zeros_like(self.made.h), np.zeros((len(self.made.h), first.hidden), np.float32)
        weights: dict[str, Array] = {
            name: np.zeros(first.shape(name, 0, 0), np.float32) for name in first.weights
        }
        for tape, chosen, places in zip(self.tapes, self.rows, self.places, strict=True):
            last = (None if gradient is None else gradient[chosen] for gradient in (h, c))
            made = tape.backward(outputs, *last)
            x[places], dh[chosen] = made.x[places], made.h
            if made.c is not None:
                dc[chosen] = made.c
            weights = {name: weights[name] + made.weights[name] for name in weights}
        return Gradients(x, dh, dc, weights)
