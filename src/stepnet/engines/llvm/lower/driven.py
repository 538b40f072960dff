"""What the machine code of a whole call is written from: the driver's program."""

from dataclasses import dataclass

from stepnet.engines.llvm.lower.loops import CopyLoop, Loop, Phase
from stepnet.engines.llvm.machine.records import Axis, Field, Outside, Source, Words
from stepnet.net.ir import Net


@dataclass(frozen=True)
class Program:
    """The input of the code generator for a whole call: the loops of each stage, and the arrays of inputs and
    results.

    inputs, outputs and kept are copied to and from the fields of the block. outputs are of every step or the
    last of each sequence, as the call says; kept ones are of every step. outside: the arrays that are not
    copied. axes, words: the inner sequences of rows, and the arrays with their values. memories: for each the
    source of its first value, the word of the array of its last values (-1 for none), and its field.
    relaid: for each that lies fiber by fiber what copies a first value into its field, and a last one out of
    it. statics: for each its source, its field, and what copies it there if that lies fiber by fiber.
    units_are_alone: whether threads that share the units need not wait for each other between steps.
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
    expanded: tuple[tuple[Source, Field], ...]
    statics: tuple[tuple[Source, Field, CopyLoop | None], ...]
    memories: tuple[tuple[Source, int, Field], ...]
    relaid: tuple[tuple[CopyLoop, CopyLoop] | None, ...]
    outputs: tuple[tuple[int, Field], ...]
    kept: tuple[tuple[int, Field], ...]
    outside: tuple[Outside, ...]
    index: Field | None
    units_are_alone: bool
    axes: tuple[Axis, ...] = ()
    words: tuple[Words, ...] = ()
