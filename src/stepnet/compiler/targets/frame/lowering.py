"""From a step of a model to a frame program, in the dtypes of the model or in integers."""

from stepnet.compiler.targets.frame.integer_lowering import in_integers
from stepnet.compiler.targets.frame.node_lowering import in_own_dtypes
from stepnet.compiler.targets.frame.program import FrameProgram
from stepnet.compiler.targets.frame.step import ModelStep


def lowered_step(step: ModelStep) -> FrameProgram:
    """Lowers a step of a model to a frame program: to one in integers if there are ranges for their scales.
    Raises `RefusedError` for an operation without a form here, naming it and saying what to do.
    """
    return in_own_dtypes(step) if step.ranges is None else in_integers(step, step.ranges)
