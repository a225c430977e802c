/* SPDX-License-Identifier: Apache-2.0 */
/* Attention as it was written before FlashAttention, in the inputs' precision: see reference.h. */
#include "reference.h"

#include "status.h"

#include <math.h>
#include <stdlib.h>

/* x as the inputs' dtype holds it. */
static double rounded(double x, fa_element type) {
    unsigned char bytes[8];
    fa_element_store(bytes, x, type);
    return fa_element_load(bytes, type);
}

/* exp as the running sum holds it. */
static double exponential(double x, fa_element type) {
    return type == FA_ELEMENT_FLOAT64 ? exp(x) : (double)(float)exp(x);
}

/* A running sum: float32, or float64 for float64 inputs. */
static double added(double sum, double term, fa_element type) {
    return type == FA_ELEMENT_FLOAT64 ? sum + term : (double)((float)sum + (float)term);
}

static double dot(const char *a, const char *b, int64_t size, fa_element type) {
    int64_t step = fa_element_size(type);
    double sum = 0;
    for (int64_t i = 0; i < size; i++)
        sum = added(sum, fa_element_load(a + i * step, type) * fa_element_load(b + i * step, type), type);
    return sum;
}

static double score(const fa_problem *p, const fa_sequence *s, int64_t head, int64_t row, int64_t key) {
    fa_element type = p->q.type;
    if (fa_masked_out(p, s->batch, head, row, key)) return -HUGE_VAL;
    const char *q = fa_query_address(&p->q, s, row, head);
    const char *k = fa_key_address(p, &p->k, s, key, head / p->group);
    double x = rounded((double)p->softmax_scale * rounded(dot(q, k, p->head_dim, type), type), type);
    if (p->softcap > 0)
        x = rounded((double)p->softcap * rounded(tanh(rounded(x / (double)p->softcap, type)), type), type);
    return rounded(x + fa_score_offset(p, s, head, row, key), type);
}

static void standard_row(const fa_problem *p, const fa_sequence *s, int64_t head, int64_t row, double *scores) {
    fa_element type = p->q.type;
    fa_key_range keys = fa_visible_keys(&s->visibility, row);
    double sink = p->sink.data == NULL ? -HUGE_VAL : (double)fa_table_float(&p->sink, head, 0);

    double max = sink;
    for (int64_t j = keys.begin; j < keys.end; j++) {
        scores[j] = score(p, s, head, row, j);
        if (!isnan(max) && !(scores[j] <= max)) max = scores[j]; /* NaN too, and then it stays */
    }
    double sum = max == -HUGE_VAL ? 0 : exponential(sink - max, type);
    for (int64_t j = keys.begin; j < keys.end && max != -HUGE_VAL; j++)
        sum = added(sum, exponential(scores[j] - max, type), type);
    for (int64_t j = keys.begin; j < keys.end && max != -HUGE_VAL; j++)
        scores[j] =
            scores[j] == -HUGE_VAL ? -HUGE_VAL : rounded(exp(scores[j] - max) / sum, type); /* now P; -inf: hidden */

    char *out = fa_query_address(&p->out, s, row, head);
    for (int64_t i = 0; i < p->head_dim_v; i++) {
        double x = 0;
        for (int64_t j = keys.begin; j < keys.end; j++) {
            if (scores[j] == -HUGE_VAL) continue;
            const char *v = fa_key_address(p, &p->v, s, j, head / p->group);
            x = added(x, scores[j] * fa_element_load(v + i * fa_element_size(type), type), type);
        }
        fa_element_store(out + i * fa_element_size(p->out.type), rounded(x, type), p->out.type);
    }
    fa_problem_store_lse(p, s, row, head, max == -HUGE_VAL ? -HUGE_VAL : max + log(sum));
}

fa_status fa_standard_forward(const fa_problem *p) {
    double *scores = malloc((size_t)fa_reference_workspace(p) + 1);
    if (scores == NULL)
        return fa_fail(FA_OUT_OF_MEMORY, "no memory for one row of %lld scores", (long long)p->max_seqlen_k);
    for (int64_t n = 0; n < fa_problem_sequences(p); n++) {
        fa_sequence s = fa_problem_sequence(p, n);
        for (int64_t head = 0; head < p->heads; head++)
            for (int64_t row = 0; row < s.q_rows; row++) standard_row(p, &s, head, row, scores);
    }
    free(scores);
    return FA_OK;
}
