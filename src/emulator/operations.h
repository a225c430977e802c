/* SPDX-License-Identifier: Apache-2.0 */
/* What the emulated instruction vocabulary calls. Only kernels/instructions/instructions_emulated.h includes this
 * besides the emulator itself; what each operation means is said in kernels/instructions/instructions.h.
 *
 * A call that breaks a rule does not return: the launch ends with a report. */
#ifndef FA_EMULATOR_OPERATIONS_H
#define FA_EMULATOR_OPERATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "../kernels/instructions/tensor_map.h"
#include "emulator.h"

/* ---- Place in the grid ---- */

typedef struct {
    uint32_t thread; /* in the block */
    uint32_t threads;
    uint32_t block[3];
    uint32_t grid[3];
    uint32_t rank; /* of the block in its cluster */
    uint32_t cluster;
} fa_emulated_place;

/* The thread that is running. Of the TLS model that the compiler chooses: initial-exec would be faster, but makes the loader
 * put all thread-local variables of the library where dlopen(), as of Python's ctypes, has hardly any room left. */
extern _Thread_local const fa_emulated_place *fa_emulated_self;

uint32_t fa_emulated_sm(void); /* of the part */
uint64_t fa_emulated_clock(void);

/* ---- Memory ---- */
/* The accesses copy between memory and value. `floats` says that the value consists of f32: then a value that came from
 * registers of an unfinished wgmma is recognised. */

void fa_emulated_global_load(const void *address, void *value, uint32_t bytes);
void fa_emulated_global_store(void *address, const void *value, uint32_t bytes, bool floats);
uint32_t fa_emulated_global_load_acquire(const uint32_t *address);
uint32_t fa_emulated_global_load_relaxed(const uint32_t *address);
void fa_emulated_global_store_release(uint32_t *address, uint32_t value);
void fa_emulated_fence_gpu(void);
float fa_emulated_global_add_f32(float *address, float value);
uint32_t fa_emulated_global_add_u32(uint32_t *address, uint32_t value);
uint64_t fa_emulated_global_add_u64(uint64_t *address, uint64_t value);
uint32_t fa_emulated_global_max_u32(uint32_t *address, uint32_t value);
uint32_t fa_emulated_global_cas_u32(uint32_t *address, uint32_t expected, uint32_t value);
void fa_emulated_global_reduce_f32x4(float *address, const float value[4]);

uint32_t fa_emulated_shared_base(void);
void fa_emulated_shared_load(uint32_t address, void *value, uint32_t bytes);
void fa_emulated_shared_store(uint32_t address, const void *value, uint32_t bytes, bool floats);
float fa_emulated_shared_add_f32(uint32_t address, float value);
uint32_t fa_emulated_shared_add_u32(uint32_t address, uint32_t value);

void fa_emulated_cp_async_16(uint32_t destination, const void *source, uint32_t source_bytes);
void fa_emulated_cp_async_commit_group(void);
void fa_emulated_cp_async_wait_group(int pending);
void fa_emulated_cp_async_mbarrier_arrive_noinc(uint32_t barrier);

/* ---- Barriers ---- */

void fa_emulated_block_sync(void);
void fa_emulated_warp_sync(void);
void fa_emulated_named_barrier(uint32_t barrier, uint32_t threads, bool wait);
void fa_emulated_set_max_registers(uint32_t count, bool increase);

void fa_emulated_mbarrier_init(uint32_t barrier, uint32_t arrivals);
void fa_emulated_mbarrier_invalidate(uint32_t barrier);
void fa_emulated_fence_mbarrier_init(void);
void fa_emulated_mbarrier_arrive(uint32_t barrier, uint32_t count);
void fa_emulated_mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes);
void fa_emulated_mbarrier_expect_tx(uint32_t barrier, uint32_t bytes);
bool fa_emulated_mbarrier_try_wait(uint32_t barrier, uint32_t parity);
bool fa_emulated_mbarrier_test_wait(uint32_t barrier, uint32_t parity);
void fa_emulated_mbarrier_wait(uint32_t barrier, uint32_t parity);
void fa_emulated_fence_proxy_async(void);

