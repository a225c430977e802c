/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients: the formulas of flashattn.h, in their order, for one query at a time. To be checked by eye.
 *
 * `type` is the dtype that every intermediate is rounded to: the inputs' for the standard kernel; float64 for the
 * reference, where standard_arithmetic.h leaves a number as it is.
 */
#include "reference.h"

#include "standard_arithmetic.h"
#include "status.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Sums, until all queries have been seen. Those of dq and dk do not have the factor softmax_scale yet. */
typedef struct sums {
    double *dq;      /* [head_dim], one query */
    double *dk, *dv; /* [rows of the longest key segment][head_dim, head_dim_v], one sequence and key/value head */
    double *dbias;   /* dbias_shape */
    double *dsink;   /* [heads] */
    double *dslope;  /* [batch][heads] */
} sums;

static void add_row(double *sum, double factor, const char *row, fa_element row_type, int64_t size, fa_element type) {
    for (int64_t i = 0; i < size; i++)
        sum[i] = added(sum[i], factor * fa_element_load(row + i * fa_element_size(row_type), row_type), type);
}

static void store_row(char *row, fa_element row_type, const double *sum, double factor, int64_t size, fa_element type) {
    for (int64_t i = 0; i < size; i++)
        fa_element_store(row + i * fa_element_size(row_type), rounded(factor * sum[i], type), row_type);
}

static void backward_row(const fa_gradients *g, fa_element type, bool standard, const fa_sequence *s, int64_t head,
                         int64_t row, sums *sum) {
    const fa_problem *p = &g->problem;
    int64_t head_kv = head / p->group;
    double lse = fa_problem_load_lse(p, s, row, head);
    const char *q = fa_query_address(&p->q, s, row, head), *out = fa_query_address(&p->out, s, row, head);
    const char *dout = fa_query_address(&g->dout, s, row, head);
    double delta = dot(dout, g->dout.type, out, p->out.type, p->head_dim_v, type);
    fa_key_range keys = fa_visible_keys(&s->visibility, row);
    bool any = false;
    for (int64_t j = keys.begin; j < keys.end && lse != -HUGE_VAL; j++) {
        if (fa_masked_out(p, s->batch, head, row, j)) continue;
        any = true;
        const char *k = fa_key_address(p, &p->k, s, j, head_kv), *v = fa_key_address(p, &p->v, s, j, head_kv);
        double slope; /* of softcap */
        double score =
            standard ? fa_standard_score(p, s, head, row, j, &slope) : fa_reference_score(p, s, head, row, j, &slope);
        double weight = rounded(exp(score - lse), type);
        double dweight = rounded(dot(dout, g->dout.type, v, p->v.type, p->head_dim_v, type), type);
        double ds = rounded(weight * (dweight - delta), type);
        double dt = rounded(ds * slope, type);
        add_row(sum->dv + j * p->head_dim_v, weight, dout, g->dout.type, p->head_dim_v, type);
        add_row(sum->dq, dt, k, p->k.type, p->head_dim, type);
        add_row(sum->dk + j * p->head_dim, dt, q, p->q.type, p->head_dim, type);
        if (g->dbias.data != NULL) {
            double *dbias = sum->dbias + fa_dbias_number(g, s->batch, head, row, j);
            *dbias = added(*dbias, ds, type);
        }
        double *dslope = sum->dslope + s->batch * p->heads + head;
        *dslope = added(*dslope, -ds * (double)fa_alibi_distance(&s->visibility, row, j), type);
    }
    if (!any || p->sink.data == NULL) return;
    double weight = rounded(exp((double)fa_table_float(&p->sink, head, 0) - lse), type);
    sum->dsink[head] = added(sum->dsink[head], -weight * delta, type);
}

