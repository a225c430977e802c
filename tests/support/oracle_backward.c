/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients once more: see oracle_backward.h. */
#include "oracle_backward.h"

#include "oracle.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>

const char *gradient_name(gradient which) {
    static const char *const names[] = {"dq", "dk", "dv", "dbias", "dsink", "dalibi_slopes"};
    return names[which];
}

const tensor *gradient_of(const attention_call *a, gradient which) {
    const tensor *const all[] = {a->q, a->k, a->v, a->bias, a->sink, a->alibi};
    return all[which];
}

static double square(double x) { return x * x; }

/* ---- Sums of products and what they lose ---- */

/* `common`: errors that all terms of a row share, which add up; the others add up in the square, those of the products
 * among them. A partial sum is at most about as large as the sum or as the terms' root of squares, and each of them may
 * be rounded. */
typedef struct sum {
    double value, squares, common, terms;
    double count;
} sum;

static void sum_add(sum *s, double term, double unit, double common) {
    s->value += term;
    s->squares += square(unit);
    s->common += common;
    s->terms += square(term);
    s->count++;
}

static double sum_unit(const sum *s) {
    double rounded = s->terms + (s->count > 1 ? s->count * fmax(square(s->value), s->terms) : 0);
    return s->common + sqrt(s->squares + square(UNIT) * rounded);
}

static sum dot(const double *x, const double *y, int64_t size) {
    sum s = {0};
    for (int64_t i = size - 1; i >= 0; i--) {
        double term = x[i] * y[i];
        s.value += term;
        s.terms += square(term);
    }
    s.count = (double)size;
    return s;
}

/* s[i] += factor * row[i], i < size. */
static void add_row(sum *s, bool *takes_part, const double *row, int64_t size, double factor, double unit,
                    double common) {
    for (int64_t i = 0; i < size; i++) {
        sum_add(&s[i], factor * row[i], unit * row[i], common * fabs(row[i]));
        takes_part[i] = true;
    }
}

/* ---- One head ---- */

/* What a pair has, as whole matrices [q_rows][keys]. */
typedef struct pair {
    bool visible;
    double p, p_unit;                        /* weight */
    double ds, ds_unit, ds_common;           /* gradient of the score */
    double dt, dt_unit, dt_common, distance; /* of the product of q and k, without the scale */
} pair;

typedef struct rows {
    double *dout, *out, *lse;
} rows;

static void copy_row(double *row, const tensor *t, int64_t first, int64_t width) {
    for (int64_t i = 0; i < width; i++) row[i] = tensor_get(t, first + i);
}

static pair pair_of(const head_view *w, const rows *r, const sum *delta, int64_t i, int64_t j) {
    const attention_case *c = &w->a->c;
    pair x = {.visible = true};
    double score_unit, score = score_of(w, i, j, &score_unit);
    double raw = w->scale * dot(w->q + i * c->head_dim, w->k + j * c->head_dim, c->head_dim).value;
    double exponent = score - r->lse[i];
    x.p = exp(exponent);
    x.p_unit = x.p * sqrt(square(score_unit) + square(lost(exponent)) + square(2 * UNIT));
    if (exponent < -86) x.p_unit = x.p;       /* may be taken for 0 */
    double p_common = x.p * UNIT * fabs(raw); /* a rounded query times the scale */

    sum dp = dot(r->dout + i * c->head_dim_v, w->v + j * c->head_dim_v, c->head_dim_v);
    double difference = dp.value - delta->value;
    double difference_unit = sqrt(square(sum_unit(&dp)) + square(lost(difference)));
    x.ds = x.p * difference;
    x.ds_unit = sqrt(square(x.p_unit * difference) + square(x.p * difference_unit) + square(lost(x.ds)));
    x.ds_common = fabs(p_common * difference) + x.p * sum_unit(delta);

    double slope = 1, slope_unit = 0;
    if (c->softcap > 0) {
        double cap = (double)c->softcap, inverse = 1 / cosh(raw / cap), t = tanh(raw / cap);
        slope = inverse * inverse;
        slope_unit = 2 * fabs(t) * (3 * UNIT * fabs(t) + slope * score_unit / cap) + UNIT;
    }
    x.dt = x.ds * slope;
    x.dt_unit = sqrt(square(x.ds_unit * slope) + square(x.ds * slope_unit) + square(lost(x.dt)));
    x.dt_common = x.ds_common * slope;
    x.distance = fabs((double)(i + w->s.keys - w->s.q_used - j));
    return x;
}

/* The totals of elements that several heads or sequences may add to. */
typedef struct totals {
    sum *of[GRADIENTS];
} totals;

static void total_add(totals *all, oracle_gradients *o, gradient which, int64_t number, double term, double unit,
                      double common) {
    sum_add(&all->of[which][number], term, unit, common);
    o->takes_part[which][number] = true;
}

