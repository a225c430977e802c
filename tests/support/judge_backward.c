/* SPDX-License-Identifier: Apache-2.0 */
/* Whether gradients are right: see judge_backward.h. */
#include "judge_backward.h"

#include "testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

const contender *backward_contenders(int *count) {
    static contender all[BACKWARD_CONTENDERS];
    const contender *forward = contenders(count);
    for (int i = 0; i < *count; i++) all[i] = forward[i];
    return all;
}

/* ---- The call ---- */

static void fill_dout(backward_call *b) {
    int64_t count = tensor_count(b->dout);
    double factor = b->a->c.inputs == INPUT_NORMAL_30 ? 30 : 1;
    for (int64_t i = 0; i < count; i++) tensor_put(b->dout, i, factor * rng_normal(&b->a->random));
    if (b->a->c.inputs == INPUT_OUTLIER_CHANNEL) tensor_enlarge_channel(b->dout, 0);
}

backward_call *backward_call_new(const attention_case *c) {
    backward_call *b = calloc(1, sizeof *b);
    assert_non_null(b);
    attention_call *a = b->a = call_new(c);
    outputs o = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    b->out = o.out;
    b->lse = o.lse;
    b->dout = tensor_new(dtype_of_element(c->dout_float32 ? FA_ELEMENT_FLOAT32 : c->type), o.out->fa.ndim, o.out->shape,
                         c->layout_dout, true, &a->random);
    fill_dout(b);
    return b;
}

void backward_call_free(backward_call *b) {
    tensor_free(b->dout);
    tensor_free(b->out);
    tensor_free(b->lse);
    call_free(b->a);
    free(b);
}

static bool sees_key(const attention_call *a, const call_sequence *s, int64_t n, int64_t head, int64_t row) {
    for (int64_t j = 0; j < s->keys; j++)
        if (call_visible(a, s, n, head, row, j)) return true;
    return false;
}

static void poison_row(tensor *t, int64_t first, int64_t width) {
    for (int64_t i = 0; i < width && !t->broadcast; i++) tensor_put(t, first + i, (double)NAN);
}

void backward_call_poison(backward_call *b) {
    const attention_call *a = b->a;
    call_poison_hidden(b->a);
    if (a->c.no_poison) return;
    for (int64_t n = 0; n < a->c.batch; n++) {
        call_sequence s = call_sequence_of(a, n);
        for (int64_t h = 0; h < a->c.heads; h++)
            for (int64_t i = 0; i < s.q_rows; i++) {
                if (sees_key(a, &s, n, h, i)) continue;
                poison_row(b->dout, call_q_number(a, b->dout, n, h, i), a->c.head_dim_v);
                poison_row(b->out, call_q_number(a, b->out, n, h, i), a->c.head_dim_v);
                /* Every second lse stays -inf, or the sink. */
                if (i % 2 == 0) tensor_put(b->lse, call_lse_number(a, b->lse, n, h, i), (double)NAN);
            }
    }
    if (a->cu_q == NULL) return;
    int64_t tail = tensor_get_int(a->cu_q, a->c.batch) * a->c.heads * a->c.head_dim_v;
    poison_row(b->dout, tail, tensor_count(b->dout) - tail);
    poison_row(b->out, tail, tensor_count(b->out) - tail);
}

/* ---- Running ---- */

static gradients new_gradients(backward_call *b, fa_element type) {
    gradients g = {{NULL}};
    for (int i = 0; i < GRADIENTS; i++) {
        const tensor *model = gradient_of(b->a, (gradient)i);
        if (model == NULL) continue;
        fa_element of = type;
        if (type != FA_ELEMENT_FLOAT64 && i == GRADIENT_BIAS)
            of = type == FA_ELEMENT_FLOAT32 ? type : element_of_dtype(model->fa.dtype);
        if (type != FA_ELEMENT_FLOAT64 && i > GRADIENT_BIAS) of = FA_ELEMENT_FLOAT32;
        g.of[i] = tensor_new(dtype_of_element(of), model->fa.ndim, model->shape, b->a->c.layout_gradients,
                             i <= GRADIENT_V, &b->a->random);
    }
    return g;
}

void gradients_free(gradients *g) {
    for (int i = 0; i < GRADIENTS; i++) tensor_free(g->of[i]);
}

static const fa_tensor *of(const tensor *t) { return t == NULL ? NULL : &t->fa; }

