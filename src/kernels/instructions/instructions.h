/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction vocabulary of the device kernels: every hardware operation that a kernel may use, declared once. Under
 * nvcc the declarations are implemented in PTX (instructions_ptx.h), with any other compiler they run in the emulator
 * (instructions_emulated.h), which also checks that the rules written beside them are kept.
 *
 * How to write a kernel
 * ---------------------
 * A kernel source is one text for `nvcc -x cu` and for a C11 compiler, so it stays inside the common part of C and C++:
 * no designated initialisers, compound literals, VLAs, implicit void* conversions or `restrict`.
 *
 *     #include "instructions/instructions.h"
 *     typedef struct { fa_tensor_map q; float *out; int64_t rows; } copy_params;
 *     KERNEL(fa_copy, 128, 1, copy_params, params) {          128 threads at most, 1 block per SM at least
 *         uint32_t tile = shared_base();                       shared memory is an address, not a pointer
 *         ...
 *         global_store_f32(params->out + row, shared_load_f32(tile + 4 * thread_index()));
 *     }
 *
 * - KERNEL defines the entry point. The params struct is passed by value at the launch and lies in constant memory; the
 *   body sees a pointer to it, and may hand that pointer to helpers. Blocks are one-dimensional and a multiple of 32
 *   threads; grids have up to three dimensions.
 * - Helpers are DEVICE functions: always inlined. Arrays that must stay in registers are indexed by constants only, so
 *   loops over them carry UNROLL. NO_UNROLL keeps the main loop a loop.
 * - There is no inline assembly, __shared__ or dereferenced global pointer in a kernel: memory is read and written
 *   through shared_load_*, shared_store_*, global_load_*, global_store_*. All shared memory is dynamic; its base is
 *   1024 byte aligned, addresses are 32-bit and belong to the executing block unless cluster_map() made them.
 * - Arithmetic is plain C (fmaf, fmaxf, fminf and so on); the approximate units have names (exp2_approx ...).
 * - Operations marked "warp" must be executed by all 32 lanes, those marked "warpgroup" by all 128 threads of four
 *   warps whose first warp index is a multiple of four, and all of them in the same order. A lane that has returned
 *   cannot take part.
 * - Arrays given to wgmma_* (accumulators and register operands) must stay alive and untouched until the
 *   wgmma_wait_group that covers them. Put register_fence_*() on them before wgmma_fence and after the wait, never in
 *   between.
 * - An argument called "constant" must be known at compile time.
 * - sm_90 operations may stand in a source that is also compiled for sm_80 if they are called under has_sm90() alone.
 *
 * Who may read what, and when (the emulator reports every breach on shared memory)
 * - Data of another thread: only after a barrier between the two (block_sync, warp_sync inside a warp, named barrier,
 *   mbarrier arrive and wait, cluster barrier). Shuffles, votes and ldmatrix do not order memory.
 * - Data of cp_async: after the issuing thread's cp_async_wait_group, and after a barrier for all other threads.
 * - Data of a TMA or bulk load: after waiting for the phase of its mbarrier, or after a barrier with a thread that did.
 *   All 128 threads of a warpgroup must have waited, or met one that did, before they issue a wgmma on it.
 * - wgmma operands, TMA store sources, and memory that a TMA load overwrites, if written by ordinary stores or cp_async:
 *   every writing thread executes fence_proxy_async_shared, then a barrier, then the asynchronous operation is issued.
 * - Shared memory read by wgmma or by a store in flight may be overwritten after wgmma_wait_group, resp. after
 *   bulk_wait_group_read by the issuing thread, and a barrier. One thread that has executed wgmma_wait_group may arrive
 *   on behalf of its warpgroup; for what the other threads read themselves (ldmatrix, loads) that is not enough.
 */
#ifndef FA_KERNELS_INSTRUCTIONS_H
#define FA_KERNELS_INSTRUCTIONS_H

#include <math.h>
#include <stdint.h>

#include "tensor_map.h"

