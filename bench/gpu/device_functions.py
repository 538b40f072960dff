"""The functions that a kernel calls, as LLVM code: for a GPU, and for the emulation on the CPU.

    thread, block           who runs
    shared, in_main         the block's shared memory; an address that is known to be in main memory
    barrier                 of all threads of a block
    acquire, release        of a counter in main memory
    from_cache              reads 16 bytes that another block has written
    write_tagged            writes a number and a tag; one that reads them sees both or neither
    read_tagged, pause      reads two numbers with their tags; between two such reads of the same
    tf32, pack              a number rounded to 10 bits; two numbers rounded to bfloat16, in one register
    mma8, mma16             the product of the tensor cores, by all lanes of a warp, of tf32 and of bfloat16
    exp2, reciprocal        2 ** x and 1 / x, by approximate instructions
    write_to                writes 16 bytes to the shared memory of another block of the cluster
    arrive, wait            the two halves of a barrier of all blocks of a cluster

On the CPU a thread is a fiber, and a fiber that waits gives way (`emulator.py`).
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.writing.code import I32, POINTER, Code

F32 = ir.FloatType()
VOID = ir.VoidType()
FOUR = ir.VectorType(F32, 4)
QUAD = ir.LiteralStructType([F32] * 4)
SCALAR = Processor("gpu", "", "", 4, 255)
"""A GPU as the writers of elementwise operations see it: one number per register."""
MMA_ARGUMENTS = ", ".join(f"float %{n}" for n in ["a0", "a1", "a2", "a3", "b0", "b1", "c0", "c1", "c2", "c3"])
SHARED_BYTES = 262144
"""The bytes of shared memory that the emulation gives a block."""

BOTH = """
define float @tf32(float %x) alwaysinline { %b = bitcast float %x to i32 %h = add i32 %b, 4096
  %m = and i32 %h, -8192 %r = bitcast i32 %m to float ret float %r }
"""
"""The code that is the same on both. An instruction of the GPU rounds to tf32 too, with the same result, but
takes longer.
"""

GPU = (
    """
@memory = external addrspace(3) global [0 x float], align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier0() convergent
define i32 @thread() alwaysinline { %1 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x() ret i32 %1 }
define i32 @block() alwaysinline { %1 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x() ret i32 %1 }
define ptr @shared() alwaysinline { ret ptr addrspacecast (ptr addrspace(3) @memory to ptr) }
define i32 @place(i32 %offset) alwaysinline {
  %1 = add i32 %offset, ptrtoint (ptr addrspace(3) @memory to i32) ret i32 %1 }
define ptr @in_main(ptr %p) alwaysinline {
  %1 = addrspacecast ptr %p to ptr addrspace(1)  %2 = addrspacecast ptr addrspace(1) %1 to ptr  ret ptr %2 }
define void @barrier() alwaysinline convergent { call void @llvm.nvvm.barrier0() ret void }
define i32 @acquire(ptr %p) alwaysinline {
  %1 = call i32 asm sideeffect "ld.acquire.gpu.b32 $0, [$1];", "=r,l,~{memory}"(ptr %p) ret i32 %1 }
define void @release(ptr %p) alwaysinline {
  call void asm sideeffect "red.release.gpu.add.u32 [$0], 1;", "l,~{memory}"(ptr %p) ret void }
define <4 x float> @from_cache(ptr %p) alwaysinline {
  %1 = call {float, float, float, float} asm sideeffect "ld.relaxed.gpu.v4.f32 {$0, $1, $2, $3}, [$4];",
    "=f,=f,=f,=f,l,~{memory}"(ptr %p)
  %a = extractvalue {float, float, float, float} %1, 0 %b = extractvalue {float, float, float, float} %1, 1
  %c = extractvalue {float, float, float, float} %1, 2 %d = extractvalue {float, float, float, float} %1, 3
  %2 = insertelement <4 x float> undef, float %a, i32 0 %3 = insertelement <4 x float> %2, float %b, i32 1
  %4 = insertelement <4 x float> %3, float %c, i32 2 %5 = insertelement <4 x float> %4, float %d, i32 3
  ret <4 x float> %5 }
