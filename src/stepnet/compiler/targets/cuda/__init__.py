"""The target `cuda`: plans as kernels for NVIDIA's GPUs, which also run in an emulation on the CPU.

Names are imported when they are first used: whether there is a driver is known without LLVM,
and LLVM's version is checked before the modules that write kernels are imported.
"""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
    from stepnet.compiler.targets.cuda.arrays.positions import DevicePositions
    from stepnet.compiler.targets.cuda.arrays.product_form import ProductForm
    from stepnet.compiler.targets.cuda.arrays.products import WAYS, contracted, multiply
    from stepnet.compiler.targets.cuda.assembler import assembled, ptxas
    from stepnet.compiler.targets.cuda.chunked.costs import chunk_choices
    from stepnet.compiler.targets.cuda.chunked.decay_costs import decay_time, parts_of_decays, time_of_decays
    from stepnet.compiler.targets.cuda.chunked.decay_form import DecayForm, decay_form
    from stepnet.compiler.targets.cuda.chunked.decays import DecayWriter, decay_code
    from stepnet.compiler.targets.cuda.chunked.decays_of_keys import KeyDecayWriter
    from stepnet.compiler.targets.cuda.chunked.form import ChunkForm
    from stepnet.compiler.targets.cuda.chunked.loop import ChunkWriter, chunk_code
    from stepnet.compiler.targets.cuda.chunked.sizes import TrainedChunks
    from stepnet.compiler.targets.cuda.codes import LANE_WORDS, LOOP_WORDS, LoopCode
    from stepnet.compiler.targets.cuda.device import (
        Device,
        DeviceArray,
        DeviceCode,
        DeviceFacts,
        DeviceWork,
        NotResidentError,
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
    "LOOP_WORDS",
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
    "KeyDecayWriter",
    "LaidLoop",
    "LanePace",
    "LaneTable",
    "LoopCode",
    "LoopForm",
    "LoopLoad",
    "NotResidentError",
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
    "parts_of_decays",
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

__getattr__ = late_names(
    __name__,
    ("arrays.memory", "CudaMemory"),
    ("arrays.positions", "DevicePositions"),
    ("arrays.product_form", "ProductForm"),
    ("arrays.products", "WAYS contracted multiply"),
    ("assembler", "assembled ptxas"),
    ("chunked.costs", "chunk_choices"),
    ("chunked.decay_costs", "decay_time parts_of_decays time_of_decays"),
    ("chunked.decay_form", "DecayForm decay_form"),
    ("chunked.decays", "DecayWriter decay_code"),
    ("chunked.decays_of_keys", "KeyDecayWriter"),
    ("chunked.form", "ChunkForm"),
    ("chunked.loop", "ChunkWriter chunk_code"),
    ("chunked.sizes", "TrainedChunks"),
    ("codes", "LANE_WORDS LOOP_WORDS LoopCode"),
    ("device", "Device DeviceArray DeviceCode DeviceFacts DeviceWork NotResidentError empty get put"),
    ("driver.gpu", "CudaDevice cuda_device"),
    ("driver.library", "CudaLibrary started"),
    ("emulation.emulator", "EmulatedDevice"),
    ("engine", "COSTS CudaEngine"),
    ("grid.loop", "grid_code"),
    ("grid.sizes", "grid_form"),
    ("kernel", "BoundPlan CudaKernel PlanRun"),
    ("loops.beside", "LoopLoad PartPlace StreamCosts as_wavefronts at_once load_of weighed_by"),
    ("loops.choice", "code_of"),
    ("loops.kept", "LOOPS ChosenLoop loop_of"),
    ("loops.lanes", "LanePace LaneTable refilled_lanes sorted_lanes"),
    ("loops.loop", "LoopForm loop_code"),
    ("loops.others", "time_of_blocks"),
    ("loops.parts", "part_code parts_of"),
    ("loops.refill", "LaidLoop laid"),
    ("loops.unit_form", "UnitForm"),
    ("loops.units", "units_code"),
    ("options", "CudaOptions CudaPrecision"),
    ("recording.recorded", "RECORDED"),
    ("recording.work", "arranged spans_of"),
    ("streams", "Fork"),
    ("tensor.choice", "TensorChoice chosen refuse"),
    ("tensor.costs", "batch_time groups_at_once step_time"),
    ("tensor.facts", "H100 ExchangeCost PlainCost TensorFacts facts_of"),
    ("tensor.registers", "fitted registers"),
    ("tensor.shape", "TensorSchedule TensorShape"),
    ("tensor.step", "TensorStep"),
    ("writer", "KernelWriter"),
    ("written", "kernel_code"),
)
