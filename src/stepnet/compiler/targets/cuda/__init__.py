"""The target `cuda`: plans as kernels for NVIDIA's GPUs, which also run in an emulation on the CPU.

The names of `HOMES` are imported when they are first used: whether there is a driver is known without LLVM,
and LLVM's version is checked before the modules that write kernels are imported.
"""

from typing import TYPE_CHECKING, Any

from stepnet.compiler.values.fork_guard import imported_late

if TYPE_CHECKING:
    from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
    from stepnet.compiler.targets.cuda.arrays.positions import DevicePositions
    from stepnet.compiler.targets.cuda.arrays.product_form import ProductForm
    from stepnet.compiler.targets.cuda.arrays.products import WAYS, contracted, multiply
    from stepnet.compiler.targets.cuda.assembler import assembled, ptxas
    from stepnet.compiler.targets.cuda.chunked.costs import chunk_choices
    from stepnet.compiler.targets.cuda.chunked.decay_costs import decay_time, time_of_decays
    from stepnet.compiler.targets.cuda.chunked.decay_form import DecayForm, decay_form
    from stepnet.compiler.targets.cuda.chunked.decays import DecayWriter, decay_code
    from stepnet.compiler.targets.cuda.chunked.form import ChunkForm
    from stepnet.compiler.targets.cuda.chunked.loop import ChunkWriter, chunk_code
    from stepnet.compiler.targets.cuda.chunked.sizes import TrainedChunks
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
    from stepnet.compiler.targets.cuda.driver.gpu import CudaDevice, cuda_device
    from stepnet.compiler.targets.cuda.driver.library import CudaLibrary, started
    from stepnet.compiler.targets.cuda.emulation.emulator import EmulatedDevice
    from stepnet.compiler.targets.cuda.engine import COSTS, CudaEngine
    from stepnet.compiler.targets.cuda.grid.loop import grid_code
    from stepnet.compiler.targets.cuda.grid.sizes import grid_form
    from stepnet.compiler.targets.cuda.kernel import BoundPlan, CudaKernel, PlanRun
    from stepnet.compiler.targets.cuda.loops.beside import (
        LoopLoad,
        PartPlace,
        StreamCosts,
        as_wavefronts,
        at_once,
        load_of,
        weighed_by,
    )
    from stepnet.compiler.targets.cuda.loops.choice import code_of
    from stepnet.compiler.targets.cuda.loops.kept import LOOPS, ChosenLoop, loop_of
    from stepnet.compiler.targets.cuda.loops.lanes import LanePace, LaneTable, refilled_lanes, sorted_lanes
    from stepnet.compiler.targets.cuda.loops.loop import LoopForm, loop_code
    from stepnet.compiler.targets.cuda.loops.others import time_of_blocks
    from stepnet.compiler.targets.cuda.loops.parts import part_code, parts_of
    from stepnet.compiler.targets.cuda.loops.refill import LaidLoop, laid
    from stepnet.compiler.targets.cuda.loops.unit_form import UnitForm
    from stepnet.compiler.targets.cuda.loops.units import units_code
    from stepnet.compiler.targets.cuda.options import CudaOptions, CudaPrecision
    from stepnet.compiler.targets.cuda.recording.recorded import RECORDED
    from stepnet.compiler.targets.cuda.recording.work import arranged, spans_of
    from stepnet.compiler.targets.cuda.streams import Fork
    from stepnet.compiler.targets.cuda.tensor.choice import TensorChoice, chosen, refuse
    from stepnet.compiler.targets.cuda.tensor.costs import batch_time, groups_at_once, step_time
    from stepnet.compiler.targets.cuda.tensor.facts import (
        H100,
        ExchangeCost,
        PlainCost,
        TensorFacts,
        facts_of,
    )
    from stepnet.compiler.targets.cuda.tensor.registers import fitted, registers
    from stepnet.compiler.targets.cuda.tensor.shape import TensorSchedule, TensorShape
    from stepnet.compiler.targets.cuda.tensor.step import TensorStep
    from stepnet.compiler.targets.cuda.writer import KernelWriter
    from stepnet.compiler.targets.cuda.written import kernel_code

