/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction vocabulary in PTX, continued: what came with sm_90 (and the FP8 conversions of sm_89). A
 * function that is not called is not assembled, so the file may be included for sm_80 too. */
#ifndef FA_KERNELS_INSTRUCTIONS_PTX_SM90_H
#define FA_KERNELS_INSTRUCTIONS_PTX_SM90_H

#include "wgmma_registers.h"

/* ---- Warp operations, number formats, reductions ---- */

DEVICE int elect_one(void) {
    uint32_t elected;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected)::"memory");
    return (int)elected;
}

DEVICE uint32_t pack_e4m3x4(float v0, float v1, float v2, float v3) {
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v1), "f"(v0));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v3), "f"(v2));
    return (uint32_t)low | (uint32_t)high << 16;
}
DEVICE uint32_t pack_e5m2x4(float v0, float v1, float v2, float v3) {
    uint16_t low, high;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v1), "f"(v0));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v3), "f"(v2));
    return (uint32_t)low | (uint32_t)high << 16;
}
DEVICE void stmatrix_x2(uint32_t row_address, const uint32_t *r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};" ::"r"(row_address), "r"(r[0]), "r"(r[1])
                 : "memory");
}
DEVICE void stmatrix_x4(uint32_t row_address, const uint32_t *r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row_address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
DEVICE void stmatrix_x2_trans(uint32_t row_address, const uint32_t *r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(row_address), "r"(r[0]),
                 "r"(r[1])
                 : "memory");
}
DEVICE void stmatrix_x4_trans(uint32_t row_address, const uint32_t *r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row_address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

DEVICE void global_reduce_add_f32x4(float *address, f32x4 v) {
    asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* ---- mbarrier ---- */

DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void mbarrier_invalidate(uint32_t barrier) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
DEVICE void fence_mbarrier_init(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void mbarrier_arrive_count(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE int mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return (int)done;
}
DEVICE int mbarrier_test_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return (int)done;
}
DEVICE int mbarrier_try_wait_cluster(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
                 "selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return (int)done;
}

#ifdef KERNEL_DEBUG
#    define MBARRIER_TIME_LIMIT 20000000000ll /* clock cycles: about ten seconds */
#    define MBARRIER_WAIT(try_wait, barrier, parity) \
        long long start = clock64();                 \
        while (!try_wait(barrier, parity))           \
            if (clock64() - start > MBARRIER_TIME_LIMIT) __trap();
#else
#    define MBARRIER_WAIT(try_wait, barrier, parity) \
        while (!try_wait(barrier, parity)) {}
#endif

DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity){MBARRIER_WAIT(mbarrier_try_wait, barrier, parity)} DEVICE
    void mbarrier_wait_cluster(uint32_t barrier,
                               uint32_t parity){MBARRIER_WAIT(mbarrier_try_wait_cluster, barrier, parity)} DEVICE
    void mbarrier_arrive_cluster(uint32_t cluster_barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_barrier) : "memory");
}
DEVICE void mbarrier_arrive_expect_tx_cluster(uint32_t cluster_barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(cluster_barrier),
                 "r"(bytes)
                 : "memory");
}

