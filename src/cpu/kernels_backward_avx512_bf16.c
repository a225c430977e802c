/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward's products of bfloat16 operands in AVX-512 with BF16: the instruction multiplies two pairs per lane and adds
 * both products to a float32 sum, rounding to nearest even whatever the floating-point mode; subnormal operands and
 * sums count as 0 (Intel SDM, VDPBF16PS).
 */
#include "kernels_backward.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__)

#    include "kernels_avx512_bf16.h"

#    define FLOAT32_PRODUCTS (&fa_cpu_backward_kernels_avx512()->products)

#    include "kernels_backward_bf16.h"

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
    static const fa_cpu_products products = BFLOAT16_PRODUCTS;
    return &products;
}

#else

const fa_cpu_products *fa_cpu_products_avx512_bf16(void) { return NULL; }

#endif
