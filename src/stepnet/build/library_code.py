"""A builder for the functions of a library: calls of the C library, checks, and error codes."""

from collections.abc import Sequence

from llvmlite import ir

from stepnet.engines.llvm.writing.code import I32, I64, POINTER, Code

ERRORS = (
    "done",
    "an argument is NULL that must not be",
    "the number of sequences is negative",
    "the offsets do not begin at 0, or one of them is smaller than the one before it",
    "there are more sequences or steps than memory can hold",
    "there is not enough memory",
    "an integer is outside the rows of the parameter that it indexes",
    "the weights are of another model, or were built for another processor",
    "the weights are damaged",
    "the file of weights cannot be read",
    "this processor lacks instructions that the library was built for",
)
"""What the error codes say, by number."""
NAMES = (
    "OK",
    "NULL",
    "NEGATIVE",
    "OFFSETS",
    "TOO_LARGE",
    "MEMORY",
    "INDEX",
    "OTHER_WEIGHTS",
    "DAMAGED_WEIGHTS",
    "FILE",
    "PROCESSOR",
)
"""The names of the codes in the header."""
CODE = {name: number for number, name in enumerate(NAMES)}
SYSTEM = ("aligned_alloc", "fclose", "fopen", "fread", "free", "memcpy", "memset", "qsort")
"""The functions of the system's C library that a library calls."""


class LibraryCode(Code):
    """A builder of a library's own functions."""

    def system(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """A call of one of the functions of the C library."""
        assert name in SYSTEM
        return self.function_call(name, result, arguments)

    def fail_when(self, condition: ir.Value, name: str) -> None:
        """Writes a return of an error if the condition holds."""
        self.return_when(condition, ir.Constant(I32, CODE[name]))

    def is_null(self, pointer: ir.Value) -> ir.Value:
        """Whether a pointer is NULL."""
        return self.icmp_unsigned("==", pointer, ir.Constant(POINTER, None))

    def less(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Whether a number is smaller than another."""
        return self.icmp_signed("<", a, b)

    def word(self, pointer: ir.Value, place: int = 0) -> ir.Value:
        """The 64-bit integer at a byte offset from a pointer."""
        return self.read(I64, self.at(pointer, place), 8)

    def set_word(self, pointer: ir.Value, place: int, value: "ir.Value | int") -> None:
        """Stores a 64-bit integer, or the address of a pointer, at a byte offset from a pointer."""
        number = self.number(value) if isinstance(value, int) else value
        self.write(
            self.ptrtoint(number, I64) if number.type == POINTER else number, self.at(pointer, place), 8
        )

    def pointer_at(self, pointer: ir.Value, place: int = 0) -> ir.Value:
        """The pointer stored at a byte offset from a pointer."""
        return self.read(POINTER, self.at(pointer, place), 8)

    def move(self, target: ir.Value, source: ir.Value, count: "ir.Value | int") -> None:
        """Copies bytes; the ranges must not overlap."""
        number = self.number(count) if isinstance(count, int) else count
        false = ir.Constant(ir.IntType(1), 0)
        self.function_call("llvm.memcpy.p0.p0.i64", ir.VoidType(), [target, source, number, false])

    def clear(self, target: ir.Value, count: "ir.Value | int") -> None:
        """Sets bytes to zero."""
        number = self.number(count) if isinstance(count, int) else count
        zero, false = ir.Constant(ir.IntType(8), 0), ir.Constant(ir.IntType(1), 0)
        self.function_call("llvm.memset.p0.i64", ir.VoidType(), [target, zero, number, false])

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger of two integers."""
        return self.select(self.less(a, b), b, a)

    def rounded(self, size: ir.Value, unit: int) -> ir.Value:
        """A size rounded up to a power of two."""
        return self.and_(self.add(size, self.number(unit - 1)), self.number(-unit))

    def text(self, value: str) -> ir.Value:
        """The pointer to a zero-terminated text."""
        data = bytearray(value.encode() + b"\0")
        constant = ir.Constant(ir.ArrayType(ir.IntType(8), len(data)), data)
        name = self.module.get_unique_name("text")
        variable = ir.GlobalVariable(self.module, constant.type, name)
        variable.linkage, variable.global_constant, variable.initializer = "internal", True, constant
        return self.gep(variable, [self.number(0), self.number(0)], source_etype=constant.type)


def function(
    module: ir.Module, target: object, name: str, result: ir.Type, arguments: Sequence[ir.Type], public: bool
) -> tuple[ir.Function, LibraryCode]:
    """A new function of a module, and what writes its code."""
    made = ir.Function(module, ir.FunctionType(result, arguments), name)
    if not public:
        made.linkage = "internal"
    return made, LibraryCode(made.append_basic_block("entry"), target)  # type: ignore[arg-type]
