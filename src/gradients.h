/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One checked, normalised description of a backward call: the forward problem, in which out and lse are inputs now, and
 * the tensors that fa_backward adds to it. As with problem.h, fa_gradients_init() holds every rule; back ends check
 * nothing again, and compute addresses by the functions of problem.h and those below.
 */
#ifndef FA_GRADIENTS_H
#define FA_GRADIENTS_H

#include "problem.h"

typedef struct fa_gradients {
    fa_problem problem;
    fa_rows dout;
    fa_rows dq, dk, dv;    /* data NULL: not wanted */
    fa_score_tensor dbias; /* data NULL: not wanted; strides 0 where it is summed over the dimension */
    int64_t dbias_shape[4];
    struct fa_gradient_vector {
        char *data; /* NULL: not wanted */
        fa_element type;
        int64_t stride[2];
    } dsink,           /* (head, 0) */
        dalibi_slopes; /* (batch, head); batch stride 0: summed over the batch */
    bool dalibi_per_batch;
    bool deterministic;
} fa_gradients;

/* The arguments of fa_backward. */
typedef struct fa_backward_arguments {
    const fa_tensor *dout, *q, *k, *v, *out, *lse;
    const fa_options *options;
    const fa_tensor *dq, *dk, *dv;
} fa_backward_arguments;

/* with_data as in fa_problem_init(). */
fa_status fa_gradients_init(fa_gradients *g, const fa_backward_arguments *arguments, bool with_data);

static inline char *fa_dbias_address(const fa_gradients *g, int64_t batch, int64_t head, int64_t row, int64_t key) {
    return (char *)fa_score_address(&g->dbias, batch, head, row, key); /* an output: not const where it came from */
}

/* Elements of dbias, and the number of the one for a pair, row-major. */
static inline int64_t fa_dbias_count(const fa_gradients *g) {
    return g->dbias_shape[0] * g->dbias_shape[1] * g->dbias_shape[2] * g->dbias_shape[3];
}

static inline int64_t fa_dbias_number(const fa_gradients *g, int64_t batch, int64_t head, int64_t row, int64_t key) {
    const int64_t index[4] = {batch, head, row, key};
    int64_t number = 0;
    for (int i = 0; i < 4; i++) number = number * g->dbias_shape[i] + (g->dbias_shape[i] == 1 ? 0 : index[i]);
    return number;
}

static inline void fa_gradient_vector_store(const struct fa_gradient_vector *v, int64_t i, int64_t j, double x) {
    fa_element_store(v->data + i * v->stride[0] + j * v->stride[1], x, v->type);
}

/* lse of a query; -inf: it takes no part. */
static inline double fa_problem_load_lse(const fa_problem *p, const fa_sequence *s, int64_t row, int64_t head) {
    return fa_element_load(fa_lse_address(p, s, row, head), p->lse.type);
}

#endif