#ifdef __CUDACC__
#    define DEVICE static __device__ __forceinline__
#    define UNROLL _Pragma("unroll")
#    define NO_UNROLL _Pragma("unroll 1")
#    define ALIGNED(bytes) __align__(bytes)
#else
#    define DEVICE static inline
#    define UNROLL
#    define NO_UNROLL
#    define ALIGNED(bytes) __attribute__((aligned(bytes)))
#endif

typedef struct ALIGNED(8) f32x2 {
    float x, y;
} f32x2;

typedef struct ALIGNED(16) f32x4 {
    float x, y, z, w;
} f32x4;

typedef struct ALIGNED(8) u32x2 {
    uint32_t x, y;
} u32x2;

typedef struct ALIGNED(16) u32x4 {
    uint32_t x, y, z, w;
} u32x4;

/* KERNEL(name, max_threads, min_blocks, params_type, params) { body }
 * defines the entry point `name`: on CUDA an extern "C" __global__ function with one by-value argument, in
 * the emulator a constant of type fa_emulator_kernel. max_threads bounds the threads of a block, min_blocks
 * asks the compiler for registers few enough for that many blocks per SM; params is a `const params_type *`.
 * All but params may be macros. */

/* ---- Place in the grid ---- */

DEVICE uint32_t thread_index(void);    /* %tid.x */
DEVICE uint32_t block_threads(void);   /* %ntid.x */
DEVICE uint32_t lane_index(void);      /* thread_index() % 32 */
DEVICE uint32_t warp_index(void);      /* thread_index() / 32 */
DEVICE uint32_t warpgroup_index(void); /* thread_index() / 128, known to be the same in all lanes; warp */
DEVICE uint32_t block_index_x(void);   /* %ctaid */
DEVICE uint32_t block_index_y(void);
DEVICE uint32_t block_index_z(void);
DEVICE uint32_t grid_blocks_x(void); /* %nctaid */
DEVICE uint32_t grid_blocks_y(void);
DEVICE uint32_t grid_blocks_z(void);
DEVICE int has_sm90(void); /* whether this is code for sm_90 or later; a constant, so that the other way is left out */
DEVICE uint64_t clock_cycles(void); /* %clock64: a counter that only grows while a block runs */

/* ---- Global memory ---- */
/* ld.global, st.global. Addresses are aligned to the size of the access. */

DEVICE uint8_t global_load_u8(const void *address);
DEVICE uint16_t global_load_u16(const void *address);
DEVICE uint32_t global_load_u32(const void *address);
DEVICE uint64_t global_load_u64(const void *address);
DEVICE int32_t global_load_i32(const void *address);
DEVICE int64_t global_load_i64(const void *address);
DEVICE float global_load_f32(const void *address);
DEVICE f32x2 global_load_f32x2(const void *address);
DEVICE f32x4 global_load_f32x4(const void *address);
DEVICE u32x2 global_load_u32x2(const void *address);
DEVICE u32x4 global_load_u32x4(const void *address);

DEVICE void global_store_u8(void *address, uint8_t value);
DEVICE void global_store_u16(void *address, uint16_t value);
DEVICE void global_store_u32(void *address, uint32_t value);
DEVICE void global_store_u64(void *address, uint64_t value);
DEVICE void global_store_i32(void *address, int32_t value);
DEVICE void global_store_f32(void *address, float value);
DEVICE void global_store_f32x2(void *address, f32x2 value);
DEVICE void global_store_f32x4(void *address, f32x4 value);
DEVICE void global_store_u32x2(void *address, u32x2 value);
DEVICE void global_store_u32x4(void *address, u32x4 value);

/* ld.acquire.gpu and st.release.gpu: flags between blocks. A block may only spin on a flag that a block with
 * a smaller linear index sets (blocks start in that order). */
DEVICE uint32_t global_load_acquire_u32(const uint32_t *address);
DEVICE void global_store_release_u32(uint32_t *address, uint32_t value);
DEVICE uint32_t global_load_relaxed_u32(const uint32_t *address); /* ld.relaxed.gpu: acquires with a fence behind it */

