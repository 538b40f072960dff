"""Converts tensors of PyTorch [batch, time, ...] to the steps that Keras' mask lets run, and results back.

Rows without gaps are read where they are; with gaps, the steps that run are copied out. `masks` has the
integers, and says why arrays have a file of their own.
"""

from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.keras.installed import installed
from stepnet.keras.masks import Places, StepMask
from stepnet.ragged.offsets import offsets_of
from stepnet.torch.sequences import SequencePlaces

torch: Any = installed("torch")


@dataclass(frozen=True)
class TensorSteps:
    """The steps of data [batch, time, ...] that a mask lets run, and conversions of tensors for them.

    positions: the positions of the sequences in the data. mask: None if all steps run.
    picked: the positions of the steps that run, if they are copied out because a row has gaps; otherwise
        None.
    """

    positions: SequencePlaces
    mask: StepMask | None = None
    picked: Any = None

    @classmethod
    def of(cls, mask: Any) -> "TensorSteps":
        """Returns the steps at which a mask, a tensor [batch, time], is True; all steps without a mask. If
        masked steps lie between others, the steps are gathered end to end; else each row has a range of
        steps.
        """
        valid = None if mask is None else mask.detach().bool().numpy()
        if valid is None or valid.all():
            return cls(SequencePlaces("batch"))
        own = StepMask(valid)
        if own.has_gaps:
            positions = SequencePlaces("jagged", (torch.from_numpy(offsets_of(own.counts)),))
            return cls(positions, own, torch.from_numpy(np.flatnonzero(valid)))
        batch, time = own.shape
        starts: Places = np.append(np.arange(batch) * time + own.first, batch * time)
        return cls(SequencePlaces("jagged", (torch.from_numpy(starts), torch.from_numpy(own.counts))), own)

    def data(self, x: Any) -> Any:
        """Converts a layer's inputs x [batch, time, ...] to the data in which a net finds the sequences by
        `positions` (their starts and lengths): x itself if no step is masked, else steps [total, ...].
        """
        if self.mask is None:
            return x
        flat = x.flatten(0, 1)
        return flat if self.picked is None else flat.index_select(0, self.picked)

    def outputs(self, values: Any, reverse: bool, zero: bool) -> Any:
        """Converts the net's outputs (`values`) to Keras' [batch, time, ...], in the order the steps ran.

        reverse: the steps ran from last to first. zero: the output of a masked step is zero; otherwise the
            output of the step before is repeated.
        """
        if self.mask is not None:
            batch, time = self.mask.shape
            if self.picked is not None:
                blank = values.new_zeros(batch * time, *values.shape[1:])
                values = blank.index_copy(0, self.picked, values)
            if not zero:
                values = values.index_select(0, torch.from_numpy(sources(self.mask, reverse)))
            values = values.reshape(batch, time, *values.shape[1:])
        return values.flip(1) if reverse else values

    def last(self, values: Any, reverse: bool, zero: bool) -> Any:
        """Returns the last of the net's outputs (`values`) as Keras does, [batch, ...]: zeros for rows
        without steps that ran.

        reverse: the steps ran from last to first. zero: zeros also for a row whose last step is masked.
        """
        if self.mask is None:
            return step_of(values, 0 if reverse else -1)
        (batch, time), counts = self.mask.shape, self.mask.counts
        if not len(values):
            return values.new_zeros(batch, *values.shape[1:])
        rows = np.arange(batch) * time
        first = rows + self.mask.first if self.picked is None else offsets_of(counts)[:-1]
        indices = first if reverse else first + counts - 1
        ran = self.mask.ran(reverse) if zero else counts > 0
        last = values.index_select(0, torch.from_numpy(np.where(ran, indices, 0)))
        return torch.where(torch.from_numpy(ran.copy()).reshape(-1, *[1] * (last.ndim - 1)), last, 0)


def sources(mask: StepMask, reverse: bool) -> Places:
    """Returns, for each step, the position of the output that is copied to it: its own position if it ran,
    else the position of the latest step that ran before it. Steps before the first one that ran keep their
    own outputs, zeros.

    reverse: whether the steps ran from last to first.
    """
    (batch, time), latest = mask.shape, mask.latest(reverse)
    latest = np.where(latest < 0, np.arange(time), latest)
    return (np.arange(batch)[:, None] * time + latest).reshape(-1)


def step_of(values: Any, step: int) -> Any:
    """Returns one step of values [batch, time, ...]; zeros if there are no steps. step: its index."""
    if values.shape[1] == 0:
        return values.new_zeros(len(values), *values.shape[2:])
    return values[:, step]
