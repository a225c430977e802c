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

/* ---- Rows and keys that take no part ---- */

static void expect_zeros(const backward_call *b, contender who, const tensor *t, const char *name, int64_t first,
                         int64_t count) {
    for (int64_t i = first; i < first + count; i++)
        if (!(tensor_get(t, i) == 0))
            call_fail(b->a, "%s: %s[%" PRId64 "] = %g: must be exactly 0", contender_name(who), name, i,
                      tensor_get(t, i));
}

/* The gradients of keys and values of sequence n are exactly 0, whatever is where its queries are not. */
static void expect_zero_keys(attention_case c, int64_t n) {
    backward_call *b = backward_call_new(&c);
    backward_call_poison(b);
    int count;
    const contender *all = backward_contenders(&count);
    for (int w = 0; w < count; w++) {
        gradients g = run_backward(b, all[w]); /* into buffers full of NaN */
        call_sequence s = call_sequence_of(b->a, n);
        for (int64_t h = 0; h < c.heads_kv; h++)
            for (int64_t j = 0; j < s.keys; j++) {
                expect_zeros(b, all[w], g.of[GRADIENT_K], "dk", call_k_number(b->a, b->a->k, n, h, j), c.head_dim);
                expect_zeros(b, all[w], g.of[GRADIENT_V], "dv", call_k_number(b->a, b->a->v, n, h, j), c.head_dim_v);
            }
        gradients_free(&g);
    }
    backward_call_free(b);
}

static void A7_sequences_without_queries(void **state) {
    (void)state;
    static const int32_t queries[] = {0, 75, 52, 0}, keys[] = {158, 109, 52, 192};
    static const int32_t queries_2[] = {75, 0, 75}, keys_2[] = {50, 50, 50};
    attention_case c = case_default("A7 backward");
    c.varlen_q = c.varlen_k = true;
    c.batch = 4;
    c.heads = c.heads_kv = 1;
    c.head_dim = c.head_dim_v = 256;
    c.lengths_q = queries;
    c.lengths_k = keys;
    c.seqlen_q = 75;
    c.seqlen_k = 192;
    for (int causal = 0; causal <= 1; causal++) {
        c.causal = (fa_causal)causal;
        expect_zero_keys(c, 0);
        expect_zero_keys(c, 3);
    }
    c.batch = 3;
    c.lengths_q = queries_2;
    c.lengths_k = keys_2;
    c.seqlen_q = 75;
    c.seqlen_k = 50;
    c.tail_q = c.tail_k = 3;
    expect_zero_keys(c, 1);
    judge_backward_all_types(c);
}

/* out and lse for inputs that were changed after backward_call_new(). */
static void run_forward_again(backward_call *b) {
    outputs o = run_call(b->a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    tensor_free(b->out);
    tensor_free(b->lse);
    b->out = o.out;
    b->lse = o.lse;
}

static void A8_a_row_that_the_mask_hides(void **state) {
    (void)state;
    attention_case c = case_default("A8 backward");
    c.batch = c.heads = c.heads_kv = 1;
    c.seqlen_q = c.seqlen_k = 4;
    c.mask = (score_shape){true, false, false, true, true};
    for (int sink = 0; sink <= 1; sink++) {
        c.sink = sink != 0;
        backward_call *b = backward_call_new(&c);
        for (int64_t j = 0; j < 16; j++) tensor_put_int(b->a->mask, j, j / 4 != 2);
        run_forward_again(b);
        judge_backward_call(b);
        backward_call_free(b);
    }
}

static void A1_A3_A5_nothing_to_see(void **state) {
    (void)state;
    static const int64_t lengths[][2] = {{5, 2}, {4, 0}, {0, 4}, {0, 0}, {1, 1}, {130, 3}};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int causal = 0; causal <= 2; causal++) {
            attention_case c = case_default("nothing to see, backward");
            c.index = i;
            c.seqlen_q = lengths[i][0];
            c.seqlen_k = lengths[i][1];
            c.causal = (fa_causal)causal;
            c.sink = c.alibi = true;
            c.bias = (score_shape){true, false, true, true, true};
            judge_backward_all_types(c);
        }
    for (int which = 0; which < 2; which++) { /* no batch, no heads */
        attention_case c = case_default("nothing at all, backward");
        if (which == 0) c.batch = 0;
        if (which == 1) c.heads = 0;
        c.sink = true;
        backward_call *b = backward_call_new(&c);
        int count;
        const contender *all = backward_contenders(&count);
        for (int w = -1; w < count; w++) {
            contender who = w < 0 ? (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO} : all[w];
            gradients g = run_backward(b, who);
            expect_zeros(b, who, g.of[GRADIENT_K], "dk", 0, tensor_count(g.of[GRADIENT_K]));
            gradients_free(&g);
        }
        backward_call_free(b);
    }
}

