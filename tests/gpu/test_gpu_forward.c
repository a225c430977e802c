/* SPDX-License-Identifier: Apache-2.0 */
/* GPU kernels in the emulator, on parts and with seeds drawn at random. */
#include "support/judge.h"
#include "support/sweep.h"
#include "support/testing.h"

#include "flashattn.h"
#include "gpu_cases.h"
#include "gpu_named_cases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const fa_element types[] = {FA_ELEMENT_FLOAT16, FA_ELEMENT_BFLOAT16};

static void every_width_and_dtype(void **test) {
    (void)test;
    static const int64_t widths[] = {8, 64, 80, 96, 128, 160, 192, 256};
    for (int k = 0; k < GPU_KERNELS; k++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (int t = 0; t < 2; t++) {
                attention_case c = gpu_plain_case("widths", types[t], widths[w]);
                gpu_choose_machine("widths", (uint64_t)(w * 2 + (size_t)t), gpu_kernels[k]);
                c.causal = w % 2 == 0 ? FA_CAUSAL_BOTTOM_RIGHT : FA_CAUSAL_NONE;
                gpu_judge_case(&c, gpu_kernels[k]);
            }
}

static void judge_index(uint64_t index) {
    fa_kernel kernel = gpu_kernels[index % GPU_KERNELS];
    attention_case c = gpu_random_case("gpu sweep", index, kernel);
    gpu_choose_machine("gpu sweep", index, kernel);
    gpu_judge_case(&c, kernel);
}

/*
 * Two keys per row and large scores: where a score is rounded the other way here and there, the error of a row is several
 * times as large.
 */
static void the_standard_kernel_is_judged_by_its_own_roundings(void **test) {
    (void)test;
    for (int t = 0; t < 2; t++) {
        attention_case c = gpu_plain_case("own roundings", types[t], 53);
        c.seqlen_k = 2;
        c.inputs = INPUT_NORMAL_3;
        gpu_choose_machine("own roundings", (uint64_t)t, FA_KERNEL_STANDARD);
        gpu_judge_case(&c, FA_KERNEL_STANDARD);

        attention_call *a = call_new(&c);
        yardstick *y = yardstick_new(a);
        yardstick_to_own_roundings(a, y);
        outputs o = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
        assert_null(fault_in_outputs(y, &o));
        double ulps = t == 0 ? 16 * 0x1p-10 : 16 * 0x1p-7;
        for (int64_t i = 0; i < tensor_count(o.out); i++) tensor_put(o.out, i, tensor_get(o.out, i) * (1 + ulps));
        assert_non_null(fault_in_outputs(y, &o));
        outputs_free(&o);
        yardstick_free(y);
        call_free(a);
    }
}

static void random_cases_keep_the_error_budget(void **test) {
    (void)test;
    sweep(200, 20, judge_index);
}

/* More query tiles than multiprocessors: v3's blocks take several each, in the order of work of either schedule. */
static void persistent_blocks_take_many_tiles(void **test) {
    (void)test;
    for (int causal = FA_CAUSAL_NONE; causal <= FA_CAUSAL_TOP_LEFT; causal++) {
        attention_case c = gpu_plain_case("many tiles", types[causal % 2], 64);
        c.batch = 6;
        c.heads = 24;
        c.heads_kv = 8;
        c.seqlen_q = 20;
        c.seqlen_k = 300;
        c.causal = (fa_causal)causal;
        c.softcap = causal == FA_CAUSAL_TOP_LEFT ? 5 : 0;
        gpu_choose_machine("many tiles", (uint64_t)causal, FA_KERNEL_V3);
        gpu_judge_case(&c, FA_KERNEL_V3);
    }
}

/* Where shared memory is short, the weights of v2's wide heads take the place of K tiles. */
static void wide_heads_fit_small_shared_memory(void **test) {
    (void)test;
    static const int64_t widths[] = {160, 256};
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (int t = 0; t < 4; t++) {
            attention_case c = gpu_plain_case("small", types[t % 2], widths[w]);
            c.causal = t % 2 == 0 ? FA_CAUSAL_BOTTOM_RIGHT : FA_CAUSAL_NONE;
            c.softcap = t < 2 ? 0 : 5;
            if (t == 3) c.mask = (score_shape){.given = true, .queries = true, .keys = true};
            if (t == 3) c.mask_hides = 0.3;
            gpu_use_machine("emulated-rtx3090");
            gpu_judge_case(&c, FA_KERNEL_V2);
        }
}

static void answers_do_not_depend_on_order(void **test) {
    (void)test;
    attention_case c = gpu_plain_case("order", FA_ELEMENT_BFLOAT16, 64);
    gpu_use_machine("emulated-h100");
    for (int k = 0; k < GPU_KERNELS; k++) gpu_assert_repeatable(&c, gpu_kernels[k], 2);
}

/* ---- what is planned, and what is refused ---- */

/* A small call whose tensors a test bends. */
typedef struct small_call {
    int64_t shape[4], lse_shape[3];
    int32_t lengths[2];
    int64_t lengths_shape[1], table_shape[2];
    fa_tensor q, k, v, out, lengths_tensor, table;
    fa_options options;
    fa_plan_info info;
} small_call;

static small_call small_call_new(void) {
    small_call s = {.shape = {2, 10, 3, 64}};
    s.q.dtype = (fa_dtype)FA_FLOAT16;
    s.options = (fa_options){.size = sizeof s.options, .kernel = FA_KERNEL_V2};
    s.info.size = sizeof s.info;
    return s;
}

static fa_status plan(small_call *s) {
    fa_dtype dtype = s->q.dtype;
    s->q = (fa_tensor){.device = {FA_DEVICE_CPU, 0}, .ndim = 4, .dtype = dtype, .shape = s->shape, .data = s->q.data};
    s->k = s->v = s->out = s->q;
    s->out.data = NULL; /* or it would overlap an input */
    return fa_plan(&s->q, &s->k, &s->v, &s->options, &s->out, NULL, &s->info);
}

static void assert_refused(small_call *s, fa_status status, const char *text) {
    assert_int_equal(plan(s), status);
    if (strstr(fa_last_error(), text) == NULL) fail_msg("\"%s\" is not in \"%s\"", text, fa_last_error());
}

static void plans_tell_what_would_run(void **test) {
    (void)test;
    small_call s = small_call_new();
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-h100", 1), 0);
    assert_int_equal(plan(&s), FA_OK);
    assert_int_equal(s.info.kernel, FA_KERNEL_V2);
    assert_string_equal(s.info.name, "v2_forward_f16_d64 on emulated-h100");
    assert_int_equal(s.info.workspace_bytes, 0);
    assert_int_equal(s.info.num_splits, 1);
    assert_true(s.info.tile_rows >= 64 && s.info.tile_keys >= 32);
    s.options.softcap = 20;
    s.options.kernel = FA_KERNEL_AUTO;
    assert_int_equal(plan(&s), FA_OK);
    assert_string_equal(s.info.name, "v3_forward_f16_d64_general on emulated-h100");
    assert_string_equal(s.info.note, "");
    s.shape[3] = 65;
    assert_int_equal(plan(&s), FA_OK);
    assert_string_equal(s.info.name, "v2_forward_f16_d96_general on emulated-h100");
    assert_string_equal(s.info.note,
                        "not v3: the row stride of q is 390 bytes: for TMA must be a multiple of 16 above 0 "
                        "and below 2^40");
    s = small_call_new();
    s.q.data = (void *)4098; /* aligned to its elements, not to 16 bytes */
    assert_int_equal(plan(&s), FA_OK);
    assert_string_equal(s.info.name, "v2_forward_f16_d64_general on emulated-h100");
    s.options.kernel = FA_KERNEL_CPU;
    assert_int_equal(plan(&s), FA_OK);
    assert_int_equal(s.info.kernel, FA_KERNEL_CPU);

    s = small_call_new();
    s.options.kernel = FA_KERNEL_V3;
    assert_int_equal(plan(&s), FA_OK);
    assert_string_equal(s.info.name, "v3_forward_f16_d64 on emulated-h100");
    assert_int_equal(s.info.workspace_bytes, 0);
    s.options.causal = FA_CAUSAL_BOTTOM_RIGHT; /* tiles differ: a counter hands them out */
    assert_int_equal(plan(&s), FA_OK);
    assert_int_equal(s.info.workspace_bytes, 16);
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-a100", 1), 0);
    s.options.kernel = FA_KERNEL_AUTO;
    assert_int_equal(plan(&s), FA_OK);
    assert_int_equal(s.info.kernel, FA_KERNEL_V2);
    assert_string_equal(s.info.note, "");
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-h100", 1), 0);

    s = small_call_new();
    s.options.kernel = FA_KERNEL_V1; /* O, m and l of each row */
    assert_int_equal(plan(&s), FA_OK);
    assert_string_equal(s.info.name, "v1_forward_f16_d64 on emulated-h100");
    assert_int_equal(s.info.workspace_bytes, 2 * 10 * 3 * (64 + 2) * 4);
    s.options.kernel = FA_KERNEL_STANDARD; /* the matrix of all scores, in whole tiles of keys */
    assert_int_equal(plan(&s), FA_OK);
    assert_string_equal(s.info.name, "standard_forward_f16_d64 on emulated-h100");
    assert_int_equal(s.info.workspace_bytes, 2 * 10 * 3 * s.info.tile_keys * 2);
}

static void what_cannot_be_done_is_refused(void **test) {
    (void)test;
    small_call s = small_call_new();
    assert_int_equal(unsetenv("FLASHATTN_MACHINE"), 0);
    assert_refused(&s, FA_UNSUPPORTED, "FLASHATTN_MACHINE is not set");
    s.options.kernel = FA_KERNEL_AUTO;
    assert_int_equal(plan(&s), FA_OK);
    assert_int_equal(s.info.kernel, FA_KERNEL_CPU);
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-gtx", 1), 0);
    assert_refused(&s, FA_INVALID_ARGUMENT, "FLASHATTN_MACHINE = emulated-gtx: must be emulated-a100");
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-a100", 1), 0);

    s = small_call_new();
    s.options.kernel = FA_KERNEL_V4;
    assert_refused(&s, FA_UNSUPPORTED, "kernel = v4: has no GPU code in this build");
    s = small_call_new();
    s.options.kernel = FA_KERNEL_V3;
    assert_refused(&s, FA_UNSUPPORTED, "v3_forward_f16_d64 needs sm_90, and emulated-a100");
    s.shape[3] = 65;
    assert_refused(&s, FA_UNSUPPORTED, "kernel = v3: the row stride of q is 390 bytes: for TMA must be");
    s = small_call_new();
    s.q.dtype = (fa_dtype)FA_FLOAT32;
    assert_refused(&s, FA_UNSUPPORTED, "q.dtype = float32: the v2 kernel takes float16 and bfloat16");
    s = small_call_new();
    s.options.isa = FA_ISA_PORTABLE;
    assert_refused(&s, FA_UNSUPPORTED, "isa = portable: only the cpu kernel has instruction sets, and kernel is v2");
    s = small_call_new();
    s.options.num_splits = 2;
    assert_refused(&s, FA_UNSUPPORTED, "num_splits = 2: the v2 kernel does not split keys");
    s = small_call_new();
    s.q.data = (void *)4097;
    assert_refused(&s, FA_UNSUPPORTED, "q.data = 0x1001: on a GPU must be a multiple of the element size, 2");
    s = small_call_new();
    s.shape[1] = ((int64_t)1 << 29) + 1;
    assert_refused(&s, FA_UNSUPPORTED, "seqlen_q = 536870913: on a GPU at most 536870912");
    s = small_call_new();
    s.shape[0] = 1 << 20;
    s.shape[1] = 1 << 20;
    s.shape[2] = 8;
    assert_refused(&s, FA_UNSUPPORTED, "more than 2^31 - 1 query tiles");
    s.shape[2] = 0;
    assert_int_equal(plan(&s), FA_OK);
    s = small_call_new();
    s.options.kernel = FA_KERNEL_STANDARD;
    s.shape[1] = 1000000;
    assert_refused(&s, FA_UNSUPPORTED, "of shared memory per block, and emulated-a100");
}

/* Nothing to do is done, whatever the size that is zero. */
static void zero_sizes_succeed(void **test) {
    (void)test;
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-h100", 1), 0);
    for (int i = 0; i < 3; i++) {
        small_call s = small_call_new();
        s.shape[i] = 0;
        assert_int_equal(plan(&s), FA_OK);
        assert_int_equal(fa_forward(&s.q, &s.k, &s.v, &s.options, &s.out, NULL), FA_OK);
    }
}

RUN_TESTS(cmocka_unit_test(plans_tell_what_would_run), cmocka_unit_test(what_cannot_be_done_is_refused),
          cmocka_unit_test(zero_sizes_succeed), cmocka_unit_test(every_width_and_dtype),
          cmocka_unit_test(the_standard_kernel_is_judged_by_its_own_roundings),
          cmocka_unit_test(persistent_blocks_take_many_tiles), cmocka_unit_test(wide_heads_fit_small_shared_memory),
          cmocka_unit_test(answers_do_not_depend_on_order), GPU_NAMED_FORWARD_CASES,
          cmocka_unit_test(random_cases_keep_the_error_budget))
