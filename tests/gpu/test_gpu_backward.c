/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of GPU kernels in the emulator, on parts and with seeds drawn at random. */
#include "support/sweep.h"
#include "support/testing.h"

#include "flashattn.h"
#include "gpu_backward_cases.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const fa_element types[] = {FA_ELEMENT_FLOAT16, FA_ELEMENT_BFLOAT16};

static void every_width_and_dtype(void **test) {
    (void)test;
    static const int64_t widths[] = {8, 64, 80, 96, 128, 160, 192, 256};
    for (int k = 0; k < GPU_BACKWARD_KERNELS; k++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (int t = 0; t < 2; t++) {
                attention_case c = gpu_plain_case("widths", types[t], widths[w]);
                gpu_choose_machine("widths", (uint64_t)(w * 2 + (size_t)t), gpu_backward_kernels[k]);
                c.causal = w % 2 == 0 ? FA_CAUSAL_BOTTOM_RIGHT : FA_CAUSAL_NONE;
                gpu_judge_backward_case(&c, gpu_backward_kernels[k]);
            }
}

static void judge_index(uint64_t index) {
    fa_kernel kernel = gpu_backward_kernels[index % GPU_BACKWARD_KERNELS];
    attention_case c = gpu_random_backward_case("gpu backward sweep", index, kernel);
    gpu_choose_machine("gpu backward sweep", index, kernel);
    gpu_judge_backward_case(&c, kernel);
}

static void random_cases_keep_the_error_budget(void **test) {
    (void)test;
    sweep(300, 15, judge_index);
}

/* ---- public reports of what went wrong in such libraries, by their letter and number ---- */

static attention_case named_case(const char *name, uint64_t index) {
    attention_case c = gpu_plain_case(name, types[index % 2], 64);
    c.index = index;
    c.seqlen_q = 70;
    c.seqlen_k = 140; /* more than one key tile of every kernel */
    return c;
}

/* By v2 on any part, and by what Hopper takes for it: v3, but where TMA cannot read the tensors. */
static void judge_named(const attention_case *c) {
    gpu_choose_machine(c->name, c->index, FA_KERNEL_V2);
    gpu_judge_backward_case(c, FA_KERNEL_V2);
    gpu_choose_machine(c->name, c->index, FA_KERNEL_V3);
    gpu_judge_backward_case(c, FA_KERNEL_AUTO);
}

static void G2_structured_inputs_wide_heads_and_a_batch(void **test) {
    (void)test;
    static const input_kind kinds[] = {INPUT_OUTLIER_CHANNEL, INPUT_DOMINANT_KEY, INPUT_RISING, INPUT_NORMAL_3};
    for (uint64_t i = 0; i < 4; i++) {
        attention_case c = named_case("G2", i);
        c.batch = 2;
        c.heads = 4;
        c.heads_kv = 2;
        c.head_dim = c.head_dim_v = 256;
        c.seqlen_q = 40;
        c.seqlen_k = 75;
        c.inputs = kinds[i];
        judge_named(&c);
    }
}

static void G4_groups_of_any_size_and_unequal_head_dims(void **test) {
    (void)test;
    static const int64_t heads[][2] = {{2, 2}, {4, 2}, {6, 2}, {8, 2}, {7, 1}, {8, 1}, {16, 1}};
    for (uint64_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        attention_case c = named_case("G4", i);
        c.heads = heads[i][0];
        c.heads_kv = heads[i][1];
        c.head_dim_v = i % 2 == 0 ? 40 : 96;
        judge_named(&c);
    }
}

static void G6_softcap(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 4; i++) {
        attention_case c = named_case("G6", i);
        c.softcap = i < 2 ? 10 : 0.7f;
        c.inputs = INPUT_NORMAL_3;
        c.causal = i % 2 == 0 ? FA_CAUSAL_BOTTOM_RIGHT : FA_CAUSAL_NONE;
        judge_named(&c);
    }
}