uint32_t fa_emulated_cluster_map(uint32_t address, uint32_t rank);
void fa_emulated_cluster_arrive(bool release);
void fa_emulated_cluster_wait(void);
void fa_emulated_grid_dependency(void);

/* ---- Warp operations ---- */

typedef enum { FA_SHUFFLE_XOR, FA_SHUFFLE_INDEX, FA_SHUFFLE_DOWN, FA_SHUFFLE_UP } fa_shuffle;

uint32_t fa_emulated_shuffle(fa_shuffle kind, uint32_t value, uint32_t argument);
uint32_t fa_emulated_ballot(bool predicate);
bool fa_emulated_elect_one(void);
void fa_emulated_ldmatrix(uint32_t *destination, uint32_t row_address, uint32_t matrices, bool trans);
void fa_emulated_stmatrix(uint32_t row_address, const uint32_t *source, uint32_t matrices, bool trans);

/* ---- Approximate functions and number formats ---- */

float fa_emulated_exp2(float x);
float fa_emulated_log2(float x);
float fa_emulated_rcp(float x);
float fa_emulated_rsqrt(float x);
float fa_emulated_tanh(float x);
uint32_t fa_emulated_pack_bf16x2(float low, float high);
uint32_t fa_emulated_pack_f16x2(float low, float high);
uint32_t fa_emulated_pack_e4m3x4(const float v[4]);
uint32_t fa_emulated_pack_e5m2x4(const float v[4]);
float fa_emulated_unpack_f16(uint32_t bits);

/* ---- Matrices ---- */

typedef enum {
    FA_MATRIX_bf16, /* the names paste with the type tokens of the wgmma macros */
    FA_MATRIX_f16,
    FA_MATRIX_tf32,
    FA_MATRIX_e4m3,
    FA_MATRIX_e5m2,
} fa_matrix_type;

void fa_emulated_mma(fa_matrix_type type, float *c, const uint32_t *a, const uint32_t *b);

typedef struct {
    uint32_t n;
    fa_matrix_type a_type, b_type;
    bool accumulate;
    uint32_t a_major, b_major;   /* 0: K-major, 1: MN-major */
    const uint32_t *a_registers; /* NULL: a_descriptor */
    uint64_t a_descriptor, b_descriptor;
} fa_wgmma;

void fa_emulated_check_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes, uint32_t swizzle);
void fa_emulated_wgmma(float *d, const fa_wgmma *operation);
void fa_emulated_wgmma_fence(void);
void fa_emulated_wgmma_commit_group(void);
void fa_emulated_wgmma_wait_group(int pending);
void fa_emulated_register_fence(const void *registers, int count);

/* ---- TMA and bulk copies ---- */

void fa_emulated_tensor_map_prefetch(const fa_tensor_map *map);
void fa_emulated_check_cache_policy(uint64_t policy);
enum { FA_TMA_OWN_BLOCK = 0x10000 }; /* a cta_mask: no multicast */
void fa_emulated_tma_load(uint32_t rank, uint32_t destination, const fa_tensor_map *map, uint32_t barrier,
                          const int32_t *coordinates, uint32_t cta_mask);
void fa_emulated_tma_store(uint32_t rank, const fa_tensor_map *map, uint32_t source, const int32_t *coordinates,
                           bool add);
void fa_emulated_bulk_load(uint32_t destination, const void *source, uint32_t bytes, uint32_t barrier);
void fa_emulated_bulk_store(void *destination, uint32_t source, uint32_t bytes, bool add_f32);
void fa_emulated_bulk_commit_group(void);
void fa_emulated_bulk_wait_group(int pending, bool read);

#endif
