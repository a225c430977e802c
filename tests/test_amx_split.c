/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AMX kernels that multiply float32 and float16 in parts, in a model of the tile instructions (support/amx_model.h),
 * against double precision and the bound of docs/numerics.md. The rest of them needs AVX-512 BF16; elsewhere the tests are
 * skipped.
 */
#include "cpu/kernels.h"
#include "support/testing.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tables, the types of their inputs, and the parts of an element of B. */
static const struct {
    const fa_cpu_kernels *(*table)(void);
    fa_element type;
    int parts;
} kinds[] = {{fa_cpu_kernels_amx_float32, FA_ELEMENT_FLOAT32, 3}, {fa_cpu_kernels_amx_float16, FA_ELEMENT_FLOAT16, 2}};
static bool here;
static rng source;

#define FOR_EACH_KIND(t)                 \
    if (!here) skip();                   \
    for (int kind = 0; kind < 2; kind++) \
        for (const fa_cpu_kernels *t = kinds[kind].table(); t != NULL; t = NULL)

static int set_up(void **state) {
    print_seed(state);
    source = rng_named("amx split", 0);
    here = fa_isa_supported(FA_ISA_AVX512_BF16) == FA_OK;
    for (int i = 0; i < 2 && here; i++) assert_non_null(kinds[i].table());
    return 0;
}

static int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

static void *zeroed(int64_t bytes) {
    void *p = aligned_alloc(64, (size_t)round_up(bytes + 64, 64));
    assert_non_null(p);
    memset(p, 0, (size_t)round_up(bytes + 64, 64));
    return p;
}

/* All 24 bits in use, of either sign, with exponents of [low, high]. */
static float random_float(int low, int high) {
    uint32_t bits = (uint32_t)rng_next(&source);
    return ldexpf((float)((bits & 0xffffffu) | 0x800000u) * (bits >> 31 ? -1.0f : 1.0f),
                  (int)rng_range(&source, low, high) - 23);
}

/* The value that the type has for x. */
static float in_type(float x, fa_element type) {
    return type == FA_ELEMENT_FLOAT16 ? fa_float_from_float16(fa_float16_from_float(x)) : x;
}

/* ---- Inputs and packed operands ---- */

/* A matrix of the inputs' type, and the addresses of its rows. */
typedef struct matrix {
    int64_t rows, width;
    float *values; /* as float32 */
    char *data;
    const void **addresses;
} matrix;

static matrix new_matrix(int64_t rows, int64_t width) {
    matrix m = {rows, width, zeroed(rows * width * 4), zeroed(rows * width * 4), zeroed(rows * 8)};
    return m;
}

static void free_matrix(matrix *m) { free(m->values), free(m->data), free(m->addresses); }

/* Rounds the values to the type and stores them. */
static void store_matrix(matrix *m, fa_element type) {
    int64_t size = fa_element_size(type);
    for (int64_t r = 0; r < m->rows; r++) {
        m->addresses[r] = m->data + r * m->width * size;
        for (int64_t i = 0; i < m->width; i++) {
            float *x = m->values + r * m->width + i;
            *x = in_type(*x, type);
            fa_element_store(m->data + (r * m->width + i) * size, (double)*x, type);
        }
    }
}

/* Where kernels_amx_split.c has a part of element (k, n). */
static int64_t part_index(int parts, int64_t depth, int64_t k, int64_t n, int part) {
    return n / 32 * 32 * depth * parts + (k / 32 * parts + part) * 1024 + k % 32 / 2 * 64 + n % 32 * 2 + k % 2;
}

/* The parts add up to x, exactly where the last one is not subnormal; each is as near as bfloat16 can be, but below 2^128;
 * only the last is not finite if x is not. */
