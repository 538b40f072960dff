// Microbenchmarks of the arithmetic and the memory of one block: cycles of `rounds` repetitions go to `out`.

#include <cstdint>

typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __global__ void empty() {}

__device__ void tf32(float (&c)[4], u32 a, u32 b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a), "r"(b));
}
__device__ void bf16(float (&c)[4], u32 a, u32 b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a), "r"(b));
}
__device__ void warpgroup_tf32(float (&c)[4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ void warpgroup_bf16(float (&c)[4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The same with 64 columns, for the rate.
__device__ void wide_tf32(float (&c)[32], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32,%33,%34,%35}, %36, 1, 1, 1;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ void wide_bf16(float (&c)[32], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ void told(u64 begun, u64 *out, float *sink, float sum) {
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = clock64() - begun;
    if (sum == 1.25f) *sink = sum;
}

// CHAINS sums of a warp, each waiting for itself: one shows the latency, eight the rate.
#define WARP_PRODUCTS(NAME, CHAINS)                                                            \
    extern "C" __global__ void __launch_bounds__(512, 1) NAME##_##CHAINS(u64 *out, float *sink, int rounds) { \
        float c[CHAINS][4] = {};                                                               \
        u32 a = __float_as_uint(threadIdx.x * 0.01f), b = __float_as_uint(threadIdx.x * -0.01f);\
        __syncthreads();                                                                       \
        u64 begun = clock64();                                                                 \
        for (int i = 0; i < rounds; i++)                                                       \
            for (int n = 0; n < CHAINS; n++) NAME(c[n], a, b);                                 \
        float sum = 0;                                                                         \
        for (int n = 0; n < CHAINS; n++) sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];         \
        told(begun, out, sink, sum);                                                           \
    }
WARP_PRODUCTS(tf32, 1)
WARP_PRODUCTS(tf32, 8)
WARP_PRODUCTS(bf16, 1)
WARP_PRODUCTS(bf16, 8)

// The same by warp groups. A from registers, B (8 columns) from shared memory, without swizzle. Products of one
// sum are ordered by the hardware; they are waited for at the end of a round of 16.
#define GROUP_PRODUCTS(NAME, CHAINS, SUMS)                                                          \
    extern "C" __global__ void __launch_bounds__(512, 1) NAME##_##CHAINS(u64 *out, float *sink, int rounds) { \
        __shared__ alignas(1024) float tile[4096];                                             \
        for (int i = threadIdx.x; i < 4096; i += blockDim.x) tile[i] = i * 0.001f;             \
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                           \
        __syncthreads();                                                                       \
        u64 where = (__cvta_generic_to_shared(tile) & 0x3FFFF) >> 4;                           \
        u64 b = where | (u64)8 << 16 | (u64)8 << 32;                                           \
        float c[CHAINS][SUMS] = {};                                                            \
        u32 a[4];                                                                              \
        for (int n = 0; n < 4; n++) a[n] = __float_as_uint((threadIdx.x + n) * 0.01f);         \
        u64 begun = clock64();                                                                 \
        for (int i = 0; i < rounds; i += 16) {                                                 \
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                            \
            _Pragma("unroll") for (int j = 0; j < 16; j++)                                     \
                _Pragma("unroll")                                                              \
                for (int n = 0; n < CHAINS; n++) NAME(c[n], a, b);                             \
            asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory"); \
        }                                                                                      \
        float sum = 0;                                                                         \
        for (int n = 0; n < CHAINS; n++) sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];         \
        told(begun, out, sink, sum);                                                           \
    }
GROUP_PRODUCTS(warpgroup_tf32, 1, 4)
GROUP_PRODUCTS(warpgroup_tf32, 4, 4)
GROUP_PRODUCTS(warpgroup_bf16, 1, 4)
GROUP_PRODUCTS(warpgroup_bf16, 4, 4)
GROUP_PRODUCTS(wide_tf32, 1, 32)
GROUP_PRODUCTS(wide_bf16, 1, 32)

// 32 KB of shared memory, read again and again, 16 bytes per thread.
extern "C" __global__ void __launch_bounds__(1024, 1) shared_reads(u64 *out, float *sink, int rounds) {
    __shared__ float4 tile[2048];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) tile[i] = make_float4(i, i, i, i);
    __syncthreads();
    float4 sum = {};
    u32 here = (u32)__cvta_generic_to_shared(tile);
    u64 begun = clock64();
    for (int i = 0; i < rounds; i++) {
#pragma unroll 8
        for (int n = 0; n < 8; n++) {
            float4 v;
            asm volatile("ld.volatile.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                         : "r"(here + ((n * blockDim.x + threadIdx.x) * 16 & 32767)));
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
    }
    told(begun, out, sink, sum.x + sum.y + sum.z + sum.w);
}

extern "C" __global__ void __launch_bounds__(1024, 1) block_barrier(u64 *out, float *sink, int rounds) {
    __syncthreads();
    u64 begun = clock64();
    for (int i = 0; i < rounds; i++) __syncthreads();
    told(begun, out, sink, 0);
}

// Latency of a read from the second cache that goes past the first one: a chain of addresses.
extern "C" __global__ void cache_latency(u64 *out, float *sink, int rounds, u32 *chain) {
    u32 at = 0;
    for (int i = 0; i < 2048; i++) asm volatile("ld.relaxed.gpu.b32 %0, [%1];" : "=r"(at) : "l"(chain + at) : "memory");
    u64 begun = clock64();
    for (int i = 0; i < rounds; i++) asm volatile("ld.relaxed.gpu.b32 %0, [%1];" : "=r"(at) : "l"(chain + at) : "memory");
    told(begun, out, sink, __uint_as_float(at));
}

// All blocks read the same `pieces` of 16 bytes past the first cache, as they read a state that others wrote.
extern "C" __global__ void __launch_bounds__(1024, 1) cache_reads(u64 *out, float *sink, int rounds, float *data, int pieces) {
    float sum = 0;
    __syncthreads();
    u64 begun = clock64();
    for (int i = 0; i < rounds; i++) {
        for (int w = threadIdx.x; w < pieces; w += 4 * blockDim.x) {
            float4 v[4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int at = w + n * blockDim.x < pieces ? w + n * blockDim.x : w;
                asm volatile("ld.relaxed.gpu.v4.f32 {%0,%1,%2,%3}, [%4];"
                             : "=f"(v[n].x), "=f"(v[n].y), "=f"(v[n].z), "=f"(v[n].w) : "l"(data + 4 * at) : "memory");
            }
            for (int n = 0; n < 4; n++) sum += v[n].x + v[n].y + v[n].z + v[n].w;
        }
        __syncthreads();
    }
    told(begun, out, sink, sum);
}
