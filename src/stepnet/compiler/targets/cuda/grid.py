"""The loop of a plan as one kernel that many blocks share: each computes all steps of some units.

Values of units lie in main memory, which for few sequences is the second cache, in two places that steps use
in turn: so blocks meet only between the writing and the reading of a value, once for a step of a GRU. Weights
stay in the shared memory of their block as far as there is room.

A step takes the time of its meetings, of the reading of the left sides of products (all of them by each
block), and of a chain of fused multiply-adds over k, in which each waits for its operands from shared memory.
`GridForm.microseconds` estimates 17 us for a GRU of 1024 units and 16 sequences, of which a block keeps 8
units (96 KB), as was measured on an H100.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, prod

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import I1, I32, I64, integer
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.elements import RowOfThread, RowShare, ValueSlot
from stepnet.compiler.targets.cuda.entry import EntryWriter, Store
from stepnet.compiler.targets.cuda.grid_products import Areas, GridColumnWriter, vectors_of_thread
from stepnet.compiler.targets.cuda.grid_share import GridShare, products_of, units_of
from stepnet.compiler.targets.cuda.lane_code import turns_of
from stepnet.compiler.targets.cuda.loop import LoopForm, LoopWriter
from stepnet.compiler.targets.cuda.places import PlaceWriter
from stepnet.compiler.targets.cuda.room import ALIGNMENT, StoredValue, stored_values
from stepnet.compiler.targets.cuda.statements import Statement
from stepnet.compiler.targets.cuda.writer import VOID
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

Value = ir.Value
COUNTER = 256
"""The bytes of a group's scratch memory with the number of blocks that have come to meetings."""
STEP, MEETING, READS = 1.0, 1.5, 16e3
"""Microseconds of a step and of a meeting; the bytes that a block reads in a microsecond."""
LINK, FUSED = 6.9e-3, 0.58e-3
"""Microseconds of a k in a chain over k, which waits for shared memory, and of each multiply-add of a thread
for it. These and the others were fitted to the times of an H100 in bench/saved/gpu-target-h100.json.
"""
REDUCED = 1.3
"""Microseconds of a sum over features, which lie in main memory."""


