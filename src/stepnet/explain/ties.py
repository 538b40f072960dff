"""Finds the correspondence of numbers in two layouts, with sentences and marks that describe it.

kernel[0, 4]  W_r[1, 0]  ---- moved ---->  weight_space[2]  W_r[1, 0]
                                filled ->  weight_space[60] d_r[0]
"""

from collections.abc import Mapping

from stepnet.compiler.values.records import dataclass
from stepnet.explain.drawing import DrawnNumber, place_in
from stepnet.layout.convert import Conversion
from stepnet.layout.moves import Move
from stepnet.layout.places import Array, ParameterBlock, Region, regions
from stepnet.layout.record import Record
from stepnet.layout.semantics import Semantics
from stepnet.layout.sizes import Sizes

MARKS = {  # by kind of move, the most remarkable last: a sign, and the text of the legend
    "moved": ("", "moved, bit for bit"),
    "negated": ("±", "negated"),
    "summed": ("Σ", "summed"),
    "filled": ("∅", "filled: from no number of the source"),
    "dropped": ("✗", "has no place in the target"),
}


@dataclass(frozen=True)
class ConversionSide:
    """Source or target of a conversion: arrays with their layout and sizes. key: "source" or "target"."""

    key: str
    arrays: Mapping[str, Array]
    record: Record
    sizes: Sizes
    semantics: Semantics

    @property
    def regions(self) -> dict[ParameterBlock, Region]:
        """The region that holds each block, for the arrays of this side of a conversion."""
        placed = regions(self.record, self.sizes)
        return {region.block: region for region in placed if region.array in self.arrays}

    def where(self, region: Region, index: tuple[int, ...]) -> str:
        """Returns the name of the array that holds a number, and its index in the array, as text. region: the
        part of an array with one gate's parameter. index: the index of the number in that parameter.
        """
        shape = self.arrays[region.array].shape
        return f"{region.array}{list(place_in(region, index, shape))}"


class Ties:
    """The correspondence of the numbers of a conversion, and sentences about them.

    A conversion to the source's own layout has only one side.

    >>> import numpy as np
    >>> from stepnet.layout.convert import convert
    >>> from stepnet.layout.registry import record
    >>> rnn = {"kernel": np.ones((1, 2)), "recurrent_kernel": np.eye(2), "bias": np.zeros(2)}
    >>> ties = Ties(rnn, record("keras.rnn"), convert(rnn, "keras.rnn", "torch.rnn"))
    >>> {str(block): kind for block, kind in ties.kinds(ties.target).items()}
    {'W_n': 'moved', 'R_n': 'moved', 'b_n': 'moved', 'd_n': 'filled'}
    """

    def __init__(self, arrays: Mapping[str, Array], record: Record, conversion: Conversion) -> None:
        """Sets up both sides of a conversion of weights, and indexes its moves (copied or computed blocks) by
        target block and by source block (a block is the parameter of one gate).

        arrays: the source's arrays by name. record: their layout. conversion: the arrays and the report of
        the result.
        """
        report = conversion.report
        self.source = ConversionSide("source", arrays, record, report.sizes, report.source_semantics)
        self.target = ConversionSide(
            "target", conversion.arrays, report.layout, report.target_sizes, report.target_semantics
        )
        self.source_regions, self.target_regions = self.source.regions, self.target.regions
        self.several = report.source != report.target
        self.sides = (self.source, self.target) if self.several else (self.source,)
        moves = [move for step in report.steps for move in step.moves]
        self.by_target = {move.target: move for move in moves}
        self.by_source: dict[ParameterBlock, list[Move]] = {}
        for move in moves:
            for block, _ in move.terms:
                self.by_source.setdefault(block, []).append(move)

    def kinds(self, side: ConversionSide) -> dict[ParameterBlock, str]:
        """Returns the fate of each block (the parameter of one gate) of the source or the target of a
        conversion, `side`, as keys of `MARKS`, such as "moved". A source block that goes to several targets
        has the kind that is last in `MARKS`; one that goes nowhere is "dropped".
        """
        if not self.several:
            return dict.fromkeys(side.regions, "moved")
        if side is self.target:
            return {block: move.kind for block, move in self.by_target.items()}
        ordered = list(MARKS)
        return {
            block: max(
                (move.kind for move in self.by_source.get(block, [])), key=ordered.index, default="dropped"
            )
            for block in self.source_regions
        }

    def to(self, side: ConversionSide, cell: DrawnNumber) -> list[str]:
        """Lists the page's keys of the numbers on the other side of the conversion that correspond to number
        `cell` of `side`, so that the page can highlight them; none if there is one side.
        """
        if not self.several:
            return []
        if side is self.source:
            return [key("target", move.target, cell.index) for move in self.by_source.get(cell.block, [])]
        return [key("source", block, cell.index) for block, _ in self.by_target[cell.block].terms]

    def sentence(self, side: ConversionSide, cell: DrawnNumber) -> str:
        """Describes a number of an array in a sentence for the page on a conversion of weights: its meaning
        and, if the two layouts of the conversion differ, the place that it goes to or comes from. side: the
        side of the conversion, source or target, that it is on.
        """
        text = f"{cell.value:.6g} at {cell.where} is {cell.what}"
        if not self.several:
            return f"{text}."
        return f"{text}; {self.destination_text(cell) if side is self.source else self.origin_text(cell)}."

    def destination_text(self, cell: DrawnNumber) -> str:
        """Describes the place of a number of the source in the target layout of a conversion."""
        moves = self.by_source.get(cell.block, [])
        if not moves:
            return f"{self.target.record.name} has no place for it, and the function is the same without it"
        return ", and ".join(self.move_text(move, cell) for move in moves)

    def move_text(self, move: Move, cell: DrawnNumber) -> str:
        """Describes in words one of the places in the target layout to which a number of the source, `cell`,
        goes. move: the copy or sum of the conversion that reads the number.
        """
        where = self.target.where(self.target_regions[move.target], cell.index)
        sign = next(sign for block, sign in move.terms if block == cell.block)
        others = [
            self.source.where(self.source_regions[block], cell.index)
            for block, _ in move.terms
            if block != cell.block
        ]
        others += [f"{move.constant:g}"] if move.constant else []
        what = f"summed with {' and '.join(others)}" if others else move.kind
        return f"it is {'negated and ' if others and sign < 0 else ''}{what}, to {where}"

    def origin_text(self, cell: DrawnNumber) -> str:
        """Describes in words which numbers of a conversion's source, with signs and an added constant, a
        number of the target comes from.
        """
        move = self.by_target[cell.block]
        if not move.terms:
            return f"it is filled with {move.constant:g}"
        parts = [
            f"{'' if sign > 0 else '-'}{self.source.where(self.source_regions[block], cell.index)}"
            for block, sign in move.terms
        ]
        parts += [f"{move.constant:g}"] if move.constant else []
        return f"it comes from {' + '.join(parts)}, {move.kind}"


def key(side: str, block: ParameterBlock, index: tuple[int, ...]) -> str:
    """Returns the key by which the script of the page finds a number. side: "source" or "target". index: the
    index of the number in its block, the parameter of one gate.
    """
    return f"{side}.{block.parameter}{block.gate}.{block.layer}.{block.direction}.{'.'.join(map(str, index))}"
