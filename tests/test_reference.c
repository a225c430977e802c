/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The formula on numbers small enough to be worked out by hand: one channel, one or two queries and keys.
 * The reference has to give them, and so does every other kernel. On larger problems the reference is held
 * against the oracle of tests/support in every judged case.
 */
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>

#define LN2 0.6931471805599453
#define LN3 1.0986122886681098
#define LN4 1.3862943611198906

/* One query, two keys: k = 0 and ln 3, values 8 and 16, scale 1. Weights 1/4 and 3/4: lse = ln 4, O = 14. */
static attention_case two_keys(const char *name) {
    attention_case c = case_default(name);
    c.batch = c.heads = c.heads_kv = c.seqlen_q = c.head_dim = c.head_dim_v = 1;
    c.seqlen_k = 2;
    c.set_scale = true;
    c.softmax_scale = 1;
    return c;
}

static attention_call *two_keys_call(const attention_case *c, double k0, double k1) {
    attention_call *a = call_new(c);
    tensor_put(a->q, 0, 1);
    tensor_put(a->k, 0, k0);
    tensor_put(a->k, 1, k1);
    tensor_put(a->v, 0, 8);
    tensor_put(a->v, 1, 16);
    return a;
}

static void expect_number(const attention_call *a, contender who, const char *name, double x, double expected) {
    double error = fabs(x - expected);
    if (!(error <= 4e-7 * fmax(1, fabs(expected))) && x != expected)
        call_fail(a, "kernel %s isa %s: %s = %.9g: must be %.9g", fa_kernel_name(who.kernel), fa_isa_name(who.isa),
                  name, x, expected);
}

/* All kernels give these numbers, element by element. Takes the call. */
static void expect_numbers(attention_call *a, int64_t count, const double *out, const double *lse) {
    int contender_count;
    const contender *all = contenders(&contender_count);
    for (int w = -2; w < contender_count; w++) {
        contender who = w >= 0 ? all[w] : (contender){w == -1 ? FA_KERNEL_REFERENCE : FA_KERNEL_STANDARD, FA_ISA_AUTO};
        outputs o = run_call(a, who);
        assert_int_equal(tensor_count(o.out), count);
        assert_int_equal(tensor_count(o.lse), count);
        for (int64_t i = 0; i < count; i++) {
            expect_number(a, who, "out", tensor_get(o.out, i), out[i]);
            expect_number(a, who, "lse", tensor_get(o.lse, i), lse[i]);
        }
        outputs_free(&o);
    }
    call_free(a);
}

static void expect_quarter(attention_call *a) { expect_numbers(a, 1, (double[]){14}, (double[]){LN4}); }

static void softmax_of_two(void **state) {
    (void)state;
    attention_case c = two_keys("softmax");
    expect_quarter(two_keys_call(&c, 0, LN3));
    /* A common term leaves the weights and adds to lse. */
    expect_numbers(two_keys_call(&c, -100, LN3 - 100), 1, (double[]){14}, (double[]){LN4 - 100});
    expect_numbers(two_keys_call(&c, 5, 5), 1, (double[]){12}, (double[]){5 + LN2});
    expect_numbers(two_keys_call(&c, 0, -200), 1, (double[]){8}, (double[]){0});
}

static void softmax_scale(void **state) {
    (void)state;
    attention_case c = two_keys("scale");
    c.softmax_scale = 0.125f;
    expect_quarter(two_keys_call(&c, 0, 8 * LN3));
    c.softmax_scale = -2;
    expect_quarter(two_keys_call(&c, 0, -LN3 / 2));
    c.softmax_scale = 0;
    expect_numbers(two_keys_call(&c, 3, -7), 1, (double[]){12}, (double[]){LN2});
    /* The default is 1 / sqrt(head_dim): four channels, of which one is not 0. */
    c.set_scale = false;
    c.head_dim = 4;
    attention_call *a = call_new(&c);
    for (int64_t i = 0; i < 4; i++) {
        tensor_put(a->q, i, i == 2);
        tensor_put(a->k, i, 0);
        tensor_put(a->k, 4 + i, i == 2 ? 2 * LN3 : 9);
    }
    tensor_put(a->v, 0, 8);
    tensor_put(a->v, 1, 16);
    expect_quarter(a);
}

