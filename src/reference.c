/* SPDX-License-Identifier: Apache-2.0 */
/* The float64 oracle: the formula of flashattn.h, in its order, for one query at a time. To be checked by
 * eye. */
#include "reference.h"

#include "status.h"

#include <math.h>
#include <stdlib.h>

static double dot(const char *a, const char *b, int64_t size, fa_element type) {
    int64_t step = fa_element_size(type);
    double sum = 0;
    for (int64_t i = 0; i < size; i++) sum += fa_element_load(a + i * step, type) * fa_element_load(b + i * step, type);
    return sum;
}

double fa_reference_score(const fa_problem *p, const fa_sequence *s, int64_t head, int64_t row, int64_t key,
                          double *slope) {
    if (fa_masked_out(p, s->batch, head, row, key)) return -HUGE_VAL;
    const char *q = fa_query_address(&p->q, s, row, head);
    const char *k = fa_key_address(p, &p->k, s, key, head / p->group);
    double x = (double)p->softmax_scale * dot(q, k, p->head_dim, p->q.type);
    *slope = 1;
    if (p->softcap > 0) {
        double t = tanh(x / (double)p->softcap);
        x = (double)p->softcap * t;
        *slope = 1 - t * t;
    }
    return x + fa_score_offset(p, s, head, row, key);
}

static void reference_row(const fa_problem *p, const fa_sequence *s, int64_t head, int64_t row, double *scores) {
    fa_key_range keys = fa_visible_keys(&s->visibility, row);
    double sink = p->sink.data == NULL ? -HUGE_VAL : (double)fa_table_float(&p->sink, head, 0);

    double max = sink;
    for (int64_t j = keys.begin; j < keys.end; j++) {
        double slope;
        scores[j] = fa_reference_score(p, s, head, row, j, &slope);
        if (!isnan(max) && !(scores[j] <= max)) max = scores[j]; /* NaN too, and then it stays */
    }
    double sum = max == -HUGE_VAL ? 0 : exp(sink - max);
    for (int64_t j = keys.begin; j < keys.end && max != -HUGE_VAL; j++) sum += exp(scores[j] - max);

    char *out = fa_query_address(&p->out, s, row, head);
    for (int64_t i = 0; i < p->head_dim_v; i++) {
        double x = 0;
        for (int64_t j = keys.begin; j < keys.end; j++) {
            if (scores[j] == -HUGE_VAL) continue; /* hidden: its value is not looked at */
            const char *v = fa_key_address(p, &p->v, s, j, head / p->group);
            x += exp(scores[j] - max) / sum * fa_element_load(v + i * fa_element_size(p->v.type), p->v.type);
        }
        fa_element_store(out + i * fa_element_size(p->out.type), x, p->out.type);
    }
    fa_problem_store_lse(p, s, row, head, max == -HUGE_VAL ? -HUGE_VAL : max + log(sum));
}

int64_t fa_reference_workspace(const fa_problem *p) { return p->max_seqlen_k * (int64_t)sizeof(double); }

fa_status fa_reference_forward(const fa_problem *p) {
    double *scores = malloc((size_t)fa_reference_workspace(p) + 1);
    if (scores == NULL)
        return fa_fail(FA_OUT_OF_MEMORY, "no memory for one row of %lld scores", (long long)p->max_seqlen_k);
    for (int64_t n = 0; n < fa_problem_sequences(p); n++) {
        fa_sequence s = fa_problem_sequence(p, n);
        for (int64_t head = 0; head < p->heads; head++)
            for (int64_t row = 0; row < s.q_rows; row++) reference_row(p, &s, head, row, scores);
    }
    free(scores);
    return FA_OK;
}
