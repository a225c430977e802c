/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix products of backward (kernels_backward.h), for the files that have defined
 *
 *     vector, LANES, PANEL, BLOCK_ROWS, v_set, v_load, v_store, v_add, v_mul     as in kernels_simd.h and
 *                              kernels_multiply.h
 *     v_dot(a, b, c)           c + the product of the words a and b
 */
#ifndef FA_CPU_KERNELS_BACKWARD_MULTIPLY_H
#define FA_CPU_KERNELS_BACKWARD_MULTIPLY_H

#include "kernels_backward.h"

/*
 * The outer-product kernel: `rows` rows of A, at most 12, times one panel of B, sums in registers. Row i is two vectors
 * wide. The preprocessor spells the rows out, since not every compiler unrolls such loops early enough to keep an array
 * in registers. Word k of row i of A: transposed, a[k * a_stride + i]; else row[i / 3][i % 3 * a_stride + k], one
 * pointer for three rows, since a[0], a[a_stride] and a[2 * a_stride] are one addressing mode of x86.
 */
#define EACH_ROW(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)

#define ROW_ZERO(i) low[i] = high[i] = v_set(0.0f);

#define ROW_MULTIPLY(i)                                                     \
    if (i < rows) {                                                         \
        vector x = v_set(transposed ? a[i] : row[i / 3][i % 3 * a_stride]); \
        low[i] = v_dot(x, v_load(b), low[i]);                               \
        high[i] = v_dot(x, v_load(b + LANES), high[i]);                     \
    }

#define ROW_STORE(i)                                                        \
    if (i < rows) {                                                         \
        float *dst = c + i * c_stride;                                      \
        vector x = low[i], y = high[i];                                     \
        v_store(dst, accumulate ? v_add(v_load(dst), x) : v_mul(scale, x)); \
        dst += LANES;                                                       \
        v_store(dst, accumulate ? v_add(v_load(dst), y) : v_mul(scale, y)); \
    }

static inline __attribute__((always_inline)) void product_block(const int rows, const bool transposed,
                                                                const bool accumulate, float *c, int64_t c_stride,
                                                                const float *a, int64_t a_stride, const float *b,
                                                                int64_t depth, float factor) {
    vector low[12], high[12], scale = v_set(factor);
    const float *row[4] = {a, rows > 3 ? a + 3 * a_stride : a, rows > 6 ? a + 6 * a_stride : a,
                           rows > 9 ? a + 9 * a_stride : a};
    EACH_ROW(ROW_ZERO)
    for (int64_t k = 0; k < depth; k++, b += PANEL) {
        EACH_ROW(ROW_MULTIPLY)
        if (transposed)
            a += a_stride;
        else
            row[0]++, row[1]++, row[2]++, row[3]++;
    }
    EACH_ROW(ROW_STORE)
}

#define PRODUCT_HEIGHT(rows) \
case rows: product_block(rows, transposed, accumulate, c, c_stride, a, a_stride, b, depth, factor); break

static inline __attribute__((always_inline)) void product_rows(int64_t rows, const bool transposed,
                                                               const bool accumulate, float *c, int64_t c_stride,
                                                               const float *a, int64_t a_stride, const float *b,
                                                               int64_t depth, float factor) {
    switch (rows) {
        PRODUCT_HEIGHT(1);
        PRODUCT_HEIGHT(2);
        PRODUCT_HEIGHT(3);
        PRODUCT_HEIGHT(4);
        PRODUCT_HEIGHT(5);
        PRODUCT_HEIGHT(6);
#if BLOCK_ROWS >= 8
        PRODUCT_HEIGHT(7);
        PRODUCT_HEIGHT(8);
#endif
#if BLOCK_ROWS >= 12
        PRODUCT_HEIGHT(9);
        PRODUCT_HEIGHT(10);
        PRODUCT_HEIGHT(11);
        PRODUCT_HEIGHT(12);
#endif
    }
}

static inline __attribute__((always_inline)) void product(const bool transposed, const bool accumulate, float *c,
                                                          int64_t c_stride, const float *a, int64_t a_stride,
                                                          const float *b, int64_t b_depth, int64_t rows,
                                                          int64_t columns, int64_t depth, float factor) {
    /* Rows in blocks of nearly equal height: a last block of one row would run at a fraction of the speed. */
    int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t n = 0; n < columns; n += PANEL)
        for (int64_t r = 0, left = blocks; left > 0; left--) {
            int64_t height = (rows - r + left - 1) / left;
            product_rows(height, transposed, accumulate, c + r * c_stride + n, c_stride,
                         transposed ? a + r : a + r * a_stride, a_stride, b + n * b_depth, depth, factor);
            r += height;
        }
}

static void product_plain(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b, int64_t rows,
                          int64_t columns, int64_t depth, float factor, bool accumulate) {
    if (accumulate)
        product(false, true, c, c_stride, a, a_stride, b, depth, rows, columns, depth, factor);
    else
        product(false, false, c, c_stride, a, a_stride, b, depth, rows, columns, depth, factor);
}

static void product_transposed(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b,
                               int64_t b_depth, int64_t rows, int64_t columns, int64_t depth) {
    product(true, true, c, c_stride, a, a_stride, b, b_depth, rows, columns, depth, 1.0f);
}

#endif