/* atom.global (relaxed, gpu scope); they return the old value. Unused results compile to red. */
DEVICE float global_atomic_add_f32(float *address, float value);
DEVICE int32_t global_atomic_add_i32(int32_t *address, int32_t value);
DEVICE uint32_t global_atomic_add_u32(uint32_t *address, uint32_t value);
DEVICE uint64_t global_atomic_add_u64(uint64_t *address, uint64_t value);
DEVICE uint32_t global_atomic_max_u32(uint32_t *address, uint32_t value);
DEVICE uint32_t global_atomic_cas_u32(uint32_t *address, uint32_t expected, uint32_t value);
DEVICE void global_reduce_add_f32x4(float *address, f32x4 value); /* red.global.add.v4.f32, 16 byte aligned; sm_90 */

/* ---- Shared memory ---- */
/* ld.shared, st.shared. Addresses are aligned to the size of the access. */

DEVICE uint32_t shared_base(void); /* address of the first byte of dynamic shared memory, a multiple of 1024 */

DEVICE uint8_t shared_load_u8(uint32_t address);
DEVICE uint16_t shared_load_u16(uint32_t address);
DEVICE uint32_t shared_load_u32(uint32_t address);
DEVICE int32_t shared_load_i32(uint32_t address);
DEVICE uint64_t shared_load_u64(uint32_t address);
DEVICE float shared_load_f32(uint32_t address);
DEVICE f32x2 shared_load_f32x2(uint32_t address);
DEVICE f32x4 shared_load_f32x4(uint32_t address);
DEVICE u32x2 shared_load_u32x2(uint32_t address);
DEVICE u32x4 shared_load_u32x4(uint32_t address);

DEVICE void shared_store_u8(uint32_t address, uint8_t value);
DEVICE void shared_store_u16(uint32_t address, uint16_t value);
DEVICE void shared_store_u32(uint32_t address, uint32_t value);
DEVICE void shared_store_i32(uint32_t address, int32_t value);
DEVICE void shared_store_u64(uint32_t address, uint64_t value);
DEVICE void shared_store_f32(uint32_t address, float value);
DEVICE void shared_store_f32x2(uint32_t address, f32x2 value);
DEVICE void shared_store_f32x4(uint32_t address, f32x4 value);
DEVICE void shared_store_u32x2(uint32_t address, u32x2 value);
DEVICE void shared_store_u32x4(uint32_t address, u32x4 value);

DEVICE float shared_atomic_add_f32(uint32_t address, float value); /* atom.shared; returns the old value */
DEVICE uint32_t shared_atomic_add_u32(uint32_t address, uint32_t value);

/* The TMA and wgmma swizzles of a shared address: rows of 128, 64 or 32 bytes whose 16 byte chunks are
 * permuted by the row number. Equal to `chunk ^= row` inside a tile that starts at a multiple of 1024 (512,
 * 256) bytes. */
DEVICE uint32_t swizzle_128b(uint32_t address) { return address ^ ((address >> 3) & 0x70u); }
DEVICE uint32_t swizzle_64b(uint32_t address) { return address ^ ((address >> 3) & 0x30u); }
DEVICE uint32_t swizzle_32b(uint32_t address) { return address ^ ((address >> 3) & 0x10u); }

/* ---- Asynchronous copies by threads, sm_80 ---- */

/* cp.async.cg.shared.global, 16 bytes, both addresses 16 byte aligned. Only source_bytes (0..16) are read,
 * the rest of the destination becomes zero; the source must be a valid address only if source_bytes > 0. */
DEVICE void cp_async_16(uint32_t destination, const void *source, uint32_t source_bytes);
DEVICE void cp_async_commit_group(void); /* cp.async.commit_group: closes this thread's open group */
/* cp.async.wait_group: all but the newest `pending` groups of this thread have landed; constant, 0..7. */
DEVICE void cp_async_wait_group(int pending);
/* cp.async.mbarrier.arrive.noinc: the barrier receives one of its expected arrivals when all earlier cp_async
 * of this thread have landed; sm_80. */
DEVICE void cp_async_mbarrier_arrive_noinc(uint32_t barrier);

