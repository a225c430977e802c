/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of AVX-512. Compiled with -mavx512f. */
#include "fma_peak.h"

#if defined(__AVX512F__)

#    include "fma_peak_loop.h"

#    include <immintrin.h>

#    define VECTOR __m512
#    define LANES 16
#    define BROADCAST(x) _mm512_set1_ps(x)
#    define MULTIPLY_ADD(a, b, c) _mm512_fmadd_ps(a, b, c)
#    define LANE_SUM(v) _mm512_reduce_add_ps(v)

double fma_peak_avx512(int64_t iterations, float *sink) { FMA_PEAK_LOOP; }

#else

double fma_peak_avx512(int64_t iterations, float *sink) {
    (void)iterations;
    (void)sink;
    return 0;
}

#endif
