"""The functions of a header, as LLVM code: what C programs and browsers call.

context | mark of the model | memories | arena of a frame |

They are those of the generated C (`c99.py`), with the same codes and the same bytes of saved states.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I8, I32, POINTER
from stepnet.compiler.targets.frame.c99 import STATUS, CProgram
from stepnet.compiler.targets.frame.machine.instructions import FrameCode
from stepnet.compiler.targets.frame.machine.platforms import DevicePlatform
from stepnet.compiler.targets.frame.sizes import UNKNOWN, CodeSizes
from stepnet.compiler.targets.frame.weight_layouts import packed_constants
from stepnet.compiler.values.records import dataclass

MARK_BYTES = 8
"""The bytes of a context ahead of the memories: the mark, and what aligns them."""
OFFSET_BASIS, PRIME = 2166136261, 16777619
"""The constants of FNV-1a, the checksum of saved states."""
NUMBERS = {name: ir.Constant(I32, number) for number, name in enumerate(STATUS)}

Begin = Callable[[ir.Function], FrameCode]


@dataclass(frozen=True)
class MachineProgram(CProgram):
    """A frame program with a name in C whose functions are machine code. platform: the one that it is for.
    measured: the sizes of its code, once they are known.
    """

    platform: DevicePlatform
    measured: CodeSizes = UNKNOWN

    @cached_property
    def code(self) -> CodeSizes:
        """The sizes of the machine code."""
        return self.measured

    @property
    def kind(self) -> str:
        """The kind of the files, for the header's comment."""
        return f"Machine code for {self.platform.about}."

    @property
    def arena_offset(self) -> int:
        """Where the arena begins in a context."""
        return MARK_BYTES + rounded(self.program.state_bytes)

    @property
    def ram_bytes(self) -> int:
        """The bytes of a context."""
        return self.arena_offset + rounded(self.program.arena_bytes)

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants, each aligned."""
        return len(packed_constants(self.program, self.platform.layout)[1])

    def context_fields(self) -> list[str]:
        """Returns the field of a context, which machine code divides."""
        return [f"uint64_t words[{self.ram_bytes // 8}]"]


def rounded(size: int) -> int:
    """Rounds a number of bytes up to a multiple of 8."""
    return -(-size // 8) * 8


class InterfaceCode:
    """Writes the public functions of a program into a module.

    module: it has the function that runs a frame, NAME_frame, and the constants, NAME_weights. begin: makes
    the builder of a function. places: the places of the constants.
    """

    def __init__(
        self,
        module: ir.Module,
        declared: MachineProgram,
        begin: Begin,
        places: dict[str, int],
        index: ir.IntType,
    ) -> None:
        self.module, self.declared, self.begin = module, declared, begin
        self.places, self.index = places, index
        self.mark = ir.Constant(I32, declared.mark)

    def write(self) -> None:
        """Writes all functions."""
        self.reset()
        self.step()
        self.block()
        self.save()
        self.restore()

    def function(
        self, what: str, types: Sequence[ir.Type], checked: bool = True
    ) -> tuple[FrameCode, ir.Function]:
        """Begins a public function, which first checks its pointers. checked: whether its first argument is a
        context that was reset before.
        """
        type_ = ir.FunctionType(I32, types)
        function = ir.Function(self.module, type_, f"{self.declared.name}_{what}")
        code = self.begin(function)
        for argument in function.args:
            if argument.type == POINTER:
                is_null = code.compare("u", "==", argument, ir.Constant(POINTER, None))
                code.return_when(is_null, NUMBERS["NULL"])
        if checked:
            mark = code.read(I32, function.args[0], 4)
            code.return_when(code.compare("u", "!=", mark, self.mark), NUMBERS["NOT_RESET"])
        return code, function

    def reset(self) -> None:
        """Writes the function that begins a sequence."""
        code, function = self.function("reset", [POINTER], checked=False)
        weights = self.module.globals[f"{self.declared.name}_weights"]
        for memory in self.declared.memories:
            begin = self.declared.program.begins.get(memory.name)
            source = None if begin is None else code.at(weights, self.places[begin])
            copy(code, code.at(function.args[0], MARK_BYTES + memory.offset), source, memory.bytes)
        code.write(self.mark, function.args[0], 4)
        code.ret(NUMBERS["OK"])

    def step(self) -> None:
        """Writes the function that runs one frame."""
        code, function = self.function("step", [POINTER] * (1 + len(self.declared.ends)))
        code.ret(code.called(self.frame, I32, function.args))

    @property
    def frame(self) -> ir.Function:
        """The function that runs a frame, without checks."""
        return self.module.globals[f"{self.declared.name}_frame"]

    def block(self) -> None:
        """Writes the function that runs frames one after the other."""
        code, function = self.function("block", [POINTER, self.index, *[POINTER] * len(self.declared.ends)])
        context, frames, *arrays = function.args
        with code.loop(code.number(0), frames) as at:
            places = [
                code.at(array, code.mul(at, code.number(each.bytes)))
                for each, array in zip(self.declared.ends, arrays, strict=True)
            ]
            status = code.called(self.frame, I32, [context, *places])
            code.return_when(code.compare("u", "!=", status, NUMBERS["OK"]), status)
        code.ret(NUMBERS["OK"])

    def save(self) -> None:
        """Writes the function that saves the memories: the mark, their bytes, and a checksum."""
        code, function = self.function("save", [POINTER, POINTER])
        context, data = function.args
        code.write(self.mark, data, 1)
        for at, offset, size in self.saved_places():
            copy(code, code.at(data, at), code.at(context, offset), size)
        end = self.declared.saved_bytes - 4
        code.write(checksum(code, data, end), code.at(data, end), 1)
        code.ret(NUMBERS["OK"])

    def restore(self) -> None:
        """Writes the function that reads the memories, if they are whole and of this model."""
        code, function = self.function("restore", [POINTER, POINTER], checked=False)
        context, data = function.args
        end = self.declared.saved_bytes - 4
        given = code.read(I32, data, 1)
        code.return_when(code.compare("u", "!=", given, self.mark), NUMBERS["OTHER_MODEL"])
        wrong = code.compare("u", "!=", code.read(I32, code.at(data, end), 1), checksum(code, data, end))
        code.return_when(wrong, NUMBERS["DAMAGED"])
        for at, offset, size in self.saved_places():
            copy(code, code.at(context, offset), code.at(data, at), size)
        code.write(self.mark, context, 4)
        code.ret(NUMBERS["OK"])

    def saved_places(self) -> list[tuple[int, int, int]]:
        """Lists the place of each memory in saved bytes and in the context, and its size."""
        found, at = list[tuple[int, int, int]](), 4
        for memory in self.declared.memories:
            found.append((at, MARK_BYTES + memory.offset, memory.bytes))
            at += memory.bytes
        return found


def copy(code: FrameCode, target: ir.Value, source: ir.Value | None, size: int) -> None:
    """Writes a copy of bytes; of zeros without a source."""

    def byte(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        """Writes the copy of one byte."""
        value = ir.Constant(I8, 0) if source is None else code.read(I8, code.at(source, index), 1)
        code.write(value, code.at(target, index), 1)
        return []

    code.carry(0, size, [], byte)


def checksum(code: FrameCode, data: ir.Value, count: int) -> ir.Value:
    """Writes the checksum of bytes (FNV-1a)."""

    def byte(index: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        """Writes the step of one byte."""
        value = code.zext(code.read(I8, code.at(data, index), 1), I32)
        return [code.mul(code.xor(values[0], value), ir.Constant(I32, PRIME))]

    return code.carry(0, count, [ir.Constant(I32, OFFSET_BASIS)], byte)[0]
