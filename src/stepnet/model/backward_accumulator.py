"""The gradients of a section, accumulated while its pieces run from the last to the first.

dh of the last steps  --piece 2-->  dh  --piece 1-->  dh  --piece 0-->  dh0
0                     --------->    dW  --------->    dW  --------->    dW      adds up
                                    dx of piece 2     of piece 1        of piece 0
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, Type, is_static_extent
from stepnet.compiler.targets import Call
from stepnet.model.pieces import Piece, zeros

Array = np.ndarray


@dataclass(frozen=True)
class BackwardAccumulator:
    """The state that is passed from a piece to the piece before it.

    seeds: the cotangent of each floating-point result of the section; None for zeros at every step. Those of
    rows are arrays of its own. memories: those of seeds that are of memories, the last ones: of the memories
    behind the piece that comes next. wanted: the places of the inputs whose gradients are asked for, the
    memories behind the others. totals: the gradients of these others so far.
    """

    net: Net
    wanted: tuple[int, ...]
    seeds: tuple[tuple[Type, Array | None], ...]
    memories: tuple[Array, ...]
    totals: tuple[Array, ...]

    @classmethod
    def of(
        cls, net: Net, outputs: int, wanted: Sequence[int], known: Sequence[Array | None], call: Call
    ) -> "BackwardAccumulator":
        """Ahead of the last piece. outputs: how many results are no memories. known: the cotangent of each
        result; None for zeros.
        """
        seeds: list[tuple[Type, Array | None]] = []
        for number, array in zip(net.results, known, strict=True):
            type_ = net.type_of(number).computed
            if type_.is_float and type_.extent == ROWS:
                seeds.append((type_, zeros(type_, call) if array is None else array.astype(type_.dtype)))
            elif type_.is_float:
                seeds.append((type_, array))
        ahead = sum(net.type_of(number).is_float for number in net.results[:outputs])
        memories = tuple(array for _, array in seeds[ahead:] if array is not None)
        types = [net.type_of(net.inputs[place]) for place in wanted[: len(wanted) - len(memories)]]
        totals = [zeros(type_.computed if is_added(type_) else type_, call) for type_ in types]
        return cls(net, tuple(wanted), tuple(seeds), memories, tuple(totals))

    def type_of(self, place: int) -> Type:
        """The type of an input."""
        return self.net.type_of(self.net.inputs[place])

    def cotangents(self, piece: Piece) -> list[Array]:
        """The cotangents of a piece's results."""
        return [
            zeros(type_, piece.call)
            if array is None
            else piece.of(array, type_).astype(type_.dtype, copy=False)
            for type_, array in self.seeds
        ]

    def add(self, piece: Piece, gradients: Sequence[Array]) -> None:
        """Adds the results of a piece's backward half."""
        for place, total, part in zip(self.wanted, self.totals, gradients, strict=False):
            where = piece.where(self.type_of(place))
            if is_added(self.type_of(place)):
                total[where] += part
            else:
                total[where] = part
        for type_, array in self.seeds[: len(self.seeds) - len(self.memories)]:
            if array is not None and type_.extent == ROWS:
                array[piece.rows] = 0  # a sequence has its last step in one piece
        for memory, part in zip(self.memories, gradients[len(self.totals) :], strict=True):
            memory[piece.rows] = part

    def gradients(self, values: Sequence[int | None]) -> Iterable[tuple[int, Array]]:
        """The gradients, each with the value that its input is; None is one that nobody asks for."""
        for place, array in zip(self.wanted, (*self.totals, *self.memories), strict=True):
            number = values[place]
            if number is not None:
                yield number, array.astype(self.type_of(place).dtype, copy=False)


def is_added(type_: Type) -> bool:
    """Whether several pieces contribute to one gradient."""
    return type_.extent in (CONST, ROWS) or is_static_extent(type_.extent)
