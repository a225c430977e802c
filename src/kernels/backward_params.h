/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the backward kernels are told, and their workspace. A backward pass is a few launches in the order of a stream:
 *
 *   backward_prepare   D = rowsum(dout * out) and the base-2 log-sum-exp of each query; each query's part of dsink; zeros
 *                      in dq_sum and turns
 *   v2_backward or v3_backward    dK and dV, a block of threads per key tile; its part of dQ is added to dq_sum
 *   backward_finish    dQ from dq_sum, times softmax_scale, in dq's dtype
 *   score_gradients    dsink, dbias and dalibi_slopes, if asked for
 *
 * Query tiles have block_m rows (those of the main kernel's BLOCK_M) and count as in tile_sequence(): tile number
 * pair * row_blocks + row tile, with pair = (batch entry, head), or the head alone where the batch is of variable
 * length.
 * Workspace per query has a slot for each row of each tile, so that a tile's values are contiguous and aligned.
 *
 * A query takes part if it is used, sees at least one key, and its lse is not -inf. Others contribute nothing, whatever
 * their q, dout, out and lse hold.
 */
#ifndef FA_KERNELS_BACKWARD_PARAMS_H
#define FA_KERNELS_BACKWARD_PARAMS_H

#include "forward_params.h"

/* Bits of idle_rows. */
#define FA_IDLE_ROWS 1       /* a used row of the tile takes no part */
#define FA_IDLE_ROWS_DIRTY 2 /* a row in the memory of the tile takes no part and holds NaN or infinity in q or dout */

typedef struct fa_backward_params {
    fa_forward_params forward; /* its out and lse are inputs here; row_blocks counts query tiles of block_m rows */
    fa_device_rows dout; /* q's dtype, rows of whole 16-byte pieces: as given, or the copy that backward_prepare makes,
                            in which rows that take no part are 0 */
    fa_device_rows dout_given;
    int32_t dout_copied, dout_float32; /* float32: as given */
    int32_t
        whole_rows; /* out and dout have q's dtype and rows of 16-byte pieces, dout is not copied, and bias and mask are
                           not given */
    fa_device_rows dq, dk, dv; /* data NULL: not wanted */
    int32_t dq_float32, dk_float32, dv_float32;
    int32_t block_m;
    int32_t tile_columns;  /* of dq_sum: the main kernel's HEAD_DIM, in v3 up to the next multiple of 64 */
    int32_t key_blocks;    /* key tiles per key/value head, counted like query tiles, through cu_seqlens_k */
    int32_t key_entries;   /* batch entries that have so many each; variable length: 1 */
    int32_t head_group;    /* in a grid of one dimension: key/value heads whose key tiles take turns */
    int32_t deterministic; /* dq_sum is added to in the order of key tiles */

    float *lse_log2; /* [tiles][block_m]: lse * log2(e); +inf in rows that take no part */
    float *delta;    /* [tiles][block_m]: D; 0 in rows that take no part */
    float *row_sum; /* [tiles][block_m]: each query's part of dsink, then of dalibi_slopes; NULL if neither is wanted */
    float *dq_sum;  /* [tiles][block_m * tile_columns]; elements as dq_sum_index() tells */
    int32_t dq_part_columns; /* an argument of dq_sum_index() */
    int32_t dq_aligned;      /* rows of dq can be written 16 bytes at a time */
    uint32_t *turns;         /* [tiles][2]; deterministic: key tiles that have added to dq_sum (v3: to each half) */
    int32_t *idle_rows;      /* [tiles]: FA_IDLE_ROWS, FA_IDLE_ROWS_DIRTY */
} fa_backward_params;

/* What score_gradients computes in one launch. */
#define FA_SCORE_BIAS 0       /* dbias, a warp per element */
#define FA_SCORE_SLOPE_ROWS 1 /* each query's part of dalibi_slopes, to row_sum, a warp per row */
#define FA_SCORE_SUM 2        /* sums of row_sum over the queries of a head, a block each */

typedef struct fa_score_gradient_params {
    fa_backward_params backward;
    int32_t what;
    int32_t result_type; /* fa_element */
    char *result;        /* dbias; or dsink or dalibi_slopes */
    int64_t shape[4];    /* dbias: batch, heads, queries, keys; 1: summed over it. A sum: batch (1: over all), heads */
    int64_t stride[4];   /* in bytes */
} fa_score_gradient_params;

#endif
