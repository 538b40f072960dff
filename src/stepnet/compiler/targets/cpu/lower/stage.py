"""The context of lowering a stage: the fields of its values, and how loops read them.

Nothing is computed for views: a view is an array of indices into its source, obtained by applying the view's
NumPy operation to an array of indices. Most views read contiguous elements in each block, or one element
repeated. All others are read through a table of indices.
"""

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.plan.fibers import Fibers
from stepnet.compiler.plan.passes.rewrite import value_read, view_chain
from stepnet.compiler.plan.phases import joins
from stepnet.compiler.plan.views import view_indices, without_reshape
from stepnet.compiler.targets.cpu.lower.fibers import FiberStorage, FiberWork, group_width
from stepnet.compiler.targets.cpu.lower.fusion import fused_into
from stepnet.compiler.targets.cpu.lower.loops import (
    Broadcast,
    CopyLoop,
    Immediate,
    IndexedLoad,
    Loop,
    Operand,
    Register,
    UniformLoad,
    VectorLoad,
)
from stepnet.compiler.targets.cpu.lower.segments import Segments
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import Field, Records
from stepnet.compiler.targets.cpu.products.constants import ConstantNode, Constants, Elements
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.records import dataclass

STORED = ("pointwise", "matmul", "extent")
"""The kinds of nodes that unit loops compute and store as whole vectors."""


