"""The results of a step for given operands, by the interpreter in float64."""

import numpy as np

from bench.gpu.inputs import Inputs
from bench.gpu.shape import Step
from stepnet.compiler.net.interpret import LevelSizes, interpret

Array = np.ndarray


def interpreted(step: Step, inputs: Inputs) -> tuple[list[Array], list[Array]]:
    """Returns the outputs [all steps, width] and the last memories [sequences, width], in float64."""
    outputs = [np.full((len(inputs.sequences[0]), step.width), np.nan) for _ in step.outputs]
    last = [memory.astype("f8") for memory in inputs.memories]
    constants = [constant.astype("f8") for constant in inputs.constants]
    firsts = np.cumsum(inputs.lengths) - inputs.lengths
    for row, (first, length) in enumerate(zip(firsts, inputs.lengths, strict=True)):
        memories = [memory[row : row + 1] for memory in last]
        for t in range(first, first + length):
            values = [sequence[t : t + 1].astype("f8") for sequence in inputs.sequences]
            results = interpret(step.body, [*values, *memories, *constants], LevelSizes(1))
            for output, result in zip(outputs, results, strict=False):
                output[t] = result[0]
            memories = results[len(outputs) :]
        for memory, now in zip(last, memories, strict=True):
            memory[row] = now[0]
    return outputs, last