static void A9_A10_masks_and_very_negative_biases(void **state) {
    (void)state;
    for (int hides = 0; hides <= 2; hides++) {
        attention_case c = case_default("A9 backward");
        c.index = (uint64_t)hides;
        c.bias = (score_shape){true, true, true, true, true};
        c.bias_hides = hides * 0.5;
        judge_backward_all_types(c);
        c.bias_hides = 0;
        c.bias_type = FA_ELEMENT_BFLOAT16;
        backward_call *b = backward_call_new(&c);
        for (int64_t j = 0; j < c.seqlen_k; j++) tensor_put(b->a->bias, j, -0x1.fep127); /* a value, not a mask */
        run_forward_again(b);
        judge_backward_call(b);
        backward_call_free(b);
    }
}

static void B4_far_negative_logits(void **state) {
    (void)state;
    static const input_kind kinds[] = {INPUT_NEGATIVE_120, INPUT_NEGATIVE_250, INPUT_NEGATIVE_245000};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (int64_t queries = 1; queries <= 90; queries += 89) {
            attention_case c = case_default("B4 backward");
            c.index = i;
            c.inputs = kinds[i];
            c.seqlen_q = queries;
            c.seqlen_k = 128;
            c.set_scale = i == 0;
            c.softmax_scale = 1;
            c.causal = FA_CAUSAL_BOTTOM_RIGHT;
            c.type = FA_ELEMENT_FLOAT32;
            judge_backward(&c);
            c.type = FA_ELEMENT_BFLOAT16;
            judge_backward(&c);
        }
}

/* One NaN or infinity, in each place of each input: it reaches what the reference says, and nothing else. */
static void B6_B7_nan_reaches_what_sees_it(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 48; i++) {
        attention_case c = case_default("B6 backward");
        c.index = i;
        c.type = (fa_element)(i % 3);
        c.batch = 1;
        c.heads = 2;
        c.heads_kv = 1;
        c.seqlen_k = 100;
        c.head_dim = c.head_dim_v = 20;
        c.causal = (fa_causal)(i % 2);
        c.softcap = i % 5 == 4 ? 3 : 0;
        c.mask = (score_shape){i % 4 < 2, true, true, true, true};
        c.mask_hides = 0.9;
        c.no_poison = true;
        backward_call *b = backward_call_new(&c);
        const double values[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
        tensor *const targets[] = {b->a->q, b->a->k, b->a->v, b->dout, b->out, b->lse};
        tensor *t = targets[i / 2 % 6];
        /* Infinities only where their products are NaN or infinite for every kernel alike. */
        double x = t == b->lse || t == b->a->q || t == b->a->k ? values[0] : values[i / 12 % 3];
        tensor_put(t, rng_range(&b->a->random, 0, tensor_count(t) - 1), x);
        judge_backward_call(b);
        backward_call_free(b);
    }
}

/* ---- Masks ---- */

static void E1_four_spellings_of_causal(void **state) {
    (void)state;
    static const int64_t windows[][2] = {{-1, 0}, {128, 0}, {127, 0}};
    int count;
    const contender *all = backward_contenders(&count);
    attention_case c = case_default("E1 backward");
    c.seqlen_q = c.seqlen_k = 128;
    backward_call *b = backward_call_new(&c);
    for (int w = 0; w < count; w++) {
        b->a->options.causal = FA_CAUSAL_BOTTOM_RIGHT;
        gradients expected = run_backward(b, all[w]);
        b->a->options.causal = FA_CAUSAL_NONE;
        b->a->options.set |= FA_SET_WINDOW;
        for (int i = 0; i < 3; i++) {
            b->a->options.window_left = windows[i][0];
            b->a->options.window_right = windows[i][1];
            gradients g = run_backward(b, all[w]);
            assert_same_gradients(b, &expected, &g, "causal, and a window that means the same");
            gradients_free(&g);
        }
        b->a->options.set &= ~FA_SET_WINDOW;
        b->a->options.window_left = b->a->options.window_right = 0;
        gradients_free(&expected);
    }
    backward_call_free(b);
}

