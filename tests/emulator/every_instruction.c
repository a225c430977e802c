/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that names every operation of the vocabulary once. It is compiled (cmake/gpu_tests.cmake), never run: it
 * proves that both implementations accept the same text. */
#include "instructions/instructions.h"

#if !defined(__CUDACC__) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#    define HAS_SM90 1
#else
#    define HAS_SM90 0
#endif

typedef struct {
    fa_tensor_map map;
    float *f32;
    uint32_t *u32;
    uint64_t *u64;
    int32_t *i32;
    uint8_t *bytes;
} every_params;

DEVICE float sum_f32x4(f32x4 v) { return v.x + v.y + v.z + v.w; }

DEVICE uint32_t place(void) {
    return thread_index() + block_threads() + lane_index() + warp_index() + warpgroup_index() + block_index_x() +
           block_index_y() + block_index_z() + grid_blocks_x() + grid_blocks_y() + grid_blocks_z() +
           (uint32_t)clock_cycles() + (uint32_t)has_sm90();
}

DEVICE void global_memory(const every_params *p) {
    uint32_t u = global_load_u8(p->bytes) + global_load_u16(p->bytes) + global_load_u32(p->u32) +
                 (uint32_t)global_load_u64(p->u64) + (uint32_t)global_load_i32(p->i32) +
                 (uint32_t)global_load_i64(p->u64);
    float f = global_load_f32(p->f32);
    f32x2 f2 = global_load_f32x2(p->f32);
    f32x4 f4 = global_load_f32x4(p->f32);
    u32x2 u2 = global_load_u32x2(p->u32);
    u32x4 u4 = global_load_u32x4(p->u32);
    global_store_u8(p->bytes, (uint8_t)u);
    global_store_u16(p->bytes, (uint16_t)u);
    global_store_u32(p->u32, u);
    global_store_u64(p->u64, u);
    global_store_i32(p->i32, (int32_t)u);
    global_store_f32(p->f32, f);
    global_store_f32x2(p->f32, f2);
    global_store_f32x4(p->f32, f4);
    global_store_u32x2(p->u32, u2);
    global_store_u32x4(p->u32, u4);
    global_store_release_u32(p->u32, global_load_acquire_u32(p->u32) + global_load_relaxed_u32(p->u32));
    global_atomic_add_f32(p->f32, f);
    global_atomic_add_i32(p->i32, 1);
    global_atomic_add_u64(p->u64, 1);
    global_store_u32(p->u32, global_atomic_add_u32(p->u32, 1) + global_atomic_max_u32(p->u32, 7) +
                                 global_atomic_cas_u32(p->u32, 1, 2));
    fence_gpu();
}

DEVICE void shared_memory(const every_params *p, uint32_t base) {
    uint32_t u = shared_load_u8(base) + shared_load_u16(base) + shared_load_u32(base) +
                 (uint32_t)shared_load_i32(base) + (uint32_t)shared_load_u64(base);
    float f = shared_load_f32(base);
    shared_store_u8(base, (uint8_t)u);
    shared_store_u16(base, (uint16_t)u);
    shared_store_u32(base, u);
    shared_store_i32(base, (int32_t)u);
    shared_store_u64(base, u);
    shared_store_f32(base, f);
    shared_store_f32x2(base, shared_load_f32x2(base + 64));
    shared_store_f32x4(base, shared_load_f32x4(base + 64));
    shared_store_u32x2(base, shared_load_u32x2(base + 64));
    shared_store_u32x4(base, shared_load_u32x4(base + 64));
    shared_atomic_add_f32(base, f);
    shared_atomic_add_u32(swizzle_128b(base) + swizzle_64b(base) + swizzle_32b(base), 1);
    cp_async_16(base, p->bytes, 12);
    cp_async_commit_group();
    cp_async_wait_group(1);
    cp_async_wait_group(0);
}

