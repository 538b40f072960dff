"""Converts arrays [batch, time, ...] to the steps that Keras' mask lets run, and results back.

`inward` and `outward` are linear, and each maps the gradients of the other. `masks` has the integers, and
says why tensors of PyTorch have a file of their own.
"""

from functools import cached_property
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.compiler.values.records import dataclass
from stepnet.keras.masks import Flags, Places, StepMask
from stepnet.keras.recurrences import engine_of
from stepnet.ragged.positions import Positions

Array = np.ndarray


@dataclass(frozen=True)
class ArraySettings:
    """Settings of the loop of a layer that are not part of its net.

    reverse: the steps run from last to first. last_only: only the last output is returned.
    zero: the output of a masked step is zero; otherwise the output of the step before is repeated.
    engine: the engines in order of preference.
    """

    reverse: bool
    last_only: bool
    zero: bool
    engine: Order = "auto"

    @classmethod
    def of(cls, layer: Any) -> "ArraySettings":
        """Reads the settings of a Keras layer's loop: its direction, which outputs it returns, its engine.

        Flags of the layer may be any values: the settings are their truth values, as in Keras' own loop.
        """
        last_only, zero = not layer.return_sequences, bool(layer.zero_output_for_mask)
        return cls(bool(layer.go_backwards), last_only, zero, engine_of(layer))


@dataclass(frozen=True)
class ArraySteps:
    """The steps of arrays [batch, time, ...] that a mask lets run, and conversions of arrays for them.

    shape: (batch, time). mask: None if all steps run.
    """

    settings: ArraySettings
    shape: tuple[int, int]
    mask: StepMask | None = None

    @classmethod
    def of(cls, settings: ArraySettings, shape: tuple[int, int], mask: Array | None) -> "ArraySteps":
        """Returns the steps at which a mask is True, or all steps without one. shape: (batch, time)."""
        complete = mask is None or bool(mask.all())
        return cls(settings, shape, None if complete else StepMask(np.asarray(mask, bool)))

    @cached_property
    def order(self) -> Places | None:
        """Permutation of all steps [batch * time] that moves the steps that run (are not masked) to the front
        of each row. None if this is not needed, because no row has a masked step between others.
        """
        if self.mask is None or not self.mask.has_gaps:
            return None
        moved = np.argsort(~self.mask.valid, axis=1, kind="stable")
        return (np.arange(self.shape[0])[:, None] * self.shape[1] + moved).reshape(-1)

    @property
    def positions(self) -> Positions:
        """The positions of the steps that a mask lets run: the starts and lengths of the sequences in arrays
        [batch * time, ...] that `inward` makes.
        """
        batch, time = self.shape
        starts, counts = np.arange(batch) * time, np.full(batch, time)
        if self.mask is not None:
            starts, counts = starts if self.mask.has_gaps else starts + self.mask.first, self.mask.counts
        return Positions(starts, counts, batch * time)

    # ---- inputs of each step, and gradients of these

    def inward(self, x: Array) -> Array:
        """Converts inputs [batch, time, ...] to [batch * time, ...], as the net reads them. If masked steps,
        which do not run, lie between others, the steps that run are moved to the front of each sequence, by
        the indices `self.order`.
        """
        flat = x.reshape(-1, *x.shape[2:])
        return flat if self.order is None else flat[self.order]

    def outward(self, flat: Array) -> Array:
        """Converts values [batch * time, ...], in the order that `inward` makes, to [batch, time, ...] with
        zeros at masked steps. It may overwrite `flat`.
        """
        if self.mask is not None:
            if self.order is not None:
                moved = np.empty_like(flat)
                moved[self.order] = flat
                flat = moved
            flat[~self.mask.valid.reshape(-1)] = 0
        return flat.reshape(*self.shape, *flat.shape[1:])

    # ---- outputs, and gradients of these

    @cached_property
    def sources(self) -> Places:
        """Position of the output that `spread` puts at each step [batch * time].

        A step that runs has its own position, a masked step the position of the latest step that ran before
        it. -1 stands for zeros: no step has run yet, or masked steps give zeros by the settings.
        """
        assert self.mask is not None
        (batch, time), valid = self.shape, self.mask.valid
        own: Places = np.where(valid, np.arange(time), -1)
        latest = own if self.settings.zero else self.mask.latest(self.settings.reverse)
        if self.order is not None:  # the steps that run were moved together: their index is their rank
            latest = np.where(latest < 0, -1, np.take_along_axis(valid.cumsum(1) - 1, latest, 1))
        return np.where(latest < 0, -1, np.arange(batch)[:, None] * time + latest).reshape(-1)

    @cached_property
    def ran(self) -> Flags | None:
        """Bool per row (sequence), True if a mask lets its last step run; the last output of other rows is
        zeros. None if all steps run, or if masked steps repeat an output.
        """
        if self.mask is None or not self.settings.zero:
            return None
        return self.mask.ran(self.settings.reverse)

    def spread(self, output: Array) -> Array:
        """Converts outputs [batch * time, ...] to Keras' [batch, time, ...]; last outputs stay [batch, ...].
        Masked steps get the output of the step before, or zeros, as the settings say.
        """
        if self.settings.last_only:
            return output if self.ran is None else np.where(broadcast_rows(self.ran, output), output, 0)
        if self.mask is not None:
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
        if self.mask is None:
            return flat
        shown = self.sources >= 0
        sources, summed = self.sources[shown], np.zeros_like(flat)  # in ascending order
        if len(sources):
            begins = np.flatnonzero(np.diff(sources, prepend=-1))
            summed[sources[begins]] = np.add.reduceat(flat[shown], begins, axis=0)
        return summed


def broadcast_rows(rows: Flags, array: Array) -> Array:
    """Reshapes one bool per row so that it broadcasts with an array [batch, ...]."""
    return rows.reshape(-1, *[1] * (array.ndim - 1))