static void check_parts(const uint16_t *b, int parts, int64_t depth, int64_t k, int64_t n, float x) {
    float left = x, sum = 0;
    for (int i = 0; i < parts; i++) {
        float part = fa_float_from_bfloat16(b[part_index(parts, depth, k, n, i)]);
        float unit = fabsf(left) >= 0x1.ffp127f ? 0x1p-7f : 0x1p-8f, tiny = fabsf(x) < 0x1p-103f ? 0x1p-133f : 0;
        bool last = i == parts - 1, near = fabsf(left - part) <= (last ? tiny : unit * fabsf(left) + tiny);
        if (!isfinite(x)) near = !last ? isfinite(part) : isnan(x) ? isnan(part) : part == x;
        if (!near) fail_msg("part %d of %a is %a", i, (double)x, (double)part);
        left -= part;
    }
    for (int i = parts - 1; i >= 0; i--) sum += fa_float_from_bfloat16(b[part_index(parts, depth, k, n, i)]);
    if (isinf(x)) assert_true(sum == x);
}

static const float nasty[] = {0.0f,
                              -0.0f,
                              1.0f,
                              -1.0f,
                              FLT_MAX,
                              -FLT_MAX,
                              0x1.ff7ffep127f,
                              0x1.fefffep127f,
                              0x1.ffp127f,
                              FLT_MIN,
                              -FLT_MIN,
                              0x1p-149f,
                              0x1.fffffep-104f,
                              0x1.fffffep-126f,
                              65504.0f,
                              -65504.0f,
                              0x1p-24f,
                              0x1.ffcp-15f,
                              0x1.01p0f,
                              0x1.0101p0f,
                              0x1.010102p0f,
                              0x1.fffffep0f,
                              -0x1.80808p3f,
                              INFINITY,
                              -INFINITY,
                              NAN};
#define NASTY (int64_t)(sizeof nasty / sizeof *nasty)

static float next_value(int64_t i, bool finite) {
    return i % 2 == 0 && i / 2 < NASTY - (finite ? 3 : 0) ? nasty[i / 2] : random_float(-14, 10);
}

static const int64_t sizes[][2] = {{1, 1},   {3, 31},  {16, 16}, {31, 33},  {32, 32},
                                   {33, 64}, {40, 80}, {64, 15}, {127, 40}, {128, 128}};
#define EACH_SIZE (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)

/* Keys: depth is the width of a row; values: depth is their number. */
static void check_packing(const fa_cpu_kernels *t, int kind, int64_t rows, int64_t width, bool keys, bool finite) {
    const uint16_t canary = 0x5a5a;
    matrix m = new_matrix(rows, width);
    int parts = kinds[kind].parts;
    int64_t depth = round_up(keys ? width : rows, t->depth), columns = round_up(keys ? rows : width, t->panel);
    int64_t count = depth * columns * t->b_bytes / 2;
    uint16_t *b = zeroed(2 * count);
    for (int64_t i = 0; i < count + 32; i++) b[i] = canary;
    for (int64_t i = 0; i < rows * width; i++) m.values[i] = next_value(i, finite);
    store_matrix(&m, kinds[kind].type);
    bool any = false;
    for (int64_t i = 0; i < rows * width; i++) any = any || !isfinite(m.values[i]);
    if (keys)
        t->pack_keys(b, m.addresses, rows, width, kinds[kind].type);
    else
        assert_int_equal(t->pack_values(b, m.addresses, rows, width, kinds[kind].type), any);
    for (int64_t n = 0; n < columns; n++)
        for (int64_t k = 0; k < depth; k++) {
            int64_t r = keys ? n : k, i = keys ? k : n;
            check_parts(b, parts, depth, k, n, r < rows && i < width ? m.values[r * width + i] : 0.0f);
        }
    for (int64_t i = count; i < count + 32; i++) assert_int_equal(b[i], canary);
    free(b);
    free_matrix(&m);
}

static void packing(void **state) {
    (void)state;
    FOR_EACH_KIND(t)
    for
        EACH_SIZE
    for (int way = 0; way < 4; way++) check_packing(t, kind, sizes[s][0], sizes[s][1], way % 2 == 0, way >= 2);
}

