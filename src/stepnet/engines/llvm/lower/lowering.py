"""A stage as loops: which nodes are computed together on registers, and where values that leave registers
lie.

Views are no work: a view is a list of places in the value it is a view of, found by running its NumPy meaning
on counted places. Read block by block, most lists are a run of neighbours or one number repeated; only what
is neither is read through a table.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from stepnet.engines.llvm.lower.loops import (
    Broadcast,
    CopyLoop,
    EncodeLoop,
    FoldLoop,
    GatherLoop,
    Immediate,
    LaneLoop,
    Load,
    Loop,
    Operand,
    Phase,
    Product,
    ReduceLoop,
    Register,
    ScanLoop,
    Side,
    Table,
    Uniform,
    UnitLoop,
    WordsReduceLoop,
)
from stepnet.engines.llvm.lower.segments import Segments, lane_by_lane
from stepnet.engines.llvm.lower.taken_in import taken_in
from stepnet.engines.llvm.machine.records import Field, Records
from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.products.arithmetic import arithmetic
from stepnet.engines.llvm.products.constants import Constant, Constants, Packed, Places, Scaled
from stepnet.errors import NetError
from stepnet.net.encodings import ENCODINGS
from stepnet.net.ir import Net
from stepnet.net.types import CONST, Type
from stepnet.plan.passes.rewrite import value_read, view_chain
from stepnet.plan.plan import joins, view_places
from stepnet.values.dtypes import DTYPES

STORED = ("pointwise", "matmul", "extent")
"""Kinds of nodes that unit loops compute, and store in whole vectors."""


@dataclass
class Stage:
    """The lowering of one stage, of the step-net (`inside`) or of the net around it.

    sources: fields that hold values already. wanted: the fields that results go to. scratch: the record in
    which the stage keeps values for itself. Found from these: the phase of each node, the fields of each node
    that somebody reads outside its own loop, the reduction that takes a node in, the words that are read
    after other lanes were at work, and the copies that have to be done before the current phase.
    """

    net: Net
    inside: bool
    records: Records
    constants: Constants
    target: Target
    width: int
    scratch: str
    sources: dict[int, Field]
    wanted: dict[int, list[Field]]
    phases: tuple[tuple[int, ...], ...]
    phase_of: dict[int, int] = field(init=False)
    taken_in: dict[int, int] = field(init=False)
    kept: set[int] = field(init=False, default_factory=set[int])
    fields: dict[int, list[Field]] = field(init=False)
    settling: list[Loop] = field(init=False, default_factory=list[Loop])
    encoded: dict[tuple[int, str], tuple[Field, Field | None]] = field(
        init=False, default_factory=dict[tuple[int, str], tuple[Field, Field | None]]
    )

    def __post_init__(self) -> None:
        self.phase_of = {number: place for place, numbers in enumerate(self.phases) for number in numbers}
        self.taken_in = taken_in(self.segments, self.wanted)
        self.phase_of |= {number: self.phase_of[into] for number, into in self.taken_in.items()}
        self.fields = self.placed()

    @cached_property
    def segments(self) -> Segments:
        """Which phases run lane by lane."""
        return Segments(self.net, self.inside, self.phases)

    def phased(self) -> list[Phase]:
        """The loops by phase; results that are views, constants or sources are copied in one more phase."""
        phases: list[tuple[list[Loop], list[Loop]]] = []
        for numbers in self.phases:
            loops = self.lower(numbers)
            phases.append((self.settling, loops))
            self.settling = []
        lowered = [*lane_by_lane(self.segments, phases), self.result_copies()]
        return [phase for phase in lowered if phase]

    def loops(self) -> list[list[Loop]]:
        """The loops by phase of a stage without inner sequences."""
        phases = self.phased()
        loops = [phase for phase in phases if not isinstance(phase, LaneLoop)]
        assert len(loops) == len(phases)
        return loops

    def new_field(self, type_: Type, kept: bool = False) -> Field:
        """A field for a value that the stage keeps for itself.

        kept: whether words are read after other lanes were at work.
        """
        axis = self.segments.axis(type_)
        return self.records.field(f"{'kept' if kept else 'words'} {axis}" if axis else self.scratch, type_)

    # ---- words

    def nodes_into(self, number: int) -> tuple[tuple[int, tuple[Operand, ...]], ...]:
        """The nodes that a reduction takes in, with their operands."""
        nodes: list[tuple[int, tuple[Operand, ...]]] = []
        for each in sorted(n for n, reduction in self.taken_in.items() if reduction == number):
            own = self.net.nodes[each]
            nodes.append((each, tuple(self.operand(operand, own.type, each) for operand in own.inputs)))
        return tuple(nodes)

    def fold(self, number: int) -> FoldLoop:
        """A reduction of all features of each word, with the pointwise work ahead of it."""
        node = self.net.nodes[number]
        read = self.net.type_of(node.inputs[0])
        nodes, source = self.nodes_into(number), self.operand(node.inputs[0], read, number)
        return FoldLoop(node.operation, read.size, nodes, source, self.targets(number))

    def words_reduction(self, number: int) -> WordsReduceLoop:
        """A reduction over words, with the pointwise work ahead of it."""
        node = self.net.nodes[number]
        nodes, source = self.nodes_into(number), self.operand(node.inputs[0], node.type, number)
        axis = self.segments.axis(self.net.type_of(node.inputs[0]))
        how: str = node.attributes["how"]
        return WordsReduceLoop(how, axis, node.type.size, nodes, source, self.targets(number))

    # ---- what leaves registers

    def placed(self) -> dict[int, list[Field]]:
        """The fields of each node that somebody reads outside its own loop."""
        needed: set[int] = set()
        for number in self.phase_of:
            node = self.net.nodes[number]
            for operand in node.inputs:
                root = value_read(self.net, operand)
                if root in self.phase_of and not self.in_loop(operand, root, number):
                    needed.add(root)
                    if self.segments.apart(self.phase_of[root], self.phase_of[number]):
                        self.kept.add(root)
        for number in self.wanted:
            root, _ = view_chain(self.net, number)
            if root in self.phase_of and root != number:
                needed.add(root)
        fields: dict[int, list[Field]] = {}
        for number in reversed(self.phase_of):  # users first: their operands may lie within them
            wanted = [*self.wanted.get(number, []), *fields.get(number, [])]
            if number in needed and not any(target.is_readable for target in wanted):
                wanted = [self.new_field(self.net.type_of(number), number in self.kept), *wanted]
            if wanted:
                fields[number] = wanted
            for piece, start in self.pieces_inside(number):
                within = [whole.part(start, self.net.type_of(piece).size) for whole in wanted]
                fields[piece] = [*fields.get(piece, []), *within]
        return fields

    def pieces_inside(self, number: int) -> list[tuple[int, int]]:
        """The operands of a concatenation that are stored where it lies, and the place of each: whole vectors
        that loops of this stage compute.
        """
        node = self.net.nodes[number]
        if node.operation != "concatenate" or len(node.type.shape) != 1:
            return []
        inside: list[tuple[int, int]] = []
        start = 0
        for operand in node.inputs:
            size = self.net.type_of(operand).size
            last = start + size == node.type.size
            stored = operand in self.phase_of and self.net.nodes[operand].kind in STORED
            stored = stored and (operand not in self.kept or number in self.kept)
            if stored and size and start % self.width == 0 and (last or size % self.width == 0):
                inside.append((operand, start))
            start += size
        return inside

    def in_loop(self, operand: int, root: int, user: int) -> bool:
        """Whether `user` reads `root` from registers, in the same loop."""
        node, source = self.net.nodes[user], self.net.nodes[root]
        if node.operation == "result":
            return True
        if root in self.taken_in or user in self.taken_in:
            return root in self.taken_in
        if node.kind != "pointwise" or source.kind not in STORED:
            return False
        return self.phase_of[root] == self.phase_of[user] and joins(self.net, operand, node)

    # ---- loops

    def lower(self, numbers: tuple[int, ...]) -> list[Loop]:
        """The loops of one phase."""
        loops: list[Loop] = []
        units: dict[tuple[int, str], list[int]] = {}
        for number in numbers:
            node = self.net.nodes[number]
            if number in self.taken_in:
                continue
            key = node.types[0].size, self.segments.axis(node.types[0])
            if self.segments.is_over_words(number):
                loops.append(self.words_reduction(number))
            elif self.segments.folds(number):
                loops.append(self.fold(number))
            elif node.kind == "reduce":
                loops.append(self.reduction(number))
            elif node.kind == "scan":
                loops.append(self.scan(number))
            elif node.operation == "gather":
                loops.append(self.gather(number))
            elif node.operation == "concatenate":
                loops += self.concatenation(number)
            elif node.kind in ("pointwise", "matmul") or node.operation == "result":
                units.setdefault(key, []).append(number)
            else:
                raise NetError(f"{node.operation} is no work of a stage")
        return loops + [self.unit_loop(size, members) for (size, _), members in units.items() if size]

    def unit_loop(self, size: int, members: list[int]) -> UnitLoop:
        """Products and pointwise work of one size."""
        products: list[Product] = []
        nodes: list[tuple[int, tuple[Operand, ...]]] = []
        for number in members:
            node = self.net.nodes[number]
            if node.kind == "matmul":
                products.append(self.product(number, members))
            elif node.kind == "pointwise":
                operands = tuple(self.operand(operand, node.type, number) for operand in node.inputs)
                nodes.append((number, operands))
        stores: list[tuple[Operand, Field]] = []
        for number in members:
            if self.net.nodes[number].operation == "products":
                continue
            for target in self.fields.get(number, []):
                stores.append((Register(number, self.net.type_of(number).dtype), target))
        return UnitLoop(size, tuple(products), tuple(nodes), tuple(stores))

    def product(self, number: int, members: list[int]) -> Product:
        """The left sides, each with its parameters, packed."""
        node = self.net.nodes[number]
        ports = [number]
        if node.operation == "products":
            ports = [self.port(number, place, members) for place in range(len(node.types))]
        lefts, rights = node.sides
        sides: list[Side] = []
        for place, operand in enumerate(lefts):
            own = rights[place :: len(lefts)]
            inner, size = self.net.type_of(own[0]).shape
            assert size == node.types[0].size
            sides.append(self.side(operand, own, inner, node.attributes.get("weights")))
        return Product(tuple(sides), tuple(ports))

    def side(self, operand: int, own: tuple[int, ...], inner: int, weights: str | None) -> Side:
        """A left side and the parameters that it is multiplied with, both encoded where weights are."""
        parameters = tuple(map(self.constant, own))
        if weights is None:
            left, start = self.run_of(operand, by_number=True)
            return Side(left, start, inner, self.constants.add(Packed(parameters, self.width)))
        is_scaled = ENCODINGS[weights].is_scaled
        entry = Scaled(parameters, self.width) if is_scaled else Packed(parameters, self.width, weights)
        packed = self.constants.add(entry)
        left, scales = self.encoded_left(operand, weights)
        return Side(left, 0, inner, packed, weights, scales)

    def encoded_left(self, operand: int, weights: str) -> tuple[Field, Field | None]:
        """The fields of a left side that is encoded before the current phase, once for all products with it,
        and of its scales in int8.
        """
        if (operand, weights) not in self.encoded:
            kind, type_ = arithmetic(weights, "float32", self.width, self.target), self.net.type_of(operand)
            words = Type(type_.extent, (kind.left_size(type_.size, self.width) // 4,), "int32")
            scale = Type(type_.extent, (1,), "float32")
            target = self.new_field(words)
            scales = self.new_field(scale) if ENCODINGS[weights].is_scaled else None
            source = self.operand(operand, type_, -1)
            self.settling.append(EncodeLoop(type_.size, source, weights, target, scales))
            self.encoded[operand, weights] = target, scales
        return self.encoded[operand, weights]

    def port(self, number: int, place: int, members: list[int]) -> int:
        """The result node of one of the products; -1 if nobody reads it."""
        for member in members:
            node = self.net.nodes[member]
            if node.operation == "result" and node.inputs[0] == number and node.attributes["of"] == place:
                return member
        return -1

    def reduction(self, number: int) -> ReduceLoop:
        """A reduction over the first or last of two axes."""
        node = self.net.nodes[number]
        source, start = self.run_of(node.inputs[0])
        shape = self.net.type_of(node.inputs[0]).shape
        leading = node.attributes["axes"] == (-2,)
        return ReduceLoop(node.operation, source, start, (shape[0], shape[1]), leading, self.targets(number))

    def scan(self, number: int) -> ScanLoop:
        """A scan along any axis."""
        node = self.net.nodes[number]
        source, start = self.run_of(node.inputs[0])
        axis: int = node.attributes["axis"] % len(node.type.shape)
        before, after = node.type.shape[:axis], node.type.shape[axis + 1 :]
        shape = (math.prod(before), node.type.shape[axis], math.prod(after))
        return ScanLoop(node.operation, source, start, shape, self.targets(number))

    def gather(self, number: int) -> GatherLoop:
        """Rows of a parameter at integers."""
        node = self.net.nodes[number]
        table, index = node.inputs
        shape = self.net.type_of(table).shape
        row_size = int(np.prod(shape[1:], dtype=np.int64))
        offset = self.constants.add(Places(self.constant(table), None, 1))
        operand = self.operand(index, self.net.type_of(index), number)
        return GatherLoop(
            offset, shape[0], row_size, operand, self.net.type_of(index).size, self.targets(number)
        )

    def concatenation(self, number: int) -> list[CopyLoop]:
        """A copy per run of neighbours, for the operands that are not there already."""
        node, inside = self.net.nodes[number], self.pieces_inside(number)
        axis: int = node.attributes["axis"] % len(node.type.shape)
        places = np.arange(node.type.size).reshape(node.type.shape)
        loops: list[CopyLoop] = []
        begin = 0
        for operand in node.inputs:
            size = self.net.type_of(operand).shape[axis]
            index = [slice(None)] * len(node.type.shape)
            index[axis] = slice(begin, begin + size)
            if (operand, begin) not in inside:
                loops += self.part_copies(operand, places[tuple(index)], number)
            begin += size
        return loops

    def part_copies(self, operand: int, places: np.ndarray, user: int) -> list[CopyLoop]:
        """Copies of one part of a concatenation: one per run of neighbours in the result."""
        type_ = self.net.type_of(operand)
        if not type_.size:
            return []
        flat = places.ravel()
        cuts = [0, *(np.flatnonzero(np.diff(flat) != 1) + 1), type_.size]
        loops: list[CopyLoop] = []
        for start, stop in pairwise(cuts):
            run = Type(type_.extent, (int(stop - start),), type_.dtype)
            source = self.operand(operand, run, user, np.arange(start, stop))
            loops += [CopyLoop(run.size, source, target, int(flat[start])) for target in self.targets(user)]
        return loops

    def result_copies(self) -> list[Loop]:
        """Copies for results that are views, constants or sources."""
        loops: list[Loop] = []
        for number, targets in self.wanted.items():
            if number in self.fields or not targets:
                continue
            type_ = self.net.type_of(number)
            if type_.size:
                source = self.operand(number, type_, -1)
                loops += [CopyLoop(type_.size, source, target, 0) for target in targets]
        return loops

    def targets(self, number: int) -> tuple[Field, ...]:
        """The fields in which the value of a node is stored."""
        return tuple(self.fields.get(number, ()))

    # ---- operands

    def operand(self, number: int, user: Type, reader: int, part: np.ndarray | None = None) -> Operand:
        """How a loop over the numbers of `user` reads a node, broadcast to it (or `part` of it)."""
        type_ = self.net.type_of(number)
        root, _ = view_chain(self.net, number)
        places = view_places(self.net, number)
        if part is not None:
            places = places.ravel()[part]
        places = np.broadcast_to(places, user.shape).ravel()
        node = self.net.nodes[root]
        if node.operation == "expand" and root not in self.sources:
            root = node.inputs[0]
            inner, _ = view_chain(self.net, root)
            places = view_places(self.net, root).ravel()[places]
            root, node = inner, self.net.nodes[inner]
        if node.types[0].extent == CONST:
            if node.operation == "constant" and node.type.size == 1 and not DTYPES[type_.dtype].is_stored:
                return Immediate(node.attributes["value"].value.ravel()[0].item(), type_.dtype)
            return Broadcast(self.constants.add(Places(self.constant(root), places, self.width)), type_.dtype)
        if reader >= 0 and root in self.phase_of and self.in_loop(number, root, reader) and part is None:
            return Register(root, type_.dtype)
        return self.field_operand(self.field_of(root), places, type_.dtype)

    def constant(self, number: int) -> Constant:
        """A constant node of this stage's net."""
        return Constant(self.inside, number, self.net.type_of(number))

    def field_of(self, root: int) -> Field:
        """The field of a value."""
        fields = [self.sources[root]] if root in self.sources else self.fields[root]
        return next(each for each in fields if each.is_readable)

    def field_operand(self, source: Field, places: np.ndarray, dtype: str) -> Operand:
        """The cheapest way to read these places of a field, block by block."""
        if np.all(places == places[0]):
            return Uniform(source, int(places[0]), dtype)
        starts = places[:: self.width]
        # A vector that begins inside a record may end beyond it, and one in an array of the call may not.
        whole = not source.is_outside or starts.max() + self.width <= source.size
        if whole and np.array_equal(places, places[0] + np.arange(len(places))):
            return Load(source, int(places[0]), dtype)
        element = np.arange(len(places)) % self.width
        block = np.repeat(starts, self.width)[: len(places)]
        if np.array_equal(places, block):
            return Table(source, self.table(starts), "spread", dtype)
        if whole and np.array_equal(places, block + element):
            return Table(source, self.table(starts), "block", dtype)
        padded = np.concatenate([places, np.repeat(places[-1], -len(places) % self.width)])
        return Table(source, self.table(padded), "element", dtype)

    def table(self, places: np.ndarray) -> int:
        """The constants' offset of a table of places."""
        return self.constants.add_array(places.astype(np.int64))

    def run_of(self, number: int, by_number: bool = False) -> tuple[Field, int]:
        """The field in which an operand's numbers lie in one run, copied there if need be, and the first.

        by_number: whether they are read number by number, and not in vectors that may end behind them.
        """
        root, _ = view_chain(self.net, number)
        places = view_places(self.net, number).ravel()
        start = int(places[0]) if len(places) else 0
        if root in self.sources or root in self.fields:
            source = self.field_of(root)
            along = np.array_equal(places, start + np.arange(len(places)))
            if along and (by_number or not source.is_outside):
                return source, start
        type_ = self.net.type_of(number)
        settled = self.new_field(type_)
        self.settling.append(CopyLoop(type_.size, self.operand(number, type_, -1), settled, 0))
        return settled, 0
