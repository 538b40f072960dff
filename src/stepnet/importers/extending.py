"""Copies of entries at the ends of axes, as operators of files pad by reflection and by their last entries.

    mode         a b c, two ahead and two behind
    reflect      c b  a b c  b a       of steps and of features
    edge         a a  a b c  c c       of steps and of features
    symmetric    b a  a b c  c b       of features alone
    wrap         b c  a b c  a b       of features alone

The modes have the names of `numpy.pad`; each reader has a table of its own names for them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from stepnet.compiler.net.extensions import Extension
from stepnet.errors import ModelError, StepError
from stepnet.importers.axes import is_time
from stepnet.importers.convolving import traced_steps
from stepnet.importers.padding import check_no_padding
from stepnet.importers.placed import Placed
from stepnet.importers.values import check_room
from stepnet.model.convolution import extended

Name = TypeVar("Name", str, int)
OF_STEPS = {"reflect": "reflect", "edge": "replicate"}
"""The modes of padding that sequences have, each with the name of the model's own mode."""
FEWER = {"reflect": 1, "symmetric": 0, "wrap": 0}
"""The number by which there are fewer copies, at an end of an axis of features, than entries, by mode."""


def mode_of(name: Name, modes: Mapping[Name, str]) -> str:
    """Returns the mode of `numpy.pad` that a file's name for a mode of padding means; raises `ModelError` for
    another name. modes: the modes that the file's operator has, by the file's names.
    """
    if name not in modes:
        raise ModelError(f"its mode is {name!r}, not {' or '.join(map(repr, modes))}")
    return modes[name]


def pad_with_copies(
    x: Placed, pads: Sequence[tuple[int, int, int]], mode: str, padded: bool = False
) -> Placed:
    """Puts copies of entries ahead of axes and behind them.

    pads: for each, (axis, number of entries before, number after). mode: as in `numpy.pad`. padded: whether
    the model has padding (steps after sequences' ends), which copies behind it would be of.

    Raises `ModelError` for steps in a mode that sequences have not, and for more copies than there are.
    """
    for axis, before, after in pads:
        if not (before or after):
            continue
        if not is_time(x.axes[axis]):
            x = copies_of_features(x, axis, before, after, mode)
            continue
        if mode not in OF_STEPS:
            raise ModelError(
                f"its mode is {mode!r}, and sequences are padded with copies of their steps by "
                f"{' or '.join(map(repr, OF_STEPS))}"
            )
        check_no_padding(padded)
        x = extend(x, axis, Extension(before, after, OF_STEPS[mode]))
    return x


def extend(x: Placed, axis: int, extension: Extension) -> Placed:
    """Puts copies of steps ahead of each sequence and behind it. axis: the axis of the steps."""
    try:
        value = extended(traced_steps(x, axis), extension)
    except StepError as error:
        raise ModelError(str(error)) from None
    return x.with_value(value, (*x.axes[:axis], (value.type.extent[-1],), *x.axes[axis + 1 :]))


def copies_of_features(x: Placed, axis: int, before: int, after: int, mode: str) -> Placed:
    """Puts copies of entries ahead of an axis of features and behind it; raises `ModelError` for numbers that
    the mode does not have. mode: as in `numpy.pad`.
    """
    feature = x.feature(axis)
    size = x.features[feature]
    most = size - FEWER[mode] if mode in FEWER else before + after
    if not size or min(before, after) < 0 or max(before, after) > most:
        raise ModelError(f"it puts {before} and {after} copies by {mode!r} around an axis of {size} entries")
    check_room([*x.features, before + after])
    indices = np.pad(np.arange(size), (before, after), cast("Any", mode))
    taken = np.take(x.value, indices, axis=feature)
    return x.with_value(taken, (*x.axes[:axis], (len(indices),), *x.axes[axis + 1 :]))
