"""The engine `cuda`: it refuses a schedule with a reason, or makes the kernels of its parts."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import STEPS
from stepnet.compiler.plan.load import CallSize, CostModel, FiberCosts
from stepnet.compiler.plan.passes import PIPELINE, SINK, Pipeline, late
from stepnet.compiler.plan.passes.centre import centre
from stepnet.compiler.plan.passes.read_before import read_before
from stepnet.compiler.plan.passes.together import together
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.base import Kernel, OwnedMemory, first_refusal, planning_of
from stepnet.compiler.targets.cpu.costs import COSTS as CPU
from stepnet.compiler.targets.cpu.machine.lazy import late_import
from stepnet.compiler.targets.cuda.arrays.constants import CudaConstants
from stepnet.compiler.targets.cuda.arrays.dlpack import lent_by
from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
from stepnet.compiler.targets.cuda.arrays.totals import total
from stepnet.compiler.targets.cuda.chunked.sizes import TrainedChunks, sizes_without_chunks
from stepnet.compiler.targets.cuda.codes import DeviceStage, ProductCode
from stepnet.compiler.targets.cuda.device import (
    CUDA,
    LEGACY_STREAM,
    Device,
    DeviceArray,
    DeviceCode,
    DeviceFacts,
    allocated_by,
)
from stepnet.compiler.targets.cuda.driver.gpu import cuda_device
from stepnet.compiler.targets.cuda.kernel import CudaKernel
from stepnet.compiler.targets.cuda.loops.chain import chained, described
from stepnet.compiler.targets.cuda.loops.kept import ChosenLoop
from stepnet.compiler.targets.cuda.loops.refill import LaidLoop
from stepnet.compiler.targets.cuda.options import DEFAULT, CudaOptions, engine_name
from stepnet.compiler.targets.cuda.recording.notes import LIMITS, MOST_WORK, READS_BACK, TOO_LONG
from stepnet.compiler.targets.cuda.recording.recorded import ENDS_EARLY, LARGE, RecordedKernel
from stepnet.compiler.targets.cuda.written import made, written
from stepnet.compiler.targets.schedule_kernel import Means, ending_part, flag_of, in_parts
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import DeviceError, InputError, LibraryError
from stepnet.ragged.positions import LARGEST_KEY

COSTS = CostModel(
    CPU.machine,
    FiberCosts(10**9, CPU.fibers.long, CPU.fibers.larger, 10**9),
    CPU.blocks,
    inner=False,
    chunks=sizes_without_chunks,
    accumulates=False,
)
"""The costs by which nets are planned: matrices are not cut into fibers, as each thread takes elements, and a
sum over steps is no chain of all of them.
"""
AT_SINK = PIPELINE.index(SINK)
PASSES = (
    *PIPELINE[:2],
    centre,
    read_before,
    *PIPELINE[2:AT_SINK],
    late("sink_sums"),
    *PIPELINE[AT_SINK + 1 : -1],
    together,
    *PIPELINE[-1:],
)
"""The passes for GPUs: a step adds up its units once less for each mean of a product, several steps of a
matrix that is a memory are computed together, a thread reads a column of a matrix once for several
vectors of a row, and sums leave a loop whose units need nothing of each other besides.
"""
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
VERDICT = Serializer()
"""The form on disk of whether there are kernels for a plan."""
ROW_KEY = 16
"""The bytes that a sequence takes among the positions by which calls are known."""
MOST_REGISTERS, NEARLY = 255, 0.9
"""The most registers of a thread, and the share of them from which an assembler may need more."""
FOUND = 48, 231
"""The registers of the kernels without an estimate that ptxas assembled, the fewest and the most."""


@dataclass(frozen=True)
class CudaEngine:
    """Engine that runs plans on a GPU, or on an emulation of one.

    device: the device that its kernels run on. If there is none, an emulated one, by whose properties kernels
        are chosen and explained.
    missing: why there is no device; "" if there is one.
    devices: the devices of PyTorch whose tensors it takes where they lie.
    number: of its device among those of the type.
    options: the precision of products, and whether results depend on the batch.
    """

    device: Device
    missing: str = ""
    name: str = "cuda"
    devices: tuple[str, ...] = ("cuda",)
    number: int = 0
    options: CudaOptions = DEFAULT
    pipeline: Pipeline = PASSES
    runs_gradients: bool = True
    has_same_bits: bool = False

    @property
    def costs(self) -> CostModel:
        """The costs by which nets are planned, and trained, on the device."""
        return self.own_costs

    @computed_once
    def own_costs(self) -> CostModel:
        """The costs with the sizes of matrices whose gradients fit on the device."""
        chunks = TrainedChunks(self.device.facts.shared)
        return replace(COSTS, blocks=replace(COSTS.blocks, chunks=chunks))

    @property
    def memory(self) -> CudaMemory:
        """The memory in which values between the parts of a schedule lie."""
        return self.own_memory

    @computed_once
    def own_memory(self) -> CudaMemory:
        """The memory of the device, which keeps arrays of integers for later calls."""
        return CudaMemory(self.device, self.options.precision)

    def refuse(self, schedule: Schedule) -> str | None:
        """Returns why this engine cannot run a schedule (a net cut into parts); None if it can."""
        return self.missing or first_refusal(self, schedule)

    def refuse_plan(self, plan: Plan) -> str | None:
        """Returns why this engine cannot run the plan of one part; None if it can."""
        if self.missing or written("refusals.accepts", VERDICT, (plan.key,), plan):
            return self.missing or None
        reason: str = made("refusals.refuse", plan)
        return reason

    def compile(self, schedule: Schedule) -> Kernel:
        """Makes the kernel of a schedule: its parts run in order, or beside each other where that pays, and
        calls that come again as they were recorded.
        """
        memory = self.memory
        constants = partial(CudaConstants, memory)
        means = Means(self.compile_plan, self.total, chained, memory, constants=constants)
        return RecordedKernel(schedule, in_parts(schedule, means), memory)

    def compile_plan(self, plan: Plan) -> CudaKernel:
        """Makes the kernel of the plan of one part."""
        return CudaKernel.of(plan, self.memory, self.options)

    @property
    def stand_in(self) -> str:
        """The name of the engine that runs the same kernels here: in emulation if there is no device."""
        return engine_name("cuda-emulated", 0, self.options) if self.missing else self.name

    def kernels(self, plan: Plan, size: CallSize) -> list[tuple[str, str]]:
        """Describes the kernels of a plan for calls of a size, whether or not there is a device."""
        kernel = self.compile_plan(plan.planned(planning_of(self)))
        facts = [("GPU", self.here), *self.stage_facts(kernel, size), ("calls", calls_of(kernel, size))]
        if kernel.is_idle:
            return facts
        found = kernel.laid(np.array(size.lengths or [size.longest] * size.filled))
        if found.chosen.by_steps and kernel.of_step is not None:
            return facts + step_facts(kernel.of_step, found.chosen, size)
        return facts + loop_facts(found, size, self.device.facts)

    def early_ends(self, schedule: Schedule, flag: int, size: CallSize) -> list[tuple[str, str]]:
        """Describes likewise calls whose sequences a flag may end early. flag: its position among the
        memories of the schedule's net.
        """
        planned = schedule.planned(planning_of(self))
        part, facts = ending_part(planned), [("GPU", self.here)]
        kernel = None if part is None or part.plan is None else self.compile_plan(part.plan)
        if part is None or kernel is None or not kernel.ends_early:
            return [*facts, ("launches", IN_PIECES), ("calls", f"part by part each time: {ENDS_EARLY}")]
        chosen = kernel.loop(size.rows, flag_of(planned, part, flag))
        lengths = np.array(size.lengths or [size.longest] * size.filled)
        facts += [
            *self.stage_facts(kernel, size),
            ("launches", ENDED),
            ("calls", f"part by part each time: {ENDS_EARLY}"),
        ]
        return facts + loop_facts(LaidLoop(chosen, lengths, chosen.groups), size, self.device.facts)

    def stage_facts(self, kernel: CudaKernel, size: CallSize) -> list[tuple[str, str]]:
        """Describes the kernels and products of each stage around a loop, with their time."""
        facts = late_import("tensor.facts", "cuda").facts_of(self.device.facts)
        costs = late_import("stage_costs", "cuda").StageCosts(kernel.plan.net, size, facts, self.options)
        found = list[tuple[str, str]]()
        for name, codes in kernel.stages.items():
            if codes:
                time, bound = costs.time(codes)
                said = ", ".join(map(text_of_code, codes))
                found.append((name, f"{said}; {time:,.1f} us predicted, most of it {bound}"))
        return found

    @property
    def here(self) -> str:
        """The name of the device, and whether it is missing, for people."""
        return f"{self.device.facts.name}{'; there is none here' if self.missing else ''}"

    def beside(self, schedule: Schedule, size: CallSize) -> list[tuple[tuple[int, ...], str]]:
        """Describes how parts of a schedule run beside each other in calls of a size, whether or not there is
        a device: their places in the schedule, and how.
        """
        planned = schedule.planned(planning_of(self))
        parts = planned.parts
        kernels = {
            place: kernel
            for place, part in enumerate(parts)
            if part.plan is not None and part.extent == STEPS and not part.is_bound_per_call
            if not (kernel := CudaKernel(part.plan, self.memory, self.options)).has_tables
        }
        alone = [((place,), ONE_BY_ONE) for place, part in enumerate(parts) if part.inner is not None]
        return described(parts, kernels, size) + alone + self.decays(planned, size)

    def decays(self, schedule: Schedule, size: CallSize) -> list[tuple[tuple[int, ...], str]]:
        """Describes likewise the parts of a schedule that are gradients of decays."""
        facts, way, found = self.device.facts, self.options.precision, list[tuple[tuple[int, ...], str]]()
        for place, part in enumerate(schedule.parts):
            if part.node is not None and part.node.operation == "matrix_gradients":
                costs = late_import("chunked.decay_costs", "cuda")
                its = schedule.net, part.node, size.filled, facts, way
                time: float = costs.time_of_decays(*its)
                parts: dict[str, float] = costs.parts_of_decays(*its)
                of_memory = parts.pop("bytes") > sum(parts.values())
                bound = "main memory" if of_memory else max(parts, key=lambda name: parts[name])
                whole = f"{time * size.longest:,.0f} us predicted for {size.longest} steps"
                said = f"in chunks, by products on tensor cores: {time:.2f} us for a step, most of it {bound}"
                found.append(((place,), f"{said}; {whole}"))
        return found

    def array_at(self, address: int, shape: tuple[int, ...], dtype: str, owner: object) -> DeviceArray:
        """Returns a C-contiguous array at an address on the device. owner: keeps the memory allocated."""
        return DeviceArray(self.device, address, shape, dtype, owner)

    def array_of(self, value: Any) -> DeviceArray | None:
        """Returns an array of another library where it lies, if it is on this engine's device; else None. It
        is read by DLPack, or by the CUDA array interface where the library has no DLPack.

        Raises `InputError` for one with gaps between its elements.
        """
        if isinstance(value, DeviceArray):
            return value if value.device is self.device else None
        if isinstance(value, np.ndarray):
            return None
        where = value.__dlpack_device__() if hasattr(value, "__dlpack_device__") else (CUDA, 0)
        if tuple(map(int, where)) != self.device.place:
            return None
        if hasattr(value, "__dlpack__"):
            lent = lent_by(value, **({"stream": LEGACY_STREAM} if where[0] == CUDA else {}))
            address, shape, dtype, owner, is_whole = lent
        elif (facts := getattr(value, "__cuda_array_interface__", None)) is not None:
            shape, numbers = tuple(facts["shape"]), np.dtype(facts["typestr"])
            strides = tuple(numbers.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))
            is_whole = facts.get("strides") in (None, strides)
            address, dtype, owner = facts["data"][0], numbers.name, value
        else:
            return None
        if not is_whole:
            raise InputError(
                f"an array {list(shape)} on the GPU has gaps between its elements: give a contiguous copy"
            )
        return self.array_at(address, shape, dtype, owner)

    @contextmanager
    def on_stream(self, stream: int, allocate: Callable[[int], OwnedMemory]) -> Generator[None]:
        """Context in which this thread's calls run on a stream, with results in memory of a function."""
        with self.device.on_stream(stream), allocated_by(allocate):
            yield

    def total(self, node: Node, operands: Sequence[Any]) -> Any:
        """Computes the value of a node that combines all rows, such as the gradient of a weight."""
        return total(self.memory, node, operands, self.options)


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
        time = found.microseconds if size.lengths else chosen.microseconds * size.longest
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


@cache
def emulated() -> Device:
    """Returns the emulated GPU, one for all engines."""
    device: Device = late_import("emulation.emulator", "cuda").EmulatedDevice()
    return device


def on_gpu(number: int = 0, options: CudaOptions = DEFAULT) -> CudaEngine:
    """Makes the engine for a GPU. If there is none, the engine refuses everything, with the reason.

    number: of the GPU, from 0 on. options: the precision of products, and whether batches change bits.
    """
    name = engine_name("cuda", number, options)
    try:
        return CudaEngine(cuda_device(number), name=name, number=number, options=options)
    except DeviceError as error:
        return CudaEngine(emulated(), str(error), name, devices=(), options=options)


def in_emulation(options: CudaOptions = DEFAULT) -> CudaEngine:
    """Makes the engine whose kernels run in an emulation on the CPU. options: as for a GPU."""
    name = engine_name("cuda-emulated", 0, options)
    return CudaEngine(emulated(), name=name, devices=(), options=options)
