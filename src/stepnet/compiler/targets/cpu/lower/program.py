"""Lowering of a plan to the loops of a call: a field for every value in memory, the loops of every stage."""

from collections.abc import Mapping
from dataclasses import field, replace
from itertools import count

from stepnet.compiler.native.call_words import ARRAYS, WORDS
from stepnet.compiler.net.ir import Net, all_nodes, ancestors
from stepnet.compiler.net.types import CONST, ROWS, STEPS, is_static_extent
from stepnet.compiler.plan.fibers import Fibers
from stepnet.compiler.plan.passes.rewrite import view_chain
from stepnet.compiler.plan.passes.when import When, when
from stepnet.compiler.plan.phases import phases
from stepnet.compiler.plan.plan import Plan, picks
from stepnet.compiler.targets.cpu.lower.driven import CallLoops
from stepnet.compiler.targets.cpu.lower.latency import chain_cycles
from stepnet.compiler.targets.cpu.lower.loop_load import estimate_load
from stepnet.compiler.targets.cpu.lower.loops import CopyLoop, Loop, Phase, is_one_loop
from stepnet.compiler.targets.cpu.lower.lowered import Lowered, RowWork, StepResult
from stepnet.compiler.targets.cpu.lower.lowering import loops, loops_by_phase
from stepnet.compiler.targets.cpu.lower.memories import MemoryFields, assign_memories, assign_static
from stepnet.compiler.targets.cpu.lower.needs import Needs
from stepnet.compiler.targets.cpu.lower.stage import StageLowering
from stepnet.compiler.targets.cpu.lower.totals import TotalFunctions
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import (
    LINE,
    Axis,
    CallArray,
    Field,
    InnerArray,
    Records,
    RowSource,
)
from stepnet.compiler.targets.cpu.products.constants import ConstantNode, Constants
from stepnet.compiler.values.records import dataclass

NONE = dict[int, ConstantNode]()
IN_PLACE = ("float32", "float64", "bfloat16", "float16")
"""The dtypes of arrays whose rows are read and written in place, if they are whole vectors."""
SHORT_BYTES = 32
"""The bytes of a vector of x86-64 up to which its instructions take no longer than on half of it. A division
of 64 bytes takes 6 cycles longer than one of 32, an addition 1 (Intel, family 6.207).
"""


def vector_width(plan: Plan, processor: Processor) -> int:
    """Returns the number of elements of a vector, which all loops of the machine code of a plan (a part's
    operations in their order) share.

    An element is as large as one of the widest floating dtype: of the products, or of all values if there are
    no products. Without floating dtypes it has 4 bytes. If all values that are computed fit half of a vector
    of AVX-512, vectors are half as long.
    """
    nodes = list(all_nodes(plan.net))
    types = [type_ for node in nodes if node.kind == "matmul" for type_ in node.types if type_.is_float]
    if not types:
        types = [type_ for node in nodes for type_ in node.types if type_.is_float]
    widest = max((type_.computed.itemsize for type_ in types), default=4)
    width = processor.vector_bytes // widest
    computed = (node for node in nodes if node.kind not in ("source", "view"))
    most = max((type_.size for node in computed for type_ in node.types if type_.extent != CONST), default=0)
    is_long = processor.is_x86 and processor.vector_bytes > SHORT_BYTES
    return width // 2 if is_long and 0 < most <= width // 2 else width


def lowered(plan: Plan, processor: Processor) -> Lowered:
    """Lowers a plan to loops over values in memory, from which machine code for a processor is generated."""
    return Lowering(plan, processor, vector_width(plan, processor)).run()


