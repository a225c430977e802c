/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal masks, windows and lengths that differ, against masks written out pair by pair.
 *
 * With softmax_scale = 0 and one-hot values the output row of a query is 1/n at the n keys that it sees and
 * exactly 0 elsewhere, so what a kernel let through can be read off.
 */
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether query i sees key j, by the sentences of flashattn.h. */
static bool sees(const attention_case *c, int64_t seqlen_q, int64_t seqlen_k, int64_t i, int64_t j) {
    int64_t aligned = c->causal == FA_CAUSAL_TOP_LEFT ? i : i + seqlen_k - seqlen_q;
    bool causal = c->causal == FA_CAUSAL_NONE || j <= aligned;
    bool left = !c->window || c->window_left == -1 || j >= aligned - c->window_left;
    bool right = !c->window || c->window_right == -1 || j <= aligned + c->window_right;
    return causal && left && right;
}

/* One head, one sequence, weights that can be read off. */
static attention_case revealing_case(const char *name, int64_t seqlen_q, int64_t seqlen_k) {
    attention_case c = case_default(name);
    c.batch = c.heads = c.heads_kv = 1;
    c.seqlen_q = seqlen_q;
    c.seqlen_k = c.head_dim_v = seqlen_k;
    c.head_dim = 8;
    c.set_scale = true;
    c.values = VALUES_ONE_HOT;
    return c;
}

/* Fails unless query i sees exactly the keys of seen[i * seqlen_k ...], on every instruction set and by the
 * reference. Every other case has NaN in what nobody sees. */
static void expect_seen(const attention_case *c, const unsigned char *seen) {
    attention_call *a = call_new(c);
    if (c->index % 2 == 0) call_poison_hidden(a);
    int count;
    const contender *all = contenders(&count);
    for (int w = -1; w < count; w++) {
        contender who = w >= 0 ? all[w] : (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO};
        outputs o = run_call(a, who);
        for (int64_t i = 0; i < c->seqlen_q; i++) {
            int64_t n = 0;
            for (int64_t j = 0; j < c->seqlen_k; j++) n += seen[i * c->seqlen_k + j];
            for (int64_t j = 0; j < c->seqlen_k; j++) {
                double x = tensor_get(o.out, i * c->seqlen_k + j);
                bool right = seen[i * c->seqlen_k + j] ? fabs(x * (double)n - 1) < 1e-6 : x == 0;
                if (!right)
                    call_fail(a, "kernel %s isa %s: query %" PRId64 " has weight %g on key %" PRId64 ", sees %" PRId64,
                              fa_kernel_name(who.kernel), fa_isa_name(who.isa), i, x, j, n);
            }
        }
        outputs_free(&o);
    }
    call_free(a);
}

static void expect_rule(const attention_case *c) {
    unsigned char *seen = calloc((size_t)(c->seqlen_q * c->seqlen_k) + 1, 1);
    assert_non_null(seen);
    for (int64_t i = 0; i < c->seqlen_q; i++)
        for (int64_t j = 0; j < c->seqlen_k; j++) seen[i * c->seqlen_k + j] = sees(c, c->seqlen_q, c->seqlen_k, i, j);
    expect_seen(c, seen);
    free(seen);
}

/* Fails unless query i sees the keys first .. last and no others. */
static void expect_interval(attention_case c, int64_t i, int64_t first, int64_t last) {
    for (int64_t j = 0; j < c.seqlen_k; j++)
        if (sees(&c, c.seqlen_q, c.seqlen_k, i, j) != (j >= first && j <= last))
            fail_msg("the rule of this test is wrong about query %" PRId64 " and key %" PRId64, i, j);
    expect_rule(&c);
}

/* The same bits from two ways to say one mask, everywhere. */
static void expect_same_bits(const attention_case *c, const attention_case *d, const char *what) {
    attention_call *a = call_new(c), *b = call_new(d);
    for (int64_t n = 0; n < c->batch; n++) call_copy_sequence(b, n, a, n, 0);
    int count;
    const contender *all = contenders(&count);
    for (int w = -2; w < count; w++) {
        contender who = w >= 0 ? all[w] : (contender){w == -1 ? FA_KERNEL_REFERENCE : FA_KERNEL_STANDARD, FA_ISA_AUTO};
        outputs x = run_call(a, who), y = run_call(b, who);
        assert_same_bits(b, &x, &y, what);
        outputs_free(&x);
        outputs_free(&y);
    }
    call_free(a);
    call_free(b);
}

/* Judges the case, and the same with its rule on positions written out as options.mask; the reference must
 * make no difference between the two. Lengths must be given. */
