"""Finds which steps of arrays [batch, time, ...] run, by Keras' mask, and converts between the layouts.

    mask  1 1 0 0      row 0 has 2 steps from 0        outputs  a b . .    ->    a b b b
          0 1 1 0      row 1 has 2 steps from 1                 . c d .          . c d d
          1 0 1 0      gaps: its steps are moved together

A masked step is not computed. `inward` and `outward` are linear, and each maps the gradients of the other.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepnet.compiler.targets import Call
from stepnet.ragged.positions import Positions

Array = np.ndarray
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ArraySettings:
    """Settings of the loop of a layer that are not part of its net.

    reverse: the steps run from last to first. last_only: only the last output is returned.
    zero: the output of a masked step is zero; otherwise the output of the step before is repeated.
    """

    reverse: bool
    last_only: bool
    zero: bool

    @classmethod
    def of(cls, layer: Any) -> "ArraySettings":
        """Reads the settings of a Keras layer's loop: its direction, and which outputs it returns."""
        return cls(layer.go_backwards, not layer.return_sequences, layer.zero_output_for_mask)


@dataclass(frozen=True)
class ArraySteps:
    """The steps of arrays [batch, time, ...] that a mask lets run, and conversions of arrays for them.

    shape: (batch, time). valid: bool [batch, time], True for a step that runs; None if all steps run.
    """

    settings: ArraySettings
    shape: tuple[int, int]
    valid: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, settings: ArraySettings, shape: tuple[int, int], mask: Array | None) -> "ArraySteps":
        """Returns the steps at which a mask is True, or all steps without a mask. settings: those of the
        layer's loop. shape: (batch, time).
        """
        complete = mask is None or bool(mask.all())
        return cls(settings, shape, None if complete else np.asarray(mask, bool))

    @cached_property
    def counts(self) -> IndexArray:
        """The number of steps that the mask lets run, in each row (sequence)."""
        batch, time = self.shape
        return np.full(batch, time) if self.valid is None else self.valid.sum(1)

    @cached_property
    def order(self) -> IndexArray | None:
        """Permutation of all steps that moves the steps that run to the front of each row. None if this is
        not needed, because no row has a masked step between others.
        """
        if self.valid is None:
            return None
        (batch, time), spans = self.shape, self.last - self.first + 1
        if ((spans == self.counts) | (self.counts == 0)).all():
            return None
        moved = np.argsort(~self.valid, axis=1, kind="stable")
        return (np.arange(batch)[:, None] * time + moved).reshape(-1)

    @cached_property
    def first(self) -> IndexArray:
        """Index of the first step that a mask lets run, in each row (sequence); 0 if it lets none run."""
        assert self.valid is not None
        return self.valid.argmax(1)

    @cached_property
    def last(self) -> IndexArray:
        """Index of the last step that a mask lets run, in each row (sequence); time - 1 if it lets none
        run.
        """
        assert self.valid is not None
        return self.shape[1] - 1 - self.valid[:, ::-1].argmax(1)

    def call(self) -> Call:
        """Makes the `Call` with which an engine runs over the steps that a mask lets run: the starts and
        lengths of the sequences in arrays [batch * time, ...] that `inward` makes. The arrays themselves are
        added later.
        """
        batch, time = self.shape
        starts = np.arange(batch) * time
        if self.valid is not None and self.order is None:
            starts = starts + self.first
        return Call(Positions(starts, self.counts, batch * time))

    # ---- inputs of each step, and gradients of these

    def inward(self, x: Array) -> Array:
        """Converts inputs [batch, time, ...] to [batch * time, ...], as the net reads them. If masked steps
        lie between others, the steps that run are moved to the front of each row (`order`).
        """
        flat = x.reshape(-1, *x.shape[2:])
        return flat if self.order is None else flat[self.order]

    def outward(self, flat: Array) -> Array:
        """Converts values [batch * time, ...], in the layout of `inward`, to [batch, time, ...] with zeros at
        masked steps. It may overwrite `flat`.
        """
        if self.valid is not None:
            if self.order is not None:
                moved = np.empty_like(flat)
                moved[self.order] = flat
                flat = moved
            flat[~self.valid.reshape(-1)] = 0
        return flat.reshape(*self.shape, *flat.shape[1:])

    # ---- outputs, and gradients of these

    @cached_property
    def sources(self) -> IndexArray:
        """Position, for each step [batch * time], of the output that `spread` puts there: its own if the mask
        lets it run, else that of the latest step that ran before it. -1 means zeros: no step has run yet, or
        the settings say that masked steps give zeros.
        """
        assert self.valid is not None
        (batch, time), steps = self.shape, np.arange(self.shape[1])
        if self.settings.zero:
            latest = np.where(self.valid, steps, -1)
        elif self.settings.reverse:
            following = np.where(self.valid, steps, time)[:, ::-1]
            latest = np.minimum.accumulate(following, axis=1)[:, ::-1]
            latest = np.where(latest == time, -1, latest)
        else:
            latest = np.maximum.accumulate(np.where(self.valid, steps, -1), axis=1)
        if self.order is not None:  # the steps that run were moved together: their index is their rank
            latest = np.where(latest < 0, -1, np.take_along_axis(self.valid.cumsum(1) - 1, latest, 1))
        return np.where(latest < 0, -1, np.arange(batch)[:, None] * time + latest).reshape(-1)

    @cached_property
    def ran(self) -> npt.NDArray[np.bool_] | None:
        """Bool per row, True if a mask lets its last step run; the last output of other rows is zeros. None
        if all steps run, or if masked steps repeat an output.
        """
        if self.valid is None or not self.settings.zero:
            return None
        return self.valid[:, 0 if self.settings.reverse else -1]

    def spread(self, output: Array) -> Array:
        """Converts outputs [batch * time, ...] to Keras' [batch, time, ...]; last outputs stay [batch, ...].
        Masked steps get the output of the step before, or zeros, as the settings say.
        """
        if self.settings.last_only:
            return output if self.ran is None else np.where(broadcast_rows(self.ran, output), output, 0)
        if self.valid is not None:
            spread_output = output[np.maximum(self.sources, 0)]
            spread_output[self.sources < 0] = 0
            output = spread_output
        return output.reshape(*self.shape, *output.shape[1:])

    def gather(self, outputs: Array) -> Array:
        """Computes the transpose of `spread`, for gradients: sums, for each step, the cotangents of all
        outputs to which `spread` copies the output of this step.

        Takes Keras' [batch, time, ...] and returns [batch * time, ...]; cotangents of last outputs stay
        [batch, ...].
        """
        if self.settings.last_only:
            return outputs if self.ran is None else np.where(broadcast_rows(self.ran, outputs), outputs, 0)
        flat = outputs.reshape(-1, *outputs.shape[2:])
        if self.valid is None:
            return flat
        shown = self.sources >= 0
        sources, summed = self.sources[shown], np.zeros_like(flat)  # in ascending order
        if len(sources):
            begins = np.flatnonzero(np.diff(sources, prepend=-1))
            summed[sources[begins]] = np.add.reduceat(flat[shown], begins, axis=0)
        return summed


def broadcast_rows(rows: npt.NDArray[np.bool_], array: Array) -> Array:
    """Reshapes one bool per row so that it broadcasts with an array [batch, ...]."""
    return rows.reshape(-1, *[1] * (array.ndim - 1))