/* ---- Barriers and fences ---- */

DEVICE void block_sync(void); /* bar.sync 0: all threads of the block */
DEVICE void warp_sync(void);  /* bar.warp.sync; warp */
/* bar.sync, bar.arrive: barrier 1..15 (0 belongs to block_sync) completes when `threads` threads (a multiple
 * of 32, the same in all calls) have come, in whole warps; arrive does not wait. */
DEVICE void named_barrier_sync(uint32_t barrier, uint32_t threads);
DEVICE void named_barrier_arrive(uint32_t barrier, uint32_t threads);
DEVICE void fence_gpu(void); /* fence.acq_rel.gpu; __threadfence is fence.sc.gpu, which takes longer */

/* ---- Warp operations ---- */
/* shfl.sync and vote.sync with all 32 lanes. shuffle_down and shuffle_up past the end of the warp keep the
 * own value. */

DEVICE float shuffle_xor_f32(float value, uint32_t lane_mask);
DEVICE float shuffle_index_f32(float value, uint32_t source_lane);
DEVICE float shuffle_down_f32(float value, uint32_t distance);
DEVICE float shuffle_up_f32(float value, uint32_t distance);
DEVICE uint32_t shuffle_xor_u32(uint32_t value, uint32_t lane_mask);
DEVICE uint32_t shuffle_index_u32(uint32_t value, uint32_t source_lane);
DEVICE uint32_t shuffle_down_u32(uint32_t value, uint32_t distance);
DEVICE uint32_t shuffle_up_u32(uint32_t value, uint32_t distance);

DEVICE int vote_any(int predicate);
DEVICE int vote_all(int predicate);
DEVICE uint32_t vote_ballot(int predicate);

/* elect.sync: 1 in one lane, always the same one but not necessarily lane 0; sm_90. Bulk groups belong to a
 * thread, so commit and wait in the lane that issued. */
DEVICE int elect_one(void);

/* ---- Approximate functions and number formats ---- */

DEVICE float exp2_approx(float x);  /* ex2.approx.ftz: about 2^-22 relative; subnormals are 0; exp2(-inf) = +0 */
DEVICE float log2_approx(float x);  /* lg2.approx.ftz: log2(0) = -inf, of negatives NaN */
DEVICE float rcp_approx(float x);   /* rcp.approx.ftz: 1 ulp; rcp(+-0) = +-inf */
DEVICE float tanh_approx(float x);  /* tanh.approx: about 2^-11 relative */
DEVICE float rsqrt_approx(float x); /* rsqrt.approx.ftz */

/* cvt.rn: round to nearest even; the first argument goes to the low bits. Overflow of f16 gives inf, of e4m3
 * and e5m2 the largest finite value (satfinite, sm_89); NaN stays NaN. */
DEVICE uint32_t pack_bf16x2(float low, float high);
DEVICE uint32_t pack_f16x2(float low, float high);
DEVICE uint32_t pack_e4m3x4(float v0, float v1, float v2, float v3);
DEVICE uint32_t pack_e5m2x4(float v0, float v1, float v2, float v3);
DEVICE f32x2 unpack_bf16x2(uint32_t packed);
DEVICE f32x2 unpack_f16x2(uint32_t packed);
DEVICE uint32_t round_tf32(float x);                                     /* cvt.rna.tf32: nearest, ties away */
DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector); /* prmt, no sign mode */
DEVICE uint32_t float_bits(float x);
DEVICE float bits_float(uint32_t bits);

/* ---- Matrix fragments and mma.sync, sm_80 ---- */

/* ldmatrix.m8n8.b16: lane 8i+r gives the address (16 byte aligned) of row r of matrix i; lane l receives in
 * destination[i] the elements 2(l%4), 2(l%4)+1 of row l/4 of matrix i, with trans those of column l/4. x1 and
 * x2 read the addresses of the first 8 and 16 lanes only; warp. */
