"""A frame in integers as sections of an explanation: its arrays with their scales, and what each loop gives.

x          int8[4]     a step of 0.0262, up to 3.32
memory_h   int16[8]    a step of 2^-14, up to 2
...
int32[24]  @ gru.W, int8 with a scale for each column: 0.0021 to 0.0094
int16[8]   a step of 2^-14, up to 2: add, sigmoid, multiply
"""

import re
from math import log2

import numpy as np

from stepnet.compiler.targets.frame.product_loops import ProductLoop, SparseProductLoop
from stepnet.compiler.targets.frame.program import FrameBuffer, FrameLoop, FrameProgram
from stepnet.compiler.targets.frame.step import ModelStep
from stepnet.explain.document import DocumentTable, TitledSection

WEIGHTS = re.compile(r"@ ([^\s,\[]+)(?:\[:, (\d+):(\d+)\])?")
"""The text of a product: the name of its matrix, and the columns if it is a part of a sum."""


def frame_sections(program: FrameProgram, step: ModelStep) -> list[TitledSection]:
    """Returns the sections of a frame in integers: arrays, and loops in order. step: the model's."""
    ends = [each for kind in ("input", "memory", "output") for each in program.of(kind)]
    arrays = [(each.kind, each.title or each.name, shape(each), scale_text(each)) for each in ends]
    loops = [row for loop in program.loops for row in loop_rows(program, step, loop)]
    title = "integers, each times a step; what is larger saturates"
    return [
        TitledSection(title, (DocumentTable(tuple(arrays)),)),
        TitledSection("one frame", (DocumentTable(tuple(loops), wraps=True),)),
    ]


def shape(buffer: FrameBuffer) -> str:
    """Returns the dtype and the size of an array as text."""
    return f"{buffer.dtype}[{buffer.size}]"


def scale_text(buffer: FrameBuffer) -> str:
    """Returns the scale of an integer array and its largest number as text; "" if it has no scale."""
    if buffer.scale is None:
        return ""
    digits, most = log2(buffer.scale), float(np.iinfo(buffer.dtype).max) * (buffer.scale or 1)
    return f"step {f'2^{digits:.0f}' if digits.is_integer() else f'{buffer.scale:.3g}'}, up to {most:.3g}"


def loop_rows(program: FrameProgram, step: ModelStep, loop: FrameLoop) -> list[tuple[str, ...]]:
    """Returns the rows of a loop: for each dtype and scale that it writes these, and what it computes."""
    if isinstance(loop, ProductLoop | SparseProductLoop):
        own = loop.product if isinstance(loop, SparseProductLoop) else loop
        result = program.by_name[own.result.buffer]
        return [(shape(result), "", f"{loop.about}, {weights_text(program, step, own)}")]
    written = [program.by_name[view.buffer] for view, _, is_written in loop.views if is_written]
    facts = list(dict.fromkeys((shape(each), scale_text(each)) for each in written))
    return [(*fact, "" if place else loop.about or "copies") for place, fact in enumerate(facts)]


def weights_text(program: FrameProgram, step: ModelStep, loop: ProductLoop) -> str:
    """Returns the dtype of the weights of a product, and their scales if the matrix is a parameter."""
    dtype, found = program.by_name[loop.weights].dtype, WEIGHTS.match(loop.about)
    named = {step.net.nodes[number].name: array for number, array in step.constants.items()}
    matrix = named.get(found[1]) if found is not None else None
    if found is None or matrix is None or matrix.shape[-1] < loop.outputs:
        return dtype
    first, last = (int(found[2]), int(found[3])) if found[2] else (0, loop.outputs)
    scales = np.abs(matrix[:, first:last]).max(0, initial=0) / np.iinfo(dtype).max
    return f"{dtype} with a step for each column: {scales.min():.3g} to {scales.max():.3g}"
