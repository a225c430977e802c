/* SPDX-License-Identifier: Apache-2.0 */
/* Backward's micro-kernels by themselves: packing and products of every kind of operand against float64,
 * softmax_backward against its formula. Nothing outside the results is written. */
#include "support/random.h"
#include "support/testing.h"

#include "cpu/kernels_backward.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const fa_cpu_backward_kernels *tables[4];
static const fa_cpu_products *products[6];
static int table_count, product_count;
static rng source;

static int set_up(void **state) {
    (void)print_seed(state);
    source = rng_named("backward kernels", 0);
    static const struct {
        fa_isa isa;
        const fa_cpu_backward_kernels *(*table)(void);
    } all[] = {{FA_ISA_PORTABLE, fa_cpu_backward_kernels_portable},
               {FA_ISA_NEON, fa_cpu_backward_kernels_neon},
               {FA_ISA_AVX2, fa_cpu_backward_kernels_avx2},
               {FA_ISA_AVX512, fa_cpu_backward_kernels_avx512}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (fa_isa_supported(all[i].isa) != FA_OK) continue;
        tables[table_count++] = all[i].table();
        products[product_count++] = &all[i].table()->products;
    }
    if (fa_isa_supported(FA_ISA_AVX512_BF16) == FA_OK) {
        products[product_count++] = fa_cpu_products_avx512_bf16();
        products[product_count++] = fa_cpu_products_amx(); /* in a model of the tile instructions */
    }
    if (fa_isa_supported(FA_ISA_NEON_BF16) == FA_OK) products[product_count++] = fa_cpu_products_neon_bf16();
    return 0;
}

/* ---- Matrices ---- */

#define CANARY 0x1.23456p+77f
enum { ROOM = 96 * 320 };

/* `count` rows of `width` numbers of the operand's dtype, at odd addresses. */
typedef struct matrix {
    int64_t count, width;
    fa_element type;
    unsigned char *bytes;
    const void *rows[128];
} matrix;

static matrix random_matrix(int64_t count, int64_t width, fa_element type) {
    matrix m = {.count = count, .width = width, .type = type};
    int64_t size = fa_element_size(type);
    m.bytes = malloc((size_t)(count * (width * size + 1)) + 1);
    assert_non_null(m.bytes);
    for (int64_t r = 0; r < count; r++) {
        unsigned char *row = m.bytes + r * (width * size + 1);
        m.rows[r] = row;
        for (int64_t i = 0; i < width; i++) fa_element_store(row + i * size, rng_normal(&source), type);
    }
    return m;
}

static double element(const matrix *m, int64_t row, int64_t i) {
    return fa_element_load((const char *)m->rows[row] + i * fa_element_size(m->type), m->type);
}

static int64_t words(const fa_cpu_products *p, int64_t depth) { return (depth + p->step - 1) / p->step; }

static int64_t whole(const fa_cpu_products *p, int64_t columns) {
    return (columns + p->panel - 1) / p->panel * p->panel;
}

static float *buffer(void) {
    float *b = aligned_alloc(64, ROOM * sizeof *b);
    assert_non_null(b);
    for (int64_t i = 0; i < ROOM; i++) b[i] = CANARY;
    return b;
}

/* |x - sum| is within the roundings of a float32 sum of `depth` products whose magnitudes add up to `size`. */
static void expect_sum(double x, double sum, double size, int64_t depth) {
    double allowed = 0x1p-24 * (double)(depth + 2) * size + 1e-37;
    if (!(fabs(x - sum) <= allowed)) fail_msg("%.9g, not %.9g: off by %.3g > %.3g", x, sum, fabs(x - sum), allowed);
}

static const int64_t widths[] = {1, 2, 3, 7, 16, 31, 33, 64, 65, 97, 128};
enum { WIDTHS = sizeof widths / sizeof widths[0] };

