"""The functions that a kernel calls, as LLVM code for a GPU; `emulation/functions.py` has those for the CPU.

    thread, block           who runs
    threads_of_block        the threads of a block
    blocks_launched         the blocks of the launch
    shared, in_main         the block's shared memory; a word as an address in main memory
    barrier, warp_barrier   of all threads of a block; of a warp
    any_of_block            a barrier of a block: whether a number of any of its threads is not 0
    shuffle_down_i32, ...   a number of the lane that is some lanes further, one's own beyond the last
    shuffle_xor_float32     a number of the lane whose number differs in some bits
    record_error            keeps what the first thread that calls it has found
    wide_product            the product of two numbers of 32 bits, of 64 bits
    anew                    an integer as it is, which LLVM takes for another one each time
    prefetch                brings what lies at an address in main memory into the second cache
    fmod, fmodf             remainders of floats, exact as those of C
    acquire, release        of a counter in main memory
    from_cache              reads 16 bytes that another block has written
    write_tagged            writes a number and a tag; one that reads them sees both or neither
    write_word              writes 32 bits, which another block reads
    read_tagged, pause      reads two numbers with their tags; between two such reads of the same
    tf32, tf32_by           a number rounded to 10 bits; by half of the last digit, which is given
    pack                    two numbers rounded to bfloat16, in one register
    cut, pack_cut           a number cut off after 7 bits, as bfloat16 has; two so, in one register
    pack_half, unpack_half  two numbers rounded to float16, in one register; both numbers of such a register
    mma8, mma16             the product of the tensor cores, by all lanes of a warp, of tf32 and of bfloat16
    exp2, reciprocal, root  2 ** x, 1 / x and the square root of x, by approximate instructions
    quotient                a / b likewise
    write_to                writes 16 bytes to the shared memory of another block of the cluster
    arrive, wait            the two halves of a barrier of all blocks of a cluster

All lanes of a warp call `warp_barrier`, the shuffles and the products together, as all threads of a block
call `barrier` and `any_of_block`.
"""

from llvmlite import ir

F32 = ir.FloatType()
FOUR = ir.VectorType(F32, 4)
QUAD = ir.LiteralStructType([F32] * 4)
MMA_ARGUMENTS = ", ".join(f"float %{n}" for n in ["a0", "a1", "a2", "a3", "b0", "b1", "c0", "c1", "c2", "c3"])

BOTH = """
define float @tf32_by(float %x, i32 %half) alwaysinline { %b = bitcast float %x to i32
  %h = add i32 %b, %half %m = and i32 %h, -8192 %r = bitcast i32 %m to float ret float %r }
define float @tf32(float %x) alwaysinline { %r = call float @tf32_by(float %x, i32 4096) ret float %r }
define float @shuffle_down_float32(float %x, i32 %lanes) alwaysinline { %a = bitcast float %x to i32
  %b = call i32 @shuffle_down_i32(i32 %a, i32 %lanes) %r = bitcast i32 %b to float ret float %r }
define double @shuffle_down_float64(double %x, i32 %lanes) alwaysinline { %a = bitcast double %x to i64
  %b = call i64 @shuffle_down_i64(i64 %a, i32 %lanes) %r = bitcast i64 %b to double ret double %r }
define float @shuffle_xor_float32(float %x, i32 %bits) alwaysinline { %a = bitcast float %x to i32
  %b = call i32 @shuffle_xor_i32(i32 %a, i32 %bits) %r = bitcast i32 %b to float ret float %r }
define float @cut(float %x) alwaysinline { %b = bitcast float %x to i32
  %m = and i32 %b, -65536 %r = bitcast i32 %m to float ret float %r }
define float @pack_cut(float %a, float %b) alwaysinline { %x = bitcast float %a to i32
  %y = bitcast float %b to i32 %l = lshr i32 %x, 16 %h = and i32 %y, -65536 %p = or i32 %l, %h
  %r = bitcast i32 %p to float ret float %r }
define float @pack_half(float %a, float %b) alwaysinline { %x = fptrunc float %a to half
  %y = fptrunc float %b to half %u = bitcast half %x to i16 %v = bitcast half %y to i16
  %l = zext i16 %u to i32 %w = zext i16 %v to i32 %h = shl i32 %w, 16 %p = or i32 %l, %h
  %r = bitcast i32 %p to float ret float %r }
define {float, float} @unpack_half(float %x) alwaysinline { %b = bitcast float %x to i32
  %l = trunc i32 %b to i16 %s = lshr i32 %b, 16 %h = trunc i32 %s to i16
  %c = bitcast i16 %l to half %d = bitcast i16 %h to half
  %e = fpext half %c to float %f = fpext half %d to float %p = insertvalue {float, float} undef, float %e, 0
  %r = insertvalue {float, float} %p, float %f, 1 ret {float, float} %r }
define void @record_error(ptr %errors, i64 %node, i64 %value, i64 %row) alwaysinline {
  %pair = cmpxchg ptr %errors, i64 0, i64 1 monotonic monotonic %first = extractvalue {i64, i1} %pair, 1
  br i1 %first, label %keep, label %out
keep: %a = getelementptr i64, ptr %errors, i64 1 store i64 %node, ptr %a
  %b = getelementptr i64, ptr %errors, i64 2 store i64 %value, ptr %b
  %c = getelementptr i64, ptr %errors, i64 3 store i64 %row, ptr %c br label %out
out: ret void }
"""
"""The code that is the same on both. An instruction of the GPU rounds to tf32 too, with the same result, but
takes longer.
"""