static void queries_are_padded(void **state) {
    (void)state;
    FOR_EACH_KIND(t)
    for
        EACH_SIZE {
            int64_t width = sizes[s][1], stride = round_up(width, t->depth);
            matrix m = new_matrix(5, width);
            float *a = zeroed(5 * stride * 4);
            for (int64_t i = 0; i < 5 * stride + 16; i++) a[i] = 7.0f;
            for (int64_t i = 0; i < 5 * width; i++) m.values[i] = random_float(-10, 10);
            store_matrix(&m, kinds[kind].type);
            t->load_queries(a, stride, m.addresses, 5, width, kinds[kind].type, 0.3f);
            for (int64_t i = 0; i < 5 * stride; i++) {
                int64_t r = i / stride, k = i % stride;
                assert_true(a[i] == (k < width ? 0.3f * m.values[r * width + k] : 0.0f));
            }
            for (int64_t i = 5 * stride; i < 5 * stride + 16; i++) assert_true(a[i] == 7.0f);
            free(a);
            free_matrix(&m);
        }
}

/* ---- Products ---- */

/* C = A B^T of one multiply; B by columns, as keys. */
typedef struct product {
    const fa_cpu_kernels *t;
    int kind;
    int64_t rows, columns, depth;
    float *a, *c, *before, *row_scale;
    matrix b;
    uint16_t *packed;
} product;

static product new_product(const fa_cpu_kernels *t, int kind, int64_t rows, int64_t columns, int64_t depth) {
    product p = {.t = t, .kind = kind, .rows = rows, .columns = columns, .depth = depth};
    p.a = zeroed(rows * depth * 4);
    p.c = zeroed(rows * columns * 4);
    p.before = zeroed(rows * columns * 4);
    p.row_scale = zeroed(rows * 4);
    p.b = new_matrix(columns, depth);
    p.packed = zeroed(columns * depth * t->b_bytes);
    return p;
}

static void free_product(product *p) {
    free(p->a), free(p->c), free(p->before), free(p->row_scale), free(p->packed);
    free_matrix(&p->b);
}

static void fill(product *p, int low, int high) {
    for (int64_t i = 0; i < p->rows * p->depth; i++) p->a[i] = random_float(low, high);
    for (int64_t i = 0; i < p->columns * p->depth; i++) p->b.values[i] = random_float(low, high);
    for (int64_t i = 0; i < p->rows * p->columns; i++) p->before[i] = random_float(low, high);
    for (int64_t r = 0; r < p->rows; r++) p->row_scale[r] = random_float(-3, 0);
}

static void compute(product *p, bool scaled) {
    store_matrix(&p->b, kinds[p->kind].type);
    p->t->pack_keys(p->packed, p->b.addresses, p->columns, p->depth, kinds[p->kind].type);
    memcpy(p->c, p->before, (size_t)(p->rows * p->columns) * sizeof(float));
    p->t->multiply(p->c, p->columns, p->a, p->depth, p->packed, p->depth, p->rows, p->columns, p->depth,
                   scaled ? p->row_scale : NULL);
    p->t->leave();
}

/* The bound of docs/numerics.md; NaN and infinity where double precision has them. */
static void judge_element(const product *p, int64_t r, int64_t n, bool scaled) {
    double sum = 0, magnitude = 0, operands = 0, got = (double)p->c[r * p->columns + n];
    for (int64_t k = 0; k < p->depth; k++) {
        double x = (double)p->a[r * p->depth + k], y = (double)p->b.values[n * p->depth + k];
        sum += x * y;
        magnitude += fabs(x * y);
        operands += fabs(x) + fabs(y);
    }
    double roundings = 16 + (double)(p->depth / 32) + 1.5;
    double bound = roundings * (1 + 0x1p-6) * 0x1p-24 * magnitude;
    if (scaled) {
        double old = (double)p->row_scale[r] * (double)p->before[r * p->columns + n];
        sum += old;
        bound += 0x1p-24 * fabs(sum) * 1.01;
    }
    bound += 0x1p-125 * operands + 7 * (double)p->depth * 0x1p-126;
    bool right = isnan(sum) ? isnan(got) : isinf(sum) ? got == sum : fabs(got - sum) <= bound;
    if (isfinite(sum) && magnitude > (double)FLT_MAX && !isfinite(got)) right = true; /* it may overflow on the way */
    if (!right)
        fail_msg("%s, %d rows, depth %d: c[%d][%d] = %.9g, must be %.9g within %.3g",
                 p->t->b_bytes == 6 ? "float32" : "float16", (int)p->rows, (int)p->depth, (int)r, (int)n, got, sum,
                 bound);
}

