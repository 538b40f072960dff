"""The functions that a kernel calls (`functions.py`), for the emulation, where a thread is a fiber.

One that waits gives way to the others (`fibers.py`). The lanes of a warp hand numbers to each other in two
buffers that they use in turn: a lane that writes to one has met the others since they read from it.
"""

from functools import cache

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.writing.code import I16, I32, I64, POINTER, Code
from stepnet.compiler.targets.cpu.writing.storage_dtypes import rounded_float16, widened_float16
from stepnet.compiler.targets.cuda.emulation.fibers import (
    FIELD_TEXT,
    SWITCHING,
    scheduler,
    switching,
    with_offsets,
)
from stepnet.compiler.targets.cuda.emulation.views import view_functions
from stepnet.compiler.targets.cuda.functions import BOTH, F32, QUAD
from stepnet.compiler.targets.cuda.linking import bitcode_of, defined
from stepnet.compiler.targets.cuda.remainders import REMAINDERS, remainder
from stepnet.compiler.targets.cuda.writer import SCALAR, VOID

DEPTH, ROWS, COLUMNS = 16, 16, 8
"""The size of the largest product of a warp: columns of the left operand, its rows, columns of the right."""
BUFFER = 4 * DEPTH * (ROWS + COLUMNS)
"""The bytes of one of the two buffers of a warp: the operands of a product."""
WITHOUT_HALF = Processor("generic", "x86-64", "", 16, 16)
"""A processor without instructions for float16."""
PAIR = ir.VectorType(F32, 2)

SHORT = with_offsets("""
define i32 @threads_of_block() alwaysinline { %t = call i64 @of_launch(i64 <THREADS>) %r = trunc i64 %t to i32
  ret i32 %r }
define i32 @blocks_launched() alwaysinline { %t = call i64 @of_launch(i64 <BLOCKS>) %r = trunc i64 %t to i32
  ret i32 %r }
define i32 @thread() alwaysinline { %r = call i32 @of_fiber(i64 <FIBER_THREAD>) ret i32 %r }
define i32 @block() alwaysinline { %r = call i32 @of_fiber(i64 <FIBER_BLOCK>) ret i32 %r }
define ptr @in_main(i64 %p) alwaysinline { %q = inttoptr i64 %p to ptr ret ptr %q }
define <4 x float> @from_cache(ptr %p) alwaysinline { call void @aligned(ptr %p, i64 15)
  %v = load <4 x float>, ptr %p, align 4 ret <4 x float> %v }
define i64 @anew(i64 %x) alwaysinline { ret i64 %x }
define void @prefetch(ptr %p) alwaysinline { ret void }
define i64 @wide_product(i32 %a, i32 %b) alwaysinline { %x = sext i32 %a to i64 %y = sext i32 %b to i64
  %r = mul i64 %x, %y ret i64 %r }
declare float @exp2f(float)
declare float @llvm.fabs.f32(float)
define float @flushed(float %x) alwaysinline { %size = call float @llvm.fabs.f32(float %x)
  %small = fcmp olt float %size, 0x3810000000000000 %zero = fmul float %x, 0.0
  %r = select i1 %small, float %zero, float %x ret float %r }
define float @exp2(float %x) alwaysinline { %1 = call float @exp2f(float %x)
  %r = call float @flushed(float %1) ret float %r }
define float @reciprocal(float %x) alwaysinline { %1 = fdiv float 1.0, %x
  %r = call float @flushed(float %1) ret float %r }
define float @quotient(float %a, float %b) alwaysinline { %1 = fdiv float %a, %b ret float %1 }
declare float @llvm.sqrt.f32(float)
define float @root(float %x) alwaysinline { %1 = call float @llvm.sqrt.f32(float %x) ret float %1 }
""")
"""The functions that are linked with each kernel, as they are shorter than their calls."""

CALLED_BY_SHORT = """
declare void @aligned(ptr, i64)
declare i32 @shuffle_down_i32(i32, i32)
declare i64 @shuffle_down_i64(i64, i32)
declare i32 @shuffle_xor_i32(i32, i32)
"""

