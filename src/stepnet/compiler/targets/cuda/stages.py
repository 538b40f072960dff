"""The stages of a plan as kernels and products: all entries at once, spread over all blocks.

A stage is cut at products with large matrices, which the library of products computes for all entries. All
between two of them is one kernel.

    before    y = tanh(norm(x) @ W + b)   ->   kernel  n = norm(x)
                                               product p = n @ W
                                               kernel  y = tanh(p + b)
"""

from collections.abc import Iterable
from math import prod

from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.plan.passes.when import is_of_steps, when
from stepnet.compiler.plan.plan import Plan, picks
from stepnet.compiler.plan.stages import stage
from stepnet.compiler.plan.views import without_reshape
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.codes import STAGE_WORDS, DeviceStage, ProductCode
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.elements import RowOfThread, RowShare, Source, uniform
from stepnet.compiler.targets.cuda.entries.entry import EntryWriter
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.entries.room import ValueRoom, room
from stepnet.compiler.targets.cuda.entries.statements import Statement, Statements
from stepnet.compiler.targets.cuda.refusals import refuse
from stepnet.compiler.targets.cuda.stored import MULTIPLIED, common_half, half_of
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

Value = ir.Value
SMALL_MATRIX = 4096
"""The most elements of a matrix with which a kernel multiplies by itself."""
MOST_ENTRIES = 64
"""The most entries that a block computes at a time."""
THREADS, SHARED = 128, 48 * 1024
"""The threads of a block, and the most bytes of its shared memory."""
EXTENTS = {"sequence": ROWS, "before": STEPS, "after": STEPS, "ended": ROWS}
"""The extent of the values of each stage."""


