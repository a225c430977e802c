/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction vocabulary in PTX, for nvcc: what sm_80 has; instructions_ptx_sm90.h holds the rest. What
 * each operation means and demands is said in instructions.h.
 *
 * Loads and stores are volatile assembly, so that they keep their order relative to barriers and asynchronous
 * operations, which the compiler cannot see through; ptxas still schedules them freely between those. */
#ifndef FA_KERNELS_INSTRUCTIONS_PTX_H
#define FA_KERNELS_INSTRUCTIONS_PTX_H

#define KERNEL(name, max_threads, min_blocks, params_type, params) \
    KERNEL_EXPANDED(name, max_threads, min_blocks, params_type, params)
/* __grid_constant__: the body may take the address of the parameters (tensor maps) without a local copy. */
#define KERNEL_EXPANDED(name, max_threads, min_blocks, params_type, params) \
    DEVICE void name##_body(const params_type *params);                     \
    extern "C" __global__ void __launch_bounds__(max_threads, min_blocks)   \
        name(const __grid_constant__ params_type kernel_params) {           \
        name##_body(&kernel_params);                                        \
    }                                                                       \
    DEVICE void name##_body(const params_type *params)

/* ---- Place in the grid ---- */

DEVICE uint32_t thread_index(void) { return threadIdx.x; }
DEVICE uint32_t block_threads(void) { return blockDim.x; }
DEVICE uint32_t lane_index(void) { return threadIdx.x & 31u; }
DEVICE uint32_t warp_index(void) { return threadIdx.x >> 5; }
DEVICE uint32_t warpgroup_index(void) { return __shfl_sync(0xFFFFFFFFu, threadIdx.x >> 7, 0); }
DEVICE uint32_t block_index_x(void) { return blockIdx.x; }
DEVICE uint32_t block_index_y(void) { return blockIdx.y; }
DEVICE uint32_t block_index_z(void) { return blockIdx.z; }
DEVICE uint32_t grid_blocks_x(void) { return gridDim.x; }
DEVICE uint32_t grid_blocks_y(void) { return gridDim.y; }
DEVICE uint32_t grid_blocks_z(void) { return gridDim.z; }
DEVICE int has_sm90(void) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    return 1;
#else
    return 0;
#endif
}
DEVICE uint64_t clock_cycles(void) {
    uint64_t cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
    return cycles;
}

/* ---- Global memory ---- */

DEVICE uint8_t global_load_u8(const void *address) {
    uint32_t value;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(address));
    return (uint8_t)value;
}
DEVICE uint16_t global_load_u16(const void *address) {
    uint16_t value;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(address));
    return value;
}
DEVICE uint32_t global_load_u32(const void *address) {
    uint32_t value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(address));
    return value;
}
DEVICE uint64_t global_load_u64(const void *address) {
    uint64_t value;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(address));
    return value;
}
DEVICE int32_t global_load_i32(const void *address) { return (int32_t)global_load_u32(address); }
DEVICE int64_t global_load_i64(const void *address) { return (int64_t)global_load_u64(address); }
DEVICE float global_load_f32(const void *address) {
    float value;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(address));
    return value;
}
DEVICE f32x2 global_load_f32x2(const void *address) {
    f32x2 v;
    asm volatile("ld.global.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(address));
    return v;
}
DEVICE f32x4 global_load_f32x4(const void *address) {
    f32x4 v;
    asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(address));
    return v;
}
DEVICE u32x2 global_load_u32x2(const void *address) {
    u32x2 v;
    asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address));
    return v;
}
DEVICE u32x4 global_load_u32x4(const void *address) {
    u32x4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));
    return v;
}

