/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention and its gradients by the AMX kernels in a model of the tile instructions. This program has a dispatch of its own, which knows
 * nothing but their tables, and so needs AVX-512 BF16, which is the rest of them; elsewhere it is skipped.
 */
#include "cpu/kernels.h"
#include "status.h"
#include "support/judge.h"
#include "support/judge_backward.h"
#include "support/sweep.h"
#include "support/testing.h"

#include <math.h>
#include <stdio.h>

static bool machine_can(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#else
    return false;
#endif
}

/* In place of src/cpu/dispatch.c. */
fa_isa fa_cpu_isa_select(fa_isa isa, fa_element type, fa_status *status) {
    (void)type;
    *status = isa == FA_ISA_AMX || isa == FA_ISA_AUTO ? FA_OK : fa_fail(FA_UNSUPPORTED, "isa = %d: only amx", (int)isa);
    return *status == FA_OK ? FA_ISA_AMX : FA_ISA_AUTO;
}

const fa_cpu_kernels *fa_cpu_kernels_select(fa_isa isa, fa_element type, fa_status *status) {
    (void)fa_cpu_isa_select(isa, type, status);
    if (*status != FA_OK) return NULL;
    return type == FA_ELEMENT_BFLOAT16  ? fa_cpu_kernels_amx()
           : type == FA_ELEMENT_FLOAT16 ? fa_cpu_kernels_amx_float16()
                                        : fa_cpu_kernels_amx_float32();
}

const fa_cpu_kernels *fa_cpu_kernels_float32(fa_isa isa) {
    (void)isa;
    return fa_cpu_kernels_avx512();
}

fa_status fa_isa_supported(fa_isa isa) {
    fa_status status;
    (void)fa_cpu_kernels_select(isa, FA_ELEMENT_FLOAT32, &status);
    return status;
}

const char *fa_isa_name(fa_isa isa) { return isa == FA_ISA_AMX ? "amx" : isa == FA_ISA_AVX512 ? "avx512" : "unknown"; }

/* Depths and widths around the tiles' 32, heights around 16 and 32, more rows than a query tile has. */
static void sizes_around_tiles(void **state) {
    (void)state;
    static const int64_t sizes[][5] = {/* queries, keys, head_dim, head_dim_v, window */
                                       {9, 31, 31, 33, -1},  {16, 32, 32, 32, -1},   {17, 33, 33, 1, 3},
                                       {31, 129, 64, 64, 0}, {47, 100, 96, 160, 40}, {150, 140, 40, 24, 60}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        attention_case c = case_default("amx sizes");
        c.index = i;
        c.seqlen_q = sizes[i][0];
        c.seqlen_k = sizes[i][1];
        c.head_dim = sizes[i][2];
        c.head_dim_v = sizes[i][3];
        c.window = sizes[i][4] >= 0;
        c.window_left = sizes[i][4];
        c.num_threads = (int32_t)(1 + i % 2);
        judge_case_all_types(c);
    }
}

static void random_cases(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 45; i++) {
        attention_case c = random_case("amx at random", i);
        c.type = (fa_element)(i % 3);
        judge_case(&c);
    }
}

/* All that inputs may hold, values up to the largest number among it. */
static void every_kind_of_input(void **state) {
    (void)state;
    for (int i = 0; i < INPUT_KINDS + VALUE_KINDS; i++) {
        attention_case c = case_default("amx inputs");
        c.index = (uint64_t)i;
        c.batch = c.heads = c.heads_kv = 1;
        c.seqlen_k = 150;
        c.inputs = i < INPUT_KINDS ? (input_kind)i : INPUT_NORMAL;
        c.values = i < INPUT_KINDS ? VALUES_NORMAL : (value_kind)(i - INPUT_KINDS);
        judge_case_all_types(c);
    }
    attention_case c = case_default("amx inputs");
    c.values = VALUES_LARGEST;
    judge_case_all_types(c);
}

/* NaN and infinity in a query, key or value, which some rows see and others do not: the reference says where they show. */
static void infinity_and_nan(void **state) {
    (void)state;
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (int place = 0; place < 4; place++)
        for (int i = 0; i < 3; i++)
            for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_BFLOAT16; t++) {
                attention_case c = case_default("amx infinity");
                c.index = (uint64_t)(place * 3 + i);
                c.type = (fa_element)t;
                c.causal = FA_CAUSAL_BOTTOM_RIGHT; /* key 50 is seen from row 13 on */
                attention_call *a = call_new(&c);
                int64_t key = call_k_number(a, a->k, 0, 1, 50);
                if (place == 0) tensor_put(a->k, key + 3, bad[i]);
                if (place == 1) tensor_put(a->v, call_k_number(a, a->v, 0, 1, 50) + 3, bad[i]);
                if (place == 2) tensor_put(a->q, call_q_number(a, a->q, 1, 2, 9) + 3, bad[i]);
                for (int64_t e = 0; e < c.head_dim && place == 3; e++) tensor_put(a->k, key + e, bad[i]);
                judge_call(a);
                call_free(a);
            }
}

/* Depths that are no whole tiles, heights around 16 and 32, queries and keys of more than one tile. */
static void gradients_of_sizes_around_tiles(void **state) {
    (void)state;
    static const int64_t sizes[][4] = {/* queries, keys, head_dim, head_dim_v */
                                       {9, 31, 31, 33},   {16, 32, 32, 32},  {17, 33, 33, 1},
                                       {31, 129, 64, 64}, {100, 70, 40, 24}, {130, 200, 96, 128}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        attention_case c = case_default("amx gradients");
        c.index = i;
        c.type = FA_ELEMENT_BFLOAT16;
        c.seqlen_q = sizes[i][0];
        c.seqlen_k = sizes[i][1];
        c.head_dim = sizes[i][2];
        c.head_dim_v = sizes[i][3];
        c.causal = (fa_causal)(i % 3);
        c.num_threads = (int32_t)(1 + i % 2);
        judge_backward(&c);
    }
}

static void random_gradients(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 30; i++) {
        attention_case c = random_backward_case("amx gradients at random", i);
        c.type = FA_ELEMENT_BFLOAT16;
        judge_backward(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_around_tiles),
                                       cmocka_unit_test(random_cases),
                                       cmocka_unit_test(every_kind_of_input),
                                       cmocka_unit_test(infinity_and_nan),
                                       cmocka_unit_test(gradients_of_sizes_around_tiles),
                                       cmocka_unit_test(random_gradients)};
    if (!machine_can()) {
        (void)printf("skipped: this machine lacks AVX-512 BF16\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, print_seed, NULL);
}
