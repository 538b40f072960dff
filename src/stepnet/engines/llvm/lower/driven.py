"""What the machine code of a whole call is written from: the driver's program."""

from dataclasses import dataclass

from stepnet.engines.llvm.lower.loops import Loop, Phase
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
    statics: tuple[tuple[Source, Field], ...]
    memories: tuple[tuple[Source, int, Field], ...]
    outputs: tuple[tuple[int, Field], ...]
    kept: tuple[tuple[int, Field], ...]
    outside: tuple[Outside, ...]
    index: Field | None
    axes: tuple[Axis, ...] = ()
    words: tuple[Words, ...] = ()