static void G8_K12_K13_gradients_of_sink_bias_and_slopes(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 16; i++) {
        attention_case c = named_case("G8 K12 K13", i);
        c.batch = 2;
        c.seqlen_q = 20;
        c.sink = i % 2 == 0;
        c.alibi = i % 3 != 0;
        c.alibi_per_batch = i % 4 < 2;
        c.bias = (score_shape){true, (i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0};
        c.bias_type = (fa_element)(i % 3);
        c.causal = (fa_causal)(i % 3);
        judge_named(&c);
    }
}

static void G11_groups_causal_and_variable_length(void **test) {
    (void)test;
    static const int64_t heads[][2] = {{1, 1}, {4, 1}, {6, 2}, {9, 3}};
    for (uint64_t i = 0; i < 12; i++) {
        attention_case c = named_case("G11", i);
        c.batch = 3;
        c.heads = heads[i % 4][0];
        c.heads_kv = heads[i % 4][1];
        c.causal = (fa_causal)(i % 3);
        c.varlen_q = i >= 4;
        c.varlen_k = i >= 8 || i % 2 == 1;
        c.tail_q = c.tail_k = (int64_t)i % 5;
        judge_named(&c);
    }
}

static void L1_L3_strides_of_dout_are_its_own(void **test) {
    (void)test;
    for (int layout_dout = LAYOUT_COMPACT; layout_dout <= LAYOUT_REVERSED; layout_dout++)
        for (int wide = 0; wide < 2; wide++) {
            attention_case c = named_case("L1 L3", (uint64_t)(layout_dout * 2 + wide));
            c.layout_dout = (layout)layout_dout;
            c.layout_out = LAYOUT_PERMUTED;
            c.dout_float32 = wide == 1;
            judge_named(&c);
        }
    attention_case c = named_case("L1 L3", 100);
    c.layout_dout = LAYOUT_BROADCAST;
    judge_named(&c);
}

/* ---- queries that take no part ---- */

/* lse = -inf says so of a query that sees keys: then NaN in all that belongs to it must not be seen anywhere. */
static void queries_whose_lse_is_minus_infinity_contribute_nothing(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 8; i++) {
        attention_case c = named_case("idle", i);
        c.head_dim = c.head_dim_v = i < 4 ? 64 : 128;
        c.softcap = i % 4 >= 2 ? 20 : 0; /* the general variants too */
        c.dout_float32 = i % 4 == 1;
        backward_call *b = backward_call_new(&c);
        attention_call *a = b->a;
        a->options.deterministic = i % 2 == 0;
        for (int64_t row = 0; row < c.seqlen_q; row++) {
            if (row % 3 != 0 && row > 10) continue;
            for (int64_t h = 0; h < c.heads; h++) {
                tensor_put(b->lse, call_lse_number(a, b->lse, 0, h, row), -(double)INFINITY);
                for (int64_t j = 0; j < c.head_dim; j++) {
                    tensor_put(a->q, call_q_number(a, a->q, 0, h, row) + j, (double)NAN);
                    tensor_put(b->dout, call_q_number(a, b->dout, 0, h, row) + j, (double)NAN);
                    tensor_put(b->out, call_q_number(a, b->out, 0, h, row) + j, (double)INFINITY);
                }
            }
        }
        for (int k = 0; k < GPU_BACKWARD_KERNELS; k++) {
            gpu_choose_machine(c.name, c.index, gpu_backward_kernels[k]);
            gpu_judge_backward_call(b, gpu_backward_kernels[k]);
        }
        backward_call_free(b);
    }
}

/* Keys that bias or boolean mask hide from every query hold NaN, as all that is hidden does in these tests. */
static void keys_that_are_hidden_from_all_reach_nothing(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 6; i++) {
        attention_case c = named_case("hidden keys", i);
        score_shape per_key = {true, false, i % 3 == 1, false, true};
        if (i % 2 == 0) {
            c.mask = per_key;
            c.mask_hides = 0.5;
        } else {
            c.bias = per_key;
            c.bias_hides = 0.5;
        }
        c.causal = (fa_causal)(i % 3);
        judge_named(&c);
    }
}

