/* SPDX-License-Identifier: Apache-2.0 */
/* What fa_plan() says of calls that will run; refusals, which it shares with fa_forward(), are in test_messages.c. */
#include "support/judge.h"
#include "support/testing.h"

#include <stdio.h>

/* A plan for tensors without data: shapes alone. */
static fa_plan_info plan_of(fa_options options, fa_dtype dtype, int64_t batch, int64_t seqlen_q, int64_t seqlen_k,
                            int64_t heads, int64_t heads_kv, int64_t head_dim) {
    int64_t q_shape[4] = {batch, seqlen_q, heads, head_dim}, k_shape[4] = {batch, seqlen_k, heads_kv, head_dim};
    fa_tensor q = {.device = {FA_DEVICE_CPU, 0}, .ndim = 4, .dtype = dtype, .shape = q_shape}, k = q;
    k.shape = k_shape;
    fa_plan_info info = {.size = sizeof info};
    options.size = sizeof options;
    if (fa_plan(&q, &k, &k, &options, &q, NULL, &info) != FA_OK) fail_msg("%s", fa_last_error());
    return info;
}

/* Working memory is a matter of tiles and threads, not of lengths. */
static void working_memory_does_not_grow_with_seqlen_k(void **state) {
    (void)state;
    static const int32_t splits[] = {0, 1, 7};
    for (int i = 0; i < 3; i++) {
        fa_options options = {.num_splits = splits[i], .num_threads = 8};
        fa_plan_info a = plan_of(options, (fa_dtype)FA_BFLOAT16, 2, 128, (int64_t)1 << 20, 8, 2, 128);
        fa_plan_info b = plan_of(options, (fa_dtype)FA_BFLOAT16, 2, 128, (int64_t)1 << 36, 8, 2, 128);
        assert_int_equal(a.workspace_bytes, b.workspace_bytes);
        assert_true(b.workspace_bytes < (int64_t)1 << 26);
        if (splits[i] != 0) assert_int_equal(a.num_splits, splits[i]);
    }
    /* Nor with seqlen_q: a single query on 2^30 keys, 2^30 queries on one. */
    fa_options options = {.num_threads = 1, .num_splits = 1};
    fa_plan_info decode = plan_of(options, (fa_dtype)FA_FLOAT32, 1, 1, (int64_t)1 << 30, 1, 1, 64);
    fa_plan_info prefill = plan_of(options, (fa_dtype)FA_FLOAT32, 1, (int64_t)1 << 30, 1, 1, 1, 64);
    assert_true(decode.workspace_bytes < 1 << 18 && prefill.workspace_bytes < 1 << 20);
}

static void the_plan_names_what_will_run(void **state) {
    (void)state;
    static const struct {
        fa_dtype dtype;
        const char *name;
    } dtypes[] = {{FA_FLOAT32, "float32"}, {FA_FLOAT16, "float16"}, {FA_BFLOAT16, "bfloat16"}};
    int count;
    const contender *all = contenders(&count);
    assert_true(count >= 1); /* portable C runs everywhere */
    for (int w = 0; w < count; w++)
        for (int t = 0; t < 3; t++) {
            char expected[64];
            fa_options options = {.isa = all[w].isa, .num_threads = 3};
            fa_plan_info info = plan_of(options, dtypes[t].dtype, 4, 512, 512, 8, 8, 96);
            fa_isa isa = runs_as(all[w].isa, (fa_element)t);
            (void)snprintf(expected, sizeof expected, "cpu_forward %s %s d96", fa_isa_name(isa), dtypes[t].name);
            assert_string_equal(info.name, expected);
            assert_int_equal(info.kernel, FA_KERNEL_CPU);
            assert_int_equal(info.isa, isa);
            assert_int_equal(info.num_threads, 3);
            assert_int_equal(info.num_splits, 1); /* 4 * 8 * 4 tiles are enough */
        }
    fa_plan_info reference =
        plan_of((fa_options){.kernel = FA_KERNEL_REFERENCE}, (fa_dtype)FA_FLOAT64, 1, 5, 7, 2, 1, 8);
    assert_int_equal(reference.kernel, FA_KERNEL_REFERENCE);
    assert_string_equal(reference.name, "reference_forward float64 d8");
}

#if defined(__aarch64__) && defined(__linux__)
static void bf16_is_taken_where_the_processor_has_it(void **state) {
    (void)state;
    uint64_t features;
    __asm__("mrs %0, ID_AA64ISAR1_EL1" : "=r"(features)); /* which Linux lets programs read */
    bool has = (features >> 44 & 15) != 0;
    assert_int_equal(fa_isa_supported(FA_ISA_NEON_BF16), has ? FA_OK : FA_UNSUPPORTED);
    if (!has) assert_string_equal(fa_last_error(), "isa = neon_bf16: this machine lacks BF16");
    fa_options automatic = {.num_threads = 1};
    assert_int_equal(plan_of(automatic, (fa_dtype)FA_BFLOAT16, 1, 64, 64, 1, 1, 64).isa,
                     has ? FA_ISA_NEON_BF16 : FA_ISA_NEON);
    assert_int_equal(plan_of(automatic, (fa_dtype)FA_FLOAT16, 1, 64, 64, 1, 1, 64).isa, FA_ISA_NEON);
}
#else
static void bf16_is_taken_where_the_processor_has_it(void **state) {
    (void)state;
    assert_int_equal(fa_isa_supported(FA_ISA_NEON_BF16), FA_UNSUPPORTED);
}
#endif

/* An instruction set with operands of bfloat16 alone stands for another one in the other dtypes. */
static void what_stands_for_another_gives_its_bits(void **state) {
    (void)state;
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++)
        for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_FLOAT16; t++) {
            attention_case c = case_default("stands for another");
            c.type = (fa_element)t;
            attention_call *a = call_new(&c);
            outputs x = run_call(a, all[w]), y = run_call(a, (contender){FA_KERNEL_CPU, runs_as(all[w].isa, c.type)});
            assert_same_bits(a, &x, &y, contender_name(all[w]));
            outputs_free(&x);
            outputs_free(&y);
            call_free(a);
        }
}

/* Few queries, many keys: the keys are split, and the rule asks shapes alone. */
static void decoding_splits_the_keys(void **state) {
    (void)state;
    fa_options one = {.num_threads = 1}, many = {.num_threads = 64};
    fa_plan_info a = plan_of(one, (fa_dtype)FA_FLOAT16, 1, 1, 100000, 32, 8, 128);
    fa_plan_info b = plan_of(many, (fa_dtype)FA_FLOAT16, 1, 1, 100000, 32, 8, 128);
    assert_true(a.num_splits > 1);
    assert_int_equal(a.num_splits, b.num_splits);
    assert_int_equal(a.tile_rows, b.tile_rows);
    assert_int_equal(a.num_threads, 1);
}

RUN_TESTS(cmocka_unit_test(working_memory_does_not_grow_with_seqlen_k), cmocka_unit_test(the_plan_names_what_will_run),
          cmocka_unit_test(bf16_is_taken_where_the_processor_has_it),
          cmocka_unit_test(what_stands_for_another_gives_its_bits), cmocka_unit_test(decoding_splits_the_keys))