OTHERS = with_offsets(
    """
declare void @publish()
declare void @renew()
define void @misaligned(i64 %bits) { %r = call ptr @record() %s = load ptr, ptr %r
  %p = getelementptr i8, ptr %s, i64 <MISALIGNED> %a = load i64, ptr %p %b = or i64 %a, %bits
  store i64 %b, ptr %p ret void }
define void @aligned(ptr %p, i64 %mask) { %a = ptrtoint ptr %p to i64 %b = and i64 %a, %mask
  %c = icmp eq i64 %b, 0 br i1 %c, label %good, label %bad
bad: call void @misaligned(i64 %b) ret void
good: ret void }
define ptr @shared_of(i32 %local) { %m = call i64 @of_launch(i64 <SHARED>)
  %a = call i64 @of_launch(i64 <APART>) %b = zext i32 %local to i64 %c = mul i64 %a, %b %d = add i64 %m, %c
  %r = inttoptr i64 %d to ptr ret ptr %r }
define ptr @shared() { %b = call i32 @of_fiber(i64 <FIBER_LOCAL>)
  %r = call ptr @shared_of(i32 %b) ret ptr %r }
define void @barrier() { %b = call i32 @of_fiber(i64 <FIBER_LOCAL>) %w = zext i32 %b to i64
  %t = call i32 @threads_of_block() call void @meet(i64 %w, i32 %t, i32 1) ret void }
define i32 @any_of_block(i32 %x) { %k = call i64 @of_launch(i64 <RUNNING>)
  %all = call i64 @of_launch(i64 <COUNT>) %warps = lshr i64 %all, 5 %blocks = shl i64 %k, 1
  %pairs = add i64 %blocks, %warps %begin = shl i64 %pairs, 1 %b = call i32 @of_fiber(i64 <FIBER_LOCAL>)
  %own = zext i32 %b to i64 %i = add i64 %begin, %own %m = call i64 @of_launch(i64 <BARRIERS>)
  %q = inttoptr i64 %m to ptr %p = getelementptr i32, ptr %q, i64 %i
  %v = load i32, ptr %p %w = or i32 %v, %x store i32 %w, ptr %p call void @barrier()
  %r = load i32, ptr %p call void @barrier() store i32 0, ptr %p call void @barrier() ret i32 %r }
define i32 @warp() { %f = call i32 @of_fiber(i64 <FIBER_FIBER>) %w = lshr i32 %f, 5 ret i32 %w }
define void @warp_barrier() { %k = call i64 @of_launch(i64 <RUNNING>) %w = call i32 @warp()
  %x = zext i32 %w to i64 %i = add i64 %x, %k call void @meet(i64 %i, i32 32, i32 2) ret void }
define ptr @buffer() { %r = call ptr @record() %p = getelementptr i8, ptr %r, i64 <FIBER_TURN>
  %turn = load i32, ptr %p %next = xor i32 %turn, 1 store i32 %next, ptr %p %w = call i32 @warp()
  %d = shl i32 %w, 1 %i = add i32 %d, %turn %m = call i64 @of_launch(i64 <MEETINGS>)
  %q = inttoptr i64 %m to ptr %b = getelementptr [BUFFER x i8], ptr %q, i32 %i ret ptr %b }
define i64 @shuffle_down_i64(i64 %x, i32 %lanes) { %b = call ptr @buffer() %t = call i32 @thread()
  %lane = and i32 %t, 31 %own = getelementptr i64, ptr %b, i32 %lane store i64 %x, ptr %own
  call void @warp_barrier() %o = add i32 %lane, %lanes %in = icmp ult i32 %o, 32
  %from = select i1 %in, i32 %o, i32 %lane %p = getelementptr i64, ptr %b, i32 %from %v = load i64, ptr %p
  ret i64 %v }
define i32 @shuffle_down_i32(i32 %x, i32 %lanes) { %a = zext i32 %x to i64
  %b = call i64 @shuffle_down_i64(i64 %a, i32 %lanes) %r = trunc i64 %b to i32 ret i32 %r }
define i32 @shuffle_xor_i32(i32 %x, i32 %bits) { %b = call ptr @buffer() %t = call i32 @thread()
  %lane = and i32 %t, 31 %own = getelementptr i32, ptr %b, i32 %lane store i32 %x, ptr %own
  call void @warp_barrier() %from = xor i32 %lane, %bits %p = getelementptr i32, ptr %b, i32 %from
  %v = load i32, ptr %p ret i32 %v }
define void @wait() { call void @publish()
  %k = call i64 @of_launch(i64 <RUNNING>) %t = call i64 @of_launch(i64 <THREADS>)
  %s = call i64 @of_launch(i64 <GROUP>) %b = call i32 @of_fiber(i64 <FIBER_LOCAL>) %c = zext i32 %b to i64
  %g = udiv i64 %c, %s %all = call i64 @of_launch(i64 <COUNT>) %warps = lshr i64 %all, 5
  %i = add i64 %k, %warps %j = add i64 %i, %g %m = mul i64 %s, %t %n = trunc i64 %m to i32
  call void @meet(i64 %j, i32 %n, i32 3) call void @renew()
  ret void }
define void @arrive() { ret void }   ; here the whole barrier is in its second half
define i32 @acquire(ptr %p) { call void @aligned(ptr %p, i64 3)
  call void @give_way(i32 4) %v = load i32, ptr %p call void @renew() ret i32 %v }
define void @release(ptr %p) { call void @aligned(ptr %p, i64 3) call void @publish()
  %v = load i32, ptr %p %w = add i32 %v, 1 store i32 %w, ptr %p
  call void @moved() ret void }
define void @pause() { call void @give_way(i32 5) ret void }
define void @write_tagged(ptr %p, float %x, i32 %tag) { call void @aligned(ptr %p, i64 7)
  store float %x, ptr %p
  %q = getelementptr i8, ptr %p, i32 4 store i32 %tag, ptr %q call void @moved() ret void }
define void @write_word(ptr %p, i32 %x) { call void @aligned(ptr %p, i64 3)
  store i32 %x, ptr %p call void @moved() ret void }
define {float, float, float, float} @read_tagged(ptr %p) { call void @aligned(ptr %p, i64 15)
  %v = load {float, float, float, float}, ptr %p ret {float, float, float, float} %v }
define i32 @bfloat16(float %x) { %b = bitcast float %x to i32 %s = lshr i32 %b, 16 %odd = and i32 %s, 1
  %h = add i32 %odd, 32767 %r = add i32 %b, %h %m = lshr i32 %r, 16
  %nan = fcmp uno float %x, %x %v = select i1 %nan, i32 32767, i32 %m ret i32 %v }
define float @pack(float %a, float %b) { %x = call i32 @bfloat16(float %a) %y = call i32 @bfloat16(float %b)
  %z = shl i32 %y, 16 %p = or i32 %x, %z %r = bitcast i32 %p to float ret float %r }
define void @write_to(i32 %rank, i32 %offset, <4 x float> %v) {
  %b = call i32 @of_fiber(i64 <FIBER_LOCAL>) %t = call i64 @of_launch(i64 <GROUP>) %s = trunc i64 %t to i32
  %g = udiv i32 %b, %s %f = mul i32 %g, %s %r = add i32 %f, %rank %m = call ptr @shared_of(i32 %r)
  %p = getelementptr i8, ptr %m, i32 %offset call void @aligned(ptr %p, i64 15)
  store <4 x float> %v, ptr %p, align 4 ret void }
""".replace("BUFFER", str(BUFFER))
)
"""The functions that kernels call."""


