"""Finds which steps of a batch run, by Keras' mask.

    mask  1 1 0 0      row 0 has 2 steps from 0        outputs  a b . .    ->    a b b b
          0 1 1 0      row 1 has 2 steps from 1                 . c d .          . c d d
          1 0 1 0      gaps: its steps are moved together

A masked step is not computed. Integers are found here, for all backends. They are applied in two ways:

- `tensor_steps` to tensors of PyTorch, which differentiates the conversions itself. If there are gaps, masked
  steps are left out.
- `array_steps` to arrays, with the transposes of the conversions, as nothing else differentiates these. The
  number of steps stays batch times time: TensorFlow and JAX must know shapes before they know the mask.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepnet.compiler.values.records import dataclass

Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StepMask:
    """A mask that does not let all steps run. valid: bool [batch, time], True for a step that runs."""

    valid: Flags

    @property
    def shape(self) -> tuple[int, int]:
        """The sizes (batch, time) of the mask."""
        return int(self.valid.shape[0]), int(self.valid.shape[1])

    @cached_property
    def counts(self) -> Places:
        """The number of steps that run, in each row (sequence)."""
        return self.valid.sum(1)

    @cached_property
    def first(self) -> Places:
        """Index of the first step that runs, in each row; 0 if none runs."""
        return self.valid.argmax(1)

    @cached_property
    def has_gaps(self) -> bool:
        """True if a row of the mask has a masked step between others that run, and not only at its ends."""
        last = self.shape[1] - 1 - self.valid[:, ::-1].argmax(1)
        return not bool(((last - self.first + 1 == self.counts) | (self.counts == 0)).all())

    def latest(self, reverse: bool) -> Places:
        """Returns for each step [batch, time] the index of the latest step that ran, itself included; -1 for
        none. reverse: whether the steps ran from last to first.
        """
        order, steps = self.valid[:, ::-1] if reverse else self.valid, np.arange(self.shape[1])
        latest: Places = np.maximum.accumulate(np.where(order, steps, -1), axis=1)
        if not reverse:
            return latest
        latest = latest[:, ::-1]
        return np.where(latest < 0, -1, self.shape[1] - 1 - latest)

    def ran(self, reverse: bool) -> Flags:
        """Returns for each row whether its last step ran. reverse: whether that is the first in the data."""
        return self.valid[:, 0 if reverse else -1]
