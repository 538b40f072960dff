"""An LLVM builder with loops, vectors and byte addressing: the few constructs that the engine's code uses."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from llvmlite import ir
from llvmlite.binding import llvm_version_info

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.writing.lines import LineBuilder

I1 = ir.IntType(1)
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
POINTER = ir.PointerType()

REGISTER_TYPES = {
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
    "float16": I16,  # its bits: float16 and bfloat16 are only stored, not computed in
    "bfloat16": I16,
    "int32": I32,
    "int64": I64,
    "bool": I1,
}
HAS_SPLAT = llvm_version_info[0] >= 20
"""True if LLVM reads `splat (float 1.0)`. Written in full, such vectors are half of a module's text."""
MEMORY_TYPES = {**REGISTER_TYPES, "bool": I8}


class Splat(ir.Constant):
    """Constant vector with the same number in every element."""

    def get_reference(self) -> str:
        """Returns the LLVM text of this vector as an operand: its number once, not for every element."""
        return f"splat ({self.constant[0]})"


# Equal constants are one object, so that their text, which is long for vectors, is generated once.


@lru_cache(maxsize=4096)
def integer(value: int) -> ir.Constant:
    """Makes a 64-bit integer constant of LLVM code. Equal ones are one object, to write their text once."""
    return ir.Constant(I64, value)


def splat(type_: ir.Type, value: float) -> ir.Constant:
    """Makes a constant of a scalar type, or a constant vector with a number in every element."""
    if not isinstance(type_, ir.VectorType):
        return ir.Constant(type_, value)
    return (Splat if HAS_SPLAT else ir.Constant)(type_, [ir.Constant(type_.element, value)] * type_.count)


@lru_cache(maxsize=1024)
def lane_indices(first: int, count: int) -> ir.Constant:
    """Makes a constant vector of the integers `first`, `first` + 1, ...: the mask for `shuffle_vector`."""
    return ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))


class Undefined(ir.Constant):
    """LLVM's `undef` constant, written once. llvmlite would write it for every element of a vector."""

    def get_reference(self) -> str:
        """Returns LLVM's text for an undefined value, as an operand of an instruction."""
        return "undef"


UNDEFINED: dict[str, Undefined] = {}


def undefined(type_: ir.Type) -> ir.Constant:
    """Makes an undefined value of an LLVM type, to be filled element by element or ignored. Equal types share
    one object, which is found by the type's text: llvmlite's vector types all have the same hash.
    """
    text = str(type_)
    return UNDEFINED.get(text) or UNDEFINED.setdefault(text, Undefined(type_, ir.Undefined))


