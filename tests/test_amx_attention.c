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

/* As on a machine with AMX: the other sequences are computed by fa_cpu_kernels_float32(). */
const fa_cpu_kernels *fa_cpu_kernels_in_parts(fa_isa isa, fa_element type) {
    fa_status status;
    return isa == FA_ISA_AUTO && type != FA_ELEMENT_BFLOAT16 ? fa_cpu_kernels_select(isa, type, &status) : NULL;
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

enum { ROWS = 32, COLUMNS = 96, MOST_DEPTH = 160 };

/* A product on memory of its own. */
typedef struct own_product {
    float c[ROWS * COLUMNS];
    uint16_t a[ROWS * MOST_DEPTH], b[COLUMNS * MOST_DEPTH];
    float row_scale[ROWS];
} own_product;

static fa_cpu_product random_product(rng *r, own_product *own) {
    for (int i = 0; i < ROWS * COLUMNS; i++) own->c[i] = (float)rng_normal(r);
    for (int i = 0; i < ROWS * MOST_DEPTH; i++) own->a[i] = fa_bfloat16_from_float((float)rng_normal(r));
    for (int i = 0; i < COLUMNS * MOST_DEPTH; i++) own->b[i] = fa_bfloat16_from_float((float)rng_normal(r));
    for (int i = 0; i < ROWS; i++) own->row_scale[i] = i % 3 == 0 ? 0.5f : 1.0f;
    return (fa_cpu_product){own->c,
                            COLUMNS,
                            own->a,
                            MOST_DEPTH,
                            own->b,
                            MOST_DEPTH,
                            rng_range(r, 1, ROWS),
                            32 * rng_range(r, 1, COLUMNS / 32),
                            32 * rng_range(r, 1, MOST_DEPTH / 32),
                            rng_range(r, 0, 1) ? own->row_scale : NULL};
}

/* The bits of softmax_step and multiply, for every height; one row_scale is the rescale that is about to be written. */
static void softmax_beside_products(void **state) {
    (void)state;
    const fa_cpu_kernels *t = fa_cpu_kernels_amx();
    rng r = rng_named("amx softmax beside products", 0);
    static own_product own[2], own_copy[2];
    static _Alignas(64) float s[ROWS * FA_TILE_KEYS], s_copy[ROWS * FA_TILE_KEYS];
    for (int i = 0; i < 300; i++) {
        int64_t rows = 1 + i % ROWS, keys = 32 * rng_range(&r, 1, FA_TILE_KEYS / 32);
        int count = (int)rng_range(&r, 0, 2);
        float m[2][ROWS], l[2][ROWS], rescale[2][ROWS];
        for (int j = 0; j < ROWS * FA_TILE_KEYS; j++)
            s[j] = rng_range(&r, 0, 9) ? (float)rng_normal(&r) * 9 : -INFINITY;
        for (int j = 0; j < ROWS; j++) {
            m[0][j] = m[1][j] = j % 4 ? (float)rng_normal(&r) : -INFINITY;
            l[0][j] = l[1][j] = j % 4 ? 2.5f : 0.0f;
            rescale[0][j] = rescale[1][j] = j % 5 ? 1.0f : 0.25f;
        }
        fa_cpu_product products[2], again[2];
        for (int j = 0; j < count; j++) {
            products[j] = random_product(&r, &own[j]);
            own_copy[j] = own[j];
            again[j] = products[j];
            again[j].c = own_copy[j].c;
            again[j].row_scale = products[j].row_scale != NULL ? own_copy[j].row_scale : NULL;
        }
        if (count > 0 && i % 2) products[0].row_scale = rescale[0], again[0].row_scale = rescale[1];
        memcpy(s_copy, s, sizeof s);
        t->softmax_beside(s, FA_TILE_KEYS, rows, keys, 0.125f, 0, m[0], l[0], rescale[0], products, count);
        for (int j = 0; j < count; j++)
            t->multiply(again[j].c, COLUMNS, again[j].a, MOST_DEPTH, again[j].b, MOST_DEPTH, again[j].rows,
                        again[j].columns, again[j].depth, again[j].row_scale);
        t->softmax_step(s_copy, FA_TILE_KEYS, rows, keys, 0.125f, 0, m[1], l[1], rescale[1]);
        assert_memory_equal(s, s_copy, sizeof s);
        assert_memory_equal(m[0], m[1], sizeof m[0]);
        assert_memory_equal(l[0], l[1], sizeof l[0]);
        assert_memory_equal(rescale[0], rescale[1], sizeof rescale[0]);
        for (int j = 0; j < count; j++) assert_memory_equal(own[j].c, own_copy[j].c, sizeof own[j].c);
    }
    t->leave();
}

/* More rows and keys than a softmax runs beside products of: strips of every height, groups of heads, tiles that only some
 * strips see, parts of the keys, and values that must not reach other rows. */
static void long_sequences(void **state) {
    (void)state;
    static const int64_t sizes[][8] = {/* queries, keys, head_dim, head_dim_v, heads of 1, causal, window, splits */
                                       {150, 1100, 64, 64, 1, 0, -1, 1},   {130, 700, 40, 96, 1, 1, -1, 2},
                                       {145, 1300, 128, 32, 1, 1, 200, 1}, {40, 600, 32, 64, 4, 2, -1, 1},
                                       {270, 520, 64, 80, 1, 0, 5, 3},     {177, 640, 64, 64, 1, 1, -1, 1}};
    for (size_t i = 0; i < 2 * (sizeof sizes / sizeof sizes[0]); i++) {
        const int64_t *n = sizes[i / 2];
        attention_case c = case_default("amx long");
        c.index = i;
        c.batch = c.heads_kv = 1;
        c.seqlen_q = n[0], c.seqlen_k = n[1], c.head_dim = n[2], c.head_dim_v = n[3], c.heads = n[4];
        c.causal = (fa_causal)n[5];
        c.window = n[6] >= 0;
        c.window_left = n[6];
        c.num_splits = (int32_t)n[7];
        c.num_threads = (int32_t)(1 + i % 2);
        for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_BFLOAT16; t++) {
            c.type = (fa_element)t;
            attention_call *a = call_new(&c);
            for (int64_t key = 130; key < c.seqlen_k && i % 2 == 1; key += 257)
                tensor_put(a->v, call_k_number(a, a->v, 0, 0, key) + 3, key % 2 ? (double)NAN : (double)INFINITY);
            judge_call(a);
            call_free(a);
        }
    }
}

