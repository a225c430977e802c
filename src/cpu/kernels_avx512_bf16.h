/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of AVX-512 with pairs of bfloat16 numbers, for the files that are compiled for BF16. */
#ifndef FA_CPU_KERNELS_AVX512_BF16_H
#define FA_CPU_KERNELS_AVX512_BF16_H

#include "kernels_avx512.h"
#include "kernels_exp.h"

#define STEP 2

static inline vector v_dot_pairs(vector a, vector b, vector c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }

static inline void v_store_bfloat16(void *p, vector x, vector y) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(y, x));
}

/* kernels_exp.h, "to be rounded to bfloat16". */
static inline vector v_weight(vector d, vector c, float shift) {
    enum { FRACTION_DOWN = 0x09 }; /* x - floor(x) */
    vector x = v_fma(d, c, v_set(-shift));
    vector r = _mm512_reduce_ps(x, FRACTION_DOWN);
    vector p = v_fma(v_set(FA_WEIGHT_C5), r, v_set(FA_WEIGHT_C4));
    p = v_fma(p, r, v_set(FA_WEIGHT_C3));
    p = v_fma(p, r, v_set(FA_WEIGHT_C2));
    p = v_fma(p, r, v_set(FA_WEIGHT_C1));
    return _mm512_scalef_ps(v_fma(p, r, v_set(1.0f)), x); /* times 2^floor(x) */
}
#define V_WEIGHT v_weight

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

/* For pairs what v_max_magnitude and v_any_nonfinite are for float32. */
static inline vector v_max_pair_magnitudes(vector bits, vector pairs) {
    __m512i magnitudes = _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi16(0x7fff));
    return _mm512_castsi512_ps(_mm512_max_epu16(_mm512_castps_si512(bits), magnitudes));
}

static inline bool v_any_nonfinite_pair(vector bits) {
    return _mm512_cmpge_epu16_mask(_mm512_castps_si512(bits), _mm512_set1_epi16(0x7f80)) != 0;
}

#endif