@dataclass(frozen=True)
class StageForm:
    """The codes of one stage of a plan.

    name: of the stage: "sequence", "before", "after" or "ended".
    """

    plan: Plan
    name: str

    @property
    def net(self) -> Net:
        """The net of the plan."""
        return self.plan.net

    @computed_once
    def stage_of(self) -> dict[int, str]:
        """Maps the nodes that codes compute, views included, to their stages."""
        net, known = self.net, when(self.net)
        return {
            number: stage(node, known[number])
            for number, node in enumerate(net.nodes)
            if node.operation not in ("input", "recur")
            and not picks(net, number, self.plan.recur)
            and not is_of_steps(node)
            and node.types[0].extent != CONST
        }

    @computed_once
    def own(self) -> list[int]:
        """Lists the nodes of the stage, in order."""
        return [number for number, name in self.stage_of.items() if name == self.name]

    def is_product(self, number: int) -> bool:
        """Tells whether the library computes a node: a product of unrounded floats with large matrices."""
        node, net = self.net.nodes[number], self.net
        of = node
        if node.operation == "result":
            of = net.nodes[node.inputs[0]]
        if (
            of.kind != "matmul"
            or node.operation == "products"
            or of.attributes.get("weights") not in MULTIPLIED
        ):
            return False
        sizes = [net.type_of(right).size for right in self.terms(number)[1]]
        dtypes = {net.type_of(operand).dtype for operand in of.inputs}
        return sum(sizes) > SMALL_MATRIX and dtypes <= {"float32", "float64"} and len(dtypes) == 1

    def product_code(self, number: int) -> ProductCode:
        """Returns the product that the library computes for a node."""
        net, (lefts, rights) = self.net, self.terms(number)
        node = net.nodes[number]
        of = net.nodes[node.inputs[0]] if node.operation == "result" else node
        is_rounded = of.attributes.get("weights") == "bfloat16"
        left, right = (common_half(half_of(net, n) for n in side) for side in (lefts, rights))
        lefts = tuple(without_reshape(net, n) for n in lefts)
        return ProductCode(number, lefts, rights, is_rounded, (left, right))

    def terms(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the left and right sides of a sum of products: that of a `matmul` or a `result` node."""
        node = self.net.nodes[number]
        of = node.attributes["of"] if node.operation == "result" else 0
        product = self.net.nodes[node.inputs[0]] if node.operation == "result" else node
        lefts, rights = product.sides
        return lefts, rights[of * len(lefts) : (of + 1) * len(lefts)]

    @computed_once
    def depths(self) -> dict[int, int]:
        """Maps each node of the stage to its kernel; a product, to the kernel that it follows, or -1."""
        found = dict[int, int]()
        for number in self.own:
            if self.is_product(number):
                found[number] = max(
                    (self.readable(left, found) for left in self.terms(number)[0]), default=-1
                )
                continue
            found[number] = max((self.readable(n, found) for n in self.net.nodes[number].inputs), default=0)
            found[number] = max(found[number], 0)
        for number in self.own:  # views are computed with what reads them
            if self.is_product(number):
                found[number] = max(
                    found[number], *(self.depth_of_left(left, found) for left in self.terms(number)[0])
                )
        return found

    def readable(self, operand: int, found: dict[int, int]) -> int:
        """Returns the first kernel that may read a node; -1 for one that is known before the stage."""
        if operand not in found:
            return -1
        return found[operand] + (1 if self.is_product(operand) else 0)

    def depth_of_left(self, left: int, found: dict[int, int]) -> int:
        """Returns the kernel behind which a product may read its left side."""
        return self.readable(without_reshape(self.net, left), found)

    @computed_once
    def outside(self) -> set[int]:
        """The nodes that are read outside of all codes: operands of the recurrence, results of the net, and
        values that are reduced over steps and rows.
        """
        net, plan = self.net, self.plan
        recur = plan.recurrence.recur
        operands = recur.operands_by_kind(plan.recurrence.inputs)
        memories = [number for number in operands.memories if not net.is_zeros(number)]
        return {*operands.sequences, *memories, *operands.others, *net.results, *plan.read_in_the_end}

    def leaves(self, numbers: Iterable[int], computed: set[int]) -> set[int]:
        """Returns the nodes whose arrays are read where some nodes are computed. computed: the nodes that are
        computed there. Views of others are read through.
        """
        net, found, seen = self.net, set[int](), set[int]()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            node = net.nodes[number]
            is_through = node.is_view or node.operation == "expand" or node.operation == "products"
            inside = number in computed or (number in self.stage_of and is_through)
            if inside and node.types[0].extent != CONST:
                waiting += node.inputs
            elif uniform(node) is None:
                found.add(number)
        return found


def stage_codes(plan: Plan, name: str) -> tuple[DeviceStage | ProductCode, ...]:
    """Makes the kernels and products of a stage of a plan, in the order in which they run.

    name: of the stage: "sequence", "before", "after" or "ended".
    """
    forms = {each: StageForm(plan, each) for each in EXTENTS}
    form = forms[name]
    needed = form.outside | needed_by_later(forms, name)
    made = list[DeviceStage | ProductCode]()
    for depth in range(-1, max(form.depths.values(), default=-1) + 1):
        kernel = [n for n in form.own if form.depths[n] == depth and not form.is_product(n)]
        products = [n for n in form.own if form.depths[n] == depth and form.is_product(n)]
        writes = [n for n in kernel if n in needed and n not in form.net.inputs]
        if writes:
            made.append(StageWriter(form, set(kernel), tuple(writes)).written())
        for number in products:
            made.append(form.product_code(number))
    return tuple(made)


def codes_of_stages(plan: Plan) -> dict[str, tuple[DeviceStage | ProductCode, ...]]:
    """Makes the kernels and products of all stages of a plan, by the names of the stages."""
    return {name: stage_codes(plan, name) for name in EXTENTS}


def needed_by_later(forms: dict[str, StageForm], name: str) -> set[int]:
    """Returns the nodes that kernels and products of this stage and of later stages read as arrays."""
    names = list(EXTENTS)
    found = set[int]()
    for later in names[names.index(name) :]:
        form = forms[later]
        for depth in range(-1, max(form.depths.values(), default=-1) + 1):
            kernel = {n for n in form.own if form.depths[n] == depth and not form.is_product(n)}
            products = [n for n in form.own if form.depths[n] == depth and form.is_product(n)]
            found |= {without_reshape(form.net, n) for p in products for n in form.terms(p)[0]}
            found |= form.leaves([n for k in kernel for n in form.net.nodes[k].inputs], kernel)
        found |= form.leaves(
            form.outside & set(form.own), set(form.own) - set(filter(form.is_product, form.own))
        )
    return found


class StageWriter:
    """Writer of one kernel of a stage."""

    def __init__(self, form: StageForm, computed: set[int], writes: tuple[int, ...]) -> None:
        """Takes the nodes that the kernel computes (`computed`), and the nodes that it stores (`writes`)."""
        self.form, self.writes = form, writes
        self.reads = tuple(sorted(form.leaves(writes, computed)))
        constants = {n for n, node in enumerate(form.net.nodes) if uniform(node) is not None}
        self.statements = Statements(form.net, frozenset(self.reads) | constants, writes)
        names = [*STAGE_WORDS, *(f"r{n}" for n in self.reads), *(f"w{n}" for n in self.writes)]
        self.code = PlaceWriter(f"stage {form.name} of {len(writes)} values", names)

    @computed_once
    def entries(self) -> int:
        """The entries that a block computes at a time: enough for its threads, within its shared memory."""
        largest = max(s.size for s in self.statements.with_levels())
        count = min(MOST_ENTRIES, THREADS // (LANES if self.statements.uses_warps else 1))
        while count > 1 and (count * largest > THREADS * 2 or room(self.statements, count, SHARED).scratch):
            count //= 2
        return count

    @computed_once
    def room(self) -> ValueRoom:
        """Where the stored values lie."""
        return room(self.statements, self.entries, SHARED)

    def written(self) -> DeviceStage:
        """Writes the kernel."""
        code, entries = self.code, self.entries
        scratch = code.at(code.pointer("scratch"), code.multiplied(code.block_index, self.room.scratch))
        share = RowShare.of(code, entries, THREADS)
        writer = EntryWriter(code, self.statements, self.sources(), *self.room.slots(code, scratch), share)
        count = code.word("count")
        groups = code.line(
            count.type, f"sdiv i64 {code.add(count, integer(entries - 1)).get_reference()}, {entries}"
        )
        with code.loop(code.block_index, groups, code.blocks) as group:
            place = code.add(code.multiplied(group, entries), writer.share.place)
            writer.run(self.row_at(writer, place), self.store)
        made = code.finished(THREADS, self.room.shared)
        return DeviceStage(made, self.reads, self.writes, entries, self.room.scratch)

    def row_at(self, writer: EntryWriter, place: Value) -> RowOfThread:
        """Writes the entry of a thread: one beyond the last, or in a gap, has no results."""
        code = self.code
        is_real = code.icmp_signed("<", place, code.word("count"))
        entry = code.select(is_real, place, integer(0))
        row = entry
        if EXTENTS[self.form.name] == STEPS:
            row = code.read_number(code.pointer("row_of"), entry)
            is_real = code.and_(is_real, code.icmp_signed(">=", row, integer(0)))
            row = code.select(is_real, row, integer(0))
        step: Value = integer(0)
        if any(self.form.net.nodes[n].operation == "index" for n in self.statements.needed):
            step = code.read_number(code.pointer("index_of"), entry)
            step = code.add(step, code.read_or(integer(0), "first_steps", row))
        return RowOfThread(writer.share.place, entry, row, is_real, step)

    def sources(self) -> dict[int, Source]:
        """Returns the arrays that the kernel reads, by node."""
        found, extent = dict[int, Source](), EXTENTS[self.form.name]
        for number in self.reads:
            type_ = self.form.net.type_of(number)
            by = "const" if type_.extent == CONST else "row" if type_.extent == ROWS != extent else "entry"
            found[number] = Source(self.code.pointer(f"r{number}"), type_.dtype, prod(type_.shape), by)
        return found

    def store(self, statement: Statement, row: RowOfThread, flat: Value, value: Value) -> None:
        """Writes the store of an element to its array."""
        if statement.number not in self.writes:
            return
        code, type_ = self.code, self.form.net.type_of(statement.number)
        with code.when(row.is_real):
            index = code.add(code.multiplied(row.entry, type_.size), flat)
            code.write_element(type_.dtype, value, code.pointer(f"w{statement.number}"), index)


__all__ = ["StageForm", "refuse", "stage_codes"]
