"""The loops that a stage is made of, as values: what each computes, from which operands, into which fields.

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
    """An operand that is one number known while compiling."""

    value: float | int | bool
    dtype: str


@dataclass(frozen=True)
class Register:
    """An operand that the same loop computed before."""

    number: int
    dtype: str


@dataclass(frozen=True)
class Broadcast:
    """An operand that is the same in every row: padded numbers among the constants."""

    offset: int
    dtype: str


@dataclass(frozen=True)
class Load:
    """An operand in a record: vectors beside each other from `start` (in numbers)."""

    field: Field
    start: int
    dtype: str


@dataclass(frozen=True)
class Uniform:
    """An operand in a record: one number for the whole loop."""

    field: Field
    start: int
    dtype: str


@dataclass(frozen=True)
class Table:
    """An operand in a record, read through a table of places: one per block, or one per element."""

    field: Field
    offset: int
    per: str
    dtype: str


@dataclass(frozen=True)
class Along:
    """An operand of fibers that differs from depth to depth, in a record or (by its offset) the constants.

    offset: of a table of places. stride: by how much places grow from depth to depth; the table has one of
    each group of units then, else one of each group and depth. how: what lies at a place, "spread" one number
    for all units of the group, "block" theirs side by side. For "element" each unit has a place in the table.
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
    """A left side of products: `inner` numbers in a record from `start` on, and its packed parameters.

    weights: their encoding, None for none. With one the left side is encoded as well, and in int8 `scales`
    has the scale of each row.
    """

    left: Field
    start: int
    inner: int
    packed: int
    weights: str | None = None
    scales: Field | None = None


@dataclass(frozen=True)
class Product:
    """Sums of products over all sides, in their order: `ports` are the nodes that each sum gives."""

    sides: tuple[Side, ...]
    ports: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The dtype of the sums."""
        side = self.sides[0]
        return side.left.dtype if side.weights is None else "float32"


@dataclass(frozen=True)
class UnitLoop:
    """Work on `size` numbers, block by block: products first, then nodes on registers, then stores."""

    size: int
    products: tuple[Product, ...]
    nodes: tuple[tuple[int, tuple[Operand, ...]], ...]
    stores: tuple[tuple[Operand, Field], ...]


@dataclass(frozen=True)
class CopyLoop:
    """`size` numbers copied to a place in a field."""

    size: int
    source: Operand
    target: Field
    start: int


@dataclass(frozen=True)
class EncodeLoop:
    """`size` numbers of each row encoded as the left side of products, with the row's scale in int8."""

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
    """A scan of `shape` along the middle one of its axes: each number combined with all before it."""

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
    """A value of `size` numbers for a row from those of its words along an axis, added in their order.

    The nodes are computed word by word on registers, and `source` may be the last of them.
    """

    how: str
    axis: str
    size: int
    nodes: tuple[tuple[int, tuple[Operand, ...]], ...]
    source: Operand
    targets: tuple[Field, ...]


@dataclass(frozen=True)
class FoldLoop:
    """All `size` numbers of each word reduced to one. The nodes are computed on registers, and `source` may
    be the last of them.
    """

    operation: str
    size: int
    nodes: tuple[tuple[int, tuple[Operand, ...]], ...]
    source: Operand
    targets: tuple[Field, ...]


Computed = tuple[tuple[int, tuple[Operand, ...]], ...]
ComputedDeep = tuple[tuple[int, tuple[DeepOperand, ...]], ...]
"""Elementwise nodes with their operands."""


@dataclass(frozen=True)
class FiberSum:
    """A reduction over fibers: its node, and what it combines; of a product both factors."""

    number: int
    terms: tuple[DeepOperand, ...]


@dataclass(frozen=True)
class Turn:
    """One way through the fibers of a group of units.

    units: elementwise work on the units ahead of it. nodes, sums, stores: what is done at each depth.
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
    """Work on fibers, for each group of `width` units: turns, then elementwise work and stores of units.

    tile: so much of the fibers' depth stays in the nearest cache. partial: where the sums of a single turn
    wait for the next tile; empty where fibers are no deeper than one.
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
        """Whether the first turn of a step may run together with the last one of the step before: it stores
        nothing, and reads no memory but those that turns store.
        """
        first, last = self.turns[0], self.turns[-1]
        return (
            first is not last and first.depth == last.depth and not first.stores and self.reads_fibers_alone
        )

    @property
    def reads_fibers_alone(self) -> bool:
        """Whether the first turn of a step reads no memory but those that turns store."""
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
    """An inner recurrence over the words of all rows along an axis: the phases of its step, `body`.

    begin: copies of first memories and statics, from the row to the record that the recurrence has for it.
    end: copies of last memories, from there to the row. index: the field of the number of words done.
    """

    body: Net
    axis: str
    reverse: bool
    begin: tuple[CopyLoop, ...]
    phases: tuple[tuple[Loop, ...], ...]
    end: tuple[CopyLoop, ...]
    index: Field | None


Phase = list[Loop] | LaneLoop | InnerLoop
"""Work between two barriers: loops over all rows, work lane by lane, or an inner recurrence."""
