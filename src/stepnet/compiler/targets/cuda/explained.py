"""The text of `explain` on a GPU: kernels of a plan, and the time of all parts of a schedule.

    before, loop, after     kernels and products, with what they take and what bounds it
    reduced, total          sums over steps and over all rows
    in all                  all of it

Every time is an estimate by `costs`, without the launches, which are counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import STEPS
from stepnet.compiler.plan.load import WORDS, CallSize
from stepnet.compiler.plan.plan import Plan, Planning
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.targets.cpu.machine.lazy import late_import
from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
from stepnet.compiler.targets.cuda.chunked.decay_costs import parts_of_decays, time_of_decays
from stepnet.compiler.targets.cuda.codes import DeviceStage, ProductCode
from stepnet.compiler.targets.cuda.device import DeviceCode, DeviceFacts
from stepnet.compiler.targets.cuda.kernel import CudaKernel
from stepnet.compiler.targets.cuda.loops.chain import Decision, decided_of
from stepnet.compiler.targets.cuda.loops.kept import ChosenLoop
from stepnet.compiler.targets.cuda.loops.refill import LaidLoop
from stepnet.compiler.targets.cuda.loops.stepped import LAUNCH
from stepnet.compiler.targets.cuda.options import CudaOptions
from stepnet.compiler.targets.cuda.recording.notes import LIMITS, MOST_WORK, READS_BACK, TOO_LONG
from stepnet.compiler.targets.cuda.recording.recorded import ENDS_EARLY, LARGE
from stepnet.compiler.targets.cuda.stage_costs import StageCosts, entries, together
from stepnet.compiler.targets.cuda.stored import half_of
from stepnet.compiler.targets.cuda.tensor.facts import facts_of
from stepnet.compiler.targets.schedule_kernel import ending_part, flag_of
from stepnet.compiler.values.records import dataclass
from stepnet.errors import LibraryError
from stepnet.ragged.positions import LARGEST_KEY

Facts = list[tuple[str, str]]
"""Names and texts of facts, as rows of a table."""
ONE_BY_ONE = (
    f"its steps run one by one: calls are recorded up to {LIMITS}, and where steps are not counted from "
    "earlier calls on"
)
"""The way in which a part runs whose step is a schedule of its own."""
RECORDED_CALLS = "recorded, and then given again; but not those that until= ends"
ENDED = "one for all steps: blocks leave the loop when all sequences of their group have ended"
"""The launches of a loop that a flag may end."""
IN_PIECES = (
    "several for each step, whose memories read sequences of its own, as no kernel of a loop does; the host "
    "looks for ended sequences after pieces of some steps"
)
"""The launches of a step that runs part by part, where sequences may end early."""
ROW_KEY = 16
"""The bytes that a sequence takes among the positions by which calls are known."""
MOST_REGISTERS, NEARLY = 255, 0.9
"""The most registers of a thread, and the share of them from which an assembler may need more."""
FOUND = 48, 231
"""The registers of the kernels without an estimate that ptxas assembled, the fewest and the most."""
NAMES = {"contract": "sum of products", "reduce": "sum of values", "scatter": "sum at indices"}
"""The names of operations that add up steps or rows."""


class StageTime(NamedTuple):
    """The estimate of a stage of a plan, or of a part of a schedule: its microseconds, what takes most of
    them, and its launches.
    """

    microseconds: float
    bound: str
    launches: int

    @property
    def text(self) -> str:
        """The estimate for people."""
        return f"{self.microseconds:,.1f} us predicted, most of it {self.bound}"


@dataclass(frozen=True)
class ExplainedKernels:
    """Writer of the text on the kernels of an engine.

    compile_plan, memory, options, planning: of the engine. here: the name of the device, and whether it is
        missing.
    """

    compile_plan: Callable[[Plan], CudaKernel]
    memory: CudaMemory
    options: CudaOptions
    planning: Planning
    here: str

    @property
    def device(self) -> DeviceFacts:
        """The facts of the device."""
        return self.memory.device.facts

    def kernel_of(self, plan: Plan) -> CudaKernel:
        """Returns the kernel of a plan, made by the passes of the engine."""
        return self.compile_plan(plan.planned(self.planning))

    def kernels(self, plan: Plan, size: CallSize) -> Facts:
        """Describes the kernels of a plan for calls of a size."""
        kernel = self.kernel_of(plan)
        facts = [("GPU", self.here), *self.stage_facts(kernel, size), ("calls", calls_of(kernel, size))]
        if not kernel.is_idle:
            found = kernel.laid(lengths_of(size))
            if found.chosen.by_steps and kernel.of_step is not None:
                facts += step_facts(kernel.of_step, found.chosen, size)
            else:
                facts += loop_facts(found, size, self.device)
        return facts + self.sum_facts(kernel, size)

    def early_ends(self, schedule: Schedule, flag: int, size: CallSize) -> Facts:
        """Describes likewise calls whose sequences a flag may end early. flag: its position among the
        memories of the schedule's net.
        """
        planned = schedule.planned(self.planning)
        part, facts = ending_part(planned), [("GPU", self.here)]
        kernel = None if part is None or part.plan is None else self.kernel_of(part.plan)
        if part is None or kernel is None or not kernel.ends_early:
            return [*facts, ("launches", IN_PIECES), ("calls", f"part by part each time: {ENDS_EARLY}")]
        chosen = kernel.loop(size.rows, flag_of(planned, part, flag))
        facts += [
            *self.stage_facts(kernel, size),
            ("launches", ENDED),
            ("calls", f"part by part each time: {ENDS_EARLY}"),
        ]
        found = LaidLoop(chosen, lengths_of(size), chosen.groups)
        return facts + loop_facts(found, size, self.device) + self.sum_facts(kernel, size, "up to ")

    # ---- the stages of a plan

    def costs(self, net: Net, size: CallSize) -> StageCosts:
        """Returns the estimates of the values of a net in calls of a size."""
        return StageCosts(net, size, facts_of(self.device), self.options, self.device.multiprocessors)

    def stage_facts(self, kernel: CudaKernel, size: CallSize) -> Facts:
        """Describes the kernels and products of each stage around a loop, with their time."""
        times = self.stage_times(kernel, size)
        return [
            (name, f"{', '.join(map(text_of_code, codes))}; {times[name].text}")
            for name, codes in kernel.stages.items()
            if codes
        ]

    def stage_times(self, kernel: CudaKernel, size: CallSize) -> dict[str, StageTime]:
        """Estimates the stages of a plan around its loop, by name: those of kernels and products, "reduced",
        sums over the steps of each row, and "total", sums over all rows.
        """
        plan, costs = kernel.plan, self.costs(kernel.plan.net, size)
        stages = kernel.stages.items()
        found = {name: StageTime(*costs.time(codes), len(codes)) for name, codes in stages if codes}
        for name, numbers in (("reduced", plan.reduced), ("total", plan.total)):
            if numbers:
                stored = [[half_of(plan.net, n) for n in plan.net.nodes[number].inputs] for number in numbers]
                times = [costs.node_time(*each) for each in zip(numbers, stored, strict=True)]
                found[name] = StageTime(*together(times), sum(map(costs.launches, numbers)))
        return found

    def loop_time(self, kernel: CudaKernel, size: CallSize) -> StageTime | None:
        """Estimates the loop of a plan; None if it computes nothing."""
        if kernel.is_idle or not size.longest:
            return None
        found = kernel.laid(lengths_of(size))
        return StageTime(time_of(found, size), "the loop", 0 if found.chosen.by_steps else 1)

    def plan_time(self, kernel: CudaKernel, size: CallSize) -> StageTime:
        """Estimates a whole plan: its stages, and its loop."""
        times = self.stage_times(kernel, size)
        loop = self.loop_time(kernel, size)
        every = [(time.microseconds, f'the stage "{name}"') for name, time in times.items()]
        every += [] if loop is None else [loop[:2]]
        launches = sum(time.launches for time in times.values()) + (0 if loop is None else loop.launches)
        return StageTime(*together(every), launches) if every else StageTime(0.0, "nothing", 0)

    def sum_facts(self, kernel: CudaKernel, size: CallSize, most: str = "") -> Facts:
        """Describes the sums behind the loop of a plan, and the time of all that it does. most: see
        `whole_text`.
        """
        times, net = self.stage_times(kernel, size), kernel.plan.net
        named = ("reduced", kernel.plan.reduced), ("total", kernel.plan.total)
        found = [
            (name, f"{counted([net.nodes[n].operation for n in numbers])}; {times[name].text}")
            for name, numbers in named
            if numbers
        ]
        return [*found, ("in all", whole_text(self.plan_time(kernel, size), most))]

    # ---- the parts of a schedule

    def beside(self, schedule: Schedule, size: CallSize) -> list[tuple[tuple[int, ...], str]]:
        """Describes how parts of a schedule run beside each other in calls of a size: their places in the
        schedule, and how.
        """
        planned = schedule.planned(self.planning)
        return [(places, str(decision)) for places, decision in self.decisions(planned, size)]

    def decisions(self, planned: Schedule, size: CallSize) -> list[tuple[tuple[int, ...], Decision]]:
        """Decides how parts run beside each other: their places, and how."""
        kernels = {
            place: kernel
            for place, part in enumerate(planned.parts)
            if part.plan is not None and part.extent == STEPS and not part.is_bound_per_call
            if not (kernel := CudaKernel(part.plan, self.memory, self.options)).has_tables
        }
        return decided_of(planned.parts, kernels, size)

    def parts(self, schedule: Schedule, size: CallSize) -> Facts:
        """Describes the time of each part of a schedule in calls of a size, by its number, and of all."""
        planned = schedule.planned(self.planning)
        facts, every = [("GPU", self.here)], list[tuple[float, str]]()
        launches = 0
        for number, part, time in self.part_times(planned, size):
            if part.kind == "loop":
                facts.append((number, f"{time.text}; {ONE_BY_ONE}"))
            elif "." in number:
                facts.append((number, f"{time.text}, at each step"))
            elif part.node is not None and part.node.operation == "matrix_gradients":
                facts.append((number, self.decays_text(planned.net, part.node, size)))
            else:
                facts.append((number, time.text))
            if "." not in number:
                every.append((time.microseconds, f"part {number}"))
                launches += time.launches
        (whole, bound), decisions = together(every), self.decisions(planned, size)
        saved = sum(decision.in_turn - decision.microseconds for _, decision in decisions)
        if saved > 0:
            facts.append(("beside", f"{saved:,.0f} us less, as parts run at the same time"))
        return [*facts, ("in all", whole_text(StageTime(whole - saved, bound, launches)))]

    def part_times(
        self, schedule: Schedule, size: CallSize, before: str = ""
    ) -> Iterator[tuple[str, Part, StageTime]]:
        """Yields the number, the part and the estimate of each part of a schedule, and behind a loop those of
        a step of it. before: the text in front of all numbers.
        """
        for place, part in enumerate(schedule.parts):
            inside = list[tuple[str, Part, StageTime]]()
            if part.inner is not None:
                of_step = CallSize(size.filled, WORDS, size.filled * WORDS)
                inside += self.part_times(part.inner, of_step, f"{before}{place}.")
            steps = [time for number, _, time in inside if number.count(".") == before.count(".") + 1]
            time = in_steps(steps, size) if inside else self.part_time(schedule.net, part, size)
            yield f"{before}{place}", part, time
            yield from inside

    def part_time(self, net: Net, part: Part, size: CallSize) -> StageTime:
        """Estimates a part of a schedule that is no loop."""
        if part.plan is not None:
            return self.plan_time(self.kernel_of(part.plan), size_of(part, size))
        assert part.node is not None
        if part.node.operation == "matrix_gradients":
            time, bound = self.decay_time(net, part.node, size)
            return StageTime(time * size.longest, bound, 1)
        costs, number = self.costs(net, size), part.results[0]
        return StageTime(*costs.node_time(number), costs.launches(number))

    def decay_time(self, net: Net, node: Node, size: CallSize) -> tuple[float, str]:
        """Returns the microseconds of a step of the gradients of a matrix that decays, and what bounds it."""
        its = net, node, size.filled, self.device, self.options.precision
        parts = parts_of_decays(*its)
        of_memory = parts.pop("bytes") > sum(parts.values())
        bound = "main memory" if of_memory else max(parts, key=lambda name: parts[name])
        return time_of_decays(*its), bound

    def decays_text(self, net: Net, node: Node, size: CallSize) -> str:
        """Describes the gradients of a matrix that decays."""
        time, bound = self.decay_time(net, node, size)
        said = f"in chunks, by products on tensor cores: {time:.2f} us for a step, most of it {bound}"
        return f"{said}; {time * size.longest:,.0f} us predicted for {size.longest} steps"


def size_of(part: Part, size: CallSize) -> CallSize:
    """Returns the size of the call of a part that a plan runs, which may be of inner sequences."""
    if part.kind != "plain" and part.extent == STEPS:
        return size
    steps = entries(part.extent, size)
    rows = steps if part.kind == "plain" else entries(part.extent[:-1], size)
    return CallSize(rows, ceil(steps / max(1, rows)), steps)


def in_steps(times: Sequence[StageTime], size: CallSize) -> StageTime:
    """Estimates a loop whose steps run part by part, by the parts of a step, of which each launch takes time
    that the host does not hide.
    """
    launches = LAUNCH * sum(time.launches for time in times)
    parts = [("launches", launches), *((time.bound, time.microseconds) for time in times)]
    whole, bound = together([(time, name) for name, time in parts])
    return StageTime(whole * size.longest, bound, 0)


def whole_text(time: StageTime, most: str = "") -> str:
    """Describes the time of a whole call. most: "up to " if sequences may end early."""
    launched = "1 launch is" if time.launches == 1 else f"{time.launches} launches are"
    besides = f"; {launched} not in it" if time.launches else ""
    return f"{most}{time.microseconds:,.0f} us predicted, most of it {time.bound}{besides}"


def counted(operations: Sequence[str]) -> str:
    """Describes how many sums of each kind there are.

    >>> counted(["reduce", "contract", "contract"])
    '1 sum of values, 2 sums of products'
    """
    found = list[str]()
    for operation, count in Counter(NAMES.get(each, "operation") for each in operations).items():
        head, _, rest = operation.partition(" ")
        found.append(f"{count} {head}{'s' if count > 1 else ''} {rest}".rstrip())
    return ", ".join(found)


def lengths_of(size: CallSize) -> np.ndarray:
    """Returns the steps of each sequence of a call."""
    return np.array(size.lengths or [size.longest] * size.filled)


def time_of(found: LaidLoop, size: CallSize) -> float:
    """Returns the predicted microseconds of a loop in a call: by the turns of its lanes where lengths differ,
    or as if all sequences were as long as the longest where no pace of its groups is estimated.
    """
    chosen = found.chosen
    laid = chosen.pace is not None and len(set(size.lengths)) > 1 and not chosen.by_steps
    return found.microseconds if laid else chosen.microseconds * size.longest


def step_facts(kernel: CudaKernel, chosen: ChosenLoop, size: CallSize) -> list[tuple[str, str]]:
    """Describes likewise a loop whose steps the host gives one by one. kernel: of a step."""
    codes = kernel.stages["sequence"]
    time = f"{chosen.microseconds * size.longest:,.0f} us predicted for {size.longest} steps"
    own = [code.code for code in codes if not isinstance(code, ProductCode)]
    return [
        ("each step", ", ".join(map(text_of_code, codes))),
        ("chosen", chosen.reason),
        *((name, text) for code in own for name, text in room_facts(code, 0, kernel.memory.device.facts)),
        ("time", time),
    ]


def loop_facts(found: LaidLoop, size: CallSize, facts: DeviceFacts) -> list[tuple[str, str]]:
    """Describes the kernel of a loop, what its lanes do, and its time, for a call of a size on a device."""
    chosen, code = found.chosen, found.loop.code
    blocks = "a block" if code.group == 1 else f"{code.group} blocks"
    described = [
        ("loop", f"{blocks} of {code.threads} threads for {chosen.loop.group_rows} sequences"),
        ("chosen", chosen.reason),
        *room_facts(code, chosen.registers, facts),
    ]
    if size.lengths:
        described.append(("lanes", found.text))
    if chosen.microseconds:
        time = time_of(found, size)
        steps = f"{size.longest} steps" if len(set(size.lengths)) < 2 else "all steps"
        described.append(("time", f"{time:,.0f} us predicted for {steps}"))
    return described


def room_facts(code: DeviceCode, estimate: int, facts: DeviceFacts) -> list[tuple[str, str]]:
    """Describes the shared memory of a kernel, and its registers: by an estimate, or else by ptxas where that
    is installed. estimate: the registers of a thread; 0 if there is none.
    """
    most = min(MOST_REGISTERS, facts.registers // (code.threads * code.resident) // 8 * 8)
    assembler = late_import("assembler", "cuda")
    if estimate:
        said = f"about {min(estimate, most)} of {most} of a thread, estimated"
        if estimate > NEARLY * most:
            said += "; if the GPU's assembler needs more, it keeps some in memory"
    elif assembler.ptxas() is None:
        said = (
            f"{FOUND[0]} to {FOUND[1]} of {most} of a thread in kernels of this kind; those of this one are "
            "known where NVIDIA's ptxas is: pip install nvidia-cuda-nvcc"
        )
    else:
        try:
            found = assembler.assembled(code, facts.capability)
        except LibraryError as error:
            said = f"not known: {error}"
        else:
            spilled = f", {found.spilled} B more in memory" if found.spilled else ""
            said = f"{found.registers} of {most} of a thread, by ptxas{spilled}"
    return [("shared", f"{code.shared:,} of {facts.shared:,} B of a block"), ("registers", said)]


def calls_of(kernel: CudaKernel, size: CallSize) -> str:
    """Describes how later calls of a size run: as the first one was recorded, or why they do not."""
    reason = READS_BACK if kernel.has_tables else LARGE if size.rows * ROW_KEY > LARGEST_KEY else ""
    if not kernel.is_idle and kernel.loop(size.filled).by_steps and kernel.of_step is not None:
        work = len(kernel.of_step.stages["sequence"]) * size.longest
        reason = reason or (TOO_LONG if work > MOST_WORK else "")
    return f"part by part each time: {reason}" if reason else RECORDED_CALLS


def text_of_code(code: DeviceStage | ProductCode) -> str:
    """Describes a kernel or a product of a stage in a few words."""
    if isinstance(code, ProductCode):
        return f"a product with {len(code.rights)} matrices" if len(code.rights) > 1 else "a product"
    values = "values" if len(code.writes) > 1 else "value"
    return f"a kernel for {len(code.writes)} {values}"
