/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels that work on bfloat16 operands, against their definition in kernels.h computed in double precision.
 * Those of AMX run in a model of the tile instructions (support/amx_model.h).
 */
#include "cpu/kernels.h"
#include "support/testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const fa_cpu_kernels *tables[2];
static int table_count;
static rng source;

static int set_up(void **state) {
    print_seed(state);
    source = rng_named("bfloat16 kernels", 0);
    if (fa_isa_supported(FA_ISA_AVX512_BF16) == FA_OK) {
        tables[table_count++] = fa_cpu_kernels_avx512_bf16();
        tables[table_count++] = fa_cpu_kernels_amx();
    }
    if (fa_isa_supported(FA_ISA_NEON_BF16) == FA_OK) tables[table_count++] = fa_cpu_kernels_neon_bf16();
    for (int i = 0; i < table_count; i++) assert_non_null(tables[i]);
    return 0;
}

#define FOR_EACH_TABLE(t)                                               \
    if (table_count == 0) skip();                                       \
    for (int table_index = 0; table_index < table_count; table_index++) \
        for (const fa_cpu_kernels *t = tables[table_index]; t != NULL; t = NULL)

#define CANARY 0x7fa5u

static uint16_t random_bfloat16(void) {
    return fa_bfloat16_from_float((float)(int32_t)(uint32_t)rng_next(&source) * 0x1p-30f);
}

static int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

/* `count` elements, 64-byte aligned, then 32 canaries. */
static uint16_t *halves(int64_t count) {
    uint16_t *p = aligned_alloc(64, (size_t)round_up(2 * (count + 32), 64));
    assert_non_null(p);
    for (int64_t i = 0; i < count + 32; i++) p[i] = CANARY;
    return p;
}

static void assert_canaries(const uint16_t *p, int64_t count) {
    for (int64_t i = count; i < count + 32; i++) assert_int_equal(p[i], CANARY);
}

/* Rows in descending order, each with its end at the end of an allocation, so that AddressSanitizer sees reads beyond. */
typedef struct input {
    uint16_t *data[FA_TILE_KEYS];
    const void *rows[FA_TILE_KEYS];
    int64_t count;
} input;

static input make_input(int64_t count, int64_t width) {
    input in = {.count = count};
    for (int64_t r = 0; r < count; r++) {
        in.data[r] = malloc((size_t)width * 2);
        assert_non_null(in.data[r]);
        in.rows[r] = in.data[r];
        for (int64_t i = 0; i < width; i++) in.data[r][i] = random_bfloat16();
    }
    return in;
}

static void free_input(const input *in) {
    for (int64_t r = 0; r < in->count; r++) free(in->data[r]);
}

static int64_t packed_index(const fa_cpu_kernels *t, int64_t depth, int64_t k, int64_t n) {
    int64_t step = t->step;
    return n / t->panel * depth * t->panel + k / step * step * t->panel + n % t->panel * step + k % step;
}

static const int64_t widths[] = {1, 2, 15, 31, 32, 33, 40, 63, 64, 65, 80, 128, 255, 256};
static const int64_t counts[] = {0, 1, 2, 15, 16, 17, 31, 33, FA_TILE_KEYS - 1, FA_TILE_KEYS};
#define EACH(i, list) (size_t i = 0; i < sizeof list / sizeof *list; i++)

static void queries(void **state) {
    (void)state;
    FOR_EACH_TABLE(t)
    for
        EACH(w, widths)
    for (int sign = -1; sign <= 1; sign += 2) {
        int64_t width = widths[w], stride = round_up(width, t->depth);
        input in = make_input(5, width);
        uint16_t *a = halves(5 * stride);
        t->load_queries(a, stride, in.rows, 5, width, FA_ELEMENT_BFLOAT16, 0.125f * (float)sign);
        for (int64_t r = 0; r < 5; r++)
            for (int64_t i = 0; i < stride; i++) {
                uint16_t x = i < width ? in.data[r][i] : 0, got = a[r * stride + i];
                assert_int_equal(i < width ? got : got & 0x7fff, i < width && sign < 0 ? x ^ 0x8000 : x);
            }
        assert_canaries(a, 5 * stride);
        free(a);
        free_input(&in);
    }
}

