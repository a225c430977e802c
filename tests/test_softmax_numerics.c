/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax far from zero, NaN and infinity in both directions, and whether the judge itself can say no. */
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void B1_logits_below_any_stand_in_for_minus_infinity(void **state) {
    (void)state;
    attention_case c = case_default("B1");
    c.head_dim = c.head_dim_v = 128;
    c.inputs = INPUT_NEGATIVE_245000;
    judge_case_all_types(c);
    c.set_scale = true;
    c.softmax_scale = 1;
    c.type = FA_ELEMENT_FLOAT32;
    judge_case(&c);
    attention_call *a = call_new(&c);
    outputs o = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    for (int64_t i = 0; i < tensor_count(o.lse); i++) {
        double lse = tensor_get(o.lse, i);
        if (!(lse < -200000 && lse > -300000)) call_fail(a, "lse[%" PRId64 "] = %g", i, lse);
    }
    outputs_free(&o);
    call_free(a);
}

/* The running maximum must not fall back to 0 after a tile that shows nothing. */
static void B2_negative_logits_behind_a_masked_first_tile(void **state) {
    (void)state;
    attention_case c = case_default("B2");
    c.batch = 1;
    c.heads = 7;
    c.heads_kv = 1;
    c.seqlen_q = 88;
    c.seqlen_k = 448;
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    c.inputs = INPUT_NEGATIVE_250;
    c.set_scale = true;
    c.softmax_scale = 0.8f; /* logits of about -200 */
    judge_case_all_types(c);
    c.mask = (score_shape){.given = true, .queries = true, .keys = true};
    for (int64_t hidden = 63; hidden <= 129; hidden += 33)
        for (int from_end = 0; from_end < 2; from_end++) {
            c.index = (uint64_t)(hidden * 2 + from_end);
            attention_call *a = call_new(&c);
            for (int64_t i = 0; i < c.seqlen_q; i++)
                for (int64_t j = 0; j < hidden; j++) {
                    int64_t key = from_end ? c.seqlen_k - 1 - j : j;
                    tensor_put_int(a->mask, i * c.seqlen_k + key, 0);
                }
            judge_call(a);
            call_free(a);
        }
}

static void B4_one_query_with_a_very_negative_lse(void **state) {
    (void)state;
    attention_case c = case_default("B4");
    c.seqlen_q = 1;
    c.seqlen_k = 128;
    c.inputs = INPUT_NEGATIVE_120;
    c.set_scale = true;
    c.softmax_scale = 1;
    judge_case_all_types(c);
}

/* Runs the call twice, before and after `change`, and compares bits. */
static void assert_unaffected(attention_call *a, void (*change)(attention_call *a), const char *what) {
    int count;
    const contender *all = contenders(&count);
    outputs before[CONTENDERS];
    for (int w = 0; w < count; w++) before[w] = run_call(a, all[w]);
    change(a);
    for (int w = 0; w < count; w++) {
        outputs after = run_call(a, all[w]);
        assert_same_bits(a, &before[w], &after, what);
        outputs_free(&after);
        outputs_free(&before[w]);
    }
}

static void poison_unused_slots(attention_call *a) {
    a->c.no_poison = false;
    call_poison_hidden(a);
}

static void B5_cache_slots_past_the_used_length_may_hold_anything(void **state) {
    (void)state;
    static const int32_t used[] = {32, 64, 96, 48};
    for (int paged = 0; paged < 2; paged++)
        for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_BFLOAT16; t++) {
            attention_case c = case_default("B5");
            c.index = (uint64_t)paged;
            c.type = (fa_element)t;
            c.batch = 4;
            c.seqlen_q = 3;
            c.seqlen_k = 128;
            c.used_k = true;
            c.seqused_k = used;
            c.page_size = paged ? 32 : 0;
            c.no_poison = true;
            attention_call *a = call_new(&c);
            assert_unaffected(a, poison_unused_slots, "NaN beyond the used lengths");
            judge_call(a);
            call_free(a);
        }
}

static void make_unreadable(void *pages, size_t bytes) {
    if (bytes > 0) assert_int_equal(mprotect(pages, bytes, PROT_NONE), 0); /* of 0 bytes qemu makes an error */
}