DEVICE uint32_t warp_operations(const every_params *p, uint32_t base) {
    float f = global_load_f32(p->f32);
    uint32_t u = global_load_u32(p->u32);
    f += shuffle_xor_f32(f, 1) + shuffle_index_f32(f, 2) + shuffle_down_f32(f, 3) + shuffle_up_f32(f, 4);
    u += shuffle_xor_u32(u, 1) + shuffle_index_u32(u, 2) + shuffle_down_u32(u, 3) + shuffle_up_u32(u, 4);
    u += (uint32_t)vote_any(u > 1) + (uint32_t)vote_all(u > 2) + vote_ballot(u > 3);
    f = exp2_approx(f) + log2_approx(f) + rcp_approx(f) + tanh_approx(f) + rsqrt_approx(f);
    f32x2 a = unpack_bf16x2(pack_bf16x2(f, f + 1)), b = unpack_f16x2(pack_f16x2(f, f + 1));
    u += float_bits(a.x + b.y) + round_tf32(f) + byte_permute(u, u, 0x5410);
    global_store_f32(p->f32, bits_float(u));

    uint32_t m[4], n[2];
    float c[4] = {f, f, f, f};
    ldmatrix_x1(m, base);
    ldmatrix_x1_trans(m + 1, base);
    ldmatrix_x2(n, base);
    u += m[0] + m[1] + n[0] + n[1];
    ldmatrix_x2_trans(n, base);
    ldmatrix_x4(m, base);
    mma_m16n8k16_bf16(c, m, n);
    ldmatrix_x4_trans(m, base);
    mma_m16n8k16_f16(c, m, n);
    mma_m16n8k8_tf32(c, m, n);
    global_store_f32(p->f32 + 1, c[0] + c[1] + c[2] + c[3]);
    warp_sync();
    block_sync();
    named_barrier_arrive(1, 64);
    named_barrier_sync(1, 64);
    return u;
}

#if HAS_SM90

DEVICE uint32_t barriers(const every_params *p, uint32_t bar) {
    mbarrier_init(bar, 1);
    fence_mbarrier_init();
    mbarrier_arrive(bar);
    mbarrier_arrive_count(bar, 2);
    mbarrier_arrive_expect_tx(bar, 16);
    mbarrier_expect_tx(bar, 16);
    cp_async_mbarrier_arrive_noinc(bar);
    mbarrier_wait(bar, 0);
    mbarrier_wait_cluster(bar, 1);
    uint32_t remote = cluster_map(bar, 0);
    mbarrier_arrive_cluster(remote);
    mbarrier_arrive_expect_tx_cluster(remote, 16);
    uint32_t u = (uint32_t)mbarrier_try_wait(bar, 0) + (uint32_t)mbarrier_test_wait(bar, 0);
    mbarrier_invalidate(bar);
    cluster_arrive();
    cluster_wait();
    cluster_arrive_relaxed();
    cluster_wait();
    cluster_store_u32(remote + 64, cluster_load_u32(remote + 128));
    cluster_store_f32(remote + 64, cluster_load_f32(remote + 128));
    cluster_store_f32x4(remote + 64, cluster_load_f32x4(remote + 128));
    global_reduce_add_f32x4(p->f32, global_load_f32x4(p->f32 + 4));
    global_store_u32(p->u32, pack_e4m3x4(0, 1, 2, 3) + pack_e5m2x4(0, 1, 2, 3));
    return u + cluster_rank() + cluster_size();
}

DEVICE void copies(const every_params *p, uint32_t s, uint32_t bar) {
    const fa_tensor_map *map = &p->map;
    tensor_map_prefetch(map);
    if (elect_one()) {
        tma_load_2d(s, map, bar, 0, 1);
        tma_load_3d(s, map, bar, 0, 1, 2);
        tma_load_4d(s, map, bar, 0, 1, 2, 3);
        tma_load_5d(s, map, bar, 0, 1, 2, 3, 4);
        tma_load_2d_hint(s, map, bar, 0, 1, L2_EVICT_FIRST);
        tma_load_3d_hint(s, map, bar, 0, 1, 2, L2_EVICT_LAST);
        tma_load_4d_hint(s, map, bar, 0, 1, 2, 3, L2_EVICT_NORMAL);
        tma_load_5d_hint(s, map, bar, 0, 1, 2, 3, 4, L2_EVICT_LAST);
        tma_load_2d_multicast(s, map, bar, 0, 1, 3, L2_EVICT_LAST);
        tma_load_3d_multicast(s, map, bar, 0, 1, 2, 3, L2_EVICT_LAST);
        tma_load_4d_multicast(s, map, bar, 0, 1, 2, 3, 3, L2_EVICT_LAST);
        tma_load_5d_multicast(s, map, bar, 0, 1, 2, 3, 4, 3, L2_EVICT_LAST);
        bulk_load(s, p->f32, 64, bar);
        fence_proxy_async_shared();
        fence_proxy_async_global();
        fence_proxy_async();
        tma_store_2d(map, s, 0, 1);
        tma_store_3d(map, s, 0, 1, 2);
        tma_store_4d(map, s, 0, 1, 2, 3);
        tma_store_5d(map, s, 0, 1, 2, 3, 4);
        tma_reduce_add_2d(map, s, 0, 1);
        tma_reduce_add_3d(map, s, 0, 1, 2);
        tma_reduce_add_4d(map, s, 0, 1, 2, 3);
        tma_reduce_add_5d(map, s, 0, 1, 2, 3, 4);
        bulk_store(p->f32, s, 64);
        bulk_reduce_add_f32(p->f32, s, 64);
        bulk_commit_group();
        bulk_wait_group_read(1);
        bulk_wait_group(0);
    }
}

