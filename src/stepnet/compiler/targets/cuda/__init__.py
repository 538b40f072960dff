"""The target `cuda`: plans as kernels for NVIDIA's GPUs, which also run in an emulation on the CPU.

The names of `HOMES` are imported when they are first used: whether there is a driver is known without LLVM,
and LLVM's version is checked before the modules that write kernels are imported.
"""

from typing import TYPE_CHECKING, Any

from stepnet.compiler.values.fork_guard import imported_late

if TYPE_CHECKING:
    from stepnet.compiler.targets.cuda.assembler import assembled, ptxas
    from stepnet.compiler.targets.cuda.beside import (
        LoopLoad,
        PartPlace,
        StreamCosts,
        as_wavefronts,
        at_once,
        weighed_by,
    )
    from stepnet.compiler.targets.cuda.choice import ChosenLoop, code_of
    from stepnet.compiler.targets.cuda.codes import LANE_WORDS, LoopCode
    from stepnet.compiler.targets.cuda.device import (
        Device,
        DeviceArray,
        DeviceCode,
        DeviceFacts,
        DeviceWork,
        empty,
        get,
        put,
    )
    from stepnet.compiler.targets.cuda.driver import CudaDevice, cuda_device
    from stepnet.compiler.targets.cuda.emulator import EmulatedDevice
    from stepnet.compiler.targets.cuda.engine import COSTS, CudaEngine
    from stepnet.compiler.targets.cuda.grid import grid_code, grid_form
    from stepnet.compiler.targets.cuda.kernel import BoundPlan, CudaKernel, PlanRun
    from stepnet.compiler.targets.cuda.lanes import LanePace, LaneTable, refilled_lanes, sorted_lanes
    from stepnet.compiler.targets.cuda.library import CudaLibrary, started
    from stepnet.compiler.targets.cuda.loop import loop_code
    from stepnet.compiler.targets.cuda.memory import CudaMemory
    from stepnet.compiler.targets.cuda.positions import DevicePositions
    from stepnet.compiler.targets.cuda.products import WAYS, contracted, multiply
    from stepnet.compiler.targets.cuda.recorded import RECORDED
    from stepnet.compiler.targets.cuda.recording import arranged, spans_of
    from stepnet.compiler.targets.cuda.refill import LaidLoop, laid
    from stepnet.compiler.targets.cuda.streams import Fork
    from stepnet.compiler.targets.cuda.tensor.choice import TensorChoice, chosen, refuse
    from stepnet.compiler.targets.cuda.tensor.costs import (
        H100,
        ExchangeCost,
        TensorFacts,
        batch_time,
        facts_of,
        groups_at_once,
        step_time,
    )
    from stepnet.compiler.targets.cuda.tensor.registers import fitted, registers
    from stepnet.compiler.targets.cuda.tensor.shape import TensorSchedule, TensorShape
    from stepnet.compiler.targets.cuda.tensor.step import TensorStep
    from stepnet.compiler.targets.cuda.units import units_code
    from stepnet.compiler.targets.cuda.writer import KernelWriter

__all__ = [
    "COSTS",
    "H100",
    "LANE_WORDS",
    "RECORDED",
    "WAYS",
    "BoundPlan",
    "ChosenLoop",
    "CudaDevice",
    "CudaEngine",
    "CudaKernel",
    "CudaLibrary",
    "CudaMemory",
    "Device",
    "DeviceArray",
    "DeviceCode",
    "DeviceFacts",
    "DevicePositions",
    "DeviceWork",
    "EmulatedDevice",
    "ExchangeCost",
    "Fork",
    "KernelWriter",
    "LaidLoop",
    "LanePace",
    "LaneTable",
    "LoopCode",
    "LoopLoad",
    "PartPlace",
    "PlanRun",
    "StreamCosts",
    "TensorChoice",
    "TensorFacts",
    "TensorSchedule",
    "TensorShape",
    "TensorStep",
    "arranged",
    "as_wavefronts",
    "assembled",
    "at_once",
    "batch_time",
    "chosen",
    "code_of",
    "contracted",
    "cuda_device",
    "empty",
    "facts_of",
    "fitted",
    "get",
    "grid_code",
    "grid_form",
    "groups_at_once",
    "laid",
    "loop_code",
    "multiply",
    "ptxas",
    "put",
    "refilled_lanes",
    "refuse",
    "registers",
    "sorted_lanes",
    "spans_of",
    "started",
    "step_time",
    "units_code",
    "weighed_by",
]

HOMES = {
    "assembled": "assembler",
    "ptxas": "assembler",
    "LoopLoad": "beside",
    "PartPlace": "beside",
    "StreamCosts": "beside",
    "as_wavefronts": "beside",
    "at_once": "beside",
    "weighed_by": "beside",
    "ChosenLoop": "choice",
    "code_of": "choice",
    "LANE_WORDS": "codes",
    "LoopCode": "codes",
    "Device": "device",
    "DeviceArray": "device",
    "DeviceCode": "device",
    "DeviceFacts": "device",
    "DeviceWork": "device",
    "empty": "device",
    "get": "device",
    "put": "device",
    "CudaDevice": "driver",
    "cuda_device": "driver",
    "EmulatedDevice": "emulator",
    "COSTS": "engine",
    "CudaEngine": "engine",
    "grid_code": "grid",
    "grid_form": "grid",
    "BoundPlan": "kernel",
    "CudaKernel": "kernel",
    "PlanRun": "kernel",
    "LanePace": "lanes",
    "LaneTable": "lanes",
    "refilled_lanes": "lanes",
    "sorted_lanes": "lanes",
    "CudaLibrary": "library",
    "started": "library",
    "loop_code": "loop",
    "CudaMemory": "memory",
    "DevicePositions": "positions",
    "WAYS": "products",
    "contracted": "products",
    "multiply": "products",
    "RECORDED": "recorded",
    "arranged": "recording",
    "spans_of": "recording",
    "LaidLoop": "refill",
    "laid": "refill",
    "Fork": "streams",
    "TensorChoice": "tensor.choice",
    "chosen": "tensor.choice",
    "refuse": "tensor.choice",
    "H100": "tensor.costs",
    "ExchangeCost": "tensor.costs",
    "TensorFacts": "tensor.costs",
    "batch_time": "tensor.costs",
    "facts_of": "tensor.costs",
    "groups_at_once": "tensor.costs",
    "step_time": "tensor.costs",
    "fitted": "tensor.registers",
    "registers": "tensor.registers",
    "TensorSchedule": "tensor.shape",
    "TensorShape": "tensor.shape",
    "TensorStep": "tensor.step",
    "units_code": "units",
    "KernelWriter": "writer",
}


def __getattr__(name: str) -> Any:
    """Imports a public name of this package, a key of `HOMES`, from its module when it is first used; raises
    `AttributeError` for other names.
    """
    return imported_late(__name__, name, HOMES.get(name))
