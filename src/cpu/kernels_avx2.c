/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-kernels in AVX2 with FMA and F16C: the vocabulary of kernels_simd.h. */
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#    include <immintrin.h>

#    define LANES 8
#    define PANEL 16
/* 6 x 2 sums, 2 vectors of B and 1 broadcast: 15 of 16 registers; 8 loads for 12 multiply-adds. */
#    define BLOCK_ROWS 6
#    define FEW_CELLS 8

typedef __m256 vector;

static inline __m256i first_lanes(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vector v_set(float x) { return _mm256_set1_ps(x); }
static inline vector v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vector x) { _mm256_storeu_ps(p, x); }
static inline vector v_load_part(const float *p, int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
static inline void v_store_part(float *p, vector x, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
static inline vector v_add(vector a, vector b) { return _mm256_add_ps(a, b); }
static inline vector v_sub(vector a, vector b) { return _mm256_sub_ps(a, b); }
static inline vector v_mul(vector a, vector b) { return _mm256_mul_ps(a, b); }
static inline vector v_div(vector a, vector b) { return _mm256_div_ps(a, b); }
static inline vector v_fma(vector a, vector b, vector c) { return _mm256_fmadd_ps(a, b, c); }
static inline vector v_fnma(vector a, vector b, vector c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vector v_max(vector a, vector b) { return _mm256_max_ps(a, b); }
static inline vector v_abs(vector x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

static inline vector v_if_less(vector x, vector bound, vector a, vector b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, bound, _CMP_LT_OQ));
}

static inline vector v_zero_if_less(vector x, vector bound, vector b) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, bound, _CMP_LT_OQ), b);
}

static inline vector v_copysign(vector x, vector sign) {
    return _mm256_or_ps(x, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}

static inline vector v_scale(vector x, vector z) {
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(z), 23)));
}

/* Halves of the lanes are joined until one is left, those of two vectors side by side in one. */
#    define REDUCE_EACH(name, join)                                                              \
        static inline vector name(const vector *x) {                                             \
            vector half[2];                                                                      \
            for (int i = 0; i < 2; i++) { /* within the halves */                                \
                const vector *y = x + 4 * i;                                                     \
                vector a = join(_mm256_unpacklo_ps(y[0], y[1]), _mm256_unpackhi_ps(y[0], y[1])); \
                vector b = join(_mm256_unpacklo_ps(y[2], y[3]), _mm256_unpackhi_ps(y[2], y[3])); \
                half[i] = join(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));    \
            }                                                                                    \
            return join(_mm256_permute2f128_ps(half[0], half[1], 0x20),                          \
                        _mm256_permute2f128_ps(half[0], half[1], 0x31));                         \
        }
REDUCE_EACH(v_reduce_add_each, v_add)
REDUCE_EACH(v_reduce_max_each, v_max)

static inline vector v_max_magnitude(vector bits, vector x) {
    __m256i magnitude = _mm256_castps_si256(v_abs(x));
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(bits), magnitude));
}

static inline bool v_any_nonfinite(vector bits) {
    __m256i beyond = _mm256_cmpgt_epi32(_mm256_castps_si256(bits), _mm256_set1_epi32(0x7f7fffff));
    return _mm256_movemask_epi8(beyond) != 0;
}

/* 8 elements of 16 bits to float32. */
static inline vector from_halves(__m128i h, fa_element type) {
    if (type == FA_ELEMENT_FLOAT16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline vector v_load_element(const void *p, fa_element type) {
    if (type == FA_ELEMENT_FLOAT32) return _mm256_loadu_ps(p);
    return from_halves(_mm_loadu_si128(p), type);
}

static inline vector v_load_element_part(const void *p, int64_t n, fa_element type) {
    if (type == FA_ELEMENT_FLOAT32) return _mm256_maskload_ps(p, first_lanes(n));
    uint16_t h[8] = {0};
    memcpy(h, p, (size_t)n * sizeof *h);
    return from_halves(_mm_loadu_si128((const void *)h), type);
}

static inline void v_store_element(void *p, vector x, fa_element type) {
    if (type == FA_ELEMENT_FLOAT32) {
        _mm256_storeu_ps(p, x);
    } else if (type == FA_ELEMENT_FLOAT16) {
        _mm_storeu_si128(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    } else { /* fa_bfloat16_from_float */
        __m256i u = _mm256_castps_si256(x), upper = _mm256_srli_epi32(u, 16);
        __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        __m256i h = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, nan);
        _mm_storeu_si128(p, _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
    }
}

/* Four rows: each 128-bit half transposed by itself. */
static inline void transpose_halves(vector *x) {
    vector t0 = _mm256_unpacklo_ps(x[0], x[1]), t1 = _mm256_unpackhi_ps(x[0], x[1]);
    vector t2 = _mm256_unpacklo_ps(x[2], x[3]), t3 = _mm256_unpackhi_ps(x[2], x[3]);
    x[0] = _mm256_shuffle_ps(t0, t2, 0x44);
    x[1] = _mm256_shuffle_ps(t0, t2, 0xee);
    x[2] = _mm256_shuffle_ps(t1, t3, 0x44);
    x[3] = _mm256_shuffle_ps(t1, t3, 0xee);
}

/* Then the 2 x 2 matrix whose elements are the halves of x[0] and x[4]. */
static inline void transpose_by_half(vector *x) {
    vector low = _mm256_permute2f128_ps(x[0], x[4], 0x20), high = _mm256_permute2f128_ps(x[0], x[4], 0x31);
    x[0] = low;
    x[4] = high;
}

static inline void v_transpose(vector *x) {
    transpose_halves(x);
    transpose_halves(x + 4);
    transpose_by_half(x);
    transpose_by_half(x + 1);
    transpose_by_half(x + 2);
    transpose_by_half(x + 3);
}

#    include "kernels_simd.h"

#    include "kernels_few_rows.h"
#    include "kernels_multiply.h"

#    include "kernels_backward_simd.h"

const fa_cpu_kernels *fa_cpu_kernels_avx2(void) {
    static const fa_cpu_kernels table = FA_CPU_FLOAT32_KERNELS(FA_ISA_AVX2);
    return &table;
}

const fa_cpu_backward_kernels *fa_cpu_backward_kernels_avx2(void) {
    static const fa_cpu_backward_kernels table = BACKWARD_KERNELS;
    return &table;
}

#else

#    include "kernels_backward.h"

const fa_cpu_kernels *fa_cpu_kernels_avx2(void) { return NULL; }
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_avx2(void) { return NULL; }

#endif
