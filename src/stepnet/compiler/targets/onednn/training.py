"""Gradients of a recurrence over ragged sequences: a forward pass that keeps what its backward pass reads.

    forward    x, h0, c0                   ->  outputs, h, c, residuals
    backward   doutputs, dh, dc, residuals ->  dx, dh0, dc0, dW

The residuals are arguments of the forward primitive, among them oneDNN's workspace, in arrays that the `Tape`
owns. So gradients can be computed repeatedly and by any thread, and the memory is freed with the tape.

oneDNN returns c, and takes its gradient, only at the last step of a primitive. For sequences of different
lengths, padding must therefore not change memories: one more input feature, 1 on padding, opens or closes
gates.

    x          x  0          W          W
    x     ->   x  0          .    ->    i: -big  f: +big      on padding  c' = 1 c + 0 g = c
    .          0  1                                           and the gradient of c passes through it

A simple recurrence with relu, which may grow without bound, is 0 on padding: zero times infinity would be no
gradient of a weight. Sigmoids of such a number are 0 and 1 exactly, with slopes of 0. All other cells are
bounded, and what they do on padding is multiplied by gradients of 0.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from math import prod
from threading import get_ident

import numpy as np

from stepnet.compiler.targets.base import Call
from stepnet.compiler.targets.onednn.cache import MEGABYTE, Cache
from stepnet.compiler.targets.onednn.library import OneDnnLibrary
from stepnet.compiler.targets.onednn.objects import aligned
from stepnet.compiler.targets.onednn.padding import Padding, padding
from stepnet.compiler.targets.onednn.primitives import PrimitiveRun, RecurrenceWeights
from stepnet.compiler.targets.onednn.recurrence import OneDnnRecurrence
from stepnet.compiler.targets.onednn.run import RUNS, RecurrenceResults, Start, ends, run_of
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

Array = np.ndarray

BIG = 2.0**100
"""The weight with which the padding feature opens or closes a gate: larger than all other terms of the gate,
and small enough that sums stay finite.
"""
SIGNS = {"lstm": {"i": -1, "f": 1}, "rnn": {"n": -1}}
"""For each cell that needs the padding feature, the sign of its weight for each gate."""


def padding_matters(recurrence: OneDnnRecurrence) -> bool:
    """Tells whether padding would change memories or weights' gradients: for memories c, and for relu."""
    return recurrence.row.has_cell or (recurrence.cell == "rnn" and recurrence.activation == "relu")


def with_padding_feature(
    recurrence: OneDnnRecurrence, weights: RecurrenceWeights
) -> tuple[OneDnnRecurrence, RecurrenceWeights]:
    """Adds an input feature, 1 on padding and else 0, to a recurrence and its weights, so that padding keeps
    the memories (recurrent states). Returns the recurrence with one input more, and its input weights with a
    row more for that input, from a cache.
    """
    signs = SIGNS[recurrence.cell]

    def widened() -> RecurrenceWeights:
        """Makes the weights with a row for the padding feature, with numbers large enough to open or close
        gates. The padding feature is an input that is 1 on padding.
        """
        row = np.zeros((1, 1, 1, len(recurrence.row.gates), recurrence.hidden), np.float32)
        for gate, sign in signs.items():
            row[..., recurrence.row.gates.index(gate), :] = sign * BIG
        layer = np.concatenate([weights.arrays["weights_layer"], row], axis=2)
        return RecurrenceWeights({**weights.arrays, "weights_layer": layer})

    return replace(recurrence, inputs=recurrence.inputs + 1), WIDENED.get(weights.serial, widened)


WIDENED: Cache[RecurrenceWeights] = Cache(
    64, 64 * MEGABYTE, lambda gradients: sum(array.nbytes for array in gradients.arrays.values())
)


Arguments = dict[str, Array]
"""Arrays by the names of a primitive's arguments."""

READ_BACK = ("src_layer", "src_iter", "src_iter_c", "dst_layer", "dst_iter", "dst_iter_c", "workspace")
"""The residuals: the arguments of the forward pass that the backward pass reads, apart from the weights."""


@dataclass(frozen=True)
class RecurrenceGradients:
    """Gradients of a recurrence.

    x: [total, inputs].
    h, c: of the memories before the first step, [rows, ...].
    weights: by oneDNN's names.
    """

    x: Array
    h: Array
    c: Array | None
    weights: dict[str, Array]