@dataclass(frozen=True)
class GridForm(LoopForm):
    """A plan's step, and how a group of blocks runs it.

    own: the units of a block.
    """

    own: int

    @computed_once
    def share(self) -> GridShare:
        """The division of the step among the blocks."""
        return GridShare(self.statements, units_of(self.statements), self.own)

    @computed_once
    def placed(self) -> tuple[tuple[StoredValue, ...], Areas, int, int]:
        """The places of stored values and of the operands of products, and the bytes of shared memory and of
        scratch memory of a group. What does not fit beside them are weights alone.
        """
        net, values, used, scratch = self.body, list[StoredValue](), ALIGNMENT, COUNTER
        for value in stored_values(self.statements):
            count = aligned(self.group_rows * value.size * np.dtype(value.dtype).itemsize)
            is_owned = value.number in self.share.owned
            times = 2 if is_owned or value.number in self.statements.memories else 1
            values.append(replace(value, offset=scratch if is_owned else used, is_shared=not is_owned))
            used, scratch = (used, scratch + times * count) if is_owned else (used + times * count, scratch)
        lefts, weights = dict[int, int](), dict[int, int]()
        nodes = products_of(self.statements)
        for left in dict.fromkeys(left for node in nodes for left in node.sides[0]):
            lefts[left] = used
            used += aligned(4 * self.group_rows * net.type_of(left).size)
        for right in dict.fromkeys(right for node in nodes for right in node.sides[1]):
            length, columns = net.type_of(right).shape
            count = 16 * -(-length // 4) * (columns // self.share.units * self.own)
            if used + count <= self.shared:
                weights[right] = used
                used += count
        return tuple(values), Areas(lefts, weights), used, scratch

    @property
    def scratch(self) -> int:
        """The bytes of main memory of a group: the counter of meetings, and the values of units."""
        return self.placed[3]

    @property
    def microseconds(self) -> float:
        """An estimate of the time of a step."""
        areas, share = self.placed[1], self.share
        phases, at_end = share.plan
        meetings = sum(phase.meets for phase in phases) + at_end
        net, nodes = self.body, products_of(self.statements)
        away = sum(
            4 * prod(net.type_of(r).shape) / share.blocks
            for node in nodes
            for r in node.sides[1]
            if r not in areas.weights
        )
        depth = sum(net.type_of(left).shape[-1] for node in nodes for left in node.sides[0])
        lefts = 4 * self.group_rows * depth
        chains = sum(map(self.chain_time, nodes))
        reduced = sum(statement.kind == "reduce" for phase in phases for statement in phase.statements)
        return STEP + MEETING * meetings + (lefts + away) / READS + chains + REDUCED * reduced

    def chain_time(self, node: Node) -> float:
        """Estimates the microseconds of the chains of a product."""
        shape, share = node.types[0].shape, self.share
        vectors = self.group_rows * prod(shape[:-1])
        columns = shape[-1] // share.units * share.own
        abreast = vectors_of_thread(vectors, columns, len(node.types))
        turns = ceil(vectors // abreast * columns / self.threads)
        depth = sum(self.body.type_of(left).shape[-1] for left in node.sides[0])
        return turns * depth * (LINK + FUSED * abreast * len(node.types))


def aligned(count: int) -> int:
    """Returns a number of bytes, rounded up so that what follows is aligned."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def grid_form(
    plan: Plan,
    group_rows: int,
    facts: DeviceFacts,
    threads: int = 256,
    own: int | None = None,
    flag: int | None = None,
) -> GridForm | None:
    """Returns the form of a plan's loop for a group of blocks; None if its step cannot be divided among
    blocks of the device.

    group_rows: the sequences that a group runs at a time: a power of two. threads: of a block.
    own: the units of a block; None for as few as there are multiprocessors for.
    flag: the position of the bool memory that ends a sequence early, if one does.
    """
    statements = LoopForm(plan, group_rows, threads, facts.shared).statements
    units = units_of(statements)
    if not units:
        return None
    if statements.uses_warps:
        threads = max(threads, group_rows * LANES)
    own = own or max(4, -(-units // facts.multiprocessors))
    form = GridForm(plan, group_rows, threads, facts.shared, own, flag=flag)
    fits = form.placed[2] <= facts.shared and form.share.blocks <= facts.multiprocessors
    is_divided = all(form.share.is_owned(s) for s in form.statements.all_statements() if s.kind == "product")
    return form if fits and is_divided else None


def grid_code(form: GridForm) -> LoopCode:
    """Makes the kernel of a plan's loop for groups of blocks."""
    return GridLoopWriter(form).written()


class GridLoopWriter(LoopWriter):
    """Writer of the kernel of a loop that the blocks of a group share."""

    form: GridForm

    def __init__(self, form: GridForm) -> None:
        """Begins the kernel, and finds the group of the block and its units."""
        super().__init__(form)
        self.form, self.share = form, form.share
        self.in_group, self.rank = self.code.divided(self.code.block_index, self.share.blocks)
        self.first = self.code.multiplied(self.rank, self.share.own)

    def written(self) -> LoopCode:
        """Writes the kernel."""
        form, code = self.form, self.code
        with code.when(code.icmp_signed("==", code.thread, integer(0))):
            code.write(ir.Constant(I64, 0), code.shared(0), 8)
        _, areas, shared, _ = form.placed
        keeper = self.writer_at(integer(0))
        nothing = integer(0)
        columns = keeper.columns(RowOfThread(nothing, nothing, nothing, ir.Constant(I1, 0), nothing))
        for right in areas.weights:
            columns.keep(right)
        code.barrier()
        first, count = turns_of(code, self.in_group)
        code.carry(
            0,
            count,
            [integer(0)],
            lambda turn, before: [self.turn_after(before[0], code.add(first, turn))],
        )
        made = code.finished(form.threads, shared, self.share.blocks, "grid")
        schedule = f"{self.share.blocks} blocks of {form.threads} threads for {form.group_rows} sequences"
        return LoopCode(made, schedule, form.group_rows, form.scratch, COUNTER)

    def meet(self) -> None:
        """Writes a meeting of all blocks of the group: each counts itself, and waits until all have."""
        code, blocks = self.code, integer(self.share.blocks)
        code.barrier()
        with code.when(code.icmp_signed("==", code.thread, integer(0))):
            counter = self.scratch()
            goal = code.add(code.read(I64, code.shared(0), 8), blocks)
            code.write(goal, code.shared(0), 8)
            narrow = code.trunc(goal, I32)
            code.function_call("release", VOID, [counter])
            with code.loop_while(
                lambda: code.icmp_signed("<", code.function_call("acquire", I32, [counter]), narrow)
            ):
                pass
        code.barrier()

    def writer_at(self, step: Value) -> "GridEntryWriter":
        """Writes the places of the values at a step; returns the writer of its statements."""
        code, form = self.code, self.form
        now = code.and_(step, integer(1))
        after, scratch = code.sub(integer(1), now), self.scratch()
        slots, targets = dict[int, ValueSlot](), dict[int, ValueSlot]()
        following = form.statements.memories
        for value in form.placed[0]:
            base = code.shared(value.offset) if value.is_shared else code.at(scratch, value.offset)
            count = aligned(form.group_rows * value.size * np.dtype(value.dtype).itemsize)
            turns = not value.is_shared
            if value.number in following:
                turns = following[value.number] != value.number
            places = [
                code.at(base, code.multiplied(which, count)) if turns else base for which in (now, after)
            ]
            here, there = (ValueSlot(place, value.dtype, value.size) for place in places)
            slots[value.number], targets[value.number] = here, there
        return GridEntryWriter(self, slots, targets)

    def store_of(self, writer: EntryWriter) -> Store:
        """Makes the function that writes the stores of a step's element: to outputs and memories. A memory of
        a sequence that has ended moves on unchanged.
        """
        code = self.code
        assert isinstance(writer, GridEntryWriter)

        def store(statement: Statement, row: RowOfThread, flat: Value, value: Value) -> None:
            """Writes the stores of an element."""
            for memory in self.memories_of(statement):
                before = writer.read_slot(writer.slots[memory], row.place, flat)
                kept = code.select(row.is_real, value, before)
                writer.write_slot(kept, writer.targets[memory], row.place, flat)
            if self.outputs_of(statement):
                is_own = row.is_real
                if not self.share.is_owned(statement):
                    is_own = code.and_(is_own, code.icmp_signed("==", self.rank, integer(0)))
                with code.when(is_own):
                    self.write_outputs(statement, row, flat, value)

        return store


class GridEntryWriter(EntryWriter):
    """Writer of the statements of entries, of the units of a block.

    targets: the places of the next values of memories, by node.
    """

    def __init__(
        self,
        loop: GridLoopWriter,
        slots: Mapping[int, ValueSlot],
        targets: Mapping[int, ValueSlot],
    ) -> None:
        """Takes the writer of the loop, and where the values lie at a step."""
        form = loop.form
        code: PlaceWriter = loop.code
        share = RowShare.of(code, form.group_rows, form.threads)
        super().__init__(code, form.statements, loop.sources(), slots, {}, share)
        self.loop, self.grid, self.targets, self.is_divided = loop, form.share, targets, True

    def columns(self, row: RowOfThread) -> GridColumnWriter:
        """Returns the writer of the block's columns of products."""
        areas = self.loop.form.placed[1]
        return GridColumnWriter(self, self.share, row, self.grid, areas, self.loop.first)

    def run(self, row: RowOfThread, store: Store) -> None:
        """Writes all statements, level by level."""
        phases, meets_at_end = self.grid.plan
        for place, phase in enumerate(phases):
            if phase.meets:
                self.loop.meet()
            elif place:
                self.code.barrier()
            loops = dict[tuple[str, int, int], list[Statement]]()
            for statement in phase.statements:
                key = statement.kind, self.shared_by(statement), statement.size
                loops.setdefault(key, []).append(statement)
            self.copy_lefts(phase.statements, row)
            for together in loops.values():
                self.loop_of(together, row, store)
        if meets_at_end:
            self.loop.meet()
        else:
            self.code.barrier()

    def copy_lefts(self, statements: tuple[Statement, ...], row: RowOfThread) -> None:
        """Writes the copies of the left sides of all products among some statements to shared memory."""
        lefts = dict[int, None]()
        for statement in statements:
            if statement.kind == "product":
                node = self.net.nodes[statement.number]
                product = self.net.nodes[node.inputs[0]] if node.operation == "result" else node
                lefts |= dict.fromkeys(product.sides[0])
        for left in lefts:
            self.begin()
            self.columns(row).copy_left(left)
        if lefts:
            self.code.barrier()

    def loop_of(self, together: list[Statement], row: RowOfThread, store: Store) -> None:
        """Writes the loop of some statements: that of a product over the columns of the block."""
        self.is_divided = self.grid.is_owned(together[0])
        if together[0].kind == "product":
            self.begin()
            self.columns(row).write(together)
        else:
            super().loop_of(together, row, store)
        self.is_divided = True

    @contextmanager
    def elements(self, size: int) -> Generator[Value]:
        """Writes a loop over the elements that are the thread's: those of the block's units, or of all."""
        grid, code = self.grid, self.code
        if not self.is_divided or not grid.is_multiple(size):
            with super().elements(size) as flat:
                yield flat
            return
        count = size // grid.units * grid.own
        with code.loop(self.share.first, integer(count), self.share.per_row) as index:
            part, place = code.divided(index, grid.own)
            unit = code.summed(self.loop.first, place)
            with code.when(code.icmp_signed("<", unit, integer(grid.units))):
                yield code.summed(code.multiplied(part, grid.units), unit)
