/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and sequences that see no key: O = 0, lse = -inf, and nobody else is disturbed. */
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>

static const double minus_infinity = -(double)INFINITY;

/* Fails unless the rows [first, end) of a sequence are O = 0 and lse = -inf, and (by the reference) no others. */
static void assert_empty_rows(attention_call *a, int64_t n, int64_t first, int64_t end) {
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        outputs o = run_call(a, all[w]);
        call_sequence s = call_sequence_of(a, n);
        for (int64_t h = 0; h < a->c.heads; h++)
            for (int64_t i = 0; i < s.q_rows; i++) {
                bool empty = i >= first && i < end;
                double lse = tensor_get(o.lse, call_lse_number(a, o.lse, n, h, i));
                if (empty != (lse == minus_infinity)) call_fail(a, "lse of row %" PRId64 " is %g", i, lse);
                for (int64_t c = 0; c < a->c.head_dim_v && empty; c++)
                    if (!(tensor_get(o.out, call_q_number(a, o.out, n, h, i) + c) == 0))
                        call_fail(a, "row %" PRId64 " is not 0", i);
            }
        outputs_free(&o);
    }
}

static void A1_causal_more_queries_than_keys(void **state) {
    (void)state;
    attention_case c = case_default("A1");
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    c.seqlen_q = 5;
    c.seqlen_k = 2;
    judge_case_all_types(c);
    /* More rows, so that both calls below compute tiles of the same kind. */
    c.seqlen_q = 8;
    c.seqlen_k = 5;
    judge_case_all_types(c);
    attention_call *a = call_new(&c);
    assert_empty_rows(a, 0, 0, 3);
    assert_empty_rows(a, 1, 0, 3);

    c.seqlen_q = 5;
    attention_call *last = call_new(&c);
    int count;
    const contender *all = contenders(&count);
    for (int64_t n = 0; n < c.batch; n++) call_copy_sequence(last, n, a, n, 3);
    for (int w = 0; w < count; w++) {
        outputs all_rows = run_call(a, all[w]), last_rows = run_call(last, all[w]);
        for (int64_t n = 0; n < c.batch; n++)
            assert_same_sequence(last, &last_rows, n, a, &all_rows, n, 3, "the last rows alone");
        outputs_free(&all_rows);
        outputs_free(&last_rows);
    }
    call_free(a);
    call_free(last);
}

static void A2_paged_causal_more_queries_than_keys(void **state) {
    (void)state;
    static const int32_t used[] = {3, 8};
    attention_case c = case_default("A2");
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    c.seqlen_q = 8;
    c.seqlen_k = 16;
    c.page_size = 4;
    c.seqused_k = used;
    judge_case_all_types(c);
    attention_call *a = call_new(&c);
    assert_empty_rows(a, 0, 0, 5);
    assert_empty_rows(a, 1, 0, 0);
    call_free(a);
}

/* No keys at all, by each way to say so, with many queries and with one. Merging with such a part: test_merge.c. */
static void A3_no_keys_from_every_entry_point(void **state) {
    (void)state;
    static const int32_t none[] = {0, 0}, one_empty[] = {0, 70};
    for (int64_t seqlen_q = 1; seqlen_q <= 33; seqlen_q += 32)
        for (int way = 0; way < 6; way++) {
            attention_case c = case_default("A3");
            c.index = (uint64_t)way;
            c.seqlen_q = seqlen_q;
            if (way == 0) c.seqlen_k = 0;
            c.varlen_k = way == 1;
            c.lengths_k = none;
            c.page_size = way == 2 ? 16 : 0;
            c.used_k = way == 3 || way == 5;
            c.seqused_k = way == 5 ? one_empty : none;
            c.leftpad = way == 4; /* all of it padding */
            static const int32_t all[] = {70, 70};
            c.leftpad_k = all;
            judge_case_all_types(c);
            attention_call *a = call_new(&c);
            assert_empty_rows(a, 0, 0, seqlen_q);
            if (way != 5) assert_empty_rows(a, 1, 0, seqlen_q);
            call_free(a);
        }
}