@cache
def linked_with_each() -> bytes:
    """Returns the short functions, which each kernel is linked with, as LLVM's bitcode."""
    return bitcode_of(FIELD_TEXT + SHORT + BOTH + CALLED_BY_SHORT)


def called() -> tuple[str, list[bytes], frozenset[str]]:
    """Returns the other functions that emulated kernels call, and the scheduler: a module as text, others as
    LLVM's bitcode, and the names of the functions.
    """
    products = [emulated_mma(depth) for depth in (8, 16)]
    others = [scheduler(), view_functions(), *products, *map(remainder, REMAINDERS), half_precision()]
    text = FIELD_TEXT + SHORT + OTHERS + SWITCHING + switching()
    names = frozenset[str]().union(*map(defined, [text, *others]))
    return text, list(map(bitcode_of, others)), names


def half_precision() -> str:
    """Returns the functions that LLVM calls for casts between float16 and float32, as some processors have no
    instructions for them.
    """
    module, half, single = ir.Module(), ir.HalfType(), ir.FloatType()
    types = {"__extendhfsf2": (single, half), "__truncsfhf2": (half, single)}
    for name, (result, argument) in types.items():
        function = ir.Function(module, ir.FunctionType(result, [argument]), name)
        code = Code(function.append_basic_block("entry"), WITHOUT_HALF)
        x = function.args[0]
        if argument is half:
            code.ret(widened_float16(code, code.bitcast(x, I16)))
        else:
            code.ret(code.bitcast(rounded_float16(code, x), half))
    return str(module)


