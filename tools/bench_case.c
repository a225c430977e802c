/* SPDX-License-Identifier: Apache-2.0 */
/* Names and measures cases: see bench_case.h. */
#include "bench_case.h"

#include "clock.h"
#include "fma_peak.h"
#include "memory_speed.h"
#include "message.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Properties ---- */

const char *bench_property_name(bench_property property) {
    static const char *const names[] = {"dtype",    "isa",      "batch",    "heads",
                                        "heads_kv", "seqlen_q", "seqlen_k", "head_dim"};
    return names[property];
}

int64_t bench_property_value(const bench_case *c, bench_property property) {
    switch (property) {
    case BENCH_DTYPE: return (int64_t)c->dtype;
    case BENCH_ISA: return (int64_t)c->isa;
    case BENCH_BATCH: return c->batch;
    case BENCH_HEADS: return c->heads;
    case BENCH_HEADS_KV: return c->heads_kv;
    case BENCH_SEQLEN_Q: return c->seqlen_q;
    case BENCH_SEQLEN_K: return c->seqlen_k;
    case BENCH_HEAD_DIM: return c->head_dim;
    case BENCH_PROPERTIES: break;
    }
    return 0;
}

void bench_property_text(const bench_case *c, bench_property property, char *text, size_t size) {
    if (property == BENCH_DTYPE)
        (void)snprintf(text, size, "%s", dtype_choice((int)c->dtype));
    else if (property == BENCH_ISA)
        (void)snprintf(text, size, "%s", fa_isa_name(c->isa));
    else
        (void)snprintf(text, size, "%" PRId64, bench_property_value(c, property));
}

/* Whether two properties have the same value in each case. */
static bool always_equal(const bench_list *list, bench_property a, bench_property b) {
    for (size_t i = 0; i < list->count; i++)
        if (bench_property_value(&list->cases[i], a) != bench_property_value(&list->cases[i], b)) return false;
    return true;
}

bool bench_all_square(const bench_list *list) { return always_equal(list, BENCH_SEQLEN_Q, BENCH_SEQLEN_K); }

bench_role bench_property_role(const bench_list *list, bench_property property) {
    if (property == BENCH_SEQLEN_Q && bench_all_square(list)) return BENCH_LEFT_OUT;
    if (property == BENCH_HEADS_KV && always_equal(list, BENCH_HEADS, BENCH_HEADS_KV)) return BENCH_LEFT_OUT;
    for (size_t i = 1; i < list->count; i++)
        if (bench_property_value(&list->cases[i], property) != bench_property_value(&list->cases[0], property))
            return BENCH_VARIES;
    return BENCH_COMMON;
}

const char *bench_property_title(const bench_list *list, bench_property property) {
    return property == BENCH_SEQLEN_K && bench_all_square(list) ? "seqlen" : bench_property_name(property);
}

void bench_common_text(const bench_list *list, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < (int)BENCH_PROPERTIES; i++) {
        bench_property property = (bench_property)i;
        char value[32];
        if (bench_property_role(list, property) != BENCH_COMMON) continue;
        bench_property_text(&list->cases[0], property, value, sizeof value);
        bool bare = property == BENCH_DTYPE || property == BENCH_ISA;
        used += (size_t)snprintf(text + used, size - used, "%s%s%s, ", bare ? "" : bench_property_title(list, property),
                                 bare ? "" : " ", value);
    }
    (void)snprintf(text + used, size - used, "%s", list->rules);
}

/* ---- Measuring ---- */

/* What is written by a call, and what backward reads besides q, k and v. */
typedef struct results {
    tensor out, lse, dout, dq, dk, dv;
} results;

/* Describes q, k and v without data, or allocates them; likewise the rest, of which forward has out alone. */
static int make_tensors(const bench_case *c, const score_settings *scores, bool with_data, attention *a, results *r) {
    static const tensor_settings no_tensors = {.bias = NULL};
    int64_t q[4] = {c->batch, c->seqlen_q, c->heads, c->head_dim};
    int64_t k[4] = {c->batch, c->seqlen_k, c->heads_kv, c->head_dim}, lse[3] = {c->batch, c->heads, c->seqlen_q};
    fa_dtype dtype = dtype_of_element(c->dtype);
    int code = attention_set_options(a, scores, &no_tensors, NULL);
    a->options.kernel = FA_KERNEL_CPU;
    a->options.isa = c->isa;
    a->options.num_threads = c->threads;
    if (code != EXIT_CODE_OK) return code;
    const struct {
        tensor *t;
        const int64_t *shape;
        bool backward; /* only */
    } all[] = {{&a->q, q, false},   {&a->k, k, false}, {&a->v, k, false}, {&r->out, q, false}, {&r->lse, lse, true},
               {&r->dout, q, true}, {&r->dq, q, true}, {&r->dk, k, true}, {&r->dv, k, true}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].backward && !c->backward) continue;
        bool is_lse = all[i].t == &r->lse;
        const fa_tensor shape = {.device = {FA_DEVICE_CPU, 0},
                                 .ndim = is_lse ? 3 : 4,
                                 .dtype = is_lse ? dtype_of_element(FA_ELEMENT_FLOAT32) : dtype,
                                 .shape = (int64_t *)all[i].shape};
        if (!with_data)
            tensor_view(all[i].t, &shape);
        else if (!tensor_allocate(all[i].t, shape.dtype, shape.ndim, all[i].shape))
            return fail_memory("the tensors");
    }
    if (!with_data) return EXIT_CODE_OK;
    tensor_fill_normal(&a->q, 1);
    tensor_fill_normal(&a->k, 2);
    tensor_fill_normal(&a->v, 3);
    if (!c->backward) return EXIT_CODE_OK;
    tensor_fill_normal(&r->dout, 4);
    if (fa_forward(&a->q.t, &a->k.t, &a->v.t, &a->options, &r->out.t, &r->lse.t) != FA_OK) return fail_library();
    return EXIT_CODE_OK;
}

