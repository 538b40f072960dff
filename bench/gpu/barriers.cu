// Microbenchmarks of what a step of a recurrence needs between blocks, and of the arithmetic in a block.
// Each kernel repeats one thing; cycles go to `out`, or the host times the launch.

#include <cooperative_groups.h>
#include <cstdint>

namespace cg = cooperative_groups;
typedef unsigned int u32;
typedef unsigned long long u64;
extern __shared__ float4 state[];

__device__ u32 acquire(const u32 *p) {
    u32 v;
    asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ void release(u32 *p, u32 v) { asm volatile("st.release.gpu.b32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ void count(u32 *p) { asm volatile("red.release.gpu.add.u32 [%0], 1;" ::"l"(p) : "memory"); }
__device__ u32 cluster_address(const void *p, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((u32)__cvta_generic_to_shared(p)), "r"(rank));
    return there;
}
__device__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- barriers of a grid

extern "C" __global__ void barrier_cooperative_groups(u32 *memory, int rounds) {
    for (int i = 0; i < rounds; i++) cg::this_grid().sync();
}

extern "C" __global__ void barrier_flip(u32 *memory, int rounds) {
    for (int i = 0; i < rounds; i++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 add = blockIdx.x ? 1 : 0x80000000u - (gridDim.x - 1), old;
            asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;" : "=r"(old) : "l"(memory), "r"(add) : "memory");
            while (!((old ^ acquire(memory)) & 0x80000000u)) {}
        }
        __syncthreads();
    }
}

extern "C" __global__ void barrier_counter(u32 *memory, int rounds) {
    for (int i = 0; i < rounds; i++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            count(memory);
            while (acquire(memory) < (i + 1) * gridDim.x) {}
        }
        __syncthreads();
    }
}

extern "C" __global__ void barrier_flags(u32 *memory, int rounds) {  // a flag per block; each is polled by a thread
    for (int i = 0; i < rounds; i++) {
        __syncthreads();
        if (threadIdx.x == 0) release(memory + 32 * blockIdx.x, i + 1);
        for (u32 b = threadIdx.x; b < gridDim.x; b += blockDim.x)
            while (acquire(memory + 32 * b) <= i) {}
        __syncthreads();
    }
}

// ---- exchange through the second cache: each block publishes `words` numbers, and each reads those of all

extern "C" __global__ void exchange_counter(u32 *memory, int rounds, int words) {
    float *data = (float *)(memory + 32);
    int all = words * gridDim.x;
    for (int i = 0; i < rounds; i++) {
        float *now = data + (i & 1) * all;
        for (int w = threadIdx.x; w < words; w += blockDim.x) now[blockIdx.x * words + w] = i + w;
        __syncthreads();
        if (threadIdx.x == 0) {
            count(memory);
            while (acquire(memory) < (i + 1) * gridDim.x) {}
        }
        __syncthreads();
        for (int w = threadIdx.x; w < all / 4; w += blockDim.x) {
            float4 v;
            asm volatile("ld.relaxed.gpu.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(now + 4 * w) : "memory");
            state[w] = v;
        }
        __syncthreads();
    }
}

extern "C" __global__ void exchange_tagged(u32 *memory, int rounds, int words) {  // the data is its own flag
    u64 *data = (u64 *)(memory + 32);
    int all = words * gridDim.x;
    for (int i = 0; i < rounds; i++) {
        u64 *now = data + (i & 1) * all;
        for (int w = threadIdx.x; w < words; w += blockDim.x) {
            u64 tagged = (u64)(i + 1) << 32 | __float_as_uint(i + w);
            asm volatile("st.relaxed.gpu.b64 [%0], %1;" ::"l"(now + blockIdx.x * words + w), "l"(tagged) : "memory");
        }
        for (int w = threadIdx.x; w < all; w += 8 * blockDim.x) {
            u64 v[8];
            bool early;
            do {
                early = false;
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    int at = w + n * blockDim.x < all ? w + n * blockDim.x : w;
                    asm volatile("ld.relaxed.gpu.b64 %0, [%1];" : "=l"(v[n]) : "l"(now + at) : "memory");
                }
                for (int n = 0; n < 8; n++) early |= v[n] >> 32 != i + 1;
            } while (early);
            for (int n = 0; n < 8; n++)
                if (w + n * blockDim.x < all) ((float *)state)[w + n * blockDim.x] = __uint_as_float((u32)v[n]);
        }
        __syncthreads();
    }
}

extern "C" __global__ void handoff(u32 *memory, int rounds, int partner, u64 *out) {  // there and back
    if (threadIdx.x || (blockIdx.x && blockIdx.x != partner)) return;
    u32 *mine = memory + (blockIdx.x ? 64 : 0), *theirs = memory + (blockIdx.x ? 0 : 64);
    u64 begun = clock64();
    for (int i = 0; i < rounds; i++) {
        if (blockIdx.x) while (acquire(theirs) <= i) {}
        release(mine, i + 1);
        if (!blockIdx.x) while (acquire(theirs) <= i) {}
    }
    if (!blockIdx.x) out[0] = clock64() - begun;
}

// ---- clusters

template <int SIZE> __device__ void barriers_of_cluster(int rounds) {
    for (int i = 0; i < rounds; i++) meet_cluster();
}

