"""A plan on a device: its codes, bound to parameters, and its calls.

sequence, before    kernels and products       values per row and per step
loop                one kernel                 outputs of all steps, final memories
after               kernels and products       values per step
reduced, ended      reductions and kernels     values per row
total               sums over all rows         constants, such as the gradient of a weight
"""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.meanings import OUTSIDE
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.base import Call, CalledKernel, Results
from stepnet.compiler.targets.cpu.machine.lazy import late_import
from stepnet.compiler.targets.cuda.arrays.constants import CudaConstants
from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
from stepnet.compiler.targets.cuda.arrays.positions import DeviceLanes, DevicePositions
from stepnet.compiler.targets.cuda.arrays.products import multiply
from stepnet.compiler.targets.cuda.arrays.totals import reduced_to_rows, total
from stepnet.compiler.targets.cuda.codes import STAGES, DeviceStage, LoopCode, ProductCode, read_after_loop
from stepnet.compiler.targets.cuda.device import Array, DeviceArray, NotResidentError, empty, get
from stepnet.compiler.targets.cuda.loops.kept import ChosenLoop, loop_of
from stepnet.compiler.targets.cuda.loops.refill import LaidLoop, laid
from stepnet.compiler.targets.cuda.loops.step_plan import step_plan
from stepnet.compiler.targets.cuda.options import DEFAULT, CudaOptions
from stepnet.compiler.targets.cuda.stored import half_of, with_stored_memories
from stepnet.compiler.targets.cuda.written import written
from stepnet.compiler.targets.packed import parameters_of, runs_back
from stepnet.compiler.targets.taken_steps import TakenSteps
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import IndexOutsideError
from stepnet.ragged.positions import Positions

Code = DeviceStage | ProductCode
Values = dict[int, DeviceArray]


def address_of(array: DeviceArray | None) -> int:
    """Returns the address of an array; 0 for none."""
    return 0 if array is None else array.address


def rounded(rows: int) -> int:
    """Returns the number of sequences by which a loop is chosen: the next one that is four binary digits and
    zeros. So the loops of a plan are few, whatever batches come.

    >>> [rounded(rows) for rows in (1, 15, 16, 17, 100, 1000)]
    [1, 15, 16, 18, 104, 1024]
    """
    unit = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // unit) * unit


