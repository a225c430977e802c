/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the passes of backward have in common: one tile of query rows and one tile of keys, and from them the weights P
 * and the gradients dS of their scores. Everything that depends on masks, lengths and score changes is here; who adds
 * up what is backward.c's and backward_bias.c's.
 */
#ifndef FA_CPU_BACKWARD_TILE_H
#define FA_CPU_BACKWARD_TILE_H

#include "cpu/arrays.h"
#include "cpu/kernels_backward.h"
#include "gradients.h"

/* A query of one head, and what the first pass found out about it. */
typedef struct fa_backward_row {
    int64_t query, head;
    fa_key_range keys; /* what it sees by position */
    float lse;         /* +inf: it takes no part, since its lse is -inf */
    float delta;       /* dot(dout, out) */
} fa_backward_row;

/* What a pass works with. */
typedef struct fa_backward_context {
    const fa_gradients *g;
    const fa_cpu_backward_kernels *kernels;
    const fa_cpu_products *products;
} fa_backward_context;

/* Query rows as operands: by rows as left one, in panels as right one. */
typedef struct fa_backward_queries {
    int64_t count;
    fa_backward_row *row; /* [tile_rows] */
    float *lse, *delta;   /* [tile_rows], of row */
    float *q, *q_panels;
    float *dout, *dout_panels;
    bool q_nonfinite, dout_nonfinite;
    fa_key_range all; /* from the first key that any of them sees to the last */
} fa_backward_queries;

/* Keys [begin, begin + count) of a sequence as right operands. */
typedef struct fa_backward_keys {
    int64_t begin, count, head_kv;
    float *k_columns, *k_panels, *v_columns;
    bool k_nonfinite;
} fa_backward_keys;

/* P and dS of a tile, [tile_rows][FA_BACKWARD_KEYS]. */
typedef struct fa_backward_scores {
    float *p, *ds;
    float *slope;     /* of softcap: 1 - tanh^2 */
    float *p_by_rows; /* P and dS as operands; p and ds themselves if operands are float32 */
    float *ds_by_rows, *ds_by_columns;
    float *bias;         /* [FA_BACKWARD_KEYS] */
    unsigned char *seen; /* pairs that see each other; filled only if `nonfinite` */
    bool nonfinite;      /* q, dout or k holds NaN or infinity */
    int64_t first, end;  /* rows that were computed; first fills whole words */
    const void **rows;   /* [max(tile_rows, FA_BACKWARD_KEYS)], addresses to pack from */
} fa_backward_scores;

/* Words of an operand with this depth. */
static inline int64_t fa_words(const fa_cpu_products *products, int64_t depth) {
    return fa_divide_up(depth, products->step);
}

/* Lay the buffers out at base and return their size in bytes. */
int64_t fa_backward_queries_init(fa_backward_queries *b, const fa_backward_context *c, int64_t tile_rows, char *base);
int64_t fa_backward_keys_init(fa_backward_keys *b, const fa_backward_context *c, char *base);
int64_t fa_backward_scores_init(fa_backward_scores *b, const fa_backward_context *c, int64_t tile_rows, char *base);

/* Loads queries->row[0 .. count), which the caller has filled in. */
void fa_backward_load_queries(const fa_backward_context *c, const fa_sequence *s, fa_backward_queries *queries,
                              fa_backward_scores *scores);
void fa_backward_load_keys(const fa_backward_context *c, const fa_sequence *s, int64_t head_kv, int64_t begin,
                           int64_t count, fa_backward_keys *keys, fa_backward_scores *scores);

/* P and dS of the rows from the first to the last that see any of the keys by position, both exactly 0 for hidden
 * ones and for columns up to the panel's edge. dS is the gradient of the score, before fa_backward_softcap() makes
 * it that of the product of q and k, times softmax_scale. */
void fa_backward_tile(const fa_backward_context *c, const fa_sequence *s, const fa_backward_queries *queries,
                      const fa_backward_keys *keys, fa_backward_scores *scores);
void fa_backward_softcap(const fa_problem *p, int64_t columns, fa_backward_scores *scores);

#endif
