/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU back end's backward: what it would do for a call, and doing it. The same for CUDA and for the emulator. */
#ifndef FA_GPU_LAUNCH_BACKWARD_H
#define FA_GPU_LAUNCH_BACKWARD_H

#include "gpu/machine.h"
#include "gradients.h"

/* Where each array of fa_backward_params lies in the workspace, in bytes. */
typedef struct fa_gpu_backward_workspace {
    int64_t lse_log2, delta, row_sum, idle_rows, turns, dq_sum, dout;
    int64_t bytes;
} fa_gpu_backward_workspace;

typedef struct fa_gpu_backward_plan {
    fa_kernel kernel;
    const fa_machine *machine;
    const fa_variant *variant; /* of the main kernel */
    const fa_variant *prepare, *finish, *scores;
    int64_t shared_bytes;                       /* of a block of the main kernel */
    int64_t dq_columns, dq_part_columns;        /* of a tile of dq_sum, and of each of its parts */
    bool rows_aligned;                          /* all rows of q, k and v are whole 16-byte pieces of memory */
    bool copies_dout;                           /* to q's dtype, and rows of whole 16-byte pieces */
    int64_t row_blocks, query_tiles;            /* per head (as in fa_forward_params), and all */
    int64_t key_blocks, key_entries, key_tiles; /* the same for key tiles: as in fa_backward_params */
    fa_gpu_backward_workspace workspace;
    char note[160]; /* why FA_KERNEL_AUTO passed over a newer kernel; "" if it did not */
} fa_gpu_backward_plan;

/* Refuses what no kernel can do. */
fa_status fa_gpu_backward_plan_make(const fa_gradients *gradients, fa_gpu_backward_plan *plan);
/* Enqueues the work on the problem's stream; in the emulator, does it. */
fa_status fa_gpu_backward(const fa_gradients *gradients, const fa_gpu_backward_plan *plan);

#endif
