"""The loops of a stage, as values: what each computes, from which operands, into which fields.

fiber loops    work on fibers of matrices, one group of units after the other
unit loops     pointwise work of one width: the epilogue of products, if there are any
reductions     over features, one number (or unit) at a time
scans          along features, one number (or unit) at a time
gathers        rows of a parameter at computed indices
copies         features copied to another field
encodings      left sides of products, for weights in fewer bits
words          reductions over the words of a row (a word is a step of an inner sequence)
folds          reductions of all features of each word
inner loops    the steps of an inner recurrence, for all rows together
"""

from collections.abc import Collection

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.machine.records import Field
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Immediate:
    """Operand of a loop that is a number known at compile time."""

    value: float | int | bool
    dtype: str


@dataclass(frozen=True)
class Register:
    """Operand of a loop in a register: the value of a node that the same loop has computed."""

    number: int
    dtype: str


@dataclass(frozen=True)
class Broadcast:
    """Operand of a loop, the same in every row: a padded array among the constants, at a byte offset."""

    offset: int
    dtype: str


@dataclass(frozen=True)
class VectorLoad:
    """Operand in a record (memory of a row's values): contiguous vectors from element `start` on."""

    field: Field
    start: int
    dtype: str


@dataclass(frozen=True)
class UniformLoad:
    """Operand in a record (memory of a row's values): one element, broadcast to all units of the loop."""

    field: Field
    start: int
    dtype: str


@dataclass(frozen=True)
class IndexedLoad:
    """Operand in a record (memory of a row's values) that is read through a table of indices.

    offset: the byte offset of the table among the constants.
    per: "spread": an index per block, of one element that is broadcast; "block": an index per block, of the
        first of contiguous elements; "element": an index per element.
    """

    field: Field
    offset: int
    per: str
    dtype: str


@dataclass(frozen=True)
class Along:
    """Operand of work on fibers (elements summed for one unit) that differs from depth to depth.

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


Operand = Immediate | Register | Broadcast | VectorLoad | UniformLoad | IndexedLoad
DeepOperand = Operand | Along


@dataclass(frozen=True)
class ProductOperand:
    """Left operand of products, and the packed parameters that it is multiplied by.

    field, start, inner: the field of the operand, its first element, and its number of elements.
    packed: the offset of the packed parameters among the constants.
    weights: the encoding of operand and parameters, "int8" or "bfloat16"; None for none.
    scales: for int8, the field of the scale of each row.
    """

    field: Field
    start: int
    inner: int
    packed: int
    weights: str | None = None
    scales: Field | None = None


@dataclass(frozen=True)
class ProductSum:
    """Sums of products over several left operands, x1 @ W1 + x2 @ W2 + ..., in order.

    ports: for each sum, the node that it computes; -1 if it is not read.
    """

    operands: tuple[ProductOperand, ...]
    ports: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The dtype of these sums of products: that of the left operand, or float32 if it is encoded."""
        operand = self.operands[0]
        return operand.field.dtype if operand.weights is None else "float32"


@dataclass(frozen=True)
class UnitLoop:
    """Work on `size` units (numbers of a value), block by block: products, elementwise work in registers,
    stores.

    nodes: the nodes of the elementwise work, with their operands.
    stores: the values that are stored, and their fields.
    """

    size: int
    products: tuple[ProductSum, ...]
    nodes: tuple[tuple[int, tuple[Operand, ...]], ...]
    stores: tuple[tuple[Operand, Field], ...]


@dataclass(frozen=True)
class CopyLoop:
    """Copy of `size` elements to a field (place in memory), from its element `start` on."""

    size: int
    source: Operand
    target: Field
    start: int


@dataclass(frozen=True)
class EncodeLoop:
    """Encoding of `size` elements of each row as a left side of products.

    scales: for int8, the field of the scale of each row.
    """

    size: int
    source: Operand
    weights: str
    target: Field
    scales: Field | None


@dataclass(frozen=True)
class ReduceLoop:
    """Reduction of contiguous elements of `shape`, over the last axis or, if `leading`, the first."""

    operation: str
    source: Field
    start: int
    shape: tuple[int, int]
    leading: bool
    targets: tuple[Field, ...]


@dataclass(frozen=True)
class ScanLoop:
    """Inclusive scan of contiguous elements of `shape` along the middle axis."""

    operation: str
    source: Field
    start: int
    shape: tuple[int, int, int]
    targets: tuple[Field, ...]


@dataclass(frozen=True)
class GatherLoop:
    """Gather of rows of a table, a parameter, by computed indices.

    table: the byte offset of the table among the constants.
    count, row_size: its number of rows, and of elements of a row.
    index: the operand with the `indices` row numbers.
    """

    table: int
    count: int
    row_size: int
    index: Operand
    indices: int
    targets: tuple[Field, ...]


