"""The gradients of a section, accumulated while its pieces run from the last to the first.

dh of the last steps  --piece 2-->  dh  --piece 1-->  dh  --piece 0-->  dh0
0                     --------->    dW  --------->    dW  --------->    dW      adds up
                                    dx of piece 2     of piece 1        of piece 0
"""

from collections.abc import Iterable, Sequence

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, Type, is_static_extent
from stepnet.compiler.targets import Call
from stepnet.compiler.values.records import dataclass
from stepnet.model.gradients.pieces import Piece, zeros

Array = np.ndarray


@dataclass(frozen=True)
class BackwardAccumulator:
    """The gradients of a section (part of a net) while its pieces (ranges of steps) run from last to first.

    net: the net of the section.
    wanted: the positions of the inputs whose gradients are computed, initial memories last.
    seeds: the type and the cotangent of each floating-point result of the section; None stands for zeros.
        Cotangents per row (sequence of the batch) are copies, which `add` overwrites.
    memories: the cotangents of the memories after the next piece to run; they are the last arrays in `seeds`.
    totals: the gradients so far of the wanted inputs that are not memories.
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
        """Starts to add up the gradients of a section (part of a net), before its last steps run backward.

        net: the net of the section.
        outputs: the number of results of the net that are not memories.
        wanted: the positions of the inputs whose gradients are computed, initial memories last.
        known: the cotangent of each result of the net; None for zeros. Only floating-point results have one.
        call: the call of the whole section.
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
        """Returns the type of the section's input at a position."""
        return self.net.type_of(self.net.inputs[place])

    def cotangents(self, piece: Piece) -> list[Array]:
        """Returns the cotangents of the results of the section (part of a net) at the steps of a piece, to
        run the piece backward; zeros for a cotangent that is not given.

        piece: the range of steps.
        """
        return [
            zeros(type_, piece.call)
            if array is None
            else piece.of(array, type_).astype(type_.dtype, copy=False)
            for type_, array in self.seeds
        ]

    def add(self, piece: Piece, gradients: Sequence[Array]) -> None:
        """Adds the gradients of a piece (range of steps) to `totals`, the gradients so far.

        The gradients of its initial memories become the cotangents from which the piece before it starts. The
        cotangents of results per row (sequence) that the piece has used are set to zero.

        gradients: the gradients of the inputs in `wanted`; those of initial memories are last.
        """
        for place, total, part in zip(self.wanted, self.totals, gradients, strict=False):
            where = piece.where(self.type_of(place))
            if is_added(self.type_of(place)):
                total[where] += part
            else:
                total[where] = part
        for type_, array in self.seeds[: len(self.seeds) - len(self.memories)]:
            if array is not None and type_.extent == ROWS:
                array[piece.rows] = 0  # a result per row comes from its last step, in exactly one piece
        for memory, part in zip(self.memories, gradients[len(self.totals) :], strict=True):
            memory[piece.rows] = part

    def gradients(self, values: Sequence[int | None]) -> Iterable[tuple[int, Array]]:
        """Yields (number of the value in the whole net, gradient added up over all pieces, which are ranges
        of steps).

        values: for each input of the net of the section (part of the whole net), the number of its value in
            the whole net; None to skip it.
        """
        for place, array in zip(self.wanted, (*self.totals, *self.memories), strict=True):
            number = values[place]
            if number is not None:
                yield number, array.astype(self.type_of(place).dtype, copy=False)


def is_added(type_: Type) -> bool:
    """Tells whether gradients of a type are summed over pieces (ranges of steps): all but those per step."""
    return type_.extent in (CONST, ROWS) or is_static_extent(type_.extent)