define void @write_tagged(ptr %p, float %x, i32 %tag) alwaysinline {
  call void asm sideeffect "{.reg .b64 t; mov.b64 t, {$1, $2}; st.relaxed.gpu.b64 [$0], t;}",
    "l,f,r,~{memory}"(ptr %p, float %x, i32 %tag) ret void }
define {float, float, float, float} @read_tagged(ptr %p) alwaysinline {
  %1 = call {float, float, float, float} asm sideeffect "{.reg .b64 t<2>;
    ld.relaxed.gpu.v2.b64 {t0, t1}, [$4]; mov.b64 {$0, $1}, t0; mov.b64 {$2, $3}, t1;}",
    "=f,=f,=f,=f,l,~{memory}"(ptr %p)
  ret {float, float, float, float} %1 }
define void @pause() alwaysinline { ret void }
define float @exp2(float %x) alwaysinline {
  %1 = call float asm "ex2.approx.ftz.f32 $0, $1;", "=f,f"(float %x) ret float %1 }
define float @reciprocal(float %x) alwaysinline {
  %1 = call float asm "rcp.approx.ftz.f32 $0, $1;", "=f,f"(float %x) ret float %1 }
define float @pack(float %a, float %b) alwaysinline {
  %1 = call float asm "{.reg .b32 t; cvt.rn.bf16x2.f32 t, $2, $1; mov.b32 $0, t;}", "=f,f,f"(
    float %a, float %b) ret float %1 }
define {float, float, float, float} @mma8(ARGUMENTS) alwaysinline convergent {
  %r = call {float, float, float, float} asm "{.reg .b32 a<4>, b<2>;
    mov.b32 a0, $4; mov.b32 a1, $5; mov.b32 a2, $6; mov.b32 a3, $7; mov.b32 b0, $8; mov.b32 b1, $9;
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0, $1, $2, $3},
      {a0, a1, a2, a3}, {b0, b1}, {$10, $11, $12, $13};}",
    "=f,=f,=f,=f,f,f,f,f,f,f,f,f,f,f"(ARGUMENTS) convergent
  ret {float, float, float, float} %r }
define {float, float, float, float} @mma16(ARGUMENTS) alwaysinline convergent {
  %r = call {float, float, float, float} asm "{.reg .b32 a<4>, b<2>;
    mov.b32 a0, $4; mov.b32 a1, $5; mov.b32 a2, $6; mov.b32 a3, $7; mov.b32 b0, $8; mov.b32 b1, $9;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3},
      {a0, a1, a2, a3}, {b0, b1}, {$10, $11, $12, $13};}",
    "=f,=f,=f,=f,f,f,f,f,f,f,f,f,f,f"(ARGUMENTS) convergent
  ret {float, float, float, float} %r }
define void @write_to(i32 %rank, i32 %offset, <4 x float> %v) alwaysinline { %p = call i32 @place(i32 %offset)
  %a = extractelement <4 x float> %v, i32 0 %b = extractelement <4 x float> %v, i32 1
  %c = extractelement <4 x float> %v, i32 2 %d = extractelement <4 x float> %v, i32 3
  call void asm sideeffect "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1;
    st.shared::cluster.v4.f32 [there], {$2, $3, $4, $5};}", "r,r,f,f,f,f,~{memory}"(
    i32 %p, i32 %rank, float %a, float %b, float %c, float %d) ret void }
define void @arrive() alwaysinline convergent {
  call void asm sideeffect "barrier.cluster.arrive.release.aligned;", "~{memory}"() convergent ret void }
define void @wait() alwaysinline convergent {
  call void asm sideeffect "barrier.cluster.wait.acquire.aligned;", "~{memory}"() convergent ret void }
""".replace("ARGUMENTS", MMA_ARGUMENTS).replace("\n    ", " ")
    + BOTH
)

CPU = (
    """
