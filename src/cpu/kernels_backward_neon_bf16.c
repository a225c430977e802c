/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward's products of bfloat16 operands in NEON with BF16. BFDOT multiplies two pairs per lane and adds the sum of both
 * products to a float32 sum, with two roundings to odd and subnormal numbers as 0: kernels_neon_bf16.c says it all.
 */
#include "kernels_backward.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#    include "kernels_neon_bf16.h"

#    define v_dot(a, b, c) v_dot_pairs(a, b, c)

#    include "kernels_backward_multiply.h"

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
    const fa_cpu_products *plain = &fa_cpu_backward_kernels_neon()->products;
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

/* Two rows side by side: 16 elements, x0 y0 x1 y1 ... */
static inline void store_pairs(float *dst, uint16x8_t x, uint16x8_t y) {
    store_8(dst, vzip1q_u16(x, y));
    store_8(dst + LANES, vzip2q_u16(x, y));
}

/* Two rows at a time, so that the elements of a column stand side by side. */
static bool pack_panels(void *operand, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    (void)type;
    const uint16x8_t magnitude = vdupq_n_u16(0x7fff);
    uint16x8_t largest = vdupq_n_u16(0);
    int64_t depth = words(count);
    for (int64_t k = 0; k < depth; k++) {
        float *dst = (float *)operand + k * PANEL;
        for (int64_t n = 0; n < width; n += PANEL, dst += depth * PANEL) {
            uint16x8_t even = load_8(rows[2 * k], n, width);
            uint16x8_t odd = 2 * k + 1 < count ? load_8(rows[2 * k + 1], n, width) : vdupq_n_u16(0);
            largest = vmaxq_u16(largest, vmaxq_u16(vandq_u16(even, magnitude), vandq_u16(odd, magnitude)));
            store_pairs(dst, even, odd);
        }
    }
    return vmaxvq_u16(largest) >= 0x7f80;
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
    static const fa_cpu_products products = {.operand = FA_ELEMENT_BFLOAT16,
                                             .step = 2,
                                             .panel = PANEL,
                                             .pack_rows = pack_rows,
                                             .pack_columns = pack_columns,
                                             .pack_panels = pack_panels,
                                             .pack_weights = pack_weights,
                                             .multiply = product_plain,
                                             .multiply_transposed = product_transposed};
    return &products;
}

#else

const fa_cpu_products *fa_cpu_products_neon_bf16(void) { return NULL; }

#endif
