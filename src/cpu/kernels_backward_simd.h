/* SPDX-License-Identifier: Apache-2.0 */
/* Backward's micro-kernels (kernels_backward.h) for the vector instruction sets, over the vocabulary of kernels_simd.h and
 * the cells of kernels_multiply.h. */
#ifndef FA_CPU_KERNELS_BACKWARD_SIMD_H
#define FA_CPU_KERNELS_BACKWARD_SIMD_H

#include "kernels_backward.h"

/* As multiply_block() of kernels_multiply.h, but the rows of A^T lie side by side, so that one pointer serves them all. */
#define CELL_TRANSPOSED(i, b)                                 \
    if (i < rows) {                                           \
        vector x = v_set(a[i]);                               \
        sum[i][0] = v_fma(x, v_load(b), sum[i][0]);           \
        sum[i][1] = v_fma(x, v_load((b) + LANES), sum[i][1]); \
    }

#define CELL_ADD(i, zero)                                            \
    if (i < rows) {                                                  \
        float *dst = c + i * c_stride;                               \
        v_store(dst, v_add(v_load(dst), sum[i][0]));                 \
        v_store(dst + LANES, v_add(v_load(dst + LANES), sum[i][1])); \
    }

ALWAYS_INLINE void transposed_block(const int rows, float *c, int64_t c_stride, const float *a, int64_t a_stride,
                                    const float *b, int64_t depth) {
    vector sum[12][2];
    CELLS(CELL_ZERO, v_set(0.0f))
    for (int64_t k = 0; k < depth; k++, a += a_stride, b += PANEL) {
        CELLS(CELL_TRANSPOSED, b)
    }
    CELLS(CELL_ADD, 0)
}

#define TRANSPOSED_HEIGHT(rows) \
case rows: transposed_block(rows, c, c_stride, a, a_stride, b, depth); break

static void transposed_rows(int64_t rows, float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b,
                            int64_t depth) {
    switch (rows) {
        TRANSPOSED_HEIGHT(1);
        TRANSPOSED_HEIGHT(2);
        TRANSPOSED_HEIGHT(3);
        TRANSPOSED_HEIGHT(4);
        TRANSPOSED_HEIGHT(5);
        TRANSPOSED_HEIGHT(6);
#if BLOCK_ROWS >= 8
        TRANSPOSED_HEIGHT(7);
        TRANSPOSED_HEIGHT(8);
#endif
#if BLOCK_ROWS >= 12
        TRANSPOSED_HEIGHT(9);
        TRANSPOSED_HEIGHT(10);
        TRANSPOSED_HEIGHT(11);
        TRANSPOSED_HEIGHT(12);
#endif
    }
}

static void multiply_transposed(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b,
                                int64_t rows, int64_t columns, int64_t depth) {
    int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t n = 0; n < columns; n += PANEL)
        for (int64_t r = 0, left = blocks; left > 0; left--) {
            int64_t height = (rows - r + left - 1) / left;
            transposed_rows(height, c + r * c_stride + n, c_stride, a + r, a_stride, b + n * depth, depth);
            r += height;
        }
}

static void softmax_backward(float *s, float *d, int64_t stride, int64_t rows, int64_t keys, const float *lse,
                             const float *delta) {
    for (int64_t r = 0; r < rows; r++, s += stride, d += stride) {
        vector shift = v_set(lse[r]), mean = v_set(delta[r]);
        for (int64_t j = 0; j < keys; j += LANES) {
            vector x = v_load(s + j);
            vector weight = v_exp(v_sub(x, shift));
            vector gradient = v_mul(weight, v_sub(v_load(d + j), mean));
            v_store(s + j, v_zero_if_less(x, v_set(-FLT_MAX), weight));
            v_store(d + j, v_zero_if_less(x, v_set(-FLT_MAX), gradient));
        }
    }
}

#endif
