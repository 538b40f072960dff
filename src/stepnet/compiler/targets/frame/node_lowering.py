"""From the net of one step of a model to a frame program.

    net of a step --forms--> drafts of loops --commit--> memories and outputs --placed--> FrameProgram

Each operation of the net has a row in `FORMS`, or is elementwise. Views are only other offsets and strides of
the same array. What follows from parameters alone is computed here, and is a constant of the program.
"""

from collections.abc import Callable

import numpy as np

from stepnet.compiler.net.interpreter import within
from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.frame.forms import (
    broadcast,
    concatenated,
    elementwise,
    gathered,
    kept,
    picked,
    reduced,
    reshaped,
    scanned,
    sliced,
    taken,
    transposed,
)
from stepnet.compiler.targets.frame.places import placed
from stepnet.compiler.targets.frame.products import added, multiplied, sums_of_products
from stepnet.compiler.targets.frame.program import FrameProgram
from stepnet.compiler.targets.frame.step import KEEPING, ModelStep
from stepnet.compiler.targets.frame.step_lowering import StepLowering, check_type, refusal
from stepnet.errors import RefusedError


def in_own_dtypes(step: ModelStep) -> FrameProgram:
    """Lowers a step of a model to a frame program in the dtypes that the model has. Raises `RefusedError` for
    an operation without a form here, naming it and saying what to do.
    """
    return finished(StepLowering(step), lowered)


def finished(lowering: StepLowering, form: Callable[[StepLowering, int, Node], None]) -> FrameProgram:
    """Lowers the nodes that results need; returns the program. form: adds the loops of a node."""
    step = lowering.step
    for number, node in enumerate(step.net.nodes):
        if number in lowering.needed:
            lower(lowering, number, node, form)
    lowering.commit()
    memories = zip((root for root in lowering.ends if root.kind == "memory"), step.memories, strict=True)
    known = ((root, lowering.begin(memory)) for root, memory in memories)
    begins = {root: begin for root, begin in known if begin is not None}
    return placed(lowering.drafts, tuple(lowering.routines.values()), lowering.ends, begins)


def lower(
    lowering: StepLowering, number: int, node: Node, form: Callable[[StepLowering, int, Node], None]
) -> None:
    """Lowers a node: computes it if it is a constant, else adds its loops by `form`."""
    if number in lowering.known or number in lowering.values or number in lowering.several:
        return
    if all(type_.extent == CONST for type_ in node.types):
        with np.errstate(all="ignore"):
            lowering.known[number] = within(node, [lowering.known[operand] for operand in node.inputs])
        return
    check_type(node)
    form(lowering, number, node)


def lowered(lowering: StepLowering, number: int, node: Node) -> None:
    """Adds the loops of a node, in the dtypes that the model has."""
    form = FORMS.get(node.operation)
    if form is None and node.kind != "pointwise":
        raise RefusedError(refusal(node, "compute it outside of the model"))
    (form or elementwise)(lowering, number, node)


FORMS: dict[str, Callable[[StepLowering, int, Node], None]] = {
    **dict.fromkeys(KEEPING, kept),
    "slice": sliced,
    "reshape": reshaped,
    "transpose": transposed,
    "broadcast": broadcast,
    "take": taken,
    "concatenate": concatenated,
    **dict.fromkeys(("sum", "max", "min", "argmax"), reduced),
    **dict.fromkeys(("cumsum", "cumprod"), scanned),
    "add": added,
    "matmul": multiplied,
    "products": sums_of_products,
    "result": picked,
    "gather": gathered,
}
"""The functions that lower operations which are not elementwise. Others have no form for one frame."""
