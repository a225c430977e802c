/* SPDX-License-Identifier: Apache-2.0 */
/* Backward's table (kernels_backward.h) for the vector instruction sets, over the vocabulary of kernels_simd.h. */
#ifndef FA_CPU_KERNELS_BACKWARD_SIMD_H
#define FA_CPU_KERNELS_BACKWARD_SIMD_H

#define v_dot(a, b, c) v_fma(a, b, c)

#include "kernels_backward_multiply.h"

static void softmax_backward(float *s, float *d, int64_t stride, int64_t rows, int64_t keys, const float *lse,
                             const float *delta) {
    for (int64_t r = 0; r < rows; r++, s += stride, d += stride) {
        vector shift = v_set(lse[r]), mean = v_set(delta[r]), hidden = v_set(-FLT_MAX);
        for (int64_t j = 0; j < keys; j += LANES) {
            vector x = v_load(s + j);
            vector weight = v_exp(v_sub(x, shift));
            vector gradient = v_mul(weight, v_sub(v_load(d + j), mean));
            v_store(s + j, v_zero_if_less(x, hidden, weight));
            v_store(d + j, v_zero_if_less(x, hidden, gradient));
        }
    }
}

static void pack_operand_rows(float *a, int64_t stride, const void *const *rows, int64_t count, int64_t width,
                              fa_element type) {
    load_rows(a, stride, rows, count, width, type, 1.0f);
}

/* The table's contents. */
#define BACKWARD_KERNELS                                                                                         \
    {                                                                                                            \
        .products = {.operand = FA_ELEMENT_FLOAT32,                                                              \
                     .step = 1,                                                                                  \
                     .panel = PANEL,                                                                             \
                     .pack_rows = pack_operand_rows,                                                             \
                     .pack_columns = pack_keys,                                                                  \
                     .pack_panels = pack_values,                                                                 \
                     .multiply = product_plain,                                                                  \
                     .multiply_transposed = product_transposed},                                                 \
        .softmax_backward = softmax_backward, .load_rows = load_rows, .softcap = softcap, .store_row = store_row \
    }

#endif
