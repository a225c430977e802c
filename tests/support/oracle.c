/* SPDX-License-Identifier: Apache-2.0 */
/* Attention once more: see oracle.h. */
#include "oracle.h"

#include "answer.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>

double *zeros(int64_t count) {
    double *x = calloc((size_t)count + 1, sizeof *x);
    assert_non_null(x);
    return x;
}

double lost(double x) { return (double)(float)x == x || !isfinite(x) ? 0 : UNIT * fabs(x); }

static double square(double x) { return x * x; }

static void copy_row(double *row, const tensor *t, int64_t first) {
    int64_t width = t->shape[t->fa.ndim - 1];
    const unsigned char *address = tensor_address(t, first);
    for (int64_t i = 0; i < width; i++)
        row[i] = fa_element_load(address + i * t->element_bytes, element_of_dtype(t->fa.dtype));
}

head_view head_view_new(const attention_call *a, int64_t n, int64_t head) {
    const attention_case *c = &a->c;
    head_view w = {.a = a, .s = call_sequence_of(a, n), .n = n, .head = head};
    int64_t head_kv = head / (c->heads / c->heads_kv);
    w.scale = (double)a->options.softmax_scale;
    if ((a->options.set & FA_SET_SOFTMAX_SCALE) == 0) w.scale = (double)(float)pow((double)c->head_dim, -0.5);
    w.sink = a->sink == NULL ? -(double)INFINITY : tensor_get(a->sink, head);
    w.q = zeros(w.s.q_rows * c->head_dim);
    w.k = zeros(w.s.keys * c->head_dim);
    w.v = zeros(w.s.keys * c->head_dim_v);
    w.score = zeros(w.s.keys);
    w.unit = zeros(w.s.keys);
    for (int64_t i = 0; i < w.s.q_rows; i++) copy_row(w.q + i * c->head_dim, a->q, call_q_number(a, a->q, n, head, i));
    for (int64_t j = w.s.pad; j < w.s.keys; j++) {
        copy_row(w.k + j * c->head_dim, a->k, call_k_number(a, a->k, n, head_kv, j));
        copy_row(w.v + j * c->head_dim_v, a->v, call_k_number(a, a->v, n, head_kv, j));
    }
    return w;
}

void head_view_free(head_view *w) {
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->score);
    free(w->unit);
}

double score_of(const head_view *w, int64_t row, int64_t key, double *unit) {
    const attention_call *a = w->a;
    const attention_case *c = &a->c;
    const double *q = w->q + row * c->head_dim, *k = w->k + key * c->head_dim;
    double sum = 0, squares = 0;
    for (int64_t i = c->head_dim - 1; i >= 0; i--) { /* the other way round than the library */
        double x = q[i] * k[i];
        sum += x;
        /* Kernels may scale before they add or after; exact is what is so either way. */
        squares += square(fmax(lost(w->scale * sum), fabs(w->scale) * lost(sum)));
        squares += square(fmax(lost(w->scale * x), fabs(w->scale) * lost(x)));
        if (lost(w->scale * q[i]) > 0) squares += square(UNIT * w->scale * x);
    }
    double x = w->scale * sum;
    squares += square(lost(x));
    if (c->softcap > 0) {
        if (isinf(x)) squares = 0; /* whatever it lost on its way, its tanh is 1 or -1 */
        x = (double)c->softcap * tanh(x / (double)c->softcap);
        squares += square(3 * UNIT * x); /* quotient, tanh, product */
    }
    if (a->bias != NULL) {
        x += tensor_get(a->bias, call_score_number(a->bias, w->n, w->head, row, key));
        squares += square(lost(x));
    }
    if (a->alibi != NULL) {
        double slope = tensor_get(a->alibi, c->alibi_per_batch ? w->n * c->heads + w->head : w->head);
        double distance = fabs((double)(row + w->s.keys - w->s.q_used - key));
        x -= slope * distance;
        squares += square(lost(slope * distance)) + square(lost(x));
    }
    *unit = sqrt(squares);
    return x;
}

/* What holding x loses. */
static double lost_in(double x, fa_element held) { return held == FA_ELEMENT_FLOAT32 ? 0 : rounding_of(x, held); }

/* Scores and their units for all keys of a row; the hidden ones are -inf. */
static void score_row(head_view *w, int64_t row) {
    for (int64_t j = 0; j < w->s.keys; j++) {
        w->score[j] = -(double)INFINITY;
        w->unit[j] = 0;
        if (!call_visible(w->a, &w->s, w->n, w->head, row, j)) continue;
        w->score[j] = score_of(w, row, j, &w->unit[j]);
        w->unit[j] = hypot(w->unit[j], lost_in(w->score[j], w->held));
    }
}

/* The largest score, the sink included; NaN if one is, or if it is +inf, whose weight is inf / inf. */
static double largest_score(const head_view *w) {
    double max = w->sink;
    for (int64_t j = 0; j < w->s.keys; j++) {
        if (isnan(w->score[j]) || isnan(max)) return (double)NAN;
        if (w->score[j] > max) max = w->score[j];
    }
    return max == (double)INFINITY ? (double)NAN : max;
}

/* Sums are taken both ways, first key first and last key first: a kernel may do either, and where weights fall
 * along the keys their roundings differ much. */

/* exp(score - max) of all keys and their sum; the units become those of the weights, the hidden scores stay
 * -inf, and the others become weights. */
typedef struct weights {
    double max, sum, largest;
    double sum_unit; /* relative, of the summation alone */
    bool any;
} weights;

