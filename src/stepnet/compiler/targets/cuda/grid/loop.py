"""The loop of a plan as one kernel that many blocks share: each computes all steps of some units.

Values of units lie in main memory, which for few sequences is the second cache, in two places that steps use
in turn: so blocks meet only between the writing and the reading of a value, once for a step of a GRU. Weights
stay in the shared memory of their block as far as there is room.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I1, I32, I64, integer
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.entries.elements import RowOfThread, RowShare, ValueSlot
from stepnet.compiler.targets.cuda.entries.entry import EntryWriter, Store
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.entries.reductions import ReductionWriter
from stepnet.compiler.targets.cuda.entries.statements import Statement
from stepnet.compiler.targets.cuda.grid.products import GridColumnWriter
from stepnet.compiler.targets.cuda.grid.reductions import FoundPlaces, SplitReductionWriter
from stepnet.compiler.targets.cuda.grid.share import lefts_of
from stepnet.compiler.targets.cuda.grid.sizes import COUNTER, GridForm, aligned
from stepnet.compiler.targets.cuda.grid.tensor import GridTileWriter, TileAreas
from stepnet.compiler.targets.cuda.loops.lane_code import turns_of
from stepnet.compiler.targets.cuda.loops.loop import LoopWriter
from stepnet.compiler.targets.cuda.writer import VOID

Value = ir.Value


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
        shared = form.placed[2]
        keeper = self.writer_at(integer(0))
        nothing = integer(0)
        columns = keeper.columns(RowOfThread(nothing, nothing, nothing, ir.Constant(I1, 0), nothing))
        columns.keep_weights()
        code.barrier()
        first, count = turns_of(code, self.in_group)
        code.carry(
            0, count, [integer(0)], lambda turn, before: [self.turn_after(before[0], code.add(first, turn))]
        )
        made = code.finished(form.threads, shared, self.share.blocks, "grid")
        schedule = f"{self.share.blocks} blocks of {form.threads} threads for {form.group_rows} sequences"
        if form.numbers is not None:
            schedule += f", products on tensor cores, {form.numbers}"
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
        found = dict[int, FoundPlaces]()
        for number, offset in form.found.items():
            half = form.found_bytes // 2
            numbers = code.at(code.at(scratch, offset), code.multiplied(now, half))
            found[number] = FoundPlaces(numbers, code.at(numbers, half // 2), form.found_count)
        return GridEntryWriter(self, slots, targets, found)

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
                if not self.share.owners.is_owned(statement):
                    is_own = code.and_(is_own, code.icmp_signed("==", self.rank, integer(0)))
                with code.when(is_own):
                    self.write_outputs(statement, row, flat, value)

        return store


class GridEntryWriter(EntryWriter):
    """Writer of the statements of entries, for the units of a block.

    targets: the places of the next values of memories, by node. found: the places of the partial reductions
    of long vectors that the blocks compute, by node.
    """

    def __init__(
        self,
        loop: GridLoopWriter,
        slots: Mapping[int, ValueSlot],
        targets: Mapping[int, ValueSlot],
        found: Mapping[int, FoundPlaces],
    ) -> None:
        """Takes the writer of the loop, and where the values lie at a step."""
        form = loop.form
        code: PlaceWriter = loop.code
        share = RowShare.of(code, form.group_rows, form.threads)
        super().__init__(code, form.statements, loop.sources(), slots, {}, share)
        self.loop, self.grid, self.targets, self.is_divided = loop, form.share, targets, True
        self.found = found

    def columns(self, row: RowOfThread) -> GridColumnWriter:
        """Returns the writer of the block's columns of products."""
        areas = self.loop.form.placed[1]
        if isinstance(areas, TileAreas):
            return GridTileWriter(self, self.share, row, self.grid, areas, self.loop.first)
        return GridColumnWriter(self, self.share, row, self.grid, areas, self.loop.first)

    def run(self, row: RowOfThread, store: Store) -> None:
        """Writes all statements, level by level. LLVM computes nothing of a level's places ahead of the loop
        over steps: those of a dozen levels would fill the registers.
        """
        (phases, meets_at_end), thread, share = self.grid.owners.plan, self.code.thread, self.share
        for place, phase in enumerate(phases):
            if phase.meets:
                self.loop.meet()
            elif place:
                self.code.barrier()
            self.code.thread = self.code.function_call("anew", I64, [thread])
            self.share = RowShare.of(self.code, share.rows, share.threads)
            row = replace(row, place=self.share.place)
            loops = dict[tuple[str, int, int], list[Statement]]()
            split = self.grid.owners.split_of(phase)
            for statement in phase.statements:
                if statement not in split:
                    key = statement.kind, self.shared_by(statement), statement.size
                    loops.setdefault(key, []).append(statement)
            self.copy_lefts(phase.statements, row)
            for together in loops.values():
                self.loop_of(together, row, store)
            if split:
                self.write_split(split, row)
        self.code.thread = thread
        if meets_at_end:
            self.loop.meet()
        else:
            self.code.barrier()

    def write_split(self, split: list[Statement], row: RowOfThread) -> None:
        """Writes the reductions of long vectors that the blocks share, which meet between both halves."""
        writer = SplitReductionWriter(self, self.share, row, self.grid, self.loop.rank)
        of = {statement: self.net.nodes[statement.number].inputs[0] for statement in split}
        self.begin()
        for operand in dict.fromkeys(of.values()):
            writer.write_found(operand, self.found[operand], self.loop.first)
        self.loop.meet()
        for statement, operand in of.items():
            writer.write_all(statement, self.found[operand])
        self.begin()

    def copy_lefts(self, statements: tuple[Statement, ...], row: RowOfThread) -> None:
        """Writes the copies of the left sides of all products among some statements to shared memory."""
        lefts = lefts_of(self.net, statements)
        for left in lefts:
            self.begin()
            self.columns(row).copy_left(left)
        if lefts:
            self.code.barrier()

    def reductions(self, row: RowOfThread) -> "OwnReductionWriter":
        """Returns the writer of the reductions of the block's units."""
        return OwnReductionWriter(self, self.share, row)

    def loop_of(self, together: list[Statement], row: RowOfThread, store: Store) -> None:
        """Writes the loop of some statements: that of a product over the columns of the block."""
        self.is_divided = self.grid.owners.is_owned(together[0])
        if together[0].kind == "product":
            self.begin()
            self.columns(row).write(together)
        else:
            super().loop_of(together, row, store)
        self.is_divided = True

    @contextmanager
    def elements(self, size: int) -> Generator[Value]:
        """Writes a loop over the thread's share of elements: of the block's units, or of all units."""
        grid, code = self.grid, self.code
        if not self.is_divided or not grid.owners.is_multiple(size):
            with super().elements(size) as flat:
                yield flat
            return
        count = grid.own_columns(size)
        with code.loop(self.share.first, integer(count), self.share.per_row) as index:
            part, place = code.divided(index, grid.own)
            unit = code.summed(self.loop.first, place)
            flat = code.summed(code.multiplied(part, grid.units), unit)
            is_there = code.icmp_signed("<", unit, integer(grid.units))
            if size % grid.units:
                is_there = code.and_(is_there, code.icmp_signed("<", flat, integer(size)))
            with code.when(is_there):
                yield flat


class OwnReductionWriter(ReductionWriter):
    """Writer of reductions of which a block computes the results of its units, where these are divided."""

    writer: GridEntryWriter

    @contextmanager
    def results(self, statement: Statement) -> Generator[Value]:
        """Writes a loop over the results that are the thread's."""
        with self.writer.elements(statement.size) as result:
            yield result
