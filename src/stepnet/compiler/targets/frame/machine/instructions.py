"""The primitives of frame programs as LLVM instructions, on numbers and on vectors of them."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import (
    I8,
    I16,
    I32,
    Code,
    register_type,
    splat,
    vector_of,
    width_of,
)
from stepnet.compiler.targets.cpu.writing.storage_dtypes import STORED, single_of
from stepnet.compiler.targets.frame.halves import HALVES
from stepnet.compiler.targets.frame.machine.platforms import DevicePlatform
from stepnet.compiler.targets.frame.program import Instruction, Routine

FLOATS = ("float32", "float64")
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
"""The bits of each dtype of integers."""
Sign = Literal["==", "!=", "<", "<=", ">", ">="]


class FrameCode(Code):
    """An LLVM builder whose indices and addresses have the platform's size.

    platform: the one that it is for. tables: the constants of which elements are read, and their places.
    """

    def __init__(
        self,
        block: ir.Block,
        platform: DevicePlatform,
        tables: "tuple[ir.Value, Mapping[str, int]] | None" = None,
    ) -> None:
        super().__init__(block, platform.processor)
        self.platform, self.tables = platform, tables
        self.index = ir.IntType(8 * platform.pointer_bytes)
        self.constants = dict[int, ir.Constant]()

    def element(self, table: str, index: ir.Value) -> ir.Value:
        """Writes loads of the elements of a table of int32 at an index, or at a vector of indices."""
        assert self.tables is not None
        address, places = self.tables
        address, width = self.at(address, places[table]), width_of(index)
        if width > 1 and self.platform.gather:
            facts = [ir.Constant(I32, number) for number in (32, 2, 0)]  # bits, shift of the index, signed
            return self.function_call(self.platform.gather, index.type, [address, index, *facts])
        whole = index
        for lane in range(width):
            place = ir.Constant(I32, lane)
            own = self.extract_element(index, place) if width > 1 else index
            offset = self.mul(self.zext(own, self.index) if self.index.width > 32 else own, self.number(4))
            found = self.read(I32, self.at(address, offset), 4)
            whole = self.insert_element(whole, found, place) if width > 1 else found
        return whole

    def number(self, value: int) -> ir.Constant:
        """Makes an integer constant of the size of an address. Equal ones are one object, as `once` asks."""
        return self.constants.setdefault(value, ir.Constant(self.index, value))


def type_of(dtype: str, width: int) -> ir.Type:
    """Returns the LLVM type of `width` numbers of a dtype in a register."""
    stored = {"int8": I8, "int16": I16}.get(dtype)
    return register_type(dtype, width) if stored is None else vector_of(stored, width)


def write_body(
    code: FrameCode,
    given: Sequence[ir.Value],
    dtypes: Sequence[str],
    body: Sequence[Instruction],
    width: int,
    inline: Mapping[str, Routine] = MappingProxyType({}),
) -> list[ir.Value]:
    """Writes instructions; returns all registers.

    given: the values of the first registers. dtypes: theirs. width: the number of elements of a register.
    inline: the routines that are written where they are called.
    """
    registers, kinds = [*given], [*dtypes]
    for each in body:
        operands = [registers[operand] for operand in each.operands]
        read = kinds[each.operands[0]] if each.operands else each.dtype
        if each.operation == "element":
            value = code.element(str(each.value), *operands)
        elif each.operation == "constant":
            assert not isinstance(each.value, str | None)
            value: ir.Value = splat(type_of(each.dtype, width), each.value)
        elif each.operation in PRIMITIVE_CODE:
            value = PRIMITIVE_CODE[each.operation](code, read, each.dtype, *operands)
        elif (routine := inline.get(each.operation)) is not None:
            value = write_body(code, operands, routine.parameters, routine.body, width)[routine.result]
        else:
            name = f"{each.operation}.{width}"
            value = code.function_call(name, type_of(each.dtype, width), operands)
        registers.append(value)
        kinds.append(each.dtype)
    return registers


def write_routine(code: FrameCode, routine: Routine, given: Sequence[ir.Value], width: int) -> None:
    """Writes the body of a function that computes a routine on vectors of so many elements."""
    code.ret(write_body(code, given, routine.parameters, routine.body, width)[routine.result])


# ---- a function for each primitive: takes the dtypes of its first operand and of its result, and operands


def arithmetic(of_floats: str, of_integers: str) -> Callable[..., Any]:
    """Makes the function that writes an operation. Takes the builder's names for floats and for integers."""

    def write(code: Code, read: str, dtype: str, *operands: ir.Value) -> Any:
        """Writes the operation; returns its result."""
        return getattr(code, of_floats if read in FLOATS else of_integers)(*operands)

    return write


def comparison(sign: Sign) -> Callable[..., Any]:
    """Makes the function that writes a comparison. With NaN it is false, but "!=" is true."""

    def write(code: Code, read: str, dtype: str, a: ir.Value, b: ir.Value) -> Any:
        """Writes the comparison; returns the bools."""
        if read in FLOATS:
            return code.fcmp_unordered(sign, a, b) if sign == "!=" else code.fcmp_ordered(sign, a, b)
        return code.compare("u" if read == "bool" else "s", sign, a, b)

    return write


def intrinsic(name: str) -> Callable[..., Any]:
    """Makes the function that writes a call of an intrinsic of LLVM for floats."""

    def write(code: Code, read: str, dtype: str, *operands: ir.Value) -> Any:
        """Writes the call; returns its result."""
        return code.intrinsic(name, operands[0].type, operands)

    return write


