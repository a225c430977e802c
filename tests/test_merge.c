/* SPDX-License-Identifier: Apache-2.0 */
/* lse as something to merge by: its unit, its value for rows without keys, and fa_combine. */
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const contender automatic = {FA_KERNEL_CPU, FA_ISA_AUTO};

/* ---- Partial results ---- */

/* Arguments of fa_combine: out_partial [splits, b, q, h, dv], lse_partial [splits, b, h, q], or without b. */
typedef struct parts {
    tensor *out, *lse;
} parts;

static parts parts_new(int64_t splits, const tensor *out, const tensor *lse, layout kind, rng *r) {
    int64_t out_shape[5] = {splits}, lse_shape[4] = {splits};
    memcpy(out_shape + 1, out->shape, (size_t)out->fa.ndim * sizeof(int64_t));
    memcpy(lse_shape + 1, lse->shape, (size_t)lse->fa.ndim * sizeof(int64_t));
    return (parts){tensor_new((fa_dtype)FA_FLOAT32, out->fa.ndim + 1, out_shape, kind, true, r),
                   tensor_new((fa_dtype)FA_FLOAT32, lse->fa.ndim + 1, lse_shape, kind, false, r)};
}

static void parts_free(parts *p) {
    tensor_free(p->out);
    tensor_free(p->lse);
}

static void parts_put(parts *p, int64_t split, const tensor *out, const tensor *lse) {
    int64_t count = tensor_count(out);
    for (int64_t i = 0; i < count; i++) tensor_put(p->out, split * count + i, tensor_get(out, i));
    count = tensor_count(lse);
    for (int64_t i = 0; i < count; i++) tensor_put(p->lse, split * count + i, tensor_get(lse, i));
}

/* Runs each of `splits` equal parts of the keys as a call of its own, with float32 results. Keys only: the
 * call must have no rule on positions. */
static parts run_parts(attention_call *a, contender who, int64_t splits) {
    parts p = {NULL, NULL};
    int64_t whole = a->c.seqlen_k;
    for (int64_t s = 0; s < splits; s++) {
        int64_t begin = whole * s / splits, end = whole * (s + 1) / splits;
        attention_call part = *a;
        tensor k = *a->k, v = *a->v;
        tensor *cut[2] = {&k, &v};
        for (int i = 0; i < 2; i++) {
            cut[i]->origin += begin * cut[i]->stride[1] * cut[i]->element_bytes;
            cut[i]->shape[1] = end - begin;
            cut[i]->fa.data = cut[i]->origin;
            cut[i]->fa.byte_offset = 0;
            cut[i]->fa.shape = cut[i]->shape;
            cut[i]->fa.strides = cut[i]->stride;
        }
        part.k = &k;
        part.v = &v;
        part.c.out_float32 = true;
        outputs o = run_call(&part, who);
        if (p.out == NULL) p = parts_new(splits, o.out, o.lse, LAYOUT_COMPACT, &a->random);
        parts_put(&p, s, o.out, o.lse);
        outputs_free(&o);
    }
    return p;
}

static outputs combine(attention_call *a, const parts *p, fa_element type) {
    outputs o = {call_new_out(a, type), call_new_lse(a, FA_ELEMENT_FLOAT32)};
    if (fa_combine(&p->out->fa, &p->lse->fa, &o.out->fa, &o.lse->fa) != FA_OK) call_fail(a, "%s", fa_last_error());
    return o;
}

/* ---- C1 to C4 ---- */

static void C1_two_halves_merge_to_the_whole(void **state) {
    (void)state;
    int count;
    const contender *all = contenders(&count);
    for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_BFLOAT16; t++) {
        attention_case c = case_default("C1");
        c.type = (fa_element)t;
        c.batch = 1;
        c.seqlen_q = 8;
        c.seqlen_k = 4096;
        attention_call *a = call_new(&c);
        yardstick *y = yardstick_new(a);
        for (int w = 0; w < count; w++) {
            parts p = run_parts(a, all[w], 2);
            outputs merged = combine(a, &p, c.type);
            judge_outputs(a, y, all[w], &merged);
            outputs_free(&merged);
            parts_free(&p);
        }
        yardstick_free(y);
        call_free(a);
    }
}