/* Here the pages of the padding and of what lies behind the used length cannot be read at all. */
static void B5_padding_and_unused_slots_are_never_touched(void **state) {
    (void)state;
    enum { ROW_BYTES = 1024, SLOTS = 128 }; /* whole pages together, of up to 128 KiB */
    static const int32_t used[][1] = {{SLOTS}, {60}}, padding[][1] = {{64 + 21}, {0}};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int count;
    const contender *all = contenders(&count);
    for (int n = 0; n < 2; n++) {
        attention_case c = case_default("B5 pages");
        c.batch = c.heads = c.heads_kv = 1;
        c.seqlen_k = SLOTS;
        c.head_dim = c.head_dim_v = ROW_BYTES / 4;
        c.used_k = c.leftpad = true;
        c.seqused_k = used[n];
        c.leftpad_k = padding[n];
        attention_call *a = call_new(&c);
        outputs o = run_call(a, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO});
        size_t before = (size_t)padding[n][0] * ROW_BYTES / page * page;
        size_t after = ((size_t)used[n][0] * ROW_BYTES + page - 1) / page * page;
        tensor *inputs[] = {a->k, a->v}; /* compact ones end with a page, so these begin with one */
        for (int i = 0; i < 2; i++) {
            make_unreadable(inputs[i]->origin, before);
            make_unreadable(inputs[i]->origin + after, SLOTS * ROW_BYTES - after);
        }
        for (int w = -2; w < count; w++) {
            fa_options options = a->options;
            options.kernel = w == -2 ? FA_KERNEL_REFERENCE : w == -1 ? FA_KERNEL_STANDARD : FA_KERNEL_CPU;
            if (w >= 0) options.isa = all[w].isa;
            fa_status status = fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &options, &o.out->fa, &o.lse->fa);
            if (status != FA_OK) call_fail(a, "%s", fa_last_error());
        }
        outputs_free(&o);
        call_free(a);
    }
}

static void put_row(attention_call *a, tensor *t, int64_t first, double x) {
    int64_t width = t->shape[t->fa.ndim - 1];
    (void)a;
    for (int64_t i = 0; i < width; i++) tensor_put(t, first + i, x);
}

static void poison_key_3(attention_call *a) {
    static const double poisons[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (int64_t n = 0; n < a->c.batch; n++)
        for (int64_t h = 0; h < a->c.heads_kv; h++) {
            put_row(a, a->k, call_k_number(a, a->k, n, h, 3), poisons[n % 3]);
            put_row(a, a->v, call_k_number(a, a->v, n, h, 3), poisons[(n + h) % 3]);
        }
}

static void B6_nan_in_a_masked_key_stays_there(void **state) {
    (void)state;
    for (int way = 0; way < 3; way++) {
        attention_case c = case_default("B6");
        c.index = (uint64_t)way;
        c.batch = 3;
        c.mask.given = way == 0; /* a boolean mask */
        c.bias.given = way == 1; /* a bias of -inf */
        c.mask.keys = c.bias.keys = true;
        if (way == 2) { /* query i sees keys i + 5 .. i + 37 */
            c.window = true;
            c.window_left = 32;
        }
        attention_call *a = call_new(&c);
        if (way == 0) tensor_put_int(a->mask, 3, 0);
        if (way == 1) tensor_put(a->bias, 3, -(double)INFINITY);
        poison_key_3(a);
        judge_call(a);
        call_free(a);
    }
}

static void B7_nan_in_a_query_reaches_its_row_alone(void **state) {
    (void)state;
    for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_BFLOAT16; t++) {
        attention_case c = case_default("B7");
        c.type = (fa_element)t;
        attention_call *a = call_new(&c);
        int count;
        const contender *all = contenders(&count);
        outputs before[CONTENDERS];
        for (int w = 0; w < count; w++) before[w] = run_call(a, all[w]);
        tensor_put(a->q, call_q_number(a, a->q, 0, 1, 2) + 7, (double)NAN);
        for (int w = 0; w < count; w++) {
            outputs after = run_call(a, all[w]);
            int64_t row = call_q_number(a, after.out, 0, 1, 2);
            for (int64_t i = 0; i < tensor_count(after.out); i++) {
                double x = tensor_get(after.out, i), y = tensor_get(before[w].out, i);
                bool own = i >= row && i < row + c.head_dim_v;
                if (own != isnan(x) || (!own && x != y)) call_fail(a, "out[%" PRId64 "] = %g, was %g", i, x, y);
            }
            for (int64_t i = 0; i < tensor_count(after.lse); i++) {
                bool own = i == call_lse_number(a, after.lse, 0, 1, 2);
                if (own != isnan(tensor_get(after.lse, i))) call_fail(a, "lse[%" PRId64 "] is wrong", i);
            }
            outputs_free(&before[w]);
            outputs_free(&after);
        }
        judge_call(a);
        call_free(a);
    }
}