/* No query takes part: not even NaN in all of k and v is seen then. */
static void without_a_query_that_takes_part_everything_is_zero(void **test) {
    (void)test;
    attention_case c = named_case("all idle", 0);
    c.sink = c.alibi = true;
    c.bias = (score_shape){true, false, true, true, true};
    for (int general = 0; general < 2; general++) {
        if (general == 0) {
            c.sink = c.alibi = false;
            c.bias.given = false;
        }
        backward_call *b = backward_call_new(&c);
        for (int64_t i = 0; i < tensor_count(b->lse); i++) tensor_put(b->lse, i, -(double)INFINITY);
        tensor *poisoned[] = {b->a->q, b->a->k, b->a->v, b->dout, b->out};
        for (int t = 0; t < 5; t++)
            for (int64_t i = 0; i < tensor_count(poisoned[t]); i++) tensor_put(poisoned[t], i, (double)NAN);
        for (int k = 0; k < GPU_BACKWARD_KERNELS; k++) {
            gpu_choose_machine(c.name, c.index, gpu_backward_kernels[k]);
            gradients g = gpu_run_backward(b, gpu_backward_kernels[k]);
            for (int i = 0; i < GRADIENTS; i++)
                for (int64_t n = 0; g.of[i] != NULL && n < tensor_count(g.of[i]); n++)
                    if (!(tensor_get(g.of[i], n) == 0))
                        call_fail(b->a, "%s[%" PRId64 "] = %g: must be 0", gradient_name((gradient)i), n,
                                  tensor_get(g.of[i], n));
            gradients_free(&g);
        }
        backward_call_free(b);
    }
}

/* A dimension of size zero: what is left of the gradients is written, and is zero. */
static void zero_sizes_give_zeros(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 6; i++) {
        attention_case c = named_case("zero", i);
        c.sink = true;
        c.alibi = i % 2 == 0;
        c.bias = (score_shape){true, false, true, false, false};
        if (i % 3 == 0) c.seqlen_q = 0;
        if (i % 3 == 1) c.seqlen_k = 0;
        if (i % 3 == 2) c.batch = 0;
        judge_named(&c);
    }
}

/* ---- the same bits ---- */

static void use_part(const char *part, int seed) {
    char specification[64];
    (void)snprintf(specification, sizeof specification, "emulated-%s:%d", part, seed);
    gpu_use_machine(specification);
}

static void another_order_of_threads(int run) {
    static const char *const parts[] = {"h100", "a100", "b200"};
    use_part(parts[run % 3], run + 1);
}

static void another_order_on_hopper(int run) { use_part(run % 2 == 0 ? "h100" : "h200", run + 1); }

/* For shapes of every kind, on several host threads, so that blocks do wait for each other. */
static void G5_G7_deterministic_means_the_same_bits(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 6; i++) {
        attention_case c = named_case("G5 G7", i);
        c.seqlen_q = 140;
        c.seqlen_k = i == 2 ? 140 : 270;
        c.head_dim = c.head_dim_v = i == 1 ? 128 : i == 2 ? 256 : i == 3 ? 96 : 64;
        c.causal = (fa_causal)(i % 3);
        c.window = i >= 4;
        c.window_left = 60;
        c.window_right = i == 4 ? 10 : -1;
        c.num_threads = 4;
        c.gradients_float32 = true; /* in 16 bits another order of sums would hardly show */
        c.varlen_q = c.varlen_k = i == 5;
        c.batch = i == 5 ? 3 : 1;
        c.alibi = i == 3;
        c.sink = i == 1;
        for (int k = 0; k < GPU_BACKWARD_KERNELS; k++)
            gpu_assert_backward_repeatable(&c, gpu_backward_kernels[k], 3,
                                           gpu_backward_kernels[k] == FA_KERNEL_V3 ? another_order_on_hopper
                                                                                   : another_order_of_threads);
    }
}