static void E10_window_edges(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 63, 64, 65, 130};
    static const int64_t windows[][2] = {{0, 0}, {0, -1}, {-1, 0}, {3, 0}, {1, 2}, {63, 64}, {200, 5}};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (size_t n = 0; n < sizeof windows / sizeof windows[0]; n++) {
            attention_case c = case_default("E10 backward");
            c.index = i * 10 + n;
            c.batch = 1;
            c.heads = 2;
            c.heads_kv = 1;
            c.head_dim = c.head_dim_v = 16;
            c.seqlen_q = lengths[i];
            c.seqlen_k = lengths[(i + n) % 5];
            c.causal = (fa_causal)(n % 3);
            c.window = true;
            c.window_left = windows[n][0];
            c.window_right = windows[n][1];
            judge_backward(&c);
        }
}

/* ---- Shapes and inputs ---- */

static void G2_large_activations(void **state) {
    (void)state;
    static const input_kind kinds[] = {INPUT_NORMAL_3, INPUT_NORMAL_30, INPUT_EQUAL_KEYS,     INPUT_DOMINANT_KEY,
                                       INPUT_RISING,   INPUT_FALLING,   INPUT_OUTLIER_CHANNEL};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        attention_case c = case_default("G2");
        c.index = i;
        c.heads = 16;
        c.seqlen_q = 4;
        c.seqlen_k = 70;
        c.head_dim = c.head_dim_v = 256;
        c.inputs = kinds[i];
        c.causal = i % 2 == 0 ? FA_CAUSAL_BOTTOM_RIGHT : FA_CAUSAL_NONE;
        c.type = i % 3 == 0 ? FA_ELEMENT_FLOAT16 : FA_ELEMENT_BFLOAT16;
        judge_backward(&c);
    }
}

static void G4_G11_heads_of_a_group(void **state) {
    (void)state;
    static const int64_t heads[][2] = {{1, 1}, {4, 1}, {6, 2}, {9, 3}, {8, 2}, {7, 1}, {16, 2}, {16, 1}, {5, 5}};
    for (uint64_t i = 0; i < 36; i++) {
        attention_case c = case_default("G4 G11");
        c.index = i;
        c.heads = heads[i / 4][0];
        c.heads_kv = heads[i / 4][1];
        c.seqlen_q = 17;
        c.seqlen_k = 40;
        c.head_dim = 24;
        c.causal = (fa_causal)(i % 2);
        c.varlen_q = c.varlen_k = i / 2 % 2 != 0;
        c.type = (fa_element)(i % 3);
        judge_backward(&c);
    }
}

/* dk and dv of a group are the sums over its heads: the reference against itself with keys and values repeated. */
static void G11_sum_over_expanded_heads(void **state) {
    (void)state;
    attention_case c = small_case("expanded heads"), e = c;
    c.type = e.type = FA_ELEMENT_FLOAT64;
    e.heads_kv = e.heads;
    attention_call *a = call_new(&c), *x = call_new(&e);
    backward_call b[2] = {{.a = a}, {.a = x}};
    int64_t group = c.heads / c.heads_kv;
    for (int64_t i = 0; i < tensor_count(a->q); i++) tensor_put(x->q, i, tensor_get(a->q, i));
    for (int64_t n = 0; n < c.batch; n++)
        for (int64_t h = 0; h < c.heads; h++)
            for (int64_t j = 0; j < c.seqlen_k; j++) {
                int64_t to = call_k_number(x, x->k, n, h, j), from = call_k_number(a, a->k, n, h / group, j);
                for (int64_t i = 0; i < c.head_dim; i++) tensor_put(x->k, to + i, tensor_get(a->k, from + i));
                to = call_k_number(x, x->v, n, h, j), from = call_k_number(a, a->v, n, h / group, j);
                for (int64_t i = 0; i < c.head_dim_v; i++) tensor_put(x->v, to + i, tensor_get(a->v, from + i));
            }
    gradients g[2];
    for (int i = 0; i < 2; i++) {
        b[i].dout = call_new_out(b[i].a, FA_ELEMENT_FLOAT64);
        b[i].out = call_new_out(b[i].a, FA_ELEMENT_FLOAT64);
        b[i].lse = call_new_lse(b[i].a, FA_ELEMENT_FLOAT64);
        for (int64_t n = 0; n < tensor_count(b[i].dout); n++) tensor_put(b[i].dout, n, sin((double)n));
        (void)loss(b[i].a, b[i].dout, b[i].out, b[i].lse);
        g[i] = run_backward_to(&b[i], (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO}, FA_ELEMENT_FLOAT64);
    }
    for (int64_t i = 0; i < tensor_count(g[0].of[GRADIENT_K]); i++) {
        int64_t channel = i % c.head_dim, head = i / c.head_dim % c.heads_kv, row = i / c.head_dim / c.heads_kv;
        double sum = 0;
        for (int64_t h = 0; h < group; h++)
            sum += tensor_get(g[1].of[GRADIENT_K], ((row * c.heads) + head * group + h) * c.head_dim + channel);
        if (!(fabs(sum - tensor_get(g[0].of[GRADIENT_K], i)) <= 1e-12 * (1 + fabs(sum))))
            call_fail(a, "dk[%" PRId64 "] = %.12g, and the sum over its heads is %.12g", i,
                      tensor_get(g[0].of[GRADIENT_K], i), sum);
    }
    for (int i = 0; i < 2; i++) {
        gradients_free(&g[i]);
        tensor_free(b[i].dout);
        tensor_free(b[i].out);
        tensor_free(b[i].lse);
        call_free(b[i].a);
    }
}

