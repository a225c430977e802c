/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a forward kernel that reads its tensors by address is told (v1, v2, the standard kernel): the call of problem.h
 * in device terms. All strides are in bytes. Pointers that are NULL were not given. Lengths lie on the device; kernels
 * read them there.
 */
#ifndef FA_KERNELS_FORWARD_PARAMS_H
#define FA_KERNELS_FORWARD_PARAMS_H

#include <stdint.h>

/*
 * q, k, v or out: row r of head h of batch entry b starts at
 * data + b * batch_stride + r * row_stride + h * head_stride.
 */
typedef struct fa_device_rows {
    char *data;
    int64_t batch_stride; /* 0: variable length */
    int64_t row_stride;
    int64_t head_stride;
} fa_device_rows;

/* bias (float32, float16 or bfloat16) or mask (one byte); broadcast dimensions have stride 0. */
typedef struct fa_device_scores {
    const char *data;
    int64_t batch_stride;
    int64_t head_stride;
    int64_t row_stride;
    int64_t key_stride;
} fa_device_scores;

typedef struct fa_device_table {
    const char *data;
    int64_t stride[2];
} fa_device_table;

/* Queries of the whole batch, each counted once; p may point to a fa_problem as well. */
#define FA_WORKSPACE_ROWS(p) ((int64_t)(p)->rows_q * ((p)->cu_seqlens_q.data ? 1 : (int64_t)(p)->batch))

/* Query tiles of a variable-length batch, as tile_sequence() counts them. */
#define FA_VARLEN_TILES(rows_q, entries, block_m) ((rows_q) / (block_m) + (entries))

typedef struct fa_forward_params {
    fa_device_rows q, k, v, out;
    char *lse; /* float32 */
    int64_t lse_batch_stride, lse_head_stride, lse_row_stride;

    int32_t
        batch; /* with cu_seqlens_q, entry number `batch` holds the rows behind the last sequence, which see nothing */
    int32_t entries; /* batch, or batch + 1 with cu_seqlens_q */
    int32_t heads;
    int32_t group;    /* heads / heads_kv */
    int32_t head_dim; /* real sizes; the kernel's HEAD_DIM is at least these, and the difference counts as zero */
    int32_t head_dim_v;
    int32_t rows_q; /* dense: queries per batch entry; variable length: total_q */
    int32_t rows_k;
    int32_t
        max_seqlen_q; /* no sequence is taken to be longer, whatever the lengths on the device say: bias and mask need */
    int32_t max_seqlen_k; /* not reach further */
    int32_t row_blocks;   /* query tiles per head: dense, of a batch entry; variable length, of the whole batch */
    int32_t out_float32;  /* out is float32 instead of the input's dtype */
    int32_t rows_aligned; /* all rows of q, k, v start at multiples of 16 bytes and are a multiple of 16 bytes long */
    int32_t weights_in_keys; /* v2, wide heads: shared memory is short, so that weights take the place of a K tile */

    fa_device_table cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, alibi_slopes, sink;
    fa_device_scores bias, mask;
    int32_t bias_type; /* fa_element */

    int32_t causal; /* 0, or right bound 0 */
    int32_t top_left;
    int32_t window_left, window_right; /* -1: open */
    float softmax_scale;
    float softcap; /* 0: none */
} fa_forward_params;

#endif