/* C = factor * A B^T, and C += A B^T, for rows of any number and width. */
static void multiply_by_columns(void **state) {
    (void)state;
    for (int which = 0; which < product_count; which++)
        for (int w = 0; w < WIDTHS; w++)
            for (int64_t rows = 1; rows <= 40; rows += 1 + rows / 5) {
                const fa_cpu_products *p = products[which];
                int64_t width = widths[w], keys = rng_range(&source, 1, FA_BACKWARD_KEYS), depth = words(p, width);
                int64_t columns = whole(p, keys), stride = columns + rng_range(&source, 0, 5);
                matrix a = random_matrix(rows, width, p->operand), b = random_matrix(keys, width, p->operand);
                float *left = buffer(), *right = buffer(), *c = buffer(), *alone = buffer();
                p->pack_rows(left, depth, a.rows, rows, width, a.type);
                p->pack_columns(right, b.rows, keys, width, b.type);
                p->multiply(c, stride, left, depth, right, rows, columns, depth, -0.5f, false);
                p->multiply(c, stride, left, depth, right, rows, columns, depth, 1.0f, true);
                for (int64_t r = 0; r < rows; r++) {
                    for (int64_t n = 0; n < keys; n++) {
                        double sum = 0, size = 0;
                        for (int64_t i = 0; i < width; i++) {
                            sum += element(&a, r, i) * element(&b, n, i);
                            size += fabs(element(&a, r, i) * element(&b, n, i));
                        }
                        expect_sum((double)c[r * stride + n], 0.5 * sum, 1.5 * size, width);
                    }
                    for (int64_t n = columns; n < stride; n++) assert_true(c[r * stride + n] == CANARY);
                    /* The same bits alone. */
                    p->multiply(alone, stride, left + r * depth, depth, right, 1, columns, depth, -0.5f, false);
                    p->multiply(alone, stride, left + r * depth, depth, right, 1, columns, depth, 1.0f, true);
                    assert_memory_equal(alone, c + r * stride, (size_t)keys * sizeof *c);
                }
                assert_true(c[rows * stride] == CANARY);
                free(a.bytes), free(b.bytes), free(left), free(right), free(c), free(alone);
            }
}

/* C += A^T B with A from a float32 matrix of weights, and from row `top` of both on; likewise C += A B by columns. */
static void multiply_by_weights(void **state) {
    (void)state;
    for (int which = 0; which < product_count; which++)
        for (int w = 0; w < WIDTHS; w++)
            for (int64_t rows = 1; rows <= 96; rows += 1 + rows / 4) {
                const fa_cpu_products *p = products[which];
                int64_t width = widths[w], keys = rng_range(&source, 1, FA_BACKWARD_KEYS);
                int64_t top = rng_range(&source, 0, rows - 1) / p->step * p->step, columns = whole(p, width);
                int64_t key_words = words(p, FA_BACKWARD_KEYS);
                matrix q = random_matrix(rows, width, p->operand), k = random_matrix(keys, width, p->operand);
                float *x = buffer(), *by_rows = x, *by_columns = x, *panels = buffer(), *c = buffer(), *dq = buffer();
                for (int64_t i = 0; i < rows * FA_BACKWARD_KEYS; i++)
                    x[i] = i % FA_BACKWARD_KEYS < keys ? (float)rng_normal(&source) : 0.0f;
                if (p->pack_weights != NULL) {
                    by_rows = buffer(), by_columns = buffer();
                    p->pack_weights(by_rows, by_columns, x, rows);
                    for (int64_t i = 0; i < rows * FA_BACKWARD_KEYS; i++)
                        x[i] = fa_float_from_bfloat16(fa_bfloat16_from_float(x[i]));
                }
                for (int64_t i = 0; i < keys * columns; i++) c[i] = 1.0f;
                for (int64_t i = 0; i < rows * columns; i++) dq[i] = 1.0f;
                assert_false(p->pack_panels(panels, q.rows, rows, width, q.type));
                p->multiply_transposed(c, columns, by_rows + top / p->step * FA_BACKWARD_KEYS, FA_BACKWARD_KEYS,
                                       panels + top / p->step * p->panel, words(p, rows), keys, columns,
                                       words(p, rows - top));
                for (int64_t j = 0; j < keys; j++)
                    for (int64_t i = 0; i < width; i++) {
                        double sum = 1, size = 1;
                        for (int64_t r = top; r < rows; r++) {
                            double term = (double)x[r * FA_BACKWARD_KEYS + j] * element(&q, r, i);
                            sum += term;
                            size += fabs(term);
                        }
                        expect_sum((double)c[j * columns + i], sum, size, rows - top);
                    }
                assert_true(c[keys * columns] == CANARY);

                assert_false(p->pack_panels(panels, k.rows, keys, width, k.type));
                p->multiply(dq, columns, by_columns, key_words, panels, rows, columns, words(p, keys), 1.0f, true);
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t i = 0; i < width; i++) {
                        double sum = 1, size = 1;
                        for (int64_t j = 0; j < keys; j++) {
                            double term = (double)x[r * FA_BACKWARD_KEYS + j] * element(&k, j, i);
                            sum += term;
                            size += fabs(term);
                        }
                        expect_sum((double)dq[r * columns + i], sum, size, keys);
                    }
                assert_true(dq[rows * columns] == CANARY);
                if (by_rows != x) free(by_rows), free(by_columns);
                free(q.bytes), free(k.bytes), free(x), free(panels), free(c), free(dq);
            }
}

