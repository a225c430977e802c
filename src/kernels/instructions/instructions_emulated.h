/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction vocabulary on the emulator, for host compilers. What each operation means and demands is said in
 * instructions.h, how it is emulated in src/emulator. */
#ifndef FA_KERNELS_INSTRUCTIONS_EMULATED_H
#define FA_KERNELS_INSTRUCTIONS_EMULATED_H

#include <string.h>

#include "../../emulator/operations.h"

#define KERNEL(name, max_threads, min_blocks, params_type, params) \
    KERNEL_EXPANDED(name, max_threads, params_type, params)
#define KERNEL_EXPANDED(name, max_threads, params_type, params)                                        \
    static void name##_body(const params_type *params);                                                \
    static void name##_entry(const void *params) { name##_body((const params_type *)params); }         \
    extern const fa_emulator_kernel name;                                                              \
    const fa_emulator_kernel name = {#name, name##_entry, max_threads, (uint32_t)sizeof(params_type)}; \
    static void name##_body(const params_type *params)

/* ---- Place in the grid ---- */

DEVICE uint32_t thread_index(void) { return fa_emulated_self->thread; }
DEVICE uint32_t block_threads(void) { return fa_emulated_self->threads; }
DEVICE uint32_t lane_index(void) { return fa_emulated_self->thread & 31u; }
DEVICE uint32_t warp_index(void) { return fa_emulated_self->thread >> 5; }
DEVICE uint32_t warpgroup_index(void) { return fa_emulated_self->thread >> 7; }
DEVICE uint32_t block_index_x(void) { return fa_emulated_self->block[0]; }
DEVICE uint32_t block_index_y(void) { return fa_emulated_self->block[1]; }
DEVICE uint32_t block_index_z(void) { return fa_emulated_self->block[2]; }
DEVICE uint32_t grid_blocks_x(void) { return fa_emulated_self->grid[0]; }
DEVICE uint32_t grid_blocks_y(void) { return fa_emulated_self->grid[1]; }
DEVICE uint32_t grid_blocks_z(void) { return fa_emulated_self->grid[2]; }
DEVICE int has_sm90(void) { return fa_emulated_sm() >= 90; }
DEVICE uint64_t clock_cycles(void) { return fa_emulated_clock(); }

/* ---- Global and shared memory ---- */

#define EMULATED_ACCESS(type, name, floats)                              \
    DEVICE type global_load_##name(const void *address) {                \
        type value;                                                      \
        fa_emulated_global_load(address, &value, sizeof value);          \
        return value;                                                    \
    }                                                                    \
    DEVICE void global_store_##name(void *address, type value) {         \
        fa_emulated_global_store(address, &value, sizeof value, floats); \
    }                                                                    \
    DEVICE type shared_load_##name(uint32_t address) {                   \
        type value;                                                      \
        fa_emulated_shared_load(address, &value, sizeof value);          \
        return value;                                                    \
    }                                                                    \
    DEVICE void shared_store_##name(uint32_t address, type value) {      \
        fa_emulated_shared_store(address, &value, sizeof value, floats); \
    }

EMULATED_ACCESS(uint8_t, u8, false)
EMULATED_ACCESS(uint16_t, u16, false)
EMULATED_ACCESS(uint32_t, u32, false)
EMULATED_ACCESS(uint64_t, u64, false)
EMULATED_ACCESS(int32_t, i32, false)
EMULATED_ACCESS(float, f32, true)
EMULATED_ACCESS(f32x2, f32x2, true)
EMULATED_ACCESS(f32x4, f32x4, true)
EMULATED_ACCESS(u32x2, u32x2, false)
EMULATED_ACCESS(u32x4, u32x4, false)

DEVICE int64_t global_load_i64(const void *address) {
    int64_t value;
    fa_emulated_global_load(address, &value, sizeof value);
    return value;
}