DEVICE void global_store_u8(void *address, uint8_t value) {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"((uint32_t)value) : "memory");
}
DEVICE void global_store_u16(void *address, uint16_t value) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(value) : "memory");
}
DEVICE void global_store_u32(void *address, uint32_t value) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
DEVICE void global_store_u64(void *address, uint64_t value) {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
DEVICE void global_store_i32(void *address, int32_t value) { global_store_u32(address, (uint32_t)value); }
DEVICE void global_store_f32(void *address, float value) {
    asm volatile("st.global.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}
DEVICE void global_store_f32x2(void *address, f32x2 v) {
    asm volatile("st.global.v2.f32 [%0], {%1,%2};" ::"l"(address), "f"(v.x), "f"(v.y) : "memory");
}
DEVICE void global_store_f32x4(void *address, f32x4 v) {
    asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
DEVICE void global_store_u32x2(void *address, u32x2 v) {
    asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(address), "r"(v.x), "r"(v.y) : "memory");
}
DEVICE void global_store_u32x4(void *address, u32x4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

DEVICE uint32_t global_load_acquire_u32(const uint32_t *address) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}
DEVICE uint32_t global_load_relaxed_u32(const uint32_t *address) {
    uint32_t value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}
DEVICE void global_store_release_u32(uint32_t *address, uint32_t value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

DEVICE float global_atomic_add_f32(float *address, float value) { return atomicAdd(address, value); }
DEVICE int32_t global_atomic_add_i32(int32_t *address, int32_t value) { return atomicAdd(address, value); }
DEVICE uint32_t global_atomic_add_u32(uint32_t *address, uint32_t value) { return atomicAdd(address, value); }
DEVICE uint64_t global_atomic_add_u64(uint64_t *address, uint64_t value) {
    return atomicAdd((unsigned long long *)address, (unsigned long long)value);
}
DEVICE uint32_t global_atomic_max_u32(uint32_t *address, uint32_t value) { return atomicMax(address, value); }
DEVICE uint32_t global_atomic_cas_u32(uint32_t *address, uint32_t expected, uint32_t value) {
    return atomicCAS(address, expected, value);
}
/* ---- Shared memory ---- */

extern __shared__ __align__(1024) uint8_t kernel_shared_memory[];

DEVICE uint32_t shared_base(void) { return (uint32_t)__cvta_generic_to_shared(kernel_shared_memory); }

DEVICE uint8_t shared_load_u8(uint32_t address) {
    uint32_t value;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address));
    return (uint8_t)value;
}
DEVICE uint16_t shared_load_u16(uint32_t address) {
    uint16_t value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
    return value;
}
DEVICE uint32_t shared_load_u32(uint32_t address) {
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}
DEVICE int32_t shared_load_i32(uint32_t address) { return (int32_t)shared_load_u32(address); }
DEVICE uint64_t shared_load_u64(uint32_t address) {
    uint64_t value;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(value) : "r"(address));
    return value;
}
DEVICE float shared_load_f32(uint32_t address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
    return value;
}
DEVICE f32x2 shared_load_f32x2(uint32_t address) {
    f32x2 v;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
    return v;
}
DEVICE f32x4 shared_load_f32x4(uint32_t address) {
    f32x4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address));
    return v;
}
DEVICE u32x2 shared_load_u32x2(uint32_t address) {
    u32x2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}