DEVICE void fence_proxy_async_shared(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void fence_proxy_async_global(void) { asm volatile("fence.proxy.async.global;" ::: "memory"); }
DEVICE void fence_proxy_async(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

/* ---- TMA and bulk copies ---- */

DEVICE void tensor_map_prefetch(const fa_tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* The coordinates of each rank: operand text, and operands. Coordinates come last in the operand list. */
#define TMA_LOAD(rank, coordinates, ...)                                                             \
    asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx::bytes" \
                 " [%0], [%1, " coordinates "], [%2];" ::"r"(destination),                           \
                 "l"(map), "r"(barrier), __VA_ARGS__                                                 \
                 : "memory")
#define TMA_LOAD_HINT(rank, coordinates, ...)                                                                       \
    asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint" \
                 " [%0], [%1, " coordinates "], [%2], %3;" ::"r"(destination),                                      \
                 "l"(map), "r"(barrier), "l"(policy), __VA_ARGS__                                                   \
                 : "memory")
#define TMA_LOAD_MULTICAST(rank, coordinates, ...)                                                                   \
    asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx::bytes"                 \
                 ".multicast::cluster.L2::cache_hint [%0], [%1, " coordinates "], [%2], %4, %3;" ::"r"(destination), \
                 "l"(map), "r"(barrier), "l"(policy), "h"(cta_mask), __VA_ARGS__                                     \
                 : "memory")

DEVICE void tma_load_2d(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1) {
    TMA_LOAD("2d", "{%3,%4}", "r"(c0), "r"(c1));
}
DEVICE void tma_load_3d(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2) {
    TMA_LOAD("3d", "{%3,%4,%5}", "r"(c0), "r"(c1), "r"(c2));
}
DEVICE void tma_load_4d(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                        int c3) {
    TMA_LOAD("4d", "{%3,%4,%5,%6}", "r"(c0), "r"(c1), "r"(c2), "r"(c3));
}
DEVICE void tma_load_5d(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                        int c3, int c4) {
    TMA_LOAD("5d", "{%3,%4,%5,%6,%7}", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4));
}

DEVICE void tma_load_2d_hint(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                             uint64_t policy) {
    TMA_LOAD_HINT("2d", "{%4,%5}", "r"(c0), "r"(c1));
}
DEVICE void tma_load_3d_hint(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                             uint64_t policy) {
    TMA_LOAD_HINT("3d", "{%4,%5,%6}", "r"(c0), "r"(c1), "r"(c2));
}
DEVICE void tma_load_4d_hint(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                             int c3, uint64_t policy) {
    TMA_LOAD_HINT("4d", "{%4,%5,%6,%7}", "r"(c0), "r"(c1), "r"(c2), "r"(c3));
}
DEVICE void tma_load_5d_hint(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                             int c3, int c4, uint64_t policy) {
    TMA_LOAD_HINT("5d", "{%4,%5,%6,%7,%8}", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4));
}

DEVICE void tma_load_2d_multicast(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                                  uint16_t cta_mask, uint64_t policy) {
    TMA_LOAD_MULTICAST("2d", "{%5,%6}", "r"(c0), "r"(c1));
}
DEVICE void tma_load_3d_multicast(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                                  int c2, uint16_t cta_mask, uint64_t policy) {
    TMA_LOAD_MULTICAST("3d", "{%5,%6,%7}", "r"(c0), "r"(c1), "r"(c2));
}
DEVICE void tma_load_4d_multicast(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                                  int c2, int c3, uint16_t cta_mask, uint64_t policy) {
    TMA_LOAD_MULTICAST("4d", "{%5,%6,%7,%8}", "r"(c0), "r"(c1), "r"(c2), "r"(c3));
}
DEVICE void tma_load_5d_multicast(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                                  int c2, int c3, int c4, uint16_t cta_mask, uint64_t policy) {
    TMA_LOAD_MULTICAST("5d", "{%5,%6,%7,%8,%9}", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4));
}

#define TMA_STORE(rank, coordinates, ...)                                                        \
    asm volatile("cp.async.bulk.tensor." rank ".global.shared::cta.bulk_group [%0, " coordinates \
                 "], [%1];" ::"l"(map),                                                          \
                 "r"(source), __VA_ARGS__                                                        \
                 : "memory")
#define TMA_REDUCE_ADD(rank, coordinates, ...)                                                              \
    asm volatile("cp.reduce.async.bulk.tensor." rank ".global.shared::cta.add.bulk_group [%0, " coordinates \
                 "], [%1];" ::"l"(map),                                                                     \
                 "r"(source), __VA_ARGS__                                                                   \
                 : "memory")