DEVICE uint32_t global_load_acquire_u32(const uint32_t *address) { return fa_emulated_global_load_acquire(address); }
DEVICE uint32_t global_load_relaxed_u32(const uint32_t *address) { return fa_emulated_global_load_relaxed(address); }
DEVICE void global_store_release_u32(uint32_t *address, uint32_t value) {
    fa_emulated_global_store_release(address, value);
}
DEVICE float global_atomic_add_f32(float *address, float value) { return fa_emulated_global_add_f32(address, value); }
DEVICE int32_t global_atomic_add_i32(int32_t *address, int32_t value) {
    return (int32_t)fa_emulated_global_add_u32((uint32_t *)address, (uint32_t)value);
}
DEVICE uint32_t global_atomic_add_u32(uint32_t *address, uint32_t value) {
    return fa_emulated_global_add_u32(address, value);
}
DEVICE uint64_t global_atomic_add_u64(uint64_t *address, uint64_t value) {
    return fa_emulated_global_add_u64(address, value);
}
DEVICE uint32_t global_atomic_max_u32(uint32_t *address, uint32_t value) {
    return fa_emulated_global_max_u32(address, value);
}
DEVICE uint32_t global_atomic_cas_u32(uint32_t *address, uint32_t expected, uint32_t value) {
    return fa_emulated_global_cas_u32(address, expected, value);
}
DEVICE void global_reduce_add_f32x4(float *address, f32x4 value) {
    const float v[4] = {value.x, value.y, value.z, value.w};
    fa_emulated_global_reduce_f32x4(address, v);
}

DEVICE uint32_t shared_base(void) { return fa_emulated_shared_base(); }
DEVICE float shared_atomic_add_f32(uint32_t address, float value) { return fa_emulated_shared_add_f32(address, value); }
DEVICE uint32_t shared_atomic_add_u32(uint32_t address, uint32_t value) {
    return fa_emulated_shared_add_u32(address, value);
}

DEVICE void cp_async_16(uint32_t destination, const void *source, uint32_t source_bytes) {
    fa_emulated_cp_async_16(destination, source, source_bytes);
}
DEVICE void cp_async_commit_group(void) { fa_emulated_cp_async_commit_group(); }
DEVICE void cp_async_wait_group(int pending) { fa_emulated_cp_async_wait_group(pending); }
DEVICE void cp_async_mbarrier_arrive_noinc(uint32_t barrier) { fa_emulated_cp_async_mbarrier_arrive_noinc(barrier); }

/* ---- Barriers and fences ---- */

DEVICE void block_sync(void) { fa_emulated_block_sync(); }
DEVICE void warp_sync(void) { fa_emulated_warp_sync(); }
DEVICE void named_barrier_sync(uint32_t barrier, uint32_t threads) {
    fa_emulated_named_barrier(barrier, threads, true);
}
DEVICE void named_barrier_arrive(uint32_t barrier, uint32_t threads) {
    fa_emulated_named_barrier(barrier, threads, false);
}
DEVICE void fence_gpu(void) { fa_emulated_fence_gpu(); }

/* ---- Warp operations ---- */

DEVICE uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
DEVICE float bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#define EMULATED_SHUFFLE(name, kind)                                               \
    DEVICE uint32_t shuffle_##name##_u32(uint32_t value, uint32_t argument) {      \
        return fa_emulated_shuffle(kind, value, argument);                         \
    }                                                                              \
    DEVICE float shuffle_##name##_f32(float value, uint32_t argument) {            \
        return bits_float(fa_emulated_shuffle(kind, float_bits(value), argument)); \
    }

EMULATED_SHUFFLE(xor, FA_SHUFFLE_XOR)
EMULATED_SHUFFLE(index, FA_SHUFFLE_INDEX)
EMULATED_SHUFFLE(down, FA_SHUFFLE_DOWN)
EMULATED_SHUFFLE(up, FA_SHUFFLE_UP)

DEVICE int vote_any(int predicate) { return fa_emulated_ballot(predicate != 0) != 0; }
DEVICE int vote_all(int predicate) { return fa_emulated_ballot(predicate != 0) == 0xFFFFFFFFu; }
DEVICE uint32_t vote_ballot(int predicate) { return fa_emulated_ballot(predicate != 0); }
DEVICE int elect_one(void) { return fa_emulated_elect_one(); }

/* ---- Approximate functions and number formats ---- */

DEVICE float exp2_approx(float x) { return fa_emulated_exp2(x); }
DEVICE float log2_approx(float x) { return fa_emulated_log2(x); }
DEVICE float rcp_approx(float x) { return fa_emulated_rcp(x); }
DEVICE float tanh_approx(float x) { return fa_emulated_tanh(x); }
DEVICE float rsqrt_approx(float x) { return fa_emulated_rsqrt(x); }