fa_status call_backward(const backward_call *b, const fa_options *options, const gradients *g) {
    const attention_call *a = b->a;
    fa_options o = *options;
    o.dbias = of(g->of[GRADIENT_BIAS]);
    o.dsink = of(g->of[GRADIENT_SINK]);
    o.dalibi_slopes = of(g->of[GRADIENT_SLOPES]);
    return fa_backward(&b->dout->fa, &a->q->fa, &a->k->fa, &a->v->fa, &b->out->fa, &b->lse->fa, &o,
                       of(g->of[GRADIENT_Q]), of(g->of[GRADIENT_K]), of(g->of[GRADIENT_V]));
}

gradients run_backward_to(backward_call *b, contender who, fa_element type) {
    attention_call *a = b->a;
    gradients g = new_gradients(b, type);
    fa_options options = a->options;
    options.kernel = who.kernel;
    options.isa = who.isa;
    if (who.kernel != FA_KERNEL_CPU) options.num_splits = 0;
    const uint64_t before[] = {inputs_checksum(a), tensor_checksum(b->dout), tensor_checksum(b->out),
                               tensor_checksum(b->lse)};
    fa_status status = call_backward(b, &options, &g);
    if (status != FA_OK)
        call_fail(a, "%s backward: %s: %s", contender_name(who), fa_status_text(status), fa_last_error());
    const uint64_t after[] = {inputs_checksum(a), tensor_checksum(b->dout), tensor_checksum(b->out),
                              tensor_checksum(b->lse)};
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
        if (before[i] != after[i]) call_fail(a, "%s backward: an input was written", contender_name(who));
    for (int i = 0; i < GRADIENTS; i++) {
        if (g.of[i] == NULL) continue;
        const char *wrong = fault_in_writing(gradient_name((gradient)i), g.of[i]);
        if (wrong != NULL) call_fail(a, "%s backward: %s", contender_name(who), wrong);
    }
    return g;
}

gradients run_backward(backward_call *b, contender who) {
    return run_backward_to(b, who, b->a->c.gradients_float32 ? FA_ELEMENT_FLOAT32 : b->a->c.type);
}

void assert_same_gradients(const backward_call *b, const gradients *x, const gradients *y, const char *what) {
    for (int i = 0; i < GRADIENTS; i++) {
        if (x->of[i] == NULL || y->of[i] == NULL) continue;
        int64_t n = tensor_first_difference(x->of[i], y->of[i]);
        if (n >= 0)
            call_fail(b->a, "%s: %s[%" PRId64 "] = %.9g and %.9g: must be the same bits", what,
                      gradient_name((gradient)i), n, tensor_get(x->of[i], n), tensor_get(y->of[i], n));
    }
}

/* ---- Judging ---- */

static void measure_standard(backward_call *b, backward_yardstick *y) {
    gradients g = run_backward(b, (contender){FA_KERNEL_STANDARD, FA_ISA_AUTO});
    for (int i = 0; i < GRADIENTS; i++)
        if (g.of[i] != NULL) standard_errors(b->a, &y->of[i], g.of[i]);
    gradients_free(&g);
}

backward_yardstick *backward_yardstick_new(backward_call *b) {
    backward_yardstick *y = calloc(1, sizeof *y);
    assert_non_null(y);
    oracle_gradients *truth = oracle_gradients_new(b->a, b->dout, b->out, b->lse);
    gradients g = run_backward_to(b, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO}, FA_ELEMENT_FLOAT64);
    for (int i = 0; i < GRADIENTS; i++) {
        if (g.of[i] == NULL) continue;
        y->of[i] = (answer){.name = gradient_name((gradient)i),
                            .count = tensor_count(g.of[i]),
                            .values = values_of(g.of[i]),
                            .sees_key = truth->takes_part[i],
                            .row_length = 1};
        truth->takes_part[i] = NULL;
        check_reference(b->a, &y->of[i], truth->values[i], truth->units[i], 1);
        set_allowances(&y->of[i], truth->units[i], 1);
    }
    double *weight_units[] = {truth->weight_units[GRADIENT_Q], truth->weight_units[GRADIENT_K],
                              truth->weight_units[GRADIENT_V]};
    for (int i = 0; i <= GRADIENT_V; i++) truth->weight_units[i] = NULL; /* kept */
    gradients_free(&g);
    oracle_gradients_free(truth);
    measure_standard(b, y);
    for (int i = 0; i <= GRADIENT_V; i++) {
        answer *x = &y->rounded[i];
        *x = y->of[i];
        x->allowance = weight_units[i];
        x->allowances = (norms){0, 0};
        for (int64_t n = 0; n < x->count; n++) {
            x->allowance[n] = y->of[i].allowance[n] + 2 * weight_units[i][n];
            norms_add(&x->allowances, x->allowance[n]);
        }
    }
    return y;
}

