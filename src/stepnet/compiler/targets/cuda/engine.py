"""The engine `cuda`: it refuses a schedule with a reason, or makes the kernels of its parts."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import Any, cast

import numpy as np

from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.net.ir import Node
from stepnet.compiler.plan.load import CallSize, CostModel, FiberCosts
from stepnet.compiler.plan.passes import PIPELINE, SINK, Pipeline, late
from stepnet.compiler.plan.passes.centre import centre
from stepnet.compiler.plan.passes.read_before import read_before
from stepnet.compiler.plan.passes.together import together
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.base import Kernel, OwnedMemory, first_refusal, planning_of
from stepnet.compiler.targets.cpu.costs import COSTS as CPU
from stepnet.compiler.targets.cpu.machine.lazy import late_import, lazy_import
from stepnet.compiler.targets.cuda.arrays.constants import CudaConstants
from stepnet.compiler.targets.cuda.arrays.dlpack import lent_by
from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
from stepnet.compiler.targets.cuda.arrays.totals import total
from stepnet.compiler.targets.cuda.chunked.sizes import TrainedChunks, sizes_without_chunks
from stepnet.compiler.targets.cuda.device import (
    CUDA,
    LEGACY_STREAM,
    Device,
    DeviceArray,
    allocated_by,
)
from stepnet.compiler.targets.cuda.driver.gpu import cuda_device
from stepnet.compiler.targets.cuda.kernel import CudaKernel
from stepnet.compiler.targets.cuda.loops.chain import chained
from stepnet.compiler.targets.cuda.options import DEFAULT, CudaOptions, engine_name
from stepnet.compiler.targets.cuda.recording.recorded import RecordedKernel
from stepnet.compiler.targets.cuda.written import made, written
from stepnet.compiler.targets.schedule_kernel import Means, in_parts
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import DeviceError, InputError

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
VERDICT = Serializer()
"""The form on disk of whether there are kernels for a plan."""


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

    @property
    def explained(self) -> Any:
        """The `ExplainedKernels` of the engine."""
        here = f"{self.device.facts.name}{'; there is none here' if self.missing else ''}"
        texts = lazy_import("explained", "cuda")
        return texts.ExplainedKernels(self.compile_plan, self.memory, self.options, planning_of(self), here)

    def kernels(self, plan: Plan, size: CallSize) -> list[tuple[str, str]]:
        """Describes the kernels of a plan for calls of a size, whether or not there is a device."""
        return cast("list[tuple[str, str]]", self.explained.kernels(plan, size))

    def early_ends(self, schedule: Schedule, flag: int, size: CallSize) -> list[tuple[str, str]]:
        """Describes likewise calls whose sequences a flag may end early. flag: its position among the
        memories of the schedule's net.
        """
        return cast("list[tuple[str, str]]", self.explained.early_ends(schedule, flag, size))

    def beside(self, schedule: Schedule, size: CallSize) -> list[tuple[tuple[int, ...], str]]:
        """Describes how parts of a schedule run beside each other in calls of a size, whether or not there is
        a device: their places in the schedule, and how.
        """
        return cast("list[tuple[tuple[int, ...], str]]", self.explained.beside(schedule, size))

    def parts(self, schedule: Schedule, size: CallSize) -> list[tuple[str, str]]:
        """Describes the time of each part of a schedule in calls of a size, by its number, and of all."""
        return cast("list[tuple[str, str]]", self.explained.parts(schedule, size))

    def array_at(self, address: int, shape: tuple[int, ...], dtype: str, owner: object) -> DeviceArray:
        """Returns a C-contiguous array at an address on the device. owner: keeps the memory allocated."""
        return DeviceArray(self.device, address, shape, dtype, owner)

    def array_of(self, value: Any) -> DeviceArray | None:
        """Returns an array of another library where it lies, if it is on this engine's device; else None. It
        is read by DLPack, or by the CUDA array interface where the library has no DLPack.

        Raises `InputError` for one with gaps between its elements, or at an address that no GPU reads.
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
        if address % (own := np.dtype(dtype).itemsize):
            raise InputError(
                f"an array {list(shape)} of {dtype} on the GPU begins at an address that is no multiple of "
                f"{own} bytes, at which the GPU reads none: give a copy"
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