DEVICE void ldmatrix_x1(uint32_t *destination, uint32_t row_address);
DEVICE void ldmatrix_x2(uint32_t *destination, uint32_t row_address);
DEVICE void ldmatrix_x4(uint32_t *destination, uint32_t row_address);
DEVICE void ldmatrix_x1_trans(uint32_t *destination, uint32_t row_address);
DEVICE void ldmatrix_x2_trans(uint32_t *destination, uint32_t row_address);
DEVICE void ldmatrix_x4_trans(uint32_t *destination, uint32_t row_address);

/* stmatrix: the inverse; sm_90; warp. */
DEVICE void stmatrix_x2(uint32_t row_address, const uint32_t *source);
DEVICE void stmatrix_x4(uint32_t row_address, const uint32_t *source);
DEVICE void stmatrix_x2_trans(uint32_t row_address, const uint32_t *source);
DEVICE void stmatrix_x4_trans(uint32_t row_address, const uint32_t *source);

/* mma.sync.m16n8k16 row.col, f32 accumulate: c += a b. With p = lane / 4, q = lane % 4, e = half of the
 * register: a[j]: row p + 8(j&1), k = 2q + e + 8(j>>1); b[j]: column p, k = 2q + e + 8j; c[v]: row p +
 * 8(v>>1), column 2q + (v&1); warp. */
DEVICE void mma_m16n8k16_bf16(float *c, const uint32_t *a, const uint32_t *b);
DEVICE void mma_m16n8k16_f16(float *c, const uint32_t *a, const uint32_t *b);
/* mma.sync.m16n8k8 tf32: a[j]: row p + 8(j&1), k = q + 4(j>>1); b[j]: column p, k = q + 4j. The operands are
 * float bit patterns of which the hardware uses the upper 19 bits (see round_tf32); warp. */
DEVICE void mma_m16n8k8_tf32(float *c, const uint32_t *a, const uint32_t *b);

/* ---- mbarrier, sm_90 ---- */
/* An mbarrier is 8 bytes of shared memory, 8 byte aligned. A phase completes when all expected arrivals have
 * come and all expected transaction bytes have landed; then the next phase begins. mbarrier_wait(b, parity)
 * returns once the phase of that parity has completed: a fresh barrier blocks wait(b, 0) and lets wait(b, 1)
 * pass. A waiter must not fall two phases behind. Arrivals release, waits acquire. */

DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals); /* arrivals 1 .. 2^20-1 */
DEVICE void mbarrier_invalidate(uint32_t barrier);              /* mbarrier.inval: the bytes may be used otherwise */
DEVICE void
fence_mbarrier_init(void); /* fence.mbarrier_init.release.cluster, by the initialising thread, then a barrier */
DEVICE void mbarrier_arrive(uint32_t barrier);
DEVICE void mbarrier_arrive_count(uint32_t barrier, uint32_t count);
DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes); /* expect bytes, then arrive once */
DEVICE void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes);
DEVICE int mbarrier_try_wait(uint32_t barrier, uint32_t parity); /* may pause for a while; 1 if completed */
DEVICE int mbarrier_test_wait(uint32_t barrier, uint32_t parity);
DEVICE void mbarrier_wait(uint32_t barrier,
                          uint32_t parity); /* try_wait in a loop; -DKERNEL_DEBUG: traps after seconds */
DEVICE void mbarrier_wait_cluster(uint32_t barrier,
                                  uint32_t parity);            /* acquire.cluster: for arrivals of other blocks */
DEVICE void mbarrier_arrive_cluster(uint32_t cluster_barrier); /* release.cluster, on a cluster_map() address */
DEVICE void mbarrier_arrive_expect_tx_cluster(uint32_t cluster_barrier, uint32_t bytes);

/* Orders generic accesses before later accesses by the async proxy (TMA, bulk copies, wgmma operands). */
DEVICE void fence_proxy_async_shared(void);
DEVICE void fence_proxy_async_global(void);
DEVICE void fence_proxy_async(void);

/* ---- TMA and bulk copies, sm_90 ---- */
/* One thread issues. Coordinates are element indices of the box origin, c0 the contiguous dimension; they may
 * lie outside the tensor: a load fills with zeros (and still counts the full box on the mbarrier), a store
 * drops. The shared address is 128 byte aligned. The map is the address of a fa_tensor_map in the params. */