/* The accumulators of one instruction at a time are in flight, so that the compiler has no reason to complain. */
#    define FINISH(count)             \
        wgmma_commit_group();         \
        wgmma_wait_group(0);          \
        register_fence_f32(d, count); \
        wgmma_fence()

DEVICE void matrices(const every_params *p, uint32_t s) {
#    define TILE_N 176
    float d[TILE_N / 2];
    uint32_t a[4];
    ldmatrix_x4(a, s);
    UNROLL for (int i = 0; i < TILE_N / 2; i++) d[i] = 0;
    uint64_t k_major = wgmma_descriptor(s, 16, 1024, SWIZZLE_128B);
    uint64_t mn_major = wgmma_descriptor_advance(wgmma_descriptor(s, 4096, 1024, SWIZZLE_128B), 2048);
    register_fence_f32(d, TILE_N / 2);
    register_fence_u32(a, 4);
    wgmma_fence();
    wgmma_m64k16_ss(TILE_N, bf16, d, k_major, k_major, 0, K_MAJOR, K_MAJOR);
    FINISH(TILE_N / 2);
    wgmma_m64k16_ss(TILE_N, f16, d, mn_major, mn_major, 1, MN_MAJOR, MN_MAJOR);
    FINISH(TILE_N / 2);
    wgmma_m64k16_rs(TILE_N, bf16, d, a, mn_major, 1, MN_MAJOR);
    FINISH(TILE_N / 2);
    wgmma_m64k16_rs(TILE_N, f16, d, a, k_major, 1, K_MAJOR);
    FINISH(TILE_N / 2);
    wgmma_m64k32_ss(8, e4m3, e4m3, d, k_major, k_major, 1);
    FINISH(4);
    wgmma_m64k32_ss(8, e5m2, e4m3, d, k_major, k_major, 1);
    FINISH(4);
    wgmma_m64k32_rs(8, e4m3, e5m2, d, a, k_major, 1);
    FINISH(4);
    wgmma_m64k32_rs(8, e5m2, e5m2, d, a, k_major, 1);
    FINISH(4);
    float sum = 0;
    UNROLL for (int i = 0; i < TILE_N / 2; i++) sum += d[i];
    global_store_f32(p->f32 + thread_index(), sum);
    stmatrix_x2(s, a);
    stmatrix_x4(s, a);
    stmatrix_x2_trans(s, a);
    stmatrix_x4_trans(s, a);
}

#endif

KERNEL(fa_every_instruction, 256, 1, every_params, params) {
    uint32_t base = shared_base();
    uint32_t u = place();
    global_memory(params);
    shared_memory(params, base);
    u += warp_operations(params, base);
#if HAS_SM90
    grid_dependency_wait();
    u += barriers(params, base);
    copies(params, base + 1024, base);
    if (warpgroup_index() == 0) {
        set_max_registers_decrease(40);
        u += shared_load_u32x4(base).w;
    } else {
        set_max_registers_increase(216);
        matrices(params, base + 1024);
    }
    grid_dependency_launch();
#endif
    NO_UNROLL for (int i = 0; i < 4; i++) u += global_load_u32(params->u32 + i);
    global_store_f32(params->f32, sum_f32x4(global_load_f32x4(params->f32)) + (float)u);
}