/* Each gradient alone is what it is among the others. */
static void gradients_that_are_not_wanted_are_left_out(void **test) {
    (void)test;
    attention_case c = named_case("alone", 0);
    c.sink = c.alibi = true;
    c.seqlen_q = 20;
    c.bias = (score_shape){true, false, true, false, true};
    backward_call *b = backward_call_new(&c);
    fa_options options = b->a->options;
    options.deterministic = 1;
    for (int k = 0; k < GPU_BACKWARD_KERNELS; k++) {
        b->a->options.deterministic = 1;
        gpu_choose_machine(c.name, c.index, gpu_backward_kernels[k]);
        gradients all = gpu_run_backward(b, gpu_backward_kernels[k]),
                  again = gpu_run_backward(b, gpu_backward_kernels[k]);
        options.kernel = gpu_backward_kernels[k];
        for (int i = 0; i < GRADIENTS; i++) {
            gradients one = {{NULL}};
            one.of[i] = again.of[i];
            for (int64_t n = 0; n < tensor_count(one.of[i]); n++) tensor_put(one.of[i], n, 12345);
            gpu_calls_begin();
            fa_status status = call_backward(b, &options, &one);
            gpu_calls_end();
            if (status != FA_OK) call_fail(b->a, "%s alone: %s", gradient_name((gradient)i), fa_last_error());
            assert_same_gradients(b, &all, &one, "alone");
        }
        gradients_free(&all);
        gradients_free(&again);
    }
    backward_call_free(b);
}

/* ---- what is planned, and what is refused ---- */

/* A small call whose tensors a test bends. */
typedef struct small_call {
    int64_t shape[4], lse_shape[3];
    fa_dtype dtype;
    void *dout, *dq;
    fa_options options;
    fa_plan_info info;
} small_call;

static small_call small_call_new(void) {
    small_call s = {.shape = {2, 10, 3, 64}, .dtype = FA_FLOAT16, .dout = (void *)0x40000};
    s.options = (fa_options){.size = sizeof s.options, .kernel = FA_KERNEL_V2};
    s.info.size = sizeof s.info;
    return s;
}

static fa_status plan(small_call *s) {
    fa_tensor like_q = {.device = {FA_DEVICE_CPU, 0}, .ndim = 4, .dtype = s->dtype, .shape = s->shape};
    fa_tensor lse = {.device = {FA_DEVICE_CPU, 0}, .ndim = 3, .dtype = FA_FLOAT32, .shape = s->lse_shape};
    fa_tensor dout = like_q, dq = like_q;
    s->lse_shape[0] = s->shape[0];
    s->lse_shape[1] = s->shape[2];
    s->lse_shape[2] = s->shape[1];
    dout.data = s->dout;
    dq.data = s->dq;
    return fa_plan_backward(&dout, &like_q, &like_q, &like_q, &like_q, &lse, &s->options, &dq, NULL, NULL, &s->info);
}

static void assert_refused(small_call *s, const char *text) {
    assert_int_equal(plan(s), FA_UNSUPPORTED);
    if (strstr(fa_last_error(), text) == NULL) fail_msg("\"%s\" is not in \"%s\"", text, fa_last_error());
}

