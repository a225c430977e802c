/* SPDX-License-Identifier: Apache-2.0 */
/* Where a batch entry lies and what its queries may see, read on the device: the kernels' counterpart of fa_problem_sequence(). */
#ifndef FA_KERNELS_SEQUENCE_H
#define FA_KERNELS_SEQUENCE_H

#include "forward_params.h"
#include "instructions/instructions.h"

/* Sequences on a device are shorter than 2^31; offsets of rows are 64-bit all the same. */
#define FA_POSITION int
#define FA_MASK_FUNCTION DEVICE
#include "mask.h"

typedef struct device_sequence {
    int entry;
    int64_t q_begin; /* first row in q and out */
    int q_rows;      /* rows of q and out; those from visibility.seqlen_q on see nothing */
    int64_t k_begin;
    fa_visibility visibility;
} device_sequence;

DEVICE int device_length(const fa_device_table *table, int entry) {
    return global_load_i32(table->data + entry * table->stride[0]);
}

DEVICE float device_table_float(const fa_device_table *table, int i, int j) {
    return global_load_f32(table->data + i * table->stride[0] + j * table->stride[1]);
}

/* Lengths that contradict each other or the tensors are cut to what the memory holds: the host cannot check them. */
DEVICE int clamp_length(int length, int limit) { return length < 0 ? 0 : length > limit ? limit : length; }

DEVICE device_sequence sequence_load(const fa_forward_params *p, int entry) {
    device_sequence s;
    int q_begin = 0, k_begin = 0, rows_k = p->rows_k;
    s.entry = entry;
    s.q_rows = p->rows_q;
    if (p->cu_seqlens_q.data) {
        q_begin = clamp_length(device_length(&p->cu_seqlens_q, entry), p->rows_q);
        int q_end = entry < p->batch ? device_length(&p->cu_seqlens_q, entry + 1) : p->rows_q;
        s.q_rows = clamp_length(q_end - q_begin, p->rows_q - q_begin);
    }
    s.q_begin = q_begin;
    s.k_begin = 0;
    if (entry == p->batch) { /* the rows behind the last sequence */
        s.visibility = fa_visibility_make(0, 0, 0, 0, 0, 0, 0);
        return s;
    }
    if (p->cu_seqlens_k.data) {
        k_begin = clamp_length(device_length(&p->cu_seqlens_k, entry), p->rows_k);
        rows_k = clamp_length(device_length(&p->cu_seqlens_k, entry + 1) - k_begin, p->rows_k - k_begin);
        s.k_begin = k_begin;
    }
    int seqlen_q = p->seqused_q.data ? clamp_length(device_length(&p->seqused_q, entry), s.q_rows) : s.q_rows;
    int key_end = p->seqused_k.data ? clamp_length(device_length(&p->seqused_k, entry), rows_k) : rows_k;
    seqlen_q = clamp_length(seqlen_q, p->max_seqlen_q);
    key_end = clamp_length(key_end, p->max_seqlen_k);
    int key_begin = p->leftpad_k.data ? clamp_length(device_length(&p->leftpad_k, entry), key_end) : 0;
    s.visibility =
        fa_visibility_make(seqlen_q, key_begin, key_end, p->causal, p->top_left, p->window_left, p->window_right);
    return s;
}

/*
 * The sequence that tile number `tile` of a variable-length batch belongs to: tiles count through the whole batch, since only
 * the device knows how long each sequence is; *tile becomes the number within its sequence. Sequence n begins with tile
 * cu_seqlens[n] / block_rows + n, which leaves room for all its rows and wastes at most one tile.
 */
DEVICE int sequence_of_tile(const fa_device_table *cu_seqlens, int entries, int rows, int block_rows, uint32_t *tile) {
    int low = 0, high = entries - 1, first = 0, entry = 0;
    while (low <= high) { /* the last sequence that begins at this tile or before */
        int middle = (low + high) / 2;
        int begin = clamp_length(device_length(cu_seqlens, middle), rows) / block_rows + middle;
        if (begin <= (int)*tile) {
            entry = middle;
            first = begin;
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    *tile -= (uint32_t)first;
    return entry;
}

/* The sequence that a query tile belongs to. Dense: that of batch entry `entry`, where tiles count from 0. */
DEVICE device_sequence tile_sequence(const fa_forward_params *p, int entry, uint32_t *tile, int block_m) {
    if (p->cu_seqlens_q.data) entry = sequence_of_tile(&p->cu_seqlens_q, p->entries, p->rows_q, block_m, tile);
    return sequence_load(p, entry);
}

/* What the used ones of a tile's rows see. */
typedef struct device_tile_keys {
    fa_key_range some; /* keys that at least one of them sees */
    fa_key_range all;  /* keys that each of them sees */
} device_tile_keys;

/* Of the rows first .. end - 1. Both ends of what a row sees rise with the row (mask.h), and pass key_end in rows that see nothing. */
DEVICE device_tile_keys tile_keys(const fa_visibility *v, int first, int end) {
    device_tile_keys keys;
    keys.some.begin = keys.some.end = keys.all.begin = keys.all.end = 0;
    if (first < v->seqlen_q) {
        int last = end < v->seqlen_q ? end - 1 : v->seqlen_q - 1;
        fa_key_range a = fa_visible_keys(v, first), b = fa_visible_keys(v, last);
        keys.some.begin = a.begin;
        keys.some.end = b.end < v->key_end ? b.end : v->key_end;
        keys.all.begin = b.begin;
        keys.all.end = a.end;
    }
    return keys;
}

/* begin <= row < end */
typedef struct device_row_range {
    int begin;
    int end;
} device_row_range;

/* The rows that see at least one key of [begin, end), which is not empty and within the keys that some row sees. */
DEVICE device_row_range rows_that_see(const fa_visibility *v, int begin, int end) {
    device_row_range rows;
    rows.begin = begin - v->diagonal - v->right;
    rows.end = end - v->diagonal + v->left;
    if (rows.begin < 0) rows.begin = 0;
    if (rows.end > v->seqlen_q) rows.end = v->seqlen_q;
    return rows;
}

/* Queries counted through the whole batch, for workspaces with a row per query and head: FA_WORKSPACE_ROWS of them. */
DEVICE int64_t workspace_row(const fa_forward_params *p, const device_sequence *s, int row) {
    return (p->cu_seqlens_q.data ? s->q_begin : (int64_t)s->entry * p->rows_q) + row;
}

DEVICE char *row_address(const fa_device_rows *rows, const device_sequence *s, int64_t row, int head) {
    return rows->data + s->entry * rows->batch_stride + row * rows->row_stride + head * rows->head_stride;
}

#endif
