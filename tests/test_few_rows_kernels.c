/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels for few rows, of every table that this machine can run, against their definition in kernels.h computed
 * in double precision. Rows of K and V end at the end of an allocation, so that AddressSanitizer sees what reads beyond.
 */
#include "cpu/kernels.h"
#include "problem.h"
#include "support/testing.h"

#include <math.h>
#include <stdlib.h>

static rng source;

static int set_up(void **state) {
    print_seed(state);
    source = rng_named("few rows", 0);
    return 0;
}

static float random_float(void) { return (float)(int32_t)(uint32_t)rng_next(&source) * 0x1p-31f; }

enum { MOST_ROWS = 9, MOST_KEYS = 40, STRIDE = FA_HEAD_DIM_MAX + FA_PANEL_MAX };

typedef struct input {
    void *data[MOST_KEYS];
    const void *rows[MOST_KEYS];
    double values[MOST_KEYS][FA_HEAD_DIM_MAX];
} input;

static void fill(input *in, int64_t count, int64_t width, fa_element type) {
    for (int64_t r = 0; r < count; r++) {
        in->rows[r] = in->data[r] = malloc((size_t)(width * fa_element_size(type)));
        assert_non_null(in->data[r]);
        for (int64_t i = 0; i < width; i++) {
            char *at = (char *)in->data[r] + i * fa_element_size(type);
            fa_element_store(at, (double)random_float(), type);
            in->values[r][i] = fa_element_load(at, type);
        }
    }
}

static void release(const input *in, int64_t count) {
    for (int64_t r = 0; r < count; r++) free(in->data[r]);
}

/* Numbers in the operand's dtype, [MOST_ROWS][STRIDE]. */
typedef struct operands {
    char bytes[MOST_ROWS * STRIDE * sizeof(float)];
} operands;

static char *operand_at(const fa_cpu_kernels *t, operands *x, int64_t row, int64_t i) {
    return x->bytes + (row * STRIDE + i) * fa_element_size(t->operand);
}

static void set_operand(const fa_cpu_kernels *t, operands *x, int64_t row, int64_t i, float value) {
    fa_element_store(operand_at(t, x, row, i), (double)value, t->operand);
}

static double get_operand(const fa_cpu_kernels *t, operands *x, int64_t row, int64_t i) {
    return fa_element_load(operand_at(t, x, row, i), t->operand);
}

static void expect(const fa_cpu_kernels *t, const char *what, double got, double want, double allowed) {
    if (!(fabs(got - want) <= allowed))
        fail_msg("%s, %s: got %.9g, want %.9g within %.3g", fa_isa_name(t->isa), what, got, want, allowed);
}

/* s, with what is beyond `count` untouched; each row alone gives the same bits. */
static void check_dot(const fa_cpu_kernels *t, int64_t rows, int64_t count, int64_t width, fa_element type) {
    static operands q;
    static float s[MOST_ROWS][MOST_KEYS + 1], alone[MOST_KEYS + 1];
    static input in;
    fill(&in, count, width, type);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < STRIDE; i++) set_operand(t, &q, r, i, i < width ? random_float() : NAN);
        for (int64_t j = 0; j <= MOST_KEYS; j++) s[r][j] = 77.0f;
    }
    t->dot_rows(s[0], MOST_KEYS + 1, q.bytes, STRIDE, rows, in.rows, count, width, type, rows % 2 ? in.rows : NULL);
    for (int64_t r = 0; r < rows; r++) {
        t->dot_rows(alone, MOST_KEYS + 1, operand_at(t, &q, r, 0), STRIDE, 1, in.rows, count, width, type, NULL);
        for (int64_t j = 0; j <= MOST_KEYS; j++) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < width && j < count; i++) {
                double product = get_operand(t, &q, r, i) * in.values[j][i];
                sum += product;
                magnitude += fabs(product);
            }
            if (j >= count) {
                assert_true(s[r][j] == 77.0f);
                continue;
            }
            expect(t, "dot_rows", (double)s[r][j], sum, (double)(width + 4) * 0x1p-24 * magnitude);
            assert_int_equal(fa_float_bits(s[r][j]), fa_float_bits(alone[j]));
        }
    }
    release(&in, count);
}

