/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of bfloat16 on AVX-512 with BF16, for the files that define OPERAND_BFLOAT16 and DEPTH, the `depth` of
 * kernels.h: what kernels_simd.h asks for, Q, K and V as operands.
 */
#ifndef FA_CPU_KERNELS_AVX512_BF16_H
#define FA_CPU_KERNELS_AVX512_BF16_H

#include "kernels_avx512.h"

#define STEP 2

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

/* All lanes: the pair at p. */
static inline vector v_set_pair(const uint16_t *p) {
    int pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
}

/* Elements i .. i + 31 of two rows side by side, 0 beyond `width`: columns i .. i + 15, then the others. NULL: zeros. */
static inline void v_load_two_rows(const void *row0, const void *row1, int64_t i, int64_t width, vector *low,
                                   vector *high) {
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_or_si512(first, _mm512_set1_epi16(16));
    __m512i even = row0 != NULL ? load_32(row0, i, width) : _mm512_setzero_si512();
    __m512i odd = row1 != NULL ? load_32(row1, i, width) : _mm512_setzero_si512();
    *low = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, first, odd));
    *high = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, second, odd));
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

ALWAYS_INLINE vector load_pairs(const void *row, int64_t i, int64_t width, fa_element type) {
    (void)type;
    return v_load_pairs(row, 2 * i, width);
}

static void pack_keys(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    pack_keys_of(b, rows, count, padded(width) / STEP, width, load_pairs, type);
}

static inline vector max_magnitudes(vector a, vector pairs) {
    __m512i magnitudes = _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi16(0x7fff));
    return _mm512_castsi512_ps(_mm512_max_epu16(_mm512_castps_si512(a), magnitudes));
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
            largest = max_magnitudes(largest, low);
            largest = max_magnitudes(largest, high);
            v_store(to, low);
            v_store(to + LANES, high);
        }
    }
    return _mm512_cmpge_epu16_mask(_mm512_castps_si512(largest), _mm512_set1_epi16(0x7f80)) != 0;
}

#endif
