"""Arm's instructions that multiply 32-bit words of bfloat16 and of int8: those of NEON, and of SVE.

NEON has vectors of 128 bits, and LLVM's intrinsics for it take its fixed types. Those of SVE take scalable
types; a vector that fills a register is inserted in one and extracted again, which takes no instruction.
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I8, Code, element_type, mangled, undefined, width_of


class TypeByText(ir.Type):
    """An LLVM type that llvmlite does not have, given by its text."""

    def __init__(self, text: str) -> None:
        """Takes the text of the type."""
        self.text = text

    def _to_string(self) -> str:
        """Returns the text of the type."""
        return self.text

    def __eq__(self, other: object) -> bool:
        """Compares types by their texts."""
        return isinstance(other, TypeByText) and self.text == other.text

    def __hash__(self) -> int:
        """Hashes the text."""
        return hash(self.text)


BFLOAT = TypeByText("bfloat")
NEON_BITS = 128


def multiply_long_pairs(code: Code, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Adds the two products of each pair of bfloat16 (32-bit words of a and b) to c by two instructions: for
    the top halves of words, the second numbers, and then for the bottom ones.
    """
    for part in ("bfmlalt", "bfmlalb"):
        c = multiply_words(code, part, BFLOAT, 2, [c, a, b])
    return c


def multiply_signed_quads(code: Code, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Adds the four products of each word, int8 by int8, to the int32 sums c, by one instruction."""
    return multiply_words(code, "sdot", I8, 4, [c, a, b])


def multiply_words(code: Code, name: str, element: ir.Type, terms: int, operands: list[ir.Value]) -> ir.Value:
    """Writes an instruction that adds products of the numbers of words to sums; returns the new sums.

    name: the instruction. element, terms: the type of the numbers, and how many a word has.
    operands: the sums, and the two vectors of words.
    """
    (c, *words), count = operands, NEON_BITS // 32 * terms
    if 32 * width_of(c) == NEON_BITS:
        suffix = f".v4i32.v{count}i8" if element is I8 else ""
        numbers = [code.bitcast(value, ir.VectorType(element, count)) for value in words]
        return code.function_call(f"llvm.aarch64.neon.{name}{suffix}", c.type, [c, *numbers])
    suffix = ".nxv4i32" if element is I8 else ""
    scalable = TypeByText(f"<vscale x {count} x {element}>")
    numbers = [code.bitcast(in_register(code, value), scalable) for value in words]
    sums = in_register(code, c)
    sums = code.function_call(f"llvm.aarch64.sve.{name}{suffix}", sums.type, [sums, *numbers])
    extract = f"llvm.vector.extract.{mangled(c.type)}.{scalable_name(c.type)}"
    return code.function_call(extract, c.type, [sums, code.number(0)])


def in_register(code: Code, value: ir.Value) -> ir.Value:
    """Takes a vector of 32-bit elements that fills a register of SVE as a value of its scalable type."""
    type_ = TypeByText(f"<vscale x 4 x {element_type(value.type)}>")
    insert = f"llvm.vector.insert.{scalable_name(value.type)}.{mangled(value.type)}"
    return code.function_call(insert, type_, [undefined(type_), value, code.number(0)])


def scalable_name(type_: ir.Type) -> str:
    """Returns the name of the scalable type with the same 32-bit elements in intrinsics, such as nxv4i32."""
    return f"nxv4{mangled(element_type(type_))}"
