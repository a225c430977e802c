/* SPDX-License-Identifier: Apache-2.0 */
/* What a v1 kernel is told, its workspace and its shared memory: one definition for kernel and launch. */
#ifndef FA_KERNELS_V1_TILES_H
#define FA_KERNELS_V1_TILES_H

#include "forward_params.h"

/*
 * One block of threads per (batch entry, head): a grid of entries * heads; row_blocks is not read.
 *
 * The workspace holds O, m and l between K/V tiles: float32 [heads][rows][head_dim] of O, then [heads][rows] of m and
 * [heads][rows] of l, rows being FA_WORKSPACE_ROWS. It starts at a multiple of 16 bytes and may hold anything.
 */
typedef struct fa_v1_params {
    fa_forward_params forward;
    char *workspace;
} fa_v1_params;

/* head_dim: the kernel's HEAD_DIM. */
#define V1_WORKSPACE_BYTES(rows, heads, head_dim) ((int64_t)(rows) * (int64_t)(heads) * ((head_dim) + 2) * 4)

/*
 * The warps' parts of P V lie side by side; 8 floats between rows put the 4 rows that a half warp stores into
 * different banks.
 */
#define V1_PART_STRIDE(head_dim) (((head_dim) + 8) * 4)

/* Two Q tiles, a K and a V tile, the warps' parts of P V, their row maxima and row sums, and a word of each warp. */
#define V1_SHARED_BYTES(head_dim, block_m, block_n, warps)                                                       \
    ((2 * (block_m) + 2 * (block_n)) * (head_dim)*2 + (warps) * (block_m) * (V1_PART_STRIDE(head_dim) + 2 * 4) + \
     (warps)*4)

#endif
