"""The sizes of a frame program: RAM, flash and multiply-adds, as a whole and for each part."""

from collections.abc import Sequence
from typing import NamedTuple

from stepnet.compiler.targets.frame.program import FrameBuffer, FrameLoop, FrameProgram
from stepnet.compiler.values.records import dataclass
from stepnet.errors import RefusedError

LISTED = 5
"""The number of the largest arrays that a message lists."""


@dataclass(frozen=True)
class PartSizes:
    """Sizes of one loop of a frame. part: a text that says what it computes. multiply_adds: the multiply-adds
    of a frame. constant_bytes: the bytes of the constants that it reads.
    """

    part: str
    multiply_adds: int
    constant_bytes: int

    @classmethod
    def of(cls, program: FrameProgram, loop: FrameLoop) -> "PartSizes":
        """Returns the sizes of a loop of a program."""
        used = {view.buffer for view, _, _ in loop.views if program.by_name[view.buffer].kind == "constant"}
        size = sum(program.by_name[name].bytes for name in used)
        return cls(loop.about or "copies", loop.multiplies, size)


class CodeSizes(NamedTuple):
    """Sizes of machine code; None where they depend on what makes or runs the code.

    code_bytes: the bytes in flash besides the constants. stack_bytes: the most that a call takes of the
    stack, without functions of the compiler's library.
    """

    code_bytes: int | None = None
    stack_bytes: int | None = None


UNKNOWN = CodeSizes()
"""The sizes of code that another compiler makes."""


@dataclass(frozen=True)
class FrameSizes:
    """Sizes of a frame program.

    ram_bytes: the bytes of a context: the memories, the arena and a few more. memory_bytes, arena_bytes: the
    bytes of the memories, and of the room for a frame. constant_bytes: the bytes of weights and tables in
    flash, besides the code. saved_bytes: the bytes of a saved state. multiply_adds: the multiply-adds of a
    frame. parts: the sizes of each part, in order. code_bytes, stack_bytes: as of `CodeSizes`.
    """

    ram_bytes: int
    memory_bytes: int
    arena_bytes: int
    constant_bytes: int
    saved_bytes: int
    multiply_adds: int
    parts: tuple[PartSizes, ...]
    code_bytes: int | None = None
    stack_bytes: int | None = None

    @classmethod
    def of(
        cls,
        program: FrameProgram,
        ram_bytes: int,
        constant_bytes: int,
        saved_bytes: int,
        code: CodeSizes = UNKNOWN,
    ) -> "FrameSizes":
        """Returns the sizes of a program. ram_bytes, constant_bytes, saved_bytes: the bytes of a context, of
        the constants as they lie for a processor, and of a saved state. code: the sizes of its machine code.
        """
        return cls(
            ram_bytes,
            sum(buffer.bytes for buffer in program.of("memory")),
            program.arena_bytes,
            constant_bytes,
            saved_bytes,
            program.multiplies,
            tuple(PartSizes.of(program, loop) for loop in program.loops),
            *code,
        )


def check_fits(program: FrameProgram, sizes: FrameSizes, ram: int | None, flash: int | None) -> None:
    """Raises `RefusedError` for a program that takes more bytes than a machine has, with the bytes that each
    part takes.

    ram, flash: the bytes of the machine; None for enough.
    """
    if ram is not None and sizes.ram_bytes > ram:
        raise RefusedError(
            f"the model needs {sizes.ram_bytes} bytes of RAM, and there are {ram}: "
            f"{sizes.memory_bytes} for memories ({largest(program.of('memory'))}), and "
            f"{sizes.arena_bytes} for the arrays of a frame ({largest(program.of('scratch'))}), which share "
            "memory: make layers smaller, or windows of convolutions shorter"
        )
    code = sizes.code_bytes
    if flash is not None and sizes.constant_bytes + (code or 0) > flash:
        what = (
            "for constants alone"
            if code is None
            else f"({sizes.constant_bytes} of constants, {code} of code)"
        )
        raise RefusedError(
            f"the model needs {sizes.constant_bytes + (code or 0)} bytes of flash {what}, and there are "
            f"{flash}: {largest(program.of('constant'))}: make layers smaller, or quantize"
        )


def largest(buffers: Sequence[FrameBuffer]) -> str:
    """Returns the largest arrays with their bytes as text, for messages."""
    ordered = sorted(buffers, key=lambda buffer: -buffer.bytes)
    texts = [f"{each.title or each.name} {each.bytes}" for each in ordered[:LISTED]]
    rest = sum(each.bytes for each in ordered[LISTED:])
    return ", ".join([*texts, *([f"others {rest}"] if rest else [])]) or "none"
