/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by the AMX kernels in a model of the tile instructions. This program has a dispatch of its own, which knows
 * nothing but that table, and so needs AVX-512 BF16, which is the rest of it; elsewhere it is skipped.
 */
#include "cpu/kernels.h"
#include "status.h"
#include "support/judge.h"
#include "support/sweep.h"
#include "support/testing.h"

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
fa_isa fa_cpu_isa_select(fa_isa isa, fa_status *status) {
    *status = isa == FA_ISA_AMX || isa == FA_ISA_AUTO ? FA_OK : fa_fail(FA_UNSUPPORTED, "isa = %d: only amx", (int)isa);
    return *status == FA_OK ? FA_ISA_AMX : FA_ISA_AUTO;
}

const fa_cpu_kernels *fa_cpu_kernels_select(fa_isa isa, fa_element type, fa_status *status) {
    (void)fa_cpu_isa_select(isa, status);
    if (*status != FA_OK) return NULL;
    return type == FA_ELEMENT_BFLOAT16 ? fa_cpu_kernels_amx() : fa_cpu_kernels_avx512();
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
        c.type = FA_ELEMENT_BFLOAT16;
        c.seqlen_q = sizes[i][0];
        c.seqlen_k = sizes[i][1];
        c.head_dim = sizes[i][2];
        c.head_dim_v = sizes[i][3];
        c.window = sizes[i][4] >= 0;
        c.window_left = sizes[i][4];
        c.num_threads = (int32_t)(1 + i % 2);
        judge_case(&c);
    }
}

static void random_cases(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 25; i++) {
        attention_case c = random_case("amx at random", i);
        c.type = FA_ELEMENT_BFLOAT16;
        judge_case(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_around_tiles), cmocka_unit_test(random_cases)};
    if (!machine_can()) {
        (void)printf("skipped: this machine lacks AVX-512 BF16\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, print_seed, NULL);
}
