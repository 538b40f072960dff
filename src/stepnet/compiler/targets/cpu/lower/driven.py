"""The driver's program: the input of the code generator for a whole call."""

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.lower.loops import CopyLoop, Loop, Phase
from stepnet.compiler.targets.cpu.machine.records import Axis, CallArray, Field, InnerArray, RowSource
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class CallLoops:
    """Loops of each stage of a call, and the arrays of its inputs and results: the input of the code
    generator.

    body, outer: the net of a step, and the net that contains the recurrence.
    before, loop, after: the loops of these stages, phase by phase.
    strides: the bytes of a row of each record.
    width: the elements of a vector.
    unroll: the steps per iteration of the loop.
    inputs: the arrays that are gathered into fields of the block.
    expanded: values per sequence that are read at every step outside the loop.
    statics: for each static its source, its field, and the copy into fiber order if it is stored fiber by
        fiber.
    memories: for each memory the source of its initial value, the word of the array of its final values (-1
        for none), and its field.
    relaid: for each memory stored fiber by fiber, the copies into and out of that order; else None.
    outputs: the fields that are scattered to output arrays, of every step or the last of each sequence, as
        the call requires.
    kept: the fields that are scattered at every step.
    arrays_in_place: the arrays that are read or written in place.
    index: the field of the step index; None if it is not read.
    units_are_alone: whether each unit depends only on itself from step to step, so that threads that divide
        the units need no barrier.
    axes: the axes of inner sequences.
    inner_arrays: the arrays with the values of inner sequences.
    """

    body: Net
    outer: Net
    before: list[list[Loop]]
    loop: list[Phase]
    after: list[list[Loop]]
    strides: dict[str, int]
    width: int
    unroll: int
    inputs: tuple[tuple[int, Field], ...]
    expanded: tuple[tuple[RowSource, Field], ...]
    statics: tuple[tuple[RowSource, Field, CopyLoop | None], ...]
    memories: tuple[tuple[RowSource, int, Field], ...]
    relaid: tuple[tuple[CopyLoop, CopyLoop] | None, ...]
    outputs: tuple[tuple[int, Field], ...]
    kept: tuple[tuple[int, Field], ...]
    arrays_in_place: tuple[CallArray, ...]
    index: Field | None
    units_are_alone: bool
    axes: tuple[Axis, ...] = ()
    inner_arrays: tuple[InnerArray, ...] = ()

    @property
    def rows_are_alone(self) -> bool:
        """Tells whether all work is outside the loop over the steps, so that threads can have rows of their
        own of each block of steps (those computed together), and need not wait for one another.
        """
        return not self.loop