__all__ = [
    "COSTS",
    "H100",
    "LANE_WORDS",
    "LOOPS",
    "RECORDED",
    "WAYS",
    "BoundPlan",
    "ChosenLoop",
    "ChunkForm",
    "ChunkWriter",
    "CudaDevice",
    "CudaEngine",
    "CudaKernel",
    "CudaLibrary",
    "CudaMemory",
    "CudaOptions",
    "CudaPrecision",
    "DecayForm",
    "DecayWriter",
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
    "LoopForm",
    "LoopLoad",
    "PartPlace",
    "PlainCost",
    "PlanRun",
    "ProductForm",
    "StreamCosts",
    "TensorChoice",
    "TensorFacts",
    "TensorSchedule",
    "TensorShape",
    "TensorStep",
    "TrainedChunks",
    "UnitForm",
    "arranged",
    "as_wavefronts",
    "assembled",
    "at_once",
    "batch_time",
    "chosen",
    "chunk_choices",
    "chunk_code",
    "code_of",
    "contracted",
    "cuda_device",
    "decay_code",
    "decay_form",
    "decay_time",
    "empty",
    "facts_of",
    "fitted",
    "get",
    "grid_code",
    "grid_form",
    "groups_at_once",
    "kernel_code",
    "laid",
    "load_of",
    "loop_code",
    "loop_of",
    "multiply",
    "part_code",
    "parts_of",
    "ptxas",
    "put",
    "refilled_lanes",
    "refuse",
    "registers",
    "sorted_lanes",
    "spans_of",
    "started",
    "step_time",
    "time_of_blocks",
    "time_of_decays",
    "units_code",
    "weighed_by",
]

HOMES = {
    "load_of": "loops.beside",
    "parts_of": "loops.parts",
    "part_code": "loops.parts",
    "LoopForm": "loops.loop",
    "CudaPrecision": "options",
    "CudaOptions": "options",
    "chunk_code": "chunked.loop",
    "chunk_choices": "chunked.costs",
    "ChunkWriter": "chunked.loop",
    "ChunkForm": "chunked.form",
    "DecayForm": "chunked.decay_form",
    "TrainedChunks": "chunked.sizes",
    "DecayWriter": "chunked.decays",
    "decay_code": "chunked.decays",
    "decay_form": "chunked.decay_form",
    "decay_time": "chunked.decay_costs",
    "time_of_decays": "chunked.decay_costs",
    "assembled": "assembler",
    "ptxas": "assembler",
    "LoopLoad": "loops.beside",
    "PartPlace": "loops.beside",
    "StreamCosts": "loops.beside",
    "as_wavefronts": "loops.beside",
    "at_once": "loops.beside",
    "weighed_by": "loops.beside",
    "LOOPS": "loops.kept",
    "ChosenLoop": "loops.kept",
    "loop_of": "loops.kept",
    "code_of": "loops.choice",
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
    "CudaDevice": "driver.gpu",
    "cuda_device": "driver.gpu",
    "EmulatedDevice": "emulation.emulator",
    "COSTS": "engine",
    "CudaEngine": "engine",
    "grid_code": "grid.loop",
    "grid_form": "grid.sizes",
    "BoundPlan": "kernel",
    "CudaKernel": "kernel",
    "PlanRun": "kernel",
    "LanePace": "loops.lanes",
    "LaneTable": "loops.lanes",
    "refilled_lanes": "loops.lanes",
    "sorted_lanes": "loops.lanes",
    "CudaLibrary": "driver.library",
    "started": "driver.library",
    "loop_code": "loops.loop",
    "CudaMemory": "arrays.memory",
    "DevicePositions": "arrays.positions",
    "ProductForm": "arrays.product_form",
    "WAYS": "arrays.products",
    "contracted": "arrays.products",
    "multiply": "arrays.products",
    "RECORDED": "recording.recorded",
    "arranged": "recording.work",
    "spans_of": "recording.work",
    "LaidLoop": "loops.refill",
    "laid": "loops.refill",
    "Fork": "streams",
    "TensorChoice": "tensor.choice",
    "chosen": "tensor.choice",
    "refuse": "tensor.choice",
    "H100": "tensor.facts",
    "ExchangeCost": "tensor.facts",
    "PlainCost": "tensor.facts",
    "TensorFacts": "tensor.facts",
    "batch_time": "tensor.costs",
    "facts_of": "tensor.facts",
    "groups_at_once": "tensor.costs",
    "step_time": "tensor.costs",
    "fitted": "tensor.registers",
    "registers": "tensor.registers",
    "TensorSchedule": "tensor.shape",
    "TensorShape": "tensor.shape",
    "TensorStep": "tensor.step",
    "time_of_blocks": "loops.others",
    "UnitForm": "loops.unit_form",
    "units_code": "loops.units",
    "KernelWriter": "writer",
    "kernel_code": "written",
}


def __getattr__(name: str) -> Any:
    """Imports a public name of this package, a key of `HOMES`, from its module when it is first used; raises
    `AttributeError` for other names.
    """
    return imported_late(__name__, name, HOMES.get(name))
