"""The arrays that each call of a prepared chain allocates: results, and large values between kernels."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.running.chain_arrays import ChainArrays, Joint, Key, Maker, SizedMaker


class NewArrays(NamedTuple):
    """The functions that allocate the arrays which are new at each call of a prepared chain.

    keys: the keys of the arrays, in order.
    along_steps: allocate those whose sizes depend on lengths, each with the index of its number of steps.
    by_row: make the functions that allocate the others, given the number of sequences.
    makers: these functions, by the number of sequences, made once: that saves half the time of a call.
    joint: allocate several arrays each, of fixed sizes.
    """

    keys: list[Key]
    along_steps: list[tuple[int, SizedMaker]]
    by_row: list[Callable[[int], Maker]]
    makers: dict[int, list[Maker]]
    joint: list[Callable[[], list[Array]]]

    @classmethod
    def of(
        cls, kernels: ChainArrays, keys: Sequence[Key], joint: Sequence[Joint], axes: Sequence[str]
    ) -> "NewArrays":
        """Takes the arrays of the prepared chain, and the keys of those to allocate.

        joint: further ones, of which several have one buffer. axes: the axes of the steps, if lengths are
        arguments of the calls.
        """
        growing = [key for key in keys if key in kernels.grows]
        others = [key for key in keys if key not in kernels.grows]
        return cls(
            [*growing, *others, *chain.from_iterable(own for own, _ in joint)],
            [(1 + axes.index(kernels.grows[key]), kernels.growing[key]) for key in growing],
            [
                kernels.by_row[key].maker if key in kernels.by_row else fixed(kernels.makers[key])
                for key in others
            ],
            {},
            [several for _, several in joint],
        )

    def makers_for(self, rows: int) -> list[Maker]:
        """Makes and keeps the functions that allocate arrays for a number of sequences."""
        made = self.makers[rows] = [maker(rows) for maker in self.by_row]
        return made

    def others(self, given: Sequence[int]) -> tuple[list[Callable[[], list[Array]]], list[int]]:
        """Returns functions that allocate the arrays of fixed sizes, but for those at the positions `given`,
        and the positions of these arrays.
        """
        alone = [partial(listed, new) for new in self.makers_for(0)]
        makers, places, begin = list[Callable[[], list[Array]]](), list[int](), 0
        for new in (*alone, *self.joint):
            count = len(new())
            own = [place for place in range(count) if begin + place not in given]
            if own:
                makers.append(new if len(own) == count else partial(chosen, new, own))
            places += [begin + place for place in own]
            begin += count
        return makers, places


def listed(new: Maker) -> list[Array]:
    """Allocates an array, as a list of one."""
    return [new()]


def chosen(new: Callable[[], list[Array]], own: Sequence[int]) -> list[Array]:
    """Allocates several arrays; returns those at the positions `own`."""
    made = new()
    return [made[place] for place in own]


def fixed(new: Maker) -> Callable[[int], Maker]:
    """Adapts a function that allocates an array of a fixed size to any number of sequences."""
    return lambda _: new