GPU = """
@memory = external addrspace(3) global [0 x float], align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier0() convergent
declare void @llvm.nvvm.bar.warp.sync(i32) convergent
declare i32 @llvm.nvvm.shfl.sync.down.i32(i32, i32, i32, i32) convergent
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32) convergent
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
define i32 @threads_of_block() alwaysinline { %1 = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x() ret i32 %1 }
define i32 @blocks_launched() alwaysinline { %1 = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x() ret i32 %1 }
define i32 @thread() alwaysinline { %1 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x() ret i32 %1 }
define i32 @block() alwaysinline { %1 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x() ret i32 %1 }
define ptr @shared() alwaysinline { ret ptr addrspacecast (ptr addrspace(3) @memory to ptr) }
define i32 @place(i32 %offset) alwaysinline {
  %1 = add i32 %offset, ptrtoint (ptr addrspace(3) @memory to i32) ret i32 %1 }
define ptr @in_main(i64 %p) alwaysinline {
  %1 = inttoptr i64 %p to ptr addrspace(1)  %2 = addrspacecast ptr addrspace(1) %1 to ptr  ret ptr %2 }
define void @barrier() alwaysinline convergent { call void @llvm.nvvm.barrier0() ret void }
define void @warp_barrier() alwaysinline convergent { call void @llvm.nvvm.bar.warp.sync(i32 -1) ret void }
define i32 @any_of_block(i32 %x) alwaysinline convergent {
  %r = call i32 asm sideeffect "{.reg .pred p<2>; setp.ne.u32 p0, $1, 0; bar.red.or.pred p1, 0, p0;
    selp.u32 $0, 1, 0, p1;}", "=r,r,~{memory}"(i32 %x) convergent ret i32 %r }
define i32 @shuffle_down_i32(i32 %x, i32 %lanes) alwaysinline convergent {
  %r = call i32 @llvm.nvvm.shfl.sync.down.i32(i32 -1, i32 %x, i32 %lanes, i32 31) ret i32 %r }
define i32 @shuffle_xor_i32(i32 %x, i32 %bits) alwaysinline convergent {
  %r = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %x, i32 %bits, i32 31) ret i32 %r }
define i64 @shuffle_down_i64(i64 %x, i32 %lanes) alwaysinline convergent {
  %low = trunc i64 %x to i32 %s = lshr i64 %x, 32 %high = trunc i64 %s to i32
  %a = call i32 @shuffle_down_i32(i32 %low, i32 %lanes) %b = call i32 @shuffle_down_i32(i32 %high, i32 %lanes)
  %c = zext i32 %a to i64 %d = zext i32 %b to i64 %e = shl i64 %d, 32 %r = or i64 %c, %e ret i64 %r }
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
define void @write_word(ptr %p, i32 %x) alwaysinline {
  call void asm sideeffect "st.relaxed.gpu.b32 [$0], $1;", "l,r,~{memory}"(ptr %p, i32 %x) ret void }
define {float, float, float, float} @read_tagged(ptr %p) alwaysinline {
  %1 = call {float, float, float, float} asm sideeffect "{.reg .b64 t<2>;
    ld.relaxed.gpu.v2.b64 {t0, t1}, [$4]; mov.b64 {$0, $1}, t0; mov.b64 {$2, $3}, t1;}",
    "=f,=f,=f,=f,l,~{memory}"(ptr %p)
  ret {float, float, float, float} %1 }
define void @pause() alwaysinline { ret void }
define i64 @anew(i64 %x) alwaysinline {
  %1 = call i64 asm sideeffect "mov.b64 $0, $1;", "=l,l"(i64 %x) ret i64 %1 }
define void @prefetch(ptr %p) alwaysinline {
  call void asm sideeffect "prefetch.global.L2 [$0];", "l"(ptr %p) ret void }
define i64 @wide_product(i32 %a, i32 %b) alwaysinline {
  %1 = call i64 asm "mul.wide.s32 $0, $1, $2;", "=l,r,r"(i32 %a, i32 %b) ret i64 %1 }
define float @exp2(float %x) alwaysinline {
  %1 = call float asm "ex2.approx.ftz.f32 $0, $1;", "=f,f"(float %x) ret float %1 }
define float @reciprocal(float %x) alwaysinline {
  %1 = call float asm "rcp.approx.ftz.f32 $0, $1;", "=f,f"(float %x) ret float %1 }
define float @root(float %x) alwaysinline {
  %1 = call float asm "sqrt.approx.f32 $0, $1;", "=f,f"(float %x) ret float %1 }
define float @quotient(float %a, float %b) alwaysinline {
  %1 = call float asm "div.full.f32 $0, $1, $2;", "=f,f,f"(float %a, float %b) ret float %1 }
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
"""The functions for a GPU."""