static void plans_tell_what_would_run(void **test) {
    (void)test;
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-h100", 1), 0);
    small_call s = small_call_new();
    s.options.kernel = FA_KERNEL_AUTO;
    assert_int_equal(plan(&s), FA_OK);
    assert_int_equal(s.info.kernel, FA_KERNEL_V3);
    assert_string_equal(s.info.name, "v3_backward_f16_d64 on emulated-h100");
    assert_string_equal(s.info.note, "");
    assert_true(s.info.tile_rows >= 64 && s.info.tile_keys >= 64);
    /* Working memory is linear in the queries, and dout that cannot be read as it is costs a copy. */
    s.shape[1] = 4096;
    assert_int_equal(plan(&s), FA_OK);
    int64_t bytes = s.info.workspace_bytes;
    s.shape[1] = 8192;
    assert_int_equal(plan(&s), FA_OK);
    assert_true(s.info.workspace_bytes <= 2 * bytes);
    bytes = s.info.workspace_bytes;
    s.dout = (void *)0x40002;
    assert_int_equal(plan(&s), FA_OK);
    assert_int_equal(s.info.workspace_bytes - bytes, 2 * 8192 * 3 * 64 * 2);
    assert_string_equal(s.info.name, "v3_backward_f16_d64 on emulated-h100");
    s.shape[3] = 65;
    assert_int_equal(plan(&s), FA_OK);
    assert_string_equal(s.info.name, "v2_backward_f16_d96_general on emulated-h100");
    assert_string_equal(s.info.note,
                        "not v3: the row stride of q is 390 bytes: for TMA must be a multiple of 16 above 0 "
                        "and below 2^40");
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-a100", 1), 0);
    s = small_call_new();
    s.options.kernel = FA_KERNEL_AUTO;
    assert_int_equal(plan(&s), FA_OK);
    assert_string_equal(s.info.name, "v2_backward_f16_d64 on emulated-a100");
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-h100", 1), 0);
    s = small_call_new();
    s.options.softcap = 3;
    assert_int_equal(plan(&s), FA_OK);
    assert_string_equal(s.info.name, "v2_backward_f16_d64_general on emulated-h100");
    assert_int_equal(unsetenv("FLASHATTN_MACHINE"), 0);
}

static void what_cannot_be_done_is_refused(void **test) {
    (void)test;
    small_call s = small_call_new();
    assert_refused(&s, "FLASHATTN_MACHINE is not set");
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-a100", 1), 0);
    s.options.kernel = FA_KERNEL_V1;
    assert_refused(&s, "kernel = v1: has no backward pass on a GPU; v2 and v3 have");
    s.options.kernel = FA_KERNEL_STANDARD;
    assert_refused(&s, "kernel = standard: has no backward pass on a GPU; v2 and v3 have");
    s = small_call_new();
    s.dtype = (fa_dtype)FA_FLOAT32;
    assert_refused(&s, "q.dtype = float32: the v2 kernel takes float16 and bfloat16");
    s = small_call_new();
    s.options.num_splits = 2;
    assert_refused(&s, "num_splits = 2: the v2 kernel does not split keys");
    s = small_call_new();
    s.dout = (void *)0x40001;
    assert_refused(&s, "dout.data = 0x40001: on a GPU must be a multiple of the element size, 2");
    s = small_call_new();
    s.dq = (void *)0x80001;
    assert_refused(&s, "dq.data = 0x80001: on a GPU must be a multiple of the element size, 2");
    s = small_call_new();
    s.shape[1] = ((int64_t)1 << 29) + 1;
    assert_refused(&s, "seqlen_q = 536870913: on a GPU at most 536870912");
    s = small_call_new();
    s.shape[0] = s.shape[1] = 1 << 20;
    s.shape[2] = 8;
    assert_refused(&s, "more than 2^31 - 1 query tiles");
    assert_int_equal(unsetenv("FLASHATTN_MACHINE"), 0);
}

RUN_TESTS(cmocka_unit_test(plans_tell_what_would_run), cmocka_unit_test(what_cannot_be_done_is_refused),
          cmocka_unit_test(every_width_and_dtype), cmocka_unit_test(G2_structured_inputs_wide_heads_and_a_batch),
          cmocka_unit_test(G4_groups_of_any_size_and_unequal_head_dims), cmocka_unit_test(G6_softcap),
          cmocka_unit_test(G8_K12_K13_gradients_of_sink_bias_and_slopes),
          cmocka_unit_test(G11_groups_causal_and_variable_length), cmocka_unit_test(L1_L3_strides_of_dout_are_its_own),
          cmocka_unit_test(queries_whose_lse_is_minus_infinity_contribute_nothing),
          cmocka_unit_test(keys_that_are_hidden_from_all_reach_nothing),
          cmocka_unit_test(without_a_query_that_takes_part_everything_is_zero), cmocka_unit_test(zero_sizes_give_zeros),
          cmocka_unit_test(G5_G7_deterministic_means_the_same_bits),
          cmocka_unit_test(gradients_that_are_not_wanted_are_left_out),
          cmocka_unit_test(random_cases_keep_the_error_budget))