static void A4_empty_sequences_leave_their_neighbours_alone(void **state) {
    (void)state;
    enum { SEQUENCES = 64 };
    int32_t lengths_q[SEQUENCES], lengths_k[SEQUENCES], kept_q[SEQUENCES], kept_k[SEQUENCES];
    int64_t origin[SEQUENCES], kept = 0;
    rng r = rng_named("A4", 0);
    for (int n = 0; n < SEQUENCES; n++) {
        lengths_q[n] = (int32_t)rng_range(&r, 1, 20);
        lengths_k[n] = n == 1 || n == 10 ? 0 : (int32_t)rng_range(&r, 1, 30);
        if (lengths_k[n] == 0) continue;
        origin[kept] = n;
        kept_q[kept] = lengths_q[n];
        kept_k[kept++] = lengths_k[n];
    }
    attention_case c = case_default("A4");
    c.batch = SEQUENCES;
    c.heads = 8;
    c.varlen_q = c.varlen_k = true;
    c.seqlen_q = 20;
    c.seqlen_k = 30;
    c.lengths_q = lengths_q;
    c.lengths_k = lengths_k;
    c.num_splits = 1; /* the rule for splits looks at the whole batch */
    judge_case(&c);
    attention_call *a = call_new(&c);
    c.batch = kept;
    c.lengths_q = kept_q;
    c.lengths_k = kept_k;
    attention_call *without = call_new(&c);
    for (int64_t n = 0; n < kept; n++) call_copy_sequence(without, n, a, origin[n], 0);
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        outputs x = run_call(a, all[w]), y = run_call(without, all[w]);
        for (int64_t n = 0; n < kept; n++)
            assert_same_sequence(without, &y, n, a, &x, origin[n], 0, "without the empty sequences");
        outputs_free(&x);
        outputs_free(&y);
    }
    call_free(a);
    call_free(without);
}

static void A5_dense_without_keys(void **state) {
    (void)state;
    attention_case c = case_default("A5");
    c.seqlen_q = 16;
    c.heads = c.heads_kv = 4;
    c.head_dim = c.head_dim_v = 64;
    c.seqlen_k = 0;
    for (int causal = 0; causal <= 2; causal++) {
        c.causal = (fa_causal)causal;
        judge_case_all_types(c);
        attention_call *a = call_new(&c);
        assert_empty_rows(a, 0, 0, 16);
        call_free(a);
    }
}

static void A6_empty_key_sequence_writes_nothing_outside(void **state) {
    (void)state;
    static const int32_t lengths_q[] = {7, 9}, lengths_k[] = {0, 5};
    attention_case c = case_default("A6");
    c.varlen_q = c.varlen_k = true;
    c.lengths_q = lengths_q;
    c.lengths_k = lengths_k;
    c.tail_q = 3; /* rows behind the last sequence, which are written as well */
    c.tail_k = 2;
    for (layout kind = LAYOUT_COMPACT; kind <= LAYOUT_UNALIGNED; kind++) {
        c.layout_out = c.layout_lse = kind;
        judge_case_all_types(c); /* checks the canaries */
    }
}

static void A8_mask_with_an_all_false_row(void **state) {
    (void)state;
    attention_case c = case_default("A8");
    c.batch = c.heads = c.heads_kv = 1;
    c.seqlen_q = c.seqlen_k = 4;
    c.mask = (score_shape){.given = true, .queries = true, .keys = true};
    attention_call *a = call_new(&c);
    for (int64_t j = 0; j < 4; j++) tensor_put_int(a->mask, 2 * 4 + j, 0);
    judge_call(a);
    assert_empty_rows(a, 0, 2, 3);
    call_free(a);
}

/* The most negative finite bias is a value, not a mask: every key of such a row keeps its weight. */
static void A9_lowest_finite_bias_is_a_value(void **state) {
    (void)state;
    static const double lowest[] = {-0x1.fffffep127, -65504, -0x1.fep127};
    for (int type = FA_ELEMENT_FLOAT32; type <= FA_ELEMENT_BFLOAT16; type++) {
        attention_case c = case_default("A9");
        c.index = (uint64_t)type;
        c.bias = (score_shape){.given = true, .queries = true, .keys = true};
        c.bias_type = (fa_element)type;
        for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_BFLOAT16; t++) {
            c.type = (fa_element)t;
            attention_call *a = call_new(&c);
            for (int64_t j = 0; j < c.seqlen_k; j++) {
                tensor_put(a->bias, 5 * c.seqlen_k + j, lowest[type]);                 /* all of row 5 */
                if (j % 2 == 0) tensor_put(a->bias, 6 * c.seqlen_k + j, lowest[type]); /* half of row 6 */
            }
            judge_call(a);
            assert_empty_rows(a, 0, 0, 0);
            if (type != FA_ELEMENT_FLOAT16) { /* the scores vanish beside 1e38: all weights are equal */
                outputs o = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
                double mean = 0;
                for (int64_t j = 0; j < c.seqlen_k; j++) mean += tensor_get(a->v, call_k_number(a, a->v, 0, 0, j));
                double x = tensor_get(o.out, call_q_number(a, o.out, 0, 0, 5));
                mean /= (double)c.seqlen_k;
                if (!(fabs(x - mean) < 0.01)) call_fail(a, "row 5: %g, and the mean of v is %g", x, mean);
                outputs_free(&o);
            }
            call_free(a);
        }
    }
}