static void judge_against_explicit_mask(const attention_case *c) {
    attention_call *a = call_new(c);
    attention_case d = *c;
    d.causal = FA_CAUSAL_NONE;
    d.window = false;
    d.mask = (score_shape){.given = true, .batch = true, .queries = true, .keys = true};
    attention_call *b = call_new(&d);
    for (int64_t n = 0; n < c->batch; n++) {
        call_copy_sequence(b, n, a, n, 0);
        call_sequence s = call_sequence_of(a, n);
        for (int64_t i = 0; i < s.q_used; i++)
            for (int64_t j = s.pad; j < s.keys; j++)
                tensor_put_int(b->mask, call_score_number(b->mask, n, 0, i, j),
                               sees(c, s.q_used, s.keys - s.pad, i, j - s.pad));
    }
    judge_call(a);
    judge_call(b);
    outputs x = run_call(a, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO});
    outputs y = run_call(b, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO});
    assert_same_bits(a, &x, &y, "the rule written out as a mask");
    outputs_free(&x);
    outputs_free(&y);
    call_free(a);
    call_free(b);
}

static void set_window(attention_case *c, int64_t left, int64_t right) {
    c->window = true;
    c->window_left = left;
    c->window_right = right;
}

static void E1_four_spellings_of_causal_are_the_same_bits(void **state) {
    (void)state;
    for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_BFLOAT16; t++)
        for (int64_t s = 127; s <= 129; s++) {
            attention_case causal = case_default("E1"), window;
            causal.type = (fa_element)t;
            causal.batch = 1;
            causal.head_dim = causal.head_dim_v = 16;
            causal.seqlen_q = causal.seqlen_k = s;
            window = causal;
            causal.causal = FA_CAUSAL_BOTTOM_RIGHT;
            static const int64_t lefts[] = {0, -1, -2}; /* S, S - 1, and open */
            for (int i = 0; i < 3; i++) {
                set_window(&window, lefts[i] == -2 ? FA_WINDOW_OPEN : s + lefts[i], 0);
                expect_same_bits(&causal, &window, "a window that is causal");
            }
            set_window(&window, INT64_MAX, 0);
            expect_same_bits(&causal, &window, "a window as wide as an int64_t");
            attention_case top_left = causal; /* with equal lengths there is one diagonal */
            top_left.causal = FA_CAUSAL_TOP_LEFT;
            expect_same_bits(&causal, &top_left, "top-left with equal lengths");
        }
}

static void E3_open_left_and_zero_right_is_causal(void **state) {
    (void)state;
    for (int64_t seqlen_q = 1; seqlen_q <= 141; seqlen_q += 70) {
        attention_case causal = case_default("E3"), window;
        causal.seqlen_q = seqlen_q;
        window = causal;
        causal.causal = FA_CAUSAL_BOTTOM_RIGHT;
        set_window(&window, FA_WINDOW_OPEN, 0);
        expect_same_bits(&causal, &window, "window (-1, 0)");
        judge_against_explicit_mask(&window);
    }
    attention_case none = case_default("E3 open"), open = none;
    set_window(&open, FA_WINDOW_OPEN, FA_WINDOW_OPEN);
    expect_same_bits(&none, &open, "window (-1, -1)");
    set_window(&open, INT64_MAX, INT64_MAX);
    expect_same_bits(&none, &open, "the widest window");
}

/* The table of examples in the header, and its last row's meaning: "sliding window W" of model code is left =
 * W - 1. */
static void E4_windows_count_as_the_header_says(void **state) {
    (void)state;
    static const int64_t table[][4] = {{-1, -1, 0, 15}, {-1, 0, 0, 10}, {3, 0, 7, 10}, {0, 0, 10, 10}, {2, 1, 8, 11}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        attention_case c = revealing_case("E4", 16, 16);
        set_window(&c, table[i][0], table[i][1]);
        expect_interval(c, 10, table[i][2], table[i][3]);
    }
    attention_case sliding = case_default("E4 sliding");
    set_window(&sliding, 4 - 1, 0);
    judge_against_explicit_mask(&sliding);
}

static void E5_other_negative_bounds_are_refused(void **state) {
    (void)state;
    static const int64_t bounds[][2] = {{-2, 0}, {0, -2}, {INT64_MIN, 0}, {-1, -7}};
    attention_case c = case_default("E5");
    attention_call *a = call_new(&c);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        outputs o = {call_new_out(a, c.type), call_new_lse(a, FA_ELEMENT_FLOAT32)};
        fa_options options = a->options;
        options.set |= FA_SET_WINDOW;
        options.window_left = bounds[i][0];
        options.window_right = bounds[i][1];
        fa_status status = fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &options, &o.out->fa, &o.lse->fa);
        bool left = bounds[i][0] < -1;
        char value[32];
        (void)snprintf(value, sizeof value, "= %" PRId64 ":", bounds[i][left ? 0 : 1]);
        if (status != FA_INVALID_ARGUMENT || strstr(fa_last_error(), left ? "window_left" : "window_right") == NULL ||
            strstr(fa_last_error(), value) == NULL)
            call_fail(a, "%s: \"%s\"", fa_status_text(status), fa_last_error());
        assert_int_equal(tensor_first_poisoned(o.out), 0);
        assert_int_equal(tensor_first_poisoned(o.lse), 0);
        outputs_free(&o);
    }
    call_free(a);
}

