/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU back end's forward: what it would do for a problem, and doing it. The same for CUDA and for the emulator. */
#ifndef FA_GPU_LAUNCH_FORWARD_H
#define FA_GPU_LAUNCH_FORWARD_H

#include "gpu/machine.h"
#include "problem.h"

/* A launch of the kernel. */
typedef struct fa_gpu_step {
    int64_t blocks;
    int64_t shared_bytes; /* of a block */
} fa_gpu_step;

typedef struct fa_gpu_plan {
    fa_kernel kernel;
    const fa_machine *machine;
    const fa_variant *variant;
    bool rows_aligned;       /* all rows of q, k, v and out are whole 16-byte pieces of memory */
    bool weights_in_keys;    /* as in fa_forward_params */
    int64_t row_blocks;      /* query tiles per head, as in fa_forward_params */
    int64_t tile_entries;    /* batch entries that have so many each; variable length: 1 */
    int64_t key_blocks;      /* the standard kernel: key tiles of the longest sequence */
    int64_t workspace_bytes; /* 0: none is needed */
    char note[160];          /* why FA_KERNEL_AUTO passed over a newer kernel; "" if it did not */
    int32_t step_count;      /* 0: nothing to do */
    fa_gpu_step steps[3];
} fa_gpu_plan;

/* Refuses what no kernel can do. */
fa_status fa_gpu_forward_plan(const fa_problem *problem, fa_gpu_plan *plan);
/* Enqueues the work on the problem's stream; in the emulator, does it. */
fa_status fa_gpu_forward(const fa_problem *problem, const fa_gpu_plan *plan);

/* FA_OK if some machine of this process can run the kernel at all. */
fa_status fa_gpu_kernel_supported(fa_kernel kernel);

#endif