#define L2_EVICT_NORMAL 0x1000000000000000ull
#define L2_EVICT_FIRST 0x12F0000000000000ull
#define L2_EVICT_LAST 0x14F0000000000000ull

DEVICE void tensor_map_prefetch(const fa_tensor_map *map);

DEVICE void tma_load_2d(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1);
DEVICE void tma_load_3d(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2);
DEVICE void tma_load_4d(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                        int c3);
DEVICE void tma_load_5d(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                        int c3, int c4);

/* The same with an L2 cache policy (one of L2_EVICT_*). */
DEVICE void tma_load_2d_hint(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                             uint64_t policy);
DEVICE void tma_load_3d_hint(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                             uint64_t policy);
DEVICE void tma_load_4d_hint(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                             int c3, uint64_t policy);
DEVICE void tma_load_5d_hint(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1, int c2,
                             int c3, int c4, uint64_t policy);

/* The same into every block of cta_mask (bit = cluster rank): data and transaction bytes arrive at the same
 * shared offsets and the same mbarrier offset in each of them; each expects the full box itself. */
DEVICE void tma_load_2d_multicast(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                                  uint16_t cta_mask, uint64_t policy);
DEVICE void tma_load_3d_multicast(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                                  int c2, uint16_t cta_mask, uint64_t policy);
DEVICE void tma_load_4d_multicast(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                                  int c2, int c3, uint16_t cta_mask, uint64_t policy);
DEVICE void tma_load_5d_multicast(uint32_t destination, const fa_tensor_map *map, uint32_t barrier, int c0, int c1,
                                  int c2, int c3, int c4, uint16_t cta_mask, uint64_t policy);

/* Stores and reductions (element type of the map; atomic per element) belong to the issuing thread's open
 * bulk group. */
DEVICE void tma_store_2d(const fa_tensor_map *map, uint32_t source, int c0, int c1);
DEVICE void tma_store_3d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2);
DEVICE void tma_store_4d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2, int c3);
DEVICE void tma_store_5d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2, int c3, int c4);
DEVICE void tma_reduce_add_2d(const fa_tensor_map *map, uint32_t source, int c0, int c1);
DEVICE void tma_reduce_add_3d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2);
DEVICE void tma_reduce_add_4d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2, int c3);
DEVICE void tma_reduce_add_5d(const fa_tensor_map *map, uint32_t source, int c0, int c1, int c2, int c3, int c4);

/* cp.async.bulk without a map: addresses 16 byte aligned, bytes a multiple of 16. */
DEVICE void bulk_load(uint32_t destination, const void *source, uint32_t bytes, uint32_t barrier);
DEVICE void bulk_store(void *destination, uint32_t source, uint32_t bytes);
DEVICE void bulk_reduce_add_f32(float *destination, uint32_t source, uint32_t bytes);

DEVICE void bulk_commit_group(void);
/* All but the newest `pending` groups of this thread are complete (writes done), resp. have read their shared
 * memory; constant, 0..7. A block may not end while its shared memory is still being read. */
DEVICE void bulk_wait_group(int pending);
DEVICE void bulk_wait_group_read(int pending);

/* ---- wgmma, sm_90a ---- */

/* How the operand tile lies in shared memory: which index is contiguous, and the swizzle of its rows. */
#define K_MAJOR 0
#define MN_MAJOR 1 /* 16-bit types only */
#define SWIZZLE_NONE 0
#define SWIZZLE_128B 1
#define SWIZZLE_64B 2
#define SWIZZLE_32B 3

/* The 64-bit matrix descriptor of a tile at a 16 byte aligned shared address. With W = bytes of a swizzled
 * row: K-major: row mn lies at address + (mn/8) stride_bytes + (mn%8) W (leading_bytes unused: give 16);
 * MN-major: element (mn, k) of W/2 columns at address + (mn/(W/2)) leading_bytes + (k/8) stride_bytes + (k%8)
 * W. Step along K: add 32 bytes (K-major, inside a row) or 16 W bytes (MN-major) with
 * wgmma_descriptor_advance. */