static void keys(void **state) {
    (void)state;
    FOR_EACH_TABLE(t)
    for
        EACH(w, widths)
        for
            EACH(c, counts) {
                int64_t width = widths[w], count = counts[c];
                int64_t depth = round_up(width, t->depth), columns = round_up(count, t->panel);
                input in = make_input(count, width);
                uint16_t *b = halves(depth * columns);
                t->pack_keys(b, in.rows, count, width, FA_ELEMENT_BFLOAT16);
                for (int64_t n = 0; n < columns; n++)
                    for (int64_t k = 0; k < depth; k++)
                        assert_int_equal(b[packed_index(t, depth, k, n)], k < width && n < count ? in.data[n][k] : 0);
                assert_canaries(b, depth * columns);
                free(b);
                free_input(&in);
            }
}

/* NaN and infinity are found wherever they stand, and only they. */
static void values(void **state) {
    (void)state;
    static const uint16_t nonfinite[] = {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff}, largest[] = {0x7f7f, 0xff7f, 0x0001};
    FOR_EACH_TABLE(t)
    for
        EACH(w, widths)
        for
            EACH(c, counts) {
                int64_t width = widths[w], count = counts[c];
                int64_t depth = round_up(count, t->depth), columns = round_up(width, t->panel);
                input in = make_input(count, width);
                bool bad = count > 0 && (w + c) % 2 == 0;
                for (int i = 0; i < 3 && count > 0; i++)
                    in.data[rng_range(&source, 0, count - 1)][rng_range(&source, 0, width - 1)] = largest[i];
                if (bad)
                    in.data[rng_range(&source, 0, count - 1)][rng_range(&source, 0, width - 1)] =
                        nonfinite[rng_range(&source, 0, 4)];
                uint16_t *b = halves(depth * columns);
                assert_int_equal(t->pack_values(b, in.rows, count, width, FA_ELEMENT_BFLOAT16), bad);
                for (int64_t n = 0; n < columns; n++)
                    for (int64_t k = 0; k < depth; k++)
                        assert_int_equal(b[packed_index(t, depth, k, n)], k < count && n < width ? in.data[k][n] : 0);
                assert_canaries(b, depth * columns);
                free(b);
                free_input(&in);
            }
}

static void check_multiply(const fa_cpu_kernels *t, int64_t rows, int64_t columns, int64_t depth, bool scaled) {
    int64_t b_depth = depth + t->depth, a_stride = depth + t->depth, c_stride = columns + 5;
    uint16_t *a = halves(rows * a_stride), *b = halves(columns * b_depth);
    float *c = malloc((size_t)(rows * c_stride + 1) * sizeof *c), *row = malloc((size_t)(columns + 1) * sizeof *row);
    float *before = malloc((size_t)(rows * c_stride + 1) * sizeof *c), row_scale[64];
    assert_true(c != NULL && before != NULL && row != NULL);
    for (int64_t r = 0; r < rows; r++) {
        row_scale[r] = fa_float_from_bfloat16(random_bfloat16());
        for (int64_t k = 0; k < depth; k++) a[r * a_stride + k] = random_bfloat16();
    }
    for (int64_t i = 0; i < columns * b_depth; i++) b[i] = random_bfloat16();
    for (int64_t i = 0; i < rows * c_stride; i++) c[i] = before[i] = fa_float_from_bfloat16(random_bfloat16());
    t->multiply(c, c_stride, a, a_stride, b, b_depth, rows, columns, depth, scaled ? row_scale : NULL);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t n = columns; n < c_stride; n++) assert_true(c[r * c_stride + n] == before[r * c_stride + n]);
        for (int64_t n = 0; n < columns; n++) {
            double sum = scaled ? (double)row_scale[r] * (double)before[r * c_stride + n] : 0, magnitude = fabs(sum);
            for (int64_t k = 0; k < depth; k++) {
                double product = (double)fa_float_from_bfloat16(a[r * a_stride + k]) *
                                 (double)fa_float_from_bfloat16(b[packed_index(t, b_depth, k, n)]);
                sum += product;
                magnitude += fabs(product);
            }
            if (!(fabs((double)c[r * c_stride + n] - sum) <= (double)(depth + 4) * 0x1p-24 * magnitude + 1e-37))
                fail_msg("%s: c[%d][%d] = %.9g, must be %.9g", fa_isa_name(t->isa), (int)r, (int)n,
                         (double)c[r * c_stride + n], sum);
        }
        memcpy(row, before + r * c_stride, (size_t)columns * sizeof *row);
        t->multiply(row, columns, a + r * a_stride, a_stride, b, b_depth, 1, columns, depth,
                    scaled ? row_scale + r : NULL);
        assert_memory_equal(row, c + r * c_stride, (size_t)columns * sizeof *row);
    }
    if (t->leave != NULL) t->leave();
    free(a), free(b), free(c), free(before), free(row);
}

