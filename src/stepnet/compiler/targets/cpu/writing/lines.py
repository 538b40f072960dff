"""An LLVM builder that writes the most frequent instructions as lines of text.

    llvmlite    an object for each instruction, with a name of its own, checked operands, and attributes; its
                text is made when the module is complete
    here        the line, made at once:  %v7 = add i64 %v5, %v6

This takes a fifth of the time. LLVM checks the types of operands when it reads the text. Rare instructions
and branches are llvmlite's objects; both kinds stand in the same blocks.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.room import check_llvmlite

check_llvmlite()  # older versions lack some of the types below

COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
I1 = ir.IntType(1)


class Line(ir.Value):
    """Instruction as a line of LLVM's text, with its result as a value.

    typed: the LLVM text of the result as an operand with its type.
    """

    def __init__(self, type_: ir.Type, reference: str, text: str) -> None:
        """Takes the type of the result, its name in the text, and the line."""
        self.type, self.reference, self.text = type_, reference, text
        self.typed = f"{type_} {reference}"

    def get_reference(self) -> str:
        """Returns the LLVM text of the result as an operand."""
        return self.reference

    def __str__(self) -> str:
        """Returns the line."""
        return self.text


class Phi(Line):
    """Phi node as a line of text, to which values are added until the text is complete.

    parent: the block in which it stands.
    """

    parent: ir.Block

    def add_incoming(self, value: ir.Value, block: ir.Block) -> None:
        """Adds the value that the node has if control comes from a block."""
        comma = "," if self.text.endswith("]") else ""
        self.text += f"{comma} [{value.get_reference()}, {block.get_reference()}]"


def typed(value: ir.Value) -> str:
    """Returns the LLVM text of an operand with its type."""
    return value.typed if isinstance(value, Line) else f"{value.type} {value.get_reference()}"


def operation(kind: str) -> Callable[..., Any]:
    """Makes the method of a builder for an operation on two values of one type. kind: LLVM's name for it."""

    def write(self: "LineBuilder", lhs: ir.Value, rhs: ir.Value, name: str = "") -> Any:
        """Writes the operation; returns its result."""
        return self.line(lhs.type, f"{kind} {lhs.type} {lhs.get_reference()}, {rhs.get_reference()}")

    return write


class LineBuilder(ir.IRBuilder):
    """LLVM builder whose most frequent instructions are lines of text."""

    add: Any = operation("add")
    sub: Any = operation("sub")
    mul: Any = operation("mul")
    sdiv: Any = operation("sdiv")
    srem: Any = operation("srem")
    and_: Any = operation("and")
    or_: Any = operation("or")
    xor: Any = operation("xor")
    shl: Any = operation("shl")
    lshr: Any = operation("lshr")
    ashr: Any = operation("ashr")
    fadd: Any = operation("fadd")
    fsub: Any = operation("fsub")
    fmul: Any = operation("fmul")
    fdiv: Any = operation("fdiv")

    def __init__(self, block: ir.Block) -> None:
        """Begins to write at the end of a block. A function has one builder: it numbers the lines."""
        super().__init__(block)
        self.numbers = count()

    def line(self, type_: ir.Type, text: str) -> Any:
        """Writes an instruction; returns its result. type_: the type of the result. text: the instruction in
        LLVM's language, without the name of the result.
        """
        reference = f"%v{next(self.numbers)}"
        new_line = Line(type_, reference, f"{reference} = {text}")
        self._insert(new_line)
        return new_line

    def phi(self, typ: ir.Type, name: str = "", flags: Sequence[str] = ()) -> Any:
        """Writes a phi node, whose value depends on the basic block that control comes from; `add_incoming`
        of the result adds the value for one.
        """
        reference = f"%v{next(self.numbers)}"
        new_phi = Phi(typ, reference, f"{reference} = phi {typ}")
        new_phi.parent = self.block
        self._insert(new_phi)
        return new_phi

    def line_without_result(self, text: str) -> None:
        """Writes an instruction that has no result."""
        self._insert(Line(ir.VoidType(), "", text))

    def compare(self, sign: str, comparison: str, lhs: ir.Value, rhs: ir.Value) -> Any:
        """Writes a comparison of integers, scalar or vector; returns the bools. sign: "s" or "u", for signed
        or unsigned ones. comparison: the operator, such as "<=".
        """
        name = COMPARISONS[comparison]
        words = name if name in ("eq", "ne") else sign + name
        kind = lhs.type
        result = ir.VectorType(I1, kind.count) if isinstance(kind, ir.VectorType) else I1
        return self.line(result, f"icmp {words} {kind} {lhs.get_reference()}, {rhs.get_reference()}")

    def icmp_signed(self, cmpop: str, lhs: ir.Value, rhs: ir.Value, name: str = "") -> Any:
        """Writes a comparison of signed integers. cmpop: such as "<="."""
        return self.compare("s", cmpop, lhs, rhs)

    def icmp_unsigned(self, cmpop: str, lhs: ir.Value, rhs: ir.Value, name: str = "") -> Any:
        """Writes a comparison of unsigned integers or pointers. cmpop: such as "<="."""
        return self.compare("u", cmpop, lhs, rhs)

    def select(
        self, cond: ir.Value, lhs: ir.Value, rhs: ir.Value, name: str = "", flags: Sequence[str] = ()
    ) -> Any:
        """Writes a choice between two values by a bool or a vector of bools: the first where it is true."""
        return self.line(lhs.type, f"select {typed(cond)}, {typed(lhs)}, {typed(rhs)}")

    def shuffle_vector(self, vector1: ir.Value, vector2: ir.Value, mask: ir.Constant, name: str = "") -> Any:
        """Writes a vector of elements of two vectors of one type. mask: the index of each."""
        assert isinstance(vector1.type, ir.VectorType)
        assert isinstance(mask.type, ir.VectorType)
        type_ = ir.VectorType(vector1.type.element, mask.type.count)
        return self.line(type_, f"shufflevector {typed(vector1)}, {typed(vector2)}, {typed(mask)}")

    def insert_element(self, vector: ir.Value, value: ir.Value, idx: ir.Value, name: str = "") -> Any:
        """Writes a vector of which one element is replaced. idx: the index of the element."""
        return self.line(vector.type, f"insertelement {typed(vector)}, {typed(value)}, {typed(idx)}")

    def advanced(self, pointer: ir.Value, offset: ir.Value) -> Any:
        """Writes a pointer plus an offset in bytes."""
        return self.line(pointer.type, f"getelementptr i8, {typed(pointer)}, {typed(offset)}")

    def loaded(self, type_: ir.Type, pointer: ir.Value, align: int | None) -> Any:
        """Writes a load of a value of a type. align: in bytes; None for that of the type."""
        return self.line(type_, f"load {type_}, {typed(pointer)}{aligned(align)}")

    def store(self, value: ir.Value, ptr: ir.Value, align: int | None = None) -> Any:
        """Writes a store of a value. align: in bytes; None for that of the value's type."""
        self.line_without_result(f"store {typed(value)}, {typed(ptr)}{aligned(align)}")

    def called(self, function: ir.Value, result: ir.Type, arguments: Sequence[ir.Value]) -> Any:
        """Writes a call of a function; returns its result. result: its type."""
        text = f"call {result} {function.get_reference()}({', '.join(map(typed, arguments))})"
        if isinstance(result, ir.VoidType):
            return self.line_without_result(text)
        return self.line(result, text)


def aligned(align: int | None) -> str:
    """Returns the LLVM text of the alignment of a load or a store."""
    return "" if align is None else f", align {align}"