def multiply_high(code: FrameCode, read: str, dtype: str, a: ir.Value, b: ir.Value) -> Any:
    """Writes the upper half of the product of integers of 32 bits: without an instruction for it, of the
    products of their halves.
    """
    if not code.platform.has_long_products:
        sixteen, mask = splat(a.type, 16), splat(a.type, 0xFFFF)
        (low_a, high_a), (low_b, high_b) = (
            (code.and_(each, mask), code.ashr(each, sixteen)) for each in (a, b)
        )
        first = code.add(code.mul(high_a, low_b), code.lshr(code.mul(low_a, low_b), sixteen))
        second = code.add(code.mul(low_a, high_b), code.and_(first, mask))
        upper = code.add(code.mul(high_a, high_b), code.ashr(first, sixteen))
        return code.add(upper, code.ashr(second, sixteen))
    long = type_of("int64", width_of(a))
    product = code.mul(code.sext(a, long), code.sext(b, long))
    return code.trunc(code.ashr(product, splat(long, 32)), a.type)


def negative(code: Code, read: str, dtype: str, a: ir.Value) -> Any:
    """Writes the negative: of floats the sign alone is changed."""
    return code.fneg(a) if read in FLOATS else code.sub(splat(a.type, 0), a)


def bits(code: Code, read: str, dtype: str, a: ir.Value) -> Any:
    """Writes the bits of a float as an integer, or back."""
    return code.bitcast(a, type_of(dtype, width_of(a)))


def select(code: Code, read: str, dtype: str, condition: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """Writes the choice of a value by a bool."""
    return code.select(condition, a, b)


def convert(code: FrameCode, read: str, dtype: str, a: ir.Value) -> Any:
    """Writes a conversion to another dtype: of floats truncated, of integers modulo their size; to bool
    whether it is not 0; of numbers of 16 bits to float32.
    """
    if read == dtype:
        return a
    if read in HALVES:
        return widened(code, read, a)
    type_, zero = type_of(dtype, width_of(a)), splat(a.type, 0)
    if dtype == "bool":
        return code.fcmp_unordered("!=", a, zero) if read in FLOATS else code.compare("u", "!=", a, zero)
    if read in FLOATS:
        if dtype in FLOATS:
            return code.fpext(a, type_) if dtype == "float64" else code.fptrunc(a, type_)
        if dtype == "int8":  # QEMU 7.2 knows no conversion of RISC-V that is also narrower
            return code.trunc(code.fptosi(a, type_of("int32", width_of(a))), type_)
        return code.fptosi(a, type_)
    if dtype in FLOATS:
        return code.uitofp(a, type_) if read == "bool" else code.sitofp(a, type_)
    if read == "bool":
        return code.zext(a, type_)
    return code.sext(a, type_) if BITS[read] < BITS[dtype] else code.trunc(a, type_)


def widened(code: FrameCode, dtype: str, bits_of: ir.Value) -> Any:
    """Writes numbers of a dtype of 16 bits as float32. bits_of: their bits. All are finite (`halves.py`).

    Without an instruction for float16 their bits are moved to where those of a float32 are, which is the
    number times 2^-112. That is no number where denormal ones are taken for zeros: there the exponent is
    added to, and numbers below the smallest normal one are counted in steps of 2^-24.
    """
    platform, width = code.platform, width_of(bits_of)
    if dtype == "bfloat16" or platform.has_half:
        return STORED[dtype].widened(code, bits_of)
    wide = code.sext(bits_of, type_of("int32", width))
    moved = code.and_(code.shl(wide, splat(wide.type, 13)), splat(wide.type, 0x8FFFFFFF))
    if not platform.flushes:
        return code.fmul(single_of(code, moved), splat(type_of("float32", width), 2.0**112))
    size, sign = (code.and_(wide, splat(wide.type, mask)) for mask in (0x7FFF, 0x80000000))
    count = code.sitofp(size, type_of("float32", width))
    small = code.or_(code.bitcast(code.fmul(count, splat(count.type, 2.0**-24)), wide.type), sign)
    is_small = code.compare("s", "<", size, splat(wide.type, 0x400))
    return single_of(code, code.select(is_small, small, code.add(moved, splat(wide.type, 112 << 23))))


PRIMITIVE_CODE: Mapping[str, Callable[..., Any]] = {
    "add": arithmetic("fadd", "add"),
    "subtract": arithmetic("fsub", "sub"),
    "multiply": arithmetic("fmul", "mul"),
    "multiply_high": multiply_high,
    "divide": arithmetic("fdiv", "sdiv"),
    "remainder": arithmetic("srem", "srem"),
    "negative": negative,
    "absolute": intrinsic("fabs"),
    "copysign": intrinsic("copysign"),
    "sqrt": intrinsic("sqrt"),
    "minimum": intrinsic("smin"),
    "maximum": intrinsic("smax"),
    "equal": comparison("=="),
    "not_equal": comparison("!="),
    "less": comparison("<"),
    "less_equal": comparison("<="),
    "greater": comparison(">"),
    "greater_equal": comparison(">="),
    "bitwise_and": arithmetic("and_", "and_"),
    "bitwise_or": arithmetic("or_", "or_"),
    "bitwise_xor": arithmetic("xor", "xor"),
    "left_shift": arithmetic("shl", "shl"),
    "unsigned_right_shift": arithmetic("lshr", "lshr"),
    "right_shift": arithmetic("ashr", "ashr"),
    "select": select,
    "bits": bits,
    "convert": convert,
}
"""The function that writes each primitive but constants."""
