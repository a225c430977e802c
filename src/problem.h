/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One checked, normalised description of a call. fa_problem_init() holds every rule on arguments; after it
 * back ends rely on what they read here and check nothing again. Addresses are computed by the functions
 * below and nowhere else: all offsets are 64-bit, in bytes.
 */
#ifndef FA_PROBLEM_H
#define FA_PROBLEM_H

#include "element.h"
#include "flashattn.h"
#include "mask.h"

#include <math.h>
#include <stdbool.h>

#define FA_HEAD_DIM_MAX 256 /* of head_dim and head_dim_v */

/* q, k, v or out: element (batch, row, head, i) lies at data + batch * batch_stride + row * row_stride + head
 * * head_stride + i * element size. Variable length: batch_stride = 0 and rows count through the whole
 * tensor. Paged: batch is the page. */
typedef struct fa_rows {
    char *data; /* written through only for outputs */
    fa_element type;
    int64_t batch_stride;
    int64_t row_stride;
    int64_t head_stride;
} fa_rows;

/* bias or mask, (batch, head, row, key); broadcast dimensions have stride 0. */
typedef struct fa_score_tensor {
    const char *data; /* NULL: none */
    fa_element type;  /* of a bias */
    int64_t batch_stride;
    int64_t head_stride;
    int64_t row_stride;
    int64_t key_stride;
} fa_score_tensor;

/* A small tensor of int32 or float32, at most two dimensions: lengths, slopes, sinks, block table. */
typedef struct fa_table {
    const char *data; /* NULL: none */
    int64_t stride[2];
} fa_table;

typedef struct fa_problem {
    int64_t batch;
    int64_t heads;
    int64_t heads_kv;
    int64_t group; /* heads / heads_kv */
    int64_t head_dim;
    int64_t head_dim_v;
    int64_t rows_q;       /* dense: queries per batch entry; variable length: total_q */
    int64_t rows_k;       /* dense: keys per batch entry; variable length: total_k; paged: max_pages * page_size */
    int64_t page_size;    /* 0: not paged */
    int64_t max_seqlen_q; /* longest sequence, used queries */
    int64_t max_seqlen_k;

    fa_rows q, k, v, out;
    struct {
        char *data; /* NULL: not wanted */
        fa_element type;
        int64_t batch_stride, head_stride, row_stride;
    } lse;

    fa_table cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, block_table, alibi_slopes, sink;
    fa_score_tensor bias, mask;

    float softmax_scale;
    float softcap; /* 0: none */
    fa_causal causal;
    int64_t window_left, window_right; /* FA_WINDOW_OPEN or >= 0 */

    int32_t device_type;
    int32_t device_id;
    void *stream;     /* GPU: to enqueue on */
    fa_kernel kernel; /* as asked for */
    fa_isa isa;
    int32_t num_threads;
    int32_t num_splits;
} fa_problem;

/* Where a sequence lies and what its queries may see. */
typedef struct fa_sequence {
    int64_t batch;   /* its number */
    int64_t q_begin; /* its first row in q and out */
    int64_t q_rows;  /* rows of q and out that belong to it; those from visibility.seqlen_q on see nothing */
    int64_t k_begin;
    fa_visibility visibility;
} fa_sequence;

/* The caller's options in the struct that this version knows; NULL: all defaults. */
fa_status fa_options_read(fa_options *o, const fa_options *options);

/* A forward call. with_data: data pointers must be there, and tables are read and checked (always, on the CPU);
 * without, as in fa_plan(), q, k, v, out and lse may have none. */
fa_status fa_problem_init(fa_problem *problem, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                          const fa_options *options, const fa_tensor *out, const fa_tensor *lse, bool with_data);

/* What a backward call has in common with it: here out and lse are inputs, and lse is there. gradients.h holds the
 * rest. */
fa_status fa_problem_init_backward(fa_problem *problem, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                                   const fa_options *o, const fa_tensor *out, const fa_tensor *lse, bool with_data);

/* The tensors among the options that are inputs, with their names; NULL tensors included. */
typedef struct fa_named_tensor {
    const char *name;
    const fa_tensor *tensor;
} fa_named_tensor;
enum { FA_OPTION_INPUTS = 10 };
void fa_option_inputs(const fa_options *o, fa_named_tensor inputs[FA_OPTION_INPUTS]);

/* The rules for q, k, v, and whatever has rows like theirs: a contiguous last dimension, a dtype with a number format.
 * `ndim` dimensions, [batch,] row, head, element; `layout` names them. */
fa_status fa_rows_init(fa_rows *rows, const char *name, const fa_tensor *t, const fa_tensor *q, int32_t ndim,
                       const char *layout, bool with_data);

