/* SPDX-License-Identifier: Apache-2.0 */
/* What the v3 backward kernel is told, and shared memory of a block: one definition for kernel and launch. */
#ifndef FA_KERNELS_V3_BACKWARD_PARAMS_H
#define FA_KERNELS_V3_BACKWARD_PARAMS_H

#include "backward_params.h"
#include "instructions/tensor_map.h"

/* Columns of a TMA box: 64 (128 bytes), or 32 where halves of 192 columns must begin with a box. */
#define V3B_PAGE(head_dim) ((head_dim) == 192 ? 32 : 64)
#define V3B_PAGES(head_dim, columns) (((columns) + V3B_PAGE(head_dim) - 1) / V3B_PAGE(head_dim))
#define V3B_TILE_BYTES(head_dim, rows, columns) ((rows)*V3B_PAGES(head_dim, columns) * V3B_PAGE(head_dim) * 2)

/* Wide heads: the two consumer warpgroups share all keys of a tile and split the columns of dK, dV and dQ. */
#define V3B_SPLIT_COLUMNS(head_dim) ((head_dim) > 128)

/*
 * Columns of a tile of dq_sum, and those that a consumer warpgroup computes: all, of half of the queries, or half of
 * them in whole TMA boxes.
 */
#define V3B_DQ_COLUMNS(head_dim) (((head_dim) + 63) / 64 * 64)
#define V3B_DQ_PART_COLUMNS(head_dim) ((head_dim) == 64 ? 64 : V3B_DQ_COLUMNS(head_dim) / 2)

/*
 * dQ of a query tile goes through shared memory on its way to dq_sum, and has a place of its own there, or two, where
 * there is room, and registers to tell them apart. At head_dim 256 there is none: it goes straight from the registers.
 */
#define V3B_DQ_PLACES(head_dim, general) ((head_dim) > 192 ? 0 : V3B_SPLIT_COLUMNS(head_dim) || (general) ? 1 : 2)
#define V3B_DQ_BYTES(head_dim, block_m) ((block_m)*V3B_DQ_COLUMNS(head_dim) * 4)

/*
 * K and V tile; rings of Q and dO tiles; two dS tiles (and P tiles, if columns are split); dQ; log-sum-exp, D and a
 * word of work per stage; barriers.
 */
#define V3B_SHARED_BYTES(head_dim, head_dim_v, general, block_m, block_n, stages)                               \
    (V3B_TILE_BYTES(head_dim, block_n, head_dim) + V3B_TILE_BYTES(head_dim, block_n, head_dim_v) +              \
     (stages) * (V3B_TILE_BYTES(head_dim, block_m, head_dim) + V3B_TILE_BYTES(head_dim, block_m, head_dim_v)) + \
     (V3B_SPLIT_COLUMNS(head_dim) ? 4 : 2) * (block_n) * (block_m)*2 +                                          \
     V3B_DQ_PLACES(head_dim, general) * V3B_DQ_BYTES(head_dim, block_m) + (stages) * ((block_m)*8 + 16) + 256)

/* Rank 4: (head_dim, row, head, batch entry); variable length: one batch entry that holds all rows. */
typedef struct fa_v3_backward_params {
    fa_tensor_map q, dout, k, v;
    fa_backward_params backward;
    int32_t dk_aligned, dv_aligned; /* rows can be written 16 bytes at a time */
} fa_v3_backward_params;

#endif