DEVICE void tma_store_2d(const fa_tensor_map *map, uint32_t source, int c0, int c1) {
    TMA_STORE("2d", "{%2,%3}", "r"(c0), "r"(c1));
}
DEVICE void tma_store_3d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2) {
    TMA_STORE("3d", "{%2,%3,%4}", "r"(c0), "r"(c1), "r"(c2));
}
DEVICE void tma_store_4d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2, int c3) {
    TMA_STORE("4d", "{%2,%3,%4,%5}", "r"(c0), "r"(c1), "r"(c2), "r"(c3));
}
DEVICE void tma_store_5d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2, int c3, int c4) {
    TMA_STORE("5d", "{%2,%3,%4,%5,%6}", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4));
}
DEVICE void tma_reduce_add_2d(const fa_tensor_map *map, uint32_t source, int c0, int c1) {
    TMA_REDUCE_ADD("2d", "{%2,%3}", "r"(c0), "r"(c1));
}
DEVICE void tma_reduce_add_3d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2) {
    TMA_REDUCE_ADD("3d", "{%2,%3,%4}", "r"(c0), "r"(c1), "r"(c2));
}
DEVICE void tma_reduce_add_4d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2, int c3) {
    TMA_REDUCE_ADD("4d", "{%2,%3,%4,%5}", "r"(c0), "r"(c1), "r"(c2), "r"(c3));
}
DEVICE void tma_reduce_add_5d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2, int c3, int c4) {
    TMA_REDUCE_ADD("5d", "{%2,%3,%4,%5,%6}", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4));
}

DEVICE void bulk_load(uint32_t destination, const void *source, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
}
DEVICE void bulk_store(void *destination, uint32_t source, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source),
                 "r"(bytes)
                 : "memory");
}
DEVICE void bulk_reduce_add_f32(float *destination, uint32_t source, uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination),
                 "r"(source), "r"(bytes)
                 : "memory");
}
DEVICE void bulk_commit_group(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEVICE void bulk_wait_group(int pending){WAIT_FOR_PENDING("cp.async.bulk.wait_group", pending)} DEVICE
    void bulk_wait_group_read(int pending){WAIT_FOR_PENDING("cp.async.bulk.wait_group.read", pending)}

/* ---- wgmma ---- */

DEVICE uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes, uint32_t swizzle) {
    return WGMMA_DESCRIPTOR_BITS(address, leading_bytes, stride_bytes, swizzle);
}

#define wgmma_m64k16_ss(n, type, d, a_descriptor, b_descriptor, accumulate, a_major, b_major) \
    WGMMA_M64K16_SS(n, type, d, a_descriptor, b_descriptor, accumulate, a_major, b_major)
#define wgmma_m64k16_rs(n, type, d, a, b_descriptor, accumulate, b_major) \
    WGMMA_M64K16_RS(n, type, d, a, b_descriptor, accumulate, b_major)
#define wgmma_m64k32_ss(n, a_type, b_type, d, a_descriptor, b_descriptor, accumulate) \
    WGMMA_M64K32_SS(n, a_type, b_type, d, a_descriptor, b_descriptor, accumulate)
#define wgmma_m64k32_rs(n, a_type, b_type, d, a, b_descriptor, accumulate) \
    WGMMA_M64K32_RS(n, a_type, b_type, d, a, b_descriptor, accumulate)

/* The two immediate ones scale a and b. */
#define WGMMA_M64K16_SS(n, type, d, a_descriptor, b_descriptor, accumulate, a_major, b_major)              \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " WGMMA_OPERAND_##n##_2                                    \
                 ", 0;\n"                                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " " WGMMA_REGISTERS_##n \
                 ", " WGMMA_OPERAND_##n##_0 ", " WGMMA_OPERAND_##n##_1 ", p, 1, 1, " WGMMA_OPERAND_##n##_3 \
                 ", " WGMMA_OPERAND_##n##_4 ";}"                                                           \
                 : WGMMA_ACCUMULATORS_##n(d)                                                               \
                 : "l"(a_descriptor), "l"(b_descriptor), "r"((int)(accumulate)), "n"(a_major), "n"(b_major))