/* Sequences 0 .. batch-1. With cu_seqlens_q one more follows, of the rows behind the last sequence, which see
 * nothing: whoever loops over fa_problem_sequences() writes every row of the outputs. */
fa_sequence fa_problem_sequence(const fa_problem *problem, int64_t n);

static inline int64_t fa_problem_sequences(const fa_problem *p) { return p->batch + (p->cu_seqlens_q.data != NULL); }

/* Rows of k and v that belong to sequence n, unused ones included; n == batch, only with cu_seqlens_k: the rows
 * behind the last sequence, which no query sees. Whoever loops over fa_problem_key_segments() meets every row once.
 * Not for paged keys. */
typedef struct fa_key_segment {
    int64_t begin;
    int64_t rows;
} fa_key_segment;

fa_key_segment fa_problem_key_segment(const fa_problem *problem, int64_t n);

static inline int64_t fa_problem_key_segments(const fa_problem *p) { return p->batch + (p->cu_seqlens_k.data != NULL); }

static inline int32_t fa_table_int(const fa_table *table, int64_t i, int64_t j) {
    int32_t x;
    memcpy(&x, table->data + i * table->stride[0] + j * table->stride[1], sizeof x);
    return x;
}

static inline float fa_table_float(const fa_table *table, int64_t i, int64_t j) {
    float x;
    memcpy(&x, table->data + i * table->stride[0] + j * table->stride[1], sizeof x);
    return x;
}

static inline char *fa_rows_address(const fa_rows *rows, int64_t batch, int64_t row, int64_t head) {
    return rows->data + batch * rows->batch_stride + row * rows->row_stride + head * rows->head_stride;
}

/* Query row i of the sequence; also the row of out. */
static inline char *fa_query_address(const fa_rows *rows, const fa_sequence *s, int64_t row, int64_t head) {
    return fa_rows_address(rows, s->batch, s->q_begin + row, head);
}

/* Key j of the sequence, in k or v, by way of its page if paged. */
static inline const char *fa_key_address(const fa_problem *p, const fa_rows *rows, const fa_sequence *s, int64_t key,
                                         int64_t head_kv) {
    if (p->page_size == 0) return fa_rows_address(rows, s->batch, s->k_begin + key, head_kv);
    int64_t page = fa_table_int(&p->block_table, s->batch, key / p->page_size);
    return fa_rows_address(rows, page, key % p->page_size, head_kv);
}

static inline const char *fa_score_address(const fa_score_tensor *t, int64_t batch, int64_t head, int64_t row,
                                           int64_t key) {
    return t->data + batch * t->batch_stride + head * t->head_stride + row * t->row_stride + key * t->key_stride;
}

/* Distance of query and key that ALiBi's slope multiplies: |i + seqlen_k - seqlen_q - j|, whatever the causal
 * alignment. */
static inline int64_t fa_alibi_distance(const fa_visibility *v, int64_t row, int64_t key) {
    int64_t distance = row + v->key_end - v->seqlen_q - key;
    return distance < 0 ? -distance : distance;
}

static inline float fa_alibi_slope(const fa_problem *p, int64_t batch, int64_t head) {
    return fa_table_float(&p->alibi_slopes, batch, head);
}

/* Whether the boolean mask, or a bias of -inf, hides a key that position lets through. */
static inline bool fa_masked_out(const fa_problem *p, int64_t batch, int64_t head, int64_t row, int64_t key) {
    if (p->mask.data != NULL && *fa_score_address(&p->mask, batch, head, row, key) == 0) return true;
    return p->bias.data != NULL &&
           fa_element_load(fa_score_address(&p->bias, batch, head, row, key), p->bias.type) == -HUGE_VAL;
}

/* What bias and ALiBi add to a score. */
static inline double fa_score_offset(const fa_problem *p, const fa_sequence *s, int64_t head, int64_t row,
                                     int64_t key) {
    double offset = 0;
    if (p->bias.data != NULL)
        offset = fa_element_load(fa_score_address(&p->bias, s->batch, head, row, key), p->bias.type);
    if (p->alibi_slopes.data != NULL)
        offset -= (double)fa_alibi_slope(p, s->batch, head) * (double)fa_alibi_distance(&s->visibility, row, key);
    return offset;
}

static inline char *fa_lse_address(const fa_problem *p, const fa_sequence *s, int64_t row, int64_t head) {
    return p->lse.data + s->batch * p->lse.batch_stride + head * p->lse.head_stride +
           (s->q_begin + row) * p->lse.row_stride;
}

static inline void fa_problem_store_lse(const fa_problem *p, const fa_sequence *s, int64_t row, int64_t head,
                                        double lse) {
    if (p->lse.data == NULL) return;
    fa_element_store(fa_lse_address(p, s, row, head), lse, p->lse.type);
}

#endif
