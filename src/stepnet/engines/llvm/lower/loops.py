"""The loops of a stage, as values: what each computes, from which operands, into which fields.

fiber loops    fibers of matrices, group by group of units
unit loops     pointwise work of one width, with the products whose epilogue it is
reductions     over features, one number (or unit) at a time
scans          along features, likewise
gathers        rows of a parameter at integers
copies         features moved to another place
encodings      left sides of products, for weights in fewer bits
words          values of a row from those of its words, the steps of an inner sequence
folds          over all features of each word
inner loops    the steps of an inner recurrence, all rows together
"""

from dataclasses import dataclass

from stepnet.engines.llvm.machine.records import Field
from stepnet.net.ir import Net


@dataclass(frozen=True)
class Immediate:
    """An operand that is a number known at compile time."""

    value: float | int | bool
    dtype: str


@dataclass(frozen=True)
class Register:
    """An operand in a register: a node that the same loop has computed."""

    number: int
    dtype: str


@dataclass(frozen=True)
class Broadcast:
    """An operand that is the same in every row: a padded array among the constants, at an offset in bytes."""

    offset: int
    dtype: str


@dataclass(frozen=True)
class Load:
    """An operand in a record: contiguous vectors from element `start` on."""

    field: Field
    start: int
    dtype: str


@dataclass(frozen=True)
class Uniform:
    """An operand in a record: one element, broadcast to the whole loop."""

    field: Field
    start: int
    dtype: str


@dataclass(frozen=True)
class Table:
    """An operand in a record, read through a table of indices among the constants: one per block, or one per
    element.
    """

    field: Field
    offset: int
    per: str
    dtype: str


@dataclass(frozen=True)
class Along:
    """An operand of work on fibers that differs from depth to depth.

    source: the record field, or the offset of an array among the constants.
    offset: the offset of a table of indices among the constants.
    how: "spread": one element for all units of a group; "block": contiguous elements of the units; "element":
        the table has an index for each unit.
    stride: the distance between depths, if it is constant; the table then has one entry per group. None: one
        entry per group and depth.
    """

    source: Field | int
    offset: int
    how: str
    stride: int | None
    dtype: str


Operand = Immediate | Register | Broadcast | Load | Uniform | Table
DeepOperand = Operand | Along


@dataclass(frozen=True)
class Side:
    """A left side of products, and the packed parameters that it is multiplied with.

    left, start, inner: the field of the left side, its first element, and its number of elements.
    packed: the offset of the packed parameters among the constants.
    weights: the encoding of both sides; None for none.
    scales: for int8, the field of the scale of each row.
    """

    left: Field
    start: int
    inner: int
    packed: int
    weights: str | None = None
    scales: Field | None = None