static void E6_one_query_with_a_cache(void **state) {
    (void)state;
    attention_case c = revealing_case("E6", 1, 9);
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    expect_interval(c, 0, 0, 8);
    c.causal = FA_CAUSAL_TOP_LEFT;
    expect_interval(c, 0, 0, 0);
    /* Both alignments, with more and with fewer keys than queries. */
    for (int64_t seqlen_q = 5; seqlen_q <= 90; seqlen_q += 85)
        for (int causal = 1; causal <= 2; causal++) {
            attention_case d = case_default("E6 alignment");
            d.seqlen_q = seqlen_q;
            d.causal = (fa_causal)causal;
            judge_against_explicit_mask(&d);
            attention_case e = revealing_case("E6 alignment", seqlen_q, 70);
            e.causal = (fa_causal)causal;
            expect_rule(&e);
        }
}

static void E7_one_query_each_and_an_empty_sequence(void **state) {
    (void)state;
    static const int32_t ones[] = {1, 0, 1}, keys[] = {9, 4, 33};
    for (int causal = 0; causal <= 2; causal++) {
        attention_case c = case_default("E7");
        c.batch = 3;
        c.heads = 9;
        c.heads_kv = 3;
        c.seqlen_q = 1;
        c.seqlen_k = 33;
        c.varlen_q = c.varlen_k = c.state_maximum = true;
        c.lengths_q = ones;
        c.lengths_k = keys;
        c.causal = (fa_causal)causal;
        judge_case_all_types(c);
        c.lengths_k = ones; /* as self-attention */
        judge_case_all_types(c);
    }
}

static void E8_a_stated_maximum_below_a_length_is_refused(void **state) {
    (void)state;
    static const int32_t ten[] = {10, 3};
    attention_case c = case_default("E8");
    c.varlen_q = c.varlen_k = true;
    c.seqlen_q = c.seqlen_k = 10;
    c.lengths_q = c.lengths_k = ten;
    attention_call *a = call_new(&c);
    for (int which = 0; which < 2; which++) {
        outputs o = {call_new_out(a, c.type), call_new_lse(a, FA_ELEMENT_FLOAT32)};
        fa_options options = a->options;
        *(which == 0 ? &options.max_seqlen_q : &options.max_seqlen_k) = 8;
        fa_status status = fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &options, &o.out->fa, &o.lse->fa);
        if (status != FA_INVALID_ARGUMENT || strstr(fa_last_error(), "= 8") == NULL ||
            strstr(fa_last_error(), which == 0 ? "max_seqlen_q" : "max_seqlen_k") == NULL ||
            strstr(fa_last_error(), "10") == NULL)
            call_fail(a, "%s: \"%s\"", fa_status_text(status), fa_last_error());
        assert_int_equal(tensor_first_poisoned(o.out), 0);
        outputs_free(&o);
    }
    call_free(a);
    c.state_maximum = true; /* the right one changes nothing */
    judge_case(&c);
}

/* Every edge, by what is seen. 64 keys are a tile. */
static void E10_window_edges(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 63, 64, 65, 129}, bounds[] = {-1, 0, 1, 62, 63, 64, 65, 200};
    uint64_t index = 0;
    for (int q = 0; q < 6; q++)
        for (int k = 0; k < 6; k++)
            for (int left = 0; left < 8; left++)
                for (int right = 0; right < 8; right++) {
                    attention_case c = revealing_case("E10", lengths[q], lengths[k]);
                    c.index = index++;
                    /* All bounds where lengths are equal or one apart, else a share of them. */
                    if (q != k && q != k + 1 && c.index % 5 != 0) continue;
                    set_window(&c, bounds[left], bounds[right]);
                    c.causal = (fa_causal)(c.index % 3);
                    expect_rule(&c);
                }
}