static void softcap(void **state) {
    (void)state;
    attention_case c = two_keys("softcap");
    c.softcap = 2;
    expect_quarter(two_keys_call(&c, 0, 2 * atanh(LN3 / 2)));
    /* Far out it is the cap. */
    c.softcap = (float)LN3;
    expect_quarter(two_keys_call(&c, 0, 1e6));
    /* The scale comes before it. */
    c.softcap = 2;
    c.softmax_scale = 0.5f;
    expect_quarter(two_keys_call(&c, 0, 4 * atanh(LN3 / 2)));
}

static void bias_comes_after_softcap(void **state) {
    (void)state;
    attention_case c = two_keys("bias");
    c.bias = (score_shape){.given = true, .keys = true};
    attention_call *a = two_keys_call(&c, 0, 0);
    tensor_put(a->bias, 0, -1);
    tensor_put(a->bias, 1, LN3 - 1);
    expect_numbers(a, 1, (double[]){14}, (double[]){LN4 - 1});
    /* Were it capped as well, 100 would not come through. Nor is it scaled. */
    c.softcap = 1;
    c.softmax_scale = 0.25f;
    a = two_keys_call(&c, 0, 0);
    tensor_put(a->bias, 0, 100);
    tensor_put(a->bias, 1, 100 + LN3);
    expect_numbers(a, 1, (double[]){14}, (double[]){LN4 + 100});
    /* -inf masks. */
    a = two_keys_call(&c, 0, 0);
    tensor_put(a->bias, 0, 0);
    tensor_put(a->bias, 1, -(double)INFINITY);
    expect_numbers(a, 1, (double[]){8}, (double[]){0});
}

static void mask_hides(void **state) {
    (void)state;
    attention_case c = two_keys("mask");
    c.mask = (score_shape){.given = true, .keys = true};
    for (int visible = 0; visible < 4; visible++) {
        attention_call *a = two_keys_call(&c, 0, LN3);
        tensor_put_int(a->mask, 0, visible & 1);
        tensor_put_int(a->mask, 1, visible >> 1);
        static const double out[] = {0, 8, 16, 14};
        const double lse[] = {-(double)INFINITY, 0, LN3, LN4};
        expect_numbers(a, 1, out + visible, lse + visible);
    }
}

/* |i + seqlen_k - seqlen_q - j|: the one query is aligned with the second key. */
static void alibi(void **state) {
    (void)state;
    attention_case c = two_keys("alibi");
    c.alibi = true;
    attention_call *a = two_keys_call(&c, 0, 0);
    tensor_put(a->alibi, 0, LN3); /* -ln 3 and 0 */
    expect_numbers(a, 1, (double[]){14}, (double[]){LN4 - LN3});
    /* The distance is the same under top-left causal, which hides the second key. */
    c.causal = FA_CAUSAL_TOP_LEFT;
    a = two_keys_call(&c, 0, 0);
    tensor_put(a->alibi, 0, 5);
    expect_numbers(a, 1, (double[]){8}, (double[]){-5});
    /* Queries 0 and 1 on keys 0 and 1: distances 0 1 / 1 0. */
    c.causal = FA_CAUSAL_NONE;
    c.seqlen_q = 2;
    a = two_keys_call(&c, 0, 0);
    tensor_put(a->q, 1, 1);
    tensor_put(a->alibi, 0, LN3);
    expect_numbers(a, 2, (double[]){10, 14}, (double[]){LN4 - LN3, LN4 - LN3});
}