@threads = global i32 0           ; threads per block
@group = global i32 0             ; blocks per group
@now = global i32 0               ; the fiber that runs; fiber = block * threads + thread
@progress = global i64 0          ; grows whenever a fiber that waits may go on
@contexts = global ptr null       ; ucontext_t of 1024 bytes for each fiber, the scheduler's first
@barriers = global ptr null       ; {i32 arrived, i32 generation} of each block, each warp, each group
@blocks = global i32 0
@memory = global ptr null         ; the shared memory of each block
@lanes = global ptr null          ; for each fiber the 6 numbers that it hands to mma
@arguments = global ptr null
declare i32 @swapcontext(ptr, ptr)
declare void @kernel(ptr)
define i32 @thread() { %n = load i32, ptr @now %t = load i32, ptr @threads %r = urem i32 %n, %t ret i32 %r }
define i32 @block() { %n = load i32, ptr @now %t = load i32, ptr @threads %r = udiv i32 %n, %t ret i32 %r }
define ptr @shared_of(i32 %b) { %m = load ptr, ptr @memory
  %r = getelementptr [SHARED x i8], ptr %m, i32 %b ret ptr %r }
define ptr @shared() { %b = call i32 @block() %r = call ptr @shared_of(i32 %b) ret ptr %r }
define ptr @in_main(ptr %p) { ret ptr %p }
define ptr @get_lanes() { %l = load ptr, ptr @lanes ret ptr %l }
define i32 @get_now() { %n = load i32, ptr @now ret i32 %n }
define void @give_way() { %n = load i32, ptr @now %c = load ptr, ptr @contexts %i = add i32 %n, 1
  %m = getelementptr [1024 x i8], ptr %c, i32 %i %r = call i32 @swapcontext(ptr %m, ptr %c) ret void }
define void @moved() { %p = load i64, ptr @progress %q = add i64 %p, 1 store i64 %q, ptr @progress ret void }
define void @meet(i32 %which, i32 %members) {
  %all = load ptr, ptr @barriers %a = getelementptr [2 x i32], ptr %all, i32 %which
  %g = getelementptr i32, ptr %a, i32 1 %old = load i32, ptr %g %n = load i32, ptr %a %m = add i32 %n, 1
  call void @moved() store i32 %m, ptr %a %last = icmp eq i32 %m, %members
  br i1 %last, label %open, label %wait
open: store i32 0, ptr %a %new = add i32 %old, 1 store i32 %new, ptr %g call void @moved() ret void
wait: call void @give_way() %seen = load i32, ptr %g %same = icmp eq i32 %seen, %old
  br i1 %same, label %wait, label %out
out: ret void }
define void @barrier() { %b = call i32 @block() %t = load i32, ptr @threads
  call void @meet(i32 %b, i32 %t) ret void }
define void @meet_warp() { %n = load i32, ptr @now %w = udiv i32 %n, 32 %b = load i32, ptr @blocks
  %i = add i32 %w, %b call void @meet(i32 %i, i32 32) ret void }
define void @meet_cluster() { %k = load i32, ptr @blocks %t = load i32, ptr @threads %s = load i32, ptr @group
  %b = call i32 @block() %g = udiv i32 %b, %s %all = mul i32 %k, %t %warps = udiv i32 %all, 32
  %i = add i32 %k, %warps %j = add i32 %i, %g %members = mul i32 %s, %t
  call void @meet(i32 %j, i32 %members) ret void }
define i32 @acquire(ptr %p) { call void @give_way() %v = load i32, ptr %p ret i32 %v }
define void @release(ptr %p) { %v = load i32, ptr %p %w = add i32 %v, 1 store i32 %w, ptr %p
  call void @moved() ret void }
define <4 x float> @from_cache(ptr %p) { %v = load <4 x float>, ptr %p, align 16 ret <4 x float> %v }
define void @write_tagged(ptr %p, float %x, i32 %tag) { store float %x, ptr %p
  %q = getelementptr i8, ptr %p, i32 4 store i32 %tag, ptr %q call void @moved() ret void }
define void @pause() { call void @give_way() ret void }
declare float @exp2f(float)
define float @exp2(float %x) { %1 = call float @exp2f(float %x) ret float %1 }
define float @reciprocal(float %x) { %1 = fdiv float 1.0, %x ret float %1 }
define {float, float, float, float} @read_tagged(ptr %p) {
  %v = load {float, float, float, float}, ptr %p ret {float, float, float, float} %v }