DEVICE uint32_t pack_bf16x2(float low, float high) { return fa_emulated_pack_bf16x2(low, high); }
DEVICE uint32_t pack_f16x2(float low, float high) { return fa_emulated_pack_f16x2(low, high); }
DEVICE uint32_t pack_e4m3x4(float v0, float v1, float v2, float v3) {
    const float v[4] = {v0, v1, v2, v3};
    return fa_emulated_pack_e4m3x4(v);
}
DEVICE uint32_t pack_e5m2x4(float v0, float v1, float v2, float v3) {
    const float v[4] = {v0, v1, v2, v3};
    return fa_emulated_pack_e5m2x4(v);
}
DEVICE f32x2 unpack_bf16x2(uint32_t packed) {
    f32x2 v = {bits_float(packed << 16), bits_float(packed & 0xFFFF0000u)};
    return v;
}
DEVICE f32x2 unpack_f16x2(uint32_t packed) {
    f32x2 v = {fa_emulated_unpack_f16(packed & 0xFFFFu), fa_emulated_unpack_f16(packed >> 16)};
    return v;
}
/* Adds half of the last kept place (bit 12) to the magnitude and cuts: ties go away from zero. NaN stays NaN. */
DEVICE uint32_t round_tf32(float x) {
    uint32_t bits = float_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFFFFFFu;
    if ((bits & 0x7FFFFFFFu) == 0x7F800000u) return bits;
    return (bits + 0x1000u) & 0xFFFFE000u;
}
DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (uint32_t i = 0; i < 4; i++) result |= (uint32_t)(bytes >> (8 * (selector >> (4 * i) & 7u)) & 0xFFu) << (8 * i);
    return result;
}

/* ---- Matrix fragments and mma.sync ---- */

DEVICE void ldmatrix_x1(uint32_t *destination, uint32_t row_address) {
    fa_emulated_ldmatrix(destination, row_address, 1, false);
}
DEVICE void ldmatrix_x2(uint32_t *destination, uint32_t row_address) {
    fa_emulated_ldmatrix(destination, row_address, 2, false);
}
DEVICE void ldmatrix_x4(uint32_t *destination, uint32_t row_address) {
    fa_emulated_ldmatrix(destination, row_address, 4, false);
}
DEVICE void ldmatrix_x1_trans(uint32_t *destination, uint32_t row_address) {
    fa_emulated_ldmatrix(destination, row_address, 1, true);
}
DEVICE void ldmatrix_x2_trans(uint32_t *destination, uint32_t row_address) {
    fa_emulated_ldmatrix(destination, row_address, 2, true);
}
DEVICE void ldmatrix_x4_trans(uint32_t *destination, uint32_t row_address) {
    fa_emulated_ldmatrix(destination, row_address, 4, true);
}
DEVICE void stmatrix_x2(uint32_t row_address, const uint32_t *source) {
    fa_emulated_stmatrix(row_address, source, 2, false);
}
DEVICE void stmatrix_x4(uint32_t row_address, const uint32_t *source) {
    fa_emulated_stmatrix(row_address, source, 4, false);
}
DEVICE void stmatrix_x2_trans(uint32_t row_address, const uint32_t *source) {
    fa_emulated_stmatrix(row_address, source, 2, true);
}
DEVICE void stmatrix_x4_trans(uint32_t row_address, const uint32_t *source) {
    fa_emulated_stmatrix(row_address, source, 4, true);
}

DEVICE void mma_m16n8k16_bf16(float *c, const uint32_t *a, const uint32_t *b) {
    fa_emulated_mma(FA_MATRIX_bf16, c, a, b);
}
DEVICE void mma_m16n8k16_f16(float *c, const uint32_t *a, const uint32_t *b) {
    fa_emulated_mma(FA_MATRIX_f16, c, a, b);
}
DEVICE void mma_m16n8k8_tf32(float *c, const uint32_t *a, const uint32_t *b) {
    fa_emulated_mma(FA_MATRIX_tf32, c, a, b);
}

/* ---- mbarrier ---- */

DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) { fa_emulated_mbarrier_init(barrier, arrivals); }
DEVICE void mbarrier_invalidate(uint32_t barrier) { fa_emulated_mbarrier_invalidate(barrier); }
DEVICE void fence_mbarrier_init(void) { fa_emulated_fence_mbarrier_init(); }
DEVICE void mbarrier_arrive(uint32_t barrier) { fa_emulated_mbarrier_arrive(barrier, 1); }
DEVICE void mbarrier_arrive_count(uint32_t barrier, uint32_t count) { fa_emulated_mbarrier_arrive(barrier, count); }
DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    fa_emulated_mbarrier_arrive_expect_tx(barrier, bytes);
}
DEVICE void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) { fa_emulated_mbarrier_expect_tx(barrier, bytes); }
DEVICE int mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
    return fa_emulated_mbarrier_try_wait(barrier, parity);
}
DEVICE int mbarrier_test_wait(uint32_t barrier, uint32_t parity) {
    return fa_emulated_mbarrier_test_wait(barrier, parity);
}
DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) { fa_emulated_mbarrier_wait(barrier, parity); }
DEVICE void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) { fa_emulated_mbarrier_wait(barrier, parity); }
DEVICE void mbarrier_arrive_cluster(uint32_t cluster_barrier) { fa_emulated_mbarrier_arrive(cluster_barrier, 1); }
DEVICE void mbarrier_arrive_expect_tx_cluster(uint32_t cluster_barrier, uint32_t bytes) {
    fa_emulated_mbarrier_arrive_expect_tx(cluster_barrier, bytes);
}
DEVICE void fence_proxy_async_shared(void) { fa_emulated_fence_proxy_async(); }
DEVICE void fence_proxy_async_global(void) {}
DEVICE void fence_proxy_async(void) { fa_emulated_fence_proxy_async(); }

/* ---- TMA and bulk copies ---- */

DEVICE void tensor_map_prefetch(const fa_tensor_map *map) { fa_emulated_tensor_map_prefetch(map); }

#define EMULATED_LIST(...) __VA_ARGS__
#define EMULATED_TMA(rank, parameters, values)                                                                  \
    DEVICE void tma_load_##rank##d(uint32_t destination, const fa_tensor_map *map, uint32_t barrier,            \
                                   EMULATED_LIST parameters) {                                                  \
        const int32_t coordinates[] = {EMULATED_LIST values};                                                   \
        fa_emulated_tma_load(rank, destination, map, barrier, coordinates, FA_TMA_OWN_BLOCK);                   \
    }                                                                                                           \
    DEVICE void tma_load_##rank##d_hint(uint32_t destination, const fa_tensor_map *map, uint32_t barrier,       \
                                        EMULATED_LIST parameters, uint64_t policy) {                            \
        const int32_t coordinates[] = {EMULATED_LIST values};                                                   \
        fa_emulated_check_cache_policy(policy);                                                                 \
        fa_emulated_tma_load(rank, destination, map, barrier, coordinates, FA_TMA_OWN_BLOCK);                   \
    }                                                                                                           \
    DEVICE void tma_load_##rank##d_multicast(uint32_t destination, const fa_tensor_map *map, uint32_t barrier,  \
                                             EMULATED_LIST parameters, uint16_t cta_mask, uint64_t policy) {    \
        const int32_t coordinates[] = {EMULATED_LIST values};                                                   \
        fa_emulated_check_cache_policy(policy);                                                                 \
        fa_emulated_tma_load(rank, destination, map, barrier, coordinates, cta_mask);                           \
    }                                                                                                           \
    DEVICE void tma_store_##rank##d(const fa_tensor_map *map, uint32_t source, EMULATED_LIST parameters) {      \
        const int32_t coordinates[] = {EMULATED_LIST values};                                                   \
        fa_emulated_tma_store(rank, map, source, coordinates, false);                                           \
    }                                                                                                           \
    DEVICE void tma_reduce_add_##rank##d(const fa_tensor_map *map, uint32_t source, EMULATED_LIST parameters) { \
        const int32_t coordinates[] = {EMULATED_LIST values};                                                   \
        fa_emulated_tma_store(rank, map, source, coordinates, true);                                            \
    }

EMULATED_TMA(2, (int c0, int c1), (c0, c1))
EMULATED_TMA(3, (int c0, int c1, int c2), (c0, c1, c2))
EMULATED_TMA(4, (int c0, int c1, int c2, int c3), (c0, c1, c2, c3))
EMULATED_TMA(5, (int c0, int c1, int c2, int c3, int c4), (c0, c1, c2, c3, c4))

DEVICE void bulk_load(uint32_t destination, const void *source, uint32_t bytes, uint32_t barrier) {
    fa_emulated_bulk_load(destination, source, bytes, barrier);
}
DEVICE void bulk_store(void *destination, uint32_t source, uint32_t bytes) {
    fa_emulated_bulk_store(destination, source, bytes, false);
}
DEVICE void bulk_reduce_add_f32(float *destination, uint32_t source, uint32_t bytes) {
    fa_emulated_bulk_store(destination, source, bytes, true);
}
DEVICE void bulk_commit_group(void) { fa_emulated_bulk_commit_group(); }
DEVICE void bulk_wait_group(int pending) { fa_emulated_bulk_wait_group(pending, false); }
DEVICE void bulk_wait_group_read(int pending) { fa_emulated_bulk_wait_group(pending, true); }