@dataclass(frozen=True)
class Product:
    """Sums of products over all sides, in order. ports: the node that each sum computes."""

    sides: tuple[Side, ...]
    ports: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The dtype of the sums."""
        side = self.sides[0]
        return side.left.dtype if side.weights is None else "float32"


@dataclass(frozen=True)
class UnitLoop:
    """Work on `size` units, block by block: products, then the epilogue in registers, then stores."""

    size: int
    products: tuple[Product, ...]
    nodes: tuple[tuple[int, tuple[Operand, ...]], ...]
    stores: tuple[tuple[Operand, Field], ...]


@dataclass(frozen=True)
class CopyLoop:
    """`size` elements copied to a field, from element `start` on."""

    size: int
    source: Operand
    target: Field
    start: int


@dataclass(frozen=True)
class EncodeLoop:
    """`size` elements of each row encoded as the left side of products; for int8 with a scale per row."""

    size: int
    source: Operand
    weights: str
    target: Field
    scales: Field | None


@dataclass(frozen=True)
class ReduceLoop:
    """A reduction of `shape`, over its last axis or (`leading`) its first."""

    operation: str
    source: Field
    start: int
    shape: tuple[int, int]
    leading: bool
    targets: tuple[Field, ...]


@dataclass(frozen=True)
class ScanLoop:
    """An inclusive scan of `shape` along its middle axis."""

    operation: str
    source: Field
    start: int
    shape: tuple[int, int, int]
    targets: tuple[Field, ...]


@dataclass(frozen=True)
class GatherLoop:
    """Rows of `row_size` numbers of a table of `count` rows, at integers in a field."""

    table: int
    count: int
    row_size: int
    index: Operand
    indices: int
    targets: tuple[Field, ...]


@dataclass(frozen=True)
class WordsReduceLoop:
    """A reduction over the words of a row along an axis, in their order, to a value of `size` elements.

    The nodes are computed word by word in registers; `source` may be the last of them.
    """

    how: str
    axis: str
    size: int
    nodes: tuple[tuple[int, tuple[Operand, ...]], ...]
    source: Operand
    targets: tuple[Field, ...]


@dataclass(frozen=True)
class FoldLoop:
    """A reduction of all `size` elements of each word to one. The nodes are computed in registers; `source`
    may be the last of them.
    """

    operation: str
    size: int
    nodes: tuple[tuple[int, tuple[Operand, ...]], ...]
    source: Operand
    targets: tuple[Field, ...]


Computed = tuple[tuple[int, tuple[Operand, ...]], ...]
ComputedDeep = tuple[tuple[int, tuple[DeepOperand, ...]], ...]
"""Pointwise nodes on fibers, with their operands."""


@dataclass(frozen=True)
class FiberSum:
    """A reduction over fibers: its node, and the terms; two terms are the factors of a fused product."""

    number: int
    terms: tuple[DeepOperand, ...]


@dataclass(frozen=True)
class Turn:
    """One pass over the fibers of a group of units.

    depth: the depth of the fibers.
    units: pointwise work on the units before the pass.
    nodes, sums, stores: the work at each depth.
    """

    depth: int
    units: Computed
    nodes: ComputedDeep
    sums: tuple[FiberSum, ...]
    stores: tuple[tuple[Operand, Field], ...]

    @property
    def fields(self) -> set[Field]:
        """The fields that are read."""
        sides = [operands for _, operands in (*self.units, *self.nodes)] + [each.terms for each in self.sums]
        operands = [operand for side in sides for operand in side]
        along = {operand.source for operand in operands if isinstance(operand, Along)}
        in_records = {operand.field for operand in operands if isinstance(operand, Load | Uniform | Table)}
        return in_records | {source for source in along if isinstance(source, Field)}


@dataclass(frozen=True)
class FiberLoop:
    """Work on fibers, for each group of `width` units: turns, then pointwise work and stores of units.

    tile: the part of the depth that stays in the L1 cache; 0 if the depth is not tiled.
    partial: the fields of partial sums between tiles; empty if the depth is not tiled.
    """

    size: int
    width: int
    turns: tuple[Turn, ...]
    units: Computed
    stores: tuple[tuple[Operand, Field], ...]
    tile: int = 0
    partial: tuple[Field, ...] = ()

    @property
    def begins_ahead(self) -> bool:
        """Whether the first turn of a step may be fused with the last turn of the step before: it stores
        nothing, and reads only memories that turns store.
        """
        first, last = self.turns[0], self.turns[-1]
        return (
            first is not last and first.depth == last.depth and not first.stores and self.reads_fibers_alone
        )

    @property
    def reads_fibers_alone(self) -> bool:
        """Whether the first turn of a step reads only memories that turns store."""
        stored = {target.a_step_later for turn in self.turns for _, target in turn.stores}
        return {each for each in self.turns[0].fields if each.record == "now"} <= stored


Loop = (
    FiberLoop
    | UnitLoop
    | CopyLoop
    | EncodeLoop
    | ReduceLoop
    | ScanLoop
    | GatherLoop
    | WordsReduceLoop
    | FoldLoop
)


@dataclass(frozen=True)
class LaneLoop:
    """Work lane by lane: loops over a row of its own (axis ""), and over the row's words along an axis."""

    work: tuple[tuple[str, Loop], ...]

    def __bool__(self) -> bool:
        return bool(self.work)


@dataclass(frozen=True)
class InnerLoop:
    """An inner recurrence over the words of all rows along an axis.

    body: the net of its step; phases: the loops of the step.
    begin: copies of initial memories and statics from the row to the record of the recurrence.
    end: copies of final memories from that record to the row.
    index: the field of the number of words done; None if it is not read.
    """

    body: Net
    axis: str
    reverse: bool
    begin: tuple[CopyLoop, ...]
    phases: tuple[tuple[Loop, ...], ...]
    end: tuple[CopyLoop, ...]
    index: Field | None


Phase = list[Loop] | LaneLoop | InnerLoop
"""The work between two barriers: loops over all rows, work lane by lane, or an inner recurrence."""


def is_one_loop(phases: list[Phase]) -> bool:
    """Whether a stage is one loop over units."""
    loops = phases[0] if len(phases) == 1 else ()
    return isinstance(loops, list) and len(loops) == 1 and isinstance(loops[0], FiberLoop | UnitLoop)