/* FA_ISA_AUTO: long sequences in parts, short ones not, whatever else is in the batch. */
static void long_ones_alone_in_parts(void **state) {
    (void)state;
    static const int32_t queries[] = {300, 20, 0, 129, 128}, keys[] = {400, 300, 50, 256, 300};
    for (int t = FA_ELEMENT_FLOAT32; t <= FA_ELEMENT_FLOAT16; t++) {
        attention_case c = case_default("amx automatic");
        c.type = (fa_element)t;
        c.batch = 5;
        c.varlen_q = c.varlen_k = true;
        c.seqlen_q = 300, c.seqlen_k = 400, c.head_dim = c.head_dim_v = 64;
        c.heads = c.heads_kv = 1;
        c.lengths_q = queries, c.lengths_k = keys;
        c.num_splits = 1;
        attention_call *a = call_new(&c);
        yardstick *y = yardstick_new(a);
        outputs automatic = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
        outputs in_parts = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AMX});
        const char *fault = fault_in_outputs(y, &automatic);
        if (fault != NULL) call_fail(a, "automatic: %s", fault);
        assert_same_sequence(a, &automatic, 0, a, &in_parts, 0, 0, "in parts");
        assert_same_sequence(a, &automatic, 3, a, &in_parts, 3, 0, "in parts");
        bool differs = false; /* the others */
        for (int64_t i = 0; i < 64 * 128; i++) {
            int64_t at = call_q_number(a, automatic.out, 4, 0, 0) + i;
            differs |= tensor_get(automatic.out, at) != tensor_get(in_parts.out, at);
        }
        assert_true(differs);
        outputs_free(&automatic), outputs_free(&in_parts);
        yardstick_free(y);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_around_tiles),       cmocka_unit_test(random_cases),
        cmocka_unit_test(every_kind_of_input),      cmocka_unit_test(infinity_and_nan),
        cmocka_unit_test(softmax_beside_products),  cmocka_unit_test(long_sequences),
        cmocka_unit_test(long_ones_alone_in_parts), cmocka_unit_test(gradients_of_sizes_around_tiles),
        cmocka_unit_test(random_gradients)};
    if (!machine_can()) {
        (void)printf("skipped: this machine lacks AVX-512 BF16\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, print_seed, NULL);
}
