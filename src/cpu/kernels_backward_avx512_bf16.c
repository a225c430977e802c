/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward's products of bfloat16 operands in AVX-512 with BF16: the instruction multiplies two pairs per lane and adds
 * both products to a float32 sum, rounding to nearest even whatever the floating-point mode; subnormal operands and
 * sums count as 0 (Intel SDM, VDPBF16PS).
 */
#include "kernels_backward.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__)

#    include <immintrin.h>

#    define LANES 16
#    define PANEL 32
#    define BLOCK_ROWS 12

typedef __m512 vector;

static inline vector v_set(float x) { return _mm512_set1_ps(x); }
static inline vector v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vector x) { _mm512_storeu_ps(p, x); }
static inline vector v_add(vector a, vector b) { return _mm512_add_ps(a, b); }
static inline vector v_mul(vector a, vector b) { return _mm512_mul_ps(a, b); }
static inline vector v_dot(vector a, vector b, vector c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }

#    include "kernels_backward_multiply.h"

static int64_t words(int64_t depth) { return (depth + 1) / 2; }

/* Elements i .. i + 31 of a row of `width`; 0 beyond its end. */
static inline __m512i load_32(const void *row, int64_t i, int64_t width) {
    const char *p = (const char *)row + 2 * i;
    if (i + 32 <= width) return _mm512_loadu_si512(p);
    if (i >= width) return _mm512_setzero_si512();
    return _mm512_maskz_loadu_epi16((__mmask32)((1ull << (width - i)) - 1), p);
}

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
    if (width % 2 == 0) {
        fa_cpu_backward_kernels_avx512()->products.pack_columns(b, rows, count, width / 2, FA_ELEMENT_FLOAT32);
        return;
    }
    uint16_t filled[FA_BACKWARD_KEYS][256];
    const void *filled_rows[FA_BACKWARD_KEYS];
    for (int64_t n = 0; n < count; n++) {
        memcpy(filled[n], rows[n], (size_t)width * 2);
        filled[n][width] = 0;
        filled_rows[n] = filled[n];
    }
    fa_cpu_backward_kernels_avx512()->products.pack_columns(b, filled_rows, count, words(width), FA_ELEMENT_FLOAT32);
}

/* Two rows at a time, so that the elements of a column stand side by side. */
static bool pack_panels(void *operand, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    float *b = operand;
    (void)type;
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_or_si512(first, _mm512_set1_epi16(16)), magnitude = _mm512_set1_epi16(0x7fff);
    __m512i largest = _mm512_setzero_si512();
    int64_t depth = words(count);
    for (int64_t k = 0; k < depth; k++) {
        float *dst = b + k * PANEL;
        for (int64_t n = 0; n < width; n += PANEL, dst += depth * PANEL) {
            __m512i even = load_32(rows[2 * k], n, width);
            __m512i odd = 2 * k + 1 < count ? load_32(rows[2 * k + 1], n, width) : _mm512_setzero_si512();
            largest = _mm512_max_epu16(largest, _mm512_and_si512(even, magnitude));
            largest = _mm512_max_epu16(largest, _mm512_and_si512(odd, magnitude));
            _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(even, first, odd));
            _mm512_storeu_si512(dst + LANES, _mm512_permutex2var_epi16(even, second, odd));
        }
    }
    return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) != 0;
}

static void pack_weights(float *by_rows, float *by_columns, const float *x, int64_t rows) {
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                                6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t r = 0; r < rows; r += 2, x += 2 * FA_BACKWARD_KEYS)
        for (int64_t j = 0; j < FA_BACKWARD_KEYS; j += 2 * LANES) {
            vector zero = _mm512_setzero_ps(), x0 = v_load(x + j), x1 = v_load(x + j + LANES), y0 = zero, y1 = zero;
            if (r + 1 < rows) {
                y0 = v_load(x + FA_BACKWARD_KEYS + j);
                y1 = v_load(x + FA_BACKWARD_KEYS + j + LANES);
            }
            if (by_rows != NULL) {
                float *dst = by_rows + r / 2 * FA_BACKWARD_KEYS + j;
                __m512i low = (__m512i)_mm512_cvtne2ps_pbh(y0, x0), high = (__m512i)_mm512_cvtne2ps_pbh(y1, x1);
                _mm512_storeu_si512(dst, _mm512_permutexvar_epi16(interleave, low));
                _mm512_storeu_si512(dst + LANES, _mm512_permutexvar_epi16(interleave, high));
            }
            if (by_columns != NULL) {
                float *dst = by_columns + (r * FA_BACKWARD_KEYS + j) / 2;
                _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(x1, x0));
                if (r + 1 < rows) _mm512_storeu_si512(dst + FA_BACKWARD_KEYS / 2, (__m512i)_mm512_cvtne2ps_pbh(y1, y0));
            }
        }
}

const fa_cpu_products *fa_cpu_products_avx512_bf16(void) {
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

const fa_cpu_products *fa_cpu_products_avx512_bf16(void) { return NULL; }

#endif
