"""Sequences of any length, stored end to end without padding, and their conversions.

A `Ragged` is values and offsets, as in an Arrow list array. Modules in this folder convert other forms of
sequences from and to (values, offsets).
"""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.ragged.offsets import offsets_of
    from stepnet.ragged.positions import Positions
    from stepnet.ragged.sequences import Ragged, unchecked_ragged

__all__ = ["Positions", "Ragged", "offsets_of", "unchecked_ragged"]

__getattr__ = late_names(
    __name__,
    ("offsets", "offsets_of"),
    ("positions", "Positions"),
    ("sequences", "Ragged unchecked_ragged"),
)