#define WGMMA_M64K16_RS(n, type, d, a, b_descriptor, accumulate, b_major)                                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " WGMMA_OPERAND_##n##_5                                           \
                 ", 0;\n"                                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " " WGMMA_REGISTERS_##n        \
                 ", {" WGMMA_OPERAND_##n##_0 "," WGMMA_OPERAND_##n##_1 "," WGMMA_OPERAND_##n##_2                  \
                 "," WGMMA_OPERAND_##n##_3 "}, " WGMMA_OPERAND_##n##_4 ", p, 1, 1, " WGMMA_OPERAND_##n##_6 ";}"   \
                 : WGMMA_ACCUMULATORS_##n(d)                                                                      \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b_descriptor), "r"((int)(accumulate)), \
                   "n"(b_major))
#define WGMMA_M64K32_SS(n, a_type, b_type, d, a_descriptor, b_descriptor, accumulate)                          \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " WGMMA_OPERAND_##n##_2                                        \
                 ", 0;\n"                                                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." #a_type "." #b_type " " WGMMA_REGISTERS_##n \
                 ", " WGMMA_OPERAND_##n##_0 ", " WGMMA_OPERAND_##n##_1 ", p, 1, 1;}"                           \
                 : WGMMA_ACCUMULATORS_##n(d)                                                                   \
                 : "l"(a_descriptor), "l"(b_descriptor), "r"((int)(accumulate)))
#define WGMMA_M64K32_RS(n, a_type, b_type, d, a, b_descriptor, accumulate)                                     \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " WGMMA_OPERAND_##n##_5                                        \
                 ", 0;\n"                                                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." #a_type "." #b_type " " WGMMA_REGISTERS_##n \
                 ", {" WGMMA_OPERAND_##n##_0 "," WGMMA_OPERAND_##n##_1 "," WGMMA_OPERAND_##n##_2               \
                 "," WGMMA_OPERAND_##n##_3 "}, " WGMMA_OPERAND_##n##_4 ", p, 1, 1;}"                           \
                 : WGMMA_ACCUMULATORS_##n(d)                                                                   \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b_descriptor), "r"((int)(accumulate)))

DEVICE void wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit_group(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_wait_group(int pending){WAIT_FOR_PENDING("wgmma.wait_group.sync.aligned", pending)}

DEVICE void register_fence_f32(float *registers, int count) {
    UNROLL for (int i = 0; i < count; i++) asm volatile("" : "+f"(registers[i])::"memory");
}
DEVICE void register_fence_u32(uint32_t *registers, int count) {
    UNROLL for (int i = 0; i < count; i++) asm volatile("" : "+r"(registers[i])::"memory");
}

#define set_max_registers_increase(count) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count))
#define set_max_registers_decrease(count) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count))

/* ---- Clusters ---- */

DEVICE uint32_t cluster_rank(void) {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
DEVICE uint32_t cluster_size(void) {
    uint32_t size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}
DEVICE void cluster_arrive(void) { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_arrive_relaxed(void) { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait(void) { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEVICE uint32_t cluster_map(uint32_t address, uint32_t rank) {
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}
DEVICE uint32_t cluster_load_u32(uint32_t cluster_address) {
    uint32_t value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(cluster_address));
    return value;
}
DEVICE float cluster_load_f32(uint32_t cluster_address) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(cluster_address));
    return value;
}
DEVICE f32x4 cluster_load_f32x4(uint32_t cluster_address) {
    f32x4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(cluster_address));
    return v;
}
DEVICE void cluster_store_u32(uint32_t cluster_address, uint32_t value) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(cluster_address), "r"(value) : "memory");
}
DEVICE void cluster_store_f32(uint32_t cluster_address, float value) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address), "f"(value) : "memory");
}
DEVICE void cluster_store_f32x4(uint32_t cluster_address, f32x4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(cluster_address), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}

/* ---- Dependent launches ---- */

DEVICE void grid_dependency_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void grid_dependency_launch(void) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#endif