@dataclass(frozen=True)
class Training:
    """Recurrence with its weights, over the sequences of a call, run for gradients.

    x: [total, inputs].
    initial: h and c before the first step; None for zeros.
    """

    library: OneDnnLibrary
    recurrence: OneDnnRecurrence
    weights: RecurrenceWeights
    call: Call
    x: Array
    initial: Sequence[Array | None] = field(default=(None, None))

    @computed_once
    def padding(self) -> Padding:
        """The positions of the sequences' steps in the padded arrays of the primitives."""
        return padding(self.call, self.recurrence.direction == "right2left")

    @computed_once
    def primitive(self) -> "Primitives":
        """The primitives (operations of oneDNN) of the forward and the backward pass. Where padding would
        change the results, they have a further input, which is 1 on padding.
        """
        recurrence, weights = replace(self.recurrence, training=True), self.weights
        if not self.padding.even and padding_matters(recurrence):
            recurrence, weights = with_padding_feature(recurrence, weights)
        return Primitives(self.library, recurrence, weights, self.padding.steps, self.padding.rows)

    def forward(self) -> "Tape":
        """Runs the forward pass; returns its results, and the arrays that the backward pass reads: none if
        all sequences are empty.
        """
        padded_layout, total = self.padding, self.call.positions.total
        start, has_cell = Start.of(self.recurrence, self.initial), self.recurrence.row.has_cell
        if not padded_layout.steps:
            c = start.array("src_iter_c", padded_layout.rows) if has_cell else None
            outputs = np.zeros((total, self.recurrence.output), np.float32)
            return Tape(self, RecurrenceResults(outputs, start.array("src_iter", padded_layout.rows), c), {})
        primitive = self.primitive
        arguments = primitive.residuals()
        self.fill(arguments, start)
        primitive.forward.run_on(arguments)
        padded = flat(arguments["dst_layer"])
        c = np.array(arguments["dst_iter_c"][0, 0]) if has_cell else None
        return Tape(
            self,
            RecurrenceResults(padded_layout.unpadded(padded, total), ends(padded, padded_layout, start), c),
            arguments,
        )

    def fill(self, arguments: Arguments, start: Start) -> None:
        """Writes the inputs, the padding feature (a further input, 1 on padding and else 0) if there is one,
        and the initial memories (recurrent states) to the arrays of the forward pass.

        arguments: the arrays by the names of oneDNN's arguments, zeros so far. start: the initial memories.
        """
        x, inputs = flat(arguments["src_layer"]), self.recurrence.inputs
        x[:, inputs:] = 1
        x[self.padding.target, inputs:] = 0
        x[self.padding.target, :inputs] = self.padding.packed(self.x)
        for slot, state in start.states.items():
            arguments[slot][0, 0] = 0 if state is None else state

    def backward(
        self, residuals: Arguments, outputs: Array | None, h: Array | None, c: Array | None = None
    ) -> RecurrenceGradients:
        """Computes gradients with respect to the inputs, the initial memories (the states h and c) and the
        weights. residuals: the arrays that the forward pass has saved. outputs, h, c: the cotangents of the
        outputs [total, output] and of the final memories; None for zeros. The gradient of the padding feature
        (a further input, 1 on padding, which holds gates open or closed there) is left out.
        """
        recurrence, padded_layout = self.recurrence, self.padding
        if not padded_layout.steps:
            return self.gradients_if_empty(h, c)
        primitive = self.primitive
        run = primitive.backward
        self.seed(run, outputs, h, c)
        run.run_on(residuals)
        begin = [
            np.array(run.view(f"diff_{slot}")[0, 0])
            for slot in ("src_iter", "src_iter_c")[: 1 + recurrence.row.has_cell]
        ]
        if h is not None and padded_layout.empty is not None:  # steps on padding pass c on
            begin[0][padded_layout.empty] += h[padded_layout.empty]
        weights = {name: np.array(run.view(f"diff_{name}")) for name in recurrence.weights}
        weights["weights_layer"] = weights["weights_layer"][:, :, : recurrence.inputs]
        x = run.flat("diff_src_layer")[:, : recurrence.inputs]
        return RecurrenceGradients(
            padded_layout.unpadded(x, self.call.positions.total),
            begin[0],
            begin[1] if len(begin) > 1 else None,
            weights,
        )

    def seed(self, run: PrimitiveRun, outputs: Array | None, h: Array | None, c: Array | None) -> None:
        """Writes the cotangents (gradients with respect to results) to the buffers of the backward pass.

        run: the primitive (operation of oneDNN) of the backward pass, with its buffers.
        outputs, h, c: the cotangents of the outputs and the final memories (recurrent states); None for
            zeros.
        """
        padded, padded_layout = run.flat("diff_dst_layer"), self.padding
        padded[...] = 0
        if outputs is not None:
            padded[padded_layout.target] = padded_layout.packed(outputs)
        filled = padded_layout.lengths > 0
        if h is not None:
            padded[padded_layout.last[filled]] += h[filled]
        run.view("diff_dst_iter")[...] = 0
        if self.recurrence.row.has_cell:
            run.view("diff_dst_iter_c")[0, 0] = 0 if c is None else c

    def gradients_if_empty(self, h: Array | None, c: Array | None) -> RecurrenceGradients:
        """Computes the gradients if all sequences are empty: zeros, but the cotangents of the final memories,
        h and c (None for zeros), are those of the initial ones.
        """
        recurrence, call = self.recurrence, self.call

        def state(slot: str, last: Array | None) -> Array:
            """Returns an initial memory's gradient: the cotangent `last` of the final one, or zeros."""
            zeros = np.zeros((call.positions.rows, recurrence.shape(slot, 0, 0)[-1]), np.float32)
            return zeros if last is None else zeros + last

        return RecurrenceGradients(
            np.zeros((call.positions.total, recurrence.inputs), np.float32),
            state("src_iter", h),
            state("src_iter_c", c) if recurrence.row.has_cell else None,
            {name: np.zeros(recurrence.shape(name, 0, 0), np.float32) for name in recurrence.weights},
        )