static void alibi_per_batch_and_head(void **state) {
    (void)state;
    attention_case c = two_keys("alibi per batch");
    c.batch = c.heads = 2;
    c.alibi = c.alibi_per_batch = true;
    attention_call *a = call_new(&c);
    double out[4], lse[4];
    for (int64_t i = 0; i < 4; i++) { /* (batch, head) in order */
        tensor_put(a->q, i, 0);
        tensor_put(a->v, i, i % 2 == 0 ? 8 : 16);
        tensor_put(a->k, i, 0);
        tensor_put(a->alibi, i, log((double)(i + 1))); /* weights 1 / (i + 1) and 1 */
        out[i] = (8 / (double)(i + 1) + 16) / (1 / (double)(i + 1) + 1);
        lse[i] = log(1 / (double)(i + 1) + 1);
    }
    expect_numbers(a, 4, out, lse);
}

static void sink_takes_weight_and_has_no_value(void **state) {
    (void)state;
    attention_case c = two_keys("sink");
    c.sink = true;
    attention_call *a = two_keys_call(&c, 0, LN3);
    tensor_put(a->sink, 0, LN4); /* weights 1/8, 3/8, and 4/8 for the sink */
    expect_numbers(a, 1, (double[]){7}, (double[]){LN4 + LN2});
    /* It is neither scaled nor capped. */
    c.softmax_scale = 0.5f;
    c.softcap = 4;
    double score = 4 * tanh(0.125); /* of both keys */
    a = two_keys_call(&c, 1, 1);
    tensor_put(a->sink, 0, score + LN2); /* as much as both */
    expect_numbers(a, 1, (double[]){6}, (double[]){score + LN4});
    /* -inf is no sink. */
    c = two_keys("sink");
    c.sink = true;
    a = two_keys_call(&c, 0, LN3);
    tensor_put(a->sink, 0, -(double)INFINITY);
    expect_quarter(a);
}

/* Query head h reads key/value head h / (heads / heads_kv). */
static void grouped_heads(void **state) {
    (void)state;
    attention_case c = two_keys("groups");
    c.heads = 6;
    c.heads_kv = 2;
    c.seqlen_k = 1;
    attention_call *a = call_new(&c);
    for (int64_t h = 0; h < 6; h++) tensor_put(a->q, h, (double)h);
    for (int64_t h = 0; h < 2; h++) {
        tensor_put(a->k, h, h == 0 ? 1 : 10);
        tensor_put(a->v, h, h == 0 ? 8 : 16);
    }
    expect_numbers(a, 6, (double[]){8, 8, 8, 16, 16, 16}, (double[]){0, 1, 2, 30, 40, 50});
}

/* Three queries on two keys, both alignments; out is [query], so is lse. */
static void causal_by_hand(void **state) {
    (void)state;
    attention_case c = two_keys("causal");
    c.seqlen_q = 3;
    c.softmax_scale = 0;
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    expect_numbers(two_keys_call(&c, 1, 2), 3, (double[]){0, 8, 12}, (double[]){-(double)INFINITY, 0, LN2});
    c.causal = FA_CAUSAL_TOP_LEFT;
    expect_numbers(two_keys_call(&c, 1, 2), 3, (double[]){8, 12, 12}, (double[]){0, LN2, LN2});
}

/* Layouts of out and lse: [b, q, h, dv] and [b, h, q]. Each (batch, head, query) has a result of its own. */
static void order_of_dimensions(void **state) {
    (void)state;
    attention_case c = two_keys("dimensions");
    c.batch = 2;
    c.heads = c.heads_kv = 3;
    c.seqlen_q = 4;
    c.seqlen_k = 1;
    c.head_dim_v = 2;
    attention_call *a = call_new(&c);
    int64_t q = 0;
    for (int64_t n = 0; n < 2; n++)
        for (int64_t i = 0; i < 4; i++)
            for (int64_t h = 0; h < 3; h++) tensor_put(a->q, q++, (double)(n * 100 + h * 10 + i));
    for (int64_t n = 0; n < 6; n++) {
        tensor_put(a->k, n, 1);
        tensor_put(a->v, 2 * n, (double)n); /* (batch, head) */
        tensor_put(a->v, 2 * n + 1, -(double)n);
    }
    outputs o = run_call(a, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO});
    int64_t lse = 0, out = 0;
    for (int64_t n = 0; n < 2; n++)
        for (int64_t h = 0; h < 3; h++)
            for (int64_t i = 0; i < 4; i++) assert_true(tensor_get(o.lse, lse++) == (double)(n * 100 + h * 10 + i));
    for (int64_t n = 0; n < 2; n++)
        for (int64_t i = 0; i < 4; i++)
            for (int64_t h = 0; h < 3; h++) {
                assert_true(tensor_get(o.out, out++) == (double)(n * 3 + h));
                assert_true(tensor_get(o.out, out++) == -(double)(n * 3 + h));
            }
    outputs_free(&o);
    call_free(a);
}