static weights weigh(head_view *w) {
    weights x = {.max = largest_score(w)};
    double squares = 0;
    if (x.max != -(double)INFINITY) x.sum = exp(w->sink - x.max);
    for (int64_t j = w->s.keys - 1; j >= 0; j--) {
        if (w->score[j] == -(double)INFINITY) continue;
        double distance = w->score[j] - x.max;
        x.any = true;
        w->unit[j] = hypot(w->unit[j], lost(distance));
        if (distance != 0) w->unit[j] = hypot(w->unit[j], 2 * UNIT); /* exp; exp(0) is exact */
        if (distance < -86) w->unit[j] = 1; /* may be taken for 0, since float32 has subnormals from -87.3 on */
        w->score[j] = exp(distance);
        x.sum += w->score[j];
        squares += square(lost(x.sum));
    }
    double forward = 0;
    for (int64_t j = 0; j < w->s.keys; j++) {
        if (w->score[j] == -(double)INFINITY) continue;
        forward += w->score[j];
        squares += square(lost(forward));
    }
    x.sum_unit = x.any ? sqrt(squares) / x.sum : 0;
    for (int64_t j = 0; j < w->s.keys; j++) {
        if (w->score[j] == -(double)INFINITY) continue;
        w->score[j] /= x.sum;
        w->unit[j] = w->score[j] == 0 ? 0 : w->unit[j] * w->score[j];
        if (w->score[j] > x.largest) x.largest = w->score[j];
    }
    return x;
}

static void finish_row(head_view *w, int64_t row, oracle *o) {
    const attention_call *a = w->a;
    int64_t keys = w->s.keys, width = a->c.head_dim_v;
    int64_t row_number = (a->cu_q != NULL ? w->s.q_first : w->n * a->c.seqlen_q) + row;
    int64_t lse_number =
        a->cu_q != NULL ? w->head * o->rows + row_number : (w->n * a->c.heads + w->head) * a->c.seqlen_q + row;
    int64_t out_row = row_number * a->c.heads + w->head;
    double *out = o->out + out_row * width;

    weights x = weigh(w);
    double lse = x.max == -(double)INFINITY ? x.max : x.max + log(x.sum), lse_unit = 0;
    for (int64_t j = 0; j < keys; j++) lse_unit += w->unit[j];
    lse_unit += hypot(hypot(x.sum_unit, x.sum == 1 ? 0 : 2 * UNIT), lost(lse)); /* log */
    o->lse[lse_number] = lse;
    o->lse_unit[lse_number] = isfinite(lse_unit) ? lse_unit : 0;
    o->sees_key[out_row] = x.any;

    /* Beside a large sink all weights may be so small that their squares are 0. */
    double largest_unit = 0, inverse = x.largest > 1e-300 ? 1 / x.largest : 0;
    double quotient_unit = x.sum == 1 ? 0 : hypot(x.sum_unit, UNIT);
    for (int64_t i = 0; i < width; i++) {
        double sum = 0, forward = 0, squares = 0;
        for (int64_t j = keys - 1; j >= 0; j--) {
            if (w->score[j] == -(double)INFINITY) continue;
            sum += w->score[j] * w->v[j * width + i];
            squares += square(inverse * lost(sum));
        }
        for (int64_t j = 0; j < keys; j++) {
            if (w->score[j] == -(double)INFINITY) continue;
            double term = w->score[j] * w->v[j * width + i];
            forward += term;
            squares += square(inverse * lost_in(w->score[j], w->held) * w->v[j * width + i]);
            squares += square(inverse * lost(forward)) + square(inverse * lost(term));
            if (w->unit[j] > 0) squares += square(inverse * w->unit[j] * (w->v[j * width + i] - sum));
        }
        squares += square(inverse * quotient_unit * sum) + square(inverse * lost(sum));
        double unit = sqrt(squares) * x.largest;
        out[i] = sum;
        if (unit > largest_unit) largest_unit = unit;
    }
    o->out_unit[out_row] = isfinite(largest_unit) ? largest_unit : 0;
}

oracle *oracle_new(const attention_call *a, fa_element held) {
    const attention_case *c = &a->c;
    oracle *o = calloc(1, sizeof *o);
    assert_non_null(o);
    o->rows = a->rows_q * (c->varlen_q ? 1 : c->batch);
    o->lse_count = o->rows * c->heads;
    o->out_count = o->lse_count * c->head_dim_v;
    o->out = zeros(o->out_count);
    o->lse = zeros(o->lse_count);
    o->out_unit = zeros(o->lse_count);
    o->lse_unit = zeros(o->lse_count);
    o->sees_key = calloc((size_t)o->lse_count + 1, sizeof *o->sees_key);
    assert_non_null(o->sees_key);
    /* Rows that belong to no sequence see nothing, and so do unused ones. */
    for (int64_t i = 0; i < o->lse_count; i++) o->lse[i] = -(double)INFINITY;
    for (int64_t n = 0; n < c->batch; n++)
        for (int64_t h = 0; h < c->heads; h++) {
            head_view w = head_view_new(a, n, h);
            w.held = held;
            for (int64_t i = 0; i < w.s.q_rows; i++) {
                score_row(&w, i);
                finish_row(&w, i, o);
            }
            head_view_free(&w);
        }
    if (a->sink != NULL && c->varlen_q) {
        /* The rows behind the last sequence are rows that see no key: lse is the sink there too. */
        int64_t end = tensor_get_int(a->cu_q, c->batch);
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t i = end; i < o->rows; i++) o->lse[h * o->rows + i] = tensor_get(a->sink, h);
    }
    return o;
}

void oracle_free(oracle *o) {
    free(o->out);
    free(o->lse);
    free(o->out_unit);
    free(o->lse_unit);
    free(o->sees_key);
    free(o);
}