static void A10_fully_masked_row_is_zero_and_not_the_mean(void **state) {
    (void)state;
    attention_case c = case_default("A10");
    c.mask = (score_shape){.given = true, .heads = true, .queries = true, .keys = true};
    c.mask_hides = 1;
    attention_call *a = call_new(&c);
    for (int64_t i = 0; i < tensor_count(a->v); i++) tensor_put(a->v, i, (double)i);
    judge_call(a);
    assert_empty_rows(a, 0, 0, c.seqlen_q);
    assert_empty_rows(a, 1, 0, c.seqlen_q);
    call_free(a);
    /* The same by a bias of -inf. */
    c.mask.given = false;
    c.bias = (score_shape){.given = true, .heads = true, .queries = true, .keys = true};
    c.bias_hides = 1;
    a = call_new(&c);
    judge_call(a);
    assert_empty_rows(a, 0, 0, c.seqlen_q);
    call_free(a);
}

static void A11_sizes_of_zero_succeed(void **state) {
    (void)state;
    for (int zero = 1; zero < 16; zero++)
        for (int causal = 0; causal <= 2; causal++) {
            attention_case c = case_default("A11");
            c.index = (uint64_t)(zero * 3 + causal);
            c.causal = (fa_causal)causal;
            if (zero & 1) c.batch = 0;
            if (zero & 2) c.heads = c.heads_kv = 0;
            if (zero & 4) c.seqlen_q = 0;
            if (zero & 8) c.seqlen_k = 0;
            judge_case(&c);
            c.varlen_q = c.varlen_k = true;
            judge_case(&c);
            c.varlen_k = false;
            c.page_size = 16;
            judge_case(&c);
        }
}

static void A13_variable_length_causal_with_one_key(void **state) {
    (void)state;
    static const int32_t lengths_q[] = {76, 34, 146}, lengths_k[] = {1, 1, 1};
    attention_case c = case_default("A13");
    c.batch = 3;
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    c.varlen_q = c.varlen_k = true;
    c.lengths_q = lengths_q;
    c.lengths_k = lengths_k;
    c.head_dim = c.head_dim_v = 32;
    c.inputs = INPUT_NORMAL_3;
    judge_case_all_types(c);
    attention_call *a = call_new(&c);
    outputs o = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    for (int64_t n = 0; n < 3; n++) {
        assert_empty_rows(a, n, 0, lengths_q[n] - 1);
        /* The last query of each puts all its weight on the one key. */
        for (int64_t h = 0; h < c.heads; h++)
            for (int64_t i = 0; i < c.head_dim_v; i++) {
                double x = tensor_get(o.out, call_q_number(a, o.out, n, h, lengths_q[n] - 1) + i);
                if (!(x == tensor_get(a->v, call_k_number(a, a->v, n, h / 2, 0) + i)))
                    call_fail(a, "the last query of sequence %" PRId64 " is not its only value", n);
            }
    }
    outputs_free(&o);
    call_free(a);
}

/* With a sink the denominator is never empty: O = 0, lse = sink. */
static void A_empty_rows_with_a_sink(void **state) {
    (void)state;
    attention_case c = case_default("A sink");
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    c.seqlen_q = 40;
    c.seqlen_k = 10;
    c.sink = true;
    judge_case_all_types(c);
    attention_call *a = call_new(&c);
    outputs o = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    for (int64_t h = 0; h < c.heads; h++) {
        double lse = tensor_get(o.lse, call_lse_number(a, o.lse, 1, h, 0));
        assert_true(lse == tensor_get(a->sink, h));
        assert_true(tensor_get(o.out, call_q_number(a, o.out, 1, h, 0)) == 0);
    }
    outputs_free(&o);
    call_free(a);
}

RUN_TESTS(cmocka_unit_test(A1_causal_more_queries_than_keys), cmocka_unit_test(A2_paged_causal_more_queries_than_keys),
          cmocka_unit_test(A3_no_keys_from_every_entry_point),
          cmocka_unit_test(A4_empty_sequences_leave_their_neighbours_alone), cmocka_unit_test(A5_dense_without_keys),
          cmocka_unit_test(A6_empty_key_sequence_writes_nothing_outside),
          cmocka_unit_test(A8_mask_with_an_all_false_row), cmocka_unit_test(A9_lowest_finite_bias_is_a_value),
          cmocka_unit_test(A10_fully_masked_row_is_zero_and_not_the_mean), cmocka_unit_test(A11_sizes_of_zero_succeed),
          cmocka_unit_test(A13_variable_length_causal_with_one_key), cmocka_unit_test(A_empty_rows_with_a_sink))