/* A share of the edges by numbers, with everything that shifts positions. */
static void E10_window_edges_with_lengths_and_padding(void **state) {
    (void)state;
    static const int64_t bounds[] = {-1, 0, 1, 5, 63, 64, 65};
    for (uint64_t index = 0; index < 60; index++) {
        rng r = rng_named("E10 lengths", index);
        attention_case c = case_default("E10 lengths");
        int32_t used_q[2], used_k[2], pad[2];
        c.index = index;
        c.heads = 2;
        c.heads_kv = 1;
        c.head_dim = c.head_dim_v = 16;
        c.seqlen_q = rng_range(&r, 1, 140);
        c.seqlen_k = rng_range(&r, 1, 140);
        for (int n = 0; n < 2; n++) {
            used_q[n] = (int32_t)rng_range(&r, 0, c.seqlen_q);
            used_k[n] = (int32_t)rng_range(&r, 0, c.seqlen_k);
            pad[n] = (int32_t)rng_range(&r, 0, used_k[n]);
        }
        switch (index % 4) {
        case 1:
            c.varlen_q = c.varlen_k = true;
            c.lengths_q = used_q;
            c.lengths_k = used_k;
            break;
        case 2:
            c.page_size = 16;
            c.seqused_k = used_k;
            c.leftpad = true;
            c.leftpad_k = pad;
            break;
        case 3:
            c.used_q = c.used_k = c.leftpad = true;
            c.seqused_q = used_q;
            c.seqused_k = used_k;
            c.leftpad_k = pad;
            break;
        default: break;
        }
        c.causal = (fa_causal)rng_range(&r, 0, 2);
        set_window(&c, bounds[rng_range(&r, 0, 6)], bounds[rng_range(&r, 0, 6)]);
        judge_against_explicit_mask(&c);
    }
}

static void E11_windows_on_every_entry_point(void **state) {
    (void)state;
    static const int32_t lengths[] = {200, 256}, ones[] = {1, 1};
    for (int way = 0; way < 5; way++) {
        attention_case c = case_default("E11");
        c.index = (uint64_t)way;
        c.heads = c.heads_kv = 1;
        c.seqlen_q = c.seqlen_k = 256;
        set_window(&c, 16, 16);
        c.varlen_q = way == 1 || way == 4;
        c.varlen_k = way == 1;
        c.lengths_q = way == 4 ? ones : lengths;
        c.lengths_k = c.seqused_k = lengths;
        c.page_size = way == 2 || way == 4 ? 64 : 0;
        c.used_k = way == 3;
        if (way == 4) c.seqlen_q = 1; /* decode */
        judge_against_explicit_mask(&c);
    }
}

static void E12_a_bound_of_zero_is_a_value(void **state) {
    (void)state;
    attention_case c = revealing_case("E12", 70, 70);
    set_window(&c, 0, 0);
    expect_interval(c, 66, 66, 66);
    set_window(&c, 5, 0);
    expect_interval(c, 66, 61, 66);
    set_window(&c, 0, 5);
    expect_interval(c, 60, 60, 65);
    /* Without FA_SET_WINDOW zeros mean open. */
    c.window = false;
    expect_interval(c, 66, 0, 69);
    /* Causal and a window together: the narrower bound holds. */
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    set_window(&c, 5, 5);
    expect_interval(c, 60, 55, 60);
}

/* All that hides keys at once: positions, a boolean mask and a bias of -inf. */
static void E_masks_combine(void **state) {
    (void)state;
    for (uint64_t index = 0; index < 8; index++) {
        attention_case c = case_default("E combined");
        c.index = index;
        c.seqlen_q = 80;
        c.seqlen_k = 150;
        c.causal = (fa_causal)(1 + index % 2);
        set_window(&c, 50, FA_WINDOW_OPEN);
        c.mask = (score_shape){true, index & 1, index & 2, true, true};
        c.mask_hides = 0.5;
        c.bias = (score_shape){true, index & 4, !(index & 1), index & 2, true};
        c.bias_hides = 0.3;
        judge_case_all_types(c);
    }
}

RUN_TESTS(cmocka_unit_test(E1_four_spellings_of_causal_are_the_same_bits),
          cmocka_unit_test(E3_open_left_and_zero_right_is_causal),
          cmocka_unit_test(E4_windows_count_as_the_header_says), cmocka_unit_test(E5_other_negative_bounds_are_refused),
          cmocka_unit_test(E6_one_query_with_a_cache), cmocka_unit_test(E7_one_query_each_and_an_empty_sequence),
          cmocka_unit_test(E8_a_stated_maximum_below_a_length_is_refused), cmocka_unit_test(E10_window_edges),
          cmocka_unit_test(E10_window_edges_with_lengths_and_padding),
          cmocka_unit_test(E11_windows_on_every_entry_point), cmocka_unit_test(E12_a_bound_of_zero_is_a_value),
          cmocka_unit_test(E_masks_combine))