DEVICE u32x4 shared_load_u32x4(uint32_t address) {
    u32x4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

DEVICE void shared_store_u8(uint32_t address, uint8_t value) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"((uint32_t)value) : "memory");
}
DEVICE void shared_store_u16(uint32_t address, uint16_t value) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
DEVICE void shared_store_u32(uint32_t address, uint32_t value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
DEVICE void shared_store_i32(uint32_t address, int32_t value) { shared_store_u32(address, (uint32_t)value); }
DEVICE void shared_store_u64(uint32_t address, uint64_t value) {
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
}
DEVICE void shared_store_f32(uint32_t address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
DEVICE void shared_store_f32x2(uint32_t address, f32x2 v) {
    asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}
DEVICE void shared_store_f32x4(uint32_t address, f32x4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
DEVICE void shared_store_u32x2(uint32_t address, u32x2 v) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}
DEVICE void shared_store_u32x4(uint32_t address, u32x4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

DEVICE float shared_atomic_add_f32(uint32_t address, float value) {
    float old;
    asm volatile("atom.shared.add.f32 %0, [%1], %2;" : "=f"(old) : "r"(address), "f"(value) : "memory");
    return old;
}
DEVICE uint32_t shared_atomic_add_u32(uint32_t address, uint32_t value) {
    uint32_t old;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(address), "r"(value) : "memory");
    return old;
}

/* ---- Asynchronous copies by threads ---- */

/* `pending` is an immediate of the instruction: after inlining one of these cases is left. */
#define WAIT_FOR_PENDING(instruction, pending)                   \
    switch (pending) {                                           \
    case 0: asm volatile(instruction " 0;" ::: "memory"); break; \
    case 1: asm volatile(instruction " 1;" ::: "memory"); break; \
    case 2: asm volatile(instruction " 2;" ::: "memory"); break; \
    case 3: asm volatile(instruction " 3;" ::: "memory"); break; \
    case 4: asm volatile(instruction " 4;" ::: "memory"); break; \
    case 5: asm volatile(instruction " 5;" ::: "memory"); break; \
    case 6: asm volatile(instruction " 6;" ::: "memory"); break; \
    case 7: asm volatile(instruction " 7;" ::: "memory"); break; \
    default: __trap();                                           \
    }

DEVICE void cp_async_16(uint32_t destination, const void *source, uint32_t source_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(source_bytes)
                 : "memory");
}
DEVICE void cp_async_commit_group(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void cp_async_wait_group(int pending){WAIT_FOR_PENDING("cp.async.wait_group", pending)} DEVICE
    void cp_async_mbarrier_arrive_noinc(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/* ---- Barriers and fences ---- */

DEVICE void block_sync(void) { __syncthreads(); }
DEVICE void warp_sync(void) { __syncwarp(); }
DEVICE void named_barrier_sync(uint32_t barrier, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
DEVICE void named_barrier_arrive(uint32_t barrier, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
DEVICE void fence_gpu(void) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/* ---- Warp operations ---- */

#define ALL_LANES 0xFFFFFFFFu

DEVICE float shuffle_xor_f32(float value, uint32_t lane_mask) {
    return __shfl_xor_sync(ALL_LANES, value, (int)lane_mask);
}
DEVICE float shuffle_index_f32(float value, uint32_t source_lane) {
    return __shfl_sync(ALL_LANES, value, (int)source_lane);
}
DEVICE float shuffle_down_f32(float value, uint32_t distance) { return __shfl_down_sync(ALL_LANES, value, distance); }
DEVICE float shuffle_up_f32(float value, uint32_t distance) { return __shfl_up_sync(ALL_LANES, value, distance); }
DEVICE uint32_t shuffle_xor_u32(uint32_t value, uint32_t lane_mask) {
    return __shfl_xor_sync(ALL_LANES, value, (int)lane_mask);
}
DEVICE uint32_t shuffle_index_u32(uint32_t value, uint32_t source_lane) {
    return __shfl_sync(ALL_LANES, value, (int)source_lane);
}
DEVICE uint32_t shuffle_down_u32(uint32_t value, uint32_t distance) {
    return __shfl_down_sync(ALL_LANES, value, distance);
}
DEVICE uint32_t shuffle_up_u32(uint32_t value, uint32_t distance) { return __shfl_up_sync(ALL_LANES, value, distance); }

DEVICE int vote_any(int predicate) { return __any_sync(ALL_LANES, predicate); }
DEVICE int vote_all(int predicate) { return __all_sync(ALL_LANES, predicate); }
DEVICE uint32_t vote_ballot(int predicate) { return __ballot_sync(ALL_LANES, predicate); }

/* ---- Approximate functions and number formats ---- */

DEVICE float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float rcp_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float rsqrt_approx(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The first source of a two-element cvt goes to the upper half. */
DEVICE uint32_t pack_bf16x2(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
DEVICE uint32_t pack_f16x2(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
DEVICE f32x2 unpack_bf16x2(uint32_t packed) {
    f32x2 v;
    v.x = __uint_as_float(packed << 16);
    v.y = __uint_as_float(packed & 0xFFFF0000u);
    return v;
}
DEVICE f32x2 unpack_f16x2(uint32_t packed) {
    f32x2 v;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(v.x), "=f"(v.y)
        : "r"(packed));
    return v;
}
DEVICE uint32_t round_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}
DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
DEVICE float bits_float(uint32_t bits) { return __uint_as_float(bits); }

/* ---- Matrix fragments and mma.sync ---- */

DEVICE void ldmatrix_x1(uint32_t *r, uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row_address));
}
DEVICE void ldmatrix_x2(uint32_t *r, uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(row_address));
}
DEVICE void ldmatrix_x4(uint32_t *r, uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address));
}
DEVICE void ldmatrix_x1_trans(uint32_t *r, uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row_address));
}
DEVICE void ldmatrix_x2_trans(uint32_t *r, uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row_address));
}
DEVICE void ldmatrix_x4_trans(uint32_t *r, uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address));
}

#define MMA_M16N8(shape_and_types, c, a, b)                                                                   \
    asm volatile("mma.sync.aligned." shape_and_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])                                     \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))

DEVICE void mma_m16n8k16_bf16(float *c, const uint32_t *a, const uint32_t *b) {
    MMA_M16N8("m16n8k16.row.col.f32.bf16.bf16.f32", c, a, b);
}
DEVICE void mma_m16n8k16_f16(float *c, const uint32_t *a, const uint32_t *b) {
    MMA_M16N8("m16n8k16.row.col.f32.f16.f16.f32", c, a, b);
}
DEVICE void mma_m16n8k8_tf32(float *c, const uint32_t *a, const uint32_t *b) {
    MMA_M16N8("m16n8k8.row.col.f32.tf32.tf32.f32", c, a, b);
}

#include "instructions_ptx_sm90.h"

#endif
