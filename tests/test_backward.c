/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients: the reference against finite differences of the forward pass, every kernel against the reference. Names
 * that begin with a letter and a number restate public reports of what went wrong for users of such libraries.
 */
#include "support/judge_backward.h"
#include "support/sweep.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- Finite differences ---- */

/* The loss whose gradient is dout. */
static double loss(const attention_call *a, const tensor *dout, const tensor *out, const tensor *lse) {
    fa_options options = a->options;
    options.kernel = FA_KERNEL_REFERENCE;
    fa_status status = fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &options, &out->fa, &lse->fa);
    if (status != FA_OK) call_fail(a, "reference: %s", fa_last_error());
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(out); i++) sum += tensor_get(dout, i) * tensor_get(out, i);
    return sum;
}

/* Five-point rule: exact but for h^4 times the fifth derivative. */
static double slope_of_loss(const backward_call *b, tensor *t, int64_t number) {
    const double h = 0x1p-9, weights[] = {1, -8, 8, -1}, steps[] = {-2, -1, 1, 2};
    double x = tensor_get(t, number), sum = 0;
    for (int i = 0; i < 4; i++) {
        tensor_put(t, number, x + steps[i] * h);
        sum += weights[i] * loss(b->a, b->dout, b->out, b->lse);
    }
    tensor_put(t, number, x);
    return sum / (12 * h);
}

static void expect_finite_differences(attention_case c) {
    c.type = FA_ELEMENT_FLOAT64;
    attention_call *a = call_new(&c);
    backward_call b = {a, call_new_out(a, FA_ELEMENT_FLOAT64), call_new_out(a, FA_ELEMENT_FLOAT64),
                       call_new_lse(a, FA_ELEMENT_FLOAT64)};
    for (int64_t i = 0; i < tensor_count(b.dout); i++) tensor_put(b.dout, i, rng_normal(&a->random));
    /* Steps must be exact where the tensor is float32. */
    for (int g = GRADIENT_BIAS; g < GRADIENTS; g++) {
        tensor *t = (tensor *)gradient_of(a, (gradient)g);
        for (int64_t i = 0; t != NULL && i < tensor_count(t); i++)
            tensor_put(t, i, round(tensor_get(t, i) * 0x1p10) * 0x1p-10);
    }
    (void)loss(a, b.dout, b.out, b.lse);
    gradients g = run_backward_to(&b, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO}, FA_ELEMENT_FLOAT64);
    for (int i = 0; i < GRADIENTS; i++) {
        tensor *t = (tensor *)gradient_of(a, (gradient)i);
        if (t == NULL || tensor_count(t) == 0) continue;
        for (int n = 0; n < 12; n++) {
            int64_t number = rng_range(&a->random, 0, tensor_count(t) - 1);
            if (isinf(tensor_get(t, number))) continue;
            double expected = slope_of_loss(&b, t, number), x = tensor_get(g.of[i], number);
            if (!(fabs(x - expected) <= 2e-8 * (1 + fabs(expected))))
                call_fail(a, "%s[%" PRId64 "] = %.12g, and the loss rises by %.12g", gradient_name((gradient)i), number,
                          x, expected);
        }
    }
    gradients_free(&g);
    tensor_free(b.dout);
    tensor_free(b.out);
    tensor_free(b.lse);
    call_free(a);
}

static attention_case small_case(const char *name) {
    attention_case c = case_default(name);
    c.seqlen_q = 9;
    c.seqlen_k = 13;
    c.head_dim = 6;
    c.head_dim_v = 5;
    return c;
}

static void G6_finite_differences_with_softcap(void **state) {
    (void)state;
    for (int causal = 0; causal <= 2; causal++) {
        attention_case c = small_case("finite differences, softcap");
        c.softcap = causal == 0 ? 0.7f : 2;
        c.causal = (fa_causal)causal;
        expect_finite_differences(c);
        c.bias = (score_shape){true, true, false, true, true};
        expect_finite_differences(c);
    }
}

static void G8_finite_differences_with_sink(void **state) {
    (void)state;
    for (int varlen = 0; varlen <= 1; varlen++) {
        attention_case c = small_case("finite differences, sink");
        c.sink = true;
        c.causal = FA_CAUSAL_BOTTOM_RIGHT;
        c.seqlen_q = 15; /* rows that see no key */
        c.varlen_q = c.varlen_k = varlen != 0;
        expect_finite_differences(c);
    }
}

static void K12_K13_finite_differences_of_bias_and_slopes(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 16; i++) {
        attention_case c = small_case("finite differences, bias and slopes");
        c.index = i;
        c.bias = (score_shape){true, (i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0};
        c.bias_hides = i % 3 == 0 ? 0.3 : 0;
        c.alibi = true;
        c.alibi_per_batch = i % 2 == 0;
        c.mask = (score_shape){true, true, true, true, true};
        c.mask_hides = i % 3 == 1 ? 0.4 : 0;
        expect_finite_differences(c);
    }
}

static void finite_differences_at_random(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 40; i++) {
        attention_case c = random_backward_case("finite differences", i);
        c.inputs = INPUT_NORMAL;
        c.values = VALUES_NORMAL;
        c.layout_q = c.layout_k = c.layout_v = LAYOUT_COMPACT; /* elements of their own */
        c.layout_scores = c.layout_tables = LAYOUT_COMPACT;
        c.v_in_k = false;
        c.bias_type = FA_ELEMENT_FLOAT32;
        c.head_dim = c.head_dim % 9 + 1;
        c.head_dim_v = c.head_dim_v % 9 + 1;
        c.seqlen_q = c.seqlen_q % 12;
        c.seqlen_k = c.seqlen_k % 12;
        c.num_splits = 0;
        if (c.set_scale && fabsf(c.softmax_scale) < 1e-20f) c.softmax_scale = 0.5f;
        if (c.softcap > 0 && c.softcap < 1) c.softcap = 1;
        expect_finite_differences(c);
    }
}

/* ---- Everything at once ---- */

static double seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int64_t setting(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoll(text, NULL, 0);
}

/* See test_sweep.c for the environment variables. */
static void random_cases_keep_the_error_budget(void **state) {
    (void)state;
    int64_t first = setting("FLASHATTN_TEST_FIRST", 0), cases = setting("FLASHATTN_TEST_CASES", 300);
    double end = seconds() + (double)setting("FLASHATTN_TEST_SECONDS", 12);
    int64_t done = 0;
    for (; done < cases && seconds() < end; done++) {
        attention_case c = random_backward_case("backward sweep", (uint64_t)(first + done));
        judge_backward(&c);
    }
    printf("%" PRId64 " cases; the largest error was %.2f of what is allowed\n", done, judge_worst_share());
    assert_true(done > 0);
}

RUN_TESTS(cmocka_unit_test(G6_finite_differences_with_softcap), cmocka_unit_test(G8_finite_differences_with_sink),
          cmocka_unit_test(K12_K13_finite_differences_of_bias_and_slopes),
          cmocka_unit_test(finite_differences_at_random), cmocka_unit_test(random_cases_keep_the_error_budget))
