"""A builder for code that works on 64-bit words in memory: tables of integers, and pointers."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code


class WordCode(Code):
    """LLVM builder with loads and stores of 64-bit words at byte offsets, and comparisons of integers."""

    def less(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Writes the comparison a < b of signed integers."""
        return self.icmp_signed("<", a, b)

    def word(self, pointer: ir.Value, offset: int = 0) -> ir.Value:
        """Writes a load of the 64-bit integer at a byte offset from a pointer."""
        return self.read(I64, self.at(pointer, offset), 8)

    def set_word(self, pointer: ir.Value, offset: int, value: "ir.Value | int") -> None:
        """Writes a store of a 64-bit integer, or of a pointer's address, at a byte offset from a pointer."""
        number = self.number(value) if isinstance(value, int) else value
        self.write(
            self.ptrtoint(number, I64) if number.type == POINTER else number, self.at(pointer, offset), 8
        )

    def pointer_at(self, pointer: ir.Value, offset: int = 0) -> ir.Value:
        """Writes a load of the pointer stored at a byte offset from a pointer."""
        return self.read(POINTER, self.at(pointer, offset), 8)

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Writes the maximum of two signed integers."""
        return self.select(self.less(a, b), b, a)


def internal(
    module: ir.Module, processor: Processor, name: str, result: ir.Type, arguments: list[ir.Type]
) -> tuple[ir.Function, WordCode]:
    """Adds a function that only the module calls; returns it, and a builder that writes code at its start.
    name, result, arguments: the name of the function, and the types of its result and its arguments.
    """
    function = ir.Function(module, ir.FunctionType(result, arguments), name)
    function.linkage = "internal"
    return function, WordCode(function.append_basic_block("entry"), processor)