@dataclass(frozen=True)
class Primitives:
    """Primitives of the forward and backward pass for a number of steps and rows, for this Python thread."""

    library: OneDnnLibrary
    recurrence: OneDnnRecurrence
    weights: RecurrenceWeights
    steps: int
    rows: int

    @computed_once
    def forward(self) -> PrimitiveRun:
        """The primitive of the forward pass, with the weights set; from a cache."""
        return run_of(self.library, self.recurrence, self.steps, self.rows, self.weights)

    @property
    def backward(self) -> PrimitiveRun:
        """The backward primitive with its weights, from a cache; it shares the forward pass's buffers."""
        key = (self.library.path, self.recurrence, self.steps, self.rows, threads(), get_ident(), "backward")
        run = RUNS.get(key, lambda: PrimitiveRun(*self.sizes, run_of(*self.sizes)))
        self.weights.bind(run)
        return run

    @property
    def sizes(self) -> tuple[OneDnnLibrary, OneDnnRecurrence, int, int]:
        """The arguments that make a primitive of either pass: library, recurrence, steps and rows."""
        return self.library, self.recurrence, self.steps, self.rows

    def residuals(self) -> Arguments:
        """Allocates, by argument, the arrays that the forward pass fills and the backward pass reads. All are
        zeros. The workspace, oneDNN's own notes for the backward pass, is plain bytes.
        """
        arguments: Arguments = {}
        for slot in READ_BACK:
            if slot not in self.forward.memories:
                continue
            array = aligned(self.forward.descriptor.size(slot))
            if slot != "workspace":
                shape = self.recurrence.shape(slot, self.steps, self.rows)
                numbers = array.view(self.recurrence.dtype_of(slot))
                array = numbers[: prod(shape)].reshape(shape)
            arguments[slot] = array
        return arguments


def flat(padded: Array) -> Array:
    """Reshapes a padded array [steps, rows, features] to [steps * rows, features]."""
    return padded.reshape(-1, padded.shape[-1])


@dataclass(frozen=True)
class Tape:
    """Results of a forward pass, with the residuals, the arrays that it saved to compute gradients."""

    training: Training
    results: RecurrenceResults
    residuals: Arguments

    def backward(self, outputs: Array | None, h: Array | None, c: Array | None = None) -> RecurrenceGradients:
        """Computes gradients with respect to inputs, initial memories (recurrent states) and weights. Can be
        called repeatedly.

        outputs, h, c: the cotangents of the outputs and of the final memories; None for zeros.
        """
        return self.training.backward(self.residuals, outputs, h, c)
