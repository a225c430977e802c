/* SPDX-License-Identifier: Apache-2.0 */
/* Q, K and V as operands of bfloat16 on AVX-512 with BF16, for the files that define OPERAND_BFLOAT16 and DEPTH, the `depth`
 * of kernels.h. */
#ifndef FA_CPU_KERNELS_AVX512_BF16_OPERANDS_H
#define FA_CPU_KERNELS_AVX512_BF16_OPERANDS_H

#include "kernels_avx512_bf16.h"

#include "kernels_simd.h"

static int64_t padded(int64_t depth) { return (depth + DEPTH - 1) / DEPTH * DEPTH; }

static void load_queries(void *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                         fa_element type, float factor) {
    (void)type;
    __m512i flip = _mm512_set1_epi16((short)(factor < 0 ? 0x8000 : 0));
    for (int64_t r = 0; r < count; r++) {
        uint16_t *to = (uint16_t *)dst + r * dst_stride;
        int64_t i = 0;
        for (; i + 32 <= width; i += 32)
            _mm512_storeu_si512(to + i, _mm512_xor_si512(load_32(rows[r], i, width), flip));
        if (i == dst_stride) continue;
        __mmask32 place = (__mmask32)((1ull << (dst_stride - i)) - 1);
        _mm512_mask_storeu_epi16(to + i, place, _mm512_xor_si512(load_32(rows[r], i, width), flip));
    }
}

ALWAYS_INLINE vector load_pairs(const void *row, int64_t i, int64_t width, fa_element type) {
    (void)type;
    return v_load_pairs(row, 2 * i, width);
}

static void pack_keys(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    pack_keys_of(b, rows, count, padded(width) / STEP, width, load_pairs, type);
}

/* Two keys at a time, so that the elements of a column stand side by side. */
static bool pack_values(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    (void)type;
    vector largest = v_set(0.0f);
    int64_t depth = padded(count);
    for (int64_t k = 0; k < depth; k += 2) {
        float *to = (float *)b + k / 2 * PANEL;
        for (int64_t n = 0; n < width; n += PANEL, to += depth / 2 * PANEL) {
            vector low, high;
            v_load_two_rows(k < count ? rows[k] : NULL, k + 1 < count ? rows[k + 1] : NULL, n, width, &low, &high);
            largest = v_max_pair_magnitudes(largest, low);
            largest = v_max_pair_magnitudes(largest, high);
            v_store(to, low);
            v_store(to + LANES, high);
        }
    }
    return v_any_nonfinite_pair(largest);
}

#endif