@dataclass
class StageLowering:
    """Translation of one stage to loops: of a step, of the outer net, or of an inner recurrence.

    inside: whether the net is that of a step.
    sources: the fields of values that are computed before the stage.
    targets_of: for each result, the fields that it is stored in.
    scratch: the name of the record for values that only this stage reads.
    phases: the nodes of each phase.
    fibers, fiber_work: the fibers of a step, and for each node on fibers the work that it belongs to.
    parameters: for an inner recurrence, the constants of the step that are its parameters.
    phase_of: the phase of each node.
    fused_into: for each node that is fused into a reduction, the reduction.
    rearranged: for each result on fibers, its fields that are not stored in fiber order.
    kept: the nodes on words (steps of inner sequences) that are read after other lanes have run.
    fields: the fields of each node that is read outside its own loop.
    pending: the copies and encodings that run before the current phase.
    encoded: for each left operand of products and encoding, the field of its words and that of its scales.
    """

    net: Net
    inside: bool
    records: Records
    constants: Constants
    processor: Processor
    width: int
    scratch: str
    sources: dict[int, Field]
    targets_of: dict[int, list[Field]]
    phases: tuple[tuple[int, ...], ...]
    fibers: Fibers
    fiber_work: Mapping[int, FiberWork] = field(default_factory=dict[int, FiberWork])
    parameters: Mapping[int, ConstantNode] = field(default_factory=dict[int, ConstantNode])
    phase_of: dict[int, int] = field(init=False)
    fused_into: dict[int, int] = field(init=False)
    rearranged: dict[int, list[Field]] = field(init=False, default_factory=dict[int, list[Field]])
    kept: set[int] = field(init=False, default_factory=set[int])
    fields: dict[int, list[Field]] = field(init=False)
    pending: list[Loop] = field(init=False, default_factory=list[Loop])
    encoded: dict[tuple[int, str], tuple[Field, Field | None]] = field(
        init=False, default_factory=dict[tuple[int, str], tuple[Field, Field | None]]
    )

    def __post_init__(self) -> None:
        """Finds the phase (work between two barriers) and the fields (places in memory) of each node, and the
        nodes that are fused into reductions.

        A wanted result that only reshapes another node counts as that node. Nodes without fields stay in
        registers.
        """
        targets_of_root = dict[int, list[Field]]()
        for number, targets in self.targets_of.items():
            targets_of_root.setdefault(without_reshape(self.net, number), []).extend(targets)
        self.targets_of = targets_of_root
        self.phase_of = {number: index for index, numbers in enumerate(self.phases) for number in numbers}
        self.fused_into = fused_into(self.segments, self.targets_of)
        self.phase_of |= {number: self.phase_of[into] for number, into in self.fused_into.items()}
        self.fields = self.assign_fields()

    @cached_property
    def segments(self) -> Segments:
        """The runs of phases that one lane (slot of a sequence) completes before the next begins them."""
        return Segments(self.net, self.inside, self.phases)

    def new_field(self, value: int | Type, kept: bool = False) -> Field:
        """Makes a field (place in memory) for a value that only this stage reads, such as the work of a step.

        A matrix that is stored by fibers has the elements that one sum combines next to each other.

        value: the number of the value's node, or its type.
        kept: whether a value of words (steps of inner sequences) is read after other lanes (slots that run a
            sequence each) have run. It then has memory for each lane; for other values of words, all lanes of
            a thread use the same memory.
        """
        if isinstance(value, int):
            if (storage := self.storage(value)) is not None:
                return self.records.fibered(self.scratch, self.net.type_of(value), storage.order.size)
            value = self.net.type_of(value)
        axis = self.segments.axis(value)
        return self.records.field(f"{'kept' if kept else 'words'} {axis}" if axis else self.scratch, value)

    def storage(self, number: int) -> FiberStorage | None:
        """Returns the order in memory of a node's matrix, if it is stored fiber by fiber (the elements that a
        sum combines for a unit next to each other); None for other nodes.
        """
        indices = self.fibers.indices.get(number)
        return (
            None
            if indices is None
            else FiberStorage(indices, group_width(self.fibers, indices.shape[1], self.width))
        )

    # ---- values in memory

    def assign_fields(self) -> dict[int, list[Field]]:
        """Assigns fields (places in memory) to each node that is read outside its own loop; returns them by
        node.

        An operand of a concatenation may get a slice of the concatenation's field, so that it need not be
        copied. Nodes that are read after other lanes (sequences) have run are added to `kept`. Of results
        that loops store by fiber (the matrix elements summed to one result, a unit), fields in another order
        are put into `rearranged`.
        """
        needed: set[int] = set()
        for number in self.phase_of:
            node = self.net.nodes[number]
            for operand in node.inputs:
                root = value_read(self.net, operand)
                if root in self.phase_of and not self.in_loop(operand, root, number):
                    needed.add(root)
                    if self.is_read_late(root, number):
                        self.kept.add(root)
        for number in self.targets_of:
            root, _ = view_chain(self.net, number)
            if root in self.phase_of and root != number:
                needed.add(root)
        fields: dict[int, list[Field]] = {}
        for number in reversed(self.phase_of):  # users first: the fields of operands may be parts of theirs
            targets = [*self.targets_of.get(number, []), *fields.get(number, [])]
            if number in self.fibers.indices:
                self.rearranged[number] = [target for target in targets if not target.is_fibered]
                targets = [target for target in targets if target.is_fibered]
                needed |= {number} if self.rearranged[number] else set()
            if number in needed and not any(target.is_readable for target in targets):
                targets = [self.new_field(number, number in self.kept), *targets]
            if targets:
                fields[number] = targets
            for piece, start in self.pieces_inside(number):
                slices = [whole_field.slice(start, self.net.type_of(piece).size) for whole_field in targets]
                fields[piece] = [*fields.get(piece, []), *slices]
        return fields

    def is_read_late(self, root: int, user: int) -> bool:
        """Tells whether other lanes (sequences) run between node `root` and the node `user` that reads it."""
        if self.segments.is_recurrence(root) or self.segments.is_recurrence(user):
            return True
        return self.segments.are_separated(self.phase_of[root], self.phase_of[user])

    def pieces_inside(self, number: int) -> list[tuple[int, int]]:
        """Lists the operands of a concatenation of vectors that loops store directly into the field (place in
        memory) of the result, so that no copy is needed, each with its offset there.

        These are the operands that loops of this stage (the work before, in or after the loop over steps)
        compute as whole vectors, and that begin at a vector.
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
            stored = stored and operand not in self.fibers.indices
            if stored and size and start % self.width == 0 and (last or size % self.width == 0):
                inside.append((operand, start))
            start += size
        return inside

    def in_loop(self, operand: int, root: int, user: int) -> bool:
        """Tells whether node `user` reads node `root` from registers, because one loop computes both.

        operand: the operand of `user` that is `root` or a view of it.
        """
        node, source = self.net.nodes[user], self.net.nodes[root]
        if node.operation == "result":
            return True
        if root in self.fiber_work or user in self.fiber_work:
            work = self.fiber_work.get(user)
            if work is None or work is not self.fiber_work.get(root):
                return False
            return work.has_on_registers(operand, user)
        if root in self.fused_into or user in self.fused_into:
            return root in self.fused_into
        if node.kind != "pointwise" or source.kind not in STORED:
            return False
        return self.phase_of[root] == self.phase_of[user] and joins(self.fibers, operand, user)

    def targets(self, number: int) -> tuple[Field, ...]:
        """Returns the fields that store the value of a node; none if it stays in registers."""
        return tuple(self.fields.get(number, ()))

    # ---- operands

    def operand(
        self, number: int, user: Type, reader: int, part: np.ndarray | None = None, width: int = 0
    ) -> Operand:
        """Returns the description of how a loop reads the value of a node: as a number, a constant, a
        register, or a load from memory.

        number: the node, which may be a view.
        user: the type that the node is broadcast to.
        reader: the node that reads it; -1 for a copy.
        part: the indices of the elements that are read; None for all.
        width: the number of elements read at a time; 0 for a vector.
        """
        dtype, (root, indices) = self.net.type_of(number).dtype, self.value_at(number)
        if part is not None:
            indices = indices.ravel()[part]
        indices = np.broadcast_to(indices, user.shape).ravel()
        if self.net.nodes[root].types[0].extent == CONST:
            elements = Elements(self.constant(root), indices, width or self.width)
            return self.immediate(root) or Broadcast(self.constants.add(elements), dtype)
        if reader >= 0 and root in self.phase_of and self.in_loop(number, root, reader) and part is None:
            return Register(root, dtype)
        return self.field_operand(self.field_of(root), self.stored_indices(root, indices), dtype, width)

    def value_at(self, number: int) -> tuple[int, np.ndarray]:
        """Finds the node whose stored value is read through a chain of views (node `number` is the last).

        Returns its number, and for each element of `number` the index of the element there.
        """
        root, _ = view_chain(self.net, number)
        indices = view_indices(self.net, number)
        node = self.net.nodes[root]
        if node.operation == "expand" and root not in self.sources:
            inner, _ = view_chain(self.net, node.inputs[0])
            return inner, view_indices(self.net, node.inputs[0]).ravel()[indices]
        return root, indices

    def immediate(self, number: int) -> Immediate | None:
        """Makes an operand of a constant that is one number known at compile time; None for other nodes."""
        node = self.net.nodes[number]
        if node.operation != "constant" or node.type.size != 1 or DTYPES[node.type.dtype].is_stored:
            return None
        return Immediate(node.attributes["value"].value.ravel()[0].item(), node.type.dtype)

    def stored_indices(self, number: int, indices: np.ndarray) -> np.ndarray:
        """Returns the positions at which elements of a node are stored in its field, from the indices of the
        elements in the node's value. They differ for matrices that are stored by fibers (the elements summed
        to one result, a unit).
        """
        storage = self.storage(number)
        return indices if storage is None else storage.index[indices]

    def constant(self, number: int) -> ConstantNode:
        """Returns the reference to a constant, node `number` of this stage's net, by which its value is
        packed later. For a parameter of an inner recurrence it is that of a constant of the step.
        """
        if number in self.parameters:
            return self.parameters[number]
        return ConstantNode(self.inside, number, self.net.type_of(number))

    def field_of(self, root: int) -> Field:
        """Returns the field (position in the memory of a row) from which loops read the value of a node."""
        fields = [self.sources[root]] if root in self.sources else self.fields[root]
        return next(field_ for field_ in fields if field_.is_readable)

    def field_operand(self, source: Field, indices: np.ndarray, dtype: str, width: int = 0) -> Operand:
        """Returns the cheapest operand that reads the elements `indices` of a field, `width` at a time."""
        return field_operand(self.constants, source, indices, dtype, width or self.width)

    def table(self, indices: np.ndarray) -> int:
        """Adds a table of indices to the constants, where loops read it; returns its byte offset there."""
        return self.constants.add_array(indices.astype(np.int64))

    def run_of(self, number: int, by_number: bool = False) -> tuple[Field, int]:
        """Returns a field (position in memory) in which a node's elements are contiguous, and the index of
        the first. If there is none, it is a new field, to which they are copied before the current phase (the
        nodes between two barriers).

        by_number: whether they are read one by one, not in vectors that may extend past the last.
        """
        root, _ = view_chain(self.net, number)
        indices = self.stored_indices(root, view_indices(self.net, number).ravel())
        start = int(indices[0]) if len(indices) else 0
        if root in self.sources or root in self.fields:
            source = self.field_of(root)
            is_contiguous = np.array_equal(indices, start + np.arange(len(indices)))
            if is_contiguous and (by_number or not source.is_outside):
                return source, start
        type_ = self.net.type_of(number)
        copied = self.new_field(type_)
        self.pending.append(CopyLoop(type_.size, self.operand(number, type_, -1), copied, 0))
        return copied, 0


def field_operand(
    constants: Constants, source: Field, indices: np.ndarray, dtype: str, width: int
) -> Operand:
    """Returns the cheapest operand that reads elements of a field (memory of a value), a vector at a time.

    In this order: one element for all; one contiguous run; by an index per vector, an element or a run for
    each; an index per element. Tables of indices are added to the constants.

    indices: the index of each element in the field.
    width: the number of elements of a vector.
    """
    if np.all(indices == indices[0]):
        return UniformLoad(source, int(indices[0]), dtype)
    starts = indices[::width]
    # A vector may extend past the end of a record, but not past that of an array of the call.
    fits_vectors = not source.is_outside or starts.max() + width <= source.size
    if fits_vectors and np.array_equal(indices, indices[0] + np.arange(len(indices))):
        return VectorLoad(source, int(indices[0]), dtype)
    element = np.arange(len(indices)) % width
    block = np.repeat(starts, width)[: len(indices)]
    if np.array_equal(indices, block):
        return IndexedLoad(source, constants.add_array(starts.astype(np.int64)), "spread", dtype)
    if fits_vectors and np.array_equal(indices, block + element):
        return IndexedLoad(source, constants.add_array(starts.astype(np.int64)), "block", dtype)
    padded = np.concatenate([indices, np.repeat(indices[-1], -len(indices) % width)])
    return IndexedLoad(source, constants.add_array(padded.astype(np.int64)), "element", dtype)
