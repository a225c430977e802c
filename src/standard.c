/* SPDX-License-Identifier: Apache-2.0 */
/* Attention as it was written before FlashAttention, in the inputs' precision: see reference.h. */
#include "reference.h"

#include "standard_arithmetic.h"
#include "status.h"

#include <math.h>
#include <stdlib.h>

double fa_standard_score(const fa_problem *p, const fa_sequence *s, int64_t head, int64_t row, int64_t key,
                         double *slope) {
    fa_element type = p->q.type;
    if (fa_masked_out(p, s->batch, head, row, key)) return -HUGE_VAL;
    const char *q = fa_query_address(&p->q, s, row, head);
    const char *k = fa_key_address(p, &p->k, s, key, head / p->group);
    double x = rounded((double)p->softmax_scale * rounded(dot(q, type, k, type, p->head_dim, type), type), type);
    *slope = 1;
    if (p->softcap > 0) {
        double t = rounded(tanh(rounded(x / (double)p->softcap, type)), type);
        x = rounded((double)p->softcap * t, type);
        *slope = rounded(1 - t * t, type);
    }
    return rounded(x + fa_score_offset(p, s, head, row, key), type);
}

static void standard_row(const fa_problem *p, const fa_sequence *s, int64_t head, int64_t row, double *scores) {
    fa_element type = p->q.type;
    fa_key_range keys = fa_visible_keys(&s->visibility, row);
    double sink = p->sink.data == NULL ? -HUGE_VAL : (double)fa_table_float(&p->sink, head, 0);

    double max = sink;
    for (int64_t j = keys.begin; j < keys.end; j++) {
        double slope;
        scores[j] = fa_standard_score(p, s, head, row, j, &slope);
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
