/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What backward's products of bfloat16 operands have in common, over the vocabulary of kernels_avx512_bf16.h or
 * kernels_neon_bf16.h and
 *
 *     FLOAT32_PRODUCTS         the fa_cpu_products of the same vectors with float32 operands
 */
#ifndef FA_CPU_KERNELS_BACKWARD_BF16_H
#define FA_CPU_KERNELS_BACKWARD_BF16_H

#define v_dot(a, b, c) v_dot_pairs(a, b, c)

#include "kernels_backward_multiply.h"

static int64_t words(int64_t depth) { return (depth + 1) / 2; }

static void pack_rows(float *a, int64_t stride, const void *const *rows, int64_t count, int64_t width,
                      fa_element type) {
    (void)type;
    for (int64_t r = 0; r < count; r++) {
        char *dst = (char *)(a + r * stride);
        memcpy(dst, rows[r], (size_t)width * 2);
        if (width % 2 != 0) memset(dst + 2 * width, 0, 2);
    }
}

/* A column of words is a row of words transposed, as for float32. */
static void pack_columns(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    (void)type;
    const fa_cpu_products *plain = FLOAT32_PRODUCTS;
    if (width % 2 == 0) {
        plain->pack_columns(b, rows, count, width / 2, FA_ELEMENT_FLOAT32);
        return;
    }
    uint16_t filled[FA_BACKWARD_KEYS][256];
    const void *filled_rows[FA_BACKWARD_KEYS];
    for (int64_t n = 0; n < count; n++) {
        memcpy(filled[n], rows[n], (size_t)width * 2);
        filled[n][width] = 0;
        filled_rows[n] = filled[n];
    }
    plain->pack_columns(b, filled_rows, count, words(width), FA_ELEMENT_FLOAT32);
}

/* Two rows at a time, so that the elements of a column stand side by side. */
static bool pack_panels(void *operand, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    (void)type;
    vector largest = v_set(0.0f);
    int64_t depth = words(count);
    for (int64_t k = 0; k < depth; k++) {
        float *dst = (float *)operand + k * PANEL;
        for (int64_t n = 0; n < width; n += PANEL, dst += depth * PANEL) {
            vector low, high;
            v_load_two_rows(rows[2 * k], 2 * k + 1 < count ? rows[2 * k + 1] : NULL, n, width, &low, &high);
            largest = v_max_pair_magnitudes(v_max_pair_magnitudes(largest, low), high);
            v_store(dst, low);
            v_store(dst + LANES, high);
        }
    }
    return v_any_nonfinite_pair(largest);
}

/* With the file's own pack_weights. */
#define BFLOAT16_PRODUCTS                                                                       \
    {                                                                                           \
        .operand = FA_ELEMENT_BFLOAT16, .step = 2, .panel = PANEL, .pack_rows = pack_rows,      \
        .pack_columns = pack_columns, .pack_panels = pack_panels, .pack_weights = pack_weights, \
        .multiply = product_plain, .multiply_transposed = product_transposed                    \
    }

#endif