/* NaN and infinity that are visible do reach the output, of exactly the queries that see them: the reference
 * says where. */
static void B7_nan_and_infinity_in_visible_inputs_show(void **state) {
    (void)state;
    static const double poisons[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (int place = 0; place < 5; place++)
        for (int kind = 0; kind < 3; kind++)
            for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_BFLOAT16; t++) {
                attention_case c = case_default("B7 visible");
                c.index = (uint64_t)(place * 3 + kind);
                c.type = (fa_element)t;
                c.causal = FA_CAUSAL_BOTTOM_RIGHT; /* key 50 is seen from row 13 on */
                c.bias = (score_shape){.given = place == 4, .queries = true, .keys = true};
                c.num_splits = kind;
                attention_call *a = call_new(&c);
                double x = poisons[kind];
                if (place == 0) tensor_put(a->k, call_k_number(a, a->k, 0, 1, 50) + 3, x);
                if (place == 1) tensor_put(a->v, call_k_number(a, a->v, 0, 1, 50) + 3, x);
                if (place == 2) put_row(a, a->k, call_k_number(a, a->k, 1, 0, 69), x); /* the last row's alone */
                if (place == 3) put_row(a, a->q, call_q_number(a, a->q, 1, 0, 9), x);
                if (place == 4) tensor_put(a->bias, 20 * c.seqlen_k + 50, x);
                judge_call(a);
                call_free(a);
            }
}

/* A row whose only visible scores are NaN, with hidden keys before and behind them. */
static void B7_row_of_nan_scores_is_nan(void **state) {
    (void)state;
    for (int64_t visible = 1; visible < 66; visible += 64) { /* which key */
        attention_case c = case_default("B7 row");
        c.index = (uint64_t)visible;
        c.mask = (score_shape){.given = true, .queries = true, .keys = true};
        attention_call *a = call_new(&c);
        for (int64_t j = 0; j < c.seqlen_k; j++) tensor_put_int(a->mask, 4 * c.seqlen_k + j, j == visible);
        put_row(a, a->q, call_q_number(a, a->q, 0, 0, 4), (double)NAN);
        judge_call(a);
        outputs o = run_call(a, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO});
        assert_true(isnan(tensor_get(o.lse, call_lse_number(a, o.lse, 0, 0, 4))));
        assert_true(isnan(tensor_get(o.out, call_q_number(a, o.out, 0, 0, 4))));
        outputs_free(&o);
        call_free(a);
    }
}

static void B8_scale_of_zero_negative_and_tiny(void **state) {
    (void)state;
    static const float scales[] = {0, -1, 1e-30f, -0.25f};
    for (int i = 0; i < 4; i++)
        for (int causal = 0; causal <= 2; causal++) {
            attention_case c = case_default("B8");
            c.index = (uint64_t)(i * 3 + causal);
            c.set_scale = true;
            c.softmax_scale = scales[i];
            c.causal = (fa_causal)causal;
            judge_case_all_types(c);
        }
    /* 0: the mean over the visible keys. */
    attention_case c = case_default("B8 mean");
    c.set_scale = true;
    c.values = VALUES_ONE_HOT;
    c.head_dim_v = 70;
    attention_call *a = call_new(&c);
    outputs o = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    for (int64_t i = 0; i < tensor_count(o.out); i++)
        if (!(fabs(tensor_get(o.out, i) * 70 - 1) < 1e-6)) call_fail(a, "out[%" PRId64 "] is not 1/70", i);
    outputs_free(&o);
    call_free(a);
}

