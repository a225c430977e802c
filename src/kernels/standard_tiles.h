/* SPDX-License-Identifier: Apache-2.0 */
/* What the standard kernel is told, its workspace, grids and shared memory: one definition for kernel and launch. */
#ifndef FA_KERNELS_STANDARD_TILES_H
#define FA_KERNELS_STANDARD_TILES_H

#include "forward_params.h"

/* Three launches, in this order, on the same parameters but for `step`. */
#define STANDARD_SCORES 0  /* S = mask(scale Q K^T) */
#define STANDARD_SOFTMAX 1 /* P = softmax(S), in the place of S, and lse */
#define STANDARD_VALUES 2  /* O = P V */
#define STANDARD_STEPS 3

/*
 * The workspace is the matrix that FlashAttention does away with: S, then P, 16 bits each, [heads][rows][keys], rows
 * being FA_WORKSPACE_ROWS and keys = key_blocks * BLOCK_N. It grows with the product of the sequence lengths; no
 * other kernel of this library does that, and this one is there to be compared with. It starts at a multiple of 16
 * bytes and may hold anything.
 */
typedef struct fa_standard_params {
    fa_forward_params forward;
    char *scores;
    int32_t key_blocks; /* tiles of BLOCK_N keys; keys of a sequence beyond them count as unused */
    int32_t step;
} fa_standard_params;

#define STANDARD_WORKSPACE_BYTES(rows, heads, key_blocks, block_n) \
    ((int64_t)(rows) * (int64_t)(heads) * (int64_t)(key_blocks) * (block_n)*2)

/*
 * Blocks of threads. SCORES: one per tile of S. SOFTMAX and VALUES: one per BLOCK_M rows. With key_blocks = 0 the
 * last two still write.
 */
#define STANDARD_GRID(step, entries, heads, row_blocks, key_blocks) \
    ((int64_t)(entries) * (heads) * (row_blocks) * ((step) == STANDARD_SCORES ? (key_blocks) : 1))

/* SCORES: a Q and a K tile. SOFTMAX: a row of S, and a float of each warp. VALUES: rings of P and V tiles, later O. */
#define STANDARD_SHARED_BYTES(step, head_dim, block_m, block_n, warps, stages, key_blocks) \
    ((step) == STANDARD_SCORES    ? (int64_t)((block_m) + (block_n)) * (head_dim)*2        \
     : (step) == STANDARD_SOFTMAX ? (int64_t)(key_blocks) * (block_n)*2 + (warps)*4        \
                                  : (int64_t)(stages) * (block_n) * ((block_m) + (head_dim)) * 2)

#define STANDARD_BLOCKS_PER_SM (WARPS == 4 ? 2 : 1)

#endif
