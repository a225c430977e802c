/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of kernels_simd.h in AVX-512 (F, BW, DQ, VL), for the files that are compiled for it. The tails of
 * rows are masked, so that nothing outside them is touched. */
#ifndef FA_CPU_KERNELS_AVX512_H
#define FA_CPU_KERNELS_AVX512_H

#include "kernels.h"

#include <immintrin.h>

#define LANES 16
#define PANEL 32
/* 12 x 2 sums, 2 vectors of B and 1 broadcast: 27 of 32 registers; 14 loads for 24 multiply-adds. */
#define BLOCK_ROWS 12
#define FEW_CELLS 16

typedef __m512 vector;

static inline __mmask16 first_lanes(int64_t n) { return (__mmask16)((1u << n) - 1u); }

static inline vector v_set(float x) { return _mm512_set1_ps(x); }
static inline vector v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vector x) { _mm512_storeu_ps(p, x); }
static inline vector v_load_part(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
static inline void v_store_part(float *p, vector x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
static inline vector v_add(vector a, vector b) { return _mm512_add_ps(a, b); }
static inline vector v_sub(vector a, vector b) { return _mm512_sub_ps(a, b); }
static inline vector v_mul(vector a, vector b) { return _mm512_mul_ps(a, b); }
static inline vector v_div(vector a, vector b) { return _mm512_div_ps(a, b); }
static inline vector v_fma(vector a, vector b, vector c) { return _mm512_fmadd_ps(a, b, c); }
static inline vector v_fnma(vector a, vector b, vector c) { return _mm512_fnmadd_ps(a, b, c); }
static inline vector v_max(vector a, vector b) { return _mm512_max_ps(a, b); }
static inline vector v_abs(vector x) { return _mm512_abs_ps(x); }

static inline vector v_if_less(vector x, vector bound, vector a, vector b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, bound, _CMP_LT_OQ), b, a);
}

static inline vector v_zero_if_less(vector x, vector bound, vector b) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), b);
}

static inline vector v_copysign(vector x, vector sign) {
    return _mm512_or_ps(x, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}

static inline vector v_scale(vector x, vector z) {
    return _mm512_mul_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(z), 23)));
}

/* Halves of the lanes are joined until one is left, those of two vectors side by side in one. */
#define REDUCE_EACH(name, join)                                                                                      \
    static inline vector name(const vector *x) {                                                                     \
        vector four[4];                                                                                              \
        for (int i = 0; i < 4; i++) { /* within the quarters */                                                      \
            const vector *y = x + 4 * i;                                                                             \
            vector a = join(_mm512_unpacklo_ps(y[0], y[1]), _mm512_unpackhi_ps(y[0], y[1]));                         \
            vector b = join(_mm512_unpacklo_ps(y[2], y[3]), _mm512_unpackhi_ps(y[2], y[3]));                         \
            four[i] = join(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));                            \
        }                                                                                                            \
        vector a = join(_mm512_shuffle_f32x4(four[0], four[1], 0x88), _mm512_shuffle_f32x4(four[0], four[1], 0xdd)); \
        vector b = join(_mm512_shuffle_f32x4(four[2], four[3], 0x88), _mm512_shuffle_f32x4(four[2], four[3], 0xdd)); \
        return join(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));                             \
    }
REDUCE_EACH(v_reduce_add_each, v_add)
REDUCE_EACH(v_reduce_max_each, v_max)

static inline vector v_max_magnitude(vector bits, vector x) {
    __m512i magnitude = _mm512_castps_si512(_mm512_abs_ps(x));
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(bits), magnitude));
}

static inline bool v_any_nonfinite(vector bits) {
    return _mm512_cmpge_epu32_mask(_mm512_castps_si512(bits), _mm512_set1_epi32(0x7f800000)) != 0;
}

/* 16 elements of 16 bits to float32. */
static inline vector from_halves(__m256i h, fa_element type) {
    if (type == FA_ELEMENT_FLOAT16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline vector v_load_element(const void *p, fa_element type) {
    if (type == FA_ELEMENT_FLOAT32) return _mm512_loadu_ps(p);
    return from_halves(_mm256_loadu_si256(p), type);
}

static inline vector v_load_element_part(const void *p, int64_t n, fa_element type) {
    if (type == FA_ELEMENT_FLOAT32) return _mm512_maskz_loadu_ps(first_lanes(n), p);
    return from_halves(_mm256_maskz_loadu_epi16(first_lanes(n), p), type);
}

static inline void v_store_element(void *p, vector x, fa_element type) {
    if (type == FA_ELEMENT_FLOAT32) {
        _mm512_storeu_ps(p, x);
    } else if (type == FA_ELEMENT_FLOAT16) {
        /* Masked by all ones: GCC's macro without a mask warns of its own sign conversion in debug builds. */
        _mm256_storeu_si256(p, _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    } else { /* fa_bfloat16_from_float in integers: the instruction would flush subnormals */
        __m512i u = _mm512_castps_si512(x), upper = _mm512_srli_epi32(u, 16);
        __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
        __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        rounded = _mm512_srli_epi32(rounded, 16);
        rounded = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
        _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(rounded));
    }
}

/* Four rows: each 128-bit quarter transposed by itself. */
static inline void transpose_quarters(vector *x) {
    vector t0 = _mm512_unpacklo_ps(x[0], x[1]), t1 = _mm512_unpackhi_ps(x[0], x[1]);
    vector t2 = _mm512_unpacklo_ps(x[2], x[3]), t3 = _mm512_unpackhi_ps(x[2], x[3]);
    x[0] = _mm512_shuffle_ps(t0, t2, 0x44);
    x[1] = _mm512_shuffle_ps(t0, t2, 0xee);
    x[2] = _mm512_shuffle_ps(t1, t3, 0x44);
    x[3] = _mm512_shuffle_ps(t1, t3, 0xee);
}

/* Then the 4 x 4 matrix whose elements are the quarters of x[0], x[4], x[8] and x[12]. */
static inline void transpose_by_quarter(vector *x) {
    vector even0 = _mm512_shuffle_f32x4(x[0], x[4], 0x88), odd0 = _mm512_shuffle_f32x4(x[0], x[4], 0xdd);
    vector even1 = _mm512_shuffle_f32x4(x[8], x[12], 0x88), odd1 = _mm512_shuffle_f32x4(x[8], x[12], 0xdd);
    x[0] = _mm512_shuffle_f32x4(even0, even1, 0x88);
    x[4] = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
    x[8] = _mm512_shuffle_f32x4(even0, even1, 0xdd);
    x[12] = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
}

static inline void v_transpose(vector *x) {
    transpose_quarters(x);
    transpose_quarters(x + 4);
    transpose_quarters(x + 8);
    transpose_quarters(x + 12);
    transpose_by_quarter(x);
    transpose_by_quarter(x + 1);
    transpose_by_quarter(x + 2);
    transpose_by_quarter(x + 3);
}

#endif