define i32 @bfloat16(float %x) { %b = bitcast float %x to i32 %s = lshr i32 %b, 16 %odd = and i32 %s, 1
  %h = add i32 %odd, 32767 %r = add i32 %b, %h %m = lshr i32 %r, 16 ret i32 %m }
define float @pack(float %a, float %b) { %x = call i32 @bfloat16(float %a) %y = call i32 @bfloat16(float %b)
  %z = shl i32 %y, 16 %p = or i32 %x, %z %r = bitcast i32 %p to float ret float %r }
define void @write_to(i32 %rank, i32 %offset, <4 x float> %v) {
  %b = call i32 @block() %s = load i32, ptr @group %g = udiv i32 %b, %s %f = mul i32 %g, %s
  %r = add i32 %f, %rank %m = call ptr @shared_of(i32 %r)
  %p = getelementptr i8, ptr %m, i32 %offset store <4 x float> %v, ptr %p, align 16 ret void }
define void @arrive() { ret void }   ; here the whole barrier is in its second half
define void @wait() { call void @meet_cluster() ret void }
define void @fiber() { %a = load ptr, ptr @arguments call void @kernel(ptr %a) call void @moved()
  %n = load i32, ptr @now %l = load ptr, ptr @lanes %d = getelementptr [6 x float], ptr %l, i32 %n
  store i32 -1, ptr %d call void @give_way() ret void }
""".replace("SHARED", str(SHARED_BYTES))
    + BOTH
)


def emulated_mma(depth: int) -> str:
    """Returns the product of the tensor cores for the CPU: the lanes of a warp lay down their operands, meet,
    and each adds up its own results. depth: 8 for tf32, 16 for bfloat16, of which a register holds two.
    """
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(QUAD, [F32] * 10), f"mma{depth}")
    code = Code(function.append_basic_block(), SCALAR)
    lanes = code.function_call("get_lanes", POINTER, [])
    now = code.function_call("get_now", I32, [])
    lane, first = code.and_(now, ir.Constant(I32, 31)), code.and_(now, ir.Constant(I32, -32))
    packed = depth // 8

    def place(fiber: ir.Value, register: int) -> ir.Value:
        """Returns the address of an operand of a fiber."""
        index = code.add(code.mul(fiber, ir.Constant(I32, 6)), ir.Constant(I32, register))
        return code.gep(lanes, [index], source_etype=F32)

    def element(row: ir.Value, k: int, register: int) -> ir.Value:
        """Reads element k of a row of an operand, whose registers are `register` and those after it."""
        in_register = k % (4 * packed)
        fiber = code.add(
            first, code.add(code.shl(row, ir.Constant(I32, 2)), ir.Constant(I32, in_register // packed))
        )
        if packed == 1:
            return code.read(F32, place(fiber, register), 4)
        bits = code.read(I32, place(fiber, register), 4)
        high = code.and_(bits, ir.Constant(I32, -65536)) if k % 2 else code.shl(bits, ir.Constant(I32, 16))
        return code.bitcast(high, F32)

    for register in range(6):
        code.write(function.args[register], place(now, register))
    code.function_call("meet_warp", VOID, [])
    row = code.lshr(lane, ir.Constant(I32, 2))
    column = code.shl(code.and_(lane, ir.Constant(I32, 3)), ir.Constant(I32, 1))
    results = list[ir.Value]()
    for r in range(4):  # c0, c1: row `row`; c2, c3: row + 8; columns 2 (lane % 4) and the next
        total, there = function.args[6 + r], code.add(column, ir.Constant(I32, r & 1))
        for k in range(depth):
            half = k // (depth // 2)
            total = code.fused(element(row, k, (r >> 1) + 2 * half), element(there, k, 4 + half), total)
        results.append(total)
    code.function_call("meet_warp", VOID, [])
    quad: ir.Value = ir.Constant(QUAD, ir.Undefined)
    for r, result in enumerate(results):
        quad = code.insert_value(quad, result, r)
    code.ret(quad)
    return str(module)