@dataclass(frozen=True)
class InnerReduceLoop:
    """Reduction over the words (steps of an inner sequence) of a row, in order, to a value of `size`
    elements.

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
    """Reduction of all `size` elements of each word (step of an inner sequence) to one number.

    The nodes are computed in registers; `source` may be the last of them.
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
    """Reduction over fibers: the elements of a matrix that are combined for one unit.

    number: its node.
    terms: the operand that is reduced, or the two factors of a product that is fused into a sum.
    """

    number: int
    terms: tuple[DeepOperand, ...]


@dataclass(frozen=True)
class FiberPass:
    """One pass over the fibers (elements summed for one unit) of a group of units: a loop over their depth.

    depth: the depth (length) of the fibers.
    units: elementwise work on the units before the pass.
    nodes, sums, stores: the elementwise nodes, reductions and stores at each depth.
    """

    depth: int
    units: Computed
    nodes: ComputedDeep
    sums: tuple[FiberSum, ...]
    stores: tuple[tuple[Operand, Field], ...]

    @property
    def fields(self) -> set[Field]:
        """The fields (places of values in the memory of a row) that the pass over fibers (the matrix elements
        summed to one result, a unit) reads: they decide whether it can be fused with a pass of the step
        before.
        """
        read = [operands for _, operands in (*self.units, *self.nodes)] + [
            fiber_sum.terms for fiber_sum in self.sums
        ]
        operands = [operand for group in read for operand in group]
        along = {operand.source for operand in operands if isinstance(operand, Along)}
        in_records = {
            operand.field
            for operand in operands
            if isinstance(operand, VectorLoad | UniformLoad | IndexedLoad)
        }
        return in_records | {source for source in along if isinstance(source, Field)}


@dataclass(frozen=True)
class FiberLoop:
    """Work on fibers (elements summed for one unit). Each group of `width` units runs all passes, then
    elementwise work and stores of units.

    tile: the part of the depth that stays in the L1 cache; 0 if the depth is not tiled.
    partial: the fields of partial sums between tiles; empty if the depth is not tiled.
    """

    size: int
    width: int
    passes: tuple[FiberPass, ...]
    units: Computed
    stores: tuple[tuple[Operand, Field], ...]
    tile: int = 0
    partial: tuple[Field, ...] = ()

    @property
    def begins_ahead(self) -> bool:
        """Tells whether a step's first loop (pass) over fibers, the elements of a matrix that are summed for
        one unit, may be fused with the last pass of the step before, so that elements are loaded once.
        """
        first, last = self.passes[0], self.passes[-1]
        return first is not last and first.depth == last.depth and not first.stores and self.reads_only_fibers

    @property
    def reads_only_fibers(self) -> bool:
        """Tells whether a step's first pass (in `passes`) reads no memories (recurrent states) but matrices
        that its passes store; so it need not wait for the work on units (results of sums) at the end of the
        step before.

        A memory is stored in the record "next", which is the record "now" a step later.
        """
        stored = {target.a_step_later for fiber_pass in self.passes for _, target in fiber_pass.stores}
        return {field for field in self.passes[0].fields if field.record == "now"} <= stored


Loop = (
    FiberLoop
    | UnitLoop
    | CopyLoop
    | EncodeLoop
    | ReduceLoop
    | ScanLoop
    | GatherLoop
    | InnerReduceLoop
    | FoldLoop
)


@dataclass(frozen=True)
class LaneLoop:
    """Work that one lane (slot for a sequence) does completely before the next: pairs of an axis and a loop.

    A loop goes over the row's words along the axis; with the axis "" it is a loop over the row itself.
    """

    work: tuple[tuple[str, Loop], ...]

    def __bool__(self) -> bool:
        """Tells whether there is any work to do lane by lane."""
        return bool(self.work)


@dataclass(frozen=True)
class InnerLoop:
    """Inner recurrence over the words (steps of inner sequences) of all rows along an axis.

    body: the net of its step.
    reverse: whether it begins with the last word.
    begin: copies of initial memories and statics from the row to the records of the recurrence.
    phases: the loops of the step.
    end: copies of final memories from those records to the row.
    index: the field of the number of words done so far; None if it is not read.
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


def exchanged_fields(loop: Loop, written: Collection[str] = ()) -> list[Field]:
    """Returns the places of the values that a loop multiplies by parameters and that other threads may have
    written, where threads divide units (features of a value): each of them reads all units. Inputs that
    products read in arrays of the call are written by none.

    written: the records outside those of a row that loops write, such as the arrays of the cotangents of
        gates.
    """
    if not isinstance(loop, UnitLoop):
        return []
    fields = (operand.field for product in loop.products for operand in product.operands)
    return list(dict.fromkeys(each for each in fields if not each.is_outside or each.record in written))


def is_one_loop(phases: list[Phase]) -> bool:
    """Tells whether a stage is a single loop over units (features of a value), so that each thread can run
    its units through many steps without waiting for other threads at a barrier.

    phases: the loops of the stage (the work before, in or after the loop over steps), phase by phase.
    """
    loops = phases[0] if len(phases) == 1 else ()
    return isinstance(loops, list) and len(loops) == 1 and isinstance(loops[0], FiberLoop | UnitLoop)
