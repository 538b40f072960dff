"""A builder for the functions of a library: calls of the C library, checks, and error codes."""

from collections.abc import Sequence

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32, POINTER
from stepnet.compiler.targets.cpu.writing.word_code import WordCode
from stepnet.compiler.targets.library import CODES

SYSTEM = ("aligned_alloc", "fclose", "ferror", "fopen", "fread", "free", "memcpy", "memset", "qsort")
"""The functions of the system's C library that a library calls."""


class LibraryCode(WordCode):
    """Writes LLVM instructions for a C library's functions. Each method appends instructions, and returns the
    value that they compute at run time.
    """

    def system(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """Writes a call of a function of the C library, one of `SYSTEM`. result: the type that it returns."""
        assert name in SYSTEM
        return self.function_call(name, result, arguments)

    def fail_when(self, condition: ir.Value, name: str) -> None:
        """Writes code that returns the error code called `name`, one of `ERRORS`, if a condition holds."""
        self.return_when(condition, ir.Constant(I32, CODES[name]))

    def is_null(self, pointer: ir.Value) -> ir.Value:
        """Writes code that tests whether a pointer is NULL; returns the result."""
        return self.icmp_unsigned("==", pointer, ir.Constant(POINTER, None))

    def rounded(self, size: ir.Value, unit: int) -> ir.Value:
        """Writes code that rounds a size up to a multiple of `unit`, a power of two; returns the result."""
        return self.and_(self.add(size, self.number(unit - 1)), self.number(-unit))

    def text(self, value: str) -> ir.Value:
        """Adds a zero-terminated text to the module; returns a pointer to it."""
        return self.data(value.encode() + b"\0")

    def data(self, value: bytes) -> ir.Value:
        """Adds bytes to the module, aligned to a word of 64 bits; returns a pointer to them."""
        constant = ir.Constant(ir.ArrayType(ir.IntType(8), len(value)), bytearray(value))
        variable = ir.GlobalVariable(self.module, constant.type, self.module.get_unique_name("data"))
        variable.linkage, variable.global_constant, variable.initializer = "internal", True, constant
        variable.align = 8
        return self.gep(variable, [self.number(0), self.number(0)], source_etype=constant.type)


def function(
    module: ir.Module,
    processor: object,
    name: str,
    result: ir.Type,
    arguments: Sequence[ir.Type],
    public: bool,
) -> tuple[ir.Function, LibraryCode]:
    """Adds a function called `name` to an LLVM module; returns it, and a builder that writes at its start.

    processor: the processor that runs the code. result, arguments: the types of its result and arguments.
    public: whether other modules can call it.
    """
    ir_function = ir.Function(module, ir.FunctionType(result, arguments), name)
    if not public:
        ir_function.linkage = "internal"
    return ir_function, LibraryCode(ir_function.append_basic_block("entry"), processor)  # type: ignore[arg-type]
