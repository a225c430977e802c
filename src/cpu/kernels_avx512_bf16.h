/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of bfloat16 on AVX-512 with BF16, for the files that define OPERAND_BFLOAT16 and DEPTH, the `depth` of
 * kernels.h: what kernels_simd.h asks for, Q and V as operands.
 */
#ifndef FA_CPU_KERNELS_AVX512_BF16_H
#define FA_CPU_KERNELS_AVX512_BF16_H

#include "kernels_avx512.h"

static inline vector v_dot_pairs(vector a, vector b, vector c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }

static inline void v_store_bfloat16(void *p, vector x, vector y) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(y, x));
}

/* Elements i .. i + 31 of a row of `width`; 0 beyond its end. */
static inline __m512i load_32(const void *row, int64_t i, int64_t width) {
    const uint16_t *p = (const uint16_t *)row + i;
    if (i + 32 <= width) return _mm512_loadu_si512(p);
    if (i >= width) return _mm512_setzero_si512();
    return _mm512_maskz_loadu_epi16((__mmask32)((1ull << (width - i)) - 1), p);
}

/* The same as LANES pairs. */
static inline vector v_load_pairs(const void *row, int64_t i, int64_t width) {
    return _mm512_castsi512_ps(load_32(row, i, width));
}

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

/* Two keys at a time, so that the elements of a column stand side by side. */
static bool pack_values(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    (void)type;
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_or_si512(first, _mm512_set1_epi16(16));
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i largest = _mm512_setzero_si512();
    int64_t depth = padded(count);
    for (int64_t k = 0; k < depth; k += 2) {
        uint16_t *to = (uint16_t *)b + k * PANEL;
        for (int64_t n = 0; n < width; n += PANEL, to += depth * PANEL) {
            __m512i even = k < count ? load_32(rows[k], n, width) : _mm512_setzero_si512();
            __m512i odd = k + 1 < count ? load_32(rows[k + 1], n, width) : _mm512_setzero_si512();
            largest = _mm512_max_epu16(largest, _mm512_and_si512(even, magnitude));
            largest = _mm512_max_epu16(largest, _mm512_and_si512(odd, magnitude));
            _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, first, odd));
            _mm512_storeu_si512(to + PANEL, _mm512_permutex2var_epi16(even, second, odd));
        }
    }
    return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) != 0;
}

#endif