/* ---- wgmma ---- */

DEVICE uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes, uint32_t swizzle) {
    fa_emulated_check_descriptor(address, leading_bytes, stride_bytes, swizzle);
    return WGMMA_DESCRIPTOR_BITS(address, leading_bytes, stride_bytes, swizzle);
}

DEVICE void emulated_wgmma(float *d, uint32_t n, fa_matrix_type a_type, fa_matrix_type b_type, const uint32_t *a,
                           uint64_t a_descriptor, uint64_t b_descriptor, bool accumulate, uint32_t a_major,
                           uint32_t b_major) {
    const fa_wgmma operation = {n, a_type, b_type, accumulate, a_major, b_major, a, a_descriptor, b_descriptor};
    fa_emulated_wgmma(d, &operation);
}

/* Two steps, so that n and the types may be macros. */
#define wgmma_m64k16_ss(n, type, d, a_descriptor, b_descriptor, accumulate, a_major, b_major) \
    EMULATED_WGMMA(n, type, type, d, NULL, a_descriptor, b_descriptor, accumulate, a_major, b_major)
#define wgmma_m64k16_rs(n, type, d, a, b_descriptor, accumulate, b_major) \
    EMULATED_WGMMA(n, type, type, d, a, 0, b_descriptor, accumulate, K_MAJOR, b_major)
#define wgmma_m64k32_ss(n, a_type, b_type, d, a_descriptor, b_descriptor, accumulate) \
    EMULATED_WGMMA(n, a_type, b_type, d, NULL, a_descriptor, b_descriptor, accumulate, K_MAJOR, K_MAJOR)
#define wgmma_m64k32_rs(n, a_type, b_type, d, a, b_descriptor, accumulate) \
    EMULATED_WGMMA(n, a_type, b_type, d, a, 0, b_descriptor, accumulate, K_MAJOR, K_MAJOR)
#define EMULATED_WGMMA(n, a_type, b_type, d, a, a_descriptor, b_descriptor, accumulate, a_major, b_major)            \
    emulated_wgmma(d, n, FA_MATRIX_##a_type, FA_MATRIX_##b_type, a, a_descriptor, b_descriptor, accumulate, a_major, \
                   b_major)

DEVICE void wgmma_fence(void) { fa_emulated_wgmma_fence(); }
DEVICE void wgmma_commit_group(void) { fa_emulated_wgmma_commit_group(); }
DEVICE void wgmma_wait_group(int pending) { fa_emulated_wgmma_wait_group(pending); }
DEVICE void register_fence_f32(float *registers, int count) { fa_emulated_register_fence(registers, count); }
DEVICE void register_fence_u32(uint32_t *registers, int count) { fa_emulated_register_fence(registers, count); }

#define set_max_registers_increase(count) fa_emulated_set_max_registers(count, true)
#define set_max_registers_decrease(count) fa_emulated_set_max_registers(count, false)

/* ---- Clusters ---- */

DEVICE uint32_t cluster_rank(void) { return fa_emulated_self->rank; }
DEVICE uint32_t cluster_size(void) { return fa_emulated_self->cluster; }
DEVICE void cluster_arrive(void) { fa_emulated_cluster_arrive(true); }
DEVICE void cluster_arrive_relaxed(void) { fa_emulated_cluster_arrive(false); }
DEVICE void cluster_wait(void) { fa_emulated_cluster_wait(); }
DEVICE uint32_t cluster_map(uint32_t address, uint32_t rank) { return fa_emulated_cluster_map(address, rank); }
DEVICE uint32_t cluster_load_u32(uint32_t cluster_address) { return shared_load_u32(cluster_address); }
DEVICE float cluster_load_f32(uint32_t cluster_address) { return shared_load_f32(cluster_address); }
DEVICE f32x4 cluster_load_f32x4(uint32_t cluster_address) { return shared_load_f32x4(cluster_address); }
DEVICE void cluster_store_u32(uint32_t cluster_address, uint32_t value) { shared_store_u32(cluster_address, value); }
DEVICE void cluster_store_f32(uint32_t cluster_address, float value) { shared_store_f32(cluster_address, value); }
DEVICE void cluster_store_f32x4(uint32_t cluster_address, f32x4 value) { shared_store_f32x4(cluster_address, value); }

/* ---- Dependent launches ---- */

DEVICE void grid_dependency_wait(void) { fa_emulated_grid_dependency(); }
DEVICE void grid_dependency_launch(void) { fa_emulated_grid_dependency(); }

#endif