static void multiply(void **state) {
    (void)state;
    FOR_EACH_TABLE(t) {
        for (int64_t rows = 0; rows <= 40; rows++) check_multiply(t, rows, 64, 96, rows % 2);
        for (int64_t depth = 0; depth <= 128; depth += t->depth) check_multiply(t, 13, 128, depth, depth % 4 != 0);
    }
}

/* One product each: subnormal operands and results count as 0, what is too large is infinite, and NaN and infinity stay in
 * their own row and column. */
static void multiply_special_numbers(void **state) {
    (void)state;
    static const struct {
        float a, b, product;
    } cases[] = {{0x1p-130f, 0x1p100f, 0},
                 {0x1p100f, -0x1p-127f, 0},
                 {0x1p-70f, 0x1p-70f, 0},
                 {0x1p-63f, 0x1p-63f, 0x1p-126f},
                 {0x1.fep63f, 0x1p64f, 0x1.fep127f},
                 {0x1p64f, -0x1p64f, -INFINITY},
                 {INFINITY, -0x1p-126f, -INFINITY},
                 {INFINITY, 0, NAN},
                 {NAN, 0, NAN}};
    enum { ROWS = 3 };
    FOR_EACH_TABLE(t)
    for
        EACH(i, cases)
    for (int64_t k = 0; k < t->depth; k++) {
        int64_t row = rng_range(&source, 0, ROWS - 1), column = rng_range(&source, 0, t->panel - 1);
        uint16_t *a = halves(ROWS * t->depth), *b = halves(t->panel * t->depth);
        float c[ROWS][FA_PANEL_MAX];
        memset(a, 0, (size_t)(ROWS * t->depth) * sizeof *a);
        memset(b, 0, (size_t)(t->panel * t->depth) * sizeof *b);
        a[row * t->depth + k] = fa_bfloat16_from_float(cases[i].a);
        b[packed_index(t, t->depth, k, column)] = fa_bfloat16_from_float(cases[i].b);
        t->multiply(c[0], FA_PANEL_MAX, a, t->depth, b, t->depth, ROWS, t->panel, t->depth, NULL);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t n = 0; n < t->panel; n++) {
                float want = r != row ? 0 : n == column ? cases[i].product : cases[i].a * 0;
                if (!(c[r][n] == want || (isnan(want) && isnan(c[r][n]))))
                    fail_msg("%s: %a * %a gives %a, not %a", fa_isa_name(t->isa), (double)cases[i].a,
                             (double)cases[i].b, (double)c[r][n], (double)want);
            }
        if (t->leave != NULL) t->leave();
        free(a), free(b);
    }
}

/* Weights are rounded to nearest even and lie side by side; l has them as they were before. */
static void weights(void **state) {
    (void)state;
    enum { ROWS = 19, KEYS = 96 };
    FOR_EACH_TABLE(t) {
        static float s[ROWS][FA_TILE_KEYS], before[ROWS][FA_TILE_KEYS];
        float m[ROWS], l[ROWS], rescale[ROWS];
        const float scale = 0.0884f;
        for (int r = 0; r < ROWS; r++) {
            m[r] = -INFINITY, l[r] = 0;
            for (int j = 0; j < KEYS; j++)
                before[r][j] = s[r][j] = j % 7 == 3 ? -INFINITY : 30.0f * fa_float_from_bfloat16(random_bfloat16());
        }
        t->softmax_step(s[0], FA_TILE_KEYS, ROWS, KEYS, scale, 0, m, l, rescale);
        for (int r = 0; r < ROWS; r++) {
            double sum = 0;
            for (int j = 0; j < KEYS; j++) {
                double want = exp((double)scale * ((double)before[r][j] - (double)m[r]));
                uint16_t h;
                memcpy(&h, (const char *)s[r] + 2 * j, sizeof h);
                double got = (double)fa_float_from_bfloat16(h);
                if (!(fabs(got - want) <= want * (0x1p-8 + 1e-5))) fail_msg("weight %.9g, must be %.9g", got, want);
                sum += want;
            }
            if (!(fabs((double)l[r] - sum) <= 1e-6 * sum)) fail_msg("sum %.9g, must be %.9g", (double)l[r], sum);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(queries),
                                       cmocka_unit_test(keys),
                                       cmocka_unit_test(values),
                                       cmocka_unit_test(multiply),
                                       cmocka_unit_test(multiply_special_numbers),
                                       cmocka_unit_test(weights)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