static void results_free(results *r) {
    tensor *all[] = {&r->out, &r->lse, &r->dout, &r->dq, &r->dk, &r->dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_free(all[i]);
}

/* The call that is measured. */
static fa_status call(const bench_case *c, const attention *a, const results *r) {
    if (!c->backward) return fa_forward(&a->q.t, &a->k.t, &a->v.t, &a->options, &r->out.t, NULL);
    return fa_backward(&r->dout.t, &a->q.t, &a->k.t, &a->v.t, &r->out.t, &r->lse.t, &a->options, &r->dq.t, &r->dk.t,
                       &r->dv.t);
}

int bench_case_plan(bench_case *c, const score_settings *scores, int threads) {
    attention a = {.file_ndim = 4};
    results r = {.out = {.memory = NULL}};
    fa_plan_info plan = {.size = sizeof plan};
    c->threads = threads;
    int code = make_tensors(c, scores, false, &a, &r);
    if (code != EXIT_CODE_OK) return code;
    fa_status status = c->backward ? fa_plan_backward(&r.dout.t, &a.q.t, &a.k.t, &a.v.t, &r.out.t, &r.lse.t, &a.options,
                                                      &r.dq.t, &r.dk.t, &r.dv.t, &plan)
                                   : fa_plan(&a.q.t, &a.k.t, &a.v.t, &a.options, &r.out.t, NULL, &plan);
    if (status != FA_OK) return fail_library();
    c->isa = plan.isa;
    /* Backward has five products of that size in place of two. */
    c->flops = attention_flops(&a) * (c->backward ? 2.5 : 1);
    c->bytes = (double)((tensor_elements(&a.q.t) + tensor_elements(&a.k.t)) * 2 * (a.q.t.dtype.bits / 8));
    memcpy(c->plan, plan.name, sizeof c->plan);
    return EXIT_CODE_OK;
}

static int compare_doubles(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

enum { SAMPLES_MAX = 4096 };

/* The speed of one pass over q, k and v. */
static double read_inputs(const attention *a, int threads) {
    const tensor *const all[] = {&a->q, &a->k, &a->v};
    double seconds = 0, bytes = 0;
    for (int i = 0; i < 3; i++) {
        size_t size = (size_t)tensor_elements(&all[i]->t) * (all[i]->t.dtype.bits / 8u);
        if (size < 4096 && i == 0) continue; /* a single query: starting threads would be all of it */
        double speed = memory_read_once(all[i]->t.data, size, threads);
        if (speed > 0) seconds += (double)size / speed;
        bytes += (double)size;
    }
    return seconds > 0 ? bytes / seconds : 0;
}

/* Peak and calls take turns, so that a changing clock meets both. */
static int take_samples(bench_case *c, const attention *a, const results *r, const bench_clock *time, double *samples) {
    const double slice = 0.003; /* seconds; long against starting threads, short against changes of the clock */
    double begin = now_seconds();
    c->repetitions = 0;
    c->peak = c->read = 0;
    while (c->repetitions < SAMPLES_MAX) {
        double peak = fma_peak_measure(c->isa, c->threads, slice);
        if (peak > c->peak) c->peak = peak;
        double read = read_inputs(a, c->threads);
        if (read > c->read) c->read = read;
        double round = now_seconds(), now = round;
        while (c->repetitions < SAMPLES_MAX && now - round < slice) {
            double start = now;
            if (call(c, a, r) != FA_OK) return fail_library();
            now = now_seconds();
            samples[c->repetitions++] = now - start;
        }
        double part = (now - begin) / time->seconds;
        progress_update(time->bar, time->done + (part < 1 ? part : 1), time->label);
        if (now - begin + (now - round) / 2 > time->seconds) break;
    }
    return EXIT_CODE_OK;
}

int bench_case_measure(bench_case *c, const score_settings *scores, const bench_clock *time) {
    attention a = {.file_ndim = 4};
    results r = {.out = {.memory = NULL}};
    double *samples = malloc(SAMPLES_MAX * sizeof *samples);
    progress_update(time->bar, time->done, time->label);
    int code = samples == NULL ? fail_memory("the samples") : make_tensors(c, scores, true, &a, &r);
    if (code == EXIT_CODE_OK) { /* once untimed: pages of the output, caches, threads */
        if (c->flops < 2e10 && call(c, &a, &r) != FA_OK) code = fail_library();
        if (code == EXIT_CODE_OK) code = take_samples(c, &a, &r, time, samples);
    }
    if (code == EXIT_CODE_OK) {
        qsort(samples, (size_t)c->repetitions, sizeof *samples, compare_doubles);
        c->best = samples[0];
        c->median = samples[c->repetitions / 2];
    }
    free(samples);
    results_free(&r);
    attention_close(&a);
    return code;
}