// Each thread pushes two pairs of numbers to all blocks of the cluster; who has counted all goes on.
template <int SIZE> __device__ void pushes_in_cluster(int rounds) {
    __shared__ u64 counts[2];
    u32 here = (u32)__cvta_generic_to_shared(counts), bytes = SIZE * blockDim.x * 16, rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0)
        for (int p = 0; p < 2; p++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(here + 8 * p)
                         : "memory");
    meet_cluster();
    u32 to[SIZE], counted[SIZE];
    for (int r = 0; r < SIZE; r++) to[r] = cluster_address(state, r), counted[r] = cluster_address(counts, r);
    for (int i = 0; i < rounds; i++) {
        int p = i & 1;
        if (threadIdx.x == 0)
            asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cta.b64 _, [%0], %1;" ::"r"(here + 8 * p),
                         "r"(bytes) : "memory");
        u32 place = ((p * SIZE + rank) * blockDim.x + threadIdx.x) * 16;
#pragma unroll
        for (int r = 0; r < SIZE; r++)
            for (int pair = 0; pair < 2; pair++)
                asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                                 to[r] + place + 8 * pair), "r"(i), "r"(pair), "r"(counted[r] + 8 * p) : "memory");
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra again;}" ::
                         "r"(here + 8 * p), "r"((i >> 1) & 1) : "memory");
    }
    meet_cluster();
}

// The same with ordinary stores, and a barrier of the cluster.
template <int SIZE> __device__ void stores_in_cluster(int rounds) {
    u32 rank, to[SIZE];
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    meet_cluster();
    for (int r = 0; r < SIZE; r++) to[r] = cluster_address(state, r);
    for (int i = 0; i < rounds; i++) {
        u32 place = (((i & 1) * SIZE + rank) * blockDim.x + threadIdx.x) * 16;
#pragma unroll
        for (int r = 0; r < SIZE; r++)
            asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to[r] + place), "r"(i) : "memory");
        meet_cluster();
    }
}

// Stores as above; then each warp arrives at a count in every block, instead of a barrier.
template <int SIZE> __device__ void arrivals_in_cluster(int rounds) {
    __shared__ u64 counts[2];
    u32 here = (u32)__cvta_generic_to_shared(counts), rank, lane = threadIdx.x % 32, to[SIZE];
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0)
        for (int p = 0; p < 2; p++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1; fence.mbarrier_init.release.cluster;" ::"r"(here + 8 * p),
                         "r"(SIZE * blockDim.x / 32) : "memory");
    meet_cluster();
    u32 counted = cluster_address(counts, lane % SIZE);
    for (int r = 0; r < SIZE; r++) to[r] = cluster_address(state, r);
    for (int i = 0; i < rounds; i++) {
        int p = i & 1;
        u32 place = ((p * SIZE + rank) * blockDim.x + threadIdx.x) * 16;
#pragma unroll
        for (int r = 0; r < SIZE; r++)
            asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to[r] + place), "r"(i) : "memory");
        __syncwarp();
        if (lane < SIZE)
            asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(counted + 8 * p) : "memory");
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra again;}" ::
                         "r"(here + 8 * p), "r"((i >> 1) & 1) : "memory");
    }
    meet_cluster();
}

// The share of a block is written to its own memory, and copied to each other block by one instruction.
template <int SIZE> __device__ void copies_in_cluster(int rounds) {
    __shared__ u64 counts[2];
    u32 here = (u32)__cvta_generic_to_shared(counts), own = (u32)__cvta_generic_to_shared(state), rank;
    u32 bytes = blockDim.x * 16, other = threadIdx.x;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0)
        for (int p = 0; p < 2; p++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(here + 8 * p)
                         : "memory");
    meet_cluster();
    u32 to = cluster_address(state, other % SIZE), counted = cluster_address(counts, other % SIZE);
    for (int i = 0; i < rounds; i++) {
        int p = i & 1;
        if (threadIdx.x == 0)
            asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cta.b64 _, [%0], %1;" ::"r"(here + 8 * p),
                         "r"((SIZE - 1) * bytes) : "memory");
        u32 share = (p * SIZE + rank) * bytes;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(own + share + threadIdx.x * 16), "r"(i) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (other < SIZE && other != rank)
            asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                             to + share), "r"(own + share), "r"(bytes), "r"(counted + 8 * p) : "memory");
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra again;}" ::
                         "r"(here + 8 * p), "r"((i >> 1) & 1) : "memory");
    }
    meet_cluster();
}

#define CLUSTER(SIZE)                                                                                       \
    extern "C" __global__ void __cluster_dims__(SIZE) cluster_barrier_##SIZE(int rounds) {                  \
        barriers_of_cluster<SIZE>(rounds);                                                                  \
    }                                                                                                       \
    extern "C" __global__ void __cluster_dims__(SIZE) cluster_push_##SIZE(int rounds) {                     \
        pushes_in_cluster<SIZE>(rounds);                                                                    \
    }                                                                                                       \
    extern "C" __global__ void __cluster_dims__(SIZE) cluster_store_##SIZE(int rounds) {                    \
        stores_in_cluster<SIZE>(rounds);                                                                    \
    }                                                                                                       \
    extern "C" __global__ void __cluster_dims__(SIZE) cluster_arrive_##SIZE(int rounds) {                   \
        arrivals_in_cluster<SIZE>(rounds);                                                                  \
    }                                                                                                       \
    extern "C" __global__ void __cluster_dims__(SIZE) cluster_copy_##SIZE(int rounds) {                     \
        copies_in_cluster<SIZE>(rounds);                                                                    \
    }
CLUSTER(2)
CLUSTER(4)
CLUSTER(8)
CLUSTER(16)