/* The standard kernel rounds each of S, P and O to the inputs' dtype: to a number that this can be told from. */
static void standard_rounds_to_the_dtype(void **state) {
    (void)state;
    attention_case c = two_keys("standard");
    c.type = FA_ELEMENT_BFLOAT16;
    c.out_float32 = true;
    attention_call *a = two_keys_call(&c, 0, 1 + 0x1p-7); /* s = 1.0078125, exact in bfloat16 */
    tensor_put(a->v, 0, 0);
    tensor_put(a->v, 1, 1); /* O = P */
    outputs standard = run_call(a, (contender){FA_KERNEL_STANDARD, FA_ISA_AUTO});
    outputs reference = run_call(a, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO});
    double p = 1 / (1 + exp(-1 - 0x1p-7)); /* 0.7326, in [1/2, 1): bfloat16 steps of 2^-8 */
    assert_true(tensor_get(standard.out, 0) == nearbyint(p * 256) / 256);
    assert_true(fabs(tensor_get(reference.out, 0) - p) < 1e-7);
    outputs_free(&standard);
    outputs_free(&reference);
    call_free(a);
}

/* Reference and standard in float64 all the way, against each other. */
static void float64_inputs(void **state) {
    (void)state;
    attention_case c = case_default("float64");
    c.type = FA_ELEMENT_FLOAT64;
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    c.softcap = 5;
    attention_call *a = call_new(&c);
    fa_options options = a->options;
    tensor *out[2], *lse[2];
    for (int i = 0; i < 2; i++) {
        options.kernel = i == 0 ? FA_KERNEL_REFERENCE : FA_KERNEL_STANDARD;
        out[i] = call_new_out(a, FA_ELEMENT_FLOAT64);
        lse[i] = call_new_lse(a, i == 0 ? FA_ELEMENT_FLOAT64 : FA_ELEMENT_FLOAT32);
        if (fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &options, &out[i]->fa, &lse[i]->fa) != FA_OK)
            call_fail(a, "%s", fa_last_error());
    }
    for (int64_t i = 0; i < tensor_count(out[0]); i++)
        if (!(fabs(tensor_get(out[0], i) - tensor_get(out[1], i)) < 1e-14)) call_fail(a, "out[%" PRId64 "] differs", i);
    for (int64_t i = 0; i < tensor_count(lse[0]); i++)
        if (!(fabs(tensor_get(lse[0], i) - tensor_get(lse[1], i)) < 1e-6)) call_fail(a, "lse[%" PRId64 "] differs", i);
    for (int i = 0; i < 2; i++) {
        tensor_free(out[i]);
        tensor_free(lse[i]);
    }
    call_free(a);
}

RUN_TESTS(cmocka_unit_test(softmax_of_two), cmocka_unit_test(softmax_scale), cmocka_unit_test(softcap),
          cmocka_unit_test(bias_comes_after_softcap), cmocka_unit_test(mask_hides), cmocka_unit_test(alibi),
          cmocka_unit_test(alibi_per_batch_and_head), cmocka_unit_test(sink_takes_weight_and_has_no_value),
          cmocka_unit_test(grouped_heads), cmocka_unit_test(causal_by_hand), cmocka_unit_test(order_of_dimensions),
          cmocka_unit_test(standard_rounds_to_the_dtype), cmocka_unit_test(float64_inputs))