DEVICE uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes, uint32_t swizzle);
#define WGMMA_DESCRIPTOR_BITS(address, leading_bytes, stride_bytes, swizzle)                     \
    ((uint64_t)(((address)&0x3FFFFu) >> 4) | (uint64_t)(((leading_bytes)&0x3FFFFu) >> 4) << 16 | \
     (uint64_t)(((stride_bytes)&0x3FFFFu) >> 4) << 32 | (uint64_t)(swizzle) << 62)
DEVICE uint64_t wgmma_descriptor_advance(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }

/* wgmma.mma_async: d = a b + (accumulate ? d : 0), 64 x n, f32 accumulators d[n/2]; n = 8, 16 .. 256;
 * warpgroup. Macros, because n, the types and the majors are part of the instruction: wgmma_m64k16_ss(n,
 * type, d, a_descriptor, b_descriptor, accumulate, a_major, b_major)   type bf16, f16 wgmma_m64k16_rs(n,
 * type, d, a, b_descriptor, accumulate, b_major)                       a: 4 registers wgmma_m64k32_ss(n,
 * a_type, b_type, d, a_descriptor, b_descriptor, accumulate)           types e4m3, e5m2; K-major
 *   wgmma_m64k32_rs(n, a_type, b_type, d, a, b_descriptor, accumulate)
 * With w = warp of the warpgroup, p = lane / 4, q = lane % 4:
 * d[r]: row 16w + p + 8((r>>1)&1), column 8(r>>2) + 2q + (r&1);
 * a[j], 16-bit: row 16w + p + 8(j&1), k = 2q + e + 8(j>>1); 8-bit: k = 4q + byte + 16(j>>1). */

DEVICE void wgmma_fence(void); /* before the first wgmma, and after other code touched its registers; warpgroup */
DEVICE void wgmma_commit_group(void); /* closes the open group; warpgroup */
DEVICE void
wgmma_wait_group(int pending); /* at most the newest `pending` groups are unfinished; constant 0..7; warpgroup */

/* Keeps the compiler from moving accesses to these registers across this point. */
DEVICE void register_fence_f32(float *registers, int count);
DEVICE void register_fence_u32(uint32_t *registers, int count);

/* setmaxnreg: the registers per thread of this warpgroup; constant, 24 .. 256, a multiple of 8. increase
 * waits until other warpgroups have given enough back; warpgroup; sm_90a. Macros:
 * set_max_registers_increase(n), _decrease(n). */

/* ---- Clusters, sm_90 ---- */

DEVICE uint32_t cluster_rank(void); /* %cluster_ctarank */
DEVICE uint32_t cluster_size(void);
DEVICE void
cluster_arrive(void); /* barrier.cluster.arrive.release; wait pairs with it: all threads of all blocks; warp */
DEVICE void cluster_arrive_relaxed(void); /* does not order memory */
DEVICE void cluster_wait(void);
DEVICE uint32_t cluster_map(uint32_t address, uint32_t rank); /* mapa: the same shared offset in block `rank` */
DEVICE uint32_t cluster_load_u32(uint32_t cluster_address);   /* ld.shared::cluster */
DEVICE float cluster_load_f32(uint32_t cluster_address);
DEVICE f32x4 cluster_load_f32x4(uint32_t cluster_address);
DEVICE void cluster_store_u32(uint32_t cluster_address, uint32_t value);
DEVICE void cluster_store_f32(uint32_t cluster_address, float value);
DEVICE void cluster_store_f32x4(uint32_t cluster_address, f32x4 value);

/* ---- Dependent launches, sm_90 ---- */

DEVICE void grid_dependency_wait(void);   /* griddepcontrol.wait: the grids before this one have finished and flushed */
DEVICE void grid_dependency_launch(void); /* griddepcontrol.launch_dependents */

#ifdef __CUDACC__
#    include "instructions_ptx.h"
#else
#    include "instructions_emulated.h"
#endif

#endif