/* Equal logits of 0: lse is ln(keys). Were it a base-2 logarithm, the ratio would be 1.4427. */
static void C1_lse_is_a_natural_logarithm(void **state) {
    (void)state;
    int count;
    const contender *all = contenders(&count);
    attention_case c = case_default("C1 unit");
    c.seqlen_k = 4096;
    c.set_scale = true;
    c.softmax_scale = 0;
    attention_call *a = call_new(&c);
    for (int w = -2; w < count; w++) {
        contender who = w >= 0 ? all[w] : (contender){w == -1 ? FA_KERNEL_REFERENCE : FA_KERNEL_STANDARD, FA_ISA_AUTO};
        outputs o = run_call(a, who);
        for (int64_t i = 0; i < tensor_count(o.lse); i++) {
            double ratio = tensor_get(o.lse, i) / 8.317766166719343; /* ln 4096 */
            if (!(fabs(ratio - 1) < 1e-6)) call_fail(a, "lse[%" PRId64 "] / ln(4096) = %.6f", i, ratio);
        }
        outputs_free(&o);
    }
    call_free(a);
}

/* Float32 partial results: the error stays the budget of one call, however many parts there are. */
static void C2_the_error_does_not_grow_with_the_number_of_parts(void **state) {
    (void)state;
    attention_case c = case_default("C2");
    c.type = FA_ELEMENT_BFLOAT16;
    c.batch = 1;
    c.seqlen_q = 16;
    c.seqlen_k = 1500;
    attention_call *a = call_new(&c);
    yardstick *y = yardstick_new(a);
    yardstick_to_float32(a, y); /* the budget of float32 arithmetic, not of bfloat16 */
    for (int64_t splits = 1; splits <= 256; splits *= splits == 1 ? 8 : splits == 8 ? 8 : 4) {
        parts p = run_parts(a, automatic, splits);
        outputs merged = combine(a, &p, FA_ELEMENT_BFLOAT16);
        judge_outputs(a, y, automatic, &merged);
        outputs_free(&merged);
        parts_free(&p);
    }
    yardstick_free(y);
    call_free(a);
}

/* A merge of one query, one head, one channel: parts (lse, out) given, the whole expected. */
static void expect_merge(const double (*part)[2], int64_t splits, double lse, double out) {
    rng r = rng_named("merge", 0);
    int64_t shape[4] = {1, 1, 1, 1};
    tensor *whole_out = tensor_new((fa_dtype)FA_FLOAT32, 4, shape, LAYOUT_COMPACT, true, &r);
    tensor *whole_lse = tensor_new((fa_dtype)FA_FLOAT32, 3, shape, LAYOUT_COMPACT, true, &r);
    parts p = parts_new(splits, whole_out, whole_lse, LAYOUT_COMPACT, &r);
    for (int64_t s = 0; s < splits; s++) {
        tensor_put(p.lse, s, part[s][0]);
        tensor_put(p.out, s, part[s][1]);
    }
    assert_int_equal(fa_combine(&p.out->fa, &p.lse->fa, &whole_out->fa, &whole_lse->fa), FA_OK);
    double values[2][2] = {{tensor_get(whole_lse, 0), lse}, {tensor_get(whole_out, 0), out}};
    for (int i = 0; i < 2; i++) {
        double x = values[i][0], expected = values[i][1];
        bool right = isnan(expected)      ? isnan(x)
                     : isfinite(expected) ? fabs(x - expected) <= 4 * 0x1p-24 * fabs(expected)
                                          : x == expected;
        if (!right)
            fail_msg("%s = %.9g: must be %.9g (%" PRId64 " parts)", i == 0 ? "lse" : "out", x, expected, splits);
    }
    tensor_free(whole_out);
    tensor_free(whole_lse);
    parts_free(&p);
}

static const double inf = (double)INFINITY, nan_value = (double)NAN;

