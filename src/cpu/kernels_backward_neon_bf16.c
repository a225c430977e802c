/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward's products of bfloat16 operands in NEON with BF16. BFDOT multiplies two pairs per lane and adds the sum of both
 * products to a float32 sum, with two roundings to odd and subnormal numbers as 0: kernels_neon_bf16.c says it all.
 */
#include "kernels_backward.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#    include "kernels_neon_bf16.h"

#    define FLOAT32_PRODUCTS (&fa_cpu_backward_kernels_neon()->products)

#    include "kernels_backward_bf16.h"

/* Two rows side by side: 16 elements, x0 y0 x1 y1 ... */
static inline void store_pairs(float *dst, uint16x8_t x, uint16x8_t y) {
    store_8(dst, vzip1q_u16(x, y));
    store_8(dst + LANES, vzip2q_u16(x, y));
}

static void pack_weights(float *by_rows, float *by_columns, const float *x, int64_t rows) {
    for (int64_t r = 0; r < rows; r += 2, x += 2 * FA_BACKWARD_KEYS)
        for (int64_t j = 0; j < FA_BACKWARD_KEYS; j += 2 * LANES) {
            uint16x8_t even = round_8(v_load(x + j), v_load(x + j + LANES)), odd = vdupq_n_u16(0);
            if (r + 1 < rows) odd = round_8(v_load(x + FA_BACKWARD_KEYS + j), v_load(x + FA_BACKWARD_KEYS + j + LANES));
            if (by_rows != NULL) store_pairs(by_rows + r / 2 * FA_BACKWARD_KEYS + j, even, odd);
            if (by_columns != NULL) {
                float *dst = by_columns + (r * FA_BACKWARD_KEYS + j) / 2;
                store_8(dst, even);
                if (r + 1 < rows) store_8(dst + FA_BACKWARD_KEYS / 2, odd);
            }
        }
}

const fa_cpu_products *fa_cpu_products_neon_bf16(void) {
    static const fa_cpu_products products = BFLOAT16_PRODUCTS;
    return &products;
}

#else

const fa_cpu_products *fa_cpu_products_neon_bf16(void) { return NULL; }

#endif
