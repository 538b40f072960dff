"""The storage of a step's memories and statics.

    S [K, V]  ->  [group of units][depth][unit], in the record "lane", updated in place
    n [V]     ->  unchanged, in the record "now"; its next value is in the record "next"

A memory stored fiber by fiber is copied into this order when a sequence begins, and out of it when it ends. A
static stored fiber by fiber is copied into it when a sequence begins.
"""

from stepnet.compiler.plan.passes.rewrite import view_chain
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.views import without_reshape
from stepnet.compiler.targets.cpu.lower.fibers import FiberStorage, FiberWork, group_width, work_on_fibers
from stepnet.compiler.targets.cpu.lower.loops import CopyLoop
from stepnet.compiler.targets.cpu.lower.stage import field_operand
from stepnet.compiler.targets.cpu.machine.records import Field, Records
from stepnet.compiler.targets.cpu.products.constants import Constants
from stepnet.compiler.values.records import dataclass

Relaid = tuple[CopyLoop, CopyLoop]
"""The copy of an initial value into fiber order, and the copy of a final value out of it."""


@dataclass(frozen=True)
class MemoryFields:
    """Fields (places in memory) of a step's memories.

    fields: for each memory, its field.
    relaid: for each memory in order, the copies into and out of fiber order; None if it keeps the caller's
        order.
    work: for each node on fibers, the work that it belongs to.
    unchanged: the memories that no step changes or computes with. They stay where they are.
    """

    fields: dict[int, Field]
    relaid: tuple[Relaid | None, ...]
    work: dict[int, FiberWork]
    unchanged: frozenset[int]


def assign_memories(plan: Plan, records: Records, constants: Constants, width: int) -> MemoryFields:
    """Assigns a field (position in the memory of a row) to each memory (recurrent state) of the step in a
    plan (a part's operations in their order). Matrices that are summed over an axis are stored fiber by fiber
    (the elements of a sum together).

    records: the layout of the rows' memory, to which the fields are added.
    constants: the constants, to which the index tables for copies of matrices are added.
    width: the number of elements of a vector.
    """
    body, recur = plan.body, plan.recurrence.recur
    work = work_on_fibers(plan.fibers, plan.loop, {without_reshape(body, number) for number in body.results})
    # Results that are views of a memory are copied after all phases: it must not be overwritten until then.
    copied = {view_chain(body, number)[0] for number in body.results}
    fields, relaid = dict[int, Field](), list[Relaid | None]()
    users, pairs = body.users(), list(zip(recur.memories, recur.following, strict=True))
    unchanged = frozenset(number for number, after in pairs if after == number and not users[number])
    for number, after in pairs:
        type_, indices = body.type_of(number), plan.fibers.indices.get(number)
        if indices is None or number in unchanged:
            fields[number] = records.field("lane" if number in unchanged else "now", type_)
            relaid.append(None)
            continue
        last = without_reshape(body, after)
        in_place = number not in copied and work[last].leaves_in_place(number, last)
        storage = FiberStorage(indices, group_width(plan.fibers, indices.shape[1], width))
        now = records.fibered("lane" if in_place else "now", type_, storage.order.size)
        end = field_operand(constants, now, storage.index, type_.dtype, width)
        fields[number] = now
        target = caller_field(type_.size, type_.dtype)
        relaid.append((into_fibers(constants, storage, now, width), CopyLoop(type_.size, end, target, 0)))
    return MemoryFields(fields, tuple(relaid), work, unchanged)


def assign_static(
    plan: Plan, number: int, records: Records, constants: Constants, width: int
) -> tuple[Field, CopyLoop | None]:
    """Assigns a field (position in the memory of a row) to a static (a value per sequence), node `number` of
    the step.

    records, constants: the layout of the rows' memory, to which the field is added; and the constants, to
        which the index table for the copy of a matrix is added.
    width: the number of elements of a vector.

    Returns the field, and the copy that stores the value fiber by fiber (the elements that a sum combines
    together); None if it keeps the caller's order.
    """
    type_, indices = plan.body.type_of(number), plan.fibers.indices.get(number)
    if indices is None:
        return records.field("lane", type_), None
    storage = FiberStorage(indices, group_width(plan.fibers, indices.shape[1], width))
    field = records.fibered("lane", type_, storage.order.size)
    return field, into_fibers(constants, storage, field, width)


def into_fibers(constants: Constants, storage: FiberStorage, target: Field, width: int) -> CopyLoop:
    """Makes the loop that copies a matrix from the caller's array, in C order, to the field `target`, where
    it is stored fiber by fiber (the elements that a sum combines together), in the order that `storage`
    describes. Its index table is added to `constants`.
    """
    source = caller_field(storage.indices.size, target.dtype)
    return CopyLoop(
        target.size, field_operand(constants, source, storage.order, target.dtype, width), target, 0
    )


def caller_field(size: int, dtype: str) -> Field:
    """Makes the field of a value in the caller's array, in C order, to be copied from or to there."""
    return Field("caller", 0, size, dtype)