static void C3_far_apart_lse_neither_overflow_nor_vanish(void **state) {
    (void)state;
    static const double offsets[] = {0, 100, -100, 1e4, -1e4, 1e30, -1e30};
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        double base = (double)(float)offsets[i];
        /* 200 apart: the larger one alone counts, in either order. */
        if (fabs(base) < 1e5) {
            expect_merge((const double[2][2]){{base, 3}, {base - 200, 5}}, 2, base, 3);
            expect_merge((const double[2][2]){{base - 200, 5}, {base, 3}}, 2, base, 3);
        }
        expect_merge((const double[2][2]){{base, 3}, {base, 5}}, 2, (double)(float)(base + log(2)), 4);
    }
    expect_merge((const double[3][2]){{-3e38, 1}, {3e38, 2}, {0, 3}}, 3, 3e38, 2);
    /* Weights 1/4 and 3/4. */
    expect_merge((const double[2][2]){{0, 8}, {log(3), 16}}, 2, log(4), 14);
}

static void C3_parts_without_keys_are_left_out(void **state) {
    (void)state;
    expect_merge((const double[2][2]){{-inf, nan_value}, {1.25, 7}}, 2, 1.25, 7);
    expect_merge((const double[2][2]){{1.25, 7}, {-inf, inf}}, 2, 1.25, 7);
    expect_merge((const double[2][2]){{-inf, nan_value}, {-inf, 5}}, 2, -inf, 0);
    expect_merge((const double[1][2]){{-inf, nan_value}}, 1, -inf, 0);
    expect_merge((const double[1][2]){{-2, 5}}, 1, -2, 5);
    expect_merge(NULL, 0, -inf, 0);
    /* NaN of a part that saw keys shows. */
    expect_merge((const double[2][2]){{0, nan_value}, {0, 1}}, 2, log(2), nan_value);
    expect_merge((const double[2][2]){{nan_value, 1}, {0, 1}}, 2, nan_value, nan_value);
    expect_merge((const double[2][2]){{0, 1}, {nan_value, 1}}, 2, nan_value, nan_value);
}

/* The same rule from every kernel, and what merge code relies on. */
static void C4_a_row_without_keys_has_lse_minus_infinity(void **state) {
    (void)state;
    int count;
    const contender *all = contenders(&count);
    attention_case c = case_default("C4");
    c.seqlen_q = 5;
    c.seqlen_k = 2;
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    attention_call *a = call_new(&c);
    for (int w = -2; w < count; w++) {
        contender who = w >= 0 ? all[w] : (contender){w == -1 ? FA_KERNEL_REFERENCE : FA_KERNEL_STANDARD, FA_ISA_AUTO};
        outputs o = run_call(a, who);
        for (int64_t n = 0; n < 2; n++)
            for (int64_t h = 0; h < c.heads; h++)
                for (int64_t i = 0; i < 5; i++) {
                    double lse = tensor_get(o.lse, call_lse_number(a, o.lse, n, h, i));
                    if (i < 3 ? lse != -inf : !isfinite(lse)) call_fail(a, "lse of row %" PRId64 " is %g", i, lse);
                }
        outputs_free(&o);
    }
    call_free(a);
}

/* A shard without keys, from every way to have none, merged with a real one: that one, bit for bit. */
static void A3_merging_with_an_empty_part_changes_nothing(void **state) {
    (void)state;
    static const int32_t none[] = {0, 0};
    attention_case c = case_default("A3 merge");
    attention_call *real = call_new(&c);
    outputs x = run_call(real, automatic);
    for (int way = 0; way < 3; way++) {
        c = case_default("A3 merge");
        if (way == 0) c.seqlen_k = 0;
        c.used_k = way == 1;
        c.page_size = way == 2 ? 16 : 0;
        c.seqused_k = none;
        attention_call *empty = call_new(&c);
        outputs e = run_call(empty, automatic);
        for (int order = 0; order < 2; order++) {
            parts p = parts_new(2, x.out, x.lse, LAYOUT_COMPACT, &real->random);
            parts_put(&p, order, x.out, x.lse);
            parts_put(&p, 1 - order, e.out, e.lse);
            outputs merged = combine(real, &p, FA_ELEMENT_FLOAT32);
            assert_same_bits(real, &x, &merged, "merged with an empty part");
            outputs_free(&merged);
            parts_free(&p);
        }
        outputs_free(&e);
        call_free(empty);
    }
    outputs_free(&x);
    call_free(real);
}

/* ---- fa_combine: layouts and refusals ---- */

