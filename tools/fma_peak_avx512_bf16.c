/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of AVX-512 BF16: sums of products of bfloat16 pairs. Compiled with -mavx512bf16. */
#include "fma_peak.h"

#if defined(__AVX512F__) && defined(__AVX512BF16__)

#    include "fma_peak_loop.h"

#    include <immintrin.h>

/* A sum grows by one product in each step and stays far below the end of float32. */
#    define VECTOR __m512
#    define LANES 32 /* products */
#    define BROADCAST(x) _mm512_set1_ps(x)
#    define MULTIPLY_ADD(a, b, c) _mm512_dpbf16_ps(a, (__m512bh)(b), (__m512bh)(c))
#    define LANE_SUM(v) _mm512_reduce_add_ps(v)

double fma_peak_avx512_bf16(int64_t iterations, float *sink) { FMA_PEAK_LOOP; }

#else

double fma_peak_avx512_bf16(int64_t iterations, float *sink) {
    (void)iterations;
    (void)sink;
    return 0;
}

#endif
