"""Models as programs of one frame, for machines without heap, threads or a C library.

model --step--> ModelStep --lowering--> FrameProgram --c99--> source code
--numpy_run--> the same bits in Python
"""

from typing import TYPE_CHECKING

from stepnet.compiler.targets.frame.c99 import STATUS
from stepnet.compiler.targets.frame.machine.platforms import DEVICES
from stepnet.compiler.targets.frame.numpy_run import FrameRun
from stepnet.compiler.targets.frame.product_loops import SparseProductLoop
from stepnet.compiler.targets.frame.program import (
    FrameBuffer,
    FrameLoop,
    FrameProgram,
    GatherLoop,
    Instruction,
    PointwiseLoop,
    ProductLoop,
    ReductionLoop,
    Routine,
    StridedView,
    packed_weights,
)
from stepnet.compiler.targets.frame.sizes import FrameSizes
from stepnet.compiler.targets.frame.sparse import sparse_matrix
from stepnet.compiler.targets.frame.step import ModelStep, StepEnd, StepMemory
from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.targets.frame.built import BuiltSource, built_source
    from stepnet.compiler.targets.frame.devices import built_device
    from stepnet.compiler.targets.frame.fixed import LARGEST, bounded_fraction, factor, shifted, stored
    from stepnet.compiler.targets.frame.fixed_functions import DIGITS, MOST, fixed_routine
    from stepnet.compiler.targets.frame.float_functions import fmod_routine, routine_of
    from stepnet.compiler.targets.frame.integer_operations import ELEMENTWISE
    from stepnet.compiler.targets.frame.integer_products import column_scales
    from stepnet.compiler.targets.frame.lowering import lowered_step
    from stepnet.compiler.targets.frame.over_sequences import codes_of
    from stepnet.compiler.targets.frame.recorder import INTRINSICS, FrameRegister, Recorder

__all__ = [
    "DEVICES",
    "DIGITS",
    "ELEMENTWISE",
    "INTRINSICS",
    "LARGEST",
    "MOST",
    "STATUS",
    "BuiltSource",
    "FrameBuffer",
    "FrameLoop",
    "FrameProgram",
    "FrameRegister",
    "FrameRun",
    "FrameSizes",
    "GatherLoop",
    "Instruction",
    "ModelStep",
    "PointwiseLoop",
    "ProductLoop",
    "Recorder",
    "ReductionLoop",
    "Routine",
    "SparseProductLoop",
    "StepEnd",
    "StepMemory",
    "StridedView",
    "bounded_fraction",
    "built_device",
    "built_source",
    "codes_of",
    "column_scales",
    "factor",
    "fixed_routine",
    "fmod_routine",
    "lowered_step",
    "packed_weights",
    "routine_of",
    "shifted",
    "sparse_matrix",
    "stored",
]

__getattr__ = late_names(
    __name__,
    ("built", "BuiltSource built_source"),
    ("devices", "built_device"),
    ("fixed", "LARGEST bounded_fraction factor shifted stored"),
    ("fixed_functions", "DIGITS MOST fixed_routine"),
    ("float_functions", "fmod_routine routine_of"),
    ("integer_operations", "ELEMENTWISE"),
    ("integer_products", "column_scales"),
    ("lowering", "lowered_step"),
    ("over_sequences", "codes_of"),
    ("recorder", "INTRINSICS FrameRegister Recorder"),
)