static void panels_tell_of_nan_and_infinity(void **state) {
    (void)state;
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (int which = 0; which < product_count; which++)
        for (int w = 0; w < WIDTHS; w++) {
            const fa_cpu_products *p = products[which];
            int64_t count = rng_range(&source, 1, 96);
            matrix m = random_matrix(count, widths[w], p->operand);
            float *panels = buffer();
            fa_element_store(m.bytes, 0x1.fcp127, m.type); /* finite */
            assert_false(p->pack_panels(panels, m.rows, count, m.width, m.type));
            char *row = (char *)m.bytes + (count - 1) * (m.width * fa_element_size(m.type) + 1);
            fa_element_store(row + (m.width - 1) * fa_element_size(m.type), bad[w % 3], m.type);
            assert_true(p->pack_panels(panels, m.rows, count, m.width, m.type));
            free(m.bytes), free(panels);
        }
}

static void weights_and_their_gradients(void **state) {
    (void)state;
    for (int t = 0; t < table_count; t++)
        for (int round = 0; round < 50; round++) {
            float s[3 * 64], d[3 * 64], score[3 * 64], product[3 * 64], lse[3], delta[3];
            for (int r = 0; r < 3; r++) {
                lse[r] = (float)(3 + rng_normal(&source));
                delta[r] = (float)rng_normal(&source);
            }
            for (int i = 0; i < 3 * 64; i++) {
                s[i] = (float)fmin(30 * rng_normal(&source) - 40, 20); /* a score is hardly ever above its lse */
                d[i] = (float)rng_normal(&source);
                if (rng_chance(&source, 0.2)) s[i] = -INFINITY, d[i] = NAN; /* hidden */
            }
            s[5] = NAN; /* visible */
            d[6] = NAN, s[6] = -1;
            lse[2] = NAN, delta[2] = NAN; /* a row that sees nothing */
            for (int i = 128; i < 192; i++) s[i] = -INFINITY;
            memcpy(score, s, sizeof s);
            memcpy(product, d, sizeof d);
            tables[t]->softmax_backward(s, d, 64, 3, 64, lse, delta);
            for (int i = 0; i < 3 * 64; i++) {
                if (score[i] == -INFINITY) {
                    assert_true(s[i] == 0.0f && d[i] == 0.0f);
                    continue;
                }
                float exponent = score[i] - lse[i / 64];
                double weight = exponent < -87.0f ? 0 : exp((double)exponent);
                double gradient = weight * ((double)product[i] - (double)delta[i / 64]);
                if (isnan(weight)) assert_true(isnan(s[i]));
                if (isnan(gradient)) assert_true(isnan(d[i]));
                if (isnan(gradient)) continue;
                if (!(fabs((double)s[i] - weight) <= 0x1p-23 * weight) ||
                    !(fabs((double)d[i] - gradient) <= 0x1p-21 * weight * (fabs((double)product[i]) + 4)))
                    fail_msg("s %g, lse %g: weight %.9g, not %.9g; gradient %.9g, not %.9g", (double)score[i],
                             (double)lse[i / 64], (double)s[i], weight, (double)d[i], gradient);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(multiply_by_columns), cmocka_unit_test(multiply_by_weights),
                                       cmocka_unit_test(panels_tell_of_nan_and_infinity),
                                       cmocka_unit_test(weights_and_their_gradients)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