/* All queries of a sequence and key/value head, then the rows of dk and dv. */
static void backward_sequence(const fa_gradients *g, fa_element type, bool standard, int64_t n, int64_t head_kv,
                              sums *sum) {
    const fa_problem *p = &g->problem;
    double scale = (double)p->softmax_scale;
    int64_t rows_k = n < fa_problem_key_segments(p) ? fa_problem_key_segment(p, n).rows : 0;
    for (int64_t i = 0; i < rows_k * p->head_dim; i++) sum->dk[i] = 0;
    for (int64_t i = 0; i < rows_k * p->head_dim_v; i++) sum->dv[i] = 0;
    if (n < fa_problem_sequences(p)) {
        fa_sequence s = fa_problem_sequence(p, n);
        for (int64_t head = head_kv * p->group; head < (head_kv + 1) * p->group; head++)
            for (int64_t row = 0; row < s.q_rows; row++) {
                for (int64_t i = 0; i < p->head_dim; i++) sum->dq[i] = 0;
                backward_row(g, type, standard, &s, head, row, sum);
                if (g->dq.data == NULL) continue;
                store_row(fa_query_address(&g->dq, &s, row, head), g->dq.type, sum->dq, scale, p->head_dim, type);
            }
    }
    for (int64_t j = 0; j < rows_k; j++) {
        int64_t row = fa_problem_key_segment(p, n).begin + j;
        if (g->dk.data != NULL)
            store_row(fa_rows_address(&g->dk, n, row, head_kv), g->dk.type, sum->dk + j * p->head_dim, scale,
                      p->head_dim, type);
        if (g->dv.data != NULL)
            store_row(fa_rows_address(&g->dv, n, row, head_kv), g->dv.type, sum->dv + j * p->head_dim_v, 1,
                      p->head_dim_v, type);
    }
}

static void store_option_gradients(const fa_gradients *g, const sums *sum) {
    const fa_problem *p = &g->problem;
    for (int64_t head = 0; head < p->heads && g->dsink.data != NULL; head++)
        fa_gradient_vector_store(&g->dsink, head, 0, sum->dsink[head]);
    if (g->dalibi_slopes.data != NULL)
        for (int64_t head = 0; head < p->heads; head++) {
            double all = 0;
            for (int64_t n = 0; n < p->batch; n++) {
                all += sum->dslope[n * p->heads + head];
                if (g->dalibi_per_batch)
                    fa_gradient_vector_store(&g->dalibi_slopes, n, head, sum->dslope[n * p->heads + head]);
            }
            if (!g->dalibi_per_batch) fa_gradient_vector_store(&g->dalibi_slopes, 0, head, all);
        }
    if (g->dbias.data == NULL) return;
    const int64_t *shape = g->dbias_shape;
    for (int64_t i = 0; i < fa_dbias_count(g); i++)
        fa_element_store(fa_dbias_address(g, i / shape[3] / shape[2] / shape[1], i / shape[3] / shape[2] % shape[1],
                                          i / shape[3] % shape[2], i % shape[3]),
                         sum->dbias[i], g->dbias.type);
}

static int64_t longest_key_segment(const fa_problem *p) {
    int64_t longest = 0;
    for (int64_t n = 0; n < fa_problem_key_segments(p); n++)
        if (fa_problem_key_segment(p, n).rows > longest) longest = fa_problem_key_segment(p, n).rows;
    return longest;
}

int64_t fa_reference_backward_workspace(const fa_gradients *g) {
    const fa_problem *p = &g->problem;
    int64_t numbers = p->head_dim + longest_key_segment(p) * (p->head_dim + p->head_dim_v) +
                      (g->dbias.data == NULL ? 0 : fa_dbias_count(g)) + p->heads + p->batch * p->heads;
    return numbers * (int64_t)sizeof(double);
}

static fa_status backward(const fa_gradients *g, fa_element type, bool standard) {
    const fa_problem *p = &g->problem;
    int64_t bytes = fa_reference_backward_workspace(g), rows_k = longest_key_segment(p);
    double *memory = calloc(1, (size_t)bytes);
    if (memory == NULL) return fa_fail(FA_OUT_OF_MEMORY, "no memory for a workspace of %" PRId64 " bytes", bytes);
    sums sum;
    sum.dq = memory;
    sum.dk = sum.dq + p->head_dim;
    sum.dv = sum.dk + rows_k * p->head_dim;
    sum.dsink = sum.dv + rows_k * p->head_dim_v;
    sum.dslope = sum.dsink + p->heads;
    sum.dbias = sum.dslope + p->batch * p->heads;
    /* Rows behind the last sequence see nothing and are not seen: their gradients are the zeros of one more
     * sequence. */
    for (int64_t n = 0; n < p->batch + 1; n++)
        for (int64_t head_kv = 0; head_kv < p->heads_kv; head_kv++)
            backward_sequence(g, type, standard, n, head_kv, &sum);
    store_option_gradients(g, &sum);
    free(memory);
    return FA_OK;
}

fa_status fa_reference_backward(const fa_gradients *g) { return backward(g, FA_ELEMENT_FLOAT64, false); }

fa_status fa_standard_backward(const fa_gradients *g) { return backward(g, g->problem.q.type, true); }
