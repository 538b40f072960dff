"""Which steps of arrays [batch, time, ...] run: a mask of Keras as places of the steps, and back.

    mask  1 1 0 0      row 0 has 2 steps from 0        outputs  a b . .    ->    a b b b
          0 1 1 0      row 1 has 2 steps from 1                 . c d .          . c d d
          1 0 1 0      gaps: its steps are moved together

So a masked step costs nothing. `inward` and `outward` are linear, and each takes the gradients of the other.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepnet.engines import Call
from stepnet.ragged.positions import Positions

Array = np.ndarray
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ArrayWay:
    """How a call runs over its steps: the settings that are not part of the net.

    last_only: whether there is an output of the last step alone. zero: whether the output of a masked step is
    zero, and not that of the step before it.
    """

    reverse: bool
    last_only: bool
    zero: bool

    @classmethod
    def of(cls, layer: Any) -> "ArrayWay":
        """The way of a layer."""
        return cls(layer.go_backwards, not layer.return_sequences, layer.zero_output_for_mask)


@dataclass(frozen=True)
class ArraySteps:
    """The steps that run, of arrays [batch, time, ...]. valid: bool [batch, time]; None where all run."""

    way: ArrayWay
    shape: tuple[int, int]
    valid: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, way: ArrayWay, shape: tuple[int, int], mask: Array | None) -> "ArraySteps":
        """The steps where a mask is true; all of them without one."""
        whole = mask is None or bool(mask.all())
        return cls(way, shape, None if whole else np.asarray(mask, bool))

    @cached_property
    def counts(self) -> Places:
        """How many steps of each row run."""
        batch, time = self.shape
        return np.full(batch, time) if self.valid is None else self.valid.sum(1)

    @cached_property
    def order(self) -> Places | None:
        """Where steps are moved together, for each place the step that stands there; None where none is."""
        if self.valid is None:
            return None
        (batch, time), spans = self.shape, self.last - self.first + 1
        if ((spans == self.counts) | (self.counts == 0)).all():
            return None
        moved = np.argsort(~self.valid, axis=1, kind="stable")
        return (np.arange(batch)[:, None] * time + moved).reshape(-1)

    @cached_property
    def first(self) -> Places:
        """The first step of each row that runs."""
        assert self.valid is not None
        return self.valid.argmax(1)

    @cached_property
    def last(self) -> Places:
        """The last step of each row that runs."""
        assert self.valid is not None
        return self.shape[1] - 1 - self.valid[:, ::-1].argmax(1)

    def call(self) -> Call:
        """Where the sequences lie, without arrays."""
        batch, time = self.shape
        starts = np.arange(batch) * time
        if self.valid is not None and self.order is None:
            starts = starts + self.first
        return Call(Positions(starts, self.counts, batch * time))

    # ---- inputs of each step, and gradients of these

    def inward(self, x: Array) -> Array:
        """Inputs [batch, time, ...] as what runs them reads them, [total, ...]."""
        flat = x.reshape(-1, *x.shape[2:])
        return flat if self.order is None else flat[self.order]

    def outward(self, flat: Array) -> Array:
        """The other way: zeros at the steps that do not run."""
        if self.valid is not None:
            if self.order is not None:
                moved = np.empty_like(flat)
                moved[self.order] = flat
                flat = moved
            flat[~self.valid.reshape(-1)] = 0
        return flat.reshape(*self.shape, *flat.shape[1:])

    # ---- outputs, and gradients of these

    @cached_property
    def sources(self) -> Places:
        """For each step the place of the output that it has: its own, or that of the latest step that ran; -1
        where there is none.
        """
        assert self.valid is not None
        (batch, time), steps = self.shape, np.arange(self.shape[1])
        if self.way.zero:
            latest = np.where(self.valid, steps, -1)
        elif self.way.reverse:
            following = np.where(self.valid, steps, time)[:, ::-1]
            latest = np.minimum.accumulate(following, axis=1)[:, ::-1]
            latest = np.where(latest == time, -1, latest)
        else:
            latest = np.maximum.accumulate(np.where(self.valid, steps, -1), axis=1)
        if self.order is not None:  # a step stands behind as many as ran before it
            latest = np.where(latest < 0, -1, np.take_along_axis(self.valid.cumsum(1) - 1, latest, 1))
        return np.where(latest < 0, -1, np.arange(batch)[:, None] * time + latest).reshape(-1)

    @cached_property
    def ran(self) -> npt.NDArray[np.bool_] | None:
        """Of which rows the last output is not zero; None for all that have one."""
        if self.valid is None or not self.way.zero:
            return None
        return self.valid[:, 0 if self.way.reverse else -1]

    def spread(self, output: Array) -> Array:
        """Outputs [total, ...] as Keras gives them, [batch, time, ...]; or the last ones, [batch, ...]."""
        if self.way.last_only:
            return output if self.ran is None else np.where(along(self.ran, output), output, 0)
        if self.valid is not None:
            taken = output[np.maximum(self.sources, 0)]
            taken[self.sources < 0] = 0
            output = taken
        return output.reshape(*self.shape, *output.shape[1:])

    def gathered(self, outputs: Array) -> Array:
        """The other way: each step has the sum of those that have its output."""
        if self.way.last_only:
            return outputs if self.ran is None else np.where(along(self.ran, outputs), outputs, 0)
        flat = outputs.reshape(-1, *outputs.shape[2:])
        if self.valid is None:
            return flat
        having = self.sources >= 0
        sources, summed = self.sources[having], np.zeros_like(flat)  # in ascending order
        if len(sources):
            begins = np.flatnonzero(np.diff(sources, prepend=-1))
            summed[sources[begins]] = np.add.reduceat(flat[having], begins, axis=0)
        return summed


def along(rows: npt.NDArray[np.bool_], array: Array) -> Array:
    """A value of each row, to stand beside an array [batch, ...]."""
    return rows.reshape(-1, *[1] * (array.ndim - 1))