static void G6_softcap_in_all_types(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        attention_case c = case_default("G6");
        c.index = (uint64_t)i;
        c.softcap = i % 2 == 0 ? 10 : 0.5f;
        c.causal = i < 2 ? FA_CAUSAL_BOTTOM_RIGHT : FA_CAUSAL_NONE;
        c.inputs = i < 2 ? INPUT_NORMAL_3 : INPUT_NORMAL_30; /* deep in saturation */
        c.mask = (score_shape){i == 1, true, false, true, true};
        c.mask_hides = 0.5;
        judge_backward_all_types(c);
    }
}

static void K12_every_way_to_broadcast_a_bias(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 32; i++) {
        attention_case c = case_default("K12");
        c.index = i;
        c.bias = (score_shape){true, (i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0};
        c.bias_type = (fa_element)(i % 3);
        c.bias_hides = i % 5 == 0 ? 0.2 : 0;
        c.varlen_q = c.varlen_k = i >= 16;
        c.heads = 2;
        c.heads_kv = 1;
        c.head_dim = c.head_dim_v = 8;
        c.seqlen_q = 70;
        c.type = (fa_element)(i / 2 % 3);
        c.gradients_float32 = i % 2 == 0;
        judge_backward(&c);
    }
}

/* ---- Everything at once ---- */

static void judge_index(uint64_t index) {
    attention_case c = random_backward_case("backward sweep", index);
    judge_backward(&c);
}

static void random_cases_keep_the_error_budget(void **state) {
    (void)state;
    sweep(300, 8, judge_index);
    printf("the largest error was %.2f of what is allowed\n", judge_worst_share());
}

RUN_TESTS(cmocka_unit_test(G6_finite_differences_with_softcap), cmocka_unit_test(G8_finite_differences_with_sink),
          cmocka_unit_test(K12_K13_finite_differences_of_bias_and_slopes),
          cmocka_unit_test(finite_differences_at_random), cmocka_unit_test(A7_sequences_without_queries),
          cmocka_unit_test(A8_a_row_that_the_mask_hides), cmocka_unit_test(A1_A3_A5_nothing_to_see),
          cmocka_unit_test(A9_A10_masks_and_very_negative_biases), cmocka_unit_test(B4_far_negative_logits),
          cmocka_unit_test(B6_B7_nan_reaches_what_sees_it), cmocka_unit_test(E1_four_spellings_of_causal),
          cmocka_unit_test(E10_window_edges), cmocka_unit_test(G2_large_activations),
          cmocka_unit_test(G4_G11_heads_of_a_group), cmocka_unit_test(G11_sum_over_expanded_heads),
          cmocka_unit_test(G6_softcap_in_all_types), cmocka_unit_test(K12_every_way_to_broadcast_a_bias),
          cmocka_unit_test(random_cases_keep_the_error_budget))