static void judge_product(const product *p, bool scaled) {
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t n = 0; n < p->columns; n++) judge_element(p, r, n, scaled);
}

static void heights_and_depths(void **state) {
    (void)state;
    FOR_EACH_KIND(t)
    for (int64_t i = 0; i <= 70; i++) {
        bool scaled = i % 3 == 0;
        product p = new_product(t, kind, i < 50 ? i : 20, i % 5 == 0 ? 64 : 32,
                                i < 50 ? 32 + i % 2 * 32 : (i - 49) % 8 * 32 + 32);
        fill(&p, -3, 3);
        compute(&p, scaled);
        judge_product(&p, scaled);
        free_product(&p);
    }
}

/* One product in each sum, so that each product of parts counts: none but those beyond float32's precision may be missing. */
static void single_products(void **state) {
    (void)state;
    FOR_EACH_KIND(t)
    for (int64_t k = 0; k < 64; k++) {
        product p = new_product(t, kind, 19, 32, 64);
        fill(&p, -3, 3);
        for (int64_t i = 0; i < p.rows * p.depth; i++)
            if (i % p.depth != k) p.a[i] = 0;
        compute(&p, false);
        for (int64_t r = 0; r < p.rows; r++)
            for (int64_t n = 0; n < p.columns; n++) {
                double want = (double)p.a[r * p.depth + k] * (double)p.b.values[n * p.depth + k];
                double got = (double)p.c[r * p.columns + n];
                if (!(fabs(got - want) <= 2.1 * 0x1p-24 * fabs(want))) fail_msg("%a, must be %a", got, want);
            }
        free_product(&p);
    }
}

/* Products that cancel but for their last bits, in any order. */
static void cancellation(void **state) {
    (void)state;
    FOR_EACH_KIND(t)
    for (int i = 0; i < 10; i++) {
        product p = new_product(t, kind, 33, 32, 128);
        fill(&p, -8, 8);
        for (int64_t r = 0; r < p.rows; r++)
            for (int64_t k = 0; k < 64; k++)
                p.a[r * p.depth + 127 - k] = -p.a[r * p.depth + k] * (i % 2 ? 1.0f : 1 + 0x1p-23f);
        for (int64_t n = 0; n < p.columns; n++)
            for (int64_t k = 0; k < 64; k++) p.b.values[n * p.depth + 127 - k] = p.b.values[n * p.depth + k];
        compute(&p, false);
        judge_product(&p, false);
        free_product(&p);
    }
}

/* The ends of float32's range: parts and products that count as 0, and sums near the largest number. */
static void large_and_tiny(void **state) {
    (void)state;
    static const int exponents[][4] = {
        /* of A, of B */
        {-126, -120, 0, 5},  {-149, -126, 0, 10}, {-149, -100, 100, 110}, {-70, -60, -70, -60}, {115, 120, -20, 0},
        {127, 127, -10, -8}, {-40, 40, -40, 40},  {-20, -10, 126, 127},   {-105, -95, -5, 15},  {60, 62, 55, 57}};
    FOR_EACH_KIND(t)
    for (size_t i = 0; i < sizeof exponents / sizeof *exponents; i++)
        for (int scaled = 0; scaled < 2; scaled++) {
            product p = new_product(t, kind, 18, 32, 64);
            fill(&p, -20, 5);
            for (int64_t j = 0; j < p.rows * p.depth; j++) p.a[j] = random_float(exponents[i][0], exponents[i][1]);
            for (int64_t j = 0; j < p.columns * p.depth && kind == 0; j++)
                p.b.values[j] = random_float(exponents[i][2], exponents[i][3]);
            compute(&p, scaled != 0);
            judge_product(&p, scaled != 0);
            free_product(&p);
        }
}

/* First parts, larger than the operands, whose product overflows though the operands' is a float32 number. */
static void sums_just_below_the_largest_number(void **state) {
    (void)state;
    FOR_EACH_KIND(t) {
        product p = new_product(t, kind, 3, 32, 32);
        for (int64_t r = 0; r < p.rows; r++) p.a[r * p.depth] = r % 2 ? -0x1.fdp127f : 0x1.fdp127f;
        for (int64_t n = 0; n < p.columns; n++) p.b.values[n * p.depth] = n % 2 ? 1.0f : 0x1.014p0f;
        compute(&p, false);
        for (int64_t r = 0; r < p.rows; r++)
            for (int64_t n = 0; n < p.columns; n++)
                assert_true(p.c[r * p.columns + n] == p.a[r * p.depth] * p.b.values[n * p.depth]);
        free_product(&p);
    }
}

