/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of GPU kernels in the emulator, on parts and with seeds drawn at random. */
#include "support/sweep.h"
#include "support/testing.h"

#include "flashattn.h"
#include "gpu_backward_cases.h"
#include "gpu_named_cases.h"

#include <inttypes.h>
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
        attention_case c = gpu_named_case("G5 G7", i);
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
    attention_case c = gpu_named_case("alone", 0);
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
          cmocka_unit_test(every_width_and_dtype), GPU_NAMED_BACKWARD_CASES,
          cmocka_unit_test(G5_G7_deterministic_means_the_same_bits),
          cmocka_unit_test(gradients_that_are_not_wanted_are_left_out),
          cmocka_unit_test(random_cases_keep_the_error_budget))
