/* SPDX-License-Identifier: Apache-2.0 */
/* The emulator: runs device kernels written in the instruction vocabulary (kernels/instructions/instructions.h) on the
 * CPU, checks the rules of the hardware while it does, and counts their traffic. This header is what a host needs:
 * describe a part, give it memory, encode tensor maps, launch.
 *
 * Every CUDA thread is a fiber. The clusters of a grid run one after another in the order of their index (or on several
 * host threads that take them in that order); inside a cluster the order of threads is random and given by a seed: the
 * same launch with the same seed and one host thread repeats exactly. Asynchronous operations take effect as late as
 * the program allows. A broken rule stops the launch and comes back as a status and a text; outputs are then
 * unspecified.
 */
#ifndef FA_EMULATOR_H
#define FA_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../kernels/instructions/tensor_map.h"

/* ---- Parts ---- */

typedef enum {
    FA_EMULATOR_A100,    /* sm_80 */
    FA_EMULATOR_RTX3090, /* sm_86: the least shared memory */
    FA_EMULATOR_H100,    /* sm_90a */
    FA_EMULATOR_H200,    /* sm_90a */
    FA_EMULATOR_B200,    /* sm_100a */
    FA_EMULATOR_PARTS
} fa_emulator_part;

typedef struct {
    const char *name; /* "emulated-a100" ... */
    uint32_t sm;      /* 80, 86, 90, 100 */
    uint32_t multiprocessors;
    uint32_t shared_bytes_per_block; /* the opt-in maximum of dynamic shared memory */
    uint32_t shared_bytes_per_multiprocessor;
    uint32_t registers_per_multiprocessor;
    uint32_t max_threads_per_block;
    uint32_t max_threads_per_multiprocessor;
    uint32_t max_cluster_blocks; /* 1: no clusters */
    uint64_t global_bytes;
    uint64_t l2_bytes;
} fa_emulator_properties;

const fa_emulator_properties *fa_emulator_part_properties(fa_emulator_part part);

/* ---- Status ---- */

typedef enum {
    FA_EMULATOR_OK,
    FA_EMULATOR_REFUSED,       /* the launch or the tensor map is not one the part would accept */
    FA_EMULATOR_RULE_BROKEN,   /* the kernel broke a rule of the hardware */
    FA_EMULATOR_DEADLOCK,      /* nobody can go on; the text lists who waits for what */
    FA_EMULATOR_OUT_OF_MEMORY, /* of the host */
} fa_emulator_status;

enum { FA_EMULATOR_TEXT = 2048 };

/* ---- A device and its global memory ---- */

typedef struct fa_emulator fa_emulator;

fa_emulator *fa_emulator_create(fa_emulator_part part); /* NULL: out of memory */
void fa_emulator_destroy(fa_emulator *emulator);        /* frees what fa_emulator_allocate gave */
const fa_emulator_properties *fa_emulator_device_properties(const fa_emulator *emulator);

/* Kernels may touch only memory that is known to the device: allocated here (256 byte aligned, filled with 0xFF = NaN),
 * or registered. Registrations may overlap (views of one buffer) and count: each is undone by one unregister with the
 * same arguments. A launch sees what is known when it begins. All functions are thread-safe. */
void *fa_emulator_allocate(fa_emulator *emulator, size_t bytes); /* NULL: out of memory */
void fa_emulator_free(fa_emulator *emulator, void *memory);
bool fa_emulator_register(fa_emulator *emulator, const void *memory, size_t bytes, bool writable);
void fa_emulator_unregister(fa_emulator *emulator, const void *memory, size_t bytes, bool writable);

/* ---- Tensor maps ---- */

/* The numbers are those of cuda.h, the rules those of cuTensorMapEncodeTiled for interleave NONE and dense element
 * strides (all 1): others are refused. */