/* NaN and infinity reach what they must, as what they must, and nothing else changes a bit. */
static void infinity_and_nan(void **state) {
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    static const float partners[] = {0.0f, 1.0f, -1.0f, 0x1.23456p0f, -0x1.fffffep3f, 0x1p-126f, INFINITY, -INFINITY};
    enum { ROW = 5, COLUMN = 11, K = 37 };
    FOR_EACH_KIND(t)
    for (int i = 0; i < 3 * 8 * 2; i++) {
        product p = new_product(t, kind, 20, 32, 64);
        fill(&p, -3, 3);
        compute(&p, false);
        memcpy(p.before, p.c, (size_t)(p.rows * p.columns) * sizeof(float));
        float *in_a = p.a + ROW * p.depth + K, *in_b = p.b.values + COLUMN * p.depth + K;
        *(i % 2 ? in_a : in_b) = bad[i / 2 % 3];
        *(i % 2 ? in_b : in_a) = partners[i / 6];
        product q = p;
        q.c = zeroed(p.rows * p.columns * 4);
        compute(&q, false);
        for (int64_t r = 0; r < p.rows; r++)
            for (int64_t n = 0; n < p.columns; n++) {
                if (r == ROW || n == COLUMN)
                    judge_element(&q, r, n, false);
                else
                    assert_memory_equal(&q.c[r * p.columns + n], &p.c[r * p.columns + n], sizeof(float));
            }
        free(q.c);
        free_product(&p);
    }
}

/* Weights that are NaN make their row of the output NaN, and one that is infinite or overflows stays not finite. */
static void outputs_that_are_not_finite(void **state) {
    (void)state;
    FOR_EACH_KIND(t) {
        product p = new_product(t, kind, 20, 32, 64);
        fill(&p, -3, 3);
        p.a[3 * p.depth + 40] = NAN;
        p.before[7 * p.columns + 9] = INFINITY;
        compute(&p, true);
        for (int64_t r = 0; r < p.rows; r++)
            for (int64_t n = 0; n < p.columns; n++) judge_element(&p, r, n, true);
        free_product(&p);
    }
}

/* A row's bits do not depend on its neighbours, nor on how much deeper B is. */
static void rows_alone(void **state) {
    (void)state;
    FOR_EACH_KIND(t) {
        product p = new_product(t, kind, 45, 64, 96);
        fill(&p, -3, 3);
        compute(&p, true);
        float *alone = zeroed(p.columns * 4);
        for (int64_t r = 0; r < p.rows; r++) {
            memcpy(alone, p.before + r * p.columns, (size_t)p.columns * sizeof *alone);
            t->multiply(alone, p.columns, p.a + r * p.depth, p.depth, p.packed, p.depth, 1, p.columns, p.depth,
                        p.row_scale + r);
            assert_memory_equal(alone, p.c + r * p.columns, (size_t)p.columns * sizeof *alone);
        }
        for (int64_t i = 0; i < p.rows * p.depth; i++)
            if (i % p.depth >= 64) p.a[i] = 0;
        compute(&p, false);
        t->multiply(p.before, p.columns, p.a, p.depth, p.packed, p.depth, p.rows, p.columns, 64, NULL);
        t->leave();
        assert_memory_equal(p.before, p.c, (size_t)(p.rows * p.columns) * sizeof(float));
        free(alone);
        free_product(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(packing),
                                       cmocka_unit_test(queries_are_padded),
                                       cmocka_unit_test(heights_and_depths),
                                       cmocka_unit_test(single_products),
                                       cmocka_unit_test(cancellation),
                                       cmocka_unit_test(large_and_tiny),
                                       cmocka_unit_test(sums_just_below_the_largest_number),
                                       cmocka_unit_test(infinity_and_nan),
                                       cmocka_unit_test(outputs_that_are_not_finite),
                                       cmocka_unit_test(rows_alone)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