@dataclass(frozen=True)
class CudaKernel:
    """A plan with its codes, to be bound to parameters.

    share: how many loops run at the same time, each on a part of the device.
    carried: the plan whose loop reads and writes memories in the dtypes in which steps carry them, if that is
        another one.
    """

    plan: Plan
    memory: CudaMemory
    options: CudaOptions = DEFAULT
    share: int = 1
    carried: Plan | None = None

    @classmethod
    def of(cls, plan: Plan, memory: CudaMemory, options: CudaOptions) -> "CudaKernel":
        """Returns the kernel of a plan, whose loop reads and writes memories in the dtypes of a call."""
        stored = with_stored_memories(plan)
        return cls(stored, memory, options, carried=None if stored is plan else plan)

    @computed_once
    def of_chunks(self) -> "CudaKernel":
        """The kernel for chunks of the steps, which hand on memories as steps carry them."""
        return self if self.carried is None else replace(self, plan=self.carried, carried=None)

    @computed_once
    def shared(self) -> "dict[int, CudaKernel]":
        """The kernels of the same plan for parts of the device that were made so far, by their `share`."""
        return {}

    def sharing(self, share: int) -> "CudaKernel":
        """Returns the kernel of the same plan whose loop runs beside others, made once."""
        if share == self.share:
            return self
        if share not in self.shared:
            made = self.shared[share] = replace(self, share=share)
            vars(made)["stages"] = self.stages
        return self.shared[share]

    @computed_once
    def stages(self) -> dict[str, tuple[Code, ...]]:
        """The codes of each stage around the loop."""
        return written("stages.codes_of_stages", STAGES, (self.plan.key,), self.plan)

    @computed_once
    def loops(self) -> dict[tuple[int, int | None], ChosenLoop]:
        """The kernels of the loop that were made so far, by `rounded` numbers of sequences and flags."""
        return {}

    def loop(self, rows: int, flag: int | None = None) -> ChosenLoop:
        """Returns the kernel of the loop for some sequences; equal ones have one code.

        flag: the position, among the memories of a call, of the bool that ends a sequence early; None if
            sequences run all their steps.
        """
        key = rounded(rows), flag
        if key not in self.loops:
            place = None if flag is None else self.memories.index(self.plan.ends.memories[flag])
            made = self.chosen_loop(key[0], place)
            known = (each.loop for each in self.loops.values())
            self.loops[key] = replace(made, loop=next((one for one in known if one == made.loop), made.loop))
        return self.loops[key]

    def chosen_loop(self, rows: int, place: int | None) -> ChosenLoop:
        """Chooses the kernel of the loop: instead of one whose blocks did not all run at once, one of fewer
        blocks. place: of a flag among the memories of the loop, or None.
        """
        facts, said = self.memory.device.facts, ""
        while True:
            found = loop_of(self.plan, rows, facts, self.options, self.share, place)
            at_once = self.memory.not_resident.get(found.loop.code.key)
            if at_once is None or max(1, at_once) >= facts.multiprocessors:
                return replace(found, reason=found.reason + said)
            facts = replace(facts, multiprocessors=max(1, at_once), cluster=1)
            said = f"; {found.loop.schedule} do not run at once on this GPU"

    @computed_once
    def of_step(self) -> "CudaKernel | None":
        """The kernel of one step, for loops whose steps the host gives; None if that is not possible."""
        plan = step_plan(self.plan)
        return None if plan is None else CudaKernel(plan, self.memory, self.options)

    def laid(self, lengths: Array) -> LaidLoop:
        """Returns the kernel of the loop for sequences of these lengths, and what its lanes do."""
        return laid(self.loop, lengths)

    @property
    def lanes_name(self) -> str:
        """The name under which positions keep tables for the loop."""
        return f"lanes of {id(self)}"

    def has_other(self, loop: LoopCode, at_once: int) -> bool:
        """Forgets a loop whose blocks do not all run at once; tells whether there are others."""
        self.memory.not_resident[loop.code.key] = at_once
        sizes = [size for size, known in self.loops.items() if known.loop.code == loop.code]
        self.loops.clear()
        found = [self.loop(*size) for size in sizes]
        return all(
            each.loop.code != loop.code or 0 < each.groups * loop.code.group <= at_once for each in found
        )

    def laid_at(self, positions: Positions) -> LaidLoop:
        """Returns the same for the sequences of a batch, whose positions keep it for later calls."""
        laid: LaidLoop
        # The positions keep this object too, so that no other has its number.
        _, laid = positions.derive(self.lanes_name, lambda: (self, self.laid(positions.lengths)))
        return laid

    @computed_once
    def memories(self) -> list[int | None]:
        """The positions, in the net's inputs, of the loop's initial memories; None for a computed one."""
        net, recurrence = self.plan.net, self.plan.recurrence
        first = recurrence.recur.operands_by_kind(recurrence.inputs).memories
        return [net.inputs.index(n) if n in net.inputs else None for n in first]

    @computed_once
    def ends_early(self) -> bool:
        """Tells whether a flag may end sequences in the loop, which begins with the memories of the call."""
        return {*self.plan.ends.memories} <= {*self.memories} and not self.is_idle

    @computed_once
    def read_after_loop(self) -> list[int]:
        """The values per step that the work after the loop reads, or that are results; by node."""
        return read_after_loop(self.plan, (*self.stages["after"], *self.stages["ended"]))

    def is_of_loop(self, number: int) -> bool:
        """Tells whether a node of the net is an output or a final memory of the loop."""
        node = self.plan.net.nodes[number]
        return node.operation == "result" and node.inputs[0] == self.plan.recur

    @computed_once
    def reads_index(self) -> bool:
        """Tells whether the plan reads the number of a step, in its loop or in the stages around it."""
        nets = self.plan.net, self.plan.body
        return any(node.operation == "index" for net in nets for node in net.nodes)

    @computed_once
    def has_tables(self) -> bool:
        """Tells whether an index may lie outside of a table, so that a call must look for it."""
        nets = self.plan.net, self.plan.body
        return any(node.kind == "gather" for net in nets for node in net.nodes)

    @computed_once
    def is_idle(self) -> bool:
        """Tells whether the loop computes nothing: it has no outputs, and memories stay as they are."""
        recur = self.plan.recurrence.recur
        return not recur.outputs and recur.following == recur.memories

    @computed_once
    def constants(self) -> CudaConstants:
        """The constants that other nodes read, or that are results, computed from parameters."""
        net, once = self.plan.net, self.plan.once
        others = set(range(len(net.nodes))).difference(once)
        read = {operand for number in others for operand in net.nodes[number].inputs} | {*net.results}
        return CudaConstants(self.memory, net, once, frozenset(read.intersection(once)))

    def bind(self, parameters: Sequence[Array]) -> "BoundPlan":
        """Copies the parameters, in the net's order, to the device, and computes the constants there."""
        return BoundPlan(self, constants_of(self, parameters))