/* ---- B9: what must make a test fail ---- */

static void expect_fault(const yardstick *y, const outputs *o, const char *text) {
    const char *wrong = fault_in_outputs(y, o);
    if (wrong == NULL || strstr(wrong, text) == NULL)
        fail_msg("expected \"...%s...\", got %s", text, wrong == NULL ? "no fault" : wrong);
}

static void B9_the_judge_rejects_wrong_answers(void **state) {
    (void)state;
    attention_case c = case_default("B9");
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    c.seqlen_q = 80; /* the first 10 rows are empty */
    c.layout_lse = LAYOUT_PADDED;
    attention_call *a = call_new(&c);
    yardstick *y = yardstick_new(a);
    outputs o = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    assert_null(fault_in_outputs(y, &o));

    int64_t full = call_q_number(a, o.out, 1, 2, 40), empty = call_q_number(a, o.out, 1, 2, 3);
    int64_t full_lse = call_lse_number(a, o.lse, 1, 2, 40), empty_lse = call_lse_number(a, o.lse, 1, 2, 3);
    const struct {
        tensor *t;
        int64_t number;
        double wrong;
        const char *fault;
    } tampers[] = {{o.out, full, (double)NAN, "the reference has"},
                   {o.out, full, (double)INFINITY, "the reference has"},
                   {o.out, full, tensor_get(o.out, full) + 1e-5, "standard kernel's"},
                   {o.out, empty, 1e-30, "must be exactly 0"},
                   {o.out, empty, (double)NAN, "the reference has"},
                   {o.lse, full_lse, (double)NAN, "the reference has"},
                   {o.lse, full_lse, tensor_get(o.lse, full_lse) + 5e-5, "standard kernel's"},
                   {o.lse, full_lse, -(double)INFINITY, "the reference has"},
                   {o.lse, empty_lse, (double)INFINITY, "the reference has"},
                   {o.lse, empty_lse, -1e30, "the reference has"}};
    for (size_t i = 0; i < sizeof tampers / sizeof tampers[0]; i++) {
        double right = tensor_get(tampers[i].t, tampers[i].number);
        tensor_put(tampers[i].t, tampers[i].number, tampers[i].wrong);
        expect_fault(y, &o, tampers[i].fault);
        tensor_put(tampers[i].t, tampers[i].number, right);
        assert_null(fault_in_outputs(y, &o));
    }
    /* An error of 20 to 40 ulp in all elements shows in the Frobenius norm at the latest. */
    for (int64_t i = 0; i < tensor_count(o.out); i++) tensor_put(o.out, i, tensor_get(o.out, i) * (1 + 40 * 0x1p-24));
    expect_fault(y, &o, "standard kernel's");
    tensor_poison(o.out);
    expect_fault(y, &o, "was not written");
    tensor_poison(o.lse);
    for (int64_t i = 0; i < tensor_count(o.out); i++) tensor_put(o.out, i, 0);
    expect_fault(y, &o, "lse: element 0 was not written");
    o.out->pages[0] = 0; /* a compact layout ends with its pages */
    expect_fault(y, &o, "outside the elements of out");
    outputs_free(&o);
    yardstick_free(y);
    call_free(a);
}

/* ---- All generators ---- */

static void B_every_kind_of_input_and_value(void **state) {
    (void)state;
    for (int inputs = 0; inputs < INPUT_KINDS; inputs++)
        for (int values = 0; values < VALUE_KINDS; values++) {
            attention_case c = case_default("B inputs");
            c.index = (uint64_t)(inputs * VALUE_KINDS + values);
            c.batch = 1;
            c.heads = 2;
            c.heads_kv = 1;
            c.seqlen_q = 17;
            c.seqlen_k = 150;
            c.head_dim = 48;
            c.head_dim_v = 36;
            c.causal = values % 2 == 0 ? FA_CAUSAL_BOTTOM_RIGHT : FA_CAUSAL_NONE;
            c.inputs = (input_kind)inputs;
            c.values = (value_kind)values;
            judge_case_all_types(c);
        }
}