static void add_head(const attention_call *a, const head_view *w, const rows *r, oracle_gradients *o, totals *all) {
    const attention_case *c = &a->c;
    int64_t keys = w->s.keys, d = c->head_dim, dv = c->head_dim_v, head_kv = w->head / (c->heads / c->heads_kv);
    double scale = w->scale;
    for (int64_t i = 0; i < w->s.q_rows; i++) {
        if (r->lse[i] == -(double)INFINITY) continue;
        sum delta = dot(r->dout + i * dv, r->out + i * dv, dv), slope = {0};
        int64_t dq = call_q_number(a, a->q, w->n, w->head, i);
        bool any = false;
        for (int64_t j = 0; j < keys; j++) {
            if (!call_visible(a, &w->s, w->n, w->head, i, j)) continue;
            any = true;
            pair x = pair_of(w, r, &delta, i, j);
            int64_t dk = call_k_number(a, a->k, w->n, head_kv, j), dvj = call_k_number(a, a->v, w->n, head_kv, j);
            add_row(all->of[GRADIENT_Q] + dq, o->takes_part[GRADIENT_Q] + dq, w->k + j * d, d, scale * x.dt,
                    scale * x.dt_unit, fabs(scale * x.dt_common));
            add_row(all->of[GRADIENT_K] + dk, o->takes_part[GRADIENT_K] + dk, w->q + i * d, d, scale * x.dt,
                    scale * sqrt(square(x.dt_unit) + square(x.dt_common)), 0);
            add_row(all->of[GRADIENT_V] + dvj, o->takes_part[GRADIENT_V] + dvj, r->dout + i * dv, dv, x.p, x.p_unit, 0);
            if (a->bias != NULL)
                total_add(all, o, GRADIENT_BIAS, call_score_number(a->bias, w->n, w->head, i, j), x.ds, x.ds_unit,
                          x.ds_common);
            sum_add(&slope, -x.ds * x.distance, x.ds_unit * x.distance, x.ds_common * x.distance);
        }
        if (any && a->alibi != NULL)
            total_add(all, o, GRADIENT_SLOPES, c->alibi_per_batch ? w->n * c->heads + w->head : w->head, slope.value,
                      sum_unit(&slope), 0);
        if (any && a->sink != NULL) {
            double exponent = w->sink - r->lse[i], weight = exp(exponent);
            double unit = weight * hypot(hypot(lost(exponent), 2 * UNIT) * delta.value, sum_unit(&delta));
            if (exponent < -86) unit = fabs(weight * delta.value);
            total_add(all, o, GRADIENT_SINK, w->head, -weight * delta.value, unit, 0);
        }
    }
}

static rows rows_of(const attention_call *a, const head_view *w, const tensor *dout, const tensor *out,
                    const tensor *lse) {
    int64_t count = w->s.q_rows, width = a->c.head_dim_v;
    rows r = {zeros(count * width), zeros(count * width), zeros(count)};
    for (int64_t i = 0; i < count; i++) {
        copy_row(r.dout + i * width, dout, call_q_number(a, dout, w->n, w->head, i), width);
        copy_row(r.out + i * width, out, call_q_number(a, out, w->n, w->head, i), width);
        r.lse[i] = tensor_get(lse, call_lse_number(a, lse, w->n, w->head, i));
    }
    return r;
}

oracle_gradients *oracle_gradients_new(const attention_call *a, const tensor *dout, const tensor *out,
                                       const tensor *lse) {
    oracle_gradients *o = calloc(1, sizeof *o);
    assert_non_null(o);
    totals all = {{NULL}};
    for (int g = 0; g < GRADIENTS; g++) {
        if (gradient_of(a, (gradient)g) == NULL) continue;
        int64_t count = tensor_count(gradient_of(a, (gradient)g));
        o->values[g] = zeros(count);
        o->units[g] = zeros(count);
        o->weight_units[g] = zeros(count);
        o->takes_part[g] = calloc((size_t)count + 1, sizeof *o->takes_part[g]);
        all.of[g] = calloc((size_t)count + 1, sizeof *all.of[g]);
        assert_non_null(o->takes_part[g]);
        assert_non_null(all.of[g]);
    }
    for (int64_t n = 0; n < a->c.batch; n++)
        for (int64_t h = 0; h < a->c.heads; h++) {
            head_view w = head_view_new(a, n, h);
            rows r = rows_of(a, &w, dout, out, lse);
            add_head(a, &w, &r, o, &all);
            free(r.dout);
            free(r.out);
            free(r.lse);
            head_view_free(&w);
        }
    for (int g = 0; g < GRADIENTS; g++) {
        if (o->values[g] == NULL) continue;
        int64_t count = tensor_count(gradient_of(a, (gradient)g));
        for (int64_t i = 0; i < count; i++) {
            double unit = sum_unit(&all.of[g][i]);
            o->values[g][i] = all.of[g][i].value;
            o->units[g][i] = isfinite(unit) ? unit : 0;
            unit = 0x1p-9 * sqrt(all.of[g][i].terms);
            o->weight_units[g][i] = isfinite(unit) ? unit : 0;
        }
        free(all.of[g]);
    }
    return o;
}

void oracle_gradients_free(oracle_gradients *o) {
    for (int g = 0; g < GRADIENTS; g++) {
        free(o->values[g]);
        free(o->units[g]);
        free(o->weight_units[g]);
        free(o->takes_part[g]);
    }
    free(o);
}