/* Merged by the formula, in float64, against fa_combine; dense or packed, in every layout and dtype of out. */
static void combine_in_every_layout(void **state) {
    (void)state;
    for (int packed = 0; packed < 2; packed++)
        for (int kind = 0; kind < LAYOUTS; kind++)
            for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_BFLOAT16; t++) {
                attention_case c = case_default("combine");
                c.index = (uint64_t)(kind * 2 + packed);
                c.varlen_q = packed;
                c.layout_out = c.layout_lse = kind == LAYOUT_BROADCAST ? LAYOUT_COMPACT : (layout)kind;
                attention_call *a = call_new(&c);
                outputs o = {call_new_out(a, (fa_element)t), call_new_lse(a, FA_ELEMENT_FLOAT32)};
                parts p = parts_new(5, o.out, o.lse, (layout)kind, &a->random);
                for (int64_t i = 0; i < tensor_count(p.out); i++) tensor_put(p.out, i, rng_normal(&a->random));
                for (int64_t i = 0; i < tensor_count(p.lse); i++)
                    tensor_put(p.lse, i, rng_chance(&a->random, 0.2) ? -inf : 3 * rng_normal(&a->random));
                uint64_t before = tensor_checksum(p.out) ^ tensor_checksum(p.lse);
                assert_int_equal(fa_combine(&p.out->fa, &p.lse->fa, &o.out->fa, &o.lse->fa), FA_OK);
                assert_true((tensor_checksum(p.out) ^ tensor_checksum(p.lse)) == before);
                assert_int_equal(tensor_first_poisoned(o.out), -1);
                assert_int_equal(tensor_first_poisoned(o.lse), -1);
                assert_true(tensor_canaries_intact(o.out) && tensor_canaries_intact(o.lse));

                int64_t rows = tensor_count(o.lse), count = tensor_count(o.out), batch = packed ? 1 : c.batch;
                int64_t queries = rows / batch / c.heads;
                for (int64_t row = 0; row < rows; row++) {
                    int64_t n = row / c.heads / queries, h = row / queries % c.heads, i = row % queries;
                    double sum = 0, expected = 0;
                    for (int64_t s = 0; s < 5; s++) sum += exp(tensor_get(p.lse, s * rows + row));
                    int64_t first = ((n * queries + i) * c.heads + h) * c.head_dim_v;
                    if (!(fabs(tensor_get(o.lse, row) - log(sum)) < 1e-5) && sum > 0)
                        call_fail(a, "lse[%" PRId64 "] is wrong", row);
                    for (int64_t channel = 0; channel < c.head_dim_v; channel++) {
                        expected = 0;
                        for (int64_t s = 0; s < 5 && sum > 0; s++) {
                            double weight = exp(tensor_get(p.lse, s * rows + row)) / sum;
                            if (weight > 0) expected += weight * tensor_get(p.out, s * count + first + channel);
                        }
                        double x = tensor_get(o.out, first + channel);
                        double ulp = t == FA_ELEMENT_FLOAT32 ? 0x1p-20 : t == FA_ELEMENT_FLOAT16 ? 0x1p-10 : 0x1p-7;
                        if (!(fabs(x - expected) <= ulp * fmax(1, fabs(expected))))
                            call_fail(a, "out[%" PRId64 "] = %g: must be %g", first + channel, x, expected);
                    }
                }
                /* lse may be NULL. */
                outputs again = {call_new_out(a, (fa_element)t), NULL};
                assert_int_equal(fa_combine(&p.out->fa, &p.lse->fa, &again.out->fa, NULL), FA_OK);
                assert_int_equal(tensor_first_difference(o.out, again.out), -1);
                tensor_free(again.out);
                outputs_free(&o);
                parts_free(&p);
                call_free(a);
            }
}

/* The four arguments of fa_combine, to be spoiled. */
typedef struct combine_arguments {
    fa_tensor out_partial, lse_partial, out, lse;
    int64_t shapes[4][5];
    int64_t strides[5];
    const fa_tensor *pointers[4];
} combine_arguments;

