/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of micro-kernels that this machine can run, for the programs that test them function by function. */
#ifndef FLASHATTN_TEST_KERNEL_TABLES_H
#define FLASHATTN_TEST_KERNEL_TABLES_H

#include "cpu/kernels.h"
#include "testing.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define CANARY 0x7fb5a17eu /* a NaN that nothing computes */

static const fa_cpu_kernels *tables[4];
static int table_count;
static rng source;

static int set_up(void **state) {
    print_seed(state);
    source = rng_named("cpu kernels", 0);
    for (int isa = FA_ISA_PORTABLE; isa <= FA_ISA_AVX512; isa++) {
        fa_status status;
        const fa_cpu_kernels *table = fa_cpu_kernels_select((fa_isa)isa, FA_ELEMENT_FLOAT32, &status);
        if (table != NULL) tables[table_count++] = table;
    }
    print_message("tables:");
    for (int i = 0; i < table_count; i++) print_message(" %s", fa_isa_name(tables[i]->isa));
    print_message("\n");
    return table_count > 0 ? 0 : -1;
}

#define FOR_EACH_TABLE(t)                                               \
    for (int table_index = 0; table_index < table_count; table_index++) \
        for (const fa_cpu_kernels *t = tables[table_index]; t != NULL; t = NULL)

static uint32_t random_bits(void) { return (uint32_t)rng_next(&source); }
static float random_float(void) { return (float)(int32_t)random_bits() * 0x1p-30f; } /* -2 .. 2 */

static const float nasty[] = {0.0f,     -0.0f,    1.0f,      -1.0f,    INFINITY,  -INFINITY,  NAN,
                              FLT_MAX,  -FLT_MAX, FLT_MIN,   -FLT_MIN, 0x1p-149f, -0x1p-149f, 0x1.fffffcp-127f,
                              65504.0f, 65519.9f, -65520.0f, 0x1p-24f, 0x1p-25f,  0x1.8p-25f, -1e30f};
#define NASTY_COUNT ((int)(sizeof nasty / sizeof *nasty))

static float *aligned_floats(int64_t count) {
    float *p = aligned_alloc(64, ((size_t)count * sizeof *p + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

static void fill_canary(float *p, int64_t count) {
    for (int64_t i = 0; i < count; i++) p[i] = fa_float_from_bits(CANARY);
}

static bool same_number(float a, float b) { return isnan(a) ? isnan(b) : fa_float_bits(a) == fa_float_bits(b); }

#define assert_bits_equal(a, b) assert_int_equal(fa_float_bits(a), fa_float_bits(b))
#define assert_canary(p) assert_int_equal(fa_float_bits(p), CANARY)

/* |a - b| <= tolerance, false for NaN. */
#define assert_close(a, b, tolerance)                                                                               \
    do {                                                                                                            \
        double got_ = (double)(a), want_ = (double)(b);                                                             \
        if (!(fabs(got_ - want_) <= (tolerance))) {                                                                 \
            print_message("%s: got %.9g (%a), want %.9g, tolerance %.3g\n", fa_isa_name(t->isa), got_, got_, want_, \
                          (double)(tolerance));                                                                     \
            fail();                                                                                                 \
        }                                                                                                           \
    } while (0)

#endif
