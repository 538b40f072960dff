"""Finds which steps of a batch run, by Keras' mask, as positions in the data, with PyTorch.

    mask  1 1 0 0      row 0 has 2 steps from 0        outputs  a b . .    ->    a b b b
          0 1 1 0      row 1 has 2 steps from 1                 . c d .          . c d d
          1 0 1 0      gaps: the steps are copied out

A masked step is not computed. Rows without gaps are read where they are.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepnet.keras.installed import installed
from stepnet.ragged.offsets import offsets_of
from stepnet.torch.sequences import SequencePlaces

torch: Any = installed("torch")
Array = np.ndarray
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MaskedSteps:
    """The steps of data [batch, time, ...] that a mask lets run, and conversions of tensors for them.

    positions: the positions of the sequences in the data. valid: bool [batch, time]; None if all steps run.
    picked: the positions of the steps that run, if they are copied out because a row has gaps; otherwise
        None.
    """

    positions: SequencePlaces
    valid: npt.NDArray[np.bool_] | None = None
    picked: Any = None

    @classmethod
    def of(cls, mask: Any) -> "MaskedSteps":
        """Returns the steps at which a mask, a tensor [batch, time], is True; all steps without a mask."""
        valid: npt.NDArray[np.bool_] | None = None if mask is None else mask.detach().bool().numpy()
        if valid is None or valid.all():
            return cls(SequencePlaces("batch"))
        counts, (batch, time) = valid.sum(1), sizes_of(valid)
        first, last = valid.argmax(1), time - 1 - valid[:, ::-1].argmax(1)
        if ((last - first + 1 == counts) | (counts == 0)).all():
            starts: Places = np.append(np.arange(batch) * time + first, batch * time)
            return cls(SequencePlaces("jagged", (torch.from_numpy(starts), torch.from_numpy(counts))), valid)
        positions = SequencePlaces("jagged", (torch.from_numpy(offsets_of(counts)),))
        return cls(positions, valid, torch.from_numpy(np.flatnonzero(valid)))

    def data(self, x: Any) -> Any:
        """Converts a layer's inputs x [batch, time, ...] to the data in which a net finds the sequences by
        `positions`: x itself if no step is masked, else steps [total, ...].
        """
        if self.valid is None:
            return x
        flat = x.flatten(0, 1)
        return flat if self.picked is None else flat.index_select(0, self.picked)

    def outputs(self, values: Any, reverse: bool, zero: bool) -> Any:
        """Converts the net's outputs (`values`) to Keras' [batch, time, ...], in the order the steps ran.

        reverse: the steps ran from last to first. zero: the output of a masked step is zero; otherwise the
            output of the step before is repeated.
        """
        if self.valid is not None:
            batch, time = self.valid.shape
            if self.picked is not None:
                blank = values.new_zeros(batch * time, *values.shape[1:])
                values = blank.index_copy(0, self.picked, values)
            if not zero:
                values = values.index_select(0, torch.from_numpy(self.sources(reverse)))
            values = values.reshape(batch, time, *values.shape[1:])
        return values.flip(1) if reverse else values

    def sources(self, reverse: bool) -> Places:
        """Returns, for each step, the position of the output that `outputs` copies to it: its own if it ran,
        else that of the latest step that ran before it. Steps before the first that ran keep their own,
        zeros.

        reverse: whether the steps ran from last to first.
        """
        assert self.valid is not None
        batch, time = sizes_of(self.valid)
        steps = np.arange(time)
        order = self.valid[:, ::-1] if reverse else self.valid
        latest: Places = np.maximum.accumulate(np.where(order, steps, -1), axis=1)
        latest = np.where(latest < 0, steps, latest)
        if reverse:
            latest = time - 1 - latest[:, ::-1]
        return (np.arange(batch)[:, None] * time + latest).reshape(-1)

    def last(self, values: Any, reverse: bool, zero: bool) -> Any:
        """Returns the last of the net's outputs (`values`) as Keras does, [batch, ...]: zeros for rows
        without steps that ran.

        reverse: the steps ran from last to first. zero: zeros also for a row whose last step is masked.
        """
        if self.valid is None:
            return step_of(values, 0 if reverse else -1)
        batch, time = sizes_of(self.valid)
        if not len(values):
            return values.new_zeros(batch, *values.shape[1:])
        counts = self.valid.sum(1)
        first = (
            np.arange(batch) * time + self.valid.argmax(1) if self.picked is None else offsets_of(counts)[:-1]
        )
        indices = first if reverse else first + counts - 1
        ran = self.valid[:, 0 if reverse else -1] if zero else counts > 0
        rows = values.index_select(0, torch.from_numpy(np.where(ran, indices, 0)))
        return torch.where(torch.from_numpy(ran.copy()).reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


def step_of(values: Any, step: int) -> Any:
    """Returns one step of values [batch, time, ...]; zeros if there are no steps. step: its index."""
    if values.shape[1] == 0:
        return values.new_zeros(len(values), *values.shape[2:])
    return values[:, step]


def sizes_of(valid: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Returns the sizes (batch, time) of a mask as integers."""
    return int(valid.shape[0]), int(valid.shape[1])
