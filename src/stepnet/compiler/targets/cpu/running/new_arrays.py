"""The arrays that each call of a prepared chain allocates: results, and large values between kernels.

    list of a call      the arrays that it gives, tables, buffers      ->      and the new arrays behind them

Machine code allocates them by NumPy's interface in C, in half the time that Python takes. Large ones are
refused there: they are in huge pages, which Python asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.machine.memory import (
    EMPTY,
    MOSTLY_FULL,
    ZEROS,
    maker_of,
    numpy_function,
    pointer,
)
from stepnet.compiler.values.lending import Spec, bytes_of

NEW = ("make", "dtype", "axes", "sizes", "rows", "most")
"""The words of a new array: the address of NumPy's function; that of the dtype's object; the number of axes;
the pointer to their sizes, of which a call sets the first one; the pointer to this number; and the largest
number of rows of an array that machine code allocates.
"""


class NewArray(NamedTuple):
    """An array that each call allocates.

    spec: its shape and dtype. is_zeros: whether it begins with zeros.
    axis: the axis that says the number of its rows at each call; "" for that of the shape.
    """

    spec: Spec
    is_zeros: bool = False
    axis: str = ""

    def array(self, counts: Mapping[str, int]) -> Array:
        """Allocates the array. counts: the numbers of rows, by axis."""
        (rows, *others), dtype = (self.spec[0] or (1,)), self.spec[1]
        shape = (counts.get(self.axis, rows), *others) if self.spec[0] else ()
        array = maker_of((shape, dtype))()
        if self.is_zeros:
            array[...] = 0
        return array


class NewArrays(NamedTuple):
    """The arrays that are new at each call.

    alone: those that have buffers of their own. joint: allocate several arrays each, ahead of those.
    first: the position of the first one of `alone` in the list of a call.
    """

    alone: Sequence[NewArray]
    joint: Sequence[Callable[[], list[Array]]]
    first: int

    def arrays(self, counts: Mapping[str, int]) -> list[Array]:
        """Allocates the arrays with buffers of their own. counts: the numbers of rows, by axis."""
        return [new.array(counts) for new in self.alone]

    def others(self, given: Sequence[int]) -> tuple[list[int], Callable[[], list[Array]]]:
        """Returns the positions of the arrays but for those at the positions `given`, and a function that
        allocates these; all sizes are those of the shapes.
        """

        def every() -> list[Array]:
            """Allocates all arrays."""
            return [array for several in self.joint for array in several()] + self.arrays({})

        places = [place for place in range(len(every())) if place not in given]

        def new() -> list[Array]:
            """Allocates the arrays that no caller gives."""
            made = every()
            return [made[place] for place in places]

        return places, new


class NewTable(NamedTuple):
    """Table of the arrays that machine code allocates.

    given: the number of objects in a list behind which it adds them. words: `NEW` for each.
    held: the objects that the words point to.
    """

    given: int
    words: Array
    held: tuple[Any, ...]

    @classmethod
    def of(cls, arrays: Sequence[NewArray], counts: Mapping[str, int], given: int) -> "NewTable":
        """Makes the table of some arrays. counts: the addresses of the numbers of rows, by axis."""
        dtypes = [np.dtype(new.spec[1]) for new in arrays]
        sizes = [np.array(new.spec[0] or (1,), np.int64) for new in arrays]
        rows = list[tuple[int, ...]]()
        for new, dtype, own in zip(arrays, dtypes, sizes, strict=True):
            each = max(1, bytes_of((new.spec[0][1:], dtype)))
            make = numpy_function(ZEROS if new.is_zeros else EMPTY)
            count = counts.get(new.axis, pointer(own))
            rows.append((make, id(dtype), len(new.spec[0]), pointer(own), count, (MOSTLY_FULL - 1) // each))
        return cls(given, np.array(rows, np.int64).reshape(-1, len(NEW)), (dtypes, sizes))


NOTHING_NEW = NewTable.of((), {}, 0)