def constants_of(kernel: CudaKernel, parameters: Sequence[Any]) -> Values:
    """Computes values of parameters alone; returns both, by node, on the device, where parameters stay."""
    values = kernel.constants(dict(zip(parameters_of(kernel.plan.net), parameters, strict=True)))
    return {number: on_device(kernel.memory, value) for number, value in values.items()}


def on_device(memory: CudaMemory, value: Any) -> DeviceArray:
    """Returns an array of the device as it is, and a copy there of one of the host, or of a number."""
    return memory.put_constant(value if isinstance(value, DeviceArray) else np.asarray(value))


@dataclass(frozen=True)
class BoundPlan(CalledKernel):
    """A plan with its parameters on the device, which can be called."""

    kernel: CudaKernel
    constants: Values

    @property
    def ends_early(self) -> bool:
        """Tells whether calls whose sequences end early run as one launch."""
        return self.kernel.ends_early

    def sharing(self, share: int) -> "BoundPlan":
        """Returns the plan with the same parameters whose loop runs beside others, see `CudaKernel`."""
        return self if share == self.kernel.share else replace(self, kernel=self.kernel.sharing(share))

    def of_chunks(self) -> "BoundPlan":
        """Returns the plan with the same parameters for chunks of the steps, see `CudaKernel`."""
        return self if self.kernel.carried is None else replace(self, kernel=self.kernel.of_chunks)

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Replaces the parameters, for later calls; returns True."""
        self.constants.update(constants_of(self.kernel, parameters))
        return True

    def __call__(self, call: Call) -> Results:
        """Runs the plan on the arrays of a call, which are on the device, as its results are."""
        run = PlanRun(self.kernel, call, dict(self.constants))
        run.stage("sequence")
        run.stage("before")
        run.loop()
        run = run.to_ends()
        run.stage("after")
        run.reductions()
        run.stage("ended")
        run.totals()
        run.check()
        return run.results()


@dataclass
class PlanRun:
    """One call of a plan: the values computed so far, by node of the plan's net.

    errors: see `LOOP_WORDS`. taken: the steps of each sequence, if a flag may end them; both on the device.
    """

    kernel: CudaKernel
    call: Call
    values: Values
    errors: DeviceArray | None = field(init=False, default=None)
    taken: DeviceArray | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Takes the arrays of the call."""
        plan, memory = self.plan, self.memory
        ends = plan.ends
        pairs = (
            (ends.sequences, self.call.sequences),
            (ends.memories, self.call.initial),
            (ends.statics, self.call.statics),
        )
        for places, arrays in pairs:
            for place, array in zip(places, arrays, strict=True):
                if array is not None:
                    self.values[plan.net.inputs[place]] = cast("DeviceArray", array)
        if self.kernel.has_tables:
            self.errors = memory.zeros((4,), "int64")

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        return self.kernel.plan

    @property
    def memory(self) -> CudaMemory:
        """The memory that the values lie in."""
        return self.kernel.memory

    @computed_once
    def places(self) -> DevicePositions:
        """Where the steps of the call lie, as arrays on the device."""
        return DevicePositions.of(self.call.positions, self.memory.device)

    def made(self, net: Net, number: int) -> DeviceArray:
        """Allocates the value of a node at steps or rows."""
        type_ = net.type_of(number)
        positions = self.call.positions
        # The outputs of sequences that a flag ends lie end to end, wherever the inputs do.
        is_ended = self.call.until is not None and self.kernel.is_of_loop(number)
        steps = int(positions.offsets[-1]) if is_ended else positions.total
        count = positions.rows if type_.extent == ROWS else steps
        return empty(self.memory.device, (count, *type_.shape), type_.dtype)

    # ---- stages around the loop

    def stage(self, name: str) -> None:
        """Runs the codes of a stage."""
        for code in self.kernel.stages[name]:
            if isinstance(code, ProductCode):
                self.multiply(code)
            else:
                self.launch(code, at_rows=name in ("sequence", "ended"))

    def multiply(self, code: ProductCode) -> None:
        """Computes a product of all entries with constants."""
        made = self.made(self.plan.net, code.node)
        rights = [self.values[number] for number in code.rights]
        pairs = zip(code.lefts, rights, strict=True)
        lefts = [self.values[n].reshape((made.shape[0], right.shape[0])) for n, right in pairs]
        out = made.reshape((made.shape[0], rights[0].shape[-1]))
        way = "bfloat16" if code.is_rounded else self.kernel.options.way(made.dtype, *code.stored)
        multiply(self.memory.device, lefts, rights, way, out)
        self.values[code.node] = made

    def launch(self, stage: DeviceStage, at_rows: bool) -> None:
        """Launches the kernel of a stage. at_rows: whether its entries are rows."""
        for number in stage.writes:
            self.values[number] = self.made(self.plan.net, number)
        positions = self.call.positions
        count = positions.rows if at_rows else positions.total
        row_of = 0 if at_rows else self.places.row_of.address
        index, before = (None, None) if at_rows else (self.index_of, self.first_steps)
        arrays = [self.values[number].address for number in (*stage.reads, *stage.writes)]
        blocks = self.blocks(count, stage)
        scratch = empty(self.memory.device, (blocks, stage.scratch), "int8") if stage.scratch else None
        places = address_of(index), address_of(before), address_of(scratch), address_of(self.errors)
        words = [count, row_of, *places, *arrays]
        if count:
            self.memory.device.launch(stage.code, blocks, words)

    def blocks(self, count: int, stage: DeviceStage) -> int:
        """Returns the number of blocks that share the entries of a stage: few, if each needs memory."""
        most = (1 if stage.scratch else 16) * self.memory.device.facts.multiprocessors
        return min(-(-count // stage.rows), most)

    @computed_once
    def index_of(self) -> DeviceArray | None:
        """The number of each step in its sequence; None if the stages do not read it."""
        if all(node.operation != "index" for node in self.plan.net.nodes):
            return None
        return self.places.index_of

    @computed_once
    def first_steps(self) -> DeviceArray | None:
        """The steps that each sequence did in earlier calls; None for none, and if nothing reads them."""
        offset: Any = self.call.step_offset
        if offset is None or not self.kernel.reads_index:
            return None
        return offset if isinstance(offset, DeviceArray) else self.places.put(offset)

    # ---- the loop

    @computed_once
    def picked(self) -> dict[int, int]:
        """The nodes that read a result of the loop, by the place of the result."""
        net, recur = self.plan.net, self.plan.recur
        return {
            node.attributes["of"]: number
            for number, node in enumerate(net.nodes)
            if node.operation == "result" and node.inputs[0] == recur
        }

    def loop(self) -> None:
        """Runs all steps: fills the outputs that something reads, and the final memories."""
        plan, picked = self.plan, self.picked
        if self.kernel.is_idle:
            operands = plan.recurrence.recur.operands_by_kind(plan.recurrence.inputs)
            for place, number in enumerate(operands.memories):
                if place in picked:
                    self.values[picked[place]] = self.initial(number)
            return
        for number in picked.values():
            self.values[number] = self.made(plan.net, number)
        self.launch_loop(self.loop_operands(), self.loop_results())

    def loop_operands(self) -> list[DeviceArray | None]:
        """Returns the arrays that the loop reads; None for memories of zeros."""
        return [self.values.get(number) for number in self.plan.recurrence.inputs]

    def loop_results(self) -> list[DeviceArray | None]:
        """Returns the arrays that the loop fills; None for a result that nothing reads."""
        places = range(len(self.plan.recurrence.types))
        return [self.values[self.picked[place]] if place in self.picked else None for place in places]

    def initial(self, number: int) -> DeviceArray:
        """Returns a memory before the first step: that of the call, or zeros."""
        if number in self.values:
            return self.memory.copy(self.values[number])
        type_ = self.plan.net.type_of(number)
        return self.memory.zeros((self.call.positions.rows, *type_.shape), type_.dtype)

    def to_ends(self) -> "PlanRun":
        """Returns the rest of the run, on the steps that sequences took until a flag ended them."""
        if self.taken is None:
            return self
        steps = TakenSteps(self.call.positions, get(self.taken), self.plan.reverse)
        values = dict(self.values)
        for number in self.kernel.read_after_loop:
            if number in values:
                indices = steps.placed if self.kernel.is_of_loop(number) else steps.entries
                values[number] = self.memory.take(values[number], indices)
        rest = PlanRun(self.kernel, steps.call(self.call), values)
        rest.errors = self.errors
        return rest

    def launch_loop(
        self, operands: Sequence[DeviceArray | None], results: Sequence[DeviceArray | None]
    ) -> None:
        """Launches the kernel of the loop. Operands that are not aligned as it needs them are copied."""
        rows, places, memory = self.call.positions.rows, self.places, self.memory
        if rows and self.call.until is None and self.kernel.loop(rows).by_steps:
            late_import("loops.step_runs", "cuda").SteppedLoop(self, operands, results).run_all()
            return
        if self.call.until is not None:
            self.taken = memory.zeros((rows,), "int64")
        if not rows:
            return
        loop, lanes = self.laid()
        groups = lanes.groups
        given = [
            array if array is None or array.address % loop.aligned == 0 else memory.copy(array)
            for array in operands
        ]
        assert all(array is None or array.address % loop.aligned == 0 for array in results)
        arrays = [*map(address_of, (*given, *results))]
        scratch = empty(memory.device, (groups, loop.scratch), "int8") if loop.scratch else None
        if scratch is not None and loop.zeros:
            for group in range(groups):
                memory.device.clear(scratch.address + group * loop.scratch, loop.zeros)
        words = [
            *lanes.words,
            address_of(places.steps),
            int(self.plan.reverse),
            address_of(self.first_steps),
            address_of(scratch),
            address_of(self.errors),
        ]
        if self.taken is not None:
            first = places.put(self.call.positions.offsets[:-1])
            arrays = [*arrays, self.taken.address, first.address]
        try:
            memory.device.launch(loop.code, groups * loop.code.group, [*words, *arrays])
        except NotResidentError as error:
            if not self.kernel.has_other(loop, error.at_once):
                raise
            self.call.positions.derived.pop(self.kernel.lanes_name, None)
            self.launch_loop(operands, results)

    def laid(self) -> tuple[LoopCode, DeviceLanes]:
        """Chooses the kernel of the loop, and what its lanes do in the call."""
        until, positions = self.call.until, self.call.positions
        if until is None:
            found = self.kernel.laid_at(positions)
        else:
            chosen = self.kernel.loop(positions.rows, until.flag)
            found = LaidLoop(chosen, positions.lengths, chosen.groups)
        return found.loop, self.places.lanes(found.key, self.plan.reverse, lambda: found.table)

    # ---- after the loop

    def reductions(self) -> None:
        """Reduces values per step to values per row."""
        for number in self.plan.reduced:
            node = self.plan.net.nodes[number]
            operands = [self.of_steps(operand) for operand in node.inputs]
            self.values[number] = reduced_to_rows(self.memory, node, operands, self.call.positions.offsets)

    def of_steps(self, number: int) -> DeviceArray:
        """Returns a value per step with the sequences end to end, without the gaps of padded arrays."""
        positions, value = self.call.positions, self.values[number]
        return value if positions.is_packed else self.memory.take(value, positions.all_step_indices)

    def totals(self) -> None:
        """Computes values over all rows, and constants that depend on them."""
        net = self.plan.net
        for number in self.plan.total:
            node = net.nodes[number]
            operands = [
                self.of_steps(n) if len(net.type_of(n).extent) > 1 else self.values[n] for n in node.inputs
            ]
            stored = [half_of(net, n) for n in node.inputs]
            self.values[number] = total(self.memory, node, operands, self.kernel.options, stored)

    def check(self) -> None:
        """Raises `IndexOutsideError` if a step read a table at an index outside of it."""
        if self.errors is not None and get(self.errors)[0]:
            raise IndexOutsideError(OUTSIDE)

    def results(self) -> Results:
        """Returns the results by kind, each in an array of its own."""
        ends = self.plan.ends
        outputs = [self.output(place) for place in ends.steps]
        rows, totals = ([self.own(place) for place in places] for places in (ends.rows, ends.totals))
        return Results(*(cast("list[Array]", arrays) for arrays in (outputs, rows, totals)))

    def at_rows(self, values: DeviceArray, rows: Any) -> DeviceArray:
        """Scatters the values of some rows into an array of all rows; the other rows are zeros."""
        made = self.memory.zeros((self.call.positions.rows, *values.shape[1:]), values.dtype)
        self.memory.write(made, rows, values)
        return made

    def own(self, place: int) -> DeviceArray:
        """Returns the result at a position of the net; a copy if it is an input or an earlier result."""
        results = self.plan.net.results
        number = results[place]
        shared = self.plan.net.nodes[number].operation == "input" or number in results[:place]
        value = self.values[number]
        return self.memory.copy(value) if shared or number in self.plan.once else value

    def output(self, place: int) -> DeviceArray:
        """Returns an output with zeros in the gaps between sequences; with `last_only`, its last steps."""
        memory, positions = self.memory, self.call.positions
        type_ = self.plan.net.type_of(self.plan.net.results[place])
        if not self.call.last_only:
            output = self.own(place)
            if len(gaps := self.places.gaps):
                memory.write(output, gaps, memory.zeros((1, *type_.shape), type_.dtype))
            return output
        number = self.plan.net.results[place]
        rows, indices = positions.end_step_indices(runs_back(self.plan.net, number))
        return self.at_rows(memory.take(self.values[number], indices), rows)