/* An average of values is no larger than they are, so it never overflows: with few rows and many, few keys and many, parts,
 * and rows that would and would not overflow side by side. */
static void B_values_up_to_the_largest_number(void **state) {
    (void)state;
    static const int64_t lengths[][2] = {{1, 2}, {1, 700}, {20, 3}, {40, 300}, {150, 150}};
    for (uint64_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int32_t splits = 0; splits <= 3; splits += 3) {
            attention_case c = case_default("B largest");
            c.index = 2 * i + (splits > 0);
            c.batch = 1;
            c.heads = 3;
            c.heads_kv = 3;
            c.seqlen_q = lengths[i][0];
            c.seqlen_k = lengths[i][1];
            c.causal = FA_CAUSAL_BOTTOM_RIGHT;
            c.sink = splits > 0;
            c.num_splits = splits;
            c.values = VALUES_LARGEST;
            judge_case_all_types(c);
        }
}

/* Rows that overflow beside rows that do not, whichever head or query they belong to: some heads have ordinary values. */
static void B_values_of_all_sizes_side_by_side(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        attention_case c = case_default("B mixed");
        c.index = i;
        c.batch = 1;
        c.heads = c.heads_kv = 4;
        c.seqlen_q = i < 2 ? 2 : 30;
        c.seqlen_k = 200;
        c.values = VALUES_LARGEST;
        attention_call *a = call_new(&c);
        for (int64_t head = i % 2 == 0 ? 0 : 2; head < c.heads_kv; head += 3)
            for (int64_t key = 0; key < c.seqlen_k; key++)
                for (int64_t n = call_k_number(a, a->v, 0, head, key), e = 0; e < c.head_dim_v; e++)
                    tensor_put(a->v, n + e, rng_normal(&a->random));
        judge_call(a);
        call_free(a);
    }
}

/* Weights sum to 1: equal rows of V come out as they went in, within the roundings of l and of the quotient. */
static void B_constant_values_come_back(void **state) {
    (void)state;
    int count;
    const contender *all = contenders(&count);
    for (int inputs = 0; inputs < INPUT_KINDS; inputs++) {
        attention_case c = case_default("B constant");
        c.index = (uint64_t)inputs;
        c.seqlen_k = 300;
        c.inputs = (input_kind)inputs;
        c.values = VALUES_CONSTANT;
        attention_call *a = call_new(&c);
        for (int w = 0; w < count; w++) {
            outputs o = run_call(a, all[w]);
            for (int64_t i = 0; i < tensor_count(o.out); i++) {
                double x = tensor_get(o.out, i), v = tensor_get(a->v, i % c.head_dim_v);
                if (!(fabs(x - v) <= 32 * 0x1p-24 * fabs(v)))
                    call_fail(a, "out[%" PRId64 "] = %.9g, not %.9g", i, x, v);
            }
            outputs_free(&o);
        }
        call_free(a);
    }
}

RUN_TESTS(cmocka_unit_test(B1_logits_below_any_stand_in_for_minus_infinity),
          cmocka_unit_test(B2_negative_logits_behind_a_masked_first_tile),
          cmocka_unit_test(B4_one_query_with_a_very_negative_lse),
          cmocka_unit_test(B5_cache_slots_past_the_used_length_may_hold_anything),
          cmocka_unit_test(B5_padding_and_unused_slots_are_never_touched),
          cmocka_unit_test(B6_nan_in_a_masked_key_stays_there),
          cmocka_unit_test(B7_nan_in_a_query_reaches_its_row_alone),
          cmocka_unit_test(B7_nan_and_infinity_in_visible_inputs_show), cmocka_unit_test(B7_row_of_nan_scores_is_nan),
          cmocka_unit_test(B8_scale_of_zero_negative_and_tiny), cmocka_unit_test(B9_the_judge_rejects_wrong_answers),
          cmocka_unit_test(B_every_kind_of_input_and_value), cmocka_unit_test(B_values_up_to_the_largest_number),
          cmocka_unit_test(B_values_of_all_sizes_side_by_side), cmocka_unit_test(B_constant_values_come_back))
