/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the v3 forward kernel is told, and the shared memory of a block: one definition for kernel and launch.
 */
#ifndef FA_KERNELS_V3_PARAMS_H
#define FA_KERNELS_V3_PARAMS_H

#include "forward_params.h"
#include "instructions/tensor_map.h"

/* TMA boxes are 64 columns (128 bytes, one swizzled row) wide. */
#define V3_PAGE 64
#define V3_PAGES(head_dim) (((head_dim) + V3_PAGE - 1) / V3_PAGE)
#define V3_TILE_BYTES(rows, head_dim) ((rows)*V3_PAGES(head_dim) * V3_PAGE * 2)

/* Q tile, output tile, a ring of K and V tiles. */
#define V3_TILES_BYTES(head_dim, head_dim_v, block_m, block_n, stages)       \
    (V3_TILE_BYTES(block_m, head_dim) + V3_TILE_BYTES(block_m, head_dim_v) + \
     (stages) * (V3_TILE_BYTES(block_n, head_dim) + V3_TILE_BYTES(block_n, head_dim_v)))
#define V3_BARRIER_BYTES 384   /* barriers and work items */
#define V3_SHARED_LIMIT 232448 /* of a block of sm_90 */
#define V3_TOO_LARGE(head_dim, head_dim_v, block_m, block_n, stages) \
    (V3_TILES_BYTES(head_dim, head_dim_v, block_m, block_n, stages) + V3_BARRIER_BYTES > V3_SHARED_LIMIT)
#define V3_SHARED_BYTES(head_dim, head_dim_v, block_m, block_n, stages)                  \
    (V3_TILES_BYTES(head_dim, head_dim_v, block_m, block_n, stages) + V3_BARRIER_BYTES - \
     (V3_TOO_LARGE(head_dim, head_dim_v, block_m, block_n, stages) ? V3_TILE_BYTES(block_m, head_dim_v) : 0))

/*
 * Rank 4: (head_dim, row, head, batch entry); variable length: one batch entry that holds all rows. Columns and rows
 * beyond the tensor read as zero.
 */
typedef struct fa_v3_params {
    fa_tensor_map q, k, v, out;
    fa_forward_params forward;
    int32_t tiles;         /* query tiles of all heads and batch entries */
    int32_t pairs;         /* (batch entry, head); variable length: heads */
    int32_t group_heads;   /* pairs that are worked on at a time: their K and V share L2 */
    int32_t longest_first; /* within such a group, last query tiles first (causal) */
    int32_t store_by_tma;  /* out has the inputs' dtype, is aligned, and no tile holds rows of two sequences */
    uint32_t
        *next_tile; /* tiles handed out beyond the first of each block; NULL: block b takes tiles b, b + blocks, .. */
} fa_v3_params;

#endif