@dataclass
class Lowering:
    """Translation of one plan to loops: assigns fields (places in memory), then lowers each stage."""

    plan: Plan
    processor: Processor
    width: int
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        """Collects the operands and needs of the plan (operations in their order); sets up the tables that
        `run` fills.

        arguments, next_argument: the indices of the call's arguments with pointers to arrays, by kind; and
            the next free one.
        row_arguments, final_arguments: the arguments of inputs with a value per sequence, and of final
            memories (recurrent states), by node.
        sources, output_sources: the fields (places in memory) of values that steps read, and of the loop's
            outputs, by node.
        sequence_fields, row_inputs: the fields of values computed per sequence, and of the inputs for these,
            by node.
        arrays_in_place, inner_arrays: the arrays that are read or written in place, with a value per step;
            and those with a value per word (step of an inner sequence).
        """
        self.records = Records(self.width)
        self.net, self.body, self.recur = self.plan.net, self.plan.body, self.plan.recurrence.recur
        self.operands = self.recur.operands_by_kind(self.plan.recurrence.inputs)
        self.needs = Needs.of(self.plan)
        self.known = when(self.net)
        self.arguments: dict[str, list[int]] = {kind: [] for kind in ARRAYS}
        self.next_argument = len(WORDS)
        self.row_arguments: dict[int, int] = {}
        self.sources: dict[int, Field] = {}
        self.sequence_fields: dict[int, Field] = {}
        self.row_inputs: dict[int, Field] = {}
        self.final_arguments: dict[int, int] = {}
        self.loop_sources: list[Field] = []
        self.memory_fields: list[tuple[RowSource, int, Field]] = []
        self.stored_memories = MemoryFields({}, (), {}, frozenset())
        self.static_fields: list[tuple[RowSource, Field, CopyLoop | None]] = []
        self.late = {number for numbers in self.plan.after for number in numbers}
        self.arrays_in_place: list[CallArray] = []
        self.axes: dict[str, Axis] = {}
        self.inner_arrays: list[InnerArray] = []
        self.results: list[StepResult] = []
        self.output_sources: dict[int, Field] = {}

    def new_argument(self, kind: str) -> int:
        """Reserves a call's argument for a pointer to an array of a `kind` in `ARRAYS`; returns its index."""
        self.arguments[kind].append(self.next_argument)
        self.next_argument += 1
        return self.next_argument - 1

    def run(self) -> Lowered:
        """Lowers the plan (operations in their order) to loops over memory: assigns a place in memory to all
        values, then lowers the work of each stage (before, in and after the loop over steps). Returns the
        result.
        """
        self.assign_axes()
        inputs = self.assign_inputs()
        sequence = self.lower_sequence()
        expanded = self.assign_expanded()
        self.assign_results()
        before = self.lower_before()
        loop, index = self.lower_loop()
        after, outputs, kept = self.lower_after()
        ended, totals = self.lower_ended(), self.lower_totals()
        rows = [argument for work in (sequence, ended) if work is not None for argument, _ in work.inputs]
        rows += [source.argument for source, *_ in (*self.static_fields, *expanded)]
        inner_records = [name for name in self.records.used if name.startswith(("words ", "kept ", "inner "))]
        names = ("now", "lane", "block", "sequence", "total", *inner_records)
        strides = {name: self.records.stride(name) for name in names}
        program = CallLoops(
            body=self.body,
            outer=self.net,
            before=before,
            loop=loop,
            after=after,
            strides=strides | swapped_strides(strides) | {"nowhere": self.dummy_bytes(strides)},
            width=self.width,
            unroll=self.plan.unroll,
            inputs=tuple(inputs),
            expanded=tuple(expanded),
            statics=tuple(self.static_fields),
            memories=tuple(self.memory_fields),
            relaid=self.stored_memories.relaid,
            outputs=tuple(outputs),
            kept=tuple(kept),
            arrays_in_place=tuple(self.arrays_in_place),
            index=index,
            units_are_alone=self.plan.units_are_alone and is_one_loop(loop),
            axes=tuple(self.axes.values()),
            inner_arrays=tuple(self.inner_arrays),
        )
        chain = chain_cycles(self.body, self.recur.memories, self.recur.following)
        cost = replace(estimate_load(program, self.processor), chain=chain)
        works = sequence, ended, totals
        return Lowered(program, self.constants, *works, self.arguments, frozenset(rows), cost)

    # ---- inputs and results

    def field_in_place(self, table: str, argument: int, number: int) -> Field | None:
        """Makes the field by which loops read or write a value directly in an array of the call, without a
        copy. A field is the position of a value in the memory of a row.

        table: the table of the rows' positions in the array, "where" for reading or "put" for writing.
        argument: the index of the array's pointer in the call's arguments.
        number: the node of the value.

        Returns None unless the value's rows are whole vectors of a dtype in `IN_PLACE`.
        """
        type_ = self.net.type_of(number)
        if type_.dtype not in IN_PLACE or not type_.size or type_.size % self.width:
            return None
        self.arrays_in_place.append(CallArray(table, argument, type_))
        return self.arrays_in_place[-1].field

    def field_of_windows(self, argument: int, number: int) -> Field:
        """Makes the field (description of a place in memory) by which products read windows of steps, as
        those of a convolution, where they lie in the caller's array: by the addresses of the steps.

        argument: the index of the pointer to the addresses in the call's arguments. number: the node.
        """
        type_ = self.net.type_of(number)
        self.arrays_in_place.append(CallArray("where", argument, type_, type_.shape[0]))
        return self.arrays_in_place[-1].field

    def dummy_bytes(self, strides: dict[str, int]) -> int:
        """Returns the size in bytes of a dummy row: a lane, which runs sequence after sequence, reads and
        writes it in steps in which it has none. It is as large as the largest row.

        strides: the bytes of a row of each kind of record (memory with the values of a row), by its name.
        """
        arrays = [array.field.bytes for array in (*self.arrays_in_place, *self.inner_arrays)]
        kept_strides = [stride for record, stride in strides.items() if record.startswith("kept ")]
        return max((*arrays, *kept_strides), default=LINE)

    def assign_results(self) -> None:
        """Assigns an array of the call to every result with a value per step, and to every value per step
        that is read after the loop; adds them to `self.results`.

        If loops can write the value to the array directly, it also gets a field (a place in memory) there.
        Other values are copied to the array after each block of steps (those computed together).
        """
        for kind, table, numbers in (
            ("outputs", "put", self.plan.results(self.plan.ends.steps)),
            ("kept", "where", self.needs.kept),
        ):
            for number in numbers:
                argument = self.new_argument(kind)
                is_stored_by_loop = number in self.late or self.is_loop_output(number)
                field_ = self.field_in_place(table, argument, number) if is_stored_by_loop else None
                self.results.append(StepResult(kind, argument, number, field_))

    def is_loop_output(self, number: int) -> bool:
        """Tells whether a node of the outer net is an output of the recurrence, with a value per step."""
        picked = picks(self.net, number, self.plan.recur)
        return picked and self.net.type_of(number).extent == STEPS

    def assign_axes(self) -> None:
        """Assigns an array of the call, offsets, to every axis of inner sequences in a step."""
        for axis in dict.fromkeys(type_.extent[-1] for type_ in self.body.types if len(type_.extent) > 1):
            self.assign_axis(axis)

    def assign_axis(self, axis: str) -> None:
        """Assigns an array of offsets of the call to an axis of inner sequences, unless it has one."""
        if axis not in self.axes:
            table = "where" if axis == STEPS[-1] else "owner"
            self.axes[axis] = Axis(axis, self.new_argument("offsets"), table)

    def assign_inputs(self) -> list[tuple[int, Field]]:
        """Assigns a field (place in memory) or an array of the call to every input but parameters, which are
        among the constants.

        Returns the inputs that are copied into the block of steps (those computed together): the index of the
        array's pointer, and the field.
        """
        inputs: list[tuple[int, Field]] = []
        ends = self.plan.ends
        windows = {self.net.inputs[ends.sequences[place]] for place in self.plan.windows}
        for index, number in enumerate(self.net.inputs):
            extent = self.net.type_of(number).extent
            if len(extent) > 2 or is_static_extent(extent):
                self.assign_inner_array(number, "statics" if is_static_extent(extent) else "inputs")
            elif index in ends.sequences:
                argument = self.new_argument("inputs")
                in_place = (
                    self.field_of_windows(argument, number)
                    if number in windows
                    else self.field_in_place("where", argument, number)
                )
                self.sources[number] = in_place or self.records.field("block", self.net.type_of(number))
                if in_place is None:
                    inputs.append((argument, self.sources[number]))
            elif index not in ends.parameters:
                self.row_arguments[number] = self.new_argument(
                    "initial" if index in ends.memories else "statics"
                )
        return inputs

    def assign_inner_array(self, number: int, kind: str) -> None:
        """Assigns an array of the call to an input with a value per word (step of an inner sequence). Loops
        read it in place.

        number: the node of the input.
        kind: "inputs" if each step of a sequence has an inner sequence, "statics" if each sequence has one.
        """
        type_ = self.net.type_of(number)
        padded = -(-max(type_.size, 1) // self.width) * self.width
        # A step has no axis of time: values of extent rows/steps/words have the extent rows/steps in it.
        axis = type_.extent[-1] if kind == "statics" else STEPS[-1]
        self.assign_axis(axis)
        self.inner_arrays.append(InnerArray(axis, self.new_argument(kind), type_, padded))
        self.sources[number] = self.inner_arrays[-1].field

    def sequence_source(self, number: int) -> RowSource:
        """Returns the source from which the loop reads a node with one value per sequence: an array of the
        call, or the field (place in memory) of a value computed before the sequence's first step.
        """
        type_ = self.net.type_of(number)
        bytes_ = type_.size * type_.itemsize
        if number in self.row_arguments:
            return RowSource(self.row_arguments[number], None, bytes_)
        return RowSource(-1, self.sequence_fields[number], bytes_)

    def initial_source(self, number: int) -> RowSource:
        """Returns the source from which a memory (recurrent state) gets its initial value: zeros, an array of
        the call, or a value computed per sequence. number: the node of the initial value.
        """
        if self.net.is_zeros(number):
            type_ = self.net.type_of(number)
            return RowSource(-1, None, type_.size * type_.itemsize)
        return self.sequence_source(number)

    def lower_sequence(self) -> RowWork | None:
        """Lowers the work done once per sequence, before its first step, to loops over the sequences: values
        that steps or initial memories (recurrent states) read. None if there is none.
        """
        read = {number for node in self.net.nodes if node.operation == "expand" for number in node.inputs}
        read |= {*self.operands.others, *self.read_in_the_end()}
        read |= {number for number in self.operands.memories if not self.net.is_zeros(number)}
        computed = [
            n
            for n in sorted(read)
            if self.net.type_of(n).extent == ROWS
            and self.known[n] <= When.PER_SEQUENCE
            and n not in self.row_arguments
        ]
        self.sequence_fields = {n: self.records.field("sequence", self.net.type_of(n)) for n in computed}
        if not computed:
            return None
        needed = ancestors(self.net.nodes, computed)
        self.row_inputs = {
            n: self.records.field("sequence", self.net.type_of(n)) for n in self.row_arguments if n in needed
        }
        targets_of = {n: [target] for n, target in self.sequence_fields.items()}
        work = loops(self.stage(self.net, self.plan.sequence, "sequence", self.row_inputs, targets_of))
        inputs = tuple((self.row_arguments[n], target) for n, target in self.row_inputs.items())
        return RowWork(self.net, inputs, work)

    def read_in_the_end(self) -> set[int]:
        """Returns the nodes that the work after a sequence's last step reads but does not compute."""
        computed = [number for phase in self.plan.ended for number in phase]
        read = [operand for number in computed for operand in self.net.nodes[number].inputs]
        roots = {view_chain(self.net, n)[0] for n in (*read, *(slot.number for slot in self.needs.ended))}
        return {n for n in roots - set(computed) if self.net.nodes[n].operation != "expand"}

    def assign_expanded(self) -> list[tuple[RowSource, Field]]:
        """Assigns fields (places in memory, here in that of the steps computed together) to values per
        sequence that each step reads outside the loop.

        Returns the source and the field of each.
        """
        copies: list[tuple[RowSource, Field]] = []
        for number, node in enumerate(self.net.nodes):
            if (
                node.operation == "expand"
                and node.type.extent == STEPS
                and self.net.type_of(node.inputs[0]).extent != CONST
            ):
                self.sources[number] = self.records.field("block", node.type)
                copies.append((self.sequence_source(node.inputs[0]), self.sources[number]))
        return copies

    # ---- stages

    def stage(
        self,
        net: Net,
        phases: tuple[tuple[int, ...], ...],
        scratch: str,
        sources: dict[int, Field],
        targets_of: dict[int, list[Field]],
        parameters: Mapping[int, ConstantNode] = NONE,
    ) -> StageLowering:
        """Makes the context for lowering one stage of the plan (operations in their order) to loops: its work
        before, in or after the loop over steps, or once per sequence.

        net: the outer net, or the body of the recurrence.
        phases: the nodes of each phase (work between two barriers).
        scratch: the name of the record (kind of memory) for values that only this stage reads.
        sources: the fields (places in memory) of values that are computed before the stage.
        targets_of: for each result of the stage, the fields in which it is stored.
        parameters: for nodes of another net than those of the plan, constants of the plan's net.
        """
        return StageLowering(
            net,
            net is self.body,
            self.records,
            self.constants,
            self.processor,
            self.width,
            scratch,
            sources,
            targets_of,
            phases,
            self.plan.fibers if net is self.body else Fibers(net),
            self.stored_memories.work if net is self.body else {},
            parameters,
        )

    def lower_before(self) -> list[list[Loop]]:
        """Lowers, to loops, the work that is done for all steps of a block of steps (those computed together)
        before the loop over them, such as products of inputs with parameters. Its results are what the steps
        read.
        """
        targets_of: dict[int, list[Field]] = {}
        early = {n for numbers in self.plan.before for n in numbers}
        # The work after the loop reads a view from the field of its source, which therefore needs a field.
        read = {operand for number in self.late for operand in self.net.nodes[number].inputs}
        read |= {*self.plan.results(self.plan.ends.steps), *self.needs.kept}
        roots = early & {view_chain(self.net, operand)[0] for operand in read}
        for number in (*self.operands.sequences, *sorted(roots)):
            if number not in self.sources:
                self.sources[number] = self.records.field("block", self.net.type_of(number))
                targets_of[number] = [self.sources[number]]
        self.loop_sources += [self.sources[operand] for operand in self.operands.sequences]
        existing = {number: source for number, source in self.sources.items() if number not in targets_of}
        return loops(self.stage(self.net, self.plan.before, "block", existing, targets_of))

    def lower_loop(self) -> tuple[list[Phase], Field | None]:
        """Lowers a recurrence's step to loops; returns these by phase (work between two barriers), and the
        field of the step index (the place where the loops find it), None if it is not read.
        """
        body, recur, operands = self.body, self.recur, self.plan.recurrence.inputs
        sources = dict(zip(recur.sequences, self.loop_sources, strict=True))
        targets_of: dict[int, list[Field]] = {}
        self.stored_memories = assign_memories(self.plan, self.records, self.constants, self.width)
        slots = zip(recur.memories, recur.following, self.operands.memories, self.needs.finals, strict=True)
        for number, after, first, slot in slots:
            now = sources[number] = self.stored_memories.fields[number]
            following = replace(now, record="next") if now.record == "now" else now
            if number not in self.stored_memories.unchanged:
                targets_of.setdefault(after, []).append(following)
            final = -1 if slot is None else self.new_argument("final")
            if slot is not None:
                self.final_arguments[slot.number] = final
            self.memory_fields.append((self.initial_source(first), final, now))
        for number in range(len(self.net.nodes)):
            if self.is_loop_output(number):
                output: int = self.net.nodes[number].attributes["of"]
                targets_of.setdefault(recur.outputs[output], []).extend(self.output_fields(number))
        for number, operand in zip(body.inputs, operands, strict=True):
            if operand in self.sources and number not in sources:
                sources[number] = self.sources[operand]
            if number not in sources and body.type_of(number).extent != CONST:
                static, copy = assign_static(self.plan, number, self.records, self.constants, self.width)
                sources[number] = static
                self.static_fields.append((self.sequence_source(operand), static, copy))
        index = None
        for number, node in enumerate(body.nodes):
            if node.operation == "index":
                index = sources[number] = self.records.field("block", node.type)
        return loops_by_phase(self.stage(body, self.plan.loop, "lane", sources, targets_of)), index

    def output_fields(self, number: int) -> list[Field]:
        """Lists the fields (positions in memory) in which the loop stores an output of the recurrence.

        number: the number of the output's node.

        The list has the rows of the result arrays that the loop can write directly. It also has a field in
        the buffer of the block of steps (those computed together) if work after the loop, or a copy, reads
        the output, and the result array cannot be read again.
        """
        in_place = [result.field for result in self.results if result.number == number and result.field]
        read = [operand for n in self.late for operand in self.net.nodes[n].inputs]
        read += [result.number for result in self.results if result.number != number or not result.field]
        if all(view_chain(self.net, operand)[0] != number for operand in read):
            return in_place
        readable = next((field_ for field_ in in_place if field_.is_readable), None)
        source = readable or self.records.field("block", self.net.type_of(number))
        self.output_sources[number] = source
        return in_place if readable else [source, *in_place]

    def lower_after(self) -> tuple[list[list[Loop]], list[tuple[int, Field]], list[tuple[int, Field]]]:
        """Lowers, to loops, the work on all steps of a block of steps (those computed together) that follows
        the loop over them.

        Returns its loops by phase (between two barriers); the outputs to copy from the block of steps to
        arrays of the call; and the values to copy likewise that later work reads. Each copy is a pair: the
        index of the array's pointer among the call's arguments, and the field (place in memory) of the value.
        """
        sources = {**self.sources, **self.output_sources}
        targets_of: dict[int, list[Field]] = {}
        copies: dict[str, list[tuple[int, Field]]] = {"outputs": [], "kept": []}
        for result in self.results:
            number = result.number
            if result.field is not None:
                if not self.is_loop_output(number):
                    targets_of.setdefault(number, []).append(result.field)
                continue
            if number not in sources and number not in targets_of:
                targets_of[number] = [self.records.field("block", self.net.type_of(number))]
            source = sources[number] if number in sources else targets_of[number][0]
            copies[result.kind].append((result.argument, source))
        work = loops(self.stage(self.net, self.plan.after, "block", sources, targets_of))
        return work, copies["outputs"], copies["kept"]

    def lower_ended(self) -> RowWork | None:
        """Lowers the work that is done once per sequence, after its last step, on final memories (recurrent
        states) and on reductions over steps, to loops; None if there is none.
        """
        arguments = {**self.row_arguments, **self.final_arguments}
        arguments |= {number: self.new_argument("reduced") for number in self.needs.reduced}
        if not self.needs.ended:
            return None
        sources = {**self.sequence_fields, **self.row_inputs}
        inputs: list[tuple[int, Field]] = []
        for number in sorted(self.read_in_the_end() & arguments.keys() - sources.keys()):
            sources[number] = self.records.field("sequence", self.net.type_of(number))
            inputs.append((arguments[number], sources[number]))
        targets_of: dict[int, list[Field]] = {}
        outputs: list[tuple[int, Field]] = []
        for slot in self.needs.ended:
            field_ = self.records.field("sequence", self.net.type_of(slot.number))
            targets_of.setdefault(slot.number, []).append(field_)
            outputs.append((self.new_argument("ended"), field_))
        work = loops(self.stage(self.net, self.plan.ended, "sequence", sources, targets_of))
        return RowWork(self.net, tuple(inputs), work, tuple(outputs))

    def lower_totals(self) -> RowWork | None:
        """Lowers the functions of totals (sums over all rows) to loops over a single row; None if there are
        none. The arrays of the totals that they read, and of those that they write, are the arguments of a
        function of their own.
        """
        functions = TotalFunctions.of(self.plan)
        if functions is None:
            return None
        net, argument = functions.net, count(len(WORDS))
        sources = {n: self.records.field("total", net.type_of(n)) for n in functions.read.values()}
        inputs = tuple((next(argument), source) for source in sources.values())
        targets_of: dict[int, list[Field]] = {}
        outputs: list[tuple[int, Field]] = []
        for number in net.results:
            field_ = self.records.field("total", net.type_of(number))
            targets_of.setdefault(number, []).append(field_)
            outputs.append((next(argument), field_))
        parameters = {
            n: ConstantNode(False, outer, net.type_of(n)) for n, outer in functions.constants.items()
        }
        numbers = phases(net, functions.computed)
        work = loops(self.stage(net, numbers, "total", sources, targets_of, parameters))
        return RowWork(net, inputs, work, tuple(outputs), "total")


def swapped_strides(strides: dict[str, int]) -> dict[str, int]:
    """Returns the row strides, in bytes, of the buffers of new memories (recurrent states), "next" and "inner
    next", by name.

    They equal the strides of "now" and "inner now", with which the buffers are swapped after each step.
    strides: the strides of the other records (buffers with a row per sequence), by name.
    """
    pairs = {"now": "next", "inner now": "inner next"}
    return {following: strides[now] for now, following in pairs.items() if now in strides}