static void refuse_combine(const combine_arguments *x, const tensor *out, const tensor *lse, fa_status status,
                           const char *argument, const char *value, const char *rule) {
    fa_status found = fa_combine(x->pointers[0], x->pointers[1], x->pointers[2], x->pointers[3]);
    const char *sentence = fa_last_error();
    if (found != status || strncmp(sentence, argument, strlen(argument)) != 0 || strstr(sentence, value) == NULL ||
        strstr(sentence, rule) == NULL)
        fail_msg("%s, \"%s\": expected %s and %s, %s, %s", fa_status_text(found), sentence, fa_status_text(status),
                 argument, value, rule);
    for (int64_t i = 0; i < tensor_count(out); i++) assert_true(isnan(tensor_get(out, i)));
    for (int64_t i = 0; i < tensor_count(lse); i++) assert_true(isnan(tensor_get(lse, i)));
}

static void K4_combine_refuses_with_argument_value_and_rule(void **state) {
    (void)state;
    enum { OUT_PARTIAL, LSE_PARTIAL, OUT, LSE };
    static const struct {
        int argument;
        int change; /* 0: NULL, 1: ndim, 2: extent `where`, 3: dtype, 4: device, 5: last stride, 6: data NULL */
        int where;
        int64_t value;
        fa_status status;
        const char *words[3];
    } rows[] = {
        {OUT_PARTIAL, 0, 0, 0, FA_INVALID_ARGUMENT, {"out_partial", "NULL", "must be a tensor"}},
        {LSE_PARTIAL, 0, 0, 0, FA_INVALID_ARGUMENT, {"lse_partial", "NULL", "must be a tensor"}},
        {OUT, 0, 0, 0, FA_INVALID_ARGUMENT, {"out", "NULL", "must be a tensor"}},
        {OUT_PARTIAL, 1, 0, 3, FA_INVALID_ARGUMENT, {"out_partial.ndim", "3", "must be 5"}},
        {LSE_PARTIAL, 1, 0, 3, FA_INVALID_ARGUMENT, {"lse_partial.ndim", "3", "must be 4"}},
        {OUT, 1, 0, 3, FA_INVALID_ARGUMENT, {"out.ndim", "3", "must be 4"}},
        {LSE, 1, 0, 2, FA_INVALID_ARGUMENT, {"lse.ndim", "2", "must be 3"}},
        {OUT, 2, 0, 9, FA_INVALID_ARGUMENT, {"out.shape[0]", "9", "must be 2"}},
        {OUT, 2, 1, 9, FA_INVALID_ARGUMENT, {"out.shape[1]", "9", "must be 4"}},
        {OUT, 2, 2, 9, FA_INVALID_ARGUMENT, {"out.shape[2]", "9", "must be 3"}},
        {OUT, 2, 3, 9, FA_INVALID_ARGUMENT, {"out.shape[3]", "9", "must be 8"}},
        {LSE_PARTIAL, 2, 0, 9, FA_INVALID_ARGUMENT, {"lse_partial.shape[0]", "9", "must be 5"}},
        {LSE_PARTIAL, 2, 1, 9, FA_INVALID_ARGUMENT, {"lse_partial.shape[1]", "9", "must be 2"}},
        {LSE_PARTIAL, 2, 2, 9, FA_INVALID_ARGUMENT, {"lse_partial.shape[2]", "9", "must be 3"}},
        {LSE_PARTIAL, 2, 3, 9, FA_INVALID_ARGUMENT, {"lse_partial.shape[3]", "9", "must be 4"}},
        {LSE, 2, 0, 9, FA_INVALID_ARGUMENT, {"lse.shape[0]", "9", "must be 2"}},
        {LSE, 2, 2, 9, FA_INVALID_ARGUMENT, {"lse.shape[2]", "9", "must be 4"}},
        {OUT_PARTIAL, 3, 16, FA_DTYPE_BFLOAT, FA_UNSUPPORTED, {"out_partial.dtype", "bfloat16", "must be float32"}},
        {LSE_PARTIAL, 3, 16, FA_DTYPE_FLOAT, FA_UNSUPPORTED, {"lse_partial.dtype", "float16", "must be float32"}},
        {OUT, 3, 64, FA_DTYPE_FLOAT, FA_UNSUPPORTED, {"out.dtype", "float64", "must be float32"}},
        {OUT, 3, 32, FA_DTYPE_INT, FA_UNSUPPORTED, {"out.dtype", "int32", "must be float32"}},
        {LSE, 3, 16, FA_DTYPE_FLOAT, FA_UNSUPPORTED, {"lse.dtype", "float16", "must be float32"}},
        {OUT, 4, 0, FA_DEVICE_CUDA, FA_UNSUPPORTED, {"out.device", "2", "CPU"}},
        {OUT_PARTIAL, 5, 0, 2, FA_INVALID_ARGUMENT, {"out_partial.strides[4]", "2", "contiguous"}},
        {OUT, 5, 0, 2, FA_INVALID_ARGUMENT, {"out.strides[3]", "2", "contiguous"}},
        {OUT_PARTIAL, 6, 0, 0, FA_INVALID_ARGUMENT, {"out_partial.data", "NULL", "must point"}},
        {OUT, 6, 0, 0, FA_INVALID_ARGUMENT, {"out.data", "NULL", "must point"}},
    };
    rng r = rng_named("combine refusals", 0);
    static const int64_t out_shape[5] = {5, 2, 4, 3, 8}, lse_shape[4] = {5, 2, 3, 4};
    tensor *t[4] = {tensor_new((fa_dtype)FA_FLOAT32, 5, out_shape, LAYOUT_COMPACT, true, &r),
                    tensor_new((fa_dtype)FA_FLOAT32, 4, lse_shape, LAYOUT_COMPACT, true, &r),
                    tensor_new((fa_dtype)FA_FLOAT32, 4, out_shape + 1, LAYOUT_COMPACT, true, &r),
                    tensor_new((fa_dtype)FA_FLOAT32, 3, lse_shape + 1, LAYOUT_COMPACT, true, &r)};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        combine_arguments x = {0};
        fa_tensor *arguments[4] = {&x.out_partial, &x.lse_partial, &x.out, &x.lse};
        for (int n = 0; n < 4; n++) {
            *arguments[n] = t[n]->fa;
            memcpy(x.shapes[n], t[n]->shape, sizeof x.shapes[n]);
            arguments[n]->shape = x.shapes[n];
            x.pointers[n] = arguments[n];
        }
        fa_tensor *spoiled = arguments[rows[i].argument];
        switch (rows[i].change) {
        case 0: x.pointers[rows[i].argument] = NULL; break;
        case 1: spoiled->ndim = (int32_t)rows[i].value; break;
        case 2: spoiled->shape[rows[i].where] = rows[i].value; break;
        case 3: spoiled->dtype = (fa_dtype){(uint8_t)rows[i].value, (uint8_t)rows[i].where, 1}; break;
        case 4: spoiled->device.device_type = (int32_t)rows[i].value; break;
        case 5:
            memcpy(x.strides, t[rows[i].argument]->stride, sizeof x.strides);
            x.strides[spoiled->ndim - 1] = rows[i].value;
            spoiled->strides = x.strides;
            break;
        default: spoiled->data = NULL; break;
        }
        refuse_combine(&x, t[OUT], t[LSE], rows[i].status, rows[i].words[0], rows[i].words[1], rows[i].words[2]);
    }
    /* Overlaps: out on a part, lse on out. */
    combine_arguments x = {.pointers = {&t[0]->fa, &t[1]->fa, &x.out, &t[3]->fa}};
    x.out = t[OUT]->fa;
    x.out.data = t[OUT_PARTIAL]->fa.data;
    refuse_combine(&x, t[OUT], t[LSE], FA_INVALID_ARGUMENT, "out.data", "overlaps", "out_partial");
    for (int n = 0; n < 4; n++) tensor_free(t[n]);
}

RUN_TESTS(cmocka_unit_test(C1_two_halves_merge_to_the_whole), cmocka_unit_test(C1_lse_is_a_natural_logarithm),
          cmocka_unit_test(C2_the_error_does_not_grow_with_the_number_of_parts),
          cmocka_unit_test(C3_far_apart_lse_neither_overflow_nor_vanish),
          cmocka_unit_test(C3_parts_without_keys_are_left_out),
          cmocka_unit_test(C4_a_row_without_keys_has_lse_minus_infinity),
          cmocka_unit_test(A3_merging_with_an_empty_part_changes_nothing), cmocka_unit_test(combine_in_every_layout),
          cmocka_unit_test(K4_combine_refuses_with_argument_value_and_rule))