typedef enum {
    FA_TENSOR_MAP_UINT8 = 0,
    FA_TENSOR_MAP_UINT16 = 1,
    FA_TENSOR_MAP_UINT32 = 2,
    FA_TENSOR_MAP_INT32 = 3,
    FA_TENSOR_MAP_UINT64 = 4,
    FA_TENSOR_MAP_INT64 = 5,
    FA_TENSOR_MAP_FLOAT16 = 6,
    FA_TENSOR_MAP_FLOAT32 = 7,
    FA_TENSOR_MAP_FLOAT64 = 8,
    FA_TENSOR_MAP_BFLOAT16 = 9,
} fa_tensor_map_type;

typedef enum {
    FA_TENSOR_MAP_SWIZZLE_NONE = 0,
    FA_TENSOR_MAP_SWIZZLE_32B = 1,
    FA_TENSOR_MAP_SWIZZLE_64B = 2,
    FA_TENSOR_MAP_SWIZZLE_128B = 3,
} fa_tensor_map_swizzle;

/* strides[i] is the byte stride of dimension i + 1. On refusal text (FA_EMULATOR_TEXT bytes, may be NULL) names the
 * argument, its value and the rule. nan_fill: out-of-bounds elements are NaN instead of zero (floating-point types
 * only). */
fa_emulator_status fa_emulator_encode_tensor_map(fa_tensor_map *map, fa_tensor_map_type type, uint32_t rank,
                                                 const void *address, const uint64_t *dims, const uint64_t *strides,
                                                 const uint32_t *box, const uint32_t *element_strides,
                                                 fa_tensor_map_swizzle swizzle, bool nan_fill, char *text);

/* ---- Launches ---- */

/* KERNEL() in a kernel source defines a constant of this type under the kernel's name. */
typedef struct {
    const char *name;
    void (*body)(const void *params);
    uint32_t max_threads;
    uint32_t params_bytes;
} fa_emulator_kernel;

typedef struct {
    uint32_t grid[3];
    uint32_t threads;      /* per block; a multiple of 32 */
    uint32_t cluster;      /* blocks per cluster along x; 0 or 1: none */
    uint32_t shared_bytes; /* dynamic shared memory per block */
    uint64_t seed;         /* order of execution */
    uint32_t host_threads; /* 0: one */
} fa_emulator_launch;

/* Work of a launch. "Threads" counts calls by threads, "warps" calls by warps. */
typedef struct {
    uint64_t global_bytes_read;    /* asked for by threads, cp.async, TMA and bulk copies; zero fill is not read */
    uint64_t global_bytes_written; /* stores, bulk stores, atomics and reductions */
    uint64_t shared_bytes_read;    /* by loads, ldmatrix, bulk stores, mma operands from shared memory */
    uint64_t shared_bytes_written; /* by stores, stmatrix, cp.async, TMA and bulk loads, zero fill included */
    uint64_t async_copy_bytes;     /* the part of the global traffic moved by cp.async, TMA and bulk copies */
    uint64_t tensor_flops;         /* 2 m n k per mma and wgmma */
    uint64_t exp2_calls;           /* threads */
    uint64_t other_special_calls;  /* threads: log2, rcp, rsqrt, tanh */
    uint64_t shuffles;             /* warps */
    uint64_t votes;                /* warps */
    uint64_t barriers;             /* warps: block_sync, named and cluster barriers */
    uint64_t mbarrier_arrivals;    /* threads, remote ones included */
    uint64_t mbarrier_waits;       /* threads */
    uint64_t global_atomics;       /* threads */
    uint64_t fiber_switches;       /* of the emulator itself */
} fa_emulator_counters;

typedef struct {
    fa_emulator_status status;
    char text[FA_EMULATOR_TEXT]; /* empty when status is OK */
    fa_emulator_counters counters;
} fa_emulator_report;

/* Runs the kernel to its end and fills the report. params points to a struct of kernel->params_bytes, which is copied.
 * A grid with a zero dimension is refused, as by the driver. */
fa_emulator_status fa_emulator_run(fa_emulator *emulator, const fa_emulator_kernel *kernel, const void *params,
                                   const fa_emulator_launch *launch, fa_emulator_report *report);

#endif