void backward_yardstick_to_float32(backward_call *b, backward_yardstick *y) {
    if (b->a->c.type != FA_ELEMENT_FLOAT32) {
        attention_call a = float32_copy(b->a);
        backward_call copy = {&a, tensor_rounded(b->dout, FA_ELEMENT_FLOAT32, &a.random),
                              tensor_rounded(b->out, FA_ELEMENT_FLOAT32, &a.random), b->lse};
        measure_standard(&copy, y);
        tensor_free(copy.dout);
        tensor_free(copy.out);
        tensor_free(a.q);
        tensor_free(a.k);
        tensor_free(a.v);
    }
    for (int g = 0; g < GRADIENTS; g++) {
        answer *x = &y->of[g];
        fa_element type = b->a->c.gradients_float32 ? FA_ELEMENT_FLOAT32 : b->a->c.type;
        if (g == GRADIENT_BIAS && type != FA_ELEMENT_FLOAT32) type = b->a->c.bias_type;
        if (x->values == NULL || g > GRADIENT_BIAS || type == FA_ELEMENT_FLOAT32) continue;
        x->rounded_last = true;
        x->allowances = (norms){0, 0};
        for (int64_t i = 0; i < x->count; i++) {
            x->allowance[i] += rounding_of(x->values[i], type);
            norms_add(&x->allowances, x->allowance[i]);
        }
    }
}

void backward_yardstick_free(backward_yardstick *y) {
    for (int g = 0; g < GRADIENTS; g++) {
        free(y->of[g].values);
        free(y->of[g].allowance);
        free(y->of[g].sees_key);
        free(y->rounded[g].allowance);
    }
    free(y);
}

/* P and dS to bfloat16, before the products that make dq, dk and dv. */
static bool rounds_products(const backward_call *b, contender who) {
    return who.kernel == FA_KERNEL_CPU && who.isa >= FA_ISA_AVX512_BF16 && b->a->c.type == FA_ELEMENT_BFLOAT16;
}

const char *fault_in_gradients(const backward_call *b, const backward_yardstick *y, contender who, const gradients *g) {
    const char *wrong = NULL;
    for (int i = 0; i < GRADIENTS && wrong == NULL; i++) {
        if (g->of[i] == NULL) continue;
        const answer *reference = i <= GRADIENT_V && rounds_products(b, who) ? &y->rounded[i] : &y->of[i];
        wrong = fault_in_writing(gradient_name((gradient)i), g->of[i]);
        if (wrong == NULL) wrong = fault_in_answer(reference, g->of[i]);
    }
    return wrong;
}

static void judge_gradients(const backward_call *b, const backward_yardstick *y, contender who, const gradients *g) {
    const char *wrong = fault_in_gradients(b, y, who, g);
    if (wrong != NULL) call_fail(b->a, "%s backward: %s", contender_name(who), wrong);
}

void judge_backward_call(backward_call *b) {
    backward_call_poison(b);
    int count;
    const contender *all = contenders_of_type(b->a->c.type, &count);
    gradients g[CONTENDERS];
    backward_yardstick *y = backward_yardstick_new(b);
    for (int w = 0; w < count; w++) {
        g[w] = run_backward(b, all[w]);
        judge_gradients(b, y, all[w], &g[w]);
    }
    backward_yardstick_to_float32(b, y);
    for (int w = 0; w < count; w++) {
        judge_gradients(b, y, all[w], &g[w]);
        gradients_free(&g[w]);
    }
    backward_yardstick_free(y);
}

void judge_backward(const attention_case *c) {
    backward_call *b = backward_call_new(c);
    judge_backward_call(b);
    backward_call_free(b);
}

void judge_backward_all_types(attention_case c) {
    static const fa_element types[] = {FA_ELEMENT_FLOAT32, FA_ELEMENT_FLOAT16, FA_ELEMENT_BFLOAT16};
    for (int t = 0; t < 3; t++) {
        c.type = types[t];
        judge_backward(&c);
    }
}
