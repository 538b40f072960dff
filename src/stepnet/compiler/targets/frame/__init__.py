"""Models as programs of one frame, for machines without heap, threads or a C library.

model --step--> ModelStep --lowering--> FrameProgram --c99--> source code
--numpy_run--> the same bits in Python
"""

from typing import TYPE_CHECKING

from stepnet.compiler.targets.frame.c99 import STATUS as STATUS
from stepnet.compiler.targets.frame.machine.platforms import DEVICES as DEVICES
from stepnet.compiler.targets.frame.numpy_run import FrameRun as FrameRun
from stepnet.compiler.targets.frame.product_loops import SparseProductLoop as SparseProductLoop
from stepnet.compiler.targets.frame.program import FrameBuffer as FrameBuffer
from stepnet.compiler.targets.frame.program import FrameLoop as FrameLoop
from stepnet.compiler.targets.frame.program import FrameProgram as FrameProgram
from stepnet.compiler.targets.frame.program import GatherLoop as GatherLoop
from stepnet.compiler.targets.frame.program import Instruction as Instruction
from stepnet.compiler.targets.frame.program import PointwiseLoop as PointwiseLoop
from stepnet.compiler.targets.frame.program import ProductLoop as ProductLoop
from stepnet.compiler.targets.frame.program import ReductionLoop as ReductionLoop
from stepnet.compiler.targets.frame.program import Routine as Routine
from stepnet.compiler.targets.frame.program import StridedView as StridedView
from stepnet.compiler.targets.frame.program import packed_weights as packed_weights
from stepnet.compiler.targets.frame.sizes import FrameSizes as FrameSizes
from stepnet.compiler.targets.frame.sparse import sparse_matrix as sparse_matrix
from stepnet.compiler.targets.frame.step import ModelStep as ModelStep
from stepnet.compiler.targets.frame.step import StepEnd as StepEnd
from stepnet.compiler.targets.frame.step import StepMemory as StepMemory
from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.targets.frame.built import BuiltSource as BuiltSource
    from stepnet.compiler.targets.frame.built import built_source as built_source
    from stepnet.compiler.targets.frame.devices import built_device as built_device
    from stepnet.compiler.targets.frame.fixed import LARGEST as LARGEST
    from stepnet.compiler.targets.frame.fixed import bounded_fraction as bounded_fraction
    from stepnet.compiler.targets.frame.fixed import factor as factor
    from stepnet.compiler.targets.frame.fixed import shifted as shifted
    from stepnet.compiler.targets.frame.fixed import stored as stored
    from stepnet.compiler.targets.frame.fixed_functions import DIGITS as DIGITS
    from stepnet.compiler.targets.frame.fixed_functions import MOST as MOST
    from stepnet.compiler.targets.frame.fixed_functions import fixed_routine as fixed_routine
    from stepnet.compiler.targets.frame.float_functions import fmod_routine as fmod_routine
    from stepnet.compiler.targets.frame.float_functions import routine_of as routine_of
    from stepnet.compiler.targets.frame.integer_operations import ELEMENTWISE as ELEMENTWISE
    from stepnet.compiler.targets.frame.integer_products import column_scales as column_scales
    from stepnet.compiler.targets.frame.lowering import lowered_step as lowered_step
    from stepnet.compiler.targets.frame.over_sequences import codes_of as codes_of
    from stepnet.compiler.targets.frame.recorder import INTRINSICS as INTRINSICS
    from stepnet.compiler.targets.frame.recorder import FrameRegister as FrameRegister
    from stepnet.compiler.targets.frame.recorder import Recorder as Recorder

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