def emulated_mma(depth: int) -> str:
    """Returns the product of the tensor cores for the CPU: the lanes of a warp write down their operands,
    wait for each other, and each adds up its own results. depth: 8 for tf32, 16 for bfloat16 (two in a
    register).
    """
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(QUAD, [F32] * 10), f"mma{depth}")
    code = Code(function.append_basic_block(), SCALAR)
    left = code.function_call("buffer", POINTER, [])
    right = code.at(left, 4 * DEPTH * ROWS)
    lane = code.and_(code.zext(code.function_call("thread", I32, []), I64), code.number(31))
    row, rest = code.lshr(lane, code.number(2)), code.and_(lane, code.number(3))
    packed = depth // 8

    def place(base: ir.Value, width: int, above: ir.Value, beside: ir.Value) -> ir.Value:
        """Returns the address of an element of an operand, by its two indices."""
        return code.at(base, code.mul(code.add(code.mul(above, code.number(width)), beside), code.number(4)))

    def numbers(register: int) -> list[ir.Value]:
        """Returns the numbers in a register, as the tensor cores see them."""
        bits, high = code.bitcast(function.args[register], I32), ir.Constant(I32, -65536)
        if packed == 1:
            return [code.bitcast(code.and_(bits, ir.Constant(I32, -8192)), F32)]
        halves = code.shl(bits, ir.Constant(I32, 16)), code.and_(bits, high)
        return [code.bitcast(half, F32) for half in halves]

    for register in range(6):
        for n, number in enumerate(numbers(register)):
            half = register >> 1 if register < 4 else register - 4
            k = code.add(code.mul(rest, code.number(packed)), code.number(half * depth // 2 + n))
            if register < 4:
                above = code.add(row, code.number(8 * (register & 1)))
                code.write(number, place(left, DEPTH, above, k), 4)
            else:
                code.write(number, place(right, COLUMNS, k, row), 4)
    code.function_call("warp_barrier", VOID, [])
    quad: ir.Value = ir.Constant(QUAD, ir.Undefined)
    for half in range(2):  # c0, c1: row `row`; c2, c3: row + 8; columns 2 (lane % 4) and the next
        total: ir.Value = ir.Constant(PAIR, ir.Undefined)
        for r in range(2):
            total = code.insert_element(total, function.args[6 + 2 * half + r], ir.Constant(I32, r))
        above = code.add(row, code.number(8 * half))
        for k in range(depth):
            number = code.read(F32, place(left, DEPTH, above, code.number(k)), 4)
            pair = code.read(PAIR, place(right, COLUMNS, code.number(k), code.mul(rest, code.number(2))), 8)
            total = code.fused(code.spread(number, 2), pair, total)
        for r in range(2):
            quad = code.insert_value(quad, code.extract_element(total, ir.Constant(I32, r)), 2 * half + r)
    code.ret(quad)
    return str(module)