class Code(LineBuilder):
    """LLVM builder that knows its processor, with loops, conditions and vectors.

    It uses byte pointers and byte offsets throughout: memory layout is given by records, not by LLVM's types.
    """

    def __init__(self, block: ir.Block, processor: Processor) -> None:
        """Begins to write LLVM instructions for a processor, at the end of a basic block."""
        super().__init__(block)
        self.processor = processor
        if processor.has("sve"):
            # llvmlite does not know the attribute: that registers have this multiple of 128 bits.
            multiple = processor.vector_bytes // 16
            set[str].add(block.function.attributes, f"vscale_range({multiple},{multiple})")
        self.known = dict[tuple[ir.Block, str, int, int], ir.Value]()
        self.splats = dict[tuple[str, str], ir.Constant]()

    # ---- addresses: integer sums, products and pointers, with common subexpressions of a block written once

    def once(self, what: str, a: ir.Value, b: ir.Value, write: Callable[[], ir.Value]) -> ir.Value:
        """Returns the result of an operation without side effects on `a` and `b`, as the sums and products of
        addresses are. It is written only once in each basic block (instructions that run in turn). what: the
        operation's name. write: writes it, returns its result.
        """
        key = self.block, what, id(a), id(b)  # the instructions keep these objects alive
        if key not in self.known:
            self.known[key] = write()
        return self.known[key]

    def add(self, lhs: Any, rhs: Any, name: str = "") -> Any:
        """Returns the sum of two integers; writes no code if the block has it already, or for 0."""
        if rhs is integer(0):
            return lhs
        return self.once("add", lhs, rhs, lambda: super(Code, self).add(lhs, rhs))

    def mul(self, lhs: Any, rhs: Any, name: str = "") -> Any:
        """Writes and returns the product of two integers; no code by 1, of 0, or if this block has it."""
        if rhs is integer(1) or lhs is integer(0):
            return lhs
        return self.once("mul", lhs, rhs, lambda: super(Code, self).mul(lhs, rhs))

    # ---- numbers

    def number(self, value: int) -> ir.Constant:
        """Makes a 64-bit integer constant of LLVM code."""
        return integer(value)

    def splat(self, type_: ir.Type, value: float) -> ir.Constant:
        """Makes a constant `value` of a scalar type, or a constant vector with it in every element."""
        key = str(type_), repr(value)
        if key not in self.splats:
            self.splats[key] = splat(type_, value)
        return self.splats[key]

    def spread(self, value: ir.Value, width: int) -> ir.Value:
        """Writes a broadcast of a scalar to a vector of `width` elements; no code for width 1."""
        if width == 1:
            return value
        nothing = undefined(ir.VectorType(value.type, width))
        first = self.insert_element(nothing, value, ir.Constant(I32, 0))
        return self.shuffle_vector(first, nothing, self.splat(ir.VectorType(I32, width), 0))

    def slice(self, value: ir.Value, first: int, count: int) -> ir.Value:
        """Writes code that takes `count` elements of a vector, from the element `first` on."""
        return self.shuffle_vector(value, undefined(value.type), lane_indices(first, count))

    def keep_first(self, value: ir.Value, count: int, width: int, others: ir.Value) -> ir.Value:
        """Writes code for a masked vector: of each `width` consecutive elements, the first `count` come from
        `value`, and the rest, which are padding, from `others`. So padding does not affect a reduction.
        """
        lanes = [ir.Constant(I1, int(lane % width < count)) for lane in range(width_of(value))]
        mask = ir.Constant(ir.VectorType(I1, len(lanes)), lanes) if len(lanes) > 1 else lanes[0]
        return self.select(mask, value, others)

    def smaller(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Writes code for the minimum of two signed integers."""
        return self.select(self.icmp_signed("<", a, b), a, b)

    # ---- calls

    def intrinsic(self, name: str, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        """Writes a call of LLVM's intrinsic `name`, for the type of its result; returns the result."""
        return self.function_call(f"llvm.{name}.{mangled(result)}", result, arguments)

    def function_call(self, name: str, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        """Writes a call of the function `name`, which is declared at its first call; returns its result."""
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(result, [a.type for a in arguments]), name)
        return self.called(function, result, arguments)

    def call_at(self, address: ir.Value, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        """Writes a call of the function at an address known only at run time; returns its result."""
        type_ = ir.FunctionType(result, [argument.type for argument in arguments])
        function = self.inttoptr(address, type_.as_pointer())
        assert isinstance(function, ir.NamedValue)
        return self.call(function, arguments)

    def address(self, name: str) -> ir.Value:
        """Writes code for the address of the function `name`, declared at first use, as a 64-bit integer."""
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(I64, []), name)
        return self.ptrtoint(function, I64)

    def fused(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Writes code for a * b + c: a fused multiply-add if the processor has it, else rounded twice."""
        if not self.processor.has_fused:
            return self.fadd(self.fmul(a, b), c)
        return self.intrinsic("fma", a.type, [a, b, c])

    def pause(self) -> None:
        """Writes x86's pause instruction, which marks a spin loop for the processor; nothing elsewhere."""
        if self.processor.cpu:
            self.function_call("llvm.x86.sse2.pause", ir.VoidType(), [])

    # ---- memory

    def at(self, pointer: ir.Value, offset: "ir.Value | int") -> ir.Value:
        """Writes code that adds an offset in bytes to a pointer."""
        if isinstance(offset, int):
            offset = self.number(offset)
        if offset is integer(0):
            return pointer
        return self.once("at", pointer, offset, lambda: self.advanced(pointer, offset))

    def read(self, type_: ir.Type, pointer: ir.Value, align: int | None = None) -> ir.Value:
        """Writes a load of a value; returns it. align: of the pointer, in bytes; None for the type's."""
        return self.loaded(type_, pointer, align)

    def stack_memory(self, count: int, align: int) -> ir.Value:
        """Reserves `count` bytes of the function's stack; returns the pointer. align: in bytes."""
        with self.goto_entry_block():
            memory = self.alloca(ir.ArrayType(I8, count))
            memory.align = align
            return self.inttoptr(self.ptrtoint(memory, I64), POINTER)

    def write(self, value: ir.Value, pointer: ir.Value, align: int | None = None) -> None:
        """Writes a store of a value to memory, with the alignment `align` in bytes or that of its type."""
        self.store(value, pointer, align=align)

    def word_pointer(self, pointer: ir.Value) -> ir.Value:
        """Converts a pointer to one that points to a 64-bit word, as llvmlite requires for atomic stores."""
        return self.inttoptr(self.ptrtoint(pointer, I64), I64.as_pointer())

    def read_number(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        """Writes a load of element `index` of an array of 64-bit integers."""
        return self.read(I64, self.at(pointer, self.mul(index, self.number(8))), 8)

    def write_number(self, value: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        """Writes a store of a 64-bit integer to element `index` of an array."""
        self.write(value, self.at(pointer, self.mul(index, self.number(8))), 8)

    def prefetch(self, pointer: ir.Value, is_written: bool = False, level: int = 1) -> None:
        """Writes a prefetch of a cache line into cache `level`, 1 or 2; for a later write if `is_written`."""
        hints = (ir.Constant(I32, hint) for hint in (int(is_written), 4 - level, 1))
        self.function_call("llvm.prefetch.p0", ir.VoidType(), [pointer, *hints])

    def copy_bytes(self, target: ir.Value, source: ir.Value, count: "ir.Value | int") -> None:
        """Writes a copy of `count` bytes from `source` to `target`, which must not overlap."""
        if count != 0:
            number = self.number(count) if isinstance(count, int) else count
            arguments = [target, source, number, ir.Constant(I1, 0)]
            self.function_call("llvm.memcpy.p0.p0.i64", ir.VoidType(), arguments)

    def zero_bytes(self, target: ir.Value, count: "ir.Value | int") -> None:
        """Writes code that sets `count` bytes to zero."""
        if count != 0:
            number = self.number(count) if isinstance(count, int) else count
            arguments = [target, ir.Constant(I8, 0), number, ir.Constant(I1, 0)]
            self.function_call("llvm.memset.p0.i64", ir.VoidType(), arguments)

    # ---- control

    @contextmanager
    def loop(self, start: ir.Value, stop: ir.Value, step: "int | ir.Value" = 1) -> Generator[ir.Value]:
        """Writes a loop around the code in the `with`, for i = start, start + step, ... < stop; yields i."""
        head, body, after = (self.append_basic_block(name) for name in ("head", "body", "after"))
        before = self.block
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(start.type)
        index.add_incoming(start, before)
        self.cbranch(self.icmp_signed("<", index, stop), body, after)
        self.position_at_end(body)
        yield index
        stride = self.number(step) if isinstance(step, int) else step
        index.add_incoming(self.add(index, stride), self.block)
        self.branch(head)
        self.position_at_end(after)

    def carry(
        self,
        start: int,
        stop: int | ir.Value,
        initial: Sequence[ir.Value],
        write_body: Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]],
        *,
        step: int = 1,
        runs: bool = False,
    ) -> list[ir.Value]:
        """Writes a loop that carries values, such as sums, in registers (as phi nodes); returns their final
        values.

        initial: the values before the first iteration.
        write_body: writes the iteration for i = start, start + step, ... while i < stop: takes i and the
            present values, and returns the next ones.
        runs: whether there is at least one iteration; implied by a constant `stop`. Then the condition is
            tested only at the end of an iteration, which so has a single branch.
        """
        if isinstance(stop, int):
            if start >= stop:
                return list(initial)
            runs, stop = True, self.number(stop)
        before, head, after = self.block, self.append_basic_block("turn"), self.append_basic_block("carried")
        self.branch(head)
        self.position_at_end(head)
        index, values = self.phi(self.number(0).type), [self.phi(value.type) for value in initial]
        if not runs:
            body = self.append_basic_block("body")
            self.cbranch(self.icmp_signed("<", index, stop), body, after)
            self.position_at_end(body)
        results = [*write_body(index, [*values])]
        following = self.add(index, self.number(step))
        firsts, nexts = (self.number(start), *initial), (following, *results)
        for phi, first, then in zip((index, *values), firsts, nexts, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(then, self.block)
        if runs:
            self.cbranch(self.icmp_signed("<", following, stop), head, after)
        else:
            self.branch(head)
        self.position_at_end(after)
        return results if runs else [*values]

    @contextmanager
    def loop_while(self, holds: Callable[[], ir.Value]) -> Generator[None]:
        """Writes a loop around the code inside the `with`, as long as a condition is true.

        holds: writes the condition, and returns it as a bool.
        """
        head, body, after = (self.append_basic_block(name) for name in ("head", "body", "after"))
        self.branch(head)
        self.position_at_end(head)
        self.cbranch(holds(), body, after)
        self.position_at_end(body)
        yield
        self.branch(head)
        self.position_at_end(after)

    def return_when(self, condition: ir.Value, value: ir.Value) -> None:
        """Writes code that returns `value` from the function if the condition is true, and else goes on."""
        leave, stay = self.append_basic_block("leave"), self.append_basic_block("stay")
        self.cbranch(condition, leave, stay)
        self.position_at_end(leave)
        self.ret(value)
        self.position_at_end(stay)

    @contextmanager
    def when(self, condition: ir.Value) -> Generator[None]:
        """Writes a condition around the code inside the `with`: it runs only if the condition is true."""
        inside, after = self.append_basic_block("then"), self.append_basic_block("next")
        self.cbranch(condition, inside, after)
        self.position_at_end(inside)
        yield
        self.branch(after)
        self.position_at_end(after)


def mangled(type_: ir.Type) -> str:
    """Returns the type's suffix in the name of an LLVM intrinsic, such as v16f32, f64 or i32."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{mangled(type_.element)}"
    if isinstance(type_, ir.FloatType):
        return "f32"
    if isinstance(type_, ir.DoubleType):
        return "f64"
    return str(type_)


def register_type(dtype: str, width: int) -> ir.Type:
    """Returns the LLVM type of `width` numbers of a dtype in a register: a vector, a scalar for width 1."""
    return vector_of(REGISTER_TYPES[dtype], width)


def vector_of(element: ir.Type, width: int) -> ir.Type:
    """Returns the LLVM type of a vector of `width` elements; the element type itself for width 1."""
    return element if width == 1 else ir.VectorType(element, width)


def width_of(value: ir.Value) -> int:
    """Returns the number of elements of a value of LLVM code: 1 for a scalar."""
    return value.type.count if isinstance(value.type, ir.VectorType) else 1


def element_type(type_: ir.Type) -> ir.Type:
    """Returns the LLVM type of one element of a vector type, or the type itself for a scalar."""
    return type_.element if isinstance(type_, ir.VectorType) else type_


def is_float(value: ir.Value) -> bool:
    """Tells whether a value of LLVM code, scalar or vector, holds floating-point numbers."""
    return isinstance(element_type(value.type), ir.FloatType | ir.DoubleType)


def is_single(type_: ir.Type) -> bool:
    """Tells whether an LLVM type, scalar or vector, is float32."""
    return isinstance(element_type(type_), ir.FloatType)


def load_vector(code: Code, dtype: str, width: int, pointer: ir.Value, align: int) -> ir.Value:
    """Writes a load of `width` contiguous numbers of a dtype into a register; bool is a byte in memory.
    align: the alignment of the pointer in bytes.
    """
    element = MEMORY_TYPES[dtype]
    value = code.read(element if width == 1 else ir.VectorType(element, width), pointer, align)
    if dtype != "bool":
        return value
    return code.icmp_unsigned("!=", value, code.splat(value.type, 0))


def store_vector(code: Code, dtype: str, value: ir.Value, pointer: ir.Value, align: int) -> None:
    """Writes a store of a register as contiguous numbers of a dtype; a bool becomes a byte in memory. align:
    the bytes to which the pointer is known to be aligned.
    """
    if dtype == "bool":
        width = width_of(value)
        value = code.zext(value, I8 if width == 1 else ir.VectorType(I8, width))
    code.write(value, pointer, align)
