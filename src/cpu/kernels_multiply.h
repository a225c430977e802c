/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix multiply of the vector instruction sets, over the vocabulary of kernels_simd.h and
 *
 *     BLOCK_ROWS               rows of a block: 6, 8 or 12, so that 2 * BLOCK_ROWS sums fit into the registers
 *     v_fma_lane(a, i, b, c)   a[i] * b + c, where the instruction set multiplies by one lane of a register;
 *                              undefined elsewhere
 *
 * With OPERAND_BFLOAT16 a step of the depth is a pair of bfloat16 numbers (STEP 2), which is loaded and broadcast like a
 * float32 number, and multiplied by
 *
 *     v_dot_pairs(a, b, c)     c + the two products of each lane
 */
#ifndef FA_CPU_KERNELS_MULTIPLY_H
#define FA_CPU_KERNELS_MULTIPLY_H

/*
 * The outer-product kernel: `rows` rows of A times `panels` panels of B, sums in registers. Both counts are
 * constants where it is inlined, and rows * panels is at most 12. Cell i is one row by one panel, two vectors
 * wide. The preprocessor spells the cells out, since not every compiler unrolls such loops early enough to
 * keep an array in registers.
 */
#define CELLS(f, ...)                                                                                           \
    f(0, __VA_ARGS__) f(1, __VA_ARGS__) f(2, __VA_ARGS__) f(3, __VA_ARGS__) f(4, __VA_ARGS__) f(5, __VA_ARGS__) \
        f(6, __VA_ARGS__) f(7, __VA_ARGS__) f(8, __VA_ARGS__) f(9, __VA_ARGS__) f(10, __VA_ARGS__) f(11, __VA_ARGS__)

#ifdef OPERAND_BFLOAT16
#    define MULTIPLY_ADD(a, b, c) v_dot_pairs(a, b, c)
#else
#    define MULTIPLY_ADD(a, b, c) v_fma(a, b, c)
#    define STEP 1
#endif

#define CELL_ZERO(i, zero) sum[i][0] = sum[i][1] = zero;

#define CELL_MULTIPLY(i, b)                                                                    \
    if (i < rows * panels) {                                                                   \
        vector x = v_set(row[i / panels / 3][i / panels % 3 * a_stride]);                      \
        sum[i][0] = MULTIPLY_ADD(x, v_load((b) + i % panels * panel_size), sum[i][0]);         \
        sum[i][1] = MULTIPLY_ADD(x, v_load((b) + i % panels * panel_size + LANES), sum[i][1]); \
    }

#define CELL_STORE(i, scale)                                         \
    if (i < rows * panels) {                                         \
        float *dst = c + i / panels * c_stride + i % panels * PANEL; \
        if (scale != NULL) {                                         \
            vector x = v_set(scale[i / panels]);                     \
            sum[i][0] = v_fma(x, v_load(dst), sum[i][0]);            \
            sum[i][1] = v_fma(x, v_load(dst + LANES), sum[i][1]);    \
        }                                                            \
        v_store(dst, sum[i][0]);                                     \
        v_store(dst + LANES, sum[i][1]);                             \
    }

ALWAYS_INLINE void multiply_block(const int rows, const int panels, float *c, int64_t c_stride, const float *a,
                                  int64_t a_stride, const float *b, int64_t panel_size, int64_t depth,
                                  const float *row_scale) {
    int64_t k = 0;
    vector sum[12][2];
    CELLS(CELL_ZERO, v_set(0.0f))
    /* One pointer for three rows: a[0], a[a_stride] and a[2 * a_stride] are one addressing mode of x86. */
    const float *row[4] = {a, rows > 3 ? a + 3 * a_stride : a, rows > 6 ? a + 6 * a_stride : a,
                           rows > 9 ? a + 9 * a_stride : a};

#ifdef v_fma_lane
#    define CELL_LOAD(i, a) \
        if (i < rows) lanes[i] = v_load(row[i / 3] + i % 3 * a_stride);
#    define CELL_LANE(i, lane, b)                                                                                      \
        if (i < rows * panels) {                                                                                       \
            sum[i][0] = v_fma_lane(lanes[i / panels], lane, v_load((b) + i % panels * panel_size), sum[i][0]);         \
            sum[i][1] = v_fma_lane(lanes[i / panels], lane, v_load((b) + i % panels * panel_size + LANES), sum[i][1]); \
        }
    for (; k + 4 <= depth; k += 4, b += 4 * PANEL) {
        vector lanes[12];
        CELLS(CELL_LOAD, row)
        CELLS(CELL_LANE, 0, b)
        CELLS(CELL_LANE, 1, b + PANEL)
        CELLS(CELL_LANE, 2, b + 2 * PANEL)
        CELLS(CELL_LANE, 3, b + 3 * PANEL)
        row[0] += 4, row[1] += 4, row[2] += 4, row[3] += 4;
    }
#endif
    for (; k < depth; k++, b += PANEL) {
        CELLS(CELL_MULTIPLY, b)
        row[0]++, row[1]++, row[2]++, row[3]++;
    }
    CELLS(CELL_STORE, row_scale)
}

#define HEIGHT(rows) \
case rows: multiply_block(rows, 1, c, c_stride, a, a_stride, b, 0, depth, row_scale); break

static void multiply_rows(int64_t rows, float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b,
                          int64_t depth, const float *row_scale) {
    switch (rows) {
        HEIGHT(1);
        HEIGHT(2);
        HEIGHT(3);
        HEIGHT(4);
        HEIGHT(5);
        HEIGHT(6);
#if BLOCK_ROWS >= 8
        HEIGHT(7);
        HEIGHT(8);
#endif
#if BLOCK_ROWS >= 12
        HEIGHT(9);
        HEIGHT(10);
        HEIGHT(11);
        HEIGHT(12);
#endif
    }
}

static void multiply(float *c, int64_t c_stride, const void *a_operand, int64_t a_stride, const void *b_operand,
                     int64_t b_depth, int64_t rows, int64_t columns, int64_t depth, const float *row_scale) {
    const float *a = a_operand, *b = b_operand;
    int64_t n = 0, panel_size = b_depth / STEP * PANEL;
    a_stride /= STEP, depth /= STEP;
    /* Few rows have too few sums to hide the latency of the additions: several panels at once. */
    if (rows == 1)
        for (; n + 4 * PANEL <= columns; n += 4 * PANEL)
            multiply_block(1, 4, c + n, c_stride, a, a_stride, b + n / PANEL * panel_size, panel_size, depth,
                           row_scale);
    else if (rows == 2)
        for (; n + 2 * PANEL <= columns; n += 2 * PANEL)
            multiply_block(2, 2, c + n, c_stride, a, a_stride, b + n / PANEL * panel_size, panel_size, depth,
                           row_scale);
    else if (rows == 3)
        for (; n + 2 * PANEL <= columns; n += 2 * PANEL)
            multiply_block(3, 2, c + n, c_stride, a, a_stride, b + n / PANEL * panel_size, panel_size, depth,
                           row_scale);

    /* Rows in blocks of nearly equal height: a last block of one row would run at a fraction of the speed. */
    int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (; n < columns; n += PANEL) {
        for (int64_t r = 0, left = blocks; left > 0; left--) {
            int64_t height = (rows - r + left - 1) / left;
            multiply_rows(height, c + r * c_stride + n, c_stride, a + r * a_stride, a_stride,
                          b + n / PANEL * panel_size, depth, row_scale == NULL ? NULL : row_scale + r);
            r += height;
        }
    }
}

#endif