static void check_add(const fa_cpu_kernels *t, int64_t rows, int64_t count, int64_t width, fa_element type) {
    static operands p;
    static float o[MOST_ROWS][STRIDE], before[MOST_ROWS][STRIDE], alone[STRIDE];
    float scale[MOST_ROWS];
    static input in;
    fill(&in, count, width, type);
    for (int64_t r = 0; r < rows; r++) {
        scale[r] = random_float();
        int64_t pairs = t->operand == FA_ELEMENT_BFLOAT16 ? count + count % 2 : count;
        for (int64_t j = 0; j < MOST_KEYS; j++)
            set_operand(t, &p, r, j, j < count ? random_float() : j < pairs ? 0.0f : NAN);
        for (int64_t i = 0; i < STRIDE; i++) o[r][i] = before[r][i] = random_float();
    }
    t->add_rows(o[0], STRIDE, p.bytes, STRIDE, rows, in.rows, count, width, type, scale, rows % 2 ? in.rows : NULL,
                width);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(alone, before[r], sizeof alone);
        t->add_rows(alone, STRIDE, operand_at(t, &p, r, 0), STRIDE, 1, in.rows, count, width, type, scale + r, NULL, 0);
        for (int64_t i = 0; i < width; i++) {
            double sum = (double)scale[r] * (double)before[r][i], magnitude = fabs(sum);
            for (int64_t j = 0; j < count; j++) {
                double product = get_operand(t, &p, r, j) * in.values[j][i];
                sum += product;
                magnitude += fabs(product);
            }
            expect(t, "add_rows", (double)o[r][i], sum, (double)(count + 4) * 0x1p-24 * magnitude);
            assert_int_equal(fa_float_bits(o[r][i]), fa_float_bits(alone[i]));
        }
        int64_t padded = (width + FA_PANEL_MAX - 1) / FA_PANEL_MAX * FA_PANEL_MAX;
        for (int64_t i = padded; i < STRIDE; i++) assert_true(o[r][i] == before[r][i]);
    }
    release(&in, count);
}

static void check_nonfinite(const fa_cpu_kernels *t, int64_t count, int64_t width, fa_element type) {
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    static input in;
    fill(&in, count, width, type);
    assert_false(t->any_nonfinite(in.rows, count, width, type));
    for (int kind = 0; kind < 3 && count > 0; kind++) {
        char *at = (char *)in.data[rng_range(&source, 0, count - 1)] +
                   rng_range(&source, 0, width - 1) * fa_element_size(type);
        double kept = fa_element_load(at, type);
        fa_element_store(at, bad[kind], type);
        assert_true(t->any_nonfinite(in.rows, count, width, type));
        fa_element_store(at, kept, type);
    }
    release(&in, count);
}

typedef void check_rows(const fa_cpu_kernels *, int64_t, int64_t, int64_t, fa_element);

static void every_size(const fa_cpu_kernels *t, check_rows *check, fa_element type) {
    static const int64_t widths[] = {1, 3, 4, 7, 8, 15, 16, 17, 33, 64, 65, 80, 128, 256},
                         counts[] = {0, 1, 3, 4, 5, 16, 17, 40};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            check(t, 1 + (int64_t)(w + c) % MOST_ROWS, counts[c], widths[w], type);
}

static void every_table(check_rows *check) {
    static const fa_element types[] = {FA_ELEMENT_FLOAT32, FA_ELEMENT_FLOAT16, FA_ELEMENT_BFLOAT16};
    for (int isa = FA_ISA_PORTABLE; isa <= FA_ISA_AVX512; isa++) {
        fa_status status;
        const fa_cpu_kernels *t = fa_cpu_kernels_select((fa_isa)isa, FA_ELEMENT_FLOAT32, &status);
        for (int type = 0; type < 3 && t != NULL; type++) every_size(t, check, types[type]);
    }
}

/* Those with bfloat16 operands take bfloat16 rows alone. */
static void with_bfloat16_operands(check_rows *check) {
    const fa_cpu_kernels *t = NULL;
    if (fa_isa_supported(FA_ISA_AVX512_BF16) == FA_OK) t = fa_cpu_kernels_avx512_bf16();
    if (fa_isa_supported(FA_ISA_NEON_BF16) == FA_OK) t = fa_cpu_kernels_neon_bf16();
    if (t == NULL) skip();
    every_size(t, check, FA_ELEMENT_BFLOAT16);
}

static void check_search(const fa_cpu_kernels *t, int64_t rows, int64_t count, int64_t width, fa_element type) {
    (void)rows;
    check_nonfinite(t, count, width, type);
}

static void dot_rows(void **state) {
    (void)state;
    every_table(check_dot);
}

static void add_rows(void **state) {
    (void)state;
    every_table(check_add);
}

static void dot_rows_of_bfloat16(void **state) {
    (void)state;
    with_bfloat16_operands(check_dot);
}

static void add_rows_of_bfloat16(void **state) {
    (void)state;
    with_bfloat16_operands(check_add);
}

static void any_nonfinite(void **state) {
    (void)state;
    every_table(check_search);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(dot_rows), cmocka_unit_test(add_rows),
                                       cmocka_unit_test(dot_rows_of_bfloat16), cmocka_unit_test(add_rows_of_bfloat16),
                                       cmocka_unit_test(any_nonfinite)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
